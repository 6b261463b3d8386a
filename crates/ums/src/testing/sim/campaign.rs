//! A campaign: runs a story with very many seeds, on all processors, until one seed fails.
//!
//! ```text
//!   parent ---- starts its program again, once for each processor ----> part 0, part 1, ..
//!          <--- "begin 12", "end 12 5301", a report ----------------
//! ```
//!
//! Each part is a process of its own. If a story ends its process (by a crash or an abort) or
//! hangs, the seed that it had begun counts as failed, and the other parts are not affected.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::check::{Check, report};
use super::{replays, run_plan};
use crate::os::linux::cpus;

/// The environment variable that gives a part its number and the number of parts: `number/of`.
const PART: &str = "UMS_CAMPAIGN_PART";
/// The descriptors and threads that a process has after this many worlds count as its normal
/// number.
const WARM: u64 = 50;
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// A seed that takes longer than this is suspect, because a story takes milliseconds.
const LATE_AFTER: Duration = Duration::from_secs(30);
/// A suspect seed counts as hanging once it has had a processor for this much more time.
const HANGS_AFTER: Duration = Duration::from_secs(30);

/// The options of [`campaign`].
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The seeds, the faults, and the command that replays one.
    pub check: Check,
    /// Number of processes.
    pub jobs: usize,
}

/// Runs a story with each seed of a campaign. It starts the program again with the same arguments,
/// once for each job, so a program should do nothing else before it calls this.
pub fn campaign(campaign: &Campaign, story: impl Fn() + Send + Sync + 'static) -> ExitCode {
    let story: super::shrink::Story = Arc::new(story);
    let part = std::env::var(PART).ok().and_then(|part| {
        let (number, of) = part.split_once('/')?;
        Some((number.parse::<usize>().ok()?, of.parse::<usize>().ok()?))
    });
    match part {
        Some((number, of)) => run_part(&campaign.check, &story, number, of.max(1)),
        None if replays() => run_part(&campaign.check, &story, 0, 1),
        None => Parent::start(campaign).map_or_else(
            |error| {
                println!("the parts of the campaign could not be started: {error}");
                ExitCode::FAILURE
            },
            Parent::watch,
        ),
    }
}

/// Returns the numbers of descriptors and threads of this process.
fn held() -> [usize; 2] {
    let count = |folder: &str| std::fs::read_dir(folder).map_or(0, Iterator::count);
    [count("/proc/self/fd"), count("/proc/self/task")]
}

fn run_part(check: &Check, story: &super::shrink::Story, number: usize, of: usize) -> ExitCode {
    let allowed = cpus::Cpus::read().allowed;
    if of > 1 && !allowed.is_empty() {
        let _ = cpus::pin_to(allowed[number % allowed.len()]);
    }
    let mut needs = None;
    let mut out = std::io::stdout();
    for (nth, plan) in (0..).zip(check.plans().skip(number).step_by(of)) {
        if writeln!(out, "begin {}", plan.seed).is_err() {
            // The parent has ended.
            return ExitCode::FAILURE;
        }
        let told = Arc::clone(story);
        let ended = run_plan(&plan, move || told());
        if ended.failed.is_some() {
            let _ = writeln!(out, "{}", report(check, &plan, &ended, story));
            return ExitCode::FAILURE;
        }
        let _ = writeln!(out, "end {} {}", plan.seed, ended.steps);
        if nth == WARM {
            needs = Some(held());
        }
    }
    if let (Some(before), now) = (needs, held())
        && now.iter().zip(before).any(|(now, before)| *now > before)
    {
        let _ = writeln!(out, "leaked: descriptors and threads were {before:?} and are {now:?}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// A message from a part.
enum Said {
    Line(usize, String),
    /// The part has closed its output.
    Ended(usize),
}

struct Part {
    child: Child,
    /// The seed that the part has begun, and when.
    at: Option<(u64, Instant)>,
    /// When the seed became suspect, and how long the part's threads had waited for a processor by
    /// then.
    late: Option<(Instant, Duration)>,
    report: String,
    over: bool,
}

impl Part {
    /// Returns the seed in which the part hangs, if it does. The time that its threads wait for a
    /// processor does not count; the time that they compute or sleep does.
    fn hangs(&mut self) -> Option<u64> {
        let (_, since) = self.at?;
        if since.elapsed() < LATE_AFTER {
            self.late = None;
            return None;
        }
        self.hangs_still(starved(self.child.id()))
    }

    /// Returns the seed that `hangs` suspects, if it counts as hanging. `starved` is how long the
    /// part's threads have waited for a processor so far.
    fn hangs_still(&mut self, starved: Duration) -> Option<u64> {
        let (seed, _) = self.at?;
        let (late, before) = *self.late.get_or_insert((Instant::now(), starved));
        let had = late.elapsed().saturating_sub(starved.saturating_sub(before));
        (had > HANGS_AFTER).then_some(seed)
    }
}

/// Returns how long the live threads of a process have waited for a processor, in sum.
fn starved(process: u32) -> Duration {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else {
        return Duration::ZERO;
    };
    tasks.flatten().filter_map(|task| starved_thread(&task.path())).sum()
}

/// Returns the same for one thread, given by its folder in `/proc`.
fn starved_thread(task: &Path) -> Option<Duration> {
    let text = std::fs::read_to_string(task.join("schedstat")).ok()?;
    // The fields: nanoseconds on a processor, nanoseconds of waiting for one, number of time
    // slices.
    text.split(' ').nth(1)?.parse().ok().map(Duration::from_nanos)
}

struct Parent {
    parts: Vec<Part>,
    said: Receiver<Said>,
    began: Instant,
    seeds: u64,
    command: String,
    steps: Vec<u64>,
    points: u64,
    told: Instant,
}

impl Parent {
    fn start(campaign: &Campaign) -> std::io::Result<Parent> {
        let (say, said) = channel();
        let mut parts = Vec::new();
        let jobs = campaign.jobs.max(1);
        for number in 0..jobs {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(std::env::args_os().skip(1)).env(PART, format!("{number}/{jobs}"));
            // Stories panic on purpose, very often. These messages are not printed.
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
            let out = child.stdout.take();
            let say = say.clone();
            std::thread::spawn(move || out.map(|out| listen(number, BufReader::new(out), &say)));
            parts.push(Part { child, at: None, late: None, report: String::new(), over: false });
        }
        let (began, told) = (Instant::now(), Instant::now());
        let seeds = campaign.check.seeds.clone().count() as u64;
        let (command, steps) = (campaign.check.command.clone(), Vec::new());
        Ok(Parent { parts, said, began, seeds, command, steps, points: 0, told })
    }

    fn watch(mut self) -> ExitCode {
        let failed = loop {
            match self.said.recv_timeout(Duration::from_secs(1)) {
                Ok(Said::Line(from, line)) => self.receive(from, &line),
                Ok(Said::Ended(from)) => {
                    if let Some(failed) = self.ended(from) {
                        break Some(failed);
                    }
                    if self.parts.iter().all(|part| part.over) {
                        break None;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break None,
            }
            if let Some(seed) = self.parts.iter_mut().find_map(Part::hangs) {
                break Some(format!("seed {seed} hangs\nreplay: UMS_SEED={seed} {}", self.command));
            }
            if self.told.elapsed() > PROGRESS_EVERY {
                self.told = Instant::now();
                println!("{}", self.so_far());
            }
        };
        for part in &mut self.parts {
            let _ = part.child.kill();
            let _ = part.child.wait();
        }
        println!("{}", self.so_far());
        failed
            .inspect(|failed| println!("{failed}"))
            .map_or(ExitCode::SUCCESS, |_| ExitCode::FAILURE)
    }

    fn receive(&mut self, from: usize, line: &str) {
        let part = &mut self.parts[from];
        let mut words = line.split(' ');
        let (what, seed) = (words.next(), words.next().and_then(|seed| seed.parse().ok()));
        match (what, seed) {
            (Some("begin"), Some(seed)) => part.at = Some((seed, Instant::now())),
            (Some("end"), Some(_)) => {
                part.at = None;
                let steps = words.next().and_then(|steps| steps.parse().ok()).unwrap_or(0);
                self.steps.push(steps);
                self.points += steps;
            }
            _ => part.report.push_str(&format!("{line}\n")),
        }
    }

    /// Records that a part has ended. Returns the description of its failure, if it failed.
    fn ended(&mut self, from: usize) -> Option<String> {
        let part = &mut self.parts[from];
        part.over = true;
        let status = part.child.wait();
        match (status, part.at) {
            (Ok(status), _) if status.success() => None,
            (_, _) if !part.report.is_empty() => Some(part.report.clone()),
            (status, Some((seed, _))) => {
                let status = status.map_or_else(|e| e.to_string(), |status| status.to_string());
                Some(format!(
                    "seed {seed} ends its process: {status}\nreplay: UMS_SEED={seed} {}",
                    self.command
                ))
            }
            (status, None) => Some(format!("a part ended by itself: {status:?}")),
        }
    }

    fn so_far(&mut self) -> String {
        self.steps.sort_unstable();
        let median = self.steps.get(self.steps.len() / 2).copied().unwrap_or(0);
        let seconds = self.began.elapsed().as_secs_f64();
        let rate = self.points as f64 / seconds;
        format!(
            "{} of {} seeds in {seconds:.0} s: {} points, median {median} a seed, \
             {rate:.0} points/s",
            self.steps.len(),
            self.seeds,
            self.points
        )
    }
}

fn listen(number: usize, out: impl BufRead, say: &Sender<Said>) {
    for line in out.lines().map_while(Result::ok) {
        if say.send(Said::Line(number, line)).is_err() {
            return;
        }
    }
    let _ = say.send(Said::Ended(number));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(begun: Instant) -> Part {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let at = Some((7, begun));
        Part { child, at, late: None, report: String::new(), over: false }
    }

    fn end(mut part: Part) {
        part.child.kill().unwrap();
        part.child.wait().unwrap();
    }

    #[test]
    fn a_seed_that_sleeps_for_long_hangs_and_one_that_is_starved_does_not() {
        let Some(long_ago) = Instant::now().checked_sub(LATE_AFTER + HANGS_AFTER) else { return };
        let mut young = part(Instant::now());
        assert_eq!((young.hangs(), young.late), (None, None));
        end(young);
        let mut late = part(long_ago);
        assert_eq!(late.hangs(), None);
        let (_, before) = late.late.unwrap();
        late.late = Some((long_ago, before));
        assert_eq!(late.hangs_still(before + LATE_AFTER + HANGS_AFTER), None);
        assert_eq!(late.hangs(), Some(7));
        end(late);
    }

    #[test]
    fn two_threads_on_one_processor_starve_each_other() {
        let cpu = cpus::Cpus::read().allowed[0];
        let until = Instant::now() + Duration::from_millis(100);
        let compute = move || {
            cpus::pin_to(cpu).unwrap();
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            starved_thread(Path::new("/proc/thread-self")).unwrap()
        };
        let threads = [std::thread::spawn(compute), std::thread::spawn(compute)];
        let starved = threads.map(|thread| thread.join().unwrap());
        assert!(starved[0].max(starved[1]) > Duration::ZERO);
    }
}
