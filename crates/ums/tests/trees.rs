//! Trees of tasks beside other work: while a worker waits for one of its tasks, and that goes on,
//! the next ones are left to it (B9).

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use common::*;
use ums::testing::scheduler;
use ums::{Builder, Node, WorkerKind};

/// How many joins, of two choices each, may go before what was ready, and some more: a turn that
/// the system interrupts counts as a long one.
const PERIOD: usize = 32_010;

/// Spawns a tree of tasks, and joins each task's children in turn. Each leaf calls `leaf`.
fn tree(leaves: usize, leaf: &Arc<impl Fn() + Send + Sync + 'static>) {
    if leaves == 1 {
        return leaf();
    }
    let subtree = |_| {
        let leaf = leaf.clone();
        ums::spawn(move || tree(leaves / 10, &leaf))
    };
    let children: Vec<_> = (0..10).map(subtree).collect();
    children.into_iter().for_each(|child| child.join().expect("a subtree"));
}

/// Joins tasks until this is true, or for long. Returns how many.
fn joins_until(enough: &AtomicBool) -> usize {
    let mut joined = 0;
    while !enough.load(SeqCst) && joined < 100 * PERIOD {
        ums::spawn(|| ()).join().unwrap();
        joined += 1;
    }
    joined
}

/// Runs the body on a node with one scheduler, whose workers are fibers or have their own context:
/// joins of threads are slow, so few of them are a period.
fn on_one(body: impl Fn(&Node)) {
    let quick = kinds().into_iter().filter(|kind| *kind != WorkerKind::Thread);
    quick.for_each(|kind| one_kind(kind, |b: Builder| b.schedulers(1), &body));
}

#[test]
fn the_tasks_of_a_tree_do_not_begin_side_by_side_b9() {
    on_one(|node| {
        node.run(|| tree(100_000, &Arc::new(|| ())));
        let created = scheduler(node, 0).counters.workers_created;
        assert!(created < 100, "{created} workers");
    });
}

/// Ten leaves queue a request each, as a task and from outside.
#[test]
fn another_request_does_not_wait_for_all_queued_tasks_of_a_tree_b9() {
    on_one(|node| {
        let [leaves, longest, begun] = std::array::from_fn(|_| Arc::new(AtomicUsize::new(0)));
        let (node_of_leaf, l, b) = (node.clone(), longest.clone(), begun.clone());
        let leaf = move || {
            let queued = leaves.fetch_add(1, SeqCst);
            if queued % 100_000 != 50_000 {
                return;
            }
            let (leaves, longest, begun) = (leaves.clone(), l.clone(), b.clone());
            let begins = move || {
                longest.fetch_max(leaves.load(SeqCst) - queued, SeqCst);
                begun.fetch_add(1, SeqCst);
            };
            ums::spawn(begins.clone());
            node_of_leaf.spawn_on(0, begins).expect("the node takes work");
        };
        node.run(|| tree(1_000_000, &Arc::new(leaf)));
        eventually("all have begun", || begun.load(SeqCst) == 20);
        let longest = longest.load(SeqCst);
        assert!(longest < 4 * PERIOD, "{longest} leaves went before a request");
    });
}

/// Such a task is left to its parent until the turn comes of those that are.
#[test]
fn a_task_for_which_an_earlier_one_waits_by_joins_begins_in_time_b9() {
    on_one(|node| {
        let joined = node.run(|| {
            let enough = Arc::new(AtomicBool::new(false));
            let e = enough.clone();
            let waits = ums::spawn(move || joins_until(&e));
            let _sets = ums::spawn(move || enough.store(true, SeqCst));
            waits.join().unwrap()
        });
        assert!(joined < 10 * PERIOD, "{joined} joins went before it");
    });
}

/// Nothing of their parent goes on, so they are as ready as any request.
#[test]
fn the_tasks_of_a_worker_that_waits_for_a_blocked_one_begin_in_time_b9() {
    on_one(|node| {
        let joined = node.run(|| {
            let gate = Arc::new(ums::sync::Event::manual(false));
            let begun = Arc::new(AtomicUsize::new(0));
            let (g, b) = (gate.clone(), begun.clone());
            let fans_out = ums::spawn(move || {
                let child = |_| {
                    let (gate, begun) = (g.clone(), b.clone());
                    ums::spawn(move || {
                        begun.fetch_add(1, SeqCst);
                        gate.wait().unwrap();
                    })
                };
                let all: Vec<_> = (0..20).map(child).collect();
                all.into_iter().for_each(|task| task.join().unwrap());
            });
            let mut joined = 0;
            while begun.load(SeqCst) < 20 && joined < 100 * PERIOD {
                ums::spawn(|| ()).join().unwrap();
                joined += 1;
            }
            gate.set();
            fans_out.join().unwrap();
            joined
        });
        assert!(joined < 3 * PERIOD, "{joined} joins went before them");
    });
}

/// Whether it runs the code of the tree's tasks says that.
#[test]
fn a_task_of_another_kind_beside_a_tree_begins_in_time_b9() {
    on_one(|node| {
        let leaves = node.run(|| {
            let leaves = Arc::new(AtomicUsize::new(0));
            let counts = leaves.clone();
            let grows = Arc::new(move || _ = counts.fetch_add(1, SeqCst));
            let whole = ums::spawn(move || tree(1_000_000, &grows));
            let others: Vec<_> = (0..20)
                .map(|_| {
                    let leaves = leaves.clone();
                    ums::spawn(move || leaves.load(SeqCst))
                })
                .collect();
            whole.join().unwrap();
            others.into_iter().map(|other| other.join().unwrap()).max()
        });
        assert!(leaves < Some(3 * PERIOD), "{leaves:?} leaves went before them");
    });
}

/// The worker that has queued a request may carry out another one now.
#[test]
fn a_request_is_not_left_to_a_worker_that_has_ended_the_one_before_b9() {
    on_one(|node| {
        let joined = node.run(|| {
            let enough = Arc::new(AtomicBool::new(false));
            let e = enough.clone();
            let joins = ums::spawn(move || joins_until(&e));
            let worker = ums::worker::worker_id;
            let queues = ums::spawn(move || {
                ums::spawn(move || enough.store(true, SeqCst));
                worker()
            });
            let queued_by = queues.join().unwrap();
            let waits = ums::spawn(move || (worker(), joins.join().unwrap()));
            let (waits_on, joined) = waits.join().unwrap();
            assert_eq!(queued_by, waits_on, "the same worker");
            joined
        });
        assert!(joined < 3 * PERIOD, "{joined} joins went before it");
    });
}
