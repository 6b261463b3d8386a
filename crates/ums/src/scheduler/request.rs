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
//! that wait can be cancelled. The link from the request to the waiter is behind a short lock, so a
//! late cancellation never reaches the next request of the same worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use crate::os::clock;
use crate::os::short_lock::ShortLock;
use crate::record::wait_stats::Account;
use crate::wait::Inbox;
use crate::wait::{Claimed, Owned, Owner, Ticket, Waiter};

/// A number, unique among the requests of this process.
pub type RequestId = u64;

/// A user's number; 0 for none.
pub type UserId = u64;

/// Something a worker can execute.
pub(crate) trait Job: Send + Sync {
    /// The state that requests of all types have.
    fn state(&self) -> &RequestState;
    /// Carries out the request, once. A panic in it is stored as its result.
    fn run(&self);
    /// Called if the request will never run. Stores that as its result.
    fn abandon(&self);
}

/// A work request.
pub(crate) type WorkRequest = Arc<dyn Job>;

const QUEUED: u8 = 0;
const RUNNING: u8 = 1;
const DONE: u8 = 2;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The state that requests of all types have.
pub(crate) struct RequestState {
    pub id: RequestId,
    pub user: UserId,
    /// Whether the request must not wait for a worker (rule 7), because its user holds a resource
    /// that others wait for, or because a worker waits for the request's end. Once true it stays
    /// true.
    urgent: AtomicBool,
    /// One flag for all tasks of a scope; if it is true, all of them are urgent.
    pub with_scope: Option<Arc<AtomicBool>>,
    /// Whether only the scheduler that queued it may carry it out.
    pub bound: bool,
    /// Whether a full queue accepts it, too. There are few such requests, and each must be carried
    /// out.
    pub past_bound: bool,
    /// When it was enqueued, in ticks.
    pub enqueued: u64,
    /// The account of its user. The request's waits and times are added to it when the request
    /// ends.
    pub account: Option<Arc<Account>>,
    /// The number of its place in the work queue that it is in, or was in last. Written under the
    /// queue's lock.
    pub place: AtomicU64,
    phase: AtomicU8,
    cancelled: AtomicBool,
    waiter: ShortLock<Option<&'static Waiter>>,
}

impl RequestState {
    /// Makes the state of a request that is about to be queued.
    pub fn new(user: UserId, urgent: bool) -> RequestState {
        RequestState {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            user,
            urgent: AtomicBool::new(urgent),
            with_scope: None,
            bound: false,
            past_bound: false,
            enqueued: clock::ticks(),
            account: None,
            place: AtomicU64::new(0),
            phase: AtomicU8::new(QUEUED),
            cancelled: AtomicBool::new(false),
            waiter: ShortLock::new(None),
        }
    }

    /// Returns whether the request must not wait for a worker.
    pub fn is_urgent(&self) -> bool {
        let scope = self.with_scope.as_ref().is_some_and(|s| s.load(Ordering::Relaxed));
        scope || self.urgent.load(Ordering::Relaxed)
    }

    /// Makes the request urgent. If it is queued, the caller must then promote it in its queue.
    pub fn make_urgent(&self) {
        self.urgent.store(true, Ordering::Relaxed);
    }

    /// Starts the request on a worker. `now` is the time in ticks. Returns false if the request has
    /// been cancelled; then the caller must abandon it.
    pub fn start(&self, waiter: &'static Waiter, now: u64) -> bool {
        let mut link = self.waiter.lock();
        waiter.cancelled.store(false, Ordering::Relaxed);
        if self.cancelled.load(Ordering::Relaxed) {
            self.phase.store(DONE, Ordering::Release);
            return false;
        }
        *link = Some(waiter);
        self.phase.store(RUNNING, Ordering::Release);
        let queued = now.saturating_sub(self.enqueued);
        waiter.record.view.begin_request(self.id, self.user, now, queued);
        true
    }

    /// Notes that the request's worker has finished it. A job may call this itself, before it wakes
    /// the waiters for its result.
    pub fn finish(&self) {
        if self.is_done() {
            return;
        }
        let mut link = self.waiter.lock();
        if let Some(waiter) = link.take() {
            waiter.cancelled.store(false, Ordering::Relaxed);
            let view = &waiter.record.view;
            if let Some(account) = &self.account {
                let started = view.started.load(Ordering::Relaxed);
                let elapsed = clock::ticks().saturating_sub(started);
                account.settle(view.queued.load(Ordering::Relaxed), elapsed, &view.waits);
            }
            view.end_request();
        }
        self.phase.store(DONE, Ordering::Release);
    }

    /// Asks the request to end. The caller makes the claimed waiter ready, and cancels `io`.
    pub fn cancel(&self) -> Cancelled {
        let link = self.waiter.lock();
        self.cancelled.store(true, Ordering::Relaxed);
        (*link).map_or(Cancelled { claimed: None, io: None }, cancel_waiter)
    }

    /// Returns whether the request has ended, or will never begin.
    pub fn is_done(&self) -> bool {
        self.phase.load(Ordering::Acquire) == DONE
    }

    /// Returns whether no worker has begun it.
    pub fn is_queued(&self) -> bool {
        self.phase.load(Ordering::Acquire) == QUEUED
    }
}

/// A wait for a request's end is a wait for the worker that carries the request out.
impl Owned for RequestState {
    fn owners(&self, _waiter: Ticket, tell: &mut dyn FnMut(Owner)) {
        let runner = *self.waiter.lock();
        runner.map(Owner::Waiter).into_iter().for_each(tell);
    }
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
    let io = waiter.record.io.load(Ordering::SeqCst);
    let inbox = if io == 0 { None } else { waiter.inbox() };
    Cancelled { claimed, io: inbox.map(|inbox| (inbox, io)) }
}
/// How many resources a user holds. This is separate from the user's state, because a lock stores
/// it and drops it under its short lock, where no destructor of the application may run.
#[derive(Default)]
pub(crate) struct Holds(AtomicUsize);

impl Holds {
    pub fn hold(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Decrements the number. Returns false if it was 0.
    pub fn release(&self) -> bool {
        let one_less = |held: usize| held.checked_sub(1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    pub fn is_some(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}
