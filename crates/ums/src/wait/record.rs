//! What a waiter has in addition if it is a worker.
//!
//! The record is part of the [`Waiter`](super::Waiter), and so it is Type Stable, too: other
//! threads read it without a lock, even after the worker has ended.

use std::sync::atomic::Ordering;

use crate::os::atomic;
use crate::os::atomic_ref::AtomicRef;
use crate::os::counted::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use crate::os::entry::Entry;
use crate::os::pool::{Member, Pool, Pooled};
use crate::record::spans::WorkerSpans;
use crate::record::wait_stats::RequestWaits;
use crate::watch::Watched;
use crate::watch::lending::Lending;

/// What only workers have. In the waiter of a plain thread it keeps its initial values, except for
/// [`WorkerStatus::resource`]. In the order of the fields: what a switch and a wait write comes
/// first.
#[repr(C)]
pub(crate) struct WorkerRecord {
    /// What views show of the worker.
    pub(crate) view: WorkerStatus,
    /// The I/O request that the worker waits for.
    pub(crate) io: IoWait,
    /// What the worker has in addition if it is a thread; none if it is a fiber.
    thread: AtomicRef<ThreadRecord>,
    /// What a collector of `tracing` spans gets of the worker.
    pub(crate) spans: WorkerSpans,
}

/// What only workers have that are threads, or were: the record stays with its waiter. In the order
/// of the fields: a switch between own contexts touches the first two, which are in one cache line.
#[repr(C, align(64))]
pub(crate) struct ThreadRecord {
    /// If the worker has its own context (it is a thread that is switched to in user mode), that
    /// context.
    pub(crate) context: context::Context,
    /// Whether the worker's thread is inside the library.
    pub(crate) entry: Entry,
    /// The record by which the worker's thread is watched for undeclared blocks; null if it is not
    /// watched.
    watched: AtomicRef<Watched>,
    /// Whether the worker may run without the baton while it waits to be chosen.
    pub(crate) lending: Lending,
    member: Member<ThreadRecord>,
}

#[cfg(all(not(loom), target_pointer_width = "64"))]
const _: () = assert!(std::mem::offset_of!(ThreadRecord, lending) <= 64);

/// All of them. They lie side by side: each thread's allocator has its own memory, whose records
/// would be at the same few places of a cache.
static THREAD_RECORDS: Pool<ThreadRecord> = Pool::new();

impl Pooled for ThreadRecord {
    fn member(&self) -> &Member<ThreadRecord> {
        &self.member
    }
}

impl ThreadRecord {
    fn new(member: Member<ThreadRecord>) -> ThreadRecord {
        ThreadRecord {
            context: context::Context::new(),
            entry: Entry::new(),
            watched: AtomicRef::new(),
            lending: Lending::new(),
            member,
        }
    }

    /// Prepares the record for a thread that does not exist yet. A worker is outside the library
    /// only in a request's own code.
    fn begin_inside(&self) {
        self.entry.begin_inside();
    }
}

impl WorkerRecord {
    pub(super) fn new() -> WorkerRecord {
        WorkerRecord {
            view: WorkerStatus::new(),
            io: IoWait(atomic::AtomicU64::new(0)),
            thread: AtomicRef::new(),
            spans: WorkerSpans::new(),
        }
    }

    /// Prepares the record for the next worker that uses it.
    pub(super) fn reset(&self) {
        self.view.reset();
        self.thread().into_iter().for_each(ThreadRecord::begin_inside);
    }

    /// Returns what the worker has in addition if it is a thread. For views and monitors, which
    /// find workers of all kinds.
    #[inline]
    pub(crate) fn thread(&self) -> Option<&'static ThreadRecord> {
        self.thread.load()
    }

    /// Returns the same, for callers that know that the worker is a thread.
    #[inline]
    pub(crate) fn own(&self) -> &'static ThreadRecord {
        self.thread.load().expect("a worker that is a thread has this record from its creation")
    }

    /// Called before the thread of a worker is created: makes the record, unless an earlier worker
    /// has left one.
    pub(crate) fn become_thread(&self) -> &'static ThreadRecord {
        self.thread.load().unwrap_or_else(|| {
            let record = THREAD_RECORDS.take(ThreadRecord::new, ThreadRecord::begin_inside);
            self.thread.store(Some(record));
            record
        })
    }

    /// Returns whether the worker's thread is outside the library. False for a fiber.
    #[inline]
    pub(crate) fn is_outside(&self) -> bool {
        self.thread().is_some_and(|thread| thread.entry.is_outside())
    }

    /// Returns whether the worker runs without the baton.
    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        self.thread().is_some_and(|thread| thread.lending.is_lent())
    }

    /// Returns the record by which the worker's thread is watched, if it is.
    #[inline]
    pub(crate) fn watched(&self) -> Option<&'static Watched> {
        self.thread()?.watched.load()
    }

    /// Sets the record by which the worker's thread is watched from now on; `None` if it is not
    /// watched. That thread itself calls this.
    pub(crate) fn be_watched(&self, watched: Option<&'static Watched>) {
        self.become_thread().watched.store(watched);
    }
}

/// The I/O request that a worker waits for, in one word:
///
/// * 0: there is none, or it cannot be cancelled and is outstanding;
/// * its token: it is outstanding;
/// * [`COMPLETED`], the upper half of its token and its result: it has completed, but its worker
///   has not run since.
///
/// A cancellation that takes the third for a token finds no request, because no token has the bit
/// [`COMPLETED`].
pub(crate) struct IoWait(atomic::AtomicU64);

/// The bit of an I/O request's token that is never set.
pub(crate) const COMPLETED: u64 = 1 << 63;

impl IoWait {
    /// Stores the token of the request, so that the request can be cancelled. SeqCst: see
    /// [`IoWait::token`].
    #[inline]
    pub(crate) fn begin(&self, token: u64) {
        self.0.store(token, Ordering::SeqCst);
    }

    /// Returns the token by which to cancel the request; 0 if there is nothing to cancel. SeqCst:
    /// a canceller sets the worker's flag and then reads this; a worker stores this and then reads
    /// the flag. So one of them sees what the other has stored.
    #[inline]
    pub(crate) fn token(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Stores the result of the request. The holder of the baton calls this before the worker runs.
    #[inline]
    pub(crate) fn complete(&self, token: u64, result: i32) {
        let upper = COMPLETED | token & !u64::from(u32::MAX);
        self.0.store(upper | u64::from(result as u32), Ordering::Relaxed);
    }

    /// Takes the result of the request with this token.
    ///
    /// # Panics
    /// Panics if the request has not completed: its worker must not run before (rule 10 of
    /// ARCHITECTURE.md).
    #[inline]
    pub(crate) fn end(&self, token: u64) -> i32 {
        let last = self.0.load(Ordering::Relaxed);
        let completed = last >> 32 == (COMPLETED | token) >> 32;
        assert!(completed, "a worker ran while its I/O request was outstanding");
        self.0.store(0, Ordering::Relaxed);
        last as u32 as i32
    }
}

/// What views show of a worker: written by its scheduler's current worker, read by any thread. In
/// the order of the fields.
#[repr(C)]
pub(crate) struct WorkerStatus {
    /// How often the scheduler has switched to it.
    pub switches: AtomicU64,
    /// The worker's state, one of the states of the worker list, as a number.
    pub state: AtomicU8,
    /// Whether the worker runs its request's own code. Anywhere else it must not run without the
    /// baton, because it is in the scheduler's code, which needs the baton.
    pub in_request_code: AtomicBool,
    /// What bounds its waits (`bounds`).
    pub(super) bounds: AtomicU8,
    /// Whether a thread is asking the question of its wait now (`owners`).
    pub(super) asked: atomic::AtomicBool,
    /// The number of its kernel thread; 0 for a fiber.
    pub thread: AtomicU32,
    /// What the present wait is for, also that of a plain thread. A switch does not touch this, nor
    /// what follows.
    pub resource: AtomicU64,
    /// Where the thread that ends the present wait, or an earlier one, puts or takes a value.
    pub expects: AtomicUsize,
    /// What the present request has waited for so far.
    pub waits: RequestWaits,
    /// The work request it runs; 0 for none.
    pub request: AtomicU64,
    /// The user of that request; 0 for none.
    pub user: AtomicU64,
    /// When that request began, in ticks of the clock.
    pub started: AtomicU64,
    /// How long that request had been queued before it began, in ticks of the clock.
    pub queued: AtomicU64,
    /// The value of `switches` when that request began.
    pub switches_before: AtomicU64,
    /// How many requests it has finished.
    pub requests_done: AtomicU64,
    /// The lowest address of its stack; 0 if that is not known.
    pub stack_low: AtomicUsize,
    /// One past the highest address of its stack.
    pub stack_top: AtomicUsize,
    /// For a fiber or an own context: the address of a word that holds its stack pointer while it
    /// is suspended, and 0 while it runs. For a thread worker: 0.
    pub saved_at: AtomicUsize,
}

impl WorkerStatus {
    fn new() -> WorkerStatus {
        WorkerStatus {
            switches: AtomicU64::new(0),
            state: AtomicU8::new(0),
            in_request_code: AtomicBool::new(false),
            bounds: AtomicU8::new(0),
            asked: atomic::AtomicBool::new(false),
            thread: AtomicU32::new(0),
            resource: AtomicU64::new(0),
            expects: AtomicUsize::new(0),
            waits: RequestWaits::default(),
            request: AtomicU64::new(0),
            user: AtomicU64::new(0),
            started: AtomicU64::new(0),
            queued: AtomicU64::new(0),
            switches_before: AtomicU64::new(0),
            requests_done: AtomicU64::new(0),
            stack_low: AtomicUsize::new(0),
            stack_top: AtomicUsize::new(0),
            saved_at: AtomicUsize::new(0),
        }
    }

    /// Sets the range of the worker's stack.
    pub(crate) fn stack_is(&self, range: fiber::StackRange) {
        self.stack_low.store(range.low(), Ordering::Relaxed);
        self.stack_top.store(range.top(), Ordering::Relaxed);
    }

    /// Returns the range of its stack, if that is known.
    pub(crate) fn stack(&self) -> Option<fiber::StackRange> {
        let low = self.stack_low.load(Ordering::Relaxed);
        let range = fiber::StackRange::new(low, self.stack_top.load(Ordering::Relaxed));
        range.filter(|range| range.low() != 0)
    }

    /// Notes that a request begins, `queued` ticks after it was enqueued.
    pub(crate) fn begin_request(&self, id: u64, user: u64, now: u64, queued: u64) {
        self.waits.clear();
        self.started.store(now, Ordering::Relaxed);
        self.queued.store(queued, Ordering::Relaxed);
        self.switches_before.store(self.switches.load(Ordering::Relaxed), Ordering::Relaxed);
        self.user.store(user, Ordering::Relaxed);
        self.request.store(id, Ordering::Relaxed);
    }

    /// Notes that the request has ended.
    pub(crate) fn end_request(&self) {
        self.request.store(0, Ordering::Relaxed);
        self.user.store(0, Ordering::Relaxed);
    }

    fn reset(&self) {
        let WorkerStatus { state, request, user, requests_done, switches, thread, .. } = self;
        state.store(0, Ordering::Relaxed);
        self.bounds.store(0, Ordering::Relaxed);
        thread.store(0, Ordering::Relaxed);
        self.stack_top.store(0, Ordering::Relaxed);
        self.stack_low.store(0, Ordering::Relaxed);
        self.saved_at.store(0, Ordering::Relaxed);
        for counter in [request, user, requests_done, switches] {
            counter.store(0, Ordering::Relaxed);
        }
    }
}
