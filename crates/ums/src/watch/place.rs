//! A place: one processor on which one watched thread at a time runs user code, with a watcher that
//! detects when that thread blocks.
//!
//! At most one watched thread is *seated* at a place. The *watcher* is an idle-priority thread
//! (SCHED_IDLE), pinned to the same processor. While the seated thread runs, the watcher does not.
//! When the seated thread blocks, the kernel has nothing else to run, and switches to the watcher.
//! So the watcher needs no other notification. It checks that the thread is blocked, revokes the
//! place, and notifies the place's *owner*, which seats another thread.
//!
//! ```text
//! seated runs   ----blocks---->   watcher: look()   --revoke-->   PlaceOwner::place_is_free
//!      ^                                                               |
//!      +--------------------------- seat() <---------------------------+
//! ```
//!
//! The *watchdog* (`watchdog.rs`) is another thread that calls the same `look` now and then, in
//! case the watcher gets no processor time.
//!
//! Rules. *Type Stable*: a seated thread's record is never freed. *Standing Place*: a place lives
//! until its watcher has ended and the watchdog no longer refers to it; by then no thread is
//! seated.

use std::io;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::means::Mechanism;
use super::state;
use super::thread::{PlaceOwner, Seat, Watched};
use super::watchdog::{self, Subject};
use super::word::WordValue;
use crate::os::asleep::Asleep;
use crate::os::event::ThreadEvent;
use crate::os::linux::cpus;
use crate::os::linux::perf::Last;
use crate::os::linux::plain;
use crate::os::lock::Lock;
use crate::os::threads;
use crate::record::report::{self, WarningKind};

/// How many looks of the watcher find nothing before it backs off.
const LOOKS: u32 = 400;
/// How many looks find a vacant place before the watcher waits until a thread is seated.
const LOOKS_VACANT: u32 = 64;
/// How long the watcher sleeps when it backs off: first the first value, then doubled up to the
/// second.
const NAP_NS: (u64, u64) = (50_000, 1_000_000);

/// One processor on which one watched thread at a time runs user code.
pub struct Place {
    /// The processor.
    pub cpu: usize,
    how: Mechanism,
    seat: Seat,
    bell: ThreadEvent,
    asleep: Asleep,
    stop: AtomicBool,
    watcher: Lock<Option<JoinHandle<()>>>,
    /// The value of `suspicion` at the watchdog's last look.
    suspect: AtomicU64,
    /// How often the place was taken from a blocked thread.
    revokes: AtomicU64,
    /// How many of these revocations the watchdog made.
    rescues: AtomicU64,
}

/// The result of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// No thread is seated.
    Vacant,
    /// The seated thread runs, or must not be stopped now.
    Runs,
    /// The seated thread was blocked, and the place was taken from it.
    Taken,
}

impl Place {
    /// Makes a place on this processor, and starts its watcher.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn open(cpu: usize, how: Mechanism, owner: Box<dyn PlaceOwner>) -> io::Result<Arc<Place>> {
        let place = Arc::new(Place {
            cpu,
            how,
            seat: Seat::new(owner),
            bell: ThreadEvent::new(),
            asleep: Asleep::new(),
            stop: AtomicBool::new(false),
            watcher: Lock::new(None),
            suspect: AtomicU64::new(0),
            revokes: AtomicU64::new(0),
            rescues: AtomicU64::new(0),
        });
        let subject: Arc<dyn Subject> = place.clone();
        watchdog::watch(&subject)?;
        let mine = place.clone();
        let thread = std::thread::Builder::new().name(format!("ums-watcher/{cpu}"));
        match threads::start(thread.stack_size(64 << 10), move || mine.watch()) {
            Ok(thread) => *place.watcher.lock() = Some(thread),
            Err(error) => {
                watchdog::forget(&subject);
                return Err(error);
            }
        }
        Ok(place)
    }

    /// Ends the watcher. No thread may be seated any more.
    pub fn close(self: &Arc<Self>) {
        self.stop.store(true, Ordering::SeqCst);
        self.bell.set();
        let subject: Arc<dyn Subject> = self.clone();
        watchdog::forget(&subject);
        if let Some(thread) = self.watcher.lock().take() {
            let _ = thread.join();
        }
    }

    /// Seats a thread that belongs here and is about to be woken. Called by the thread that has the
    /// place. The seated thread may already have run and left by the time of this call; then the
    /// caller clears the seat with [`Place::clear`].
    pub fn seat(&self, thread: &'static Watched) {
        self.seat.seat(thread);
        self.stir();
    }

    /// Makes this the place of a thread. The thread is not seated at another place before it has
    /// left this one.
    pub fn belongs(&self, thread: &'static Watched) {
        thread.place.store(ptr::from_ref(&self.seat).cast_mut(), Ordering::Release);
    }

    /// Returns whether this is the place of a thread.
    pub fn is_place_of(&self, thread: &Watched) -> bool {
        ptr::eq(thread.place.load(Ordering::Acquire), &self.seat)
    }

    /// Removes the seated thread, if any. Called by the thread that has the place, after it was
    /// notified that the seated thread has left.
    pub fn clear(&self) {
        self.seat.clear();
    }

    /// Wakes the watcher and the watchdog, because a thread is about to run here.
    #[inline]
    pub fn stir(&self) {
        // The caller may be stopped before it sets the event, and the watcher is there to notice
        // that. So the next caller sets it too.
        if self.asleep.must_ring() {
            self.bell.set();
        }
        watchdog::wake();
    }

    /// Removes a seated thread that leaves voluntarily. The owner is not notified.
    pub fn vacate(&self, thread: &'static Watched) {
        self.seat.vacate(thread);
    }

    /// Returns how often the place was revoked, and how often of these by the watchdog.
    pub fn counts(&self) -> (u64, u64) {
        (self.revokes.load(Ordering::Relaxed), self.rescues.load(Ordering::Relaxed))
    }

    /// Returns whether a thread is seated, or hosted.
    fn is_taken(&self) -> bool {
        self.seat.seated().is_some() || self.seat.owner.hosts()
    }

    /// Returns a number for the word and the state of the seated thread, to compare with that of a
    /// later look. Returns 0 unless the thread is blocked and may be stopped.
    fn suspicion(&self) -> u64 {
        let Some(thread) = self.seat.seated() else { return self.seat.owner.suspects_hosted() };
        let seen = thread.word.seen();
        match seen.is_revocable() && matches!(thread.last(), Last::Blocked(..)) {
            true => seen.number(),
            false => 0,
        }
    }

    /// Checks whether the thread that owns the place is blocked, and takes the place from it if so.
    fn look(&self) -> Look {
        let owner = &self.seat.owner;
        let Some(thread) = self.seat.seated() else {
            if !owner.hosts() {
                return Look::Vacant;
            }
            if !owner.look_at_hosted() {
                return Look::Runs;
            }
            // The hosted thread leaves its place by itself.
            self.revokes.fetch_add(1, Ordering::Relaxed);
            return Look::Taken;
        };
        // The word must be read before everything else (R1 in docs/design/races.md).
        let seen = thread.word.seen();
        if !seen.is_revocable() || !self.is_place_of(thread) {
            return Look::Runs;
        }
        let Last::Blocked(head, in_call) = thread.last() else { return Look::Runs };
        if !thread.is_outside() || !owner.may_take(thread) {
            return Look::Runs;
        }
        match self.how {
            Mechanism::Calls if !seen.is_call() => Look::Runs,
            // SIGTRAP is blocked while the thread passes its gate, so it must not hit a breakpoint
            // (R13 in docs/design/races.md).
            Mechanism::Breakpoint if !seen.is_call() && thread.is_at_gate() => Look::Runs,
            Mechanism::Breakpoint if !seen.is_call() => self.take_armed(thread, seen, head),
            _ => self.take(thread, seen, in_call || seen.is_call()),
        }
    }

    /// Takes the place, if its thread is still as it was seen.
    fn take(&self, thread: &'static Watched, seen: WordValue, in_call: bool) -> Look {
        if !thread.word.revoke(seen) {
            return Look::Runs;
        }
        self.seat.vacate(thread);
        self.revokes.fetch_add(1, Ordering::Relaxed);
        self.seat.owner.place_is_free(in_call);
        Look::Taken
    }

    /// Arms a gate for a thread in user code, and takes its place.
    ///
    /// The lock allows one caller at a time, because a second caller that failed would remove the
    /// gate of the first. Once the lock is held, the word is compared with the one that was seen.
    /// If they differ, another caller has taken the place, or the thread has changed the word.
    fn take_armed(&self, thread: &'static Watched, seen: WordValue, head: u64) -> Look {
        let Some(_one) = thread.breakpoint.lock() else { return Look::Runs };
        if thread.word.seen() != seen {
            return Look::Runs;
        }
        let taken = match arm(thread, head) {
            Some(in_call) => self.take(thread, seen, in_call),
            None => Look::Runs,
        };
        if taken != Look::Taken {
            thread.breakpoint.withdraw();
        }
        taken
    }

    /// The watcher's thread.
    fn watch(&self) {
        if let Err(error) = cpus::pin_to(self.cpu) {
            let text = format_args!("the watcher could not be pinned to CPU {}: {error}", self.cpu);
            report::warn(WarningKind::Setup, text);
        }
        become_idle_priority();
        let (mut looks, mut nap) = (0, NAP_NS.0);
        while !self.stop.load(Ordering::Relaxed) {
            match self.look() {
                // A thread may be seated soon, and `seat` would have to wake a sleeping watcher.
                Look::Vacant if looks < LOOKS_VACANT => {
                    looks += 1;
                    std::thread::yield_now();
                }
                Look::Vacant => {
                    self.sleep_until_seated();
                    (looks, nap) = (0, NAP_NS.0);
                }
                Look::Taken => (looks, nap) = (0, NAP_NS.0),
                Look::Runs if looks < LOOKS => {
                    looks += 1;
                    std::thread::yield_now();
                }
                Look::Runs => {
                    // The seated thread runs on another processor, or waits inside the library. The
                    // watcher sleeps, so that it does not keep this processor busy.
                    std::thread::sleep(Duration::from_nanos(nap));
                    nap = (nap * 2).min(NAP_NS.1);
                }
            }
        }
    }

    fn sleep_until_seated(&self) {
        let found = || self.is_taken() || self.stop.load(Ordering::SeqCst);
        self.asleep.sleep_unless(&self.bell, found);
    }
}

impl Subject for Place {
    fn is_busy(&self) -> bool {
        self.seat.owner.check() || self.is_taken()
    }

    /// Takes the place if the seated thread was blocked at the last look and is still in the same
    /// wait.
    fn look(&self) -> bool {
        let now = self.suspicion();
        let before = self.suspect.swap(now, Ordering::Relaxed);
        if now == 0 || now != before || Place::look(self) != Look::Taken {
            return false;
        }
        self.rescues.fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// Arms a gate for a blocked thread in user code, and looks again. Returns whether the thread is in
/// a system call. Returns `None` if no gate is possible or the thread has moved.
fn arm(thread: &Watched, head: u64) -> Option<bool> {
    let waits = thread.state_file.waits()?;
    if waits.call.is_none() && state::waits_for_memory_map(thread.tid()) {
        return None;
    }
    let armed = thread.breakpoint.arm(waits.pc, waits.call.is_none());
    if armed && thread.head() == head && thread.state_file.waits() == Some(waits) {
        return Some(waits.call.is_some());
    }
    None
}

/// Makes the calling thread run only when the processor has nothing else to run.
fn become_idle_priority() {
    if let Err(error) = plain::become_idle_priority() {
        let text = format_args!("a watcher runs as an ordinary thread: {error}");
        report::warn(WarningKind::Setup, text);
    }
}

/// Returns a processor that this thread and others of the process may run on.
pub(super) fn some_cpu() -> usize {
    cpus::Cpus::read().allowed.first().copied().unwrap_or(0)
}
