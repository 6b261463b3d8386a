//! Workers and requests as tasks in tokio-console.
//!
//! ```text
//! RUSTFLAGS="--cfg console_without_tokio_unstable" \
//!     cargo run -p ums --features console --example console [thread|fiber]
//! tokio-console
//! ```
//!
//! Two clerks lock one ledger, which one of them holds for long; an accountant computes and yields;
//! and a user sends small requests repeatedly. The program prints `ready`, and ends when its input
//! ends.
//!
//! The collector has a thread and a runtime of its own, so it is not on any scheduler.
//!
//! Named invariant **Contract**: the closures here keep no thread-scoped state across a wait.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ums::Node;
use ums::sync::Mutex;

static STOP: AtomicBool = AtomicBool::new(false);

fn goes_on() -> bool {
    !STOP.load(Ordering::Relaxed)
}

/// Locks the ledger for this long, then leaves it unlocked for the same time, and repeats.
fn clerk(ledger: &Mutex<u64>, keeps: Duration) {
    while goes_on() {
        let mut entries = ledger.lock();
        *entries += 1;
        let _ = ums::sleep(keeps);
        drop(entries);
        let _ = ums::sleep(keeps);
    }
}

fn accountant() -> u64 {
    let mut sum = 0u64;
    while goes_on() {
        (0..100_000u64).for_each(|n| sum = std::hint::black_box(sum.wrapping_mul(31) + n));
        ums::yield_now();
        let _ = ums::sleep(Duration::from_millis(5));
    }
    sum
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    console_subscriber::init();
    let builder = Node::builder().schedulers(2);
    let builder = match std::env::args().nth(1).as_deref() {
        // SAFETY: Contract.
        Some("fiber") => unsafe { builder.fiber_workers() },
        _ => builder,
    };
    let node = builder.build()?;
    let ledger = Arc::new(Mutex::new(0));
    let clerks = [200, 20].map(|ms| {
        let ledger = ledger.clone();
        node.spawn(move || clerk(&ledger, Duration::from_millis(ms)))
    });
    let accountant = node.spawn_on(1, accountant)?;
    let user = node.user();
    let asks = std::thread::spawn(move || {
        while goes_on() {
            let answer = user.enqueue(|| ums::sleep(Duration::from_millis(2)));
            let _ = answer.map(ums::JoinHandle::join);
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    println!("ready");
    let _ = std::io::stdin().read_line(&mut String::new());
    STOP.store(true, Ordering::Relaxed);
    for clerk in clerks {
        let _ = clerk?.join();
    }
    let _ = (accountant.join(), asks.join());
    Ok(())
}
