//! The rows of the views, as structs.

use std::sync::Arc;

#[cfg(feature = "monitor")]
use crate::monitor::{ConditionCount, PastReport, StallStack};
use crate::observe::trace::TraceEvent;
use crate::os::short_lock::ShortLockCounts;
use crate::record::counters::SchedulerCounters;
use crate::record::reason::{WaitClass, WaitReason};
use crate::record::wait_stats::{WAIT_BUCKETS, wait_bucket_end};
use crate::scheduler::WorkerKind;
use crate::scheduler::lists::worker_list::State;
use crate::scheduler::request::{RequestId, UserId};
use crate::wait::deadlock::Deadlock;

/// A scheduler, as a snapshot shows it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SchedulerRow {
    /// The scheduler's number. Hidden schedulers are numbered after the visible ones.
    pub id: usize,
    /// The scheduler's name: its number, or the name that a hidden scheduler was given.
    pub name: String,
    /// `VISIBLE ONLINE`, `VISIBLE OFFLINE`, `HIDDEN ONLINE`.
    pub status: &'static str,
    /// The processor that the scheduler is pinned to.
    pub cpu: Option<usize>,
    /// The kind of the scheduler's workers.
    pub kind: WorkerKind,
    /// Whether the scheduler sleeps because it has no work.
    pub is_idle: bool,
    /// How long the scheduler has slept without work so far, in nanoseconds.
    pub idle_ns: u64,
    /// How many users have this scheduler as their home.
    pub users: usize,
    /// The load factor: the number of requests that are queued, running or waiting.
    pub load: usize,
    /// How many requests have no worker yet.
    pub queued: usize,
    /// The largest number of workers that the scheduler can have.
    pub workers_max: usize,
    /// The number of the worker that runs; `None` while the scheduler sleeps or switches.
    pub running: Option<u32>,
    /// The scheduler's counters.
    pub counters: SchedulerCounters,
    /// The I/O back end, and why no better one was chosen.
    pub io: String,
}

/// A worker, as a snapshot shows it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerRow {
    /// The number of the worker's scheduler.
    pub scheduler: usize,
    /// The worker's number on that scheduler.
    pub id: u32,
    /// The worker's kind.
    pub kind: WorkerKind,
    /// The worker's state.
    pub state: State,
    /// The kernel's number of the worker's thread; 0 for a fiber.
    pub thread: u32,
    /// The request that the worker carries out; 0 for none.
    pub request: RequestId,
    /// The user of the request; 0 for none.
    pub user: UserId,
    /// Why the worker waits or is preemptive; `None` if it does neither.
    pub reason: Option<WaitReason>,
    /// Why the worker waits, or waited last.
    pub last_reason: Option<WaitReason>,
    /// How long the worker has been waiting, in nanoseconds.
    pub waited_ns: u64,
    /// The address or descriptor of the resource that the worker waits for; 0 for none.
    pub resource: u64,
    /// The worker that holds the resource, if known: its scheduler's number, its number and its
    /// user.
    pub blocker: Option<(usize, u32, UserId)>,
    /// The user that holds the resource; 0 for none.
    pub blocking_user: UserId,
    /// Whether the worker waits for an I/O request.
    pub waits_for_io: bool,
    /// Whether the worker, and with it its scheduler, is blocked on a short lock that is not
    /// released.
    pub is_sick: bool,
    /// How many requests the worker has carried out.
    pub requests_done: u64,
    /// How often the worker was switched to.
    pub switches: u64,
    /// The times, switches and waits of the worker's request so far.
    pub of_request: RequestSoFar,
    pub(super) stack: Option<fiber::StackRange>,
}

impl WorkerRow {
    /// Returns the size of the worker's stack in bytes; 0 if the size is not known.
    pub fn stack_size(&self) -> usize {
        self.stack.map_or(0, fiber::StackRange::size)
    }

    /// Returns how much of the worker's stack has been used so far, in bytes: whole pages, from the
    /// top. This makes a system call.
    pub fn stack_used(&self) -> usize {
        self.stack.and_then(fiber::StackRange::touched_bytes).unwrap_or(0)
    }
}

/// The times, switches and waits of a running request so far.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RequestSoFar {
    /// How long the request was queued, in nanoseconds.
    pub queued_ns: u64,
    /// How long the request has been running, in nanoseconds.
    pub elapsed_ns: u64,
    /// How often the request's worker was switched to since the request began.
    pub switches: u64,
    /// How much time the request's waits have left, in nanoseconds, if there is a limit
    /// ([`with_timeout`](crate::with_timeout)).
    pub time_left_ns: Option<u64>,
    /// The request's waits, by reason.
    pub waits: Vec<WaitsOf>,
}

/// A request, as a snapshot shows it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RequestRow {
    /// The request's number.
    pub id: RequestId,
    /// The request's user; 0 for none.
    pub user: UserId,
    /// The number of the request's scheduler.
    pub scheduler: usize,
    /// The number of the request's worker; `None` while the request is queued.
    pub worker: Option<u32>,
    /// `PENDING` while the request is queued, or else its worker's state.
    pub state: String,
    /// Whether the request is queued and must not wait for a free worker, because its user holds
    /// something that others wait for.
    pub urgent: bool,
    /// How long the request has been queued, or was queued until it began, in nanoseconds.
    pub queued_ns: u64,
    /// How long the request has been running, in nanoseconds; 0 while it is queued.
    pub elapsed_ns: u64,
    /// How often the request's worker was switched to since the request began.
    pub switches: u64,
    /// Why the request's worker waits now.
    pub reason: Option<WaitReason>,
    /// How much time the request's waits have left, in nanoseconds, if there is a limit
    /// ([`with_timeout`](crate::with_timeout)).
    pub time_left_ns: Option<u64>,
    /// The request's waits so far, by reason: six reasons, and the others together as `OTHER`.
    pub waits: Vec<WaitsOf>,
}

/// The waits of one request or user for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitsOf {
    /// The reason.
    pub reason: WaitReason,
    /// How many waits have ended.
    pub count: u64,
    /// The total time of these waits, from the beginning to running again, in nanoseconds.
    pub total_ns: u64,
    /// The longest of these waits, in nanoseconds.
    pub max_ns: u64,
    /// The part from the wake-up to running again, in nanoseconds.
    pub signal_ns: u64,
}

/// A user, and the totals over its finished requests.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UserRow {
    /// The user's number.
    pub id: UserId,
    /// The number of the user's home scheduler.
    pub scheduler: usize,
    /// Whether the user's last request is queued or running.
    pub is_busy: bool,
    /// Whether the user holds something that others may wait for.
    pub is_holding: bool,
    /// How many of the user's requests have ended.
    pub requests_done: u64,
    /// The total time of the ended requests in the queue, in nanoseconds.
    pub queued_ns: u64,
    /// The longest time of an ended request in the queue, in nanoseconds.
    pub queued_max_ns: u64,
    /// The total running time of the ended requests, in nanoseconds.
    pub elapsed_ns: u64,
    /// The waits of the ended requests, by reason.
    pub waits: Vec<WaitsOf>,
}

/// Statistics of one reason, over all schedulers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WaitRow {
    /// The reason.
    pub reason: WaitReason,
    /// The reason's class.
    pub class: WaitClass,
    /// How many waits have begun.
    pub begun: u64,
    /// How many waits have ended.
    pub count: u64,
    /// The total time of the ended waits, from the beginning to running again, in nanoseconds.
    pub total_ns: u64,
    /// The longest of the ended waits, in nanoseconds.
    pub max_ns: u64,
    /// The part from the wake-up to running again, which the scheduler added, in nanoseconds.
    pub signal_ns: u64,
    /// How many of the waits switched to another worker.
    pub switches: u64,
    /// How many of the ended waits fell into each bucket; see
    /// [`wait_bucket_end`](crate::stats::wait_bucket_end).
    pub buckets: [u64; WAIT_BUCKETS],
}

impl WaitRow {
    /// Returns a time in nanoseconds below which this share (0 to 1) of the waits stayed. Returns 0
    /// if there were no waits, and the length of the longest wait if the result is in the last
    /// bucket.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let all: u64 = self.buckets.iter().sum();
        let wanted = (all as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (at, waits) in self.buckets.iter().enumerate() {
            seen += waits;
            if seen >= wanted && seen > 0 {
                return wait_bucket_end(at).unwrap_or(self.max_ns).min(self.max_ns);
            }
        }
        0
    }
}

/// How often a scheduler switched to another worker for one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SwitchRow {
    /// The scheduler's number.
    pub scheduler: usize,
    /// `WAIT`, `YIELD`, `END OF REQUEST`, `PREEMPTIVE` or `OTHER`.
    pub cause: &'static str,
    /// The reason of the wait, if the cause is a wait.
    pub reason: Option<WaitReason>,
    /// How often it happened.
    pub count: u64,
}

/// An outstanding I/O request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PendingIoRow {
    /// The number of the scheduler that has it on its I/O list.
    pub scheduler: usize,
    /// The request's number on that list.
    pub token: u64,
    /// The operation, such as `READ`.
    pub operation: &'static str,
    /// The descriptor; `None` for a call on a helper thread.
    pub fd: Option<i32>,
    /// The position in the file; `None` if the operation has none or uses the file's current
    /// position.
    pub offset: Option<u64>,
    /// How long the request has been outstanding, in nanoseconds.
    pub age_ns: u64,
}

/// All rows of all views at once. The default is empty: its tables have columns and no rows.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// Visible schedulers first, then hidden ones.
    pub schedulers: Vec<SchedulerRow>,
    /// All workers of all schedulers.
    pub workers: Vec<WorkerRow>,
    /// Running and queued requests.
    pub requests: Vec<RequestRow>,
    /// The wait statistics of each reason that occurred.
    pub waits: Vec<WaitRow>,
    /// All users.
    pub users: Vec<UserRow>,
    /// Context switches by cause.
    pub switches: Vec<SwitchRow>,
    /// Outstanding I/O requests.
    pub pending_io: Vec<PendingIoRow>,
    /// The last events of the schedulers; see [`Builder::event_ring`](crate::Builder::event_ring).
    /// Filled only for [`View::Ring`](crate::stats::View::Ring); otherwise use
    /// [`Node::last_events`](crate::Node::last_events).
    pub ring: Vec<TraceEvent>,
    /// What the monitor has found; empty if it does not watch.
    #[cfg(feature = "monitor")]
    pub monitor: Vec<ConditionCount>,
    /// The monitor's last reports, the oldest first.
    #[cfg(feature = "monitor")]
    pub reports: Vec<PastReport>,
    /// Where workers kept their scheduler too long, the longest first.
    #[cfg(feature = "monitor")]
    pub stalls: Vec<StallStack>,
    /// The contention of the process's short locks; empty only in an empty snapshot.
    pub spinlocks: Vec<ShortLockCounts>,
    /// The last deadlocks of the process, the oldest first.
    pub deadlocks: Vec<Arc<Deadlock>>,
}
