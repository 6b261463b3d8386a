//! umsstats: what the machine tells about itself, without stopping anybody (U92, U93, B20, B22).
//!
//! Two forms. [`Node::umsstats`] is the original's table, row for row. [`Node::snapshot`] is
//! everything: schedulers, workers, requests, waits. Both read counters that their owners write
//! with plain stores, so a snapshot costs the schedulers nothing, and may see some fields a moment
//! older than others.
//!
//! The rows describe themselves: [`Table`] turns any of them into named columns and cells, for
//! SQL, JSON and terminals alike.

use std::sync::atomic::Ordering;

use crate::counters::SchedulerCounters;
use crate::node::Node;
use crate::os::clock;
use crate::reason::{WaitClass, WaitReason};
use crate::request::{RequestId, UserId};
use crate::scheduler::{Shared, WorkerKind};
use crate::wait::Party;
use crate::worker::State;

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
    /// What its workers are made of.
    pub kind: WorkerKind,
    /// Whether it sleeps for want of work.
    pub is_idle: bool,
    /// Users whose home it is.
    pub users: usize,
    /// Its load factor: requests pending and begun (B2).
    pub load: usize,
    /// Requests without a worker.
    pub queued: usize,
    /// Most workers it can have.
    pub workers_max: usize,
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
    /// Where it is.
    pub state: State,
    /// The kernel's number of its thread; 0 for a fiber.
    pub thread: u32,
    /// The request it carries out; 0 for none.
    pub request: RequestId,
    /// The user of that request; 0 for none.
    pub user: UserId,
    /// Why it waits; None when it does not.
    pub reason: Option<WaitReason>,
    /// How long it has waited, in nanoseconds.
    pub waited_ns: u64,
    /// The address or descriptor of what it waits for; 0 for none.
    pub resource: u64,
    /// The worker that holds that, as (scheduler, worker) numbers, and its user, where known.
    pub blocker: Option<(usize, u32, UserId)>,
    /// The user that holds that, where a user does; 0 for none.
    pub blocking_user: UserId,
    /// Requests it has carried out.
    pub requests_done: u64,
    /// Times it was switched to.
    pub switches: u64,
    /// Size of its stack, in bytes; 0 when that is not known.
    pub stack_size: usize,
    /// How deep that was used so far, in bytes: whole pages, from the top (B16).
    pub stack_used: usize,
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
    /// Whether it is served at once, because its user holds what others wait for.
    pub urgent: bool,
    /// How long it has been queued, in nanoseconds; 0 once it has begun.
    pub queued_ns: u64,
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
}

impl Node {
    /// The original's statistics, verbatim: name and value, eight rows for each visible scheduler
    /// (U92). Print values with one decimal.
    ///
    /// ```
    /// let node = ums::Node::builder().schedulers(1).build()?;
    /// let rows = node.umsstats();
    /// assert_eq!(rows[0], ("Scheduler ID".to_string(), 0.0));
    /// assert_eq!(rows[1].0, "  num users");
    /// # Ok::<(), ums::BuildError>(())
    /// ```
    pub fn umsstats(&self) -> Vec<(String, f64)> {
        let mut rows = Vec::new();
        for s in &self.inner.visible {
            let c = s.counters.read();
            let users = s.users.load(Ordering::Relaxed);
            rows.push(("Scheduler ID".to_string(), s.index as f64));
            for (name, value) in [
                ("num users", users as u64),
                ("num runnable", c.runnable),
                ("num workers", c.workers),
                ("idle workers", c.idle),
                ("work queued", s.queue.len() as u64),
                ("cntxt switches", c.context_switches),
                ("cntxt switches(idle)", c.idle_switches),
            ] {
                rows.push((format!("  {name}"), value as f64));
            }
        }
        rows
    }

    /// Reads everything that the machine tells about itself.
    pub fn snapshot(&self) -> Snapshot {
        let all = self.inner.all();
        let workers: Vec<_> = all.iter().flat_map(|s| workers(s, &all)).collect();
        let mut requests: Vec<_> = workers.iter().filter_map(running).collect();
        requests.extend(all.iter().flat_map(|s| queued(s)));
        Snapshot {
            schedulers: all.iter().map(|s| scheduler(s)).collect(),
            waits: WaitReason::all().filter_map(|r| wait(r, &all)).collect(),
            workers,
            requests,
        }
    }

    /// Sets the wait statistics to zero (B20). Waits that end at the same moment may be counted
    /// before or after.
    pub fn reset_waits(&self) {
        for shared in self.inner.all() {
            for reason in WaitReason::all() {
                let row = shared.waits.row(reason);
                for counter in [&row.begun, &row.count, &row.total, &row.max, &row.signal] {
                    counter.store(0, Ordering::Relaxed);
                }
            }
        }
    }
}

fn scheduler(s: &Shared) -> SchedulerRow {
    let online = s.online.load(Ordering::Relaxed);
    SchedulerRow {
        id: s.index,
        name: s.name().to_string(),
        status: match (s.options.visible, online) {
            (true, true) => "VISIBLE ONLINE",
            (true, false) => "VISIBLE OFFLINE",
            (false, true) => "HIDDEN ONLINE",
            (false, false) => "HIDDEN OFFLINE",
        },
        kind: s.options.kind,
        is_idle: s.door.is_asleep(),
        users: s.users.load(Ordering::Relaxed),
        load: s.load.load(Ordering::Relaxed),
        queued: s.queue.len(),
        workers_max: s.options.workers_max,
        counters: s.counters.read(),
        io: s.driver_text.clone(),
    }
}

fn workers(s: &Shared, all: &[std::sync::Arc<Shared>]) -> Vec<WorkerRow> {
    let now = clock::ticks();
    let roster = s.left_over();
    roster.into_iter().map(|party| worker(s, party, now, all)).collect()
}

fn worker(
    s: &Shared,
    party: &'static Party,
    now: u64,
    all: &[std::sync::Arc<Shared>],
) -> WorkerRow {
    let view = &party.view;
    let state = State::from_number(view.state.load(Ordering::Relaxed));
    let waits = matches!(state, State::Waiting | State::Preemptive);
    let reason = WaitReason::from_index(party.reason.load(Ordering::Relaxed) as usize);
    let waited = now.saturating_sub(party.began.load(Ordering::Relaxed));
    let waiting = state == State::Waiting;
    let (stack_size, stack_used) = view.stack();
    WorkerRow {
        scheduler: s.index,
        id: party.worker.load(Ordering::Relaxed),
        state,
        thread: view.thread.load(Ordering::Relaxed),
        request: view.request.load(Ordering::Relaxed),
        user: view.user.load(Ordering::Relaxed),
        reason: waits.then_some(reason),
        waited_ns: if waits { clock::ticks_to_ns(waited) } else { 0 },
        resource: if waiting { party.resource.load(Ordering::Relaxed) } else { 0 },
        blocker: party.blocker().filter(|_| waiting).and_then(|b| place(b, all)),
        blocking_user: if waiting { party.blocking_user.load(Ordering::Relaxed) } else { 0 },
        requests_done: view.requests_done.load(Ordering::Relaxed),
        switches: view.switches.load(Ordering::Relaxed),
        stack_size,
        stack_used,
    }
}

/// Which worker of which scheduler this party is now.
fn place(party: &'static Party, all: &[std::sync::Arc<Shared>]) -> Option<(usize, u32, UserId)> {
    let home = party.home.load(Ordering::Relaxed);
    let s = all.iter().find(|s| s.door.address() == home)?;
    let user = party.view.user.load(Ordering::Relaxed);
    Some((s.index, party.worker.load(Ordering::Relaxed), user))
}

fn running(w: &WorkerRow) -> Option<RequestRow> {
    (w.request != 0).then(|| RequestRow {
        id: w.request,
        user: w.user,
        scheduler: w.scheduler,
        worker: Some(w.id),
        state: format!("{:?}", w.state).to_uppercase(),
        urgent: false,
        queued_ns: 0,
    })
}

fn queued(s: &Shared) -> Vec<RequestRow> {
    let now = clock::ticks();
    let mut rows = Vec::new();
    s.queue.each(|request| {
        let state = request.state();
        rows.push(RequestRow {
            id: state.id,
            user: state.user,
            scheduler: s.index,
            worker: None,
            state: "PENDING".to_string(),
            urgent: state.is_urgent(),
            queued_ns: clock::ticks_to_ns(now.saturating_sub(state.enqueued)),
        });
    });
    rows
}

fn wait(reason: WaitReason, all: &[std::sync::Arc<Shared>]) -> Option<WaitRow> {
    let mut sum = WaitRow {
        reason,
        class: reason.class(),
        begun: 0,
        count: 0,
        total_ns: 0,
        max_ns: 0,
        signal_ns: 0,
    };
    for s in all {
        let row = s.waits.row(reason);
        let read = |c: &std::sync::atomic::AtomicU64| c.load(Ordering::Relaxed);
        sum.begun += read(&row.begun);
        sum.count += read(&row.count);
        sum.total_ns += read(&row.total);
        sum.signal_ns += read(&row.signal);
        sum.max_ns = sum.max_ns.max(read(&row.max));
    }
    if sum.begun == 0 && sum.count == 0 {
        return None;
    }
    for ticks in [&mut sum.total_ns, &mut sum.max_ns, &mut sum.signal_ns] {
        *ticks = clock::ticks_to_ns(*ticks);
    }
    Some(sum)
}

/// One cell of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Nothing.
    Null,
    /// A whole number.
    Int(i64),
    /// Text.
    Text(String),
}

impl From<u64> for Cell {
    fn from(n: u64) -> Cell {
        Cell::Int(i64::try_from(n).unwrap_or(i64::MAX))
    }
}

impl From<usize> for Cell {
    fn from(n: usize) -> Cell {
        (n as u64).into()
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_string())
    }
}

/// A table that describes itself.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its name, as SQL has it.
    pub name: &'static str,
    /// Name and kind of each column: true for whole numbers, false for text.
    pub columns: Vec<(&'static str, bool)>,
    /// Its rows, each as long as `columns`.
    pub rows: Vec<Vec<Cell>>,
}

macro_rules! table {
    ($name:literal, $rows:expr, |$r:ident| { $($column:ident $number:literal = $cell:expr,)* }) => {
        Table {
            name: $name,
            columns: vec![$((stringify!($column), $number)),*],
            rows: $rows.iter().map(|$r| vec![$(Cell::from($cell)),*]).collect(),
        }
    };
}

impl Snapshot {
    /// The snapshot as tables: `ums_schedulers`, `ums_workers`, `ums_requests`,
    /// `ums_waiting_tasks`, `ums_wait_stats`.
    pub fn tables(&self) -> Vec<Table> {
        vec![
            self.scheduler_table(),
            self.worker_table(),
            self.request_table(),
            self.waiting_table(),
            self.wait_table(),
        ]
    }

    fn scheduler_table(&self) -> Table {
        table!("ums_schedulers", self.schedulers, |s| {
            scheduler_id true = s.id,
            name false = s.name.as_str(),
            status false = s.status,
            workers false = format!("{:?}", s.kind).as_str(),
            is_idle true = usize::from(s.is_idle),
            users true = s.users,
            load_factor true = s.load,
            work_queue_count true = s.queued,
            max_workers true = s.workers_max,
            current_workers_count true = s.counters.workers,
            idle_workers_count true = s.counters.idle,
            runnable_tasks_count true = s.counters.runnable,
            waiting_tasks_count true = s.counters.waiting,
            preemptive_tasks_count true = s.counters.preemptive,
            pending_io_count true = s.counters.pending_io,
            timer_count true = s.counters.timers,
            context_switches_count true = s.counters.context_switches,
            idle_switches_count true = s.counters.idle_switches,
            preemptive_switches_count true = s.counters.preemptive_switches,
            yield_count true = s.counters.yields,
            turn_count true = s.counters.turns,
            requests_done true = s.counters.requests_done,
            refused_requests true = s.counters.requests_refused,
            stolen_requests true = s.counters.stolen,
            queue_timeouts true = s.counters.queue_timeouts,
            reserve_workers true = s.counters.reserve_workers,
            failed_to_create_worker true = s.counters.failed_to_create_worker,
            panics true = s.counters.panics,
            last_timer_activity true = s.counters.last_timer_look,
            io false = s.io.as_str(),
        })
    }

    fn worker_table(&self) -> Table {
        table!("ums_workers", self.workers, |w| {
            scheduler_id true = w.scheduler,
            worker_id true = u64::from(w.id),
            state false = format!("{:?}", w.state).to_uppercase().as_str(),
            os_thread_id true = u64::from(w.thread),
            is_preemptive true = usize::from(w.state == State::Preemptive),
            request_id true = w.request,
            user_id true = w.user,
            wait_type false = w.reason.map_or("", WaitReason::name),
            wait_duration_ms true = w.waited_ns / 1_000_000,
            tasks_processed_count true = w.requests_done,
            context_switch_count true = w.switches,
            stack_bytes true = w.stack_size,
            stack_bytes_used true = w.stack_used,
        })
    }

    fn request_table(&self) -> Table {
        table!("ums_requests", self.requests, |r| {
            request_id true = r.id,
            user_id true = r.user,
            scheduler_id true = r.scheduler,
            worker_id true = r.worker.map_or(Cell::Null, |w| u64::from(w).into()),
            task_state false = r.state.as_str(),
            is_urgent true = usize::from(r.urgent),
            queueing_time_microseconds true = r.queued_ns / 1000,
        })
    }

    fn waiting_table(&self) -> Table {
        let waiting: Vec<_> = self.workers.iter().filter(|w| w.state == State::Waiting).collect();
        table!("ums_waiting_tasks", waiting, |w| {
            scheduler_id true = w.scheduler,
            worker_id true = u64::from(w.id),
            request_id true = w.request,
            user_id true = w.user,
            wait_type false = w.reason.map_or("", WaitReason::name),
            wait_duration_ms true = w.waited_ns / 1_000_000,
            resource true = w.resource,
            blocking_scheduler_id true = w.blocker.map_or(Cell::Null, |b| b.0.into()),
            blocking_worker_id true = w.blocker.map_or(Cell::Null, |b| u64::from(b.1).into()),
            blocking_user_id true = match (w.blocking_user, w.blocker) {
                (0, None) => Cell::Null,
                (0, Some((_, _, user))) => user.into(),
                (user, _) => user.into(),
            },
        })
    }

    fn wait_table(&self) -> Table {
        table!("ums_wait_stats", self.waits, |w| {
            wait_type false = w.reason.name(),
            class false = format!("{:?}", w.class).to_uppercase().as_str(),
            waiting_tasks_count true = w.begun,
            completed_waits true = w.count,
            wait_time_us true = w.total_ns / 1000,
            max_wait_time_us true = w.max_ns / 1000,
            signal_wait_time_us true = w.signal_ns / 1000,
        })
    }
}
