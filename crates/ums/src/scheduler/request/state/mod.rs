//! The work request: what a worker executes from start to end.
//!
//! A request is queued, then run by one worker, then done; or it is cancelled before it started.
//!
//! ```text
//! Queued --take--> Running --finish--> Done
//!    |                                  ^
//!    +---- cancelled before it began ---+
//! ```
//!
//! Cancelling a running request marks its worker's waiter, and ends the waiter's present wait if
//! that wait can be cancelled. While a canceller uses the waiter, a mark in the request's word
//! keeps the worker from ending the request. So a late cancellation never reaches the next request
//! of the same worker.

use std::cell::Cell;
#[cfg(not(loom))]
use std::mem::needs_drop;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::origin::{Origin, RequestId, UserId};
use crate::os::atomic;
use crate::os::atomic_ref::AtomicRef;
use crate::os::clock::{self, NEVER};
use crate::os::counted::{AtomicU32, AtomicU64};
use crate::os::short_lock::ShortLock;
use crate::wait::{Bounds, Claimed, Inbox, Joined, Owned, Owner, Ticket, Waiter};

// The word of a request has its phase in the two lowest bits, and four marks. Its upper half is the
// number of references to the block of memory that contains the state (`block`).
const PHASE: u64 = 3;
const QUEUED: u64 = 0;
const RUNNING: u64 = 1;
const DONE: u64 = 2;
/// The request was cancelled.
const CANCELLED: u64 = 4;
/// A worker, thread or future waits for the result: its ticket or waker has been stored
/// (`block`).
const JOINED: u64 = 8;
/// A canceller uses the runner, which must not end the request meanwhile.
const RUNNER_IN_USE: u64 = 16;
/// The joiner has taken the request from its queue, for its own scheduler. While this is set, only
/// the holder of that scheduler's baton changes the word, by plain stores. Three facts make that
/// so. No canceller has a reference: there were only two when the mark was set, and the joiner,
/// which lends its own to the join, makes no other. No other thread finds the request: it is in no
/// queue; a request that is queued again loses the mark first. And the joiner runs only with the
/// baton: it is a worker of that scheduler, and takes the mark off before it returns from a join
/// without a result. Otherwise the worker that has carried the request out takes it off, when it
/// drops its reference.
const ALONE: u64 = 32;
/// A reference.
const REF: u64 = 1 << 32;

/// How many request numbers a thread reserves at a time.
const IDS: u64 = 256;

/// The first number that no thread has reserved.
static NEXT_IDS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The next number of this thread, and the end of the numbers that it has reserved.
    static MY_IDS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

#[inline]
fn next_id() -> RequestId {
    let (next, end) = MY_IDS.get();
    if next == end {
        return first_of_new_ids();
    }
    MY_IDS.set((next + 1, end));
    next
}

#[cold]
fn first_of_new_ids() -> RequestId {
    let first = NEXT_IDS.fetch_add(IDS, Ordering::Relaxed);
    MY_IDS.set((first + 1, first + IDS));
    first
}

/// The state that requests of all types have.
pub(crate) struct RequestState {
    pub id: RequestId,
    pub user: UserId,
    /// Whether the request must not wait for a worker (rule 7 of ARCHITECTURE.md), because its user
    /// holds a resource that others wait for, or because a worker waits for the request's end. Once
    /// true it stays true.
    urgent: atomic::AtomicBool,
    /// The scope or the user whose request it is.
    pub origin: Option<Arc<dyn Origin>>,
    /// Whether only the scheduler that queued it may carry it out.
    pub bound: bool,
    /// Whether a full queue accepts it, too. There are few such requests, and each must be carried
    /// out.
    pub past_bound: bool,
    /// Whether the request is carried out even if it was cancelled while it was queued. Then it is
    /// a cancelled request from its beginning.
    pub starts_cancelled: bool,
    /// Whether the request has told its origin that it ends.
    ending: atomic::AtomicBool,
    /// When it was enqueued, in ticks.
    pub enqueued: u64,
    /// Its position in the lane of the work queue that it is in, or was in last (`work_queue`).
    pub position: AtomicU64,
    /// One more than the number of the scheduler that took it last from another's queue; 0 for
    /// none.
    thief: atomic::AtomicU32,
    /// While the request is in the stale lane of a work queue: the worker that has queued it.
    pub parent: AtomicU32,
    word: atomic::AtomicU64,
    /// The waiter of the worker that carries the request out; valid while the request is Running.
    runner: AtomicRef<Waiter>,
    /// Held by a canceller while it uses the runner.
    cancelling: ShortLock<()>,
}

// For `RequestState::owns_something`.
#[cfg(not(loom))]
const _: () = assert!(!needs_drop::<(AtomicRef<Waiter>, ShortLock<()>)>());

impl RequestState {
    /// Makes the state of a request that is about to be queued.
    #[inline(always)]
    pub fn new(user: UserId, urgent: bool) -> RequestState {
        RequestState {
            id: next_id(),
            user,
            urgent: atomic::AtomicBool::new(urgent),
            origin: None,
            bound: false,
            past_bound: false,
            starts_cancelled: false,
            ending: atomic::AtomicBool::new(false),
            enqueued: clock::ticks(),
            position: AtomicU64::new(0),
            thief: atomic::AtomicU32::new(0),
            parent: AtomicU32::new(0),
            word: atomic::AtomicU64::new(QUEUED + 2 * REF),
            runner: AtomicRef::new(),
            cancelling: ShortLock::new(()),
        }
    }

    /// Returns whether the request must not wait for a worker.
    #[inline]
    pub fn is_urgent(&self) -> bool {
        self.origin.as_ref().is_some_and(|origin| origin.is_urgent())
            || self.urgent.load(Ordering::Relaxed)
    }

    /// Makes the request urgent. If it is queued, the caller must then promote it in its queue.
    #[inline]
    pub fn make_urgent(&self) {
        self.urgent.store(true, Ordering::Relaxed);
    }

    /// Notes which scheduler has taken the request from another's queue, and moves it to its own.
    ///
    /// The caller reads `is_urgent` after this; a promoter makes the request urgent and then calls
    /// `thief`. Both fence in between, so the caller sees that the request is urgent, or the
    /// promoter sees the caller's number: no request is queued as one that is not urgent where no
    /// promoter looks.
    pub fn moves_to(&self, scheduler: usize) {
        // Bounded: a node has at most 1024 visible schedulers.
        self.thief.store(scheduler as u32 + 1, Ordering::Relaxed);
        atomic::fence(Ordering::SeqCst);
    }

    /// Returns which scheduler has taken the request last from another's queue. The caller has made
    /// the request urgent.
    pub fn thief(&self) -> Option<usize> {
        atomic::fence(Ordering::SeqCst);
        (self.thief.load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    /// Starts the request on a worker. `now` is the time in ticks. Returns false if the request has
    /// been cancelled, unless it starts all the same; then the caller must abandon it.
    pub fn start(&self, waiter: &'static Waiter, now: u64) -> bool {
        waiter.cancelled.store(false, Ordering::Relaxed);
        self.runner.store(Some(waiter));
        let running = |word| {
            let starts = word & CANCELLED == 0 || self.starts_cancelled;
            starts.then_some(word & !PHASE | RUNNING)
        };
        // Release: a canceller that finds the request Running sees its runner, too.
        let begun = match self.alone() {
            Some(word) => running(word).map(|to| {
                self.word.store(to, Ordering::Release);
                word
            }),
            None => self.change(Ordering::Release, running).ok(),
        };
        if let Some(before) = begun {
            if before & CANCELLED != 0 {
                // Its canceller found it queued, without a runner, so it did not do this.
                waiter.cancelled.store(true, Ordering::Relaxed);
            }
            if let Some(origin) = &self.origin {
                waiter.set_bounds(Bounds::only(origin.limit()));
            }
            let queued = now.saturating_sub(self.enqueued);
            waiter.record.view.begin_request(self.id, self.user, now, queued);
        }
        begun.is_some()
    }

    /// Called before `end_and_drop` for a request whose result has been stored. Returns the word if
    /// that may do all that is to be done at the end, and None if a ticket or waker waits, this is
    /// the last reference, a canceller uses the runner, or the request has an origin. `runner` is
    /// the waiter of the worker that carries it out.
    #[inline]
    pub(super) fn ends_plainly(&self, runner: &'static Waiter) -> Option<u64> {
        let word = self.word.load(Ordering::Relaxed);
        let plain = word & (PHASE | JOINED | ALONE | RUNNER_IN_USE) == RUNNING;
        if !plain || word < 2 * REF || self.origin.is_some() {
            return None;
        }
        // If the word changes meanwhile, `finish` does this again.
        runner.record.view.end_request();
        Some(word)
    }

    /// Returns the word, for `end_and_drop` and `drop_ref`.
    #[inline]
    pub(super) fn word(&self) -> &atomic::AtomicU64 {
        &self.word
    }

    /// Ends the request, whose result has been stored. Returns true if a ticket waits for its end.
    /// Does nothing and returns false if the request has ended before.
    #[inline]
    pub fn finish(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        if word & PHASE == DONE {
            return false;
        }
        let runner = self.runner.load().filter(|_| word & PHASE == RUNNING);
        if let Some(origin) = &self.origin {
            self.ending.store(true, Ordering::Relaxed);
            origin.ends(self.id, runner);
        }
        if let Some(waiter) = runner {
            waiter.record.view.end_request();
            if self.origin.is_some() {
                waiter.set_bounds(Bounds::only(NEVER));
            }
        }
        let ended = match self.alone() {
            Some(word) => {
                self.word.store(word & !PHASE | DONE, Ordering::Release);
                word
            }
            None => self.finish_at_once().unwrap_or_else(|| self.finish_beside_others()),
        };
        // From here on no canceller uses the runner.
        runner.inspect(|waiter| waiter.cancelled.store(false, Ordering::Relaxed));
        ended & JOINED != 0
    }

    /// Ends the request and returns the word as it was, if nothing changes it meanwhile and no
    /// canceller uses the runner. The orders are those of `finish_beside_others`.
    #[inline]
    fn finish_at_once(&self) -> Option<u64> {
        // The origin may have dropped a reference.
        let word = self.word.load(Ordering::Relaxed);
        let to = word & !PHASE | DONE;
        let swap = || self.word.compare_exchange(word, to, Ordering::AcqRel, Ordering::Acquire);
        (word & RUNNER_IN_USE == 0 && swap().is_ok()).then_some(word)
    }

    #[cold]
    #[inline(never)]
    fn finish_beside_others(&self) -> u64 {
        // Release: the joiner sees the result. Acquire: this thread sees the joiner's ticket.
        loop {
            let free = |word| (word & RUNNER_IN_USE == 0).then_some(word & !PHASE | DONE);
            match self.change(Ordering::AcqRel, free) {
                Ok(before) => return before,
                Err(_) => drop(self.cancelling.lock()),
            }
        }
    }

    /// Returns whether the request must end while its worker has the baton (`ALONE`).
    #[inline]
    pub fn is_alone(&self) -> bool {
        self.alone().is_some()
    }

    /// Returns the word if only the calling thread may change it now (`ALONE`).
    #[inline]
    fn alone(&self) -> Option<u64> {
        Some(self.word.load(Ordering::Relaxed)).filter(|word| word & ALONE != 0)
    }

    /// Does the same as `join`, for a request that the joiner has taken from its queue. Its own
    /// scheduler will carry it out.
    #[inline]
    pub(super) fn join_taken(&self) -> bool {
        // Acquire: what the last canceller changed before it dropped its reference.
        let word = self.word.load(Ordering::Acquire);
        if word / REF != 2 {
            return self.join();
        }
        self.word.store(word | JOINED | ALONE, Ordering::Relaxed);
        true
    }

    /// Called before a request that `join_taken` has seen is queued again.
    pub fn is_alone_no_more(&self) {
        self.alone().into_iter().for_each(|word| self.word.store(word & !ALONE, Ordering::Release));
    }

    /// Counts one more reference.
    pub(super) fn add_ref(&self) {
        let before = self.word.fetch_add(REF, Ordering::Relaxed);
        assert!(before < u64::MAX / 2, "a request has too many references");
    }

    /// Returns whether a ticket or waker waits for the request's end.
    #[inline]
    pub(super) fn is_joined(&self) -> bool {
        self.word.load(Ordering::Relaxed) & JOINED != 0
    }

    /// Notes that a ticket waits for the request's end. Returns false if the request has ended.
    pub(super) fn join(&self) -> bool {
        self.change(Ordering::Release, |word| (word & PHASE != DONE).then_some(word | JOINED))
            .is_ok()
    }

    /// Notes that no joiner waits any more. Does nothing and returns false if the request has
    /// ended.
    pub(super) fn forget_joiner(&self) -> bool {
        let free = |word| (word & PHASE != DONE).then_some(word & !(JOINED | ALONE));
        self.change(Ordering::Relaxed, free).is_ok()
    }

    /// Asks the request to end. The caller makes the claimed waiter ready, and cancels `io`.
    pub fn cancel(&self) -> Cancelled {
        let alone = self.cancelling.lock();
        let mark = |word| {
            let running = if word & PHASE == RUNNING { RUNNER_IN_USE } else { 0 };
            Some(word | CANCELLED | running)
        };
        // Acquire: the runner that `start` has stored.
        let found = self.change(Ordering::Acquire, mark);
        let running = found.is_ok_and(|word| word & PHASE == RUNNING);
        let runner = self.runner.load().filter(|_| running);
        let cancelled = runner.map_or(Cancelled { claimed: None, io: None }, cancel_waiter);
        if running {
            self.word.fetch_and(!RUNNER_IN_USE, Ordering::Release);
        }
        drop(alone);
        cancelled
    }

    /// Changes the word to what `to` makes of it, and returns what it was; fails with the word for
    /// which `to` returns None.
    #[inline]
    fn change(&self, order: Ordering, to: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        self.word.fetch_update(order, Ordering::Acquire, to)
    }

    /// Returns whether the state has something with a destructor; only `origin` may.
    #[inline]
    pub(super) fn owns_something(&self) -> bool {
        // A model's atomics have destructors, too.
        self.origin.is_some() || cfg!(loom)
    }

    /// Returns whether the request has ended. If it has, the caller sees its result.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.word.load(Ordering::Acquire) & PHASE == DONE
    }

    /// Returns whether the request was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.word.load(Ordering::Relaxed) & CANCELLED != 0
    }

    /// Returns whether the request has told its origin that it ends, or is about to. The origin
    /// asks under the lock that its [`ends`](Origin::ends) takes: if the answer is false, `ends`
    /// comes later, and finds what the origin records now.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Returns whether no worker has begun it.
    #[inline]
    pub fn is_queued(&self) -> bool {
        self.word.load(Ordering::Acquire) & PHASE == QUEUED
    }
}

impl RequestState {
    /// Returns the waiter of the worker that carries the request out, if one does.
    fn runner(&self) -> Option<&'static Waiter> {
        let runs = || self.word.load(Ordering::Acquire) & PHASE == RUNNING;
        let runner = runs().then(|| self.runner.load()).flatten();
        // The phase is read again, because the runner may have ended the request and begun another.
        runner.filter(|_| runs())
    }
}

/// A request for whose end a worker or thread waits, as others see it.
pub(crate) struct JoinedRequest<'a> {
    pub state: &'a RequestState,
    pub code: usize,
}

/// A wait for a request's end is a wait for the worker that carries the request out.
impl Owned for JoinedRequest<'_> {
    fn owners(&self, _waiter: Ticket, tell: &mut dyn FnMut(Owner)) {
        self.state.runner().map(Owner::Waiter).into_iter().for_each(tell);
    }

    fn joined(&self) -> Option<Joined> {
        let JoinedRequest { state, code } = *self;
        Some(Joined { enqueued: state.enqueued, code, runner: state.runner() })
    }
}

// The functions below get the word alone, because another thread may free the rest meanwhile.

/// Ends a request that has this word, and drops the reference of its
/// [`WorkRequest`](super::WorkRequest) in the same step. Returns false, and has done neither, if
/// the word has changed. If this returns true, another thread may have freed the block.
#[inline]
pub(super) fn end_and_drop(word: &atomic::AtomicU64, plain: u64, runner: &'static Waiter) -> bool {
    let to = plain - REF - RUNNING + DONE;
    let swap = word.compare_exchange(plain, to, Ordering::AcqRel, Ordering::Relaxed);
    if swap.is_ok() {
        // From here on no canceller uses the runner.
        runner.cancelled.store(false, Ordering::Relaxed);
    }
    swap.is_ok()
}

/// Drops a reference, unless it is the last one, and returns whether it has. If it has, another
/// thread may have freed the block.
#[inline]
pub(super) fn drop_ref(word: &atomic::AtomicU64) -> bool {
    // If this is the only reference, no thread can make another, so no exchange is needed.
    let now = word.load(Ordering::Acquire);
    if now < 2 * REF {
        return false;
    }
    if now & ALONE != 0 {
        // It is the runner's. The joiner may make others once it runs, so the mark ends here.
        word.store((now - REF) & !ALONE, Ordering::Release);
        return true;
    }
    let more = |now| (now >= 2 * REF).then(|| now - REF);
    word.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
}

/// What a cancellation found.
#[must_use]
pub(crate) struct Cancelled {
    pub claimed: Option<Claimed>,
    /// The I/O request that the cancelled request waits for: the inbox of its scheduler, and its
    /// token.
    pub io: Option<(&'static Inbox, u64)>,
}

/// Cancels the request that this waiter's worker carries out. The caller guarantees that the waiter
/// does not become another worker's meanwhile. So the inbox is that of the scheduler in which the
/// token has a meaning.
pub(crate) fn cancel_waiter(waiter: &'static Waiter) -> Cancelled {
    let claimed = waiter.cancel();
    let io = waiter.record.io.token();
    let inbox = if io == 0 { None } else { waiter.inbox() };
    Cancelled { claimed, io: inbox.map(|inbox| (inbox, io)) }
}

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;
