//! Compares workers with their own context with bare switches, in one run and on one CPU.
//!
//! ```text
//! ring_ns            the base: fibers in turn, each step one stack switch and one write of the FS
//!                    base
//! bare_switch_ns     one switch between two contexts, by the crate `context` alone
//! own_switch_ns      one switch between workers that yield, through a full turn
//! own_ratio          own_switch_ns over ring_ns
//! windows_yield_ns   one yield of the Windows model through the scheduler's entry point, two
//!                    workers in turn
//! windows_ratio      windows_yield_ns over ring_ns
//! fiber_switch_ns    like own_switch_ns, with fiber workers
//! futex_handoff_ns   one hand-off between two threads by bare futex words
//! futex_ratio        futex_handoff_ns over own_switch_ns
//! couple_ns          leaving for the worker's own kernel thread, one system call, returning, by
//!                    the crate `context` alone
//! couple_ratio       couple_ns over futex_handoff_ns
//! couple_floor_ns    the system's part of couple_ns: two hand-offs between threads by bare futex
//!                    words, two changes of the signal mask, and the system call
//! couple_floor_ratio couple_ns over couple_floor_ns
//! preemptive_ns      one system call inside go_preemptive: couple, call, inbox, turn
//! ```
//!
//! Rounds of all measurements alternate, and each metric is its best round, because noise only adds
//! time. `tasks=` sets the number of fibers in the base, and of workers that yield; there are two
//! if it is not given.

use std::hint::black_box;
use std::time::Instant;

use ums::{Node, WaitReason};

use super::floor::{handoffs, handoffs_with, pairs_with, yields};
use super::meter::{BenchArgs, Ran, Stop};
use super::setup::{Setup, pin};
use super::windows::yields_own;
use crate::raw::{bare, call_with_own_mask, write_base};

/// `own rounds= tasks=`.
pub fn own(args: &BenchArgs) -> Ran {
    let rounds = args.number("rounds", 20)?;
    let tasks = args.number("tasks", 2)?.max(2);
    let of = |kind: &str| Setup::read(&BenchArgs::parse(&[format!("kind={kind}")])?);
    let (own, fiber) = (of("context")?, of("fiber")?);
    args.all_known()?;
    if let Some(why) = ums::probe::own_contexts_are_refused() {
        return Err(Stop::Skip(why));
    }
    pin(1)?;
    let (by_own, by_fiber) = (own.node(1, tasks + 14)?, fiber.node(1, tasks + 14)?);
    let mut best = [f64::INFINITY; 9];
    for _ in 0..rounds {
        let now = [
            ring(tasks, 200_000)?,
            bare(200_000, false),
            yields(&by_own, tasks, 200_000),
            yields_own(2, 200_000)?,
            yields(&by_fiber, tasks, 200_000),
            handoffs(20_000),
            bare(10_000, true),
            preemptive(&by_own, 5_000),
            handoffs_with(20_000, call_with_own_mask) * 2.0,
        ];
        best.iter_mut().zip(now).for_each(|(best, now)| *best = best.min(now));
    }
    let lines = own.lines("own");
    let [ring, bare, own, windows, fiber, futex, couple, preemptive, couple_floor] = best;
    lines.metric("ring_ns", ring, "ns");
    lines.metric("bare_switch_ns", bare, "ns");
    lines.metric("own_switch_ns", own, "ns");
    lines.metric("own_ratio", own / ring, "ratio");
    lines.metric("windows_yield_ns", windows, "ns");
    lines.metric("windows_ratio", windows / ring, "ratio");
    lines.metric("fiber_switch_ns", fiber, "ns");
    lines.metric("futex_handoff_ns", futex, "ns");
    lines.metric("futex_ratio", futex / own, "ratio");
    lines.metric("couple_ns", couple, "ns");
    lines.metric("couple_ratio", couple / futex, "ratio");
    lines.metric("couple_floor_ns", couple_floor, "ns");
    lines.metric("couple_floor_ratio", couple / couple_floor, "ratio");
    lines.metric("preemptive_ns", preemptive, "ns");
    Ok(())
}

/// Returns the time of one step of the ring, in nanoseconds.
fn ring(fibers: u64, steps: u64) -> Result<f64, Stop> {
    Ok(pairs_with(fibers, steps / 2, write_base)? / 2.0)
}

/// Returns the time of one system call inside `go_preemptive`, in nanoseconds.
fn preemptive(node: &Node, times: u32) -> f64 {
    node.run(move || {
        let began = Instant::now();
        for _ in 0..times {
            let call = || black_box(rustix::process::getppid());
            let _ = ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, call);
        }
        began.elapsed().as_nanos() as f64 / f64::from(times)
    })
}
