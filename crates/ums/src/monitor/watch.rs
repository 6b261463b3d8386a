//! The monitor's thread, and the state of each scheduler that it keeps between two looks.
//!
//! ```text
//!   look at every scheduler of every node
//!     |- asleep, or its marks have changed ---> forget what was suspected
//!     '- unchanged --half the time--> read figures --the time--> read again, sample, report
//!   no scheduler awake and nothing queued, a few times in a row ---> sleep until one wakes
//!   no node left for a second ---> the thread ends
//! ```
//!
//! If a mark has not changed between two looks, the scheduler made no progress in between, however
//! late the second look was. But if the monitor is late, or stops in the middle of a look, the
//! workers may have got no processor either. So that time is not counted against the workers (see
//! [`Slow`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::counts::ReportCounts;
use super::deadlock::{Deadlocks, LastRequest};
use super::deliver::deliver;
use super::diagnose::Diagnosis;
use super::limit::ReportLimit;
use super::options::Options;
use super::report::{Condition, Report};
use super::slow::{Beat, Slow, ns};
use super::{sentence, writer};
use crate::backtrace::unwind;
use crate::os::clock;
use crate::os::counted::AtomicU64;
use crate::os::lock::Lock;
use crate::os::panics::contain;
use crate::os::threads;
use crate::record::reason::WaitReason;
use crate::record::report::{self, WarningKind};
use crate::scheduler::Scheduler;
use crate::scheduler::alarm::{self, Note, Noticed};
use crate::scheduler::lists::worker_list::State;
use crate::scheduler::request::{RequestId, UserId};

/// How long the thread waits for another node after the last node has ended, before it ends too.
const LINGER: Duration = Duration::from_secs(1);

/// The number of looks in a row that find no scheduler awake, after which the thread sleeps until
/// one wakes.
const QUIET_LOOKS: u32 = 4;

/// How long the end of a node waits until its reports are written.
const WRITES_OUT: Duration = Duration::from_millis(200);

type Schedulers = Box<dyn Fn() -> Vec<Arc<Scheduler>> + Send>;

/// The nodes that the process's monitor thread watches.
#[derive(Default)]
struct Monitored {
    nodes: Vec<MonitoredNode>,
    next_id: u64,
    /// The monitor thread exists.
    has_thread: bool,
}

static MONITORED: Lock<Monitored> =
    Lock::new(Monitored { nodes: Vec::new(), next_id: 0, has_thread: false });

/// A node that is watched until this is dropped.
pub(crate) struct Watching {
    id: u64,
    /// The reports so far.
    pub counts: Arc<ReportCounts>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut monitored = MONITORED.lock();
        monitored.nodes.retain(|node| node.id != self.id);
        monitored.set_threshold();
        drop(monitored);
        alarm::ring();
        // The process may be about to end, so this waits until the reports are written.
        writer::settle(WRITES_OUT);
    }
}

/// Watches the schedulers that the function `schedulers` returns, until the result is dropped.
pub(crate) fn watch(
    options: Options,
    schedulers: impl Fn() -> Vec<Arc<Scheduler>> + Send + 'static,
    last_request: impl Fn(UserId) -> Option<RequestId> + Send + 'static,
) -> std::io::Result<Watching> {
    if options.trace_locks {
        crate::sync::traced::turn_on();
    }
    let mut monitored = MONITORED.lock();
    if !monitored.has_thread {
        threads::start(std::thread::Builder::new().name("ums-monitor".into()), watch_all)?;
        monitored.has_thread = true;
    }
    monitored.next_id += 1;
    let counts = Arc::<ReportCounts>::default();
    let watching = Watching { id: monitored.next_id, counts: counts.clone() };
    monitored.nodes.push(MonitoredNode {
        id: watching.id,
        schedulers: Box::new(schedulers),
        last_request: Box::new(last_request),
        deadlocks: Deadlocks::default(),
        options,
        counts,
        suspicions: Vec::new(),
        all_stuck: Slow::default(),
    });
    monitored.set_threshold();
    drop(monitored);
    alarm::ring();
    Ok(watching)
}

/// If a look takes this many nanoseconds more than the processor time that it uses, the monitor was
/// stopped. A shorter delay may have another cause: a thread that is sampled and gets no processor.
/// That says nothing about the other threads.
const STOP: u64 = 100_000_000;

/// The body of the monitor thread.
fn watch_all() {
    let mut quiet_looks = 0;
    let mut due = clock::NEVER;
    let mut stood_still = 0;
    let mut ends_at = None;
    loop {
        let (mut found, mut busy) = (Vec::new(), true);
        let interval = {
            let mut monitored = MONITORED.lock();
            if monitored.nodes.is_empty() {
                let at = *ends_at.get_or_insert_with(|| clock::after(LINGER));
                let ends = clock::now() >= at;
                monitored.has_thread = !ends;
                drop(monitored);
                // The notes are dropped because they keep schedulers alive.
                drop(alarm::notes());
                if ends {
                    return;
                }
                alarm::sleep_until(at);
                (quiet_looks, due) = (0, clock::NEVER);
                continue;
            }
            ends_at = None;
            // A panic in a look does not end the monitor.
            let (began, used) = (clock::now(), clock::used_by_this_thread());
            contain(|| busy = monitored.look(due.saturating_sub(stood_still), &mut found));
            // A stop in the middle of a look counts as lateness of the next look.
            let used = clock::used_by_this_thread() - used;
            let without = (clock::now() - began).saturating_sub(used);
            stood_still = if without < STOP { 0 } else { without };
            monitored.interval()
        };
        for (report, options, counts) in found {
            deliver(&report, &options, &counts);
        }
        quiet_looks = if busy { 0 } else { quiet_looks + 1 };
        if quiet_looks > QUIET_LOOKS {
            alarm::sleep_while(|| MONITORED.lock().quiet_until());
            (quiet_looks, due) = (0, clock::NEVER);
        } else {
            due = clock::after(interval);
            alarm::sleep_until(due);
        }
    }
}

type Found = Vec<(Arc<Report>, Options, Arc<ReportCounts>)>;

impl Monitored {
    /// Looks once. `due` is the time at which the look should have taken place. Returns true if a
    /// scheduler is awake or has work.
    fn look(&mut self, due: u64, found: &mut Found) -> bool {
        let now = clock::now();
        let beat = Beat { now, late: now.saturating_sub(due) };
        let mut busy = false;
        for node in &mut self.nodes {
            busy |= node.look(beat, found);
        }
        for note in alarm::notes() {
            let of = |node: &&mut MonitoredNode| {
                (node.schedulers)().iter().any(|s| Arc::ptr_eq(s, &note.at))
            };
            if let Some(node) = self.nodes.iter_mut().find(of) {
                node.read_note(&note, now, found);
            }
        }
        busy
    }

    /// Returns `None` if a scheduler is awake or has work. Otherwise returns when the monitor must
    /// look next even if all schedulers stay asleep.
    fn quiet_until(&self) -> Option<u64> {
        let due =
            |node: &MonitoredNode| node.deadlocks.due(&(node.schedulers)(), node.options.deadlock);
        let quiet = self.nodes.iter().all(MonitoredNode::is_quiet);
        quiet.then(|| self.nodes.iter().map(due).min().unwrap_or(clock::NEVER))
    }

    /// Sets the duration from which on workers report slow I/O to the monitor themselves. Nodes
    /// without options do not count, because there is no message for slow I/O.
    fn set_threshold(&self) {
        let asked = self.nodes.iter().filter(|node| !node.options.by_default);
        let all = asked.map(|node| ns(node.options.stall).min(alarm::NO_WORKER - 1));
        alarm::listen(all.min().unwrap_or(alarm::NO_WORKER));
    }

    fn interval(&self) -> Duration {
        let all = self.nodes.iter().map(|node| node.options.interval());
        all.min().unwrap_or(Duration::from_secs(1))
    }
}

/// The state of a node that the monitor keeps between two looks.
pub(super) struct MonitoredNode {
    id: u64,
    schedulers: Schedulers,
    last_request: Box<LastRequest>,
    deadlocks: Deadlocks,
    pub(super) options: Options,
    pub(super) counts: Arc<ReportCounts>,
    /// Indexed by the schedulers' numbers.
    pub(super) suspicions: Vec<Suspicions>,
    all_stuck: Slow,
}

/// The conditions that the monitor suspects on one scheduler.
#[derive(Default)]
pub(super) struct Suspicions {
    pub(super) baton: Slow,
    queue: Slow,
    /// The scheduler's count of workers that could not be created: at the last look, and when
    /// requests began to wait.
    not_created: (u64, u64),
    limit: ReportLimit,
}

impl MonitoredNode {
    fn is_quiet(&self) -> bool {
        (self.schedulers)().iter().all(|s| is_quiet(s))
    }

    fn look(&mut self, beat: Beat, found: &mut Found) -> bool {
        let now = beat.now;
        let all = (self.schedulers)();
        let places = all.iter().map(|s| s.index + 1).max().unwrap_or(0);
        self.suspicions.resize_with(places.max(self.suspicions.len()), Suspicions::default);
        for s in &all {
            let stuck = self.look_at_baton(s, beat).or_else(|| self.look_at_queue(s, beat));
            self.keep(stuck, now, found);
        }
        let stuck = self.look_at_all(&all, now);
        self.keep(stuck, now, found);
        self.look_at_waits(&all, now, found);
        !all.iter().all(|s| is_quiet(s))
    }

    /// Queues a report for delivery, unless there have been too many.
    fn keep(&mut self, report: Option<Report>, now: u64, found: &mut Found) {
        let Some(mut report) = report else { return };
        let limit = &mut self.suspicions[report.scheduler].limit;
        match limit.ask(now, self.options.per_minute) {
            Some(suppressed) => {
                report.suppressed = suppressed;
                let report = self.counts.reported(report);
                found.push((report, self.options.clone(), self.counts.clone()));
            }
            None => self.counts.suppressed(report.condition, 1),
        }
    }

    /// Returns true if a report of this scheduler would be left out. Then functions need not be
    /// named, which costs more than everything else together.
    pub(super) fn is_left_out(&mut self, scheduler: usize, now: u64) -> bool {
        if self.options.by_default {
            return report::is_closed(WarningKind::Stall);
        }
        self.suspicions[scheduler].limit.is_reached(now, self.options.per_minute)
    }

    /// Looks for requests that no worker picks up.
    fn look_at_queue(&mut self, s: &Scheduler, beat: Beat) -> Option<Report> {
        let now = beat.now;
        let options = &self.options;
        let suspicions = &mut self.suspicions[s.index];
        let age = unpicked(s, &mut suspicions.queue, beat);
        let not_created = s.counters.failed_to_create_worker.load(Ordering::Relaxed);
        let before = std::mem::replace(&mut suspicions.not_created.0, not_created);
        if age == 0 {
            suspicions.not_created.1 = before;
        }
        if age == 0 || suspicions.baton.reports > 0 {
            // No request waits, or it is known that a worker which does not yield is the reason.
            return None;
        }
        if options.by_default && is_reported_otherwise(s, suspicions, now, options) {
            return None;
        }
        let (condition, limit) = match is_exhausted(s) {
            true => (Condition::NoWorkers, options.no_workers),
            false => (Condition::NotPickedUp, options.not_picked_up),
        };
        let slow = &mut suspicions.queue;
        if !slow.is_measured(age, limit, 0) || age < ns(limit) || now < slow.next {
            return None;
        }
        let (_, process, _) = slow.used(0)?;
        slow.reported(now, options.repeat);
        let common = common_wait(std::iter::once(s));
        let failed = not_created > suspicions.not_created.1;
        let diagnosis = match (condition, common) {
            (Condition::NoWorkers, Some(reason)) => Diagnosis::WaitsFor(reason),
            (Condition::NoWorkers, None) => Diagnosis::WorkersWait,
            _ if failed => Diagnosis::CannotCreateWorkers,
            _ => Diagnosis::Unclear,
        };
        let mut report = Report::new(condition, diagnosis, age, s);
        (report.common_wait, report.process) = (common, Some(process));
        if options.by_default {
            report.sentence = sentence::of_queue(&report, s);
        }
        Some(report)
    }

    /// Looks whether no scheduler of the node picks up requests.
    fn look_at_all(&mut self, all: &[Arc<Scheduler>], now: u64) -> Option<Report> {
        let visible = || all.iter().filter(|s| s.options.visible);
        let suspicions = &self.suspicions;
        let since = visible().map(|s| match (s.queue.len(), &suspicions[s.index].queue) {
            (0, _) => now,
            (_, queue) => queue.since,
        });
        // All have been stuck since the last of them got stuck.
        let since = since.max().unwrap_or(now);
        let age = now.saturating_sub(since);
        if age < ns(self.options.all_stuck) {
            self.all_stuck.clear((0, 0), now);
            return None;
        }
        if now < self.all_stuck.next {
            return None;
        }
        self.all_stuck.reported(now, self.options.repeat);
        let common = common_wait(visible().map(|s| &**s));
        let diagnosis = common.map_or(Diagnosis::WorkersWait, Diagnosis::WaitsFor);
        let first = visible().next()?;
        let mut report = Report::new(Condition::AllStuck, diagnosis, age, first);
        report.queued = visible().map(|s| s.queue.len()).sum();
        report.common_wait = common;
        Some(report)
    }

    /// Looks for workers that wait for each other.
    fn look_at_waits(&mut self, all: &[Arc<Scheduler>], now: u64, found: &mut Found) {
        let limit = self.options.deadlock;
        for circle in self.deadlocks.look(all, limit, &self.last_request, now) {
            let with_names = !self.is_left_out(circle.at.index, now);
            let report = circle.break_up(all, &self.last_request, with_names);
            self.keep(report, now, found);
        }
    }

    /// Makes a report from a note: something that a worker has noticed itself.
    fn read_note(&mut self, note: &Note, now: u64, found: &mut Found) {
        if self.options.by_default {
            return;
        }
        if note.at.index >= self.suspicions.len() {
            // The scheduler was created after the look.
            self.suspicions.resize_with(note.at.index + 1, Suspicions::default);
        }
        let condition = match note.what {
            Noticed::SlowIo => Condition::SlowIo,
            Noticed::SlowSubmission => Condition::SlowSubmission,
        };
        // A short submission is normal: the thread may have lost the processor for a moment.
        let too_short = note.took_ns < ns(self.options.stall);
        if condition == Condition::SlowSubmission && too_short {
            return;
        }
        let mut report = Report::new(condition, Diagnosis::Disk, note.took_ns, &note.at);
        report.worker = Some(note.worker);
        (report.request, report.user, report.fd) = (note.request, note.user, Some(note.fd));
        if !self.is_left_out(note.at.index, now) {
            report.backtrace = unwind::frames_of(&note.addresses);
        }
        self.counts.suppressed(condition, note.more);
        self.suspicions[note.at.index].limit.left_out(note.more);
        self.keep(Some(report), now, found);
    }
}

/// Returns the sum of the counters that grow when a scheduler makes progress.
pub(super) fn progress(s: &Scheduler) -> u64 {
    let c = &s.counters;
    let away = &c.preemptive_switches;
    [&c.turns, &c.yields, &c.idle_switches, &c.routines, &c.requests_done, away]
        .map(|counter: &AtomicU64| counter.load(Ordering::Relaxed))
        .iter()
        .fold(0, |sum, n| sum.wrapping_add(*n))
}

fn is_quiet(s: &Scheduler) -> bool {
    s.inbox.is_asleep() && s.queue.is_empty()
}

/// Returns true if the scheduler is awake, but has neither a running worker nor work: it looks for
/// work before it sleeps.
pub(super) fn has_nothing_to_do(s: &Scheduler) -> bool {
    s.running().is_none() && !s.is_in_routine() && !has_ready_work(s)
}

/// Returns true if a request is queued, a message is in the inbox, or a worker is ready.
pub(super) fn has_ready_work(s: &Scheduler) -> bool {
    !s.queue.is_empty() || !s.inbox.is_empty() || s.counters.runnable.load(Ordering::Relaxed) > 0
}

/// Returns for how long requests have waited while none was picked up; 0 if no request waits.
fn unpicked(s: &Scheduler, slow: &mut Slow, beat: Beat) -> u64 {
    let fronts = if !s.queue.is_empty() { s.queue.fronts_seen() } else { [None; 2] };
    let Some(enqueued) = fronts.into_iter().flatten().next() else {
        slow.clear((0, 0), beat.now);
        return 0;
    };
    let begun = s.waits.row(WaitReason::THREADPOOL).begun.load(Ordering::Relaxed);
    slow.unchanged((begun, enqueued), beat)
}

/// Returns true if the maximum number of workers exists and each of them waits or is preemptive.
fn is_exhausted(s: &Scheduler) -> bool {
    let c = s.counters.read();
    let away = c.waiting + c.preemptive;
    c.workers as usize >= s.options.limit.hard
        && c.idle == 0
        && c.runnable == 0
        && away >= c.workers
}

/// Returns true if another message explains why requests wait, or if a worker that does not yield
/// is the reason. Such a worker is reported separately, unless the cause is outside the process.
fn is_reported_otherwise(
    s: &Scheduler,
    suspicions: &Suspicions,
    now: u64,
    options: &Options,
) -> bool {
    let not_created = s.counters.failed_to_create_worker.load(Ordering::Relaxed);
    s.standstill_told.load(Ordering::Relaxed)
        || not_created > suspicions.not_created.1
        || now.saturating_sub(suspicions.baton.since) >= ns(options.stall)
}

/// Returns the reason for which at least half of the workers wait, if there is one.
fn common_wait<'a>(schedulers: impl Iterator<Item = &'a Scheduler>) -> Option<WaitReason> {
    let mut count = vec![0usize; crate::record::reason::REASONS_MAX];
    let mut workers = 0;
    for waiter in schedulers.flat_map(Scheduler::left_over) {
        workers += 1;
        if waiter.is(State::Waiting) || waiter.is(State::Preemptive) {
            count[usize::from(waiter.reason.load(Ordering::Relaxed))] += 1;
        }
    }
    let (index, most) = count.iter().enumerate().max_by_key(|(_, n)| **n)?;
    (*most > 0 && most * 2 >= workers).then(|| WaitReason::from_index(index))
}
