//! Workers that wait and never continue: a process to try debuggers and `ums stacks` on, which
//! needs debug information.
//!
//! `cargo run -p ums --example parked [thread|fiber|context] [socket]` prints `ready`, and ends
//! when its input ends. `socket` is the path of its statistics socket.
//!
//! Named invariant **Contract**: the closures here keep no thread-scoped state across a wait.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ums::Node;
use ums::stats::{StatsSocket, WorkerState};
use ums::sync::Mutex;

static COMPUTES: AtomicBool = AtomicBool::new(false);
static STOP: AtomicBool = AtomicBool::new(false);

#[inline(never)]
fn sleeps_for_an_hour() {
    let slept = ums::sleep(Duration::from_secs(3600));
    // Without a use of the result the compiler may make the call a tail call, and this function
    // would not appear in the backtrace.
    std::hint::black_box(&slept);
}

#[inline(never)]
fn holds_the_ledger(ledger: &Mutex<u64>) {
    let mut entries = ledger.lock();
    *entries += 1;
    sleeps_for_an_hour();
    *entries += 1;
}

#[inline(never)]
fn books(ledger: &Mutex<u64>) {
    *ledger.lock() += 1;
}

#[inline(never)]
fn computes() -> u64 {
    COMPUTES.store(true, Ordering::Relaxed);
    let mut turns = 0;
    while !STOP.load(Ordering::Relaxed) {
        turns += 1;
    }
    turns
}

fn until(so: impl Fn() -> bool) {
    while !so() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let builder = Node::builder().schedulers(2);
    let builder = match args.next().as_deref() {
        // SAFETY: Contract.
        Some("fiber") => unsafe { builder.fiber_workers() },
        Some("context") => builder.own_context_workers(),
        _ => builder,
    };
    let node = builder.build()?;
    node.print_stacks_on_sigusr2()?;
    if let Some(path) = args.next() {
        node.serve_stats(StatsSocket::At(path.into()))?;
    }
    let ledger = Arc::new(Mutex::new(0));
    let shared = ledger.clone();
    let holder = node.spawn_on(0, move || holds_the_ledger(&shared))?;
    until(|| ledger.is_locked());
    let user = node.user();
    let shared = ledger.clone();
    let booker = user.enqueue(move || books(&shared))?;
    let count = |state| node.snapshot().workers.iter().filter(|w| w.state == state).count();
    until(|| count(WorkerState::Waiting) == 2);
    let computer = node.spawn_on(1, computes)?;
    until(|| COMPUTES.load(Ordering::Relaxed));
    println!("ready");
    let _ = std::io::stdin().read_line(&mut String::new());
    STOP.store(true, Ordering::Relaxed);
    holder.cancel();
    let _ = (holder.join(), booker.join(), computer.join());
    Ok(())
}
