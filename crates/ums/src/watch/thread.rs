//! A watched thread: its ownership word, its gate, and what tells whether it is blocked.
//!
//! The layer above makes a thread watched with [`Watched::take`] and [`Watched::adopt`], gives it a
//! place, and is its [`Keeper`]: what it does while it may not run.
//!
//! ```text
//!            seated at a place                  blocks, and somebody looks
//!   parked ---------------------> user's code -----------------------------> in the kernel, no place
//!     ^                              |                                               |
//!     |          yield, end          |                                               | wakes
//!     +------------------------------+                    gate: Keeper::come_back <--+
//! ```
//!
//! Named invariants. **Type Stable**: a `Watched` is never freed, only used again, so a catcher
//! that comes late touches live memory, and finds by word and place that it means nobody. **Own
//! Thread**: what stands in a thread-local pointer is the thread's own; the keeper behind it lives
//! until [`Watched::abandon`], which the same thread calls.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use super::breakpoint::Breakpoint;
use super::place::Place;
use super::state::StateFile;
use super::word::Word;
use super::{Blocks, Mechanism, signals};
use crate::os::entry::{self, Entry};
use crate::os::event::Event;
use crate::os::linux::perf::{Attr, Last, Ring};

/// What the layer above does for a watched thread while it owns no place. Called by that thread, in
/// a signal handler perhaps: no allocation, no lock, no panic.
pub trait Keeper: Sync {
    /// It has lost its place and has just woken: tells whoever may seat it again.
    fn report(&self);

    /// Whether it owns a place (again). Asked after each set of its event.
    fn runs(&self) -> bool;

    /// What it waits on meanwhile: set after [`Keeper::runs`] has become true.
    fn event(&self) -> &'static Event;

    /// It owns a place again, and is about to run on.
    fn home(&self) {}

    /// It is about to run on without a place, for a moment.
    fn loose(&self) {}

    /// It was asked to stop by [`Watched::ask_to_stop`] while it ran user code and owned its place.
    /// Gives that up, and returns when it owns one again; or returns at once.
    fn stop(&self);

    /// It is hosted, in user code: goes on on its own kernel thread. Blocking, it gives its place
    /// up and its scheduler is told; else it takes its place along.
    fn leave_host(&self, _blocks: bool) {}

    /// Whether it may leave its host here: not in a signal handler of the application's, whose
    /// frames may be on the host's other stack for signals, which the next handler uses, and whose
    /// signal mask the host would keep.
    fn may_leave_host(&self) -> bool {
        true
    }

    /// It was asked to stop while it was hosted and in user code. As [`Keeper::stop`], and it comes
    /// back on its own kernel thread, inside the machine and owning a place (true); or nothing is
    /// done.
    fn stop_on_host(&self) -> bool {
        false
    }

    /// Its thread is about to end, and may be hosted: from here on it stays on its own kernel
    /// thread.
    fn before_exit(&self) {}
}

/// What anybody may know of a watched thread.
#[derive(Debug)]
pub struct Watched {
    /// Who may run its code.
    pub word: Word,
    /// Where it is seated, or was last. Written before the word says USER.
    pub(crate) place: AtomicPtr<Place>,
    /// By what its thread enters the library, where it is not a worker of a node's, which has one.
    own_entry: Entry,
    /// By what its thread enters the library.
    entry: AtomicPtr<Entry>,
    tid: AtomicI32,
    pub(super) ring: Ring,
    has_ring: AtomicBool,
    pub(super) state_file: StateFile,
    pub(super) breakpoint: Breakpoint,
    pub(super) stop_asked: AtomicBool,
    /// The kernel thread that hosts it, by the kernel's number, while it is in user code there; 0
    /// else. See `hosted.rs`.
    pub(super) host: AtomicI32,
    /// For keepers that have no event of their own.
    pub go: Event,
    /// It waits at its gate.
    gated: AtomicBool,
    /// On what it waits there, or did last.
    waits_on: AtomicPtr<Event>,
    /// It was lent the right to run on without a place.
    lent: AtomicBool,
    /// The one made before, for walks over all.
    older: Option<&'static Watched>,
    /// It runs without owning a place: it was lent the right, or a test has switched the gate off.
    leaked: AtomicBool,
    /// It has lost a place and not told its keeper, because a test has switched the gate off.
    owes: AtomicBool,
    /// How often the gate was passed or met by a trap.
    pub traps: AtomicU64,
}

thread_local! {
    static ME: Cell<Option<(&'static Watched, *const dyn Keeper)>> = const { Cell::new(None) };
    /// Descriptors as numbers: they are closed after destructors of thread-locals have run.
    static EVENTS: Cell<[i32; 3]> = const { Cell::new([-1; 3]) };
}

static FREE: Mutex<Vec<&'static Watched>> = Mutex::new(Vec::new());
/// How many there are, in use or free.
static MADE: AtomicUsize = AtomicUsize::new(0);
/// The newest, from which all others can be reached. Changed under the lock of `FREE`.
static LATEST: AtomicPtr<Watched> = AtomicPtr::new(ptr::null_mut());

fn all() -> Option<&'static Watched> {
    // SAFETY: Type Stable.
    unsafe { LATEST.load(Ordering::Acquire).as_ref() }
}

/// Every one that was ever made, with or without a thread.
pub fn every() -> impl Iterator<Item = &'static Watched> {
    std::iter::successors(all(), |watched| watched.older)
}

/// Lets every thread that waits at its gate run on without a place until its next switch: somebody
/// waits for what one of them holds. Counted where there is one, before it can run on.
pub fn lend(count: &AtomicU64) {
    let mut gated = every().filter(|watched| watched.gated.load(Ordering::Acquire)).peekable();
    if gated.peek().is_some() {
        count.fetch_add(1, Ordering::Relaxed);
    }
    gated.for_each(Watched::lend);
}

/// The positive control of the tests: with this set, who loses a place goes on all the same, until
/// the next switch.
static GATE_OFF: AtomicBool = AtomicBool::new(false);

/// Switches every gate off, or on again: only for tests that show that they would notice.
#[doc(hidden)]
pub fn switch_gate(on: bool) {
    GATE_OFF.store(!on, Ordering::SeqCst);
}

/// The calling thread, if it is watched.
#[inline]
pub fn me() -> Option<&'static Watched> {
    ME.get().map(|(me, _)| me)
}

pub(super) fn keeper() -> &'static dyn Keeper {
    let (_, keeper) = ME.get().expect("only a watched thread has a keeper");
    // SAFETY: Own Thread: the keeper lives until this thread abandons it, and every use is within
    // the current call. The 'static stays inside this file.
    unsafe { &*keeper }
}

impl Watched {
    /// One that nobody uses.
    ///
    /// # Errors
    /// No memory for its ring.
    pub fn take() -> io::Result<&'static Watched> {
        let mut free = FREE.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(free) = free.pop() {
            return Ok(free);
        }
        // So that giving back never allocates: it is done inside the machine.
        let all_made = MADE.fetch_add(1, Ordering::Relaxed) + 1;
        let room = all_made - free.len();
        free.reserve(room);
        let made = Box::leak(Box::new(Watched {
            word: Word::new(),
            place: AtomicPtr::new(ptr::null_mut()),
            own_entry: Entry::new(),
            entry: AtomicPtr::new(ptr::null_mut()),
            tid: AtomicI32::new(0),
            ring: Ring::reserve()?,
            has_ring: AtomicBool::new(false),
            state_file: StateFile::new(),
            breakpoint: Breakpoint::new(),
            stop_asked: AtomicBool::new(false),
            host: AtomicI32::new(0),
            leaked: AtomicBool::new(false),
            owes: AtomicBool::new(false),
            go: Event::new(),
            gated: AtomicBool::new(false),
            waits_on: AtomicPtr::new(ptr::null_mut()),
            lent: AtomicBool::new(false),
            older: all(),
            traps: AtomicU64::new(0),
        }));
        LATEST.store(ptr::from_ref(made).cast_mut(), Ordering::Release);
        Ok(made)
    }

    /// Gives one back that no thread has adopted, or whose thread has abandoned it.
    pub fn give_back(&'static self) {
        FREE.lock().unwrap_or_else(|e| e.into_inner()).push(self);
    }

    /// Makes the calling thread this one. It is inside the machine until its word says otherwise.
    ///
    /// # Safety
    /// `keeper` lives until this thread calls [`Watched::abandon`].
    ///
    /// # Errors
    /// The events of the mechanism cannot be had.
    pub unsafe fn adopt(
        &'static self,
        keeper: *const dyn Keeper,
        how: Mechanism,
    ) -> io::Result<()> {
        debug_assert!(self.word.in_runtime() && me().is_none());
        let tid = crate::os::thread_number() as i32;
        self.tid.store(tid, Ordering::Relaxed);
        self.stop_asked.store(false, Ordering::Relaxed);
        signals::install();
        let mut events = [-1; 3];
        match how {
            Mechanism::Trap => {
                let gate = Attr::gate().open()?;
                self.ring.map(&gate)?;
                self.has_ring.store(true, Ordering::Release);
            }
            Mechanism::Breakpoint => {
                events = self.breakpoint.attach()?.map(IntoRawFd::into_raw_fd);
                // Beyond the limit of locked memory there is no ring; the state file serves then.
                let ring = Attr::notify().open().and_then(|event| self.ring.map(&event));
                self.has_ring.store(ring.is_ok(), Ordering::Release);
                self.state_file.open(tid)?;
            }
            Mechanism::Calls => self.state_file.open(tid)?,
        }
        EVENTS.set(events);
        ME.set(Some((self, keeper)));
        let entry = entry::mine().unwrap_or(&self.own_entry);
        self.entry.store(ptr::from_ref(entry).cast_mut(), Ordering::Release);
        entry::enter_by(Some(entry));
        Ok(())
    }

    /// The calling thread is watched no more. It is inside the machine.
    pub fn abandon(&'static self) {
        debug_assert!(self.word.in_runtime());
        ME.set(None);
        if entry::mine().is_some_and(|mine| ptr::eq(mine, &self.own_entry)) {
            entry::enter_by(None);
        }
        self.tid.store(0, Ordering::Relaxed);
        self.breakpoint.detach();
        self.state_file.close();
        self.has_ring.store(false, Ordering::Release);
        self.ring.close();
        for fd in EVENTS.replace([-1; 3]).into_iter().filter(|fd| *fd >= 0) {
            // SAFETY: Own Thread: `adopt` put it there, and this takes it out.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        self.place.store(ptr::null_mut(), Ordering::Release);
    }

    /// The kernel's number of its thread.
    pub fn tid(&self) -> i32 {
        self.tid.load(Ordering::Relaxed)
    }

    /// Whether it waits in the kernel, and since which position of its ring. What is not known
    /// counts as running.
    pub(super) fn last(&self) -> Last {
        match self.has_ring.load(Ordering::Acquire) {
            true => self.ring.last(),
            false => self.state_file.last(),
        }
    }

    /// Whether its thread is outside the library, and may be stopped.
    pub(super) fn is_outside(&self) -> bool {
        // SAFETY: Type Stable: null, or of this or of a waiter, which are never freed.
        let entry = unsafe { self.entry.load(Ordering::Acquire).as_ref() };
        entry.is_some_and(Entry::is_outside)
    }

    /// Where its ring stands; constant without one.
    pub(super) fn head(&self) -> u64 {
        if self.has_ring.load(Ordering::Acquire) { self.ring.head() } else { 0 }
    }

    /// Asks its thread to stop at once if it runs the user's code. It may be blocked: then it stops
    /// at its gate anyway, or when it wakes.
    pub fn ask_to_stop(&self) {
        self.stop_asked.store(true, Ordering::SeqCst);
        let host = self.host_as_seen_after_asking();
        signals::poke(if host == 0 { self.tid() } else { host });
    }

    /// Own thread, in the signal handler. True: it has been away.
    pub(super) fn at_trap(&'static self) -> bool {
        self.traps.fetch_add(1, Ordering::Relaxed);
        self.breakpoint.disarm_own();
        if self.word.in_runtime() {
            return false;
        }
        let mut away = false;
        if !self.word.pass() || self.settle_leak() {
            away = self.gate();
        }
        away | self.stop_if_asked()
    }

    /// Own thread, in user code, SIGTRAP blocked: stops if it was asked to. True: it has been away.
    fn stop_if_asked(&'static self) -> bool {
        let mut away = false;
        while self.stop_asked.swap(false, Ordering::SeqCst) {
            match self.word.enter() {
                true => {
                    keeper().stop();
                    signals::swallow();
                    self.word.leave();
                }
                false => drop(self.gate()),
            }
            away = true;
        }
        away
    }

    /// Own thread, without a place and inside the machine; leaves it as the owner of one. SIGTRAP
    /// is blocked. True: it has been away.
    fn gate(&'static self) -> bool {
        let keeper = keeper();
        let was_leaked = self.leaked.swap(false, Ordering::Relaxed);
        if GATE_OFF.load(Ordering::Relaxed) && !was_leaked {
            self.leaked.store(true, Ordering::Relaxed);
            self.owes.store(true, Ordering::Relaxed);
            keeper.loose();
            self.word.leave();
            return false;
        }
        let lost = !was_leaked || self.owes.swap(false, Ordering::Relaxed);
        if lost {
            keeper.report();
        }
        self.lent.store(false, Ordering::Relaxed);
        let event = keeper.event();
        self.waits_on.store(ptr::from_ref(event).cast_mut(), Ordering::Relaxed);
        self.gated.store(true, Ordering::Release);
        let owns = loop {
            if !event.wait_unless(&self.lent) {
                break false;
            }
            if keeper.runs() {
                break true;
            }
        };
        self.gated.store(false, Ordering::Release);
        if owns {
            keeper.home();
        } else {
            self.leaked.store(true, Ordering::Relaxed);
            keeper.loose();
        }
        // What parking has caused (R7). Not later: from here on it may be the gate of the next
        // block.
        signals::swallow();
        self.word.leave();
        true
    }

    /// It waits at its gate: lets it run on. Done again until it has noticed.
    fn lend(&self) {
        self.lent.store(true, Ordering::Release);
        // SAFETY: Type Stable: set before `gated`, to an event that lives for ever.
        let event = unsafe { self.waits_on.load(Ordering::Relaxed).as_ref() };
        event.inspect(|event| event.nudge());
    }

    /// Whether it runs without owning a place.
    pub fn is_loose(&self) -> bool {
        self.leaked.load(Ordering::Relaxed)
    }

    /// Own thread, in user code: if it runs without owning a place, that ends here.
    pub fn settle(&'static self) {
        if self.is_loose() {
            self.come_in();
            self.word.leave();
        }
    }

    /// Own thread, in user code: gives its place to another in `f`, which returns when it owns one
    /// again. The traps that this causes are swallowed.
    pub fn apart(&'static self, f: impl FnOnce()) {
        self.come_in();
        signals::without_traps(f);
        self.word.leave();
    }

    fn gate_outside(&'static self) {
        signals::masked(|| self.gate());
        self.look_for_stop();
    }

    /// Own thread, in user code: a request to stop may have come while its signal was swallowed.
    pub(crate) fn look_for_stop(&'static self) {
        if self.stop_asked.load(Ordering::SeqCst) {
            signals::masked(|| self.stop_if_asked());
        }
    }

    /// Own thread: it ran on without a place, and has now noticed. True: inside the machine.
    fn settle_leak(&self) -> bool {
        self.leaked.load(Ordering::Relaxed) && self.word.enter()
    }

    /// Own thread, in user code: into the machine, as the owner of its place. All signals stay
    /// blocked while `f` runs; leaves as the owner of a place.
    pub fn inside<R>(&'static self, f: impl FnOnce() -> R) -> R {
        self.come_in();
        let result = signals::masked(|| {
            let result = f();
            signals::swallow();
            result
        });
        self.word.leave();
        self.look_for_stop();
        result
    }

    /// Own thread, in user code: into the machine, as the owner of its place, to stay.
    pub fn come_in(&'static self) {
        while !self.word.enter() || self.is_loose() {
            self.gate_outside();
        }
    }

    /// Own thread: runs an interposed call that may block. Where it surely will, the place is given
    /// up first.
    pub(super) fn call<R>(
        &'static self,
        blocks: impl FnOnce() -> Blocks,
        call: impl FnOnce() -> R,
    ) -> R {
        if entry::is_inside() {
            return call();
        }
        if self.is_hosted() {
            return self.call_of_hosted(blocks(), call);
        }
        if !self.word.in_user() {
            return call();
        }
        if blocks() == Blocks::Surely {
            self.give_up_place();
            return self.call_without_place(call);
        }
        while !self.word.begin_call() {
            self.gate_outside();
        }
        let result = call();
        if !self.word.end_call() || self.settle_leak() {
            keep_errno(|| self.gate_outside());
        }
        result
    }

    /// Own thread, which has given its place up and whose word says so: the call, and the gate
    /// after it.
    pub(super) fn call_without_place<R>(&'static self, call: impl FnOnce() -> R) -> R {
        let result = call();
        // A trap on the way out of the call may have been the gate already.
        if !self.word.pass() {
            keep_errno(|| self.gate_outside());
        }
        result
    }

    /// Own thread, in user code: gives its place up, and is as one that lost it.
    ///
    /// From inside the machine: a trap that found the place lost, and the landlord not told, would
    /// wait at the gate for ever.
    fn give_up_place(&'static self) {
        self.come_in();
        if let Some(place) = self.place() {
            place.given_up(self);
        }
        self.word.lose();
    }

    /// Where it is seated.
    pub(super) fn place(&self) -> Option<&Place> {
        // SAFETY: Type Stable: a place outlives those seated at it; see `Place::close`.
        unsafe { self.place.load(Ordering::Acquire).as_ref() }
    }
}

/// From now on the child of a fork has one thread, which is an ordinary one: neither events nor the
/// thread that would let it run have come along.
pub(super) fn leave_at_fork() {
    extern "C" fn forget() {
        ME.set(None);
    }
    // SAFETY: Plain Call: a function that touches a thread-local only.
    unsafe { libc::pthread_atfork(None, None, Some(forget)) };
}

fn keep_errno(f: impl FnOnce()) {
    // SAFETY: Plain Call: this thread's own errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: Plain Call: as above.
    let kept = unsafe { *errno };
    f();
    // SAFETY: Plain Call: as above.
    unsafe { *errno = kept };
}
