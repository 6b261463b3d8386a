//! Tests of `spawn_future`: a pending future keeps no worker, is polled wherever it is woken, and
//! its result reaches the awaiter once.

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::task::{Poll, Waker};

use ums::future::{FutureTask, block_on, spawn_future};
use ums::lock::Lock;
use ums::task::JoinError;
use ums::{Node, WaitError};

use super::common::{
    both_kinds, both_kinds_with, each_end, eventually, kinds, ms, on, one_kind, start,
};
use super::{Shared, Told, again, fill, filled};

fn spawned<T: Send + 'static>(
    node: &Node,
    scheduler: usize,
    future: impl Future<Output = T> + Send + 'static,
) -> FutureTask<T> {
    on(node, scheduler, || spawn_future(future))
}

#[test]
fn pending_futures_keep_no_worker_and_each_output_arrives() {
    both_kinds_with(
        |b| b.max_workers(8),
        |node, _, n| {
            let slots: Vec<_> = (0..1000).map(|_| Shared::default()).collect();
            let of = |nth: usize| spawned(node, nth % n, filled(slots[nth].clone()));
            let tasks: Vec<_> = (0..slots.len()).map(of).collect();
            eventually("all are pending", || slots.iter().all(|slot| slot.lock().waker.is_some()));
            assert!(node.snapshot().workers.len() <= 8, "pending futures keep workers");
            assert!(tasks.iter().all(|task| !task.is_finished()));
            // Woken by workers and by this plain thread.
            let theirs: Vec<_> = slots[..500].to_vec();
            let filler = start(node, n - 1, move || theirs.iter().for_each(|slot| fill(slot, 1)));
            slots[500..].iter().for_each(|slot| fill(slot, 1));
            filler.join().unwrap();
            let sum = |tasks: Vec<FutureTask<u32>>| -> u32 {
                tasks.into_iter().map(|task| task.join().unwrap()).sum()
            };
            assert_eq!(on(node, 0, move || sum(tasks)), 1000);
        },
    );
}

#[test]
fn workers_that_await_futures_are_not_stranded() {
    both_kinds_with(
        |b| b.schedulers(1).max_workers(1),
        |node, _, _| {
            let joined = on(node, 0, || {
                let yields = || async {
                    for _ in 0..10 {
                        again().await;
                    }
                    1
                };
                let late = spawn_future(yields());
                let soon = spawn_future(yields());
                let inner = spawn_future(async { spawn_future(async { 3 }).await.unwrap() });
                [late.join().unwrap(), soon.join().unwrap(), inner.join().unwrap()]
            });
            assert_eq!(joined, [1, 1, 3]);
            let awaited = on(node, 0, || {
                let tasks: Vec<_> = (0..3).map(|n| spawn_future(async move { n })).collect();
                block_on(async {
                    let mut sum = 0;
                    for task in tasks {
                        sum += task.await.unwrap();
                    }
                    sum
                })
            });
            assert_eq!(awaited, Ok(3));
        },
    );
}

/// What a pending task awaits becomes urgent when a worker awaits that task.
#[test]
fn what_an_awaited_task_awaits_gets_a_worker() {
    both_kinds_with(
        |b| b.schedulers(1).max_workers(2),
        |node, _, _| {
            let polled = Arc::new(AtomicBool::new(false));
            let theirs = polled.clone();
            let (tell, told) = ums::sync::channel::bounded(1);
            let blocker = start(node, 0, move || told.recv().unwrap());
            let joined = on(node, 0, move || {
                let task = spawn_future(async move {
                    // No worker is left for this one: one waits, and the other is the caller.
                    let inner = ums::spawn(|| 4);
                    theirs.store(true, SeqCst);
                    inner.await.unwrap()
                });
                let unpolled = !polled.load(SeqCst);
                let joined = task.join().unwrap();
                tell.send(()).unwrap();
                (unpolled, joined)
            });
            assert_eq!(joined, (true, 4));
            blocker.join().unwrap();
        },
    );
    // The same for a task that was pending before.
    both_kinds_with(
        |b| b.schedulers(1).max_workers(2),
        |node, _, _| {
            let (go, gone) = ums::sync::channel::bounded::<()>(1);
            let slot = Shared::default();
            let theirs = slot.clone();
            let inner = spawned(node, 0, async move {
                filled(theirs).await;
                ums::spawn(|| 4).await.unwrap()
            });
            let outer = spawned(node, 0, async move { inner.await.unwrap() });
            eventually("it is pending", || slot.lock().waker.is_some());
            let blocker = start(node, 0, move || gone.recv().unwrap());
            let joiner = start(node, 0, move || outer.join().unwrap());
            eventually("both workers wait", || super::waiting(node) == 1);
            fill(&slot, 1);
            assert_eq!(joiner.join().unwrap(), 4);
            go.send(()).unwrap();
            blocker.join().unwrap();
        },
    );
}

#[test]
fn a_panic_reaches_the_awaiter_and_nothing_else() {
    both_kinds(|node, _, _| {
        on(node, 0, || {
            let task = spawn_future(async {
                again().await;
                std::panic::panic_any(5)
            });
            let Err(JoinError::Panicked(panic)) = task.join() else { panic!("it is carried") };
            assert_eq!(panic.downcast_ref(), Some(&5));
            assert_eq!(spawn_future(async { 6 }).join().unwrap(), 6);
        });
    });
}

#[test]
fn a_cancelled_future_is_dropped_and_a_dropped_handle_changes_nothing() {
    both_kinds(|node, _, n| {
        let dropped = Arc::new(AtomicBool::new(false));
        let told = Told(dropped.clone());
        let task = spawned(node, n - 1, async move {
            pending::<()>().await;
            drop(told);
        });
        task.cancel();
        eventually("it is dropped", || dropped.load(SeqCst));

        let (slot, done) = (Shared::default(), Arc::new(AtomicUsize::new(0)));
        let (theirs, count) = (slot.clone(), done.clone());
        drop(spawned(node, n - 1, async move {
            count.store(filled(theirs).await as usize, SeqCst);
        }));
        fill(&slot, 7);
        eventually("it goes on", || done.load(SeqCst) == 7);
    });
}

#[test]
fn a_join_that_ends_early_gives_the_handle_back() {
    both_kinds(|node, _, n| {
        let slot = Shared::default();
        let mut task = spawned(node, n - 1, filled(slot.clone()));
        let early = task.join_for(ms(1));
        assert!(matches!(early, Err(JoinError::Wait((), WaitError::TimedOut))), "{early:?}");
        let waiter = start(node, 0, move || task.join());
        eventually("it waits", || super::waiting(node) == 1);
        waiter.cancel();
        let joined = waiter.join().unwrap();
        let Err(JoinError::Wait(task, WaitError::Cancelled)) = joined else { panic!("{joined:?}") };
        fill(&slot, 9);
        assert_eq!(task.join().unwrap(), 9, "on a plain thread");
    });
}

#[test]
fn another_runtime_awaits_a_spawned_future() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    both_kinds(|node, _, n| {
        let task = spawned(node, n - 1, async {
            again().await;
            11
        });
        assert_eq!(runtime.block_on(task).unwrap(), 11);
    });
}

#[test]
fn a_shutdown_leaves_no_future_behind() {
    each_end(
        |b| b,
        |node, _, n| {
            let wakers = Arc::new(Lock::new(Vec::<Waker>::new()));
            let dropped = Arc::new(AtomicBool::new(false));
            let (theirs, told) = (wakers.clone(), Told(dropped.clone()));
            let task = spawned(&node, n - 1, async move {
                let _told = told;
                poll_fn(|context| {
                    theirs.lock().push(context.waker().clone());
                    Poll::<()>::Pending
                })
                .await;
            });
            eventually("it is pending", || !wakers.lock().is_empty());
            assert_eq!(node.shutdown(ms(1000)).left, 0);
            let wakers = std::mem::take(&mut *wakers.lock());
            wakers.into_iter().for_each(Waker::wake);
            assert!(dropped.load(SeqCst), "a woken future of a node that is gone");
            assert!(matches!(task.join(), Err(JoinError::NeverRan)));
        },
    );
}

/// Wakers of many threads, while polls run: no wake-up is lost.
#[test]
fn no_wake_of_a_spawned_future_is_lost() {
    const EACH: usize = 300;
    both_kinds(|node, _, n| {
        let state = Arc::new((AtomicUsize::new(0), Lock::new(None::<Waker>)));
        let theirs = state.clone();
        let task = spawned(
            node,
            0,
            poll_fn(move |context| {
                *theirs.1.lock() = Some(context.waker().clone());
                if theirs.0.load(SeqCst) == 4 * EACH { Poll::Ready(1) } else { Poll::Pending }
            }),
        );
        let wake = |state: &(AtomicUsize, Lock<Option<Waker>>)| {
            for _ in 0..EACH {
                state.0.fetch_add(1, SeqCst);
                let waker = state.1.lock().take();
                waker.into_iter().for_each(Waker::wake);
            }
        };
        let workers: Vec<_> = (0..2)
            .map(|k| {
                let state = state.clone();
                start(node, k % n, move || wake(&state))
            })
            .collect();
        std::thread::scope(|s| (0..2).for_each(|_| drop(s.spawn(|| wake(&state)))));
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(task.join().unwrap(), 1);
    });
}

/// A poll is part of a task that was accepted: it waits for a worker as long as it takes.
#[test]
fn a_poll_outlives_the_queue_timeout() {
    let one = |b: ums::Builder| b.schedulers(1).max_workers(1).queue_timeout(ms(2000));
    for kind in kinds() {
        one_kind(kind, one, |node| {
            let slot = Shared::default();
            let task = spawned(node, 0, filled(slot.clone()));
            eventually("it is pending", || slot.lock().waker.is_some());
            let ((tell, runs), (release, released)) = (channel::<()>(), channel::<()>());
            let holder = start(node, 0, move || {
                tell.send(()).unwrap();
                // The thread blocks, and the poll has no other worker.
                released.recv().unwrap();
            });
            runs.recv().unwrap();
            fill(&slot, 3);
            std::thread::sleep(ms(2200));
            release.send(()).unwrap();
            // Not awaited by a worker, so the poll is not urgent.
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            assert_eq!(runtime.block_on(task).unwrap(), 3);
            holder.join().unwrap();
        });
    }
}

/// The destructors of a future and of an output panic where no panic may pass.
#[test]
fn destructors_that_panic_harm_nothing_else() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("on purpose, in a destructor");
            }
        }
    }
    both_kinds(|node, _, n| {
        let bomb = Bomb;
        let task = spawned(node, n - 1, async move {
            again().await;
            std::hint::black_box(&bomb);
            1
        });
        // The bomb is dropped at the end of the future, which therefore panics.
        assert!(matches!(task.join(), Err(JoinError::Panicked(_))));
        let bomb = Bomb;
        let pending = spawned(node, n - 1, async move {
            pending::<()>().await;
            drop(bomb);
        });
        pending.cancel();
        // The output that nothing takes.
        drop(spawned(node, n - 1, async { Bomb }));
        assert_eq!(spawned(node, n - 1, async { 6 }).join().unwrap(), 6);
    });
}

/// A worker awaits a future when the shutdown begins; a plain thread wakes the future after that.
#[test]
fn a_shutdown_lets_an_awaited_future_end() {
    each_end(
        |b| b,
        |node, _, n| {
            let slot = Shared::default();
            let theirs = slot.clone();
            let waiter = start(&node, n - 1, move || {
                let task = spawn_future(filled(theirs));
                task.join().map_err(|_| ())
            });
            eventually("it waits", || super::waiting(&node) == 1);
            std::thread::scope(|scope| {
                let ends = scope.spawn(|| node.shutdown(ms(20_000)));
                std::thread::sleep(ms(20));
                fill(&slot, 8);
                assert_eq!(ends.join().unwrap().left, 0);
            });
            assert_eq!(waiter.join().unwrap(), Ok(8));
        },
    );
}
