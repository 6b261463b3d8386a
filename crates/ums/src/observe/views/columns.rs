//! The columns of the views: the name and meaning of each, and how it is filled from a row. If SQL
//! Server's dynamic management views (such as dm_os_schedulers) have such a column, its name is
//! theirs.

use super::rows::{
    PendingIoRow, RequestRow, SchedulerRow, Snapshot, SwitchRow, UserRow, WaitRow, WaitsOf,
    WorkerRow,
};
use super::table::{Cell, Column, ColumnKind, Table, View};
#[cfg(feature = "monitor")]
use crate::monitor::{ConditionCount, PastReport, StallStack};
use crate::observe::trace::TraceEvent;
use crate::os::limits::QUANTUM_NS;
use crate::os::short_lock::ShortLockCounts;
use crate::record::event_ring::RingEvent;
use crate::record::frame::Frame;
use crate::record::reason::WaitReason;
use crate::record::wait_stats::wait_bucket_end;
use crate::scheduler::WorkerKind;
use crate::scheduler::lists::worker_list::State;
use crate::scheduler::request::{RequestId, UserId};
use crate::wait::deadlock::Deadlock;

/// Returns one view of a snapshot.
pub(super) fn table(view: View, seen: &Snapshot) -> Table {
    match view {
        View::Schedulers => schedulers(&seen.schedulers),
        View::Workers => workers(&seen.workers),
        View::Requests => requests(&seen.requests),
        View::WaitingTasks => waiting_tasks(
            &seen.workers.iter().filter(|w| w.state == State::Waiting).collect::<Vec<_>>(),
        ),
        View::WaitStats => wait_stats(&seen.waits),
        View::WaitHistogram => {
            wait_histogram(&seen.waits.iter().flat_map(filled).collect::<Vec<_>>())
        }
        View::RequestWaits => request_waits(
            &seen
                .requests
                .iter()
                .flat_map(|r| r.waits.iter().map(|w| (r.id, r.user, *w)))
                .collect::<Vec<_>>(),
        ),
        View::Users => users(&seen.users),
        View::UserWaits => user_waits(
            &seen.users.iter().flat_map(|u| u.waits.iter().map(|w| (u.id, *w))).collect::<Vec<_>>(),
        ),
        View::ContextSwitches => context_switches(&seen.switches),
        View::PendingIo => pending_io(&seen.pending_io),
        View::Ring => ring(&seen.ring),
        #[cfg(feature = "monitor")]
        View::Monitor => monitor(&seen.monitor),
        #[cfg(feature = "monitor")]
        View::Reports => reports(&seen.reports),
        #[cfg(feature = "monitor")]
        View::Stalls => stalls(&seen.stalls),
        View::Spinlocks => spinlocks(&seen.spinlocks),
        View::Deadlocks => deadlocks(
            &seen
                .deadlocks
                .iter()
                .flat_map(|d| (0..d.waiters.len()).map(move |at| (&**d, at)))
                .collect::<Vec<_>>(),
        ),
    }
}

/// Returns the buckets of a histogram that are not empty: reason, upper end, number of waits.
fn filled(row: &WaitRow) -> Vec<(WaitReason, Option<u64>, u64)> {
    let buckets = row.buckets.iter().enumerate().filter(|(_, waits)| **waits > 0);
    buckets.map(|(at, waits)| (row.reason, wait_bucket_end(at), *waits)).collect()
}

macro_rules! table {
    (
        fn $fill:ident($row:ident: &$kind:ty) -> $name:literal, keys $keys:literal, $help:literal;
        $($column:ident $what:ident = $cell:expr, $means:literal;)*
    ) => {
        fn $fill(rows: &[$kind]) -> Table {
            const COLUMNS: &[Column] = &[$(Column {
                name: stringify!($column),
                kind: ColumnKind::$what,
                help: $means,
            }),*];
            let fill = |$row: &$kind| vec![$(Cell::from($cell)),*];
            let rows = rows.iter().map(fill).collect();
            Table { name: $name, help: $help, keys: $keys, columns: COLUMNS, rows }
        }
    };
}

/// A worker that waits.
type Waiting<'a> = &'a WorkerRow;

fn upper(what: impl std::fmt::Debug) -> String {
    format!("{what:?}").to_uppercase()
}

fn name(reason: Option<WaitReason>) -> &'static str {
    reason.map_or("", WaitReason::name)
}

const fn us(ns: u64) -> u64 {
    ns / 1000
}

table! {
    fn schedulers(s: &SchedulerRow) -> "ums_schedulers", keys 2, "Schedulers, visible ones first.";
    scheduler_id Id = s.id, "Its number; hidden schedulers are numbered after the visible ones.";
    name Text = s.name.as_str(), "Its name: the number, or the name of a hidden scheduler.";
    status Text = s.status, "VISIBLE or HIDDEN, ONLINE or OFFLINE.";
    is_online Gauge = s.status.ends_with("ONLINE"), "1 while it gets new requests.";
    cpu_id Id = s.cpu, "The processor it is pinned to, if any.";
    workers Text = format!("{:?}", s.kind), "The kind of its workers.";
    is_idle Gauge = s.is_idle, "1 while it sleeps because it has no work.";
    users Gauge = s.users, "Users that have it as their home.";
    load_factor Gauge = s.load, "Requests queued, running and waiting.";
    current_tasks_count Gauge = s.load,
        "The same as load_factor, under the name that SQL Server uses.";
    work_queue_count Gauge = s.queued, "Requests that have no worker yet.";
    max_workers Gauge = s.workers_max, "The largest number of workers it can have.";
    current_workers_count Gauge = s.counters.workers, "Workers that exist.";
    active_workers_count Gauge =
        s.counters.workers.saturating_sub(s.counters.idle + s.counters.preemptive),
        "Workers that have a request and are not preemptive.";
    idle_workers_count Gauge = s.counters.idle, "Workers without a request.";
    active_worker_id Id = s.running, "The worker that runs.";
    runnable_tasks_count Gauge = s.counters.runnable, "Workers that could run.";
    waiting_tasks_count Gauge = s.counters.waiting, "Workers that wait.";
    preemptive_tasks_count Gauge = s.counters.preemptive,
        "Workers that run external code outside the scheduler.";
    pending_io_count Gauge = s.counters.pending_io, "I/O requests outstanding.";
    timer_count Gauge = s.counters.timers, "Timers set.";
    context_switches_count Counter = s.counters.context_switches, "Switches to another worker.";
    idle_switches_count Counter = s.counters.idle_switches,
        "Times it went to sleep because it had no work.";
    idle_time_us Counter = us(s.idle_ns),
        "How long it has slept without work; the rest of the time it was busy.";
    idle_spins_count Counter = s.counters.idle_spins,
        "Times it polled for work before it went to sleep.";
    idle_spins_paid_count Counter = s.counters.idle_spins_paid,
        "Polls that found something to do.";
    idle_spin_time_us Counter = us(s.counters.idle_spin_ns),
        "How long it has polled; not contained in idle_time_us.";
    idle_spin_charged_us Counter = us(s.counters.idle_spin_charged_ns),
        "Of that, what was polled adaptively and in vain, or for longer than it takes to sleep and \
         wake up: at most 5 % of the time.";
    preemptive_switches_count Counter = s.counters.preemptive_switches,
        "Times a worker went preemptive.";
    yield_count Counter = s.counters.yields,
        "Yields; one after which the same worker continues is no context switch.";
    turn_count Counter = s.counters.turns, "Scheduling decisions at waits and ends of requests.";
    longest_turn_us Gauge = us(crate::os::clock::ticks_to_ns(s.counters.longest_turn)),
        "The longest turn of a worker that was timed: from being chosen to waiting, ending its \
         request or yielding.";
    passed_over_max Gauge = s.counters.passed_over_max,
        "The most choices in a row that passed over a worker or request that was ready earlier; \
         one after a long turn counts as several.";
    requests_done Counter = s.counters.requests_done, "Requests carried out.";
    refused_requests Counter = s.counters.requests_refused,
        "Requests refused because the work queue was full.";
    stolen_requests Counter = s.counters.stolen,
        "Requests taken from another scheduler's work queue.";
    queue_timeouts Counter = s.counters.queue_timeouts,
        "Requests that waited too long for a worker and were dropped.";
    reserve_workers Counter = s.counters.reserve_workers,
        "Workers created beyond the limit for the request of a user that holds a lock.";
    failed_to_create_worker Counter = s.counters.failed_to_create_worker,
        "Times a worker could not be created.";
    io_completions Counter = s.counters.io_completions, "I/O requests completed.";
    slow_io_count Counter = s.counters.slow_io, "Waits for files that took too long.";
    slow_submissions_count Counter = s.counters.slow_submissions,
        "Submissions of I/O that blocked the scheduler.";
    undeclared_calls_count Counter = s.counters.undeclared_calls,
        "Interposed calls that were made preemptive because they would block.";
    undeclared_blocks_count Counter = s.counters.undeclared_blocks,
        "Undeclared blocks in system calls, after which the scheduler ran other workers.";
    undeclared_faults_count Counter = s.counters.undeclared_faults,
        "Undeclared blocks in page faults, after which the scheduler ran other workers.";
    lent_workers_count Counter = s.counters.workers_lent,
        "Times waiting workers were allowed to run without the baton, because the scheduler waited \
         for a lock.";
    unwatched_workers_count Counter = s.counters.unwatched_workers,
        "Workers that could not be watched for undeclared blocks.";
    short_overruns_count Counter = s.counters.short_overruns,
        "Calls declared as short that took long.";
    panics Counter = s.counters.panics, "Requests and completion routines that panicked.";
    last_timer_activity Gauge = s.counters.last_timer_look,
        "When the timer list was last checked, in nanoseconds of the monotonic clock.";
    quantum_length_us Gauge = us(QUANTUM_NS),
        "How long a worker may run before yield_if_due yields.";
    io Text = s.io.as_str(), "Its I/O back end, and why that one.";
}

table! {
    fn workers(w: &WorkerRow) -> "ums_workers", keys 0, "Workers of all schedulers.";
    scheduler_id Id = w.scheduler, "The scheduler it belongs to.";
    worker_id Id = w.id, "Its number on that scheduler.";
    state Text = upper(w.state), "Its state: RUNNING, RUNNABLE, WAITING, IDLE or PREEMPTIVE.";
    os_thread_id Id = w.thread, "The kernel's number of its thread; 0 for a fiber.";
    is_fiber Gauge = w.kind == WorkerKind::Fiber, "1 for a fiber.";
    is_sick Gauge = w.is_sick,
        "1 while it is blocked, with its scheduler, on a short lock that is not released.";
    is_preemptive Gauge = w.state == State::Preemptive, "1 while it runs external code.";
    request_id Id = w.request, "Its request; 0 for none.";
    user_id Id = w.user, "The user of the request; 0 for none.";
    wait_type Text = name(w.reason), "Why it waits or is preemptive.";
    last_wait_type Text = name(w.last_reason), "Why it waits, or waited last.";
    wait_duration_ms Gauge = w.waited_ns / 1_000_000, "How long it has been waiting.";
    pending_io_count Gauge = w.waits_for_io, "1 while it waits for an I/O request.";
    tasks_processed_count Counter = w.requests_done, "Requests it has carried out.";
    context_switch_count Counter = w.switches, "Times it was switched to.";
    stack_bytes Gauge = w.stack_size(), "Size of its stack.";
    stack_bytes_used Gauge = w.stack_used(), "How much of it has been used so far.";
}

table! {
    fn requests(r: &RequestRow) -> "ums_requests", keys 0, "Requests, queued and running.";
    request_id Id = r.id, "Its number.";
    user_id Id = r.user, "Its user; 0 for none.";
    scheduler_id Id = r.scheduler, "Its scheduler.";
    worker_id Id = r.worker, "Its worker on that scheduler.";
    task_state Text = r.state.as_str(), "PENDING, or its worker's state.";
    is_urgent Gauge = r.urgent, "1 while it is queued and must not wait for a free worker.";
    wait_type Text = name(r.reason), "Why it waits now.";
    queueing_time_microseconds Gauge = us(r.queued_ns),
        "How long it has been, or was, without a worker.";
    elapsed_us Gauge = us(r.elapsed_ns), "How long it has been running.";
    time_left_us Gauge = r.time_left_ns.map(us),
        "How much time its waits have left; NULL if they have no limit.";
    context_switches_count Counter = r.switches, "Times its worker was switched to.";
    waits_count Counter = r.waits.iter().map(|w| w.count).sum::<u64>(),
        "How many of its waits have ended.";
    wait_time_us Counter = us(r.waits.iter().map(|w| w.total_ns).sum()), "Their total time.";
    signal_wait_time_us Counter = us(r.waits.iter().map(|w| w.signal_ns).sum()),
        "The part after the wake-up.";
}

table! {
    fn waiting_tasks(w: &Waiting<'_>) -> "ums_waiting_tasks", keys 0,
        "Workers that wait, what they wait for, and what blocks them.";
    scheduler_id Id = w.scheduler, "The worker's scheduler.";
    worker_id Id = w.id, "The worker.";
    request_id Id = w.request, "Its request.";
    user_id Id = w.user, "The user of the request.";
    wait_type Text = name(w.reason), "Why it waits.";
    wait_duration_ms Gauge = w.waited_ns / 1_000_000,
        "How long it has been waiting, signal wait included.";
    resource Id = w.resource, "The address or descriptor of the resource it waits for; 0 for none.";
    blocking_scheduler_id Id = w.blocker.map(|b| b.0),
        "The scheduler of the worker that holds the resource.";
    blocking_worker_id Id = w.blocker.map(|b| b.1), "The worker that holds the resource.";
    blocking_user_id Id = blocking_user(w), "The user that holds the resource.";
}

fn blocking_user(w: &WorkerRow) -> Option<UserId> {
    match (w.blocking_user, w.blocker) {
        (0, holder) => holder.map(|(_, _, user)| user),
        (user, _) => Some(user),
    }
}

table! {
    fn wait_stats(w: &WaitRow) -> "ums_wait_stats", keys 1,
        "Waits by reason, since the last reset.";
    wait_type Text = w.reason.name(), "The reason.";
    class Text = upper(w.class), "RESOURCE, QUEUE or EXTERNAL.";
    waiting_tasks_count Counter = w.begun, "Waits that have begun.";
    completed_waits Counter = w.count, "Waits that have ended; the times are theirs.";
    wait_time_us Counter = us(w.total_ns), "Time from the beginning to running again.";
    max_wait_time_us Gauge = us(w.max_ns), "The longest.";
    signal_wait_time_us Counter = us(w.signal_ns),
        "The part after the wake-up, which the scheduler added.";
    context_switches_count Counter = w.switches, "Waits that switched to another worker.";
    p50_us Gauge = us(w.quantile_ns(0.5)), "Half of the waits were shorter, to a factor of two.";
    p99_us Gauge = us(w.quantile_ns(0.99)),
        "All but one in a hundred were shorter, to a factor of two.";
}

table! {
    fn wait_histogram(b: &(WaitReason, Option<u64>, u64)) -> "ums_wait_histogram", keys 0,
        "Waits by reason and length.";
    wait_type Text = b.0.name(), "The reason.";
    below_ns Id = b.1,
        "The upper end of the bucket, exclusive; NULL for the last bucket, which has none.";
    waits Counter = b.2, "How many waits fell into it.";
}

table! {
    fn request_waits(w: &(RequestId, UserId, WaitsOf)) -> "ums_request_waits", keys 0,
        "What running requests have waited for.";
    request_id Id = w.0, "The request.";
    user_id Id = w.1, "Its user; 0 for none.";
    wait_type Text = w.2.reason.name(), "The reason.";
    completed_waits Counter = w.2.count, "How many waits have ended.";
    wait_time_us Counter = us(w.2.total_ns), "Their total time.";
    max_wait_time_us Gauge = us(w.2.max_ns), "The longest.";
    signal_wait_time_us Counter = us(w.2.signal_ns), "The part after the wake-up.";
}

table! {
    fn users(u: &UserRow) -> "ums_users", keys 0,
        "Users, and the totals over their finished requests.";
    user_id Id = u.id, "Its number.";
    scheduler_id Id = u.scheduler, "Its home scheduler.";
    is_busy Gauge = u.is_busy, "1 while one of its requests is queued or running.";
    is_holding Gauge = u.is_holding, "1 while it holds something that others may wait for.";
    requests_done Counter = u.requests_done, "Requests that have ended.";
    queueing_time_us Counter = us(u.queued_ns), "Their total time in the queue.";
    max_queueing_time_us Gauge = us(u.queued_max_ns),
        "The longest time of one of them in the queue.";
    elapsed_us Counter = us(u.elapsed_ns), "Their total running time.";
    waits_count Counter = u.waits.iter().map(|w| w.count).sum::<u64>(), "How many waits they had.";
    wait_time_us Counter = us(u.waits.iter().map(|w| w.total_ns).sum()),
        "The total time of these waits.";
    signal_wait_time_us Counter = us(u.waits.iter().map(|w| w.signal_ns).sum()),
        "The part after the wake-up.";
}

table! {
    fn user_waits(w: &(UserId, WaitsOf)) -> "ums_user_waits", keys 0,
        "What the finished requests of users waited for.";
    user_id Id = w.0, "The user.";
    wait_type Text = w.1.reason.name(), "The reason.";
    completed_waits Counter = w.1.count, "How many waits have ended.";
    wait_time_us Counter = us(w.1.total_ns), "Their total time.";
    max_wait_time_us Gauge = us(w.1.max_ns), "The longest.";
    signal_wait_time_us Counter = us(w.1.signal_ns), "The part after the wake-up.";
}

table! {
    fn context_switches(c: &SwitchRow) -> "ums_context_switches", keys 3,
        "Switches to another worker by cause; for each scheduler they add up to its context \
         switches.";
    scheduler_id Id = c.scheduler, "The scheduler.";
    cause Text = c.cause, "WAIT, YIELD, END OF REQUEST, PREEMPTIVE or OTHER.";
    wait_type Text = name(c.reason), "What the previous worker waited for, if the cause is a wait.";
    context_switches Counter = c.count, "How often it happened.";
}

table! {
    fn pending_io(p: &PendingIoRow) -> "ums_pending_io", keys 0,
        "I/O requests that are outstanding.";
    scheduler_id Id = p.scheduler, "The scheduler that has it on its I/O list.";
    io_token Id = p.token, "Its number on that list.";
    io_type Text = p.operation, "The operation.";
    io_handle Id = p.fd.map(|fd| fd as u32), "The descriptor.";
    io_offset Id = p.offset, "The position in the file.";
    io_pending_us Gauge = us(p.age_ns), "How long it has been outstanding.";
}

#[cfg(feature = "monitor")]
table! {
    fn monitor(m: &ConditionCount) -> "ums_monitor", keys 1, "What the monitor has found.";
    condition Text = m.condition.name(), "What was wrong.";
    reports_count Counter = m.reports, "How often that was reported.";
    suppressed_count Counter = m.suppressed,
        "How often a report was left out, because there were too many.";
    unwritten_count Counter = m.unwritten, "Reports that could not be written to stderr.";
}

#[cfg(feature = "monitor")]
table! {
    fn reports(r: &PastReport) -> "ums_reports", keys 0, "The last reports of the monitor.";
    report_id Id = r.number, "Its number, from 0.";
    age_ms Gauge = r.age_ns / 1_000_000, "How long ago it was made.";
    condition Text = r.report.condition.name(), "What was wrong.";
    diagnosis Text = r.report.diagnosis.to_string(), "The cause.";
    is_exonerated Gauge = r.report.diagnosis.exonerates(),
        "1 if neither the application nor this library is the cause.";
    scheduler_id Id = r.report.scheduler, "The scheduler.";
    worker_id Id = r.report.worker, "The worker, if it concerns one.";
    request_id Id = r.report.request, "The request of that worker; 0 for none.";
    user_id Id = r.report.user, "The user of the request; 0 for none.";
    lasted_ms Gauge = r.report.lasted.as_millis() as u64, "How long the condition had lasted.";
    function Text = r.report.function().unwrap_or(""),
        "The innermost function that is not in the standard library.";
    text Text = r.report.to_string(), "The report as written to stderr.";
}

#[cfg(feature = "monitor")]
table! {
    fn stalls(s: &StallStack) -> "ums_stalls", keys 0,
        "Where workers kept their scheduler too long, by backtrace, the longest first.";
    total_ms Counter = s.total.as_millis() as u64, "How long, in total.";
    stalls_count Counter = s.stalls, "How often it happened.";
    stack Text = s.stack.as_str(), "The functions, the outermost first, separated by semicolons.";
}

table! {
    fn spinlocks(l: &ShortLockCounts) -> "ums_spinlocks", keys 1,
        "Locks that are held for a few instructions, over the whole process.";
    name Text = "SHORT", "The kind of lock: SHORT locks guard what workers wait for.";
    collisions Counter = l.collisions, "Times a lock was not free at once.";
    spins Counter = l.spins, "Iterations of the loops that waited for a lock.";
    backoffs Counter = l.backoffs, "Times a loop gave up the processor.";
    sick_count Counter = l.stuck_on_short_lock, "Times a worker or thread had to sleep.";
}

/// One waiter of a deadlock.
type InCircle<'a> = (&'a Deadlock, usize);

table! {
    fn deadlocks(d: &InCircle<'_>) -> "ums_deadlocks", keys 0,
        "The process's last deadlocks: each waiter holds what the previous one waits for, and the \
         first what the last one waits for.";
    deadlock_id Id = d.0.id.number(), "Its number.";
    position Id = d.1, "The waiter's position in the cycle.";
    is_victim Gauge = d.0.victim == Some(d.1), "1 for the waiter whose wait was ended.";
    scheduler_id Id = d.0.waiters[d.1].worker.map(|w| w.0),
        "The scheduler of the worker that waited; NULL for a plain thread.";
    worker_id Id = d.0.waiters[d.1].worker.map(|w| w.1), "The worker that waited.";
    request_id Id = d.0.waiters[d.1].request, "The request of that worker; 0 for none.";
    user_id Id = d.0.waiters[d.1].user, "The user of the request; 0 for none.";
    wait_type Text = d.0.waiters[d.1].reason.name(), "The reason.";
    resource_address Id = d.0.waiters[d.1].resource, "The address of the resource it waited for.";
    wait_time_ms Gauge = d.0.waiters[d.1].waited.as_millis() as u64, "How long it had waited.";
    waits_at Text = frames(&d.0.waiters[d.1].waits_at),
        "The functions in which it waited, the innermost first, if known.";
    taken_at Text = frames(&d.0.waiters[d.1].taken_at),
        "Where the next waiter took the resource, if locks are traced.";
}

fn frames(frames: &[Frame]) -> String {
    frames.iter().map(Frame::to_string).collect::<Vec<_>>().join(" < ")
}

table! {
    fn ring(e: &TraceEvent) -> "ums_ring", keys 0,
        "The last events of the schedulers, if they are recorded.";
    scheduler_id Id = e.scheduler, "The scheduler.";
    record Id = e.number, "The number of the event, from 0.";
    at_ns Gauge = e.at_ns, "When, in nanoseconds of the monotonic clock.";
    event Text = e.event.name(), "What happened.";
    worker_id Id = e.worker, "The worker; 0 is the stand-by worker.";
    detail Id = e.detail, "A descriptor, or the number of a request, scheduler or I/O request.";
    wait_type Text = waits_for(e), "What the worker waits for, or why it is preemptive.";
}

fn waits_for(e: &TraceEvent) -> &'static str {
    match e.event {
        RingEvent::Wait | RingEvent::Leave => WaitReason::from_index(e.detail as usize).name(),
        _ => "",
    }
}
