//! Measures what a switch and a pooled fiber cost on this computer: a lower bound for every cost of
//! a scheduler on fibers.
//!
//! It uses the unsafe `suspend` only within the fiber's own closure.
//!
//! Run with `cargo run --release -p ums-fiber --example floor`.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::time::Instant;

use fiber::{Fiber, Resume, StackConfig, StackPool};

/// Returns a fiber that suspends in an endless loop.
fn spinner(pool: &mut StackPool) -> Fiber {
    Fiber::new(pool.take().expect("a stack"), "spinner", |me| {
        loop {
            // SAFETY: Contract: this is the closure that `me` was passed to.
            unsafe { me.suspend() };
        }
    })
}

/// Returns the best of several rounds, in nanoseconds per operation.
fn best(operations: usize, mut round: impl FnMut()) -> f64 {
    let times = (0..20).map(|_| {
        let began = Instant::now();
        round();
        began.elapsed().as_nanos() as f64 / operations as f64
    });
    times.fold(f64::INFINITY, f64::min)
}

fn main() {
    println!("guards by {}", StackPool::guard_kind());
    let mut pool = StackPool::new(StackConfig::default());

    for fibers in [1, 10, 100, 1000, 10_000] {
        let mut all: Vec<Fiber> = (0..fibers).map(|_| spinner(&mut pool)).collect();
        let rounds = 200_000 / fibers;
        let ns = best(rounds * fibers, || {
            for _ in 0..rounds {
                for fiber in &mut all {
                    let _ = black_box(fiber.resume());
                }
            }
        });
        println!("{ns:8.2} ns per resume + suspend, {fibers} fibers in turn");
        // These fibers never end, so their stacks are leaked.
        drop(all);
    }

    let mut pool = StackPool::new(StackConfig::default());
    let ns = best(100_000, || {
        for number in 0..100_000u32 {
            let stack = pool.take().expect("a stack");
            let mut fiber = Fiber::new(stack, "short", move |_| {
                black_box(number);
            });
            assert_eq!(fiber.resume(), Resume::Finished);
            pool.give(fiber.into_stack());
        }
    });
    println!("{ns:8.2} ns per pooled take, create, run, finish and give");

    let ns = best(1000, || {
        let mut pool = StackPool::new(StackConfig { keep_warm: 0, ..StackConfig::default() });
        let stacks: Vec<_> = (0..1000).map(|_| pool.take().expect("a stack")).collect();
        stacks.into_iter().for_each(|stack| pool.give(stack));
    });
    println!("{ns:8.2} ns per stack made, given back cold and unmapped");
}
