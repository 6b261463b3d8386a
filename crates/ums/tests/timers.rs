//! Timers: their list, when a turn handles them, and the effect of a timer that expires (U67-U71,
//! G12).

#![allow(unsafe_code)] // For the harness.

mod common;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use common::*;
use ums::net::UnixStream;
use ums::stats::WorkerState;
use ums::testing::{lists, scheduler};
use ums::user::UserLock;
use ums::{WaitError, WorkerKind};

/// Yields until this many workers of this scheduler wait.
fn until_waiting(count: usize) {
    eventually("they wait", || lists().waiting.len() == count);
}

#[test]
fn a_wait_with_a_timeout_is_on_the_timer_list_too_u67() {
    each_alone(
        |b| b,
        |node, _, n| {
            for i in 0..n {
                on(node, i, || {
                    let lock = Arc::new(UserLock::new());
                    lock.acquire(1, None).unwrap();
                    let theirs = lock.clone();
                    let waiter = ums::spawn(move || theirs.acquire(2, Some(ms(60_000))));
                    until_waiting(1);
                    assert_eq!((lists().timers, lock.waiters()), (1, 1), "on both lists");
                    lock.release(1);
                    waiter.join().unwrap().unwrap();
                    assert_eq!(lists().timers, 0, "a wait that was granted leaves no timer");
                    lock.release(2);

                    // A wait without a timeout has no timer.
                    lock.acquire(1, None).unwrap();
                    let theirs = lock.clone();
                    let waiter = ums::spawn(move || theirs.acquire(2, None));
                    until_waiting(1);
                    assert_eq!(lists().timers, 0);
                    lock.release(1);
                    waiter.join().unwrap().unwrap();
                    lock.release(2);
                });
            }
        },
    );
}

#[test]
fn a_wait_that_times_out_leaves_the_resources_queue_u69() {
    each_alone(
        |b| b,
        |node, _, n| {
            for i in 0..n {
                on(node, i, || {
                    let lock = Arc::new(UserLock::new());
                    lock.acquire(1, None).unwrap();
                    let theirs = lock.clone();
                    let waiter = ums::spawn(move || theirs.acquire(2, Some(ms(5))));
                    assert_eq!(waiter.join().unwrap(), Err(WaitError::TimedOut));
                    assert_eq!((lists().timers, lock.waiters()), (0, 0));
                    lock.release(1);
                    assert_eq!(lock.owner(), None, "it is not handed to a waiter that gave up");
                });
            }
        },
    );
}

#[test]
fn an_expired_timer_leaves_its_list_and_its_worker_is_runnable_u69() {
    each_alone(
        |b| b,
        |node, _, n| {
            on(node, n - 1, || {
                let (me, log) = (lists().current, Log::default());
                let sleepers: Vec<_> = (0..2)
                    .map(|_| {
                        let log = log.clone();
                        ums::spawn(move || {
                            ums::sleep(ms(100)).unwrap();
                            log.push(lists());
                        })
                    })
                    .collect();
                until_waiting(2);
                assert_eq!((lists().timers, log.len()), (2, 0));
                let [first, second] = lists().waiting[..] else { panic!("two wait") };
                spin(ms(120));
                assert_eq!((lists().timers, log.len()), (2, 0), "only a yield checks timers");
                ums::yield_now();
                // What the first sleeper saw when it ran: both timers had left the timer list,
                // and the runnable list held the other sleeper and then the yielder.
                let seen = log.all();
                assert_eq!(seen[0].current, first);
                assert_eq!(seen[0].timers, 0);
                assert_eq!(seen[0].runnable, [second, me]);
                assert!(seen[0].waiting.is_empty());
                for sleeper in sleepers {
                    sleeper.join().unwrap();
                }
            });
        },
    );
}

/// Two workers signal each other. Each wait has a time limit that is never reached.
fn arm_and_cancel(rounds: usize) {
    let [mine, theirs] = [0, 1].map(|_| Arc::new(ums::sync::Event::auto(false)));
    let (set, wait) = (mine.clone(), theirs.clone());
    let other = ums::spawn(move || {
        for _ in 0..rounds {
            wait.wait_for(ms(3_600_000)).expect("the event is set");
            set.set();
        }
    });
    for _ in 0..rounds {
        theirs.set();
        mine.wait_for(ms(3_600_000)).expect("the event is set");
        assert!(lists().timers <= 2);
    }
    other.join().unwrap();
    assert_eq!(lists().timers, 0);
}

#[test]
fn a_million_time_limits_are_set_and_removed_and_none_expires() {
    each_alone(
        |b| b,
        |node, kind, n| {
            // A switch of threads costs a hundred times as much as one of fibers.
            let rounds = if kind == WorkerKind::Thread { 5_000 } else { 500_000 };
            on(node, n - 1, move || arm_and_cancel(rounds));
        },
    );
}

/// Lets a timer of this span expire, and then I/O complete, in one turn. Returns the order in which
/// they were noticed, or None if the timer expired while the test still prepared the I/O.
fn both_in_one_turn(span: Duration) -> Option<Vec<&'static str>> {
    let log = Log::default();
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let note = log.clone();
    // The sleeper begins to wait before the reader does, which shows that the order in which waits
    // begin does not matter.
    let sleeper = ums::spawn(move || {
        ums::sleep(span).unwrap();
        note.push("timer");
    });
    eventually("it sleeps", || lists().waiting.len() == 1 || log.len() > 0);
    let note = log.clone();
    let reader = ums::spawn(move || {
        there.read_exact(&mut [0]).unwrap();
        note.push("I/O");
    });
    // A ring accepts submitted requests within this many yields.
    (0..100).for_each(|_| ums::yield_now());
    let in_time = log.len() == 0 && lists().waiting.len() == 2;
    if in_time {
        spin(span + ms(20)); // the timer is due
    }
    here.write_all(b"x").unwrap();
    spin(ms(1)); // the completion is there, and a check for it is due
    ums::yield_now();
    let seen = log.all();
    sleeper.join().unwrap();
    reader.join().unwrap();
    in_time.then_some(seen)
}

#[test]
fn timers_come_after_io_in_a_turn_u68_g3() {
    each_alone(
        |b| b,
        |node, _, n| {
            on(node, n - 1, || {
                // On a computer that does many other things the preparation takes long.
                let seen = [100, 1_000, 10_000].into_iter().find_map(|n| both_in_one_turn(ms(n)));
                let seen = seen.expect("ten seconds are enough for the preparation");
                assert_eq!(seen, ["I/O", "timer"], "one turn found both, in this order");
            });
        },
    );
}

/// Checks what a sleeper sees when its timer expires while the only other worker is one that
/// yields.
fn expire_on_an_empty_list(kind: WorkerKind) {
    let what = |b: ums::Builder| b.placement(ums::node::Placement::AlwaysPreferred);
    for n in COUNTS {
        one_kind(
            kind,
            |b| what(b.schedulers(n)),
            |node| {
                for i in 0..n {
                    let handle = node.clone();
                    on(node, i, move || {
                        let log = Log::default();
                        let note = log.clone();
                        let sleeper = ums::spawn(move || {
                            ums::sleep(ms(100)).unwrap();
                            note.push((lists(), thread_number()));
                        });
                        until_waiting(1);
                        assert!(lists().runnable.is_empty());
                        let switches = || scheduler(&handle, i).counters.context_switches;
                        let before = switches();
                        ums::yield_now();
                        assert_eq!(switches(), before, "nothing is due: the yielder continues");
                        spin(ms(120));
                        ums::yield_now();
                        let (seen, thread) = log.all().pop().expect("the sleeper was next");
                        assert_eq!(seen.runnable, [lists().current], "the yielder parked");
                        let same = thread == thread_number();
                        assert_eq!(same, kind == WorkerKind::Fiber, "{thread}");
                        assert_eq!(switches(), before + 2, "to it and back, no other switch");
                        sleeper.join().unwrap();
                    });
                }
            },
        );
    }
}

#[test]
fn with_an_empty_runnable_list_the_expired_ones_thread_is_signalled_u70_g12() {
    expire_on_an_empty_list(WorkerKind::Thread);
}

#[test]
fn with_an_empty_runnable_list_the_expired_ones_fiber_is_switched_to_u71_g12() {
    expire_on_an_empty_list(WorkerKind::Fiber);
}

#[test]
fn sleepers_wake_in_the_order_of_their_deadlines_and_never_early_u67() {
    both_kinds(|node, _, _| {
        node.run(|| {
            let (woken, spans) = (Arc::new(AtomicU64::new(0)), [9, 1, 30, 0, 17, 4, 60, 2]);
            let sleepers: Vec<_> = spans
                .map(|span| {
                    let woken = woken.clone();
                    ums::spawn(move || {
                        let began = std::time::Instant::now();
                        ums::sleep(ms(span)).unwrap();
                        assert!(began.elapsed() >= ms(span), "early: {:?}", began.elapsed());
                        woken.fetch_add(1, SeqCst);
                    })
                })
                .into();
            for sleeper in sleepers {
                sleeper.join().unwrap();
            }
            assert_eq!(woken.load(SeqCst), 8);
        });
    });
}

#[test]
fn a_sleep_that_is_cancelled_leaves_no_timer_b59() {
    each_alone(
        |b| b,
        |node, _, n| {
            for i in 0..n {
                on(node, i, || {
                    let sleeper = ums::spawn(|| ums::sleep(ms(600_000)));
                    until_waiting(1);
                    assert_eq!(lists().timers, 1);
                    sleeper.cancel();
                    assert_eq!(sleeper.join().unwrap(), Err(WaitError::Cancelled));
                    assert_eq!(lists().timers, 0);
                });
            }
        },
    );
}

#[test]
fn a_waiting_worker_is_seen_to_wait_from_outside_u67() {
    both_kinds(|node, _, n| {
        let sleeper = start(node, n - 1, || ums::sleep(ms(600_000)));
        eventually("it waits", || {
            let view = scheduler(node, n - 1);
            let waits = |w: &ums::testing::WorkerSnapshot| {
                w.state == WorkerState::Waiting && w.reason == ums::WaitReason::SLEEP
            };
            view.workers.iter().any(waits) && view.counters.timers == 1
        });
        sleeper.cancel();
        assert_eq!(sleeper.join().unwrap(), Err(WaitError::Cancelled));
    });
}
