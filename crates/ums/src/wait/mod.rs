//! A wait: who waits, for what, and how it ends, once.
//!
//! Nouns. A *waiter* is whoever can wait: a worker, or a plain thread outside every scheduler. A
//! *ticket* names one wait of one waiter. A resource keeps the tickets of its waiters; whoever
//! wants to end a wait *claims* its ticket with an [`Outcome`], and only the one who succeeds may
//! make the waiter run again.
//!
//! ```text
//!   begin()                 claim(outcome), by exactly one of
//! Quiet ------> Waiting ------------------------------> Granted | TimedOut | Cancelled | Deadlock
//!   ^                       the granter, the timer,              |
//!   |                       the canceller                        | take_outcome(), by the waiter
//!   +------------------------------------------------------------+
//! ```
//!
//! Named invariants.
//! * **Type Stable**: a waiter is never freed, only reused, and its wait numbers only grow. So a
//!   ticket is a plain copyable pair, a stale one is harmless for ever (its claim fails), and a
//!   wake that comes late touches live memory.
//! * **One Outcome**: a wait leaves `Waiting` by one compare-and-swap; [`Claimed`] is its proof and
//!   cannot be copied. It must be handed to `ready`, which makes the waiter run.
//!
//! What this file does not do: it moves no worker between lists and knows no scheduler.

use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};

use crate::os::atomic::{self, AtomicBool, AtomicPtr, AtomicU32, AtomicU64};
use crate::os::entry::Entry;
use crate::os::event::Event;
use crate::record::reason::WaitReason;
use crate::record::spans::Slot;
use crate::record::wait_stats::RequestWaits;
use crate::wait::deadlock::DeadlockId;
use crate::wait::error::WaitError;
use crate::watch::Watched;
use crate::watch::lending::Lending;

/// What is no part of a protocol.
use std::sync::atomic as plain;

#[cfg(debug_assertions)]
mod foreign;
mod owners;
pub(crate) mod deadlock;
pub(crate) mod error;
pub(crate) use owners::{AsVictim, Owned, Owner};

const STATE_BITS: u32 = 3;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
const QUIET: u64 = 0;
const WAITING: u64 = 1;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// What was waited for is there.
    Granted = 2,
    /// The deadline passed.
    TimedOut = 3,
    /// The work request was cancelled.
    Cancelled = 4,
    /// The wait was a deadlock's victim.
    Deadlock = 5,
}

impl Outcome {
    fn from_state(state: u64) -> Option<Outcome> {
        match state {
            2 => Some(Outcome::Granted),
            3 => Some(Outcome::TimedOut),
            4 => Some(Outcome::Cancelled),
            5 => Some(Outcome::Deadlock),
            _ => None,
        }
    }

    /// Granted is success; everything else is the caller's error. For waits that can be asked whom
    /// they are for, [`Ticket::result`] says which deadlock they were in.
    pub(crate) fn ok(self) -> Result<(), WaitError> {
        match self {
            Outcome::Granted => Ok(()),
            Outcome::TimedOut => Err(WaitError::TimedOut),
            Outcome::Cancelled => Err(WaitError::Cancelled),
            Outcome::Deadlock => Err(WaitError::Deadlock(DeadlockId::from_number(0))),
        }
    }
}

/// What a wait is for, as views show it (B22).
#[derive(Clone, Copy)]
pub(crate) struct What {
    pub reason: WaitReason,
    /// The resource's address, 0 when there is none.
    pub resource: usize,
    /// The waiter that holds the resource, where it is known.
    pub blocker: Option<&'static Waiter>,
    /// The user that holds the resource, where a user does.
    pub blocking_user: u64,
    /// Whether cancelling the work request ends this wait.
    pub cancellable: bool,
}

impl What {
    pub(crate) fn new(reason: WaitReason) -> What {
        What { reason, resource: 0, blocker: None, blocking_user: 0, cancellable: true }
    }

    /// Names the resource by the address of the thing that holds its waiters.
    pub(crate) fn on<T>(mut self, resource: &T) -> What {
        self.resource = std::ptr::from_ref(resource) as usize;
        self
    }

    /// Names a file descriptor as the resource.
    pub(crate) fn fd(mut self, fd: i32) -> What {
        self.resource = fd as usize;
        self
    }

    /// Names who holds the resource.
    pub(crate) fn blocked_by(mut self, holder: Option<&'static Waiter>) -> What {
        self.blocker = holder;
        self
    }

    /// Names the user that holds the resource.
    pub(crate) fn blocked_by_user(mut self, user: u64) -> What {
        self.blocking_user = user;
        self
    }

    /// Makes the wait deaf to cancellation: for waits that must not fail.
    pub(crate) fn uncancellable(mut self) -> What {
        self.cancellable = false;
        self
    }
}

/// Whoever can wait. Never freed (Type Stable).
pub(crate) struct Waiter {
    /// `wait number << 3 | state`.
    word: AtomicU64,
    /// The inbox of the worker's home, which only `scheduler/inbox` looks behind; null for a plain
    /// thread.
    pub(crate) home: AtomicPtr<()>,
    /// The worker's number at home.
    pub(crate) worker: AtomicU32,
    /// Link of the inbox it is passing through, or of the free list.
    pub(crate) next: AtomicPtr<Waiter>,
    /// What its thread waits on (U10). Fibers do not use it.
    pub(crate) event: Event,
    /// Of a worker that has one of its own. Here, because it is looked at without a lock (Type
    /// Stable).
    pub(crate) context: context::Context,
    /// Whether it may run on while it waits to be chosen.
    pub(crate) lending: Lending,
    /// Of a worker: by what it enters the library.
    pub(crate) entry: Entry,
    /// Set by the canceller of the work request that this waiter runs (B59).
    pub(crate) cancelled: AtomicBool,
    cancellable: AtomicBool,
    /// What the present wait is for. Written by the waiter, read by views.
    pub(crate) reason: AtomicU16,
    pub(crate) resource: plain::AtomicU64,
    pub(crate) blocker: plain::AtomicPtr<Waiter>,
    pub(crate) blocking_user: plain::AtomicU64,
    /// The waiter on whose behalf this one runs an errand; null for none.
    pub(crate) origin: AtomicPtr<Waiter>,
    /// When the present wait began, in ticks of the clock (B20).
    pub(crate) began: plain::AtomicU64,
    /// When it was claimed: the end of its resource wait, the start of its signal wait (B20).
    pub(crate) signalled: plain::AtomicU64,
    /// The I/O request it waits for, as the I/O list numbers it; 0 for none.
    pub(crate) io: AtomicU64,
    /// Its thread, where that is watched for undeclared blocks; null otherwise.
    watched: plain::AtomicPtr<Watched>,
    /// How to ask whom the present wait is for.
    asking: owners::Asking,
    /// The foreign locks that it says it holds.
    #[cfg(debug_assertions)]
    pub(crate) foreign: foreign::ForeignLocks,
    /// The deadlock whose victim it was last.
    pub(crate) deadlock: plain::AtomicU64,
    /// What views show of the worker behind this waiter.
    pub(crate) view: View,
    /// The worker as whoever collects spans sees it.
    pub(crate) spans: Slot,
    /// The waiter that was made before this one, for debuggers.
    pub(crate) made_before: plain::AtomicPtr<Waiter>,
    /// Somebody's, between `take` and `give_back`.
    pub(crate) in_use: plain::AtomicBool,
}

/// The waiter that was made last: where debuggers begin.
pub(crate) static LAST_MADE: plain::AtomicPtr<Waiter> = plain::AtomicPtr::new(null_mut());

/// What views show of a worker: written by its scheduler's current worker, read by anybody.
pub(crate) struct View {
    /// A `worker::State` as a number.
    pub state: AtomicU8,
    /// The work request it runs; 0 for none.
    pub request: plain::AtomicU64,
    /// The user of that request; 0 for none.
    pub user: plain::AtomicU64,
    /// When that request began, in ticks.
    pub started: plain::AtomicU64,
    /// How long it had been queued then, in ticks.
    pub queued: plain::AtomicU64,
    /// `switches` at that time.
    pub switches_before: plain::AtomicU64,
    /// What it has waited for.
    pub waits: RequestWaits,
    /// Requests it has finished.
    pub requests_done: plain::AtomicU64,
    /// Times it was switched to.
    pub switches: plain::AtomicU64,
    /// Kernel thread number, where it is a thread worker.
    pub thread: plain::AtomicU32,
    /// Where its stack lies; 0 when that is not known.
    pub stack_low: plain::AtomicUsize,
    /// One past its highest address.
    pub stack_top: plain::AtomicUsize,
    /// Of a fiber, the address of the word that holds its stack pointer while it is suspended, and
    /// 0 while it runs; 0 for a thread.
    pub saved_at: plain::AtomicUsize,
}

impl View {
    fn new() -> View {
        View {
            state: AtomicU8::new(0),
            request: plain::AtomicU64::new(0),
            user: plain::AtomicU64::new(0),
            started: plain::AtomicU64::new(0),
            queued: plain::AtomicU64::new(0),
            switches_before: plain::AtomicU64::new(0),
            waits: RequestWaits::default(),
            requests_done: plain::AtomicU64::new(0),
            switches: plain::AtomicU64::new(0),
            thread: plain::AtomicU32::new(0),
            stack_low: plain::AtomicUsize::new(0),
            stack_top: plain::AtomicUsize::new(0),
            saved_at: plain::AtomicUsize::new(0),
        }
    }

    /// Notes where the worker's stack lies.
    pub(crate) fn stack_is(&self, range: fiber::StackRange) {
        self.stack_low.store(range.low(), Ordering::Relaxed);
        self.stack_top.store(range.top(), Ordering::Relaxed);
    }

    /// Where its stack lies, where that is known.
    pub(crate) fn stack(&self) -> Option<fiber::StackRange> {
        let low = self.stack_low.load(Ordering::Relaxed);
        let range = fiber::StackRange::new(low, self.stack_top.load(Ordering::Relaxed));
        range.filter(|range| range.low() != 0)
    }

    /// A request begins, that many ticks after it was enqueued.
    pub(crate) fn begin_request(&self, id: u64, user: u64, now: u64, queued: u64) {
        self.waits.clear();
        self.started.store(now, Ordering::Relaxed);
        self.queued.store(queued, Ordering::Relaxed);
        self.switches_before.store(self.switches.load(Ordering::Relaxed), Ordering::Relaxed);
        self.user.store(user, Ordering::Relaxed);
        self.request.store(id, Ordering::Relaxed);
    }

    /// The request has ended.
    pub(crate) fn end_request(&self) {
        self.request.store(0, Ordering::Relaxed);
        self.user.store(0, Ordering::Relaxed);
    }

    fn reset(&self) {
        let View { state, request, user, requests_done, switches, thread, .. } = self;
        state.store(0, Ordering::Relaxed);
        thread.store(0, Ordering::Relaxed);
        self.stack_top.store(0, Ordering::Relaxed);
        self.stack_low.store(0, Ordering::Relaxed);
        self.saved_at.store(0, Ordering::Relaxed);
        for counter in [request, user, requests_done, switches] {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

/// One wait of one waiter.
#[derive(Clone, Copy)]
pub(crate) struct Ticket {
    pub(crate) waiter: &'static Waiter,
    number: u64,
}

impl PartialEq for Ticket {
    fn eq(&self, other: &Ticket) -> bool {
        std::ptr::eq(self.waiter, other.waiter) && self.number == other.number
    }
}

/// Proof that a wait was ended by its holder, who now owes the waiter a run (One Outcome).
#[must_use = "a claimed waiter sleeps for ever unless it is made ready"]
pub(crate) struct Claimed {
    pub(crate) waiter: &'static Waiter,
}

static FREE: Mutex<Vec<&'static Waiter>> = Mutex::new(Vec::new());

impl Waiter {
    fn new() -> Waiter {
        Waiter {
            word: AtomicU64::new(0),
            home: AtomicPtr::new(null_mut()),
            worker: AtomicU32::new(0),
            next: AtomicPtr::new(null_mut()),
            event: Event::new(),
            context: context::Context::new(),
            lending: Lending::new(),
            entry: Entry::new(),
            cancelled: AtomicBool::new(false),
            cancellable: AtomicBool::new(false),
            reason: AtomicU16::new(0),
            resource: plain::AtomicU64::new(0),
            blocker: plain::AtomicPtr::new(null_mut()),
            blocking_user: plain::AtomicU64::new(0),
            origin: AtomicPtr::new(null_mut()),
            began: plain::AtomicU64::new(0),
            signalled: plain::AtomicU64::new(0),
            io: AtomicU64::new(0),
            watched: plain::AtomicPtr::new(null_mut()),
            asking: owners::Asking::new(),
            #[cfg(debug_assertions)]
            foreign: foreign::ForeignLocks::new(),
            deadlock: plain::AtomicU64::new(0),
            view: View::new(),
            spans: Slot::new(),
            made_before: plain::AtomicPtr::new(null_mut()),
            in_use: plain::AtomicBool::new(false),
        }
    }

    /// One more, which will never be freed.
    fn make() -> &'static Waiter {
        let waiter: &'static Waiter = Box::leak(Box::new(Waiter::new()));
        let me = std::ptr::from_ref(waiter).cast_mut();
        let link = |before| {
            waiter.made_before.store(before, Ordering::Relaxed);
            Some(me)
        };
        let _ = LAST_MADE.fetch_update(Ordering::Release, Ordering::Relaxed, link);
        waiter
    }

    /// A waiter for worker number `worker` at `home`, or (null) for a plain thread.
    pub(crate) fn take(home: *mut (), worker: u32) -> &'static Waiter {
        let free = FREE.lock().unwrap_or_else(|e| e.into_inner()).pop();
        // What a model used belongs to that run of it.
        let free = if cfg!(loom) { None } else { free };
        let waiter = free.unwrap_or_else(Waiter::make);
        waiter.home.store(home, Ordering::Relaxed);
        waiter.worker.store(worker, Ordering::Relaxed);
        waiter.cancelled.store(false, Ordering::Relaxed);
        waiter.view.reset();
        // A worker is outside in a request's own code only.
        waiter.entry.begin_inside();
        waiter.in_use.store(true, Ordering::Relaxed);
        waiter
    }

    /// Gives the waiter back for reuse. Its owner must have ended and must not be waiting.
    pub(crate) fn give_back(&'static self) {
        debug_assert_eq!(self.word.load(Ordering::Relaxed) & STATE_MASK, QUIET);
        // A set that nobody consumed must not wake the next owner.
        while self.event.wait_until(0) {}
        self.in_use.store(false, Ordering::Relaxed);
        FREE.lock().unwrap_or_else(|e| e.into_inner()).push(self);
    }

    /// Starts a wait. Only the waiter itself calls this, and it parks next, or abandons the wait.
    #[inline]
    pub(crate) fn begin(&'static self, what: What) -> Ticket {
        let word = self.word.load(Ordering::Relaxed);
        debug_assert_eq!(word & STATE_MASK, QUIET, "a waiter waits for one thing at a time");
        let number = (word >> STATE_BITS) + 1;
        self.reason.store(what.reason.index() as u16, Ordering::Relaxed);
        self.resource.store(what.resource as u64, Ordering::Relaxed);
        let blocker = what.blocker.map_or(null_mut(), |b| std::ptr::from_ref(b).cast_mut());
        self.blocker.store(blocker, Ordering::Relaxed);
        self.blocking_user.store(what.blocking_user, Ordering::Relaxed);
        self.cancellable.store(what.cancellable, Ordering::Relaxed);
        // SeqCst pairs with `cancel`: either we see its flag, or it sees our wait. A wait that is
        // deaf to cancels needs no such order, and it costs as much as the rest of this.
        let order = if what.cancellable { Ordering::SeqCst } else { Ordering::Release };
        self.word.store(number << STATE_BITS | WAITING, order);
        atomic::no_overtaking();
        Ticket { waiter: self, number }
    }

    /// Cancels: marks the waiter, and ends its present wait if that may be cancelled.
    pub(crate) fn cancel(&'static self) -> Option<Claimed> {
        self.cancelled.store(true, Ordering::SeqCst);
        atomic::no_overtaking();
        let word = self.word.load(Ordering::SeqCst);
        let waiting = word & STATE_MASK == WAITING && self.cancellable.load(Ordering::Relaxed);
        let ticket = Ticket { waiter: self, number: word >> STATE_BITS };
        waiting.then(|| ticket.claim(Outcome::Cancelled)).flatten()
    }

    /// Whether no wait of this waiter has begun and not ended.
    pub(crate) fn is_quiet(&self) -> bool {
        self.word.load(Ordering::Relaxed) & STATE_MASK == QUIET
    }

    /// Its thread, where that is watched.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) fn watched(&self) -> Option<&'static Watched> {
        // SAFETY: Type Stable: null, or came from a `&'static Watched`.
        unsafe { self.watched.load(Ordering::Acquire).as_ref() }
    }

    /// Own thread: it is watched from now on, or no more.
    pub(crate) fn be_watched(&self, watched: Option<&'static Watched>) {
        let watched = watched.map_or(null_mut(), |watched| std::ptr::from_ref(watched).cast_mut());
        self.watched.store(watched, Ordering::Release);
    }

    /// Who holds what the present wait is for, where it is known.
    #[allow(unsafe_code)]
    pub(crate) fn blocker(&self) -> Option<&'static Waiter> {
        // SAFETY: Type Stable: the pointer is null or came from a `&'static Waiter`.
        unsafe { self.blocker.load(Ordering::Relaxed).as_ref() }
    }

    /// Whether the work request that this waiter runs, or runs an errand for, was cancelled.
    #[allow(unsafe_code)]
    pub(crate) fn is_cancelled(&self) -> bool {
        // SAFETY: Type Stable: the pointer is null or came from a `&'static Waiter`.
        let origin = unsafe { self.origin.load(Ordering::Relaxed).as_ref() };
        self.cancelled.load(Ordering::Relaxed)
            || origin.is_some_and(|o| o.cancelled.load(Ordering::Relaxed))
    }
}

impl Ticket {
    /// Ends the wait with this outcome, unless it has ended already.
    #[inline]
    pub(crate) fn claim(self, outcome: Outcome) -> Option<Claimed> {
        let from = self.number << STATE_BITS | WAITING;
        let to = self.number << STATE_BITS | outcome as u64;
        let swap = self.waiter.word.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed);
        // Not `then_some`, which would make a claim, and drop it, where there is none.
        swap.ok().map(|_| Claimed { waiter: self.waiter })
    }

    /// Whether nobody has ended it yet.
    #[inline]
    pub(crate) fn is_waiting(self) -> bool {
        self.waiter.word.load(Ordering::Acquire) == self.number << STATE_BITS | WAITING
    }

    /// Whether its work request was cancelled and the wait listens to that.
    #[inline]
    pub(crate) fn sees_cancel(self) -> bool {
        self.waiter.cancellable.load(Ordering::Relaxed)
            && self.waiter.cancelled.load(Ordering::SeqCst)
    }

    /// The waiter takes the outcome of its ended wait and is quiet again; None while it waits.
    #[inline]
    pub(crate) fn take_outcome(self) -> Option<Outcome> {
        let word = self.waiter.word.load(Ordering::Acquire);
        debug_assert_eq!(word >> STATE_BITS, self.number, "only the waiter itself takes it");
        let outcome = Outcome::from_state(word & STATE_MASK)?;
        self.waiter.word.store(self.number << STATE_BITS | QUIET, Ordering::Relaxed);
        Some(outcome)
    }

    /// The outcome of this wait, which is over, as its waiter's callers see it.
    #[inline]
    pub(crate) fn result(self, outcome: Outcome) -> Result<(), WaitError> {
        match outcome {
            Outcome::Deadlock => Err(WaitError::Deadlock(DeadlockId::from_number(
                self.waiter.deadlock.load(Ordering::Relaxed),
            ))),
            other => other.ok(),
        }
    }

    /// Gives up a wait that was begun and not parked. False: it has been claimed meanwhile, and
    /// the waiter must park to take the outcome.
    pub(crate) fn abandon(self) -> bool {
        let from = self.number << STATE_BITS | WAITING;
        let to = self.number << STATE_BITS | QUIET;
        self.waiter.word.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Parks a plain thread until the wait ends. Each claim is followed by exactly one set of the
    /// event, and each set is consumed here, so none is left over for the next wait.
    pub(crate) fn park_thread(self, deadline: u64) -> Outcome {
        if !self.waiter.event.wait_until(deadline) {
            if let Some(mine) = self.claim(Outcome::TimedOut) {
                // Claimed by ourselves: nobody will set the event, and nobody needs to.
                mine.kept();
            } else {
                self.waiter.event.wait();
            }
        }
        self.take_outcome().expect("the event is set only after the wait was claimed")
    }
}

impl Claimed {
    /// Wakes a plain thread.
    pub(crate) fn set_event(self) {
        self.waiter.event.set();
        std::mem::forget(self);
    }

    /// The caller keeps the promise itself (it is the waiter, or it holds the waiter's baton).
    #[inline]
    pub(crate) fn kept(self) -> &'static Waiter {
        let waiter = self.waiter;
        std::mem::forget(self);
        waiter
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        debug_assert!(
            std::thread::panicking(),
            "a claimed wait was dropped: its waiter would sleep for ever"
        );
    }
}

/// The waiter of a plain thread, given back when the thread ends.
struct ThreadWaiter(Cell<Option<&'static Waiter>>);

impl Drop for ThreadWaiter {
    fn drop(&mut self) {
        if let Some(waiter) = self.0.get() {
            waiter.give_back();
        }
    }
}

thread_local! {
    static THREAD: ThreadWaiter = const { ThreadWaiter(Cell::new(None)) };
    /// From the destructor of that on. It has none itself, so it can be used to the end.
    static LATE: Cell<Option<&'static Waiter>> = const { Cell::new(None) };
}

/// The calling thread's own waiter, as a plain thread.
pub(crate) fn thread_waiter() -> &'static Waiter {
    let of = |slot: &Cell<Option<&'static Waiter>>| {
        slot.get().unwrap_or_else(|| {
            let waiter = Waiter::take(null_mut(), 0);
            slot.set(Some(waiter));
            waiter
        })
    };
    THREAD.try_with(|slot| of(&slot.0)).unwrap_or_else(|_| {
        // The destructor of another thread-local waits.
        let waiter = LATE.with(of);
        crate::os::linux::last::at_the_very_end(give_back_late);
        waiter
    })
}

extern "C" fn give_back_late(_: *mut std::ffi::c_void) {
    if let Some(waiter) = LATE.take() {
        waiter.give_back();
    }
}

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_wait_ends_once_and_a_stale_ticket_is_harmless_u53() {
        let me = thread_waiter();
        let first = me.begin(What::new(WaitReason::OTHER));
        assert!(first.is_waiting());
        first.claim(Outcome::Granted).unwrap().set_event();
        assert!(first.claim(Outcome::TimedOut).is_none());
        assert_eq!(first.park_thread(crate::os::clock::NEVER), Outcome::Granted);
        let second = me.begin(What::new(WaitReason::OTHER));
        assert!(first.claim(Outcome::Granted).is_none());
        assert_eq!(second.park_thread(crate::os::clock::now() + 1_000_000), Outcome::TimedOut);
    }

    #[test]
    fn claim_races_with_the_deadline_and_one_side_wins_b23() {
        let wins = AtomicUsize::new(0);
        for round in 0..2_000u64 {
            let me = thread_waiter();
            let ticket = me.begin(What::new(WaitReason::OTHER));
            let (wins, deadline) = (&wins, crate::os::clock::now() + round % 7 * 10_000);
            std::thread::scope(|s| {
                s.spawn(move || {
                    if let Some(c) = ticket.claim(Outcome::Granted) {
                        wins.fetch_add(1, Ordering::Relaxed);
                        c.set_event();
                    }
                });
                if ticket.park_thread(deadline) == Outcome::TimedOut {
                    wins.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        assert_eq!(wins.into_inner(), 2_000);
    }

    #[test]
    fn the_party_of_a_thread_at_its_very_end_is_given_back() {
        struct Last(std::sync::mpsc::Sender<usize>);
        impl Drop for Last {
            fn drop(&mut self) {
                let waiter: *const Waiter = thread_waiter();
                self.0.send(waiter.addr()).unwrap();
            }
        }
        thread_local! {
            static LAST: Cell<Option<Last>> = const { Cell::new(None) };
        }
        let (tell, told) = std::sync::mpsc::channel();
        for _ in 0..200 {
            let last = Last(tell.clone());
            let thread = std::thread::spawn(move || {
                LAST.set(Some(last));
                thread_waiter();
            });
            thread.join().unwrap();
        }
        drop(tell);
        // Other tests take some of them meanwhile.
        let used: std::collections::HashSet<_> = told.iter().collect();
        assert!(used.len() < 150, "{} waiters for 200 threads, one after the other", used.len());
    }

    #[test]
    fn cancelling_ends_a_cancellable_wait_only_b59() {
        let me = thread_waiter();
        let deaf = me.begin(What::new(WaitReason::OTHER).uncancellable());
        assert!(me.cancel().is_none());
        assert!(!deaf.sees_cancel());
        assert!(deaf.abandon());
        let hears = me.begin(What::new(WaitReason::OTHER));
        assert!(hears.sees_cancel());
        me.cancel().unwrap().set_event();
        assert_eq!(hears.park_thread(crate::os::clock::NEVER), Outcome::Cancelled);
        me.cancelled.store(false, Ordering::Relaxed);
    }
}
