//! A campaign: very many seeds of one story, on every processor, until one fails.
//!
//! ```text
//!   parent ---- starts itself again, once for each processor ----> part 0, part 1, ..
//!          <--- "begin 12", "end 12 5301", a report ----------------
//! ```
//!
//! A part is a process: a story that ends its process (a crash, an abort) or hangs is a failure of the seed that it had
//! begun, and what one part does to its process the others do not see.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::check::{Check, report};
use super::{replays, run_plan};
use crate::os::linux::cpus;

/// Which part a process is: `number/of`.
const PART: &str = "UMS_CAMPAIGN_PART";
/// After so many worlds what a process holds is taken as what it needs.
const WARM: u64 = 50;
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// A seed that takes longer than this hangs: a story takes milliseconds.
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// What [`campaign`] is told.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The seeds, the faults, and the command that replays one.
    pub check: Check,
    /// How many processes.
    pub jobs: usize,
}

/// Runs a story with each seed of a campaign. The process that calls this is started again with its own arguments, once
/// for each job, so nothing but this is to be done before.
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

/// What a process holds: descriptors, threads.
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
            // Who started it is gone.
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

/// What a part says.
enum Said {
    Line(usize, String),
    /// It has closed its output.
    Ended(usize),
}

struct Part {
    child: Child,
    /// The seed that it has begun, and when.
    at: Option<(u64, Instant)>,
    report: String,
    over: bool,
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
            // What stories panic with on purpose nobody wants to read a hundred thousand times.
            let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
            let out = child.stdout.take();
            let say = say.clone();
            std::thread::spawn(move || out.map(|out| listen(number, BufReader::new(out), &say)));
            parts.push(Part { child, at: None, report: String::new(), over: false });
        }
        let (began, told) = (Instant::now(), Instant::now());
        let seeds = campaign.check.seeds.clone().count() as u64;
        let (command, steps) = (campaign.check.command.clone(), Vec::new());
        Ok(Parent { parts, said, began, seeds, command, steps, points: 0, told })
    }

    fn watch(mut self) -> ExitCode {
        let failed = loop {
            match self.said.recv_timeout(Duration::from_secs(1)) {
                Ok(Said::Line(from, line)) => self.hear(from, &line),
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
            let hangs =
                |part: &&Part| part.at.is_some_and(|(_, since)| since.elapsed() > HANGS_AFTER);
            if let Some((seed, _)) = self.parts.iter().find(hangs).and_then(|part| part.at) {
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

    fn hear(&mut self, from: usize, line: &str) {
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

    /// A part has come to its end. Some: it failed.
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
            "{} of {} seeds in {seconds:.0} s: {} points, median {median} a seed, {rate:.0} points/s",
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
