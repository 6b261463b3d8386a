//! Tests that a worker which blocks inside the library keeps its scheduler's baton, with
//! `detect_blocking`. They use the crate's internals to block there.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::node::Placement;
use crate::scheduler::here;
use crate::{Node, WorkerKind};

fn node(kind: WorkerKind) -> Node {
    let builder = Node::builder().schedulers(1).placement(Placement::AlwaysPreferred);
    let builder = builder.detect_blocking(true);
    let builder = match kind {
        WorkerKind::OwnContext => builder.own_context_workers(),
        _ => builder,
    };
    builder.build().unwrap()
}

/// Makes a worker block between finding its scheduler and using it, while it holds a lock that a
/// completion routine needs. If the worker lost the baton there, another worker would run that
/// routine in its turn, the scheduler would wait for the lock, and the first worker would be
/// allowed to run without the baton.
fn blocks_inside(kind: WorkerKind) {
    let node = node(kind);
    let lock = Arc::new(Mutex::new(0));
    let (reads, mut feed) = std::io::pipe().unwrap();
    let (mine, routines) = (lock.clone(), lock.clone());
    let held = Arc::new(AtomicBool::new(false));
    let tell = held.clone();
    let first = node.spawn_on(0, move || {
        crate::testing::when_readable(reads.as_raw_fd(), move |_| {
            *routines.lock().unwrap() += 1;
            drop(reads);
        });
        let mut count = mine.lock().unwrap();
        let scheduler = here().expect("a worker has a scheduler");
        tell.store(true, SeqCst);
        std::thread::sleep(Duration::from_millis(300));
        // The scheduler is used here. Builds with assertions check that the worker has the baton.
        let me = scheduler.with(|core| core.current);
        *count += 10;
        me
    });
    let second = node.spawn_on(0, crate::yield_now).unwrap();
    while !held.load(SeqCst) {
        std::thread::yield_now();
    }
    feed.write_all(b"x").unwrap();
    let counters = |node: &Node| node.snapshot().schedulers[0].counters;
    let me = first.unwrap().join().expect("it used its scheduler with the baton");
    assert!(me > 0);
    second.join().unwrap();
    let began = Instant::now();
    while *lock.lock().unwrap() != 11 {
        assert!(began.elapsed() < Duration::from_secs(30), "the routine runs");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(counters(&node).workers_lent, 0, "no worker was let run on");
    assert_eq!(node.shutdown(Duration::from_secs(20)), Default::default());
}

#[test]
fn a_thread_worker_that_has_found_its_scheduler_keeps_the_baton_until_it_has_used_it() {
    blocks_inside(WorkerKind::Thread);
}

#[test]
fn an_own_context_worker_that_has_found_its_scheduler_keeps_the_baton_until_it_has_used_it() {
    if let Some(why) = crate::probe::own_contexts_are_refused() {
        crate::testing::skipped("own-context", why);
        return;
    }
    blocks_inside(WorkerKind::OwnContext);
}

#[test]
fn a_worker_is_not_in_user_code_while_it_waits_or_does_the_schedulers_work() {
    let node = Node::builder().schedulers(1).take_over_blocked(false).build().unwrap();
    let gate = Arc::new(crate::sync::Event::manual(false));
    let waits = gate.clone();
    let waiting = node.spawn_on(0, move || waits.wait().unwrap()).unwrap();
    // It begins after the other one has begun to wait.
    let looks = node.spawn_on(0, || {
        let scheduler = here().expect("a worker has a scheduler");
        let me = scheduler.current_waiter();
        let calm = || scheduler.is_calm(me);
        let waiter = scheduler.with(|core| {
            let id = core.workers.waiters().next().expect("it waits");
            core.workers.get(id).waiter
        });
        assert!(calm() && !scheduler.is_calm(waiter));
        assert!(!scheduler.with(|_| calm()), "it uses the lists");
        let mut in_a_turn = None;
        scheduler.in_a_turn(|| in_a_turn = Some(calm()));
        assert_eq!(in_a_turn, Some(false));
        assert!(calm());
    });
    looks.unwrap().join().unwrap();
    gate.set();
    waiting.join().unwrap();
}
