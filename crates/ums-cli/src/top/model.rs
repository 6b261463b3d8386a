//! The model: two readings of a process, and the values computed from them. It draws nothing.
//!
//! Rates are differences of counters over the time between the two readings, by the process's own
//! clock; before the second reading there are none.

use super::reading::{Reading, Row};
use crate::asking::printable;

/// The model of the screen.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// The last reading.
    pub now: Reading,
    /// The reading before the last.
    before: Option<Reading>,
    /// The worker whose backtrace was requested last, and the lines of the backtrace, or the reason
    /// why there is none.
    pub stack: Option<((i64, i64), Vec<String>)>,
}

/// A scheduler.
#[derive(Clone, Debug)]
pub struct Scheduler {
    /// The scheduler's name: its number, or the name that a hidden scheduler was given.
    pub name: String,
    /// Whether the scheduler is hidden.
    pub is_hidden: bool,
    /// The share of the time in which the scheduler was not asleep, 0 to 1.
    pub busy: Option<f64>,
    /// Context switches per second.
    pub switches: Option<f64>,
    /// Requests carried out per second.
    pub done: Option<f64>,
    /// The number of runnable workers. The next three fields are the numbers of waiting, idle and
    /// preemptive workers.
    pub runnable: i64,
    pub waiting: i64,
    pub idle: i64,
    pub preemptive: i64,
    /// The number of workers. The next field is the most that there may be.
    pub workers: i64,
    pub workers_max: i64,
    /// Requests without a worker.
    pub queued: i64,
    /// I/O requests outstanding.
    pub io: i64,
}

impl Scheduler {
    /// Returns whether requests wait for a worker and all workers are waiting themselves.
    pub fn is_out_of_workers(&self) -> bool {
        self.queued > 0 && self.workers >= self.workers_max && self.idle == 0 && self.runnable == 0
    }
}

/// Returns the schedulers with the most queued and runnable requests, and then the busiest, at most
/// `most`, in the order in which they were.
pub fn busiest(all: Vec<Scheduler>, most: usize) -> Vec<Scheduler> {
    let load = |s: &Scheduler| (s.queued, s.runnable, (s.busy.unwrap_or(0.0) * 1e3) as i64);
    let mut loads: Vec<_> = all.iter().map(load).enumerate().collect();
    loads.sort_by_key(|(at, load)| (std::cmp::Reverse(*load), *at));
    let mut places: Vec<_> = loads.into_iter().take(most).map(|(at, _)| at).collect();
    places.sort_unstable();
    let shown = |(at, s)| places.binary_search(&at).is_ok().then_some(s);
    all.into_iter().enumerate().filter_map(shown).collect()
}

/// The waits of one reason.
#[derive(Clone, Debug)]
pub struct Wait {
    /// The reason.
    pub name: String,
    /// The reason's class.
    pub class: String,
    /// The number of current waits.
    pub waiting: i64,
    /// The number of waits that ended, per second.
    pub rate: Option<f64>,
    /// Waiting time, in microseconds per second.
    pub us_rate: Option<f64>,
    /// The part of `us_rate` between the signal and running again.
    pub signal_us_rate: Option<f64>,
    /// The number of ended waits; below, their total time and the longest.
    pub count: i64,
    pub us: i64,
    pub max_us: i64,
}

/// The monitor's reports of one condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The condition.
    pub condition: String,
    /// How often the condition was reported.
    pub reports: i64,
    /// How often a report was suppressed.
    pub suppressed: i64,
    /// How often the condition was reported since the previous reading.
    pub new: i64,
}

/// Sums over the visible schedulers.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    pub schedulers: usize,
    pub hidden: usize,
    /// The kind of the workers.
    pub kind: String,
    pub workers: i64,
    pub workers_max: i64,
    pub queued: i64,
    pub users: usize,
    pub users_busy: usize,
    pub switches: Option<f64>,
    pub done: Option<f64>,
}

impl Model {
    /// Stores the next reading; the current one becomes the previous one.
    pub fn read(&mut self, reading: Reading) {
        let last = std::mem::replace(&mut self.now, reading);
        // Another process may listen at the same path now. Its counters cannot be compared.
        self.before = (last.pid == self.now.pid).then_some(last);
    }

    /// Stores the answer to the request for a worker's backtrace.
    pub fn read_stack(
        &mut self,
        worker: (i64, i64),
        answer: Result<serde_json::Map<String, serde_json::Value>, String>,
    ) {
        let lines = match answer {
            Ok(answer) => {
                let text = answer.get("stacks").and_then(|stacks| stacks[0]["text"].as_str());
                let frames = text.unwrap_or("").lines().skip(1);
                frames.map(|line| printable(line.trim().trim_start_matches("at "))).collect()
            }
            Err(sentence) => vec![sentence],
        };
        self.stack = Some((worker, lines));
    }

    /// Returns the seconds between the two readings.
    fn span(&self) -> Option<f64> {
        let span = self.now.now_us - self.before.as_ref()?.now_us;
        (span > 0).then(|| span as f64 / 1e6)
    }

    /// Returns how much a counter grew per second since the previous reading's row with the same
    /// key.
    fn rate(&self, view: &str, key: &[&str], row: &Row<'_>, counter: &str) -> Option<f64> {
        Some(self.growth(view, key, row, counter)? as f64 / self.span()?)
    }

    fn growth(&self, view: &str, key: &[&str], row: &Row<'_>, counter: &str) -> Option<i64> {
        let same = |other: &Row<'_>| {
            key.iter().all(|column| {
                other.some(column) == row.some(column) && other.text(column) == row.text(column)
            })
        };
        let before = self.before.as_ref()?;
        let old = before.rows(view).find(same).map_or(0, |row| row.number(counter));
        // A smaller value than before means that the counter was reset.
        Some(match row.number(counter) - old {
            less if less < 0 => row.number(counter),
            more => more,
        })
    }

    /// Returns all schedulers, visible ones first.
    pub fn schedulers(&self) -> Vec<Scheduler> {
        const VIEW: &str = "ums_schedulers";
        let one = |row: Row<'_>| {
            let rate = |counter| self.rate(VIEW, &["scheduler_id"], &row, counter);
            Scheduler {
                name: row.text("name"),
                is_hidden: row.text("status").starts_with("HIDDEN"),
                busy: rate("idle_time_us").map(|idle| (1.0 - idle / 1e6).clamp(0.0, 1.0)),
                switches: rate("context_switches_count"),
                done: rate("requests_done"),
                runnable: row.number("runnable_tasks_count"),
                waiting: row.number("waiting_tasks_count"),
                idle: row.number("idle_workers_count"),
                preemptive: row.number("preemptive_tasks_count"),
                workers: row.number("current_workers_count"),
                workers_max: row.number("max_workers"),
                queued: row.number("work_queue_count"),
                io: row.number("pending_io_count"),
            }
        };
        self.now.rows(VIEW).map(one).collect()
    }

    /// Returns the waits by reason. Those with the most waiting time since the previous reading
    /// come first.
    pub fn waits(&self) -> Vec<Wait> {
        const VIEW: &str = "ums_wait_stats";
        let one = |row: Row<'_>| {
            let rate = |counter| self.rate(VIEW, &["wait_type"], &row, counter);
            Wait {
                name: row.text("wait_type"),
                class: row.text("class"),
                waiting: (row.number("waiting_tasks_count") - row.number("completed_waits")).max(0),
                rate: rate("completed_waits"),
                us_rate: rate("wait_time_us"),
                signal_us_rate: rate("signal_wait_time_us"),
                count: row.number("completed_waits"),
                us: row.number("wait_time_us"),
                max_us: row.number("max_wait_time_us"),
            }
        };
        let mut waits: Vec<_> = self.now.rows(VIEW).map(one).collect();
        let weight = |wait: &Wait| (wait.us_rate.unwrap_or(0.0), wait.waiting as f64);
        waits.sort_by(|a, b| {
            let ((a_us, a_now), (b_us, b_now)) = (weight(a), weight(b));
            b_us.total_cmp(&a_us).then(b_now.total_cmp(&a_now)).then(a.name.cmp(&b.name))
        });
        waits
    }

    /// Returns the monitor's reports for every condition; empty if there is no monitor.
    pub fn findings(&self) -> Vec<Finding> {
        const VIEW: &str = "ums_monitor";
        let one = |row: Row<'_>| Finding {
            condition: row.text("condition"),
            reports: row.number("reports_count"),
            suppressed: row.number("suppressed_count"),
            new: self.growth(VIEW, &["condition"], &row, "reports_count").unwrap_or(0),
        };
        self.now.rows(VIEW).map(one).collect()
    }

    /// Returns the sums for the head of the screen.
    pub fn totals(&self) -> Totals {
        let all = self.schedulers();
        let visible = || all.iter().filter(|s| !s.is_hidden);
        let sum = |of: fn(&Scheduler) -> i64| visible().map(of).sum();
        let rate = |of: fn(&Scheduler) -> Option<f64>| visible().map(of).sum();
        let users = || self.now.rows("ums_users");
        Totals {
            schedulers: visible().count(),
            hidden: all.len() - visible().count(),
            kind: self
                .now
                .rows("ums_schedulers")
                .next()
                .map(|row| row.text("workers"))
                .unwrap_or_default(),
            workers: sum(|s| s.workers),
            workers_max: sum(|s| s.workers_max),
            queued: sum(|s| s.queued),
            users: users().count(),
            users_busy: users().filter(|row| row.number("is_busy") == 1).count(),
            switches: rate(|s| s.switches),
            done: rate(|s| s.done),
        }
    }

    /// Returns the row of a worker, if it still exists.
    pub fn worker(&self, id: (i64, i64)) -> Option<Row<'_>> {
        self.now.rows("ums_workers").find(|row| worker_id(row) == id)
    }

    /// Returns the chain of holders that a worker waits for, a sentence for each.
    pub fn chain(&self, worker: (i64, i64)) -> Vec<String> {
        let mut seen = vec![worker];
        let mut out = Vec::new();
        let mut at = worker;
        while let Some(wait) = self.now.rows("ums_waiting_tasks").find(|row| worker_id(row) == at) {
            let resource = match wait.number("resource") {
                0 => String::new(),
                resource => format!(" of {resource:#x}"),
            };
            let for_ms = span_text(wait.number("wait_duration_ms") * 1000);
            let name = wait.text("wait_type");
            out.push(format!("{} waits for {name}{resource}, {for_ms} so far", worker_name(at)));
            let user = wait.number("blocking_user_id");
            let holder = wait.some("blocking_scheduler_id").zip(wait.some("blocking_worker_id"));
            match holder {
                Some(next) => {
                    out.push(format!("held by {}{}", worker_name(next), of_user(user)));
                    if seen.contains(&next) {
                        out.push("which waits itself: a deadlock".into());
                        break;
                    }
                    seen.push(next);
                    at = next;
                }
                None if user != 0 => {
                    out.push(format!("held by user {user}: {}", self.doing(user)));
                    break;
                }
                None => break,
            }
        }
        out
    }

    /// Describes what a user that holds a lock is doing.
    fn doing(&self, user: i64) -> String {
        let request = self.now.rows("ums_requests").find(|row| row.number("user_id") == user);
        match request {
            Some(row) => {
                format!("its request {} is {}", row.number("request_id"), row.text("task_state"))
            }
            None => "it has no request; the server waits for its client".into(),
        }
    }
}

/// Returns the numbers of a row's scheduler and worker.
pub fn worker_id(row: &Row<'_>) -> (i64, i64) {
    (row.number("scheduler_id"), row.number("worker_id"))
}

/// Returns, for example, `worker 3 of scheduler 0`.
fn worker_name((scheduler, worker): (i64, i64)) -> String {
    format!("worker {worker} of scheduler {scheduler}")
}

fn of_user(user: i64) -> String {
    if user == 0 { String::new() } else { format!(" for user {user}") }
}

/// Formats a time with three digits and a unit.
pub fn span_text(us: i64) -> String {
    let s = us as f64 / 1e6;
    match us {
        us if us < 1_000 => format!("{us} us"),
        us if us < 10_000 => format!("{:.2} ms", s * 1e3),
        us if us < 100_000 => format!("{:.1} ms", s * 1e3),
        us if us < 1_000_000 => format!("{:.0} ms", s * 1e3),
        us if us < 10_000_000 => format!("{s:.2} s"),
        us if us < 60_000_000 => format!("{s:.1} s"),
        us if us < 3_600_000_000 => format!("{}m{:02}s", us / 60_000_000, us / 1_000_000 % 60),
        _ => format!("{}h{:02}m", us / 3_600_000_000, us / 60_000_000 % 60),
    }
}

/// Formats a number: in full up to 99,999, then with a unit.
pub fn count_text(n: f64) -> String {
    match n {
        n if n < 10.0 && n.fract() != 0.0 => format!("{n:.1}"),
        n if n < 99_999.5 => format!("{n:.0}"),
        n if n < 9.995e6 => format!("{:.0}k", n / 1e3),
        n if n < 9.995e9 => format!("{:.0}M", n / 1e6),
        n => format!("{:.0}G", n / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(text: &str) -> Reading {
        Reading::of(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn rates_are_differences_over_the_processs_own_time_and_survive_a_reset() {
        let mut model = Model::default();
        let at = |now_us: i64, idle: i64, switches: i64| {
            reading(&format!(
                r#"{{"pid":1,"now_us":{now_us},"tables":{{"ums_schedulers":[{{"scheduler_id":0,
                "idle_time_us":{idle},"context_switches_count":{switches}}}]}}}}"#
            ))
        };
        model.read(at(1_000_000, 0, 100));
        assert_eq!(model.schedulers()[0].busy, None, "one reading is no rate");
        model.read(at(3_000_000, 500_000, 300));
        let s = model.schedulers().remove(0);
        assert_eq!((s.busy, s.switches), (Some(0.75), Some(100.0)));
        model.read(at(4_000_000, 1_500_000, 50));
        assert_eq!(model.schedulers()[0].switches, Some(50.0), "counted anew");
    }

    #[test]
    fn a_wait_chain_ends_at_a_holder_that_does_not_wait_or_at_its_start() {
        let wait = |worker: i64, next: &str| {
            format!(
                r#"{{"scheduler_id":0,"worker_id":{worker},"wait_type":"MUTEX","resource":255,
                "wait_duration_ms":5,"blocking_scheduler_id":{next},"blocking_user_id":7}}"#
            )
        };
        let waits = [
            wait(1, r#"1,"blocking_worker_id":2"#),
            wait(3, "null"),
            wait(4, r#"0,"blocking_worker_id":5"#),
            wait(5, r#"0,"blocking_worker_id":4"#),
        ];
        let mut model = Model::default();
        let tables = format!(r#"{{"tables":{{"ums_waiting_tasks":[{}]}}}}"#, waits.join(","));
        model.read(reading(&tables));
        let chain = model.chain((0, 1));
        assert_eq!(chain[0], "worker 1 of scheduler 0 waits for MUTEX of 0xff, 5.00 ms so far");
        assert_eq!(chain[1..], ["held by worker 2 of scheduler 1 for user 7"]);
        let idle = "held by user 7: it has no request; the server waits for its client";
        assert_eq!(model.chain((0, 3))[1], idle);
        assert_eq!(model.chain((0, 4)).last().unwrap(), "which waits itself: a deadlock");
        assert!(model.chain((0, 9)).is_empty());
    }

    #[test]
    fn times_and_numbers_are_short() {
        let spans = [
            (7, "7 us"),
            (1_500, "1.50 ms"),
            (65_000, "65.0 ms"),
            (2_500_000, "2.50 s"),
            (75_000_000, "1m15s"),
            (7_260_000_000, "2h01m"),
        ];
        for (us, text) in spans {
            assert_eq!(span_text(us), text);
        }
        for (n, text) in [(0.0, "0"), (2.5, "2.5"), (12_345.0, "12345"), (123_456.0, "123k")] {
            assert_eq!(count_text(n), text);
        }
    }
}
