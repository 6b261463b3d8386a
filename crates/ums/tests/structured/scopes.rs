//! Scopes and tokens: what ends the tasks, and that nothing outlives its scope.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use ums::node::ShutdownReport;
use ums::task::{CancelToken, JoinError};
use ums::{WaitError, WaitReason, task_group, with_timeout};

use super::common::{PATIENCE, both_kinds, each_end, eventually, ms, on, spin, start};
use super::{CANCELLED, HOUR, SHORT, TIMED_OUT, sleeps, waiting};

#[test]
fn a_scopes_tasks_are_cancelled_with_its_opener() {
    both_kinds(|node, _, n| {
        let ended = Arc::new(AtomicUsize::new(0));
        let counts = ended.clone();
        let task = start(node, n - 1, move || {
            ums::scope(|s| {
                s.spawn(|| sleeps(&counts));
                s.spawn(|| ums::scope(|s| (0..2).for_each(|_| drop(s.spawn(|| sleeps(&counts))))));
            });
            counts.load(SeqCst)
        });
        eventually("all sleep", || waiting(node, WaitReason::SLEEP) == 3);
        eventually("both scopes wait", || waiting(node, WaitReason::JOIN) == 2);
        task.cancel();
        assert_eq!(task.join().unwrap(), 3, "the scope waits for tasks that it has cancelled");
        assert_eq!(ended.load(SeqCst), 3);
    });
}

#[test]
fn a_scope_cancels_its_tasks_on_demand_and_when_its_body_panics() {
    both_kinds(|node, _, _| {
        let ended = on(node, 0, || {
            let ended = AtomicUsize::new(0);
            ums::scope(|s| {
                let token = s.cancel_token();
                let tasks: Vec<_> = (0..3).map(|_| s.spawn(|| sleeps(&ended))).collect();
                s.cancel();
                for task in tasks {
                    assert!(matches!(task.join(), Ok(Err(CANCELLED)) | Err(JoinError::NeverRan)));
                }
                assert!(s.is_cancelled() && token.is_cancelled());
                let late = s.spawn(|| sleeps(&ended));
                assert!(matches!(late.join(), Ok(Err(CANCELLED)) | Err(JoinError::NeverRan)));
            });
            let body = || -> () {
                ums::scope(|s| {
                    s.spawn(|| sleeps(&ended));
                    panic!("on purpose")
                })
            };
            assert!(catch_unwind(AssertUnwindSafe(body)).is_err());
            ums::sleep(SHORT)
        });
        assert_eq!(ended, Ok(()), "the opener itself is not cancelled");
    });
}

#[test]
fn a_token_cancels_what_was_added_and_its_children() {
    both_kinds(|node, _, n| {
        let token = CancelToken::new();
        let child = token.child();
        let add = |token: &CancelToken| {
            let task = start(node, n - 1, || ums::sleep(HOUR));
            token.add(task.cancel_handle());
            task
        };
        let tasks = [add(&token), add(&child), add(&child)];
        let waiter = token.clone();
        let waiter = start(node, 0, move || waiter.wait());
        eventually("all wait", || waiting(node, WaitReason::SLEEP) == 3);
        assert_eq!(token.wait_for(SHORT), Err(TIMED_OUT));
        token.cancel();
        for task in tasks {
            assert_eq!(task.join().unwrap(), Err(CANCELLED));
        }
        assert_eq!(waiter.join().unwrap(), Ok(()));
        assert!(child.is_cancelled() && token.child().is_cancelled());
        let late = add(&child).join();
        assert!(matches!(late, Ok(Err(CANCELLED)) | Err(JoinError::NeverRan)), "{late:?}");
    });
}

#[test]
fn a_token_forgets_tasks_that_have_ended() {
    both_kinds(|node, _, _| {
        let (token, kept) = (CancelToken::new(), Arc::new(()));
        for _ in 0..100 {
            let kept = kept.clone();
            // The result stays in the task's memory, because it is not joined.
            let task = node.spawn(move || kept).unwrap();
            token.add(task.cancel_handle());
            eventually("it has ended", || task.is_finished());
        }
        assert!(Arc::strong_count(&kept) <= 40, "{} results", Arc::strong_count(&kept));
        drop(token);
        eventually("all are gone", || Arc::strong_count(&kept) == 1);
    });
}

#[test]
fn a_scope_hears_a_cancellation_after_its_time_is_over() {
    both_kinds(|node, _, n| {
        let (begun, begins) = std::sync::mpsc::channel();
        let task = start(node, n - 1, move || {
            with_timeout(SHORT, || {
                ums::scope(|s| {
                    s.spawn(|| {
                        assert_eq!(ums::sleep(HOUR), Err(TIMED_OUT));
                        begun.send(()).unwrap();
                        let began = Instant::now();
                        while !ums::is_cancelled() {
                            ums::yield_now();
                            assert!(began.elapsed() < PATIENCE, "the task was not cancelled");
                        }
                    });
                });
            });
        });
        begins.recv().unwrap();
        task.cancel();
        task.join().unwrap();
    });
}

#[test]
fn the_tasks_of_a_child_that_is_gone_are_the_parents() {
    both_kinds(|node, _, n| {
        let parent = CancelToken::new();
        let task = start(node, n - 1, || ums::sleep(HOUR));
        let (child, grandchild) = (parent.child(), parent.child().child());
        child.add(task.cancel_handle());
        drop(child);
        eventually("it waits", || waiting(node, WaitReason::SLEEP) == 1);
        parent.cancel();
        assert_eq!(task.join().unwrap(), Err(CANCELLED));
        assert!(grandchild.is_cancelled());
        // A child that goes after its parent was cancelled.
        let late = start(node, n - 1, || ums::sleep(HOUR));
        grandchild.add(late.cancel_handle());
        assert!(matches!(late.join(), Ok(Err(CANCELLED)) | Err(JoinError::NeverRan)));
    });
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("on purpose, in a destructor");
    }
}

#[test]
fn a_scope_waits_for_its_tasks_although_a_destructor_panics_as_it_cancels_them() {
    both_kinds(|node, _, _| {
        on(node, 0, || {
            let ended = AtomicUsize::new(0);
            for body_panics in [true, false] {
                let body = || {
                    ums::scope(|s| {
                        let foreign = ums::spawn(|| Bomb);
                        while !foreign.is_finished() {
                            ums::yield_now();
                        }
                        // The handle is the last reference to the result.
                        s.cancel_token().add(foreign.cancel_handle());
                        drop(foreign);
                        s.spawn(|| sleeps(&ended));
                        ums::yield_now();
                        if body_panics {
                            panic!("on purpose");
                        }
                        s.cancel();
                    });
                };
                assert_eq!(catch_unwind(AssertUnwindSafe(body)).is_err(), body_panics);
                let seen = ended.load(SeqCst);
                ums::sleep(SHORT).unwrap();
                assert_eq!(ended.load(SeqCst), seen, "a task has outlived its scope");
            }
        });
    });
}

#[test]
fn a_shutdown_ends_what_scopes_and_groups_wait_for() {
    each_end(
        |b| b,
        |node, _, n| {
            for at in 0..n {
                let waits = || {
                    ums::scope(|s| {
                        s.spawn(|| ums::sleep(HOUR));
                        s.spawn(|| ums::scope(|s| drop(s.spawn(|| ums::sleep(HOUR)))));
                        let _ = task_group(|group| {
                            group.spawn(|| ums::sleep(HOUR));
                            while group.next()?.is_some() {}
                            Ok::<_, WaitError>(())
                        });
                    });
                };
                drop(start(&node, at, waits));
            }
            eventually("all wait", || waiting(&node, WaitReason::SLEEP) == 3 * n);
            let ShutdownReport { left, .. } = node.shutdown(ms(1));
            assert_eq!(left, 0);
        },
    );
}

#[test]
fn a_computing_task_hears_its_scope_at_a_checkpoint() {
    both_kinds(|node, _, n| {
        let computes = Arc::new(AtomicBool::new(false));
        let theirs = computes.clone();
        let task = start(node, n - 1, move || {
            ums::scope(|s| {
                let task = s.spawn(|| {
                    theirs.store(true, SeqCst);
                    let began = Instant::now();
                    while ums::checkpoint().is_ok() {
                        spin(SHORT / 10);
                        assert!(began.elapsed() < PATIENCE, "the task was not cancelled");
                    }
                });
                drop(task);
            });
        });
        eventually("it computes", || computes.load(SeqCst));
        task.cancel();
        task.join().unwrap();
    });
}
