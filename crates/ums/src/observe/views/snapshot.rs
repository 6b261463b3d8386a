//! Snapshots: reads the rows of the views from counters, waiters and queues, without stopping any
//! scheduler.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::rows::{
    PendingIoRow, RequestRow, RequestSoFar, SchedulerRow, Snapshot, SwitchRow, UserRow, WaitRow,
    WaitsOf, WorkerRow,
};
use super::table::View;
#[cfg(feature = "monitor")]
use crate::monitor::ReportCounts;
use crate::node::{Node, NodeInner};
use crate::observe::trace::last_events;
use crate::os::clock;
use crate::os::short_lock;
use crate::record::reason::WaitReason;
use crate::record::wait_stats::{ReasonSum, WaitSum};
use crate::scheduler::Scheduler;
use crate::scheduler::lists::worker_list::State;
use crate::scheduler::request::UserId;
use crate::scheduler::work_queue::Queued;
use crate::wait::Waiter;
use crate::wait::deadlock;

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
            #[cfg(feature = "monitor")]
            monitor: self.inner.found(ReportCounts::read),
            #[cfg(feature = "monitor")]
            reports: self.inner.found(ReportCounts::recent),
            #[cfg(feature = "monitor")]
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
            user.reset_account();
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
        #[cfg(feature = "monitor")]
        View::Monitor => seen.monitor = node.found(ReportCounts::read),
        #[cfg(feature = "monitor")]
        View::Reports => seen.reports = node.found(ReportCounts::recent),
        #[cfg(feature = "monitor")]
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
        time_left_ns: waiter.time_left_ns(),
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
        time_left_ns: w.of_request.time_left_ns,
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
        time_left_ns: None,
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
        let sums = user.account();
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
