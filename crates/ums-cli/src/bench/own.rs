//! Workers with their own context beside bare switches, in one run and on one CPU.
//!
//! ```text
//! ring_ns            the base: two fibers in turn, each step one stack switch and one write of
//!                    the FS base
//! bare_switch_ns     one switch between two contexts, by the crate `context` alone
//! own_switch_ns      one switch between two workers that yield, through a full turn
//! own_ratio          own_switch_ns over ring_ns
//! windows_yield_ns   one yield of the Windows model through the scheduler's entry point, two
//!                    workers in turn
//! windows_ratio      windows_yield_ns over ring_ns
//! fiber_switch_ns    as own_switch_ns, with fiber workers
//! futex_handoff_ns   one hand-off between two threads by bare futex words
//! futex_ratio        futex_handoff_ns over own_switch_ns
//! couple_ns          leave for the own kernel thread, make one system call, return, by the crate
//!                    `context` alone
//! couple_ratio       couple_ns over futex_handoff_ns
//! couple_floor_ns    the system's part of that: two hand-offs between threads by bare futex words,
//!                    two changes of the signal mask, and the system call
//! couple_floor_ratio couple_ns over couple_floor_ns
//! preemptive_ns      one system call inside go_preemptive: couple, call, inbox, turn
//! ```
//!
//! Rounds of all alternate, and each metric is its best round, because noise only adds time.
//!
//! Named invariants. **One Place**: the contexts here are the root's or one worker's, which runs,
//! is coupled, or is saved; each switches to the other only when its post has come. **Same Base**:
//! what is written into the FS base is what was there. **Plain Call**: a system call that needs
//! only that what it is given outlives it.

#![allow(unsafe_code)]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::time::Instant;

use context::{Context, Host, Post};
use rustix::thread::futex;
use ums::{Node, WaitReason};

use super::floor::{handoffs, handoffs_with, pairs_with, yields};
use super::meter::{Args, Ran, Stop};
use super::setup::{Setup, pin};
use super::windows::yields_own;

/// `own rounds=`.
pub fn own(args: &Args) -> Ran {
    let rounds = args.number("rounds", 20)?;
    let of = |kind: &str| Setup::read(&Args::parse(&[format!("kind={kind}")])?);
    let (own, fiber) = (of("context")?, of("fiber")?);
    args.all_known()?;
    if let Some(why) = ums::probe::own_contexts_are_refused() {
        return Err(Stop::Skip(why));
    }
    pin(1)?;
    let (by_own, by_fiber) = (own.node(1, 16)?, fiber.node(1, 16)?);
    let mut best = [f64::INFINITY; 9];
    for _ in 0..rounds {
        let now = [
            ring(200_000)?,
            bare(200_000, false),
            yields(&by_own, 200_000),
            yields_own(2, 200_000)?,
            yields(&by_fiber, 200_000),
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

/// Writes the current FS base again.
#[inline(always)]
fn write_base() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: Same Base.
    unsafe {
        std::arch::asm!("mov {0}, fs:[0]", "wrfsbase {0}", out(reg) _, options(nostack));
    }
}

/// Nanoseconds for one step of the ring.
fn ring(steps: u64) -> Result<f64, Stop> {
    Ok(pairs_with(steps / 2, write_base)? / 2.0)
}

/// A thread that switches to and from the root of a host.
struct Player {
    context: Context,
    post: AtomicU32,
    root: AtomicPtr<Context>,
    stop: AtomicBool,
}

impl Player {
    /// Waits for the post.
    fn wait(&self) {
        while self.post.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire).is_err() {
            let asleep =
                self.post.compare_exchange(0, 2, Ordering::AcqRel, Ordering::Acquire) != Err(1);
            if asleep {
                let _ = futex::wait(&self.post, futex::Flags::PRIVATE, 2, None);
            }
        }
    }

    fn play(&self, couples: bool) {
        while !self.stop.load(Ordering::Relaxed) {
            // SAFETY: One Place: the root switched to this, and is saved since.
            unsafe {
                let root = &*self.root.load(Ordering::Relaxed);
                if couples {
                    self.context.leave_for(root);
                    let _ = black_box(rustix::process::getppid());
                    self.context.decouple(&Post::event(&self.post));
                } else {
                    self.context.switch_to(root);
                }
            }
        }
        // SAFETY: One Place: as above; the root releases it.
        unsafe { self.context.switch_to(&*self.root.load(Ordering::Relaxed)) };
    }
}

/// Measures one switch, or leaving, one system call and returning, in nanoseconds.
fn bare(times: u64, couples: bool) -> f64 {
    let player = Arc::new(Player {
        context: Context::new(),
        post: AtomicU32::new(0),
        root: AtomicPtr::default(),
        stop: AtomicBool::new(false),
    });
    let mine = player.clone();
    let thread = std::thread::spawn(move || {
        // SAFETY: One Place: `play` ends by switching to the root, which releases it.
        unsafe { mine.context.detach(&Post::event(&mine.post), || mine.play(couples)) }
    });
    player.wait();
    let host = Host::here().expect("it is not refused");
    player.root.store(std::ptr::from_ref(host.root()).cast_mut(), Ordering::Relaxed);
    let step = || {
        // SAFETY: One Place: its post has come, or it has switched here.
        unsafe { host.root().switch_to(&player.context) };
        if couples && !player.stop.load(Ordering::Relaxed) {
            player.wait();
        }
    };
    let began = Instant::now();
    let steps = if couples { times } else { times / 2 };
    (0..steps).for_each(|_| step());
    let each = began.elapsed().as_nanos() as f64 / times as f64;
    player.stop.store(true, Ordering::Relaxed);
    step();
    // SAFETY: One Place: it has switched here for the last time.
    unsafe { player.context.release() };
    let _ = thread.join();
    each
}

/// Makes the system calls between the two hand-offs of coupling: restores the thread's signal mask,
/// makes the call, blocks all signals again.
fn call_with_own_mask() {
    let (own, all) = (0u64, !(1u64 << 32));
    let set = |mask: &u64| {
        let (how, size) = (libc::SIG_SETMASK, size_of::<u64>());
        let nothing = std::ptr::null_mut::<u64>();
        // SAFETY: Plain Call: the set outlives the call, and no other code uses this thread's mask.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, mask, nothing, size) };
    };
    set(&own);
    let _ = black_box(rustix::process::getppid());
    set(&all);
}

/// Nanoseconds for one system call inside `go_preemptive`.
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
