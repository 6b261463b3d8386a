//! `ums demo block`: shows, with times, what happens when a worker blocks in the kernel.
//!
//! There are two workers and one scheduler, on one processor. The first worker reads from an empty
//! pipe and blocks. The scheduler is called, and executes the second worker, which computes. After
//! 5 ms a plain thread writes into the pipe. The first worker wakes, stops at its gate, and waits
//! on the completion list until the second worker yields at 10 ms.

use std::collections::VecDeque;
use std::io::{PipeReader, Read, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ums::watch::{Mechanism, mechanism};
use ums::windows::{self, CompletionList, Reason, SchedulerAction, WorkerContext};

use crate::words::counted;

/// Options of `ums demo`.
#[derive(clap::Args)]
pub struct DemoArgs {
    /// What to show.
    #[arg(value_enum)]
    what: What,
    /// Block in an interposed function of the C library rather than in a direct system call. This
    /// is always so where only interposed calls can be detected.
    #[arg(long)]
    interposed: bool,
    /// Number of rounds, of about 10 ms each; the last is shown in full.
    #[arg(long, value_name = "N", default_value_t = 20)]
    rounds: usize,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// One worker blocks while another computes.
    Block,
}

/// The events of one round.
const MOMENTS: [&str; 8] = [
    "W1 calls read on an empty pipe",
    "the scheduler is called: W1 has blocked",
    "W2 runs its code",
    "a plain thread writes into the pipe",
    "W1 has stopped at its gate: it is on the completion list and does not run",
    "W2 yields",
    "the scheduler executes W1",
    "W1 runs its code: read gave 1",
];

struct Film {
    began: Instant,
    times: [AtomicU64; MOMENTS.len()],
    early: OnceLock<bool>,
}

impl Film {
    fn at(&self, moment: usize) {
        self.times[moment].store(self.began.elapsed().as_nanos() as u64, Ordering::SeqCst);
    }

    /// Returns the time since the first worker called `read`; zero before that.
    fn since_the_call(&self) -> Duration {
        match self.times[0].load(Ordering::SeqCst) {
            0 => Duration::ZERO,
            call => self.began.elapsed().saturating_sub(Duration::from_nanos(call)),
        }
    }

    fn us(&self, moment: usize) -> f64 {
        let at = |n: usize| self.times[n].load(Ordering::SeqCst) as f64 / 1000.0;
        at(moment) - at(0)
    }
}

/// Runs the command.
pub fn run(args: &DemoArgs) -> ExitCode {
    let What::Block = args.what;
    match play(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ums demo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn play(args: &DemoArgs) -> Result<(), Box<dyn std::error::Error>> {
    let mechanism = mechanism()?;
    let interposed = args.interposed || mechanism == Mechanism::Calls;
    let films: Result<Vec<_>, _> = (0..args.rounds.max(1)).map(|_| film(interposed)).collect();
    show(&films?, mechanism, interposed);
    Ok(())
}

fn show(films: &[Arc<Film>], mechanism: Mechanism, interposed: bool) {
    let how = if interposed { "an interposed call" } else { "a direct system call" };
    println!("Two workers, W1 and W2, on one processor. W1 blocks in {how}.");
    println!("How that is noticed: {} (see ums probe).", mechanism.name());
    let Some(last) = films.last() else { return };
    println!(
        "The last of {}, in microseconds since W1 called read:",
        counted(films.len(), "round")
    );
    in_order(last.times.each_ref().map(|time| time.load(Ordering::SeqCst)))
        .iter()
        .for_each(|line| println!("{line}"));
    let median = |from: usize, to: usize| {
        let mut spans: Vec<f64> = films.iter().map(|film| film.us(to) - film.us(from)).collect();
        spans.sort_by(f64::total_cmp);
        spans[spans.len() / 2]
    };
    let early = films.iter().filter(|film| film.early.get() == Some(&true)).count();
    println!("Medians of all rounds, in microseconds:");
    println!("{:>12.2}  from W1's block to the call of the scheduler", median(0, 1));
    println!("{:>12.2}  from W1's block to W2's code", median(0, 2));
    println!("{:>12.2}  from W2's yield to W1's code", median(5, 7));
    println!("Rounds in which W1 ran its code before the scheduler executed it: {early}");
}

/// Returns a line for each moment, in the order of time: microseconds since the first. What did not
/// happen (0) comes last.
fn in_order(times: [u64; MOMENTS.len()]) -> Vec<String> {
    let mut moments: Vec<_> = times.into_iter().zip(MOMENTS).collect();
    moments.sort_by_key(|(time, _)| if *time == 0 { u64::MAX } else { *time });
    let since = |time: u64| (time as f64 - times[0] as f64) / 1000.0;
    let line = |(time, text): (u64, &str)| match time {
        0 => format!("{:>12}  {text}", "-"),
        time => format!("{:>12.2}  {text}", since(time)),
    };
    moments.into_iter().map(line).collect()
}

fn film(interposed: bool) -> Result<Arc<Film>, Box<dyn std::error::Error>> {
    let film = Arc::new(Film {
        began: Instant::now(),
        times: [const { AtomicU64::new(0) }; MOMENTS.len()],
        early: OnceLock::new(),
    });
    let list = CompletionList::new()?;
    let (mut reader, writer) = std::io::pipe()?;
    let mine = film.clone();
    let first = WorkerContext::spawn(&list, move || {
        mine.at(0);
        let read = read_one(&mut reader, interposed);
        mine.at(7);
        assert_eq!(read, 1, "one byte was written");
    })?;
    let mine = film.clone();
    WorkerContext::spawn(&list, move || {
        mine.at(2);
        while mine.since_the_call() < Duration::from_millis(10) {
            std::hint::spin_loop();
        }
        mine.at(5);
        let _ = windows::thread_yield(0);
    })?;
    let other = other_side(&film, &list, writer);
    schedule(&film, &list, &first)?;
    let _ = other.join();
    Ok(film)
}

fn read_one(reader: &mut PipeReader, interposed: bool) -> usize {
    let mut byte = [0];
    match interposed {
        true => reader.read(&mut byte).unwrap_or(0),
        // A direct system call, which no interposed function sees.
        false => rustix::io::read(&*reader, &mut byte).unwrap_or(0),
    }
}

/// Runs on the plain thread, on another processor: writes into the pipe, and watches the first
/// worker's state.
fn other_side(
    film: &Arc<Film>,
    list: &CompletionList,
    mut writer: std::io::PipeWriter,
) -> std::thread::JoinHandle<()> {
    let (film, list) = (film.clone(), list.clone());
    std::thread::spawn(move || {
        // On a busy computer the workers may begin late.
        while film.times[0].load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
        std::thread::sleep(Duration::from_millis(5).saturating_sub(film.since_the_call()));
        film.at(3);
        let _ = writer.write_all(b"x");
        let patience = Instant::now();
        while list.is_empty() && patience.elapsed() < Duration::from_millis(100) {
            std::hint::spin_loop();
        }
        if !list.is_empty() {
            film.at(4);
        }
        let ran = film.times[7].load(Ordering::SeqCst) != 0;
        let executed = film.times[6].load(Ordering::SeqCst) != 0;
        let _ = film.early.set(ran && !executed);
    })
}

fn schedule(
    film: &Film,
    list: &CompletionList,
    first: &WorkerContext,
) -> Result<(), windows::EnterError> {
    let mut ready = VecDeque::new();
    let mut executed_first = 0;
    windows::enter_scheduling_mode(|scheduler, reason| {
        match reason {
            Reason::Blocked { .. } if executed_first == 1 && film.us(1) <= 0.0 => film.at(1),
            Reason::Yield { worker, .. } => ready.push_back(worker),
            _ => {}
        }
        loop {
            // At first the workers are in the order of their creation. Later a worker that woke
            // comes before one that yielded.
            for worker in list.poll().filter(|worker| !worker.is_terminated()) {
                if executed_first == 0 { ready.push_back(worker) } else { ready.push_front(worker) }
            }
            if let Some(worker) = ready.pop_front()
                && let Ok(claim) = scheduler.claim(&worker)
            {
                executed_first += u32::from(worker == *first);
                if executed_first == 2 && worker == *first {
                    film.at(6);
                }
                return SchedulerAction::Execute(claim);
            }
            if list.members() == 0 {
                return SchedulerAction::Leave;
            }
            list.event().wait(None);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_told_in_the_order_of_time() {
        let lines = in_order([1_000, 3_500, 4_000, 2_000, 0, 9_000, 9_500, 10_000]);
        let times: Vec<_> =
            lines.iter().filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(times, ["0.00", "1.00", "2.50", "3.00", "8.00", "8.50", "9.00", "-"]);
        assert!(lines[1].ends_with(MOMENTS[3]) && lines[7].ends_with(MOMENTS[4]), "{lines:#?}");
    }
}
