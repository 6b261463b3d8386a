//! The rows of the views, and how they are read.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::View;
use crate::monitor::{ConditionCount, PastReport, StallStack};
use crate::node::{Node, NodeInner};
use crate::observe::trace::{TraceEvent, last_events};
use crate::os::clock;
use crate::os::short_lock::{self, ShortLockCounts};
use crate::record::counters::SchedulerCounters;
use crate::record::reason::{WaitClass, WaitReason};
use crate::record::wait_stats::{ReasonSum, WAIT_BUCKETS, WaitSum, wait_bucket_end};
use crate::scheduler::lists::worker_list::State;
use crate::scheduler::request::{RequestId, UserId};
use crate::scheduler::{Scheduler, WorkerKind};
use crate::wait::Waiter;
use crate::wait::deadlock::{self, Deadlock};

/// A scheduler, as a snapshot shows it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SchedulerRow {
    /// Its number; hidden schedulers count on from the visible ones.
    pub id: usize,
    /// Its name: the number, or a hidden scheduler's own.
    pub name: String,
    /// `VISIBLE ONLINE`, `VISIBLE OFFLINE`, `HIDDEN ONLINE`.
    pub status: &'static str,
    /// The processor it is pinned to.
    pub cpu: Option<usize>,
    /// What its workers are made of.
    pub kind: WorkerKind,
    /// Whether it sleeps for want of work.
    pub is_idle: bool,
    /// How long it has slept for want of work so far, in nanoseconds.
    pub idle_ns: u64,
    /// Users whose home it is.
    pub users: usize,
    /// Its load factor: requests pending and begun (B2).
    pub load: usize,
    /// Requests without a worker.
    pub queued: usize,
    /// Most workers it can have.
    pub workers_max: usize,
    /// The number of the worker that runs; None while it sleeps or is between two.
    pub running: Option<u32>,
    /// Its counters.
    pub counters: SchedulerCounters,
    /// Its I/O back end.
    pub io: String,
}

/// A worker, as a snapshot shows it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerRow {
    /// The scheduler's number.
    pub scheduler: usize,
    /// Its own number there.
    pub id: u32,
    /// What it is made of.
    pub kind: WorkerKind,
    /// Where it is.
    pub state: State,
    /// The kernel's number of its thread; 0 for a fiber.
    pub thread: u32,
    /// The request it carries out; 0 for none.
    pub request: RequestId,
    /// The user of that; 0 for none.
    pub user: UserId,
    /// Why it waits, or is preemptive; None when it does not.
    pub reason: Option<WaitReason>,
    /// Why it waited last, or waits.
    pub last_reason: Option<WaitReason>,
    /// For how long it has been waiting, in nanoseconds.
    pub waited_ns: u64,
    /// The address or descriptor of what it waits for; 0 for none.
    pub resource: u64,
    /// The worker that holds that, as (scheduler, worker) numbers, and its user, where known.
    pub blocker: Option<(usize, u32, UserId)>,
    /// The user that holds that, where a user does; 0 for none.
    pub blocking_user: UserId,
    /// Whether it waits for an I/O request.
    pub waits_for_io: bool,
    /// Whether it sleeps, with its scheduler, because a lock that is held for moments is not let
    /// go.
    pub is_sick: bool,
    /// Requests it has carried out.
    pub requests_done: u64,
    /// Times it was switched to.
    pub switches: u64,
    /// Its request: how long that was queued and has been running, how often it was switched to
    /// and what it waited for.
    pub of_request: RequestSoFar,
    stack: Option<fiber::StackRange>,
}

impl WorkerRow {
    /// Size of its stack, in bytes; 0 when that is not known.
    pub fn stack_size(&self) -> usize {
        self.stack.map_or(0, fiber::StackRange::size)
    }

    /// How deep that was used so far, in bytes: whole pages, from the top (B16). Asks the system.
    pub fn stack_used(&self) -> usize {
        self.stack.and_then(fiber::StackRange::touched_bytes).unwrap_or(0)
    }
}

/// What a running request has come to.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RequestSoFar {
    /// How long it was queued, in nanoseconds.
    pub queued_ns: u64,
    /// How long it has been running, in nanoseconds.
    pub elapsed_ns: u64,
    /// Times its worker was switched to meanwhile.
    pub switches: u64,
    /// What it waited for.
    pub waits: Vec<WaitsOf>,
}

/// A request, as a snapshot shows it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RequestRow {
    /// Its number.
    pub id: RequestId,
    /// Its user; 0 for none.
    pub user: UserId,
    /// The scheduler it is on.
    pub scheduler: usize,
    /// Its worker there; None while it is queued.
    pub worker: Option<u32>,
    /// `PENDING`, or its worker's state.
    pub state: String,
    /// Whether it is served at once, because its user holds what others wait for. False once it
    /// has begun.
    pub urgent: bool,
    /// How long it has been queued, or was until it began, in nanoseconds (B19).
    pub queued_ns: u64,
    /// How long it has been running, in nanoseconds; 0 while it is queued.
    pub elapsed_ns: u64,
    /// Times its worker was switched to meanwhile.
    pub switches: u64,
    /// Why it waits now.
    pub reason: Option<WaitReason>,
    /// What it has waited for so far: six reasons, and the others together as `OTHER`.
    pub waits: Vec<WaitsOf>,
}

/// Waits of one request or user for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitsOf {
    /// The reason.
    pub reason: WaitReason,
    /// Waits that are over.
    pub count: u64,
    /// Their time from beginning to running again, in nanoseconds.
    pub total_ns: u64,
    /// The longest of them.
    pub max_ns: u64,
    /// The part from being signalled to running again.
    pub signal_ns: u64,
}

/// A user, and what its finished requests came to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UserRow {
    /// Its number.
    pub id: UserId,
    /// The scheduler it lives on.
    pub scheduler: usize,
    /// Whether its last request is queued or running.
    pub is_busy: bool,
    /// Whether it holds what others may wait for.
    pub is_holding: bool,
    /// Requests that have ended.
    pub requests_done: u64,
    /// Their time without a worker, in nanoseconds.
    pub queued_ns: u64,
    /// The longest of these.
    pub queued_max_ns: u64,
    /// Their time with one.
    pub elapsed_ns: u64,
    /// What they waited for.
    pub waits: Vec<WaitsOf>,
}

/// Statistics of one reason, over all schedulers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WaitRow {
    /// The reason.
    pub reason: WaitReason,
    /// Its class.
    pub class: WaitClass,
    /// Waits that have begun.
    pub begun: u64,
    /// Waits that are over.
    pub count: u64,
    /// Their time from beginning to running again, in nanoseconds.
    pub total_ns: u64,
    /// The longest of them.
    pub max_ns: u64,
    /// The part from being signalled to running again: what the scheduler added.
    pub signal_ns: u64,
    /// Waits for which another worker got the baton (B45).
    pub switches: u64,
    /// How many of those that are over fell into each bucket; see
    /// [`wait_bucket_end`](crate::stats::wait_bucket_end).
    pub buckets: [u64; WAIT_BUCKETS],
}

impl WaitRow {
    /// A length in nanoseconds that this share of the waits stayed below; 0 without waits, and the
    /// longest wait where the bucket has no end.
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

/// How often another worker got the baton of a scheduler, and why (B45).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SwitchRow {
    /// The scheduler's number.
    pub scheduler: usize,
    /// `WAIT`, `YIELD`, `END OF REQUEST`, `PREEMPTIVE` or `OTHER`.
    pub cause: &'static str,
    /// The reason of a wait.
    pub reason: Option<WaitReason>,
    /// How often.
    pub count: u64,
}

/// An outstanding I/O request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PendingIoRow {
    /// The number of the scheduler that has it on its I/O list.
    pub scheduler: usize,
    /// Its token there.
    pub token: u64,
    /// The operation, `READ` for one.
    pub operation: &'static str,
    /// The descriptor; None for a call.
    pub fd: Option<i32>,
    /// Where in the file; None when it has no places or the file's own is meant.
    pub offset: Option<u64>,
    /// For how long it has been outstanding, in nanoseconds.
    pub age_ns: u64,
}

/// Everything at once. The default is empty: its tables have columns and no rows.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// Visible schedulers first, then hidden ones.
    pub schedulers: Vec<SchedulerRow>,
    /// All workers of all schedulers.
    pub workers: Vec<WorkerRow>,
    /// Running and queued requests.
    pub requests: Vec<RequestRow>,
    /// Every reason that has been waited for.
    pub waits: Vec<WaitRow>,
    /// All users.
    pub users: Vec<UserRow>,
    /// Why schedulers switched.
    pub switches: Vec<SwitchRow>,
    /// Outstanding I/O requests.
    pub pending_io: Vec<PendingIoRow>,
    /// What schedulers did last; see [`Builder::event_ring`](crate::Builder::event_ring). Filled
    /// for its view alone: by [`Node::last_events`] else.
    pub ring: Vec<TraceEvent>,
    /// What the monitor has found; empty when nobody watches.
    pub monitor: Vec<ConditionCount>,
    /// Its last reports, the oldest first.
    pub reports: Vec<PastReport>,
    /// Where schedulers stood still, the worst first.
    pub stalls: Vec<StallStack>,
    /// What the short locks of the process came to; empty only in an empty snapshot.
    pub spinlocks: Vec<ShortLockCounts>,
    /// The last deadlocks of the process, the oldest first.
    pub deadlocks: Vec<Arc<Deadlock>>,
}

impl Node {
    /// Reads everything that the machine tells about itself.
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
            monitor: self.inner.monitor_counts(),
            reports: self.inner.last_reports(),
            stalls: self.inner.stalls(),
            spinlocks: vec![short_lock::counts()],
            deadlocks: deadlock::all_kept(),
            workers,
        }
    }

    /// Sets the wait statistics, and those of users, to zero (B20). Waits that end at the same
    /// moment may be counted before or after. Context switches go on counting.
    pub fn reset_waits(&self) {
        self.inner.all().iter().for_each(|s| s.waits.reset());
        for user in live_users(&self.inner) {
            user.account.reset();
        }
    }
}

/// What one view needs, and no more.
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
        View::Monitor => seen.monitor = node.monitor_counts(),
        View::Reports => seen.reports = node.last_reports(),
        View::Stalls => seen.stalls = node.stalls(),
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
        load: s.load.load(Ordering::Relaxed),
        queued: s.queue.len(),
        workers_max: s.options.workers_max,
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

/// One worker, at that many ticks.
pub(crate) fn worker(
    s: &Scheduler,
    waiter: &'static Waiter,
    now: u64,
    all: &[Arc<Scheduler>],
) -> WorkerRow {
    let view = &waiter.view;
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
        resource: if waiting { waiter.resource.load(Ordering::Relaxed) } else { 0 },
        blocker: waiter.blocker().filter(|_| waiting).and_then(|b| place(b, all)),
        blocking_user: if waiting { waiter.blocking_user.load(Ordering::Relaxed) } else { 0 },
        is_sick: state == State::Running && s.stuck_on_short_lock.load(Ordering::Relaxed),
        waits_for_io: waiting && waiter.io.load(Ordering::Relaxed) != 0,
        requests_done: view.requests_done.load(Ordering::Relaxed),
        switches: view.switches.load(Ordering::Relaxed),
        of_request: if request == 0 { RequestSoFar::default() } else { so_far(waiter, now) },
        stack: view.stack(),
    }
}

fn so_far(waiter: &Waiter, now: u64) -> RequestSoFar {
    let view = &waiter.view;
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

/// Which worker of which scheduler this waiter is now.
fn place(waiter: &'static Waiter, all: &[Arc<Scheduler>]) -> Option<(usize, u32, UserId)> {
    let home = waiter.home.load(Ordering::Relaxed);
    let s = all.iter().find(|s| s.inbox.address() == home)?;
    let user = waiter.view.user.load(Ordering::Relaxed);
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
    // Numbers only: who enqueues and who takes from the queue waits meanwhile.
    let mut seen = Vec::with_capacity(s.queue.len() + 64);
    s.queue.each(|request| {
        let state = request.state();
        seen.push((state.id, state.user, state.is_urgent(), state.enqueued));
    });
    let now = clock::ticks();
    let row = |(id, user, urgent, enqueued)| RequestRow {
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
    let users = node.users.lock().unwrap_or_else(|e| e.into_inner());
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
            is_holding: user.is_holding(),
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

/// Every cause but yields is counted where it happens; what is left of all switches are yields,
/// which therefore cost nothing more.
fn switches(s: &Scheduler) -> Vec<SwitchRow> {
    let row = |cause, reason, count| SwitchRow { scheduler: s.index, cause, reason, count };
    // In this order: what is counted meanwhile must not make a negative number of yields.
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
    let row = |seen: crate::scheduler::lists::io_board::Seen| PendingIoRow {
        scheduler: s.index,
        token: seen.token,
        operation: seen.operation,
        fd: seen.fd,
        offset: seen.offset,
        age_ns: clock::ticks_to_ns(now.saturating_sub(seen.since)),
    };
    s.pending.read().into_iter().map(row).collect()
}
