//! Chains of waits that are too long to be followed by recursion on a thread's stack. The monitor
//! follows them, and finds the circle when such a chain is closed.

#![allow(unsafe_code)] // For the harness.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::watching::{Told, nothing, watched};
use common::*;
use ums::sync::Mutex;
use ums::{WaitError, WorkerKind};

/// The length of a chain. By recursion the monitor's thread, with 2 MiB of stack, could follow some
/// 10,000 to 20,000 waits.
const LENGTH: usize = 30_000;

#[test]
fn the_monitor_follows_a_chain_of_30_000_waits_and_finds_it_when_it_is_closed() {
    let told = Told::default();
    let options = |b: ums::Builder| {
        let b = b.schedulers(1).max_workers(LENGTH + 1).stack_size(64 << 10);
        watched(b, nothing().deadlock(ms(50)), &told)
    };
    one_kind(WorkerKind::Fiber, options, |node| {
        let locks: Arc<Vec<_>> = Arc::new((0..LENGTH).map(|_| Mutex::new(())).collect());
        let gates = [Gate::shut(), Gate::shut()];
        let task = |i: usize| {
            let (locks, gates) = (locks.clone(), gates.clone());
            start(node, 0, move || {
                let _mine = locks[i].lock();
                let last = i + 1 == LENGTH;
                gates[usize::from(last)].pass();
                locks[(i + 1) % LENGTH].lock_for(Duration::MAX).map(drop)
            })
        };
        let tasks: Vec<_> = (0..LENGTH).map(task).collect();
        eventually("each has its lock", || {
            gates[0].waiters() == LENGTH - 1 && gates[1].waiters() == 1
        });
        gates[0].open();
        gates[1].open();
        let ends: Vec<_> = tasks.into_iter().map(|task| task.join().unwrap()).collect();
        let failed = ends.iter().filter(|end| matches!(end, Err(WaitError::Deadlock(_)))).count();
        assert_eq!(failed, 1, "one wait ends, and the others go on");
        assert_eq!(ends.iter().filter(|end| end.is_ok()).count(), LENGTH - 1);
    });
    let told = told.all();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].deadlock.as_ref().unwrap().waiters.len(), LENGTH);
}
