//! A watched thread: its ownership word, its gate, and the means to see whether it is blocked; and
//! the seat of the place that it runs at.
//!
//! The layer above makes a thread watched with [`Watched::take`] and [`Watched::adopt`], and gives
//! it a place. It implements [`GateHandler`], which says what the thread does while it may not run,
//! and [`PlaceOwner`], which decides which thread has a place.
//!
//! ```text
//!          seated at a place                blocks, and is detected
//! parked ---------------------> user code ---------------------------> in the kernel, no place
//!   ^                              |                                           |
//!   |          yield, end          |                                           | wakes
//!   +------------------------------+                    gate: GateHandler <----+
//! ```
//!
//! Named invariants. **Type Stable**: a `Watched` is never freed, only used again. So a watcher
//! that uses it too late touches live memory, and sees by the word and the place that there is no
//! thread to stop. **Own Thread**: a thread-local pointer is used by its own thread only; the
//! handler behind it lives until [`Watched::abandon`], which the same thread calls.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};

use super::breakpoint::Breakpoint;
use super::signals;
use super::state::StateFile;
use super::word::Word;
use crate::os::atomic_ref::AtomicRef;
use crate::os::entry::Entry;
use crate::os::event::ThreadEvent;
use crate::os::linux::barrier;
use crate::os::linux::perf::{Last, PerfRing};
use crate::os::pool::{Member, Pool, Pooled};

/// Decides which thread runs at a place.
pub trait PlaceOwner: Send + Sync {
    /// The seated thread has lost the place while it was in a system call or, if `in_call` is
    /// false, in a page fault. Called by the watcher, the watchdog, or the thread itself. It must
    /// be short, and must not lock or allocate.
    fn place_is_free(&self, in_call: bool);

    /// Returns the thread that has the place, if the owner gives places to threads without calling
    /// [`Place::seat`](super::Place::seat).
    fn seated(&self) -> Option<&'static Watched> {
        None
    }

    /// Returns whether this thread, which has the place, may be stopped now. Called while the
    /// thread is blocked, so the caller sees everything that the thread has done before.
    fn may_take(&self, _thread: &Watched) -> bool {
        true
    }

    /// Looks whether the owner's own kernel thread is blocked in the code of a thread that it
    /// hosts, and pokes it if so. Returns true only for a block that was not seen before, because a
    /// block that cannot be interrupted is poked again and again.
    fn look_at_hosted(&self) -> bool {
        false
    }

    /// Returns whether threads may be hosted now.
    fn hosts(&self) -> bool {
        false
    }

    /// Returns a number for the block that the hosted thread is in. Two calls return the same
    /// number only for the same block. Returns 0 if the thread is not blocked.
    fn suspects_hosted(&self) -> u64 {
        0
    }

    /// Called by the watchdog at each of its looks. Returns whether the watchdog must continue to
    /// look although no thread is seated.
    fn check(&self) -> bool {
        false
    }
}

/// The actions of a watched thread that owns no place. The thread itself calls these methods,
/// perhaps in a signal handler, so they must not allocate, lock or panic.
pub trait GateHandler: Sync {
    /// Tells the place's owner that the thread has lost its place and has just woken, and that it
    /// can be seated again.
    fn report(&self);

    /// Returns whether the thread owns a place. Called after each set of its event.
    fn owns_place(&self) -> bool;

    /// Returns the event that the thread waits on at its gate. The event is set after
    /// [`GateHandler::owns_place`] has become true.
    fn event(&self) -> &'static ThreadEvent;

    /// Called when the thread owns a place again and is about to resume.
    fn regained_place(&self) {}

    /// Called when the thread is about to resume without a place, until its next switch.
    fn resumes_without_place(&self) {}

    /// Called when [`Watched::ask_to_stop`] has asked the thread to stop while it ran user code and
    /// owned its place. This either gives the place up and returns when the thread owns a place
    /// again, or returns immediately.
    fn stop(&self);

    /// Moves a hosted thread, which is in user code, to its own kernel thread. If `blocks`, the
    /// thread is about to block: it gives its place up, and its scheduler is notified. Otherwise it
    /// keeps its place.
    fn leave_host(&self, _blocks: bool) {}

    /// Returns whether the thread may leave its host here. It must not leave inside a signal
    /// handler of the application, for two reasons. The frames of that handler may be on the host's
    /// alternate signal stack, which the host's next handler would overwrite. And the host would
    /// keep that handler's signal mask.
    fn may_leave_host(&self) -> bool {
        true
    }

    /// Called when the thread was asked to stop while it was hosted and in user code. If this stops
    /// the thread, as [`GateHandler::stop`] does, it returns true afterwards; the thread then runs
    /// on its own kernel thread, inside the library, and owns a place. Otherwise this does nothing
    /// and returns false.
    fn stop_on_host(&self) -> bool {
        false
    }

    /// Called when the thread, which may be hosted, is about to end. From then on it must stay on
    /// its own kernel thread.
    fn before_exit(&self) {}
}

/// The part of a place that a watched thread refers to.
pub(super) struct Seat {
    seated: AtomicRef<Watched>,
    pub owner: Box<dyn PlaceOwner>,
}

impl Seat {
    pub fn new(owner: Box<dyn PlaceOwner>) -> Seat {
        Seat { seated: AtomicRef::new(), owner }
    }

    /// Seats this thread.
    pub fn seat(&self, thread: &'static Watched) {
        self.seated.store(Some(thread));
    }

    /// Removes this thread, if it is seated.
    pub fn vacate(&self, thread: &'static Watched) {
        self.seated.clear_if(thread);
    }

    /// Removes the thread that is seated, if any.
    pub fn clear(&self) {
        self.seated.store(None);
    }

    /// Returns the thread that has the place.
    pub fn seated(&self) -> Option<&'static Watched> {
        self.seated.load().or_else(|| self.owner.seated())
    }
}

/// The record of a watched thread, in cache lines that no other thread writes often.
#[derive(Debug)]
#[repr(align(128))]
pub struct Watched {
    /// The ownership word: whether the thread may run user code.
    pub word: Word,
    /// The place where the thread is seated, or was seated last. Written before the word says USER.
    pub(super) place: AtomicPtr<Seat>,
    /// The entry (`os/entry`) by which the thread enters the library, unless the thread is a worker
    /// of a node. Such a worker has an entry of its own.
    pub(super) own_entry: Entry,
    /// The entry by which the thread enters the library: `own_entry` or the worker's.
    pub(super) entry: AtomicRef<Entry>,
    pub(super) tid: AtomicI32,
    pub(super) ring: PerfRing,
    pub(super) has_ring: AtomicBool,
    pub(super) state_file: StateFile,
    pub(super) breakpoint: Breakpoint,
    pub(super) stop_asked: AtomicBool,
    /// The number of the kernel thread that hosts the thread, while it is in user code there;
    /// otherwise 0. See `hosted.rs`.
    pub(super) host: AtomicI32,
    /// An event for gate handlers that have none of their own.
    pub go: ThreadEvent,
    /// The thread waits at its gate.
    gated: AtomicBool,
    /// The thread is passing its gate, with SIGTRAP blocked, whatever its word says.
    at_gate: AtomicBool,
    /// The event that the thread waits on at its gate, or waited on last.
    waits_on: AtomicRef<ThreadEvent>,
    /// The thread is allowed to run without a place, instead of waiting at its gate.
    lent: AtomicBool,
    member: Member<Watched>,
    /// The thread runs without owning a place: it was allowed to, or a test has switched the gate
    /// off.
    leaked: AtomicBool,
    /// The thread has lost a place and has not reported that, because a test has switched the gate
    /// off.
    unreported: AtomicBool,
    /// How often the thread handled a SIGTRAP.
    pub traps: AtomicU64,
}

/// The calling thread's record, and the handler that it was adopted with.
type Me = (&'static Watched, *const dyn GateHandler);

thread_local! {
    static ME: Cell<Option<Me>> = const { Cell::new(None) };
}

static ALL: Pool<Watched> = Pool::new();

impl Pooled for Watched {
    fn member(&self) -> &Member<Watched> {
        &self.member
    }
}

/// Returns all records that were ever made, whether or not a thread uses them.
pub fn every() -> impl Iterator<Item = &'static Watched> {
    ALL.every()
}

/// Allows every thread that waits at its gate to run without a place until its next switch. Called
/// when a scheduler waits for something that one of these threads may hold. If there is such a
/// thread, adds one to `count` before the thread can run.
pub fn lend(count: &AtomicU64) {
    let mut gated = every().filter(|watched| watched.gated.load(Ordering::Acquire)).peekable();
    if gated.peek().is_some() {
        count.fetch_add(1, Ordering::Relaxed);
    }
    gated.for_each(Watched::lend);
}

/// A positive control for tests: while this is set, a thread that loses its place continues without
/// one until its next switch.
static GATE_OFF: AtomicBool = AtomicBool::new(false);

/// Switches every gate off, or on again. Only for tests, which show by it that they fail without
/// gates.
#[doc(hidden)]
pub fn switch_gate(on: bool) {
    GATE_OFF.store(!on, Ordering::SeqCst);
}

/// Returns the record of the calling thread, if the thread is watched.
#[inline]
pub fn me() -> Option<&'static Watched> {
    ME.get().map(|(me, _)| me)
}

/// Makes the calling thread a watched one, with this record and this handler.
pub(super) fn become_me(me: &'static Watched, handler: Arc<dyn GateHandler>) {
    ME.set(Some((me, Arc::into_raw(handler))));
}

/// Makes the calling thread an ordinary one, and drops its handler.
pub(super) fn end_me() {
    if let Some((_, handler)) = ME.take() {
        // SAFETY: Handed Over: the pointer comes from `become_me`, and only this thread takes it
        // out, once.
        drop(unsafe { Arc::from_raw(handler) });
    }
}

/// Makes the one thread of a forked child an ordinary one. Its handler is not dropped.
pub(super) fn forget_me() {
    ME.set(None);
}

/// Returns the handler of the calling thread, which must be a watched one.
pub(super) fn gate_handler() -> Arc<dyn GateHandler> {
    let (_, handler) = ME.get().expect("only a watched thread has a handler");
    // SAFETY: Held: the thread holds one count of the handler until `end_me`, and this takes one
    // more.
    unsafe {
        Arc::increment_strong_count(handler);
        Arc::from_raw(handler)
    }
}

impl Watched {
    /// Returns a record that no thread uses.
    ///
    /// # Errors
    /// There is no memory for its ring.
    pub fn take() -> io::Result<&'static Watched> {
        let make = |member| {
            Ok(Watched {
                word: Word::new(),
                place: AtomicPtr::new(ptr::null_mut()),
                own_entry: Entry::new(),
                entry: AtomicRef::new(),
                tid: AtomicI32::new(0),
                ring: PerfRing::reserve()?,
                has_ring: AtomicBool::new(false),
                state_file: StateFile::new(),
                breakpoint: Breakpoint::new(),
                stop_asked: AtomicBool::new(false),
                host: AtomicI32::new(0),
                leaked: AtomicBool::new(false),
                unreported: AtomicBool::new(false),
                go: ThreadEvent::new(),
                gated: AtomicBool::new(false),
                at_gate: AtomicBool::new(false),
                waits_on: AtomicRef::new(),
                lent: AtomicBool::new(false),
                member,
                traps: AtomicU64::new(0),
            })
        };
        ALL.try_take(make, |_| {})
    }

    /// Returns the record to the free ones. Either no thread has adopted it, or its thread has
    /// abandoned it.
    pub fn give_back(&'static self) {
        ALL.give_back(self);
    }

    /// Returns the kernel's number of the thread.
    pub fn tid(&self) -> i32 {
        self.tid.load(Ordering::Relaxed)
    }

    /// Returns whether the thread waits in the kernel, and since which position of its perf ring.
    /// If nothing is known about the thread, it counts as running.
    pub(super) fn last(&self) -> Last {
        match self.has_ring.load(Ordering::Acquire) {
            true => self.ring.last(),
            false => self.state_file.last(),
        }
    }

    /// Returns whether the thread is outside the library, and may be stopped.
    pub(super) fn is_outside(&self) -> bool {
        self.entry.load().is_some_and(Entry::is_outside)
    }

    /// Returns the current position of the thread's ring, or a constant if it has none.
    pub(super) fn head(&self) -> u64 {
        if self.has_ring.load(Ordering::Acquire) { self.ring.head() } else { 0 }
    }

    /// Asks the thread to stop immediately if it runs user code. If it is blocked, it stops at its
    /// gate or when it wakes.
    pub fn ask_to_stop(&self) {
        self.stop_asked.store(true, Ordering::SeqCst);
        let host = self.host_seen_after_asking();
        signals::poke(if host == 0 { self.tid() } else { host });
    }

    /// Called by a thread that has just set `stop_asked`: returns the kernel thread that hosts the
    /// watched thread. Returns 0 if none does, or if the thread will see the request when it moves
    /// onto a host.
    fn host_seen_after_asking(&self) -> i32 {
        barrier::on_all_threads();
        self.host.load(Ordering::SeqCst)
    }

    /// Called by the thread itself, in the handler of SIGTRAP: waits until the thread may continue.
    /// Returns whether the signal has interrupted user code.
    pub(super) fn at_trap(&'static self) -> bool {
        self.traps.fetch_add(1, Ordering::Relaxed);
        self.passing_gate(|| {
            self.breakpoint.disarm_own();
            if self.word.in_runtime() {
                return false;
            }
            if let Some(lost) = self.must_wait(self.word.pass()) {
                self.gate(lost);
            }
            self.stop_if_asked();
            true
        })
    }

    /// Called by the thread itself: runs `f`, in which SIGTRAP is blocked although the word may say
    /// USER. While `f` runs, no breakpoint is armed for the thread. Otherwise, if the cause of a
    /// breakpoint were lost (R13) while SIGTRAP is blocked, the kernel would end the process.
    fn passing_gate<R>(&self, f: impl FnOnce() -> R) -> R {
        let before = self.at_gate.swap(true, Ordering::AcqRel);
        let result = f();
        self.at_gate.store(before, Ordering::Release);
        result
    }

    /// Returns whether the thread, which is blocked, is passing its gate.
    pub(super) fn is_at_gate(&self) -> bool {
        self.at_gate.load(Ordering::Acquire)
    }

    /// Called by the thread itself, in user code, with SIGTRAP blocked: stops if it was asked to.
    fn stop_if_asked(&'static self) {
        while self.stop_asked.swap(false, Ordering::SeqCst) {
            match self.word.enter() {
                true => {
                    gate_handler().stop();
                    signals::swallow();
                    self.word.leave();
                }
                false => self.gate(true),
            }
        }
    }

    /// Called by the thread itself, inside the library and with SIGTRAP blocked, while it owns no
    /// place. Waits until the thread owns a place or is allowed to run without one, and leaves the
    /// library. `lost` is true if the loss of its place was not reported yet.
    fn gate(&'static self, lost: bool) {
        let handler = gate_handler();
        let was_leaked = self.leaked.swap(false, Ordering::Relaxed);
        if GATE_OFF.load(Ordering::Relaxed) && !was_leaked {
            self.leaked.store(true, Ordering::Relaxed);
            self.unreported.store(true, Ordering::Relaxed);
            handler.resumes_without_place();
            self.word.leave();
            return;
        }
        if self.unreported.swap(false, Ordering::Relaxed) || lost {
            handler.report();
        }
        self.lent.store(false, Ordering::Relaxed);
        let event = handler.event();
        self.waits_on.store(Some(event));
        self.gated.store(true, Ordering::Release);
        let owns = loop {
            if !event.wait_unless(&self.lent) {
                break false;
            }
            if handler.owns_place() {
                break true;
            }
        };
        self.gated.store(false, Ordering::Release);
        if owns {
            handler.regained_place();
        } else {
            self.leaked.store(true, Ordering::Relaxed);
            handler.resumes_without_place();
        }
        // Takes the SIGTRAP that parking has caused (R7 in docs/design/races.md). This must be done
        // before the word says USER: from then on a SIGTRAP may be the gate of the next block.
        signals::swallow();
        self.word.leave();
    }

    /// Allows the thread to run without a place while it waits at its gate. The caller repeats this
    /// until the thread has left its gate.
    fn lend(&self) {
        self.lent.store(true, Ordering::Release);
        self.waits_on.load().inspect(|event| event.nudge());
    }

    /// Returns whether the thread runs without owning a place.
    pub fn runs_without_place(&self) -> bool {
        self.leaked.load(Ordering::Relaxed)
    }

    /// Called by the thread itself, in user code: if it runs without owning a place, waits until it
    /// owns one.
    pub fn settle(&'static self) {
        if self.runs_without_place() {
            self.enter_library();
            self.word.leave();
        }
    }

    /// Called by the thread itself, in user code: runs `f`, which gives the thread's place to
    /// another thread and returns when this thread owns a place again. The SIGTRAPs that this
    /// causes are swallowed.
    pub fn apart(&'static self, f: impl FnOnce()) {
        self.enter_library();
        signals::without_traps(f);
        self.word.leave();
    }

    /// Called by the thread itself, outside the signal handler: passes its gate as
    /// [`Watched::gate`], and stops if it was asked to.
    pub(super) fn gate_outside(&'static self, lost: bool) {
        self.passing_gate(|| signals::masked(|| self.gate(lost)));
        self.look_for_stop();
    }

    /// Called by the thread itself, in user code: stops if it was asked to. The signal of that
    /// request may have been swallowed.
    pub(crate) fn look_for_stop(&'static self) {
        if self.stop_asked.load(Ordering::SeqCst) {
            self.passing_gate(|| signals::masked(|| self.stop_if_asked()));
        }
    }

    /// Called by the thread itself; `kept` says whether its word still gives it its place. Returns
    /// `None` if the thread may continue. Otherwise the thread is inside the library and must wait
    /// at its gate: `Some(true)` if it has lost its place, `Some(false)` if it ran without one.
    ///
    /// Both may be the case (R15): a thread that runs without a place may be given one, block, and
    /// lose that place by the block. Its handler counts the thread as running since it was given
    /// the place, so the loss must be reported.
    pub(super) fn must_wait(&self, kept: bool) -> Option<bool> {
        match kept {
            false => Some(true),
            true => self.runs_without_place().then(|| !self.word.enter()),
        }
    }

    /// Called by the thread itself, in user code: runs `f` inside the library, as the owner of its
    /// place and with all signals blocked. Leaves the library as the owner of a place.
    pub fn inside<R>(&'static self, f: impl FnOnce() -> R) -> R {
        self.enter_library();
        let result = signals::masked(|| {
            let result = f();
            signals::swallow();
            result
        });
        self.word.leave();
        self.look_for_stop();
        result
    }

    /// Called by the thread itself, in user code: enters the library, as the owner of its place,
    /// and stays inside.
    pub fn enter_library(&'static self) {
        while let Some(lost) = self.must_wait(self.word.enter()) {
            self.gate_outside(lost);
        }
    }

    /// Called by the thread itself, inside the library: leaves its place, and tells the place's
    /// owner that the place is free.
    pub(super) fn vacate_place(&'static self) {
        // SAFETY: Type Stable: a place outlives the threads seated at it; see `Place::close`.
        if let Some(seat) = unsafe { self.place.load(Ordering::Acquire).as_ref() } {
            seat.vacate(self);
            seat.owner.place_is_free(true);
        }
    }

    /// Called by the thread itself: returns whether it is hosted, and in user code.
    #[inline]
    pub fn is_hosted(&self) -> bool {
        self.host.load(Ordering::Relaxed) != 0
    }
}
