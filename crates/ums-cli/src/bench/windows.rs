//! Compares the Windows layer with bare switches, in one run.
//!
//! ```text
//! futex_handoff_ns     one hand-off between two threads by bare futex words, both on one processor
//! fiber_pair_ns        one resume and suspend of a fiber
//! yield_ns             from a worker that calls thread_yield, through the scheduler's entry point,
//!                      to the next worker
//! block_ns             from a worker that blocks in a read that is not interposed to the next
//!                      worker's code
//! block_interposed_ns  the same in the C library's interposed read, which switches before blocking
//! own_*                the last three, for workers with their own context
//! ```
//!
//! The block metrics are medians. The others are the best of several rounds.
//!
//! Published figures for Windows, measured on another computer, are printed for comparison.

use std::collections::VecDeque;
use std::io::{PipeReader, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ums::watch::{Mechanism, mechanism};
use ums::windows::{self, CompletionList, Reason, SchedulerAction, WorkerContext};

use super::floor::{handoffs, raw_pairs};
use super::meter::{BenchArgs, Lines, Ran, Stop};

/// `windows rounds= workers= total=`.
pub fn windows(args: &BenchArgs) -> Ran {
    let rounds = args.number("rounds", 2000)? as usize;
    let workers = args.number("workers", 10)?.max(1);
    let total = args.number("total", 100_000)?;
    // The key `kind` is accepted and has no effect.
    let _ = args.text("kind", "");
    args.all_known()?;
    let mechanism = mechanism().map_err(|error| Stop::Usage(error.to_string()))?;
    let lines = Lines { bench: format!("windows/{}", mechanism.name()), peer: "ums" };
    let best = |f: &dyn Fn() -> Result<f64, Stop>| -> Result<f64, Stop> {
        (0..5).map(|_| f()).try_fold(f64::INFINITY, |best, now| Ok(best.min(now?)))
    };
    let handoff = best(&|| Ok(pinned(|| handoffs(20_000))))?;
    lines.metric("futex_handoff_ns", handoff, "ns");
    lines.metric("fiber_pair_ns", best(&|| raw_pairs(200_000))?, "ns");
    let yielded = best(&|| yields(workers, total, false).map_err(skip))?;
    lines.metric("yield_ns", yielded, "ns");
    lines.metric("yield_handoffs", yielded / handoff, "ratio");
    if mechanism != Mechanism::Calls {
        let bare = blocks(rounds, false, false).map_err(skip)?;
        lines.metric("block_ns", bare, "ns");
        lines.metric("block_handoffs", bare / handoff, "ratio");
    }
    let interposed = blocks(rounds, true, false).map_err(skip)?;
    lines.metric("block_interposed_ns", interposed, "ns");
    lines.metric("block_interposed_handoffs", interposed / handoff, "ratio");
    if ums::probe::own_contexts_are_refused().is_none() {
        lines.metric("own_yield_ns", best(&|| yields_own(workers, total))?, "ns");
        lines.metric("own_block_ns", blocks(rounds, false, true).map_err(skip)?, "ns");
        lines.metric("own_block_interposed_ns", blocks(rounds, true, true).map_err(skip)?, "ns");
    }
    published();
    Ok(())
}

/// Published times of Windows 7 in nanoseconds for each yield, for this many workers: with its
/// threads, and with its User-Mode Scheduling.
const PUBLISHED: [(u32, f64, f64); 3] =
    [(10, 632.0, 118.0), (100, 591.0, 128.0), (1000, 785.0, 127.0)];

fn published() {
    for (workers, threads, scheduled) in PUBLISHED {
        for (peer, ns) in [("windows7-threads", threads), ("windows7-ums", scheduled)] {
            let lines = Lines { bench: "windows/published".into(), peer };
            lines.metric(&format!("yield_of_{workers}_ns"), ns, "ns");
        }
    }
}

fn skip(error: Box<dyn std::error::Error>) -> Stop {
    Stop::Skip(error.to_string())
}

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

/// Runs `f` on a new thread that is pinned, with the threads that it creates, to the first
/// processor.
fn pinned<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut mask = rustix::thread::CpuSet::new();
            mask.set(0);
            let _ = rustix::thread::sched_setaffinity(None, &mask);
            f()
        });
        thread.join().expect("a bench does not panic")
    })
}

/// Executes the workers first in, first out, until all have ended.
fn rounds(list: &CompletionList) -> Result<(), windows::EnterError> {
    let mut ready = VecDeque::with_capacity(4096);
    windows::enter_scheduling_mode(|scheduler, reason| {
        if let Reason::Yield { worker, .. } = reason {
            ready.push_back(worker);
        }
        loop {
            if !list.is_empty() {
                ready.extend(list.poll().filter(|worker| !worker.is_terminated()));
            }
            if let Some(worker) = ready.pop_front()
                && let Ok(claim) = scheduler.claim(&worker)
            {
                return SchedulerAction::Execute(claim);
            }
            if list.members() == 0 {
                return SchedulerAction::Leave;
            }
            list.event().wait(None);
        }
    })
}

/// Measures a yield as `yields` does, with workers that have their own context.
pub(super) fn yields_own(workers: u64, total: u64) -> Result<f64, Stop> {
    yields(workers, total, true).map_err(skip)
}

/// Returns the time of each yield, in nanoseconds, of this many workers that yield in turn.
fn yields(workers: u64, total: u64, own: bool) -> Fallible<f64> {
    let list = CompletionList::new()?;
    let each = (total / workers).max(1);
    let began = Arc::new(Mutex::new(None));
    for _ in 0..workers {
        let began = began.clone();
        let builder = WorkerContext::builder().stack_size(64 << 10).own_context(own);
        builder.spawn(&list, move || {
            // A first yield, so that all workers have started before the clock is read.
            let _ = windows::thread_yield(0);
            began.lock().expect("no worker panics").get_or_insert_with(Instant::now);
            for _ in 0..each {
                let _ = windows::thread_yield(0);
            }
        })?;
    }
    rounds(&list)?;
    let began = began.lock().expect("no worker panics").take().ok_or("no worker ran")?;
    Ok(began.elapsed().as_nanos() as f64 / (each * workers) as f64)
}

/// Returns the median time from a call that blocks to the next worker's code, in nanoseconds.
fn blocks(times: usize, interposed: bool, own: bool) -> Fallible<f64> {
    let list = CompletionList::new()?;
    let (reader, mut writer) = std::io::pipe()?;
    let called = Arc::new(Mutex::new(Instant::now()));
    let (blocked, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (mine, last, calls) = (called.clone(), done.clone(), blocked.clone());
    let builder = || WorkerContext::builder().own_context(own);
    builder().spawn(&list, move || {
        let mut reader = reader;
        for _ in 0..times {
            calls.store(true, Ordering::SeqCst);
            *mine.lock().expect("no worker panics") = Instant::now();
            read_one(&mut reader, interposed);
        }
        last.store(true, Ordering::SeqCst);
    })?;
    let spans = Arc::new(Mutex::new(Vec::with_capacity(times)));
    let mine = spans.clone();
    builder().spawn(&list, move || {
        while !done.load(Ordering::SeqCst) {
            let now = Instant::now();
            if blocked.swap(false, Ordering::SeqCst) {
                let called = *called.lock().expect("no worker panics");
                let span = now.saturating_duration_since(called);
                mine.lock().expect("no worker panics").push(span.as_nanos() as f64);
                // The other worker wakes, and stops at its gate before this worker yields.
                let _ = writer.write_all(b"x");
            }
            let _ = windows::thread_yield(0);
        }
    })?;
    rounds(&list)?;
    let mut spans = std::mem::take(&mut *spans.lock().expect("no worker panics"));
    spans.sort_by(f64::total_cmp);
    spans.get(spans.len() / 2).copied().ok_or_else(|| "no worker blocked".into())
}

fn read_one(reader: &mut PipeReader, interposed: bool) {
    let mut byte = [0];
    match interposed {
        true => drop(reader.read(&mut byte)),
        // A direct system call, which no interposed function sees.
        false => drop(rustix::io::read(&*reader, &mut byte)),
    }
}
