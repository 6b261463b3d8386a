//! How things end: panics, cancellations, and the shutdown of a node (G13, B59, rules 10 and 11).

#![allow(unsafe_code)] // For the harness.

mod common;

use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::*;
use ums::WorkerKind;
use ums::net::UnixStream;
use ums::node::{EnqueueError, HiddenOptions, ShutdownReport};
use ums::stats::WorkerState;
use ums::task::JoinError;
use ums::testing::{lists, scheduler};
use ums::{WaitError, WaitReason};

const LATE: Duration = Duration::from_secs(600);
const GRACE: Duration = Duration::from_secs(30);
const NO_GRACE: Duration = Duration::ZERO;

#[test]
fn a_panic_ends_its_request_and_the_worker_continues_g13() {
    each_alone(
        |b| b,
        |node, _, n| {
            for i in 0..n {
                on(node, i, || {
                    let bad = ums::spawn(|| {
                        let me = ums::worker::worker_id();
                        std::panic::resume_unwind(Box::new(me))
                    });
                    let ended: Result<(), _> = bad.join();
                    let Err(JoinError::Panicked(panic)) = ended else {
                        panic!("its error says that it panicked")
                    };
                    let worker = *panic.downcast::<Option<(usize, u32)>>().unwrap();
                    // The worker that became idle last takes the next request.
                    let next = ums::spawn(ums::worker::worker_id).join().unwrap();
                    assert_eq!(next, worker, "the worker continues");
                });
            }
        },
    );
}

/// A panic's payload whose destructor panics.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        std::panic::resume_unwind(Box::new("a payload panics when it is dropped"));
    }
}

#[test]
fn a_payload_that_panics_when_it_is_dropped_ends_nothing_else_g13() {
    each_alone(
        |b| b,
        |node, _, n| {
            for i in 0..n {
                let alone = Arc::new(AtomicBool::new(false));
                let nobody_joins = alone.clone();
                drop(start(node, i, move || {
                    eventually("its handle is gone", || nobody_joins.load(SeqCst));
                    std::panic::resume_unwind(Box::new(Bomb))
                }));
                alone.store(true, SeqCst);
                on(node, i, || {
                    let (mine, theirs) = StdStream::pair().unwrap();
                    let routine = |_| std::panic::resume_unwind(Box::new(Bomb));
                    ums::testing::when_readable(mine.as_raw_fd(), routine);
                    drop(theirs);
                    eventually("the routine has run", || lists().io == 0);
                });
                eventually("its panic is counted", || scheduler(node, i).counters.panics == 1);
                assert_eq!(on(node, i, || 7), 7);
            }
        },
    );
}

#[test]
fn a_node_that_its_own_worker_drops_shuts_down_g13() {
    for kind in kinds() {
        for away in [false, true] {
            let _turn = turn();
            let _watch = Watchdog::start(format!("{kind:?} workers, away {away}"));
            let node = build(kind, |b| b.schedulers(2));
            let handle = node.clone();
            let last = handle.spawn(move || {
                if away {
                    ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || drop(node));
                } else {
                    drop(node);
                }
            });
            drop(last);
            eventually("it takes no more", || handle.spawn(|| ()).is_err());
            eventually("every thread of the node has ended", || node_threads().is_empty());
        }
    }
}

#[test]
fn running_requests_finish_within_the_grace_time_g13() {
    each_end(
        |b| b,
        |node, _, n| {
            let done = Arc::new(AtomicUsize::new(0));
            for i in 0..4 * n {
                let done = done.clone();
                let task = move || {
                    ums::sleep(ms(30)).unwrap();
                    ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || {
                        std::thread::sleep(ms(5));
                    });
                    ums::spawn(|| ums::sleep(ms(1))).join().unwrap().unwrap();
                    done.fetch_add(1, SeqCst);
                };
                drop(start(&node, i % n, task));
            }
            eventually("they run", || scheduler(&node, n - 1).counters.waiting > 0);
            assert_eq!(node.shutdown(GRACE), ShutdownReport::default());
            assert_eq!(done.load(SeqCst), 4 * n);
        },
    );
}

#[test]
fn queued_requests_still_run_within_the_grace_time_g13() {
    each_end(
        |b| b.placement(ums::node::Placement::AlwaysPreferred),
        |node, _, n| {
            let done = Arc::new(AtomicUsize::new(0));
            for i in 0..200 * n {
                let done = done.clone();
                let task = move || {
                    ums::yield_now();
                    done.fetch_add(1, SeqCst)
                };
                drop(start(&node, i % n, task));
            }
            assert_eq!(node.shutdown(GRACE), ShutdownReport::default());
            assert_eq!(done.load(SeqCst), 200 * n);
        },
    );
}

#[test]
fn requests_that_wait_too_long_are_cancelled_and_counted_g13_b59() {
    each_end(
        |b| b,
        |node, _, n| {
            let outcomes = Log::default();
            for i in 0..2 * n {
                let outcomes = outcomes.clone();
                drop(start(&node, i % n, move || outcomes.push(ums::sleep(LATE))));
            }
            let sleeping = || -> u64 { (0..n).map(|i| scheduler(&node, i).counters.timers).sum() };
            eventually("they sleep", || sleeping() == 2 * n as u64);
            let report = node.shutdown(NO_GRACE);
            assert_eq!(report, ShutdownReport { cancelled: 2 * n, left: 0 });
            assert_eq!(outcomes.all(), vec![Err(WaitError::Cancelled); 2 * n]);
        },
    );
}

#[test]
fn a_request_queued_too_long_never_runs_and_its_join_fails_g13() {
    each_end(
        |b| b.max_workers(4).placement(ums::node::Placement::AlwaysPreferred),
        |node, _, n| {
            let (stop, ran) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
            // This request does not yield, so the request behind it does not begin.
            let (still, runs) = (stop.clone(), Arc::new(AtomicBool::new(false)));
            let began = runs.clone();
            let busy = start(&node, n - 1, move || {
                began.store(true, SeqCst);
                while !still.load(SeqCst) {
                    std::hint::spin_loop();
                }
            });
            eventually("it runs", || runs.load(SeqCst));
            let flag = ran.clone();
            let behind = start(&node, n - 1, move || flag.store(true, SeqCst));
            let report = std::thread::scope(|s| {
                let ending = s.spawn(|| node.clone().shutdown(NO_GRACE));
                // The join fails immediately. Only then may the busy request end.
                assert!(matches!(behind.join(), Err(JoinError::NeverRan)));
                stop.store(true, SeqCst);
                ending.join().unwrap()
            });
            busy.join().unwrap();
            assert_eq!(report.left, 0);
            assert!(report.cancelled >= 1);
            assert!(!ran.load(SeqCst));
        },
    );
}

#[test]
fn outstanding_io_is_reaped_g13_rule_10() {
    each_end(
        |b| b,
        |node, _, n| {
            let mut ends = Vec::new();
            let errors = Log::default();
            for i in 0..2 * n {
                let (theirs, ours) = StdStream::pair().unwrap();
                ends.push(ours);
                let errors = errors.clone();
                let read = move || {
                    let error = UnixStream::from(theirs).read(&mut [0; 8]).unwrap_err();
                    errors.push(error.kind());
                };
                drop(start(&node, i % n, read));
            }
            let reading =
                || -> u64 { (0..n).map(|i| scheduler(&node, i).counters.pending_io).sum() };
            eventually("they read", || reading() == 2 * n as u64);
            let report = node.shutdown(NO_GRACE);
            assert_eq!(report, ShutdownReport { cancelled: 2 * n, left: 0 });
            assert_eq!(errors.len(), 2 * n);
        },
    );
}

#[test]
fn a_node_that_is_ending_takes_no_work_g13() {
    each_end(
        |b| b,
        |node, _, _| {
            let handle = node.clone();
            let own = node.hidden("own", HiddenOptions::default()).unwrap();
            assert_eq!(node.shutdown(GRACE), ShutdownReport::default());
            assert_eq!(handle.spawn(|| ()).unwrap_err(), EnqueueError::ShuttingDown);
            assert_eq!(handle.spawn_on(0, || ()).unwrap_err(), EnqueueError::ShuttingDown);
            assert_eq!(own.spawn(|| ()).unwrap_err(), EnqueueError::ShuttingDown);
            assert!(handle.hidden("new", HiddenOptions::default()).is_err());
            // A second shutdown finds nothing to do.
            assert_eq!(handle.shutdown(GRACE), ShutdownReport::default());
        },
    );
}

#[test]
fn dropping_the_owner_ends_the_node_and_dropping_a_handle_does_not_g13() {
    each_end(
        |b| b,
        |node, _, n| {
            drop(node.clone());
            assert_eq!(on(&node, n - 1, || 7), 7);
            drop(node);
        },
    );
}

#[test]
fn a_worker_may_not_end_its_own_node_g13() {
    both_kinds(|node, _, _| {
        let handle = node.clone();
        let ended = node.spawn(move || handle.shutdown(NO_GRACE)).unwrap().join();
        assert!(matches!(ended, Err(JoinError::Panicked(_))));
        assert_eq!(node.run(|| 7), 7, "the node is as it was");
    });
}

#[test]
fn hidden_schedulers_end_with_their_node_g13() {
    each_end(
        |b| b,
        |node, _, _| {
            let done = Arc::new(AtomicUsize::new(0));
            for name in ["one", "two", "three"] {
                let own = node.hidden(name, HiddenOptions { ready: 2, ..Default::default() });
                let done = done.clone();
                let work = move || {
                    ums::sleep(ms(10)).unwrap();
                    done.fetch_add(1, SeqCst)
                };
                drop(own.unwrap().spawn(work).unwrap());
            }
            assert_eq!(node.shutdown(GRACE), ShutdownReport::default());
            assert_eq!(done.load(SeqCst), 3);
        },
    );
}

#[test]
fn a_request_that_never_ends_is_reported_and_the_others_end_g13() {
    each_end(
        |b| b.placement(ums::node::Placement::AlwaysPreferred),
        |node, _, n| {
            let stop = Arc::new(AtomicBool::new(false));
            for i in 0..n {
                on(&node, i, || ());
            }
            let still = stop.clone();
            // This request neither yields nor waits, so it cannot be ended.
            let stuck = start(&node, 0, move || {
                while !still.load(SeqCst) {
                    std::thread::sleep(ms(1));
                }
            });
            eventually("it runs", || {
                let workers = scheduler(&node, 0).workers;
                workers.iter().any(|w| w.state == WorkerState::Running && w.request != 0)
            });
            let report = node.shutdown(ms(10));
            assert_eq!((report.cancelled, report.left), (1, 1));
            // When the request is released, it ends, and its scheduler ends with it.
            stop.store(true, SeqCst);
            stuck.join().unwrap();
        },
    );
}

#[test]
fn cancellation_is_seen_at_every_wait_and_checkpoint_b59() {
    type Wait = fn() -> bool;
    let waits: [(&str, Wait); 6] = [
        ("sleep", || ums::sleep(LATE) == Err(WaitError::Cancelled)),
        ("wait", || ums::sleep(Duration::MAX) == Err(WaitError::Cancelled)),
        ("join", || {
            let mut child = ums::spawn(|| ums::sleep(Duration::MAX));
            let ended =
                matches!(child.join_for(LATE), Err(JoinError::Wait((), WaitError::Cancelled)));
            child.cancel();
            // If a slow scheduler stole the child, it may never have begun.
            matches!(child.join_uncancellable(), Ok(_) | Err(JoinError::NeverRan)) && ended
        }),
        ("lock", || {
            let lock = ums::sync::Mutex::new(());
            let _held = lock.lock();
            let ended = matches!(lock.lock_for(LATE), Err(WaitError::Cancelled));
            ended
        }),
        ("checkpoint", || {
            while ums::checkpoint().is_ok() {
                ums::yield_now();
            }
            ums::is_cancelled()
        }),
        ("already", || {
            while !ums::is_cancelled() {
                ums::yield_now();
            }
            // A wait that begins after the cancellation fails immediately.
            ums::sleep(LATE) == Err(WaitError::Cancelled)
        }),
    ];
    both_kinds(|node, _, n| {
        for (name, wait) in waits {
            let begun = Arc::new(AtomicBool::new(false));
            let flag = begun.clone();
            let task = start(node, n - 1, move || {
                flag.store(true, SeqCst);
                wait()
            });
            eventually("it has begun", || begun.load(SeqCst));
            std::thread::sleep(ms(1));
            task.cancel();
            assert!(task.join().unwrap(), "{name} did not see it");
            // The same worker's next request is not cancelled.
            assert!(!on(node, n - 1, ums::is_cancelled));
            assert_eq!(on(node, n - 1, || ums::sleep(ms(1))), Ok(()));
        }
    });
}

#[test]
fn a_request_cancelled_before_it_begins_never_runs_b59() {
    each_alone(
        |b| b,
        |node, _, n| {
            for i in 0..n {
                on(node, i, || {
                    let ran = Arc::new(AtomicBool::new(false));
                    let flag = ran.clone();
                    let task = ums::spawn(move || flag.store(true, SeqCst));
                    task.cancel(); // this worker has not yielded since, so it cannot have begun
                    assert!(matches!(task.join(), Err(JoinError::NeverRan)));
                    ums::sleep(ms(1)).unwrap();
                    assert!(!ran.load(SeqCst));
                });
            }
        },
    );
}

/// Calls a closure when it is dropped.
struct Finally<F: FnMut()>(F);

impl<F: FnMut()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn a_destructor_may_wait_during_a_panic_and_no_sibling_sees_the_panic_rule_11() {
    each_alone(
        |b| b,
        |node, kind, n| {
            for i in 0..n {
                on(node, i, move || {
                    let stop = Arc::new(AtomicBool::new(false));
                    let (end, seen) = (stop.clone(), Log::default());
                    let note = seen.clone();
                    let sibling = ums::spawn(move || {
                        while !end.load(SeqCst) {
                            note.push(std::thread::panicking());
                            ums::yield_now();
                        }
                        // A closure that panics and catches its own panic.
                        std::panic::catch_unwind(|| std::panic::resume_unwind(Box::new(1))).is_err()
                    });
                    eventually("the sibling runs", || seen.len() > 0);
                    let waits = Log::default();
                    let outcome = waits.clone();
                    let falling = ums::spawn(move || {
                        let _guard = Finally(|| {
                            let began = Instant::now();
                            ums::yield_now();
                            let slept = ums::sleep(ms(20)).is_ok();
                            outcome.push((slept, began.elapsed() >= ms(20)));
                            ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || ());
                        });
                        std::panic::resume_unwind(Box::new("on purpose"))
                    });
                    let fell: Result<(), _> = falling.join();
                    assert!(matches!(fell, Err(JoinError::Panicked(_))));
                    assert_eq!(waits.all(), [(true, true)], "the destructor did its waits");
                    stop.store(true, SeqCst);
                    assert!(sibling.join().unwrap());
                    assert!(seen.all().iter().all(|panicking| !panicking), "in {kind:?} workers");
                });
            }
        },
    );
}

#[test]
fn an_endless_wait_during_a_panic_of_a_fiber_aborts_with_a_sentence_rule_11() {
    let me = "an_endless_wait_during_a_panic_of_a_fiber_aborts_with_a_sentence_rule_11";
    if let Some(n) = child_errand() {
        let node = build(WorkerKind::Fiber, |b| b.schedulers(n.parse().unwrap()));
        node.run(|| {
            let _guard = Finally(|| {
                let _ = ums::sleep(LATE);
            });
            std::panic::resume_unwind(Box::new("on purpose"))
        })
    }
    // Each node takes ten seconds, so all of them run at the same time.
    std::thread::scope(|s| {
        for n in COUNTS {
            s.spawn(move || {
                let output = run_child(me, &n.to_string());
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(!output.status.success());
                assert!(text.contains("in a destructor during a panic"), "{text}");
            });
        }
    });
}

#[test]
fn a_scope_ends_its_tasks_even_when_its_body_panics_g13() {
    both_kinds(|node, _, n| {
        on(node, n - 1, || {
            let mut ended = [false; 4];
            let begun = AtomicUsize::new(0);
            let body = std::panic::AssertUnwindSafe(|| {
                ums::scope(|s| {
                    for place in &mut ended {
                        let begun = &begun;
                        s.spawn(move || {
                            begun.fetch_add(1, SeqCst);
                            // The panic cancels it.
                            assert!(ums::sleep(Duration::from_secs(3600)).is_err());
                            ums::shield(|| ums::sleep(ms(5))).unwrap();
                            *place = true;
                        });
                    }
                    // A task that has not begun would never run.
                    while begun.load(SeqCst) < 4 {
                        ums::sleep(ms(1)).unwrap();
                    }
                    std::panic::resume_unwind(Box::new("on purpose"))
                })
            });
            let result: Result<(), _> = std::panic::catch_unwind(body);
            assert!(result.is_err());
            assert_eq!(ended, [true; 4], "all of them ended first");
        });
    });
}

#[test]
fn a_scope_on_the_only_worker_ends_g11() {
    for kind in kinds() {
        for n in COUNTS {
            one_kind(
                kind,
                |b| b.schedulers(n).max_workers(n).placement(ums::node::Placement::AlwaysPreferred),
                |node| {
                    for i in 0..n {
                        let sum = on(node, i, || {
                            let mut parts = [0; 8];
                            ums::scope(|s| {
                                for (at, part) in parts.iter_mut().enumerate() {
                                    s.spawn(move || {
                                        ums::yield_now();
                                        *part = at;
                                    });
                                }
                            });
                            let late = ums::spawn(|| ums::spawn(|| 14).join().unwrap());
                            parts.iter().sum::<usize>() + late.join().unwrap()
                        });
                        assert_eq!(sum, 42);
                    }
                },
            );
        }
    }
}

#[test]
fn joining_a_task_that_ends_while_it_is_cancelled_leaves_no_trace_b59_g13() {
    both_kinds(|node, _, n| {
        for round in 0..300_u64 {
            // The joiner's wait begins, is cancelled and finds the result at about the same time.
            let joiner = start(node, n - 1, move || {
                let mut child = ums::spawn(move || spin(Duration::from_micros(round % 40)));
                let joined = child.join_for(LATE);
                ums::yield_now();
                assert!(joined.is_ok() || ums::is_cancelled());
                drop(child); // not joined twice
                ums::sleep(Duration::ZERO)
            });
            spin(Duration::from_micros(round % 50));
            joiner.cancel();
            drop(joiner.join());
        }
        assert_eq!(on(node, n - 1, || lists().waiting.len()), 0);
    });
}

#[test]
fn external_calls_during_a_shutdown_do_no_harm_u85_g13() {
    each_end(
        |b| b,
        |node, _, n| {
            let hidden = node.hidden("errands", HiddenOptions::default()).unwrap();
            let answers = Log::default();
            for i in 0..n {
                let (hidden, answers) = (hidden.clone(), answers.clone());
                drop(start(&node, i, move || {
                    assert_eq!(ums::sleep(LATE), Err(WaitError::Cancelled));
                    // The node no longer accepts requests, but preemptive calls of requests that
                    // clean up still run.
                    answers.push(ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || true));
                    let run = std::panic::AssertUnwindSafe(|| hidden.run(|| true));
                    answers.push(std::panic::catch_unwind(run).is_err());
                    ums::yield_now();
                    answers.push(true);
                }));
            }
            let sleeping = || -> u64 { (0..n).map(|i| scheduler(&node, i).counters.timers).sum() };
            eventually("they sleep", || sleeping() == n as u64);
            let report = node.shutdown(NO_GRACE);
            assert_eq!(report, ShutdownReport { cancelled: n, left: 0 });
            assert_eq!(answers.all(), vec![true; 3 * n]);
        },
    );
}
