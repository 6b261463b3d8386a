//! Tests of a race inside a join. The race is too short to be provoked from outside the crate.
//!
//! The reason for unsafe code here is **Contract**: only closures of this test run on fibers, and
//! they keep no thread-scoped state across a wait.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use super::{JoinError, here, spawn};
use crate::current;
use crate::node::ShutdownReport;
use crate::os::clock::NEVER;
use crate::record::reason::WaitReason;
use crate::wait::error::WaitError;
use crate::wait::{AsVictim, What};
use crate::{Node, WorkerKind};

/// Provokes this order: the joiner finds no result, the task ends, the joiner's wait begins, a
/// cancellation claims the wait, and the joiner sees that there is a result. The joiner must still
/// consume the wake-up of the cancellation.
fn join_what_ends_while_cancels_rain(node: &Node) {
    let flag = || Arc::new(AtomicBool::new(false));
    let (begun, go, over) = (flag(), flag(), flag());
    let wait = |flag: &AtomicBool| {
        while !flag.load(SeqCst) {
            std::hint::spin_loop();
        }
    };
    let let_go = go.clone();
    let mut child = node.spawn_on(node.scheduler_count() - 1, move || wait(&let_go)).unwrap();
    let state = child.cancel_handle();
    let (tell, end) = (begun.clone(), over.clone());
    let joiner = node.spawn_on(0, move || {
        tell.store(true, SeqCst);
        // Called when the join has found no result.
        let what = || {
            go.store(true, SeqCst);
            while !state.is_finished() {
                std::hint::spin_loop();
            }
            What::new(WaitReason::JOIN)
        };
        let joined = child.join_as(what, NEVER, AsVictim::Never);
        end.store(true, SeqCst);
        // A wake-up that the join has not consumed would end these waits.
        for _ in 0..3 {
            let _ = crate::sleep(Duration::ZERO);
        }
        joined.is_ok()
    });
    let joiner = joiner.unwrap();
    wait(&begun);
    while !over.load(SeqCst) {
        joiner.cancel();
    }
    // The joiner has the result, because a task that is finished has stored it.
    assert!(joiner.join().unwrap());
}

#[test]
fn a_cancelled_join_that_finds_its_result_takes_its_wake_up_b59() {
    for kind in [WorkerKind::Thread, WorkerKind::Fiber] {
        for n in [2, 4] {
            let builder = Node::builder().schedulers(n);
            let builder = match kind {
                // SAFETY: Contract: as the header says.
                WorkerKind::Fiber => unsafe { builder.fiber_workers() },
                _ => builder,
            };
            let node = builder.build().unwrap();
            (0..200).for_each(|_| join_what_ends_while_cancels_rain(&node));
            assert_eq!(node.shutdown(Duration::from_secs(30)), ShutdownReport::default());
        }
    }
}

#[test]
fn a_join_that_fails_at_once_leaves_its_task_in_the_queue() {
    let node = Node::builder().schedulers(1).build().unwrap();
    node.run(|| {
        let parent = spawn(|| {
            while !current::is_cancelled() {
                current::yield_now();
            }
            let child = spawn(|| 7);
            let Err(JoinError::Wait(child, WaitError::Cancelled)) = child.join() else {
                panic!("the parent is cancelled");
            };
            assert_eq!(here().unwrap().queue.len(), 1, "a peer, or a canceller, would not find it");
            assert!(!child.is_finished());
            child.join_uncancellable().unwrap()
        });
        current::yield_now();
        parent.cancel();
        assert_eq!(parent.join().unwrap(), 7);
    });
}

#[test]
fn a_task_that_its_scheduler_will_start_at_once_is_in_no_lane_until_the_wait_is_given_up() {
    let node = Node::builder().schedulers(1).take_over_blocked(false).build().unwrap();
    node.run(|| {
        let task = spawn(|| 7);
        let here = here().expect("it runs on a worker");
        assert!(task.promote(Some(&here)), "it is taken out of the own lane");
        assert_eq!((here.queue.urgent(), here.queue.len()), (0, 0));
        here.await_no_more();
        assert_eq!((here.queue.urgent(), here.queue.len()), (1, 1));
        drop(here);
        assert_eq!(task.join().unwrap(), 7);
    });
}
