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
//! Cancelling a running request marks its worker's waiter, and ends its present wait if that is
//! cancellable. The link from request to waiter is behind a short lock, so that a late
//! cancellation never hits the waiter's next request.

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
    /// What every request has.
    fn state(&self) -> &RequestState;
    /// Executes it, once. A panic inside is kept as the request's result.
    fn run(&self);
    /// Called if it will never run: its result says so.
    fn abandon(&self);
}

/// A work request.
pub(crate) type WorkRequest = Arc<dyn Job>;

const QUEUED: u8 = 0;
const RUNNING: u8 = 1;
const DONE: u8 = 2;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// What every request has.
pub(crate) struct RequestState {
    pub id: RequestId,
    pub user: UserId,
    /// Whether it is served at once, because its user holds what others wait for (rule 7), or
    /// because a worker waits for its end. Once true it stays true.
    urgent: AtomicBool,
    /// As `urgent`, for all tasks of a scope together.
    pub with_scope: Option<Arc<AtomicBool>>,
    /// Whether no other scheduler may take it.
    pub bound: bool,
    /// Whether it is taken even if the queue is full: there are few such requests, and each is
    /// relied on.
    pub past_bound: bool,
    /// When it was enqueued, in ticks.
    pub enqueued: u64,
    /// Where it adds its waits and times when it ends.
    pub account: Option<Arc<Account>>,
    /// Its position in its work queue, or its last one. Written under the queue's lock.
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

    /// Returns whether it must not wait for a worker.
    pub fn is_urgent(&self) -> bool {
        let scope = self.with_scope.as_ref().is_some_and(|s| s.load(Ordering::Relaxed));
        scope || self.urgent.load(Ordering::Relaxed)
    }

    /// Makes it urgent. If it is queued, the queue must be told.
    pub fn make_urgent(&self) {
        self.urgent.store(true, Ordering::Relaxed);
    }

    /// Starts it on a worker, at that many ticks of the clock. Returns false if it was cancelled
    /// before, and must be abandoned.
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

    /// Notes that its worker has finished it. A job may call this itself, before it tells its
    /// waiters.
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

    /// Asks for its end. The caller makes the claimed waiter ready, and cancels `io`.
    pub fn cancel(&self) -> Cancelled {
        let link = self.waiter.lock();
        self.cancelled.store(true, Ordering::Relaxed);
        (*link).map_or(Cancelled { claimed: None, io: None }, cancel_waiter)
    }

    /// Returns whether it has ended, or will never begin.
    pub fn is_done(&self) -> bool {
        self.phase.load(Ordering::Acquire) == DONE
    }

    /// Returns whether no worker has begun it.
    pub fn is_queued(&self) -> bool {
        self.phase.load(Ordering::Acquire) == QUEUED
    }
}

/// A wait for its end is a wait for the worker that carries it out.
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
    /// The I/O request it waits for, and the inbox of the scheduler that has it.
    pub io: Option<(&'static Inbox, u64)>,
}

/// Cancels the request that this waiter runs. The inbox is read here, while the waiter cannot have
/// become another worker's: a token has a meaning in one scheduler only.
pub(crate) fn cancel_waiter(waiter: &'static Waiter) -> Cancelled {
    let claimed = waiter.cancel();
    let io = waiter.record.io.load(Ordering::SeqCst);
    let inbox = if io == 0 { None } else { waiter.inbox() };
    Cancelled { claimed, io: inbox.map(|inbox| (inbox, io)) }
}
/// How many resources a user holds. Separate from its state, because a lock keeps it and releases
/// it under its short lock: no destructor of the application may run there.
#[derive(Default)]
pub(crate) struct Holds(AtomicUsize);

impl Holds {
    pub fn hold(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns false if there was none.
    pub fn release(&self) -> bool {
        let one_less = |held: usize| held.checked_sub(1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    pub fn is_some(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}
