//! The lower bound for switches: compares a bare switch with a scheduler's switch, in one run.
//!
//! ```text
//! raw_pair_ns        one resume + suspend of the `fiber` crate, two fibers in turn
//! fiber_switch_ns    one switch between two fiber workers through a full turn
//! fiber_ratio        the second over the first
//! fiber_recorded_ns  the second with an event ring, which records every switch
//! futex_handoff_ns   one hand-off between two threads by bare futex words, both on CPU 0
//! thread_switch_ns   one switch between two thread workers, both on CPU 0
//! thread_ratio       the second over the first
//! ```
//!
//! Rounds of all five alternate, and each metric is its best round, because noise only adds time.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use fiber::{StackConfig, StackPool};
use rustix::thread::futex;
use ums::Node;

use super::meter::{BenchArgs, Ran, Stop};
use super::setup::Setup;
use crate::raw::suspending;

/// `floor rounds=`.
pub fn floor(args: &BenchArgs) -> Ran {
    let rounds = args.number("rounds", 20)?;
    let fibers = Setup::read(&BenchArgs::parse(&["kind=fiber".into()])?)?;
    let threads = Setup::read(&BenchArgs::parse(&["kind=thread".into()])?)?;
    args.all_known()?;
    let recorded = Setup::read(&BenchArgs::parse(&["kind=fiber".into(), "events=on".into()])?)?;
    let (by_fiber, by_thread) = (fibers.node(1, 16)?, threads.node(1, 16)?);
    let by_recorded_fiber = recorded.node(1, 16)?;
    let mut best = [f64::INFINITY; 5];
    for _ in 0..rounds {
        let now = [
            raw_pairs(200_000)?,
            yields(&by_fiber, 2, 200_000),
            handoffs(20_000),
            yields(&by_thread, 2, 20_000),
            yields(&by_recorded_fiber, 2, 200_000),
        ];
        best.iter_mut().zip(now).for_each(|(best, now)| *best = best.min(now));
    }
    let lines = fibers.lines("floor");
    let [raw, fiber, bare, thread, recorded] = best;
    lines.metric("raw_pair_ns", raw, "ns");
    lines.metric("fiber_switch_ns", fiber, "ns");
    lines.metric("fiber_ratio", fiber / raw, "ratio");
    lines.metric("fiber_recorded_ns", recorded, "ns");
    lines.metric("futex_handoff_ns", bare, "ns");
    lines.metric("thread_switch_ns", thread, "ns");
    lines.metric("thread_ratio", thread / bare, "ratio");
    Ok(())
}

/// Returns the time of one resume and suspend, in nanoseconds.
pub(super) fn raw_pairs(pairs: u64) -> Result<f64, Stop> {
    pairs_with(2, pairs, || ())
}

/// Like [`raw_pairs`], with this many fibers in turn and a call of `beside` at each of the two
/// switches.
pub(super) fn pairs_with(
    fibers: u64,
    pairs: u64,
    beside: impl Fn() + Copy + 'static,
) -> Result<f64, Stop> {
    let mut pool = StackPool::new(StackConfig::default());
    let mut spinner = || {
        let stack = pool.take().map_err(|error| Stop::Skip(error.to_string()))?;
        Ok(suspending(stack, pairs / fibers, beside))
    };
    let mut spinners = (0..fibers).map(|_| spinner()).collect::<Result<Vec<_>, Stop>>()?;
    let began = Instant::now();
    for _ in 0..pairs / fibers {
        for fiber in &mut spinners {
            beside();
            let _ = black_box(fiber.resume());
        }
    }
    let each = began.elapsed().as_nanos() as f64 / pairs as f64;
    for mut fiber in spinners {
        // The last resume of each fiber runs it to its end.
        let _ = fiber.resume();
        pool.give(fiber.into_stack());
    }
    Ok(each)
}

/// Returns the time of one switch between this many workers that yield in turn, in nanoseconds.
pub(super) fn yields(node: &Node, tasks: u64, switches: u64) -> f64 {
    node.run(move || {
        let yielding = move || {
            // One yield before the clock is read, so that all have started.
            ums::yield_now();
            let began = Instant::now();
            for _ in 0..switches / tasks {
                ums::yield_now();
            }
            began.elapsed().as_nanos() as f64 / switches as f64
        };
        let all: Vec<_> = (0..tasks).map(|_| ums::spawn(yielding)).collect();
        let times = all.into_iter().map(|task| task.join().expect("a yielding task"));
        times.fold(f64::INFINITY, f64::min)
    })
}

/// Returns the time of one hand-off between two threads that wake each other and then sleep, in
/// nanoseconds.
pub(super) fn handoffs(handoffs: u32) -> f64 {
    handoffs_with(handoffs, || ())
}

/// Like [`handoffs`], with a call of `beside` on one of the two threads before each hand-off.
pub(super) fn handoffs_with(handoffs: u32, beside: impl Fn() + Send + Copy + 'static) -> f64 {
    let turn = Arc::new(AtomicU32::new(0));
    let player = |mine: u32| {
        let turn = turn.clone();
        move || {
            for at in (mine..handoffs).step_by(2) {
                loop {
                    let now = turn.load(Ordering::Acquire);
                    if now == at {
                        break;
                    }
                    let _ = futex::wait(&turn, futex::Flags::PRIVATE, now, None);
                }
                if mine == 1 {
                    beside();
                }
                turn.store(at + 1, Ordering::Release);
                let _ = futex::wake(&turn, futex::Flags::PRIVATE, 1);
            }
        }
    };
    let other = std::thread::spawn(player(1));
    let began = Instant::now();
    player(0)();
    let _ = other.join();
    began.elapsed().as_nanos() as f64 / f64::from(handoffs)
}
