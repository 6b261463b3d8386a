//! A place: one processor's worth of running, with a catcher that notices when it falls free.
//!
//! At most one watched thread is *seated* at a place. The *catcher* is a thread of the lowest kind
//! (SCHED_IDLE), pinned to the same processor: while the seated thread runs, the catcher does not;
//! when that one blocks, the kernel has nothing else to run, and its own switch to the catcher is
//! the notification. It looks why it runs, takes the place away, and tells the *landlord*, which
//! seats somebody else.
//!
//! ```text
//! seated runs   ----blocks---->   catcher: look()   --revoke-->   Landlord::place_is_free
//!      ^                                                               |
//!      +--------------------------- seat() <---------------------------+
//! ```
//!
//! The *watchdog* (`watchdog.rs`) calls the same `look` now and then from elsewhere, for a catcher
//! that gets no processor.
//!
//! Named invariants. **Type Stable**: who is seated is never freed. **Standing Place**: a place
//! lives until its catcher has ended and the watchdog has forgotten it; the seated thread is gone
//! by then.

#![allow(unsafe_code)]

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::thread::Watched;
use super::watchdog::{self, Subject};
use super::word::Seen;
use super::{Mechanism, state};
use crate::os::event::Event;
use crate::os::linux::cpus;
use crate::os::linux::perf::Last;
use crate::record::report::{self, Kind};

/// How often the catcher looks in vain before it sleeps a little.
const LOOKS: u32 = 400;
/// How often it looks for somebody to be seated before it waits for that.
const LOOKS_VACANT: u32 = 64;
/// How long it sleeps then, doubled up to the second.
const NAP_NS: (u64, u64) = (50_000, 1_000_000);

/// Who decides what runs at a place.
pub trait Landlord: Send + Sync {
    /// The seated thread has lost the place, in a system call or (false) in a fault. Called by the
    /// catcher, the watchdog, or the thread itself: short, no lock, no allocation.
    fn place_is_free(&self, in_call: bool);

    /// Who has the place, where the landlord knows without [`Place::seat`].
    fn seated(&self) -> Option<&'static Watched> {
        None
    }

    /// Whether `who`, who has the place, may be stopped now. Asked while it is blocked, so what it
    /// did before is visible.
    fn may_take(&self, _who: &Watched) -> bool {
        true
    }

    /// Looks whether the landlord's own kernel thread is blocked in the code of a thread that it
    /// hosts, and pokes it if so. True: that is news; one that cannot be interrupted is poked again
    /// and again.
    fn look_at_hosted(&self) -> bool {
        false
    }

    /// Whether threads may be hosted now.
    fn hosts(&self) -> bool {
        false
    }

    /// As [`Place::suspicion`], of a hosted thread.
    fn suspects_hosted(&self) -> u64 {
        0
    }

    /// Asked by the watchdog at each of its looks. True: it shall go on looking, although nobody is
    /// seated.
    fn check(&self) -> bool {
        false
    }
}

/// One processor's worth of running.
pub struct Place {
    /// The processor.
    pub cpu: usize,
    how: Mechanism,
    seated: AtomicPtr<Watched>,
    landlord: Box<dyn Landlord>,
    bell: Event,
    asleep: AtomicBool,
    stop: AtomicBool,
    catcher: Mutex<Option<JoinHandle<()>>>,
    /// What the watchdog saw last time.
    suspect: AtomicU64,
    /// How often the place was taken from a blocked thread.
    revokes: AtomicU64,
    /// How many of these were the watchdog's doing.
    rescues: AtomicU64,
}

/// What a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// Nobody is seated.
    Vacant,
    /// Who is seated runs, or must not be stopped now.
    Runs,
    /// Who was seated was blocked, and the place was taken.
    Taken,
}

impl Place {
    /// A place on this processor, with its catcher.
    ///
    /// # Errors
    /// A thread cannot be had.
    pub fn open(cpu: usize, how: Mechanism, landlord: Box<dyn Landlord>) -> io::Result<Arc<Place>> {
        let place = Arc::new(Place {
            cpu,
            how,
            seated: AtomicPtr::new(ptr::null_mut()),
            landlord,
            bell: Event::new(),
            asleep: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            catcher: Mutex::new(None),
            suspect: AtomicU64::new(0),
            revokes: AtomicU64::new(0),
            rescues: AtomicU64::new(0),
        });
        let subject: Arc<dyn Subject> = place.clone();
        watchdog::watch(&subject)?;
        let mine = place.clone();
        let thread = std::thread::Builder::new().name(format!("ums-catcher/{cpu}"));
        let thread = thread.stack_size(64 << 10).spawn(move || mine.catch());
        match thread {
            Ok(thread) => *place.lock_catcher() = Some(thread),
            Err(error) => {
                watchdog::forget(&subject);
                return Err(error);
            }
        }
        Ok(place)
    }

    /// Ends the catcher. Nobody is seated any more.
    pub fn close(self: &Arc<Self>) {
        self.stop.store(true, Ordering::SeqCst);
        self.bell.set();
        let subject: Arc<dyn Subject> = self.clone();
        watchdog::forget(&subject);
        if let Some(thread) = self.lock_catcher().take() {
            let _ = thread.join();
        }
    }

    fn lock_catcher(&self) -> std::sync::MutexGuard<'_, Option<JoinHandle<()>>> {
        self.catcher.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Seats a thread that is about to be let out of its park. By whoever has the place.
    pub fn seat(&self, who: &'static Watched) {
        self.belongs(who);
        self.seated.store(ptr::from_ref(who).cast_mut(), Ordering::SeqCst);
        self.stir();
    }

    /// This thread is never seated elsewhere, or not before it has left.
    pub fn belongs(&self, who: &'static Watched) {
        who.place.store(ptr::from_ref(self).cast_mut(), Ordering::Release);
    }

    /// Somebody is about to run here: the catcher and the watchdog have something to look at.
    #[inline]
    pub fn stir(&self) {
        // Against the catcher's look before it sleeps: one of both sees the other's store.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) {
            self.bell.set();
        }
        watchdog::wake();
    }

    /// The seated thread leaves of its own accord. The landlord is not told.
    pub fn vacate(&self, who: &'static Watched) {
        let who = ptr::from_ref(who).cast_mut();
        let _ =
            self.seated.compare_exchange(who, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The seated thread has revoked itself, before a call that will block.
    pub(super) fn given_up(&self, who: &'static Watched) {
        self.vacate(who);
        self.landlord.place_is_free(true);
    }

    /// How often it was taken from a blocked thread, and how often by the watchdog.
    pub fn counts(&self) -> (u64, u64) {
        (self.revokes.load(Ordering::Relaxed), self.rescues.load(Ordering::Relaxed))
    }

    /// Who is seated.
    fn seated(&self) -> Option<&'static Watched> {
        // SAFETY: Type Stable.
        let seated = unsafe { self.seated.load(Ordering::SeqCst).as_ref() };
        seated.or_else(|| self.landlord.seated())
    }

    /// Whether somebody is seated, or hosted.
    fn is_taken(&self) -> bool {
        self.seated().is_some() || self.landlord.hosts()
    }

    /// What the seated thread's word and state are, for a second look a little later: 0 unless it
    /// is blocked and may be taken.
    fn suspicion(&self) -> u64 {
        let Some(who) = self.seated() else { return self.landlord.suspects_hosted() };
        let seen = who.word.seen();
        match seen.is_revocable() && matches!(who.last(), Last::Blocked(..)) {
            true => seen.number(),
            false => 0,
        }
    }

    /// Looks whether the seated thread is blocked, and takes the place if so.
    fn look(&self) -> Look {
        let Some(who) = self.seated() else {
            if !self.landlord.hosts() {
                return Look::Vacant;
            }
            if !self.landlord.look_at_hosted() {
                return Look::Runs;
            }
            // It leaves its place by itself.
            self.revokes.fetch_add(1, Ordering::Relaxed);
            return Look::Taken;
        };
        // The word before everything else (R1).
        let seen = who.word.seen();
        let here = ptr::eq(who.place.load(Ordering::Acquire), self);
        if !seen.is_revocable() || !here {
            return Look::Runs;
        }
        let Last::Blocked(head, in_call) = who.last() else { return Look::Runs };
        if !who.is_outside() || !self.landlord.may_take(who) {
            return Look::Runs;
        }
        match self.how {
            Mechanism::Calls if !seen.is_call() => Look::Runs,
            Mechanism::Breakpoint if !seen.is_call() => self.take_armed(who, seen, head),
            _ => self.take(who, seen, in_call || seen.is_call()),
        }
    }

    /// Takes the place, if its thread is still as it was seen.
    fn take(&self, who: &'static Watched, seen: Seen, in_call: bool) -> Look {
        if !who.word.revoke(seen) {
            return Look::Runs;
        }
        self.vacate(who);
        self.revokes.fetch_add(1, Ordering::Relaxed);
        self.landlord.place_is_free(in_call);
        Look::Taken
    }

    /// Takes the place of a thread in its user code: first a gate is put in its way.
    ///
    /// One at a time: a second who failed would remove the gate of the first. And under the lock
    /// the word is what was seen, or the first has succeeded.
    fn take_armed(&self, who: &'static Watched, seen: Seen, head: u64) -> Look {
        let Some(_one) = who.breakpoint.lock() else { return Look::Runs };
        if who.word.seen() != seen {
            return Look::Runs;
        }
        let taken = match arm(who, head) {
            Some(in_call) => self.take(who, seen, in_call),
            None => Look::Runs,
        };
        if taken != Look::Taken {
            who.breakpoint.disarm();
        }
        taken
    }

    fn catch(&self) {
        if let Err(error) = cpus::pin_to(self.cpu) {
            let text = format_args!("the catcher could not be pinned to CPU {}: {error}", self.cpu);
            report::warn(Kind::Setup, text);
        }
        lowest_kind();
        let (mut looks, mut nap) = (0, NAP_NS.0);
        while !self.stop.load(Ordering::Relaxed) {
            match self.look() {
                // Who decides may do so soon, and a sleeper would have to be woken.
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
                    // Who is seated runs on another processor, or waits inside the machine: do not
                    // burn this one.
                    std::thread::sleep(Duration::from_nanos(nap));
                    nap = (nap * 2).min(NAP_NS.1);
                }
            }
        }
    }

    fn sleep_until_seated(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !self.is_taken() && !self.stop.load(Ordering::SeqCst) {
            self.bell.wait();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}

impl Subject for Place {
    fn is_busy(&self) -> bool {
        self.landlord.check() || self.is_taken()
    }

    /// Takes the place from who was blocked at the last look and still is, in the same wait.
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

/// Gives a blocked thread of user code a gate, and looks again. Gives whether it is in a system
/// call; None when there can be no gate, or it has moved.
fn arm(who: &Watched, head: u64) -> Option<bool> {
    let waits = who.state_file.waits()?;
    if waits.call.is_none() && state::waits_for_memory_map(who.tid()) {
        return None;
    }
    let armed = who.breakpoint.arm(waits.pc, waits.call.is_none());
    if armed && who.head() == head && who.state_file.waits() == Some(waits) {
        return Some(waits.call.is_some());
    }
    None
}

/// Runs only when nobody else wants to.
fn lowest_kind() {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: Plain Call: a borrowed local; this thread may always lower itself.
    let failed = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameter) };
    if failed != 0 {
        let error = io::Error::last_os_error();
        let text = format_args!("a catcher runs as an ordinary thread: {error}");
        report::warn(Kind::Setup, text);
    }
}

/// A processor that this thread may run on, and others of the process too.
pub(super) fn some_cpu() -> usize {
    cpus::Cpus::read().allowed.first().copied().unwrap_or(0)
}
