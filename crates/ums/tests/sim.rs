//! Stories from seeds: what the machine promises, whoever runs when, whatever is late or fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ums::sim::{Check, Faults};
use ums::{Node, Placement};

fn check(name: &str, faults: Faults, story: impl Fn()) {
    let count = std::env::var("UMS_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(200);
    let command = format!("cargo test -p ums --features sim --test sim {name}");
    let checked = ums::sim::check(&Check { seeds: 0..count, faults, command }, story);
    println!("{name}: {} seeds, median {} steps", checked.seeds, checked.median_steps);
}

fn node(schedulers: usize) -> Node {
    let fibers = ums::sim::below(2) == 0;
    let placement = [Placement::Hinted, Placement::Classic, Placement::LeastLoaded];
    let builder = Node::builder()
        .schedulers(schedulers)
        .max_workers(schedulers * (1 + ums::sim::below(4) as usize))
        .placement(placement[ums::sim::below(3) as usize])
        .idle_worker_timeout(Duration::from_millis(1 + ums::sim::below(100)));
    // SAFETY: Contract: the stories keep nothing of the thread's over a wait.
    #[allow(unsafe_code)]
    let builder = if fibers { unsafe { builder.fiber_workers() } } else { builder };
    builder.build().unwrap()
}

fn end(node: Node) {
    let report = node.shutdown(Duration::from_secs(100));
    assert_eq!(report, ums::ShutdownReport::default(), "nothing is cancelled or left over");
}

#[test]
fn every_request_ends_once_and_nothing_is_left() {
    check("every_request_ends_once_and_nothing_is_left", Faults { stall: 20, ..Faults::default() }, || {
        let node = node(2);
        let count = Arc::new(AtomicU64::new(0));
        let tasks: Vec<_> = (0..20)
            .map(|n| {
                let count = Arc::clone(&count);
                let task = node.spawn(move || {
                    for _ in 0..n % 4 {
                        ums::yield_now();
                    }
                    if n % 3 == 0 {
                        ums::sleep(Duration::from_micros(n * 50)).unwrap();
                    }
                    count.fetch_add(1, Ordering::Relaxed);
                    n
                });
                task.unwrap()
            })
            .collect();
        let sum: u64 = tasks.into_iter().map(|task| task.join().unwrap()).sum();
        assert_eq!((sum, count.load(Ordering::Relaxed)), (190, 20));
        end(node);
    });
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let story = || {
        let node = node(2);
        let lock = Arc::new(ums::sync::Mutex::new(0));
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let lock = Arc::clone(&lock);
                node.spawn(move || {
                    for _ in 0..5 {
                        let mut guard = lock.lock();
                        ums::yield_now();
                        *guard += 1;
                    }
                })
                .unwrap()
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        assert_eq!(*lock.lock(), 40);
        end(node);
    };
    for seed in 0..20 {
        let first = ums::sim::run(seed, Faults::default(), story);
        let again = ums::sim::run(seed, Faults::default(), story);
        assert_eq!(first.failed, None);
        assert_eq!(first.trace, again.trace, "seed {seed}");
    }
}
