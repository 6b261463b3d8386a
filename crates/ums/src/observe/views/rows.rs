//! The types of the views' rows, and the functions that read them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::table::View;
use crate::monitor::{ConditionCount, PastReport, ReportCounts, StallStack};
use crate::node::{Node, NodeInner};
use crate::observe::trace::{TraceEvent, last_events};
use crate::os::clock;
use crate::os::short_lock::{self, ShortLockCounts};
use crate::record::counters::SchedulerCounters;
use crate::record::reason::{WaitClass, WaitReason};
use crate::record::wait_stats::{ReasonSum, WAIT_BUCKETS, WaitSum, wait_bucket_end};
use crate::scheduler::lists::worker_list::State;
use crate::scheduler::request::{RequestId, UserId};
use crate::scheduler::work_queue::Queued;
use crate::scheduler::{Scheduler, WorkerKind};
use crate::wait::Waiter;
use crate::wait::deadlock::{self, Deadlock};

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
    stack: Option<fiber::StackRange>,
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
    /// Filled only for [`View::Ring`]; otherwise use [`Node::last_events`].
    pub ring: Vec<TraceEvent>,
    /// What the monitor has found; empty if it does not watch.
    pub monitor: Vec<ConditionCount>,
    /// The monitor's last reports, the oldest first.
    pub reports: Vec<PastReport>,
    /// Where workers kept their scheduler too long, the longest first.
    pub stalls: Vec<StallStack>,
    /// The contention of the process's short locks; empty only in an empty snapshot.
    pub spinlocks: Vec<ShortLockCounts>,
    /// The last deadlocks of the process, the oldest first.
    pub deadlocks: Vec<Arc<Deadlock>>,
}

impl Node {
    /// Reads the rows of all views but [`View::Ring`], without stopping any scheduler.
    ///
    /// ```
    /// let node = ums::Node::builder().schedulers(1).build()?;
    /// node.run(|| ums::sleep(std::time::Duration::from_millis(1)).unwrap());
    /// let seen = node.snapshot();
    /// let sleeps = seen.waits.iter().find(|wait| wait.reason == ums::WaitReason::SLEEP);
    /// assert_eq!(sleeps.unwrap().count, 1);
    /// assert!(sleeps.unwrap().total_ns >= 1_000_000);
    /// # Ok::<(), ums::BuildError>(())
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        let all = self.inner.all();
        let workers = workers(&all);
        Snapshot {
            schedulers: all.iter().map(|s| scheduler(s)).collect(),
            requests: requests(&workers, &all),
            waits: waits(&all),
            users: users(&self.inner),
            switches: all.iter().flat_map(|s| switches(s)).collect(),
            pending_io: all.iter().flat_map(|s| pending_io(s)).collect(),
            ring: Vec::new(),
            monitor: self.inner.found(ReportCounts::read),
            reports: self.inner.found(ReportCounts::recent),
            stalls: self.inner.found(ReportCounts::stalls),
            spinlocks: vec![short_lock::counts()],
            deadlocks: deadlock::all_kept(),
            workers,
        }
    }

    /// Resets the wait statistics, and those of users, to zero. A wait that ends during the call
    /// may or may not be counted afterwards. Context switches are not reset.
    pub fn reset_waits(&self) {
        self.inner.all().iter().for_each(|s| s.waits.reset());
        for user in live_users(&self.inner) {
            user.account.reset();
        }
    }
}

/// Reads the rows that one view needs.
pub(super) fn for_view(node: &NodeInner, view: View) -> Snapshot {
    let all = node.all();
    let mut seen = Snapshot::default();
    match view {
        View::Schedulers => seen.schedulers = all.iter().map(|s| scheduler(s)).collect(),
        View::Workers | View::WaitingTasks => seen.workers = workers(&all),
        View::Requests | View::RequestWaits => seen.requests = requests(&workers(&all), &all),
        View::WaitStats | View::WaitHistogram => seen.waits = waits(&all),
        View::Users | View::UserWaits => seen.users = users(node),
        View::ContextSwitches => seen.switches = all.iter().flat_map(|s| switches(s)).collect(),
        View::Ring => seen.ring = last_events(node).events,
        View::Monitor => seen.monitor = node.found(ReportCounts::read),
        View::Reports => seen.reports = node.found(ReportCounts::recent),
        View::Stalls => seen.stalls = node.found(ReportCounts::stalls),
        View::Spinlocks => seen.spinlocks = vec![short_lock::counts()],
        View::Deadlocks => seen.deadlocks = deadlock::all_kept(),
        View::PendingIo => seen.pending_io = all.iter().flat_map(|s| pending_io(s)).collect(),
    }
    seen
}

fn scheduler(s: &Scheduler) -> SchedulerRow {
    let online = s.online.load(Ordering::Relaxed);
    let running = s.left_over().into_iter().find(|waiter| waiter.is(State::Running));
    let counters = s.counters.read();
    let asleep = match counters.asleep_since {
        0 => 0,
        since => clock::ticks().saturating_sub(since),
    };
    SchedulerRow {
        id: s.index,
        name: s.name().to_string(),
        status: match (s.options.visible, online) {
            (true, true) => "VISIBLE ONLINE",
            (true, false) => "VISIBLE OFFLINE",
            (false, true) => "HIDDEN ONLINE",
            (false, false) => "HIDDEN OFFLINE",
        },
        cpu: s.options.pin,
        kind: s.options.kind,
        is_idle: s.inbox.is_asleep(),
        idle_ns: clock::ticks_to_ns(counters.idle_ticks + asleep),
        users: s.users.load(Ordering::Relaxed),
        load: s.load(),
        queued: s.queue.len(),
        workers_max: s.options.limit.hard,
        running: running.map(|waiter| waiter.worker.load(Ordering::Relaxed)),
        counters,
        io: s.driver_text.clone(),
    }
}

fn workers(all: &[Arc<Scheduler>]) -> Vec<WorkerRow> {
    let now = clock::ticks();
    let of = |s: &Arc<Scheduler>| {
        let waiters = s.left_over().into_iter();
        waiters.map(|waiter| worker(s, waiter, now, all)).collect::<Vec<_>>()
    };
    all.iter().flat_map(of).collect()
}

/// Reads one worker; `ticks` is the present time.
pub(crate) fn worker(
    s: &Scheduler,
    waiter: &'static Waiter,
    now: u64,
    all: &[Arc<Scheduler>],
) -> WorkerRow {
    let view = &waiter.record.view;
    let state = State::from_number(view.state.load(Ordering::Relaxed));
    let waits = matches!(state, State::Waiting | State::Preemptive);
    let reason = WaitReason::from_index(waiter.reason.load(Ordering::Relaxed) as usize);
    let began = waiter.began.load(Ordering::Relaxed);
    let waiting = state == State::Waiting;
    let request = view.request.load(Ordering::Relaxed);
    WorkerRow {
        scheduler: s.index,
        id: waiter.worker.load(Ordering::Relaxed),
        kind: s.options.kind,
        state,
        thread: view.thread.load(Ordering::Relaxed),
        request,
        user: view.user.load(Ordering::Relaxed),
        reason: waits.then_some(reason),
        last_reason: (began != 0).then_some(reason),
        waited_ns: if waits { clock::ticks_to_ns(now.saturating_sub(began)) } else { 0 },
        resource: if waiting { view.resource.load(Ordering::Relaxed) } else { 0 },
        blocker: waiter.blocker().filter(|_| waiting).and_then(|b| place(b, all)),
        blocking_user: if waiting { waiter.blocking_user.load(Ordering::Relaxed) } else { 0 },
        is_sick: state == State::Running && s.stuck_on_short_lock.load(Ordering::Relaxed),
        waits_for_io: waiting && waiter.record.io.token() != 0,
        requests_done: view.requests_done.load(Ordering::Relaxed),
        switches: view.switches.load(Ordering::Relaxed),
        of_request: if request == 0 { RequestSoFar::default() } else { so_far(waiter, now) },
        stack: view.stack(),
    }
}

fn so_far(waiter: &Waiter, now: u64) -> RequestSoFar {
    let view = &waiter.record.view;
    let started = view.started.load(Ordering::Relaxed);
    let before = view.switches_before.load(Ordering::Relaxed);
    RequestSoFar {
        queued_ns: clock::ticks_to_ns(view.queued.load(Ordering::Relaxed)),
        elapsed_ns: clock::ticks_to_ns(now.saturating_sub(started)),
        switches: view.switches.load(Ordering::Relaxed).saturating_sub(before),
        waits: view.waits.read().map(waits_of).collect(),
    }
}

fn waits_of(sum: ReasonSum) -> WaitsOf {
    WaitsOf {
        reason: sum.reason,
        count: sum.count,
        total_ns: clock::ticks_to_ns(sum.total),
        max_ns: clock::ticks_to_ns(sum.max),
        signal_ns: clock::ticks_to_ns(sum.signal),
    }
}

/// Returns the scheduler, worker and user that this waiter stands for now.
fn place(waiter: &'static Waiter, all: &[Arc<Scheduler>]) -> Option<(usize, u32, UserId)> {
    let inbox = waiter.inbox()?;
    let s = all.iter().find(|s| std::ptr::eq(s.inbox, inbox))?;
    let user = waiter.record.view.user.load(Ordering::Relaxed);
    Some((s.index, waiter.worker.load(Ordering::Relaxed), user))
}

fn requests(workers: &[WorkerRow], all: &[Arc<Scheduler>]) -> Vec<RequestRow> {
    let mut requests: Vec<_> = workers.iter().filter_map(running).collect();
    requests.extend(all.iter().flat_map(|s| queued(s)));
    requests
}

fn running(w: &WorkerRow) -> Option<RequestRow> {
    (w.request != 0).then(|| RequestRow {
        id: w.request,
        user: w.user,
        scheduler: w.scheduler,
        worker: Some(w.id),
        state: format!("{:?}", w.state).to_uppercase(),
        urgent: false,
        queued_ns: w.of_request.queued_ns,
        elapsed_ns: w.of_request.elapsed_ns,
        switches: w.of_request.switches,
        reason: w.reason,
        waits: w.of_request.waits.clone(),
    })
}

fn queued(s: &Scheduler) -> Vec<RequestRow> {
    // Only numbers are copied here, because callers that enqueue or dequeue wait until this has
    // ended.
    let mut seen = Vec::with_capacity(s.queue.len() + 64);
    s.queue.each(|request| seen.push(request));
    let now = clock::ticks();
    let row = |Queued { id, user, urgent, enqueued }| RequestRow {
        id,
        user,
        scheduler: s.index,
        worker: None,
        state: "PENDING".to_string(),
        urgent,
        queued_ns: clock::ticks_to_ns(now.saturating_sub(enqueued)),
        elapsed_ns: 0,
        switches: 0,
        reason: Some(WaitReason::THREADPOOL),
        waits: Vec::new(),
    };
    seen.into_iter().map(row).collect()
}

fn live_users(node: &NodeInner) -> Vec<Arc<crate::task::UserState>> {
    let users = node.users.lock();
    let mut users: Vec<_> = users.values().filter_map(std::sync::Weak::upgrade).collect();
    users.sort_by_key(|user| user.id);
    users
}

fn users(node: &NodeInner) -> Vec<UserRow> {
    let row = |user: Arc<crate::task::UserState>| {
        let sums = user.account.read();
        UserRow {
            id: user.id,
            scheduler: user.home,
            is_busy: user.is_busy(),
            is_holding: user.holds.is_some(),
            requests_done: sums.requests,
            queued_ns: clock::ticks_to_ns(sums.queued),
            queued_max_ns: clock::ticks_to_ns(sums.queued_max),
            elapsed_ns: clock::ticks_to_ns(sums.elapsed),
            waits: sums.waits.into_iter().map(waits_of).collect(),
        }
    };
    live_users(node).into_iter().map(row).collect()
}

fn waits(all: &[Arc<Scheduler>]) -> Vec<WaitRow> {
    WaitReason::all().filter_map(|reason| wait(reason, all)).collect()
}

fn wait(reason: WaitReason, all: &[Arc<Scheduler>]) -> Option<WaitRow> {
    let mut sum = WaitSum::default();
    all.iter().for_each(|s| sum.and(&s.waits.read(reason)));
    (sum.begun > 0 || sum.count > 0).then(|| WaitRow {
        reason,
        class: reason.class(),
        begun: sum.begun,
        count: sum.count,
        total_ns: clock::ticks_to_ns(sum.total),
        max_ns: clock::ticks_to_ns(sum.max),
        signal_ns: clock::ticks_to_ns(sum.signal),
        switches: sum.switches,
        buckets: sum.buckets,
    })
}

/// Every cause except yields is counted where it happens. The rest of all switches are yields, so
/// yields need no counter.
fn switches(s: &Scheduler) -> Vec<SwitchRow> {
    let row = |cause, reason, count| SwitchRow { scheduler: s.index, cause, reason, count };
    // Read in this order, so that switches counted meanwhile cannot make the number of yields
    // negative.
    let waits = WaitReason::all().filter_map(|reason| {
        let count = s.waits.row(reason).switches.load(Ordering::Relaxed);
        (count > 0).then(|| row("WAIT", Some(reason), count))
    });
    let mut rows: Vec<_> = waits.collect();
    let counters = s.counters.read();
    rows.extend([
        row("END OF REQUEST", None, counters.end_switches),
        row("PREEMPTIVE", None, counters.leave_switches),
        row("OTHER", None, counters.other_switches),
    ]);
    let all = s.counters.context_switches.load(Ordering::Relaxed);
    let others: u64 = rows.iter().map(|row| row.count).sum();
    rows.push(row("YIELD", None, all.saturating_sub(others)));
    rows
}

fn pending_io(s: &Scheduler) -> Vec<PendingIoRow> {
    let now = clock::ticks();
    let row = |seen: crate::scheduler::lists::io_board::OutstandingIo| PendingIoRow {
        scheduler: s.index,
        token: seen.token,
        operation: seen.operation,
        fd: seen.fd,
        offset: seen.offset,
        age_ns: clock::ticks_to_ns(now.saturating_sub(seen.since)),
    };
    s.pending.read().into_iter().map(row).collect()
}
