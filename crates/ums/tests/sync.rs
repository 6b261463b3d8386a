//! Synchronisation between workers: the same behaviour with every worker kind, across schedulers,
//! and with plain threads.
//!
//! Each primitive has tests beside its code, which use plain threads. Here workers wait: after a
//! lost wake-up a test would hang, and a worker that ran twice would give a wrong count.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{both_kinds, each_alone, eventually, ms};
#[cfg(debug_assertions)]
use common::{on, start};
use ums::sync::channel::{RecvError, bounded, oneshot, rendezvous, unbounded};
use ums::sync::{Barrier, Condvar, Event, Mutex, OnceCell, RwLock, Select, Semaphore};
use ums::{WaitError, spawn, yield_now};

#[test]
fn waiters_of_a_mutex_run_in_order_and_not_before_the_owner_yields_u53_u55_u56() {
    each_alone(
        |b| b,
        |node, _, _| {
            node.run(|| {
                let (m, here) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
                let ran = Arc::new(AtomicUsize::new(0));
                let held = m.lock();
                let tasks: Vec<_> = (0..4)
                    .map(|i| {
                        let (m, here, ran) = (m.clone(), here.clone(), ran.clone());
                        spawn(move || {
                            let order = here.fetch_add(1, Ordering::Relaxed);
                            let mut list = m.lock();
                            ran.fetch_add(1, Ordering::Relaxed);
                            list.push((order, i));
                        })
                    })
                    .collect();
                eventually("all four have come", || here.load(Ordering::Relaxed) == 4);
                yield_now();
                drop(held);
                // The first waiter owns the lock now. None of the waiters has run, because this
                // worker has not yielded.
                assert!(m.try_lock().is_none());
                assert_eq!(ran.load(Ordering::Relaxed), 0);
                tasks.into_iter().for_each(|t| t.join().unwrap());
                let order: Vec<_> = m.lock().iter().map(|(order, _)| *order).collect();
                assert_eq!(order, [0, 1, 2, 3]);
            });
        },
    );
}

#[test]
fn workers_of_all_schedulers_and_plain_threads_share_a_mutex_g6() {
    const EACH: usize = 300;
    both_kinds(|node, _, n| {
        let total = Arc::new(Mutex::new(0));
        let add = |total: Arc<Mutex<usize>>| {
            for i in 0..EACH {
                let mut total = total.lock();
                let before = *total;
                if i % 16 == 0 {
                    yield_now();
                }
                *total = before + 1;
            }
        };
        let workers = 0..4 * n;
        let tasks: Vec<_> = workers
            .map(|i| {
                let total = total.clone();
                node.spawn_on(i % n, move || add(total)).unwrap()
            })
            .collect();
        let outside = total.clone();
        let plain = std::thread::spawn(move || add(outside));
        tasks.into_iter().for_each(|t| t.join().unwrap());
        plain.join().unwrap();
        assert_eq!(*total.lock(), EACH * (4 * n + 1));
    });
}

#[test]
fn a_leaving_writer_moves_all_waiting_readers_u54() {
    each_alone(
        |b| b,
        |node, _, _| {
            node.run(|| {
                let lock = Arc::new(RwLock::new(0));
                let (came, inside) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(3)));
                let mut held = lock.write();
                let readers: Vec<_> = (0..3)
                    .map(|_| {
                        let (lock, came, inside) = (lock.clone(), came.clone(), inside.clone());
                        spawn(move || {
                            came.fetch_add(1, Ordering::Relaxed);
                            let value = lock.read();
                            // The barrier opens only if all three readers hold the lock at the same
                            // time.
                            inside.wait().unwrap();
                            *value
                        })
                    })
                    .collect();
                eventually("all readers have come", || came.load(Ordering::Relaxed) == 3);
                yield_now();
                *held = 7;
                drop(held);
                assert!(readers.into_iter().all(|r| r.join().unwrap() == 7));
            });
        },
    );
}

#[test]
fn a_cancelled_request_leaves_its_wait_and_owns_nothing_b59() {
    both_kinds(|node, _, _| {
        let m = Arc::new(Mutex::new(()));
        let held = m.lock();
        let (inner, ready) = (m.clone(), Arc::new(Event::auto(false)));
        let tell = ready.clone();
        let task = node
            .spawn(move || {
                tell.set();
                inner.lock_for(std::time::Duration::MAX).err()
            })
            .unwrap();
        ready.wait().unwrap();
        task.cancel();
        assert_eq!(task.join().unwrap(), Some(WaitError::Cancelled));
        drop(held);
        assert!(m.try_lock().is_some());
    });
}

#[test]
fn deadlines_end_waits_of_workers_b23() {
    both_kinds(|node, _, _| {
        node.run(|| {
            let (_tx, rx) = unbounded::<u8>();
            assert_eq!(rx.recv_for(ms(1)), Err(RecvError::Wait(WaitError::TimedOut)));
            assert_eq!(Event::manual(false).wait_for(ms(1)), Err(WaitError::TimedOut));
            assert!(Semaphore::new(0).acquire_for(ms(1)).is_err());
            assert!(Barrier::new(2).wait_for(ms(1)).is_err());
            let m = Mutex::new(());
            assert!(Condvar::new().wait_for(&mut m.lock(), ms(1)).is_err());
        });
    });
}

#[test]
fn messages_go_to_and_fro_between_workers_and_threads() {
    const ROUNDS: u32 = 500;
    both_kinds(|node, _, n| {
        for bound in [0, 1] {
            let ((to, from_us), (to_us, from)) = (bounded(bound), bounded(bound));
            let echo = move || from_us.iter().for_each(|n: u32| to_us.send(n + 1).unwrap());
            let echo = node.spawn_on(n - 1, echo).unwrap();
            let play = move || {
                for i in 0..ROUNDS {
                    to.send(i).unwrap();
                    assert_eq!(from.recv(), Ok(i + 1));
                }
            };
            if bound == 0 {
                std::thread::spawn(play).join().unwrap();
            } else {
                node.run(play);
            }
            echo.join().unwrap();
        }
    });
}

#[test]
fn select_wakes_a_worker_once_with_one_value() {
    const EACH: u64 = 500;
    both_kinds(|node, _, n| {
        let ((a, from_a), (b, from_b)) = (rendezvous(), unbounded());
        let send = |tx: ums::sync::channel::Sender<u64>| {
            move || (1..=EACH).for_each(|i| tx.send(i).unwrap())
        };
        let first = node.spawn_on(0, send(a)).unwrap();
        let second = node.spawn_on(n - 1, send(b)).unwrap();
        let sum = node.run(move || {
            let mut sum = 0;
            for _ in 0..2 * EACH {
                // The select reports the end of the channel that is closed first. From then on only
                // the other channel is received from.
                let either = Select::new().on(&from_a, |v| v).on(&from_b, |v| v).wait().unwrap();
                sum += either.unwrap_or_else(|_| from_b.recv().or_else(|_| from_a.recv()).unwrap());
            }
            sum
        });
        first.join().unwrap();
        second.join().unwrap();
        assert_eq!(sum, EACH * (EACH + 1));
    });
}

#[test]
fn one_worker_makes_the_value_and_may_wait_meanwhile() {
    both_kinds(|node, _, n| {
        let (cell, made) = (Arc::new(OnceCell::new()), Arc::new(AtomicUsize::new(0)));
        let tasks: Vec<_> = (0..8)
            .map(|i| {
                let (cell, made) = (cell.clone(), made.clone());
                let make = move || {
                    ums::sleep(ms(2)).unwrap();
                    made.fetch_add(1, Ordering::Relaxed) + 5
                };
                node.spawn_on(i % n, move || *cell.get_or_init(make)).unwrap()
            })
            .collect();
        assert!(tasks.into_iter().all(|t| t.join().unwrap() == 5));
        assert_eq!(made.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_mixed_crowd_loses_nothing() {
    const EACH: usize = 150;
    both_kinds(|node, _, n| {
        let permits = Arc::new(Semaphore::new(2));
        let (items, changed) = (Arc::new(Mutex::new(0_usize)), Arc::new(Condvar::new()));
        let (tx, rx) = bounded(2);
        let makers: Vec<_> = (0..3)
            .map(|i| {
                let (permits, items, changed) = (permits.clone(), items.clone(), changed.clone());
                let tx = tx.clone();
                let make = move || {
                    for _ in 0..EACH {
                        let permit = permits.acquire();
                        yield_now();
                        *items.lock() += 1;
                        changed.notify_one();
                        drop(permit);
                        tx.send(1_usize).unwrap();
                    }
                };
                node.spawn_on(i % n, make).unwrap()
            })
            .collect();
        drop(tx);
        let (eaten, more) = (items.clone(), changed.clone());
        let eater = node.spawn(move || {
            for _ in 0..3 * EACH {
                let mut items = eaten.lock();
                more.wait_while(&mut items, |items| *items == 0).unwrap();
                *items -= 1;
            }
        });
        assert_eq!(rx.iter().sum::<usize>(), 3 * EACH);
        makers.into_iter().for_each(|m| m.join().unwrap());
        eater.unwrap().join().unwrap();
        assert_eq!((*items.lock(), permits.available()), (0, 2));
        let (tx, rx) = oneshot();
        node.spawn(move || tx.send(1).unwrap()).unwrap().join().unwrap();
        assert_eq!(rx.recv(), Ok(1));
    });
}

#[cfg(debug_assertions)]
#[test]
fn waiting_or_yielding_with_a_foreign_lock_panics_b53() {
    each_alone(
        |b| b,
        |node, _, _| {
            let outcome = |f: fn()| {
                let task = start(node, 0, move || {
                    let list = std::sync::Mutex::new(());
                    let held = ums::sync::foreign(list.lock().unwrap());
                    f();
                    drop(held);
                });
                match task.join() {
                    Err(ums::task::JoinError::Panicked(panic)) => {
                        panic.downcast_ref::<String>().expect("a sentence").clone()
                    }
                    other => format!("{other:?}"),
                }
            };
            let names_the_lock = |text: String| {
                assert!(
                    text.contains("holds a foreign lock: that of ") && text.contains("sync.rs"),
                    "{text}"
                );
            };
            names_the_lock(outcome(ums::yield_now));
            names_the_lock(outcome(|| ums::sleep(ms(1)).unwrap()));
            names_the_lock(outcome(|| {
                ums::go_preemptive(ums::WaitReason::PREEMPTIVE_EXTERNAL, || ())
            }));
            assert_eq!(outcome(|| ()), "Ok(())");
            // The worker that panicked can be used as before.
            on(node, 0, || ums::sleep(ms(1)).unwrap());
        },
    );
}
