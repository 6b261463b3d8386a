//! Going preemptive and rejoining the scheduler (U77-U88, G7, G8, B26-B30).

#![allow(unsafe_code)] // For the harness.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use common::*;
use ums::stats::{WaitClass, WorkerState};
use ums::testing::{lists, scheduler};
use ums::{Node, WaitReason, WorkerKind};

const OUTSIDE: WaitReason = WaitReason::PREEMPTIVE_EXTERNAL;

/// Blocks the thread, as external code does, until the condition holds. Returns false if that takes
/// too long.
fn block_until(so: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !so() {
        if began.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    true
}

/// Returns the number of the scheduler on which external code of this node's visible schedulers
/// runs.
fn outside(node: &Node, kind: WorkerKind, own: usize) -> usize {
    if kind == WorkerKind::Fiber { node.scheduler_count() } else { own }
}

fn wait_row(node: &Node, reason: WaitReason) -> Option<ums::stats::WaitRow> {
    node.snapshot().waits.into_iter().find(|row| row.reason == reason)
}

/// Waits until the standby of a scheduler sleeps, and returns how often it has gone to sleep. Its
/// thread has the name of the scheduler.
fn sleeps_of_the_standby(scheduler: usize) -> u64 {
    let name = format!("ums-{scheduler}");
    let is_standby = |thread: &u32| about_thread(*thread, "comm").trim() == name;
    let standby = node_thread_numbers().into_iter().find(is_standby).expect("there is one");
    eventually("it sleeps", || about_thread(standby, "stat").contains(") S "));
    thread_status(standby, "voluntary_ctxt_switches")
}

#[test]
fn the_next_runnable_worker_gets_the_scheduler_first_u77() {
    each_alone(
        |b| b,
        |node, kind, n| {
            for i in 0..n {
                let handle = node.clone();
                // Of the other kinds, the standby's thread is the host of all workers.
                let is_thread = kind == WorkerKind::Thread;
                on(node, i, move || {
                    // Before there are others, to which a worker that waits for this yields.
                    let slept = is_thread.then(|| sleeps_of_the_standby(i));
                    let (log, switches) = (Log::default(), Log::default());
                    let peers: Vec<_> = ["first", "second"]
                        .map(|name| {
                            let (log, switches, node) =
                                (log.clone(), switches.clone(), handle.clone());
                            ums::spawn(move || {
                                ums::yield_now();
                                log.push(name);
                                let sleeps = is_thread.then(|| sleeps_of_the_standby(i));
                                switches.push((scheduler(&node, i).counters, sleeps));
                            })
                        })
                        .into();
                    eventually("both have begun", || lists().runnable.len() == 2);
                    assert_eq!(log.len(), 0);
                    let before = scheduler(&handle, i).counters;
                    let theirs = log.clone();
                    // Only the next workers of this scheduler can make the condition true.
                    assert!(ums::go_preemptive(OUTSIDE, || block_until(|| theirs.len() == 2)));
                    assert_eq!(log.all(), ["first", "second"]);
                    // Directly, and not by way of the standby or of a worker that has nothing to
                    // do, which would take a turn to find the next one. A fiber takes the turn
                    // itself, because it waits for its external code.
                    let (now, has_slept) = switches.all()[0];
                    assert_eq!(now.context_switches - before.context_switches, 1);
                    let fiber = kind == WorkerKind::Fiber;
                    assert_eq!(now.turns - before.turns, u64::from(fiber), "{kind:?}");
                    assert_eq!(has_slept, slept, "the standby has not run");
                    for peer in peers {
                        peer.join().unwrap();
                    }
                });
            }
        },
    );
}

#[test]
fn meanwhile_the_scheduler_continues_and_ignores_the_worker_u78_u84_u14() {
    each_alone(
        |b| b,
        |node, kind, n| {
            for i in 0..n {
                let handle = node.clone();
                on(node, i, move || {
                    let me = lists().current;
                    let (steps, over) =
                        (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
                    let (count, end) = (steps.clone(), over.clone());
                    let sibling = ums::spawn(move || {
                        let mut seen = lists();
                        while !end.load(SeqCst) {
                            count.fetch_add(1, SeqCst);
                            seen = lists();
                            ums::yield_now();
                        }
                        seen
                    });
                    let outside = outside(&handle, kind, i);
                    let gauge = || scheduler(&handle, outside).counters.preemptive;
                    // The external call ends only after the sibling has run beside it.
                    let made = ums::go_preemptive(OUTSIDE, || {
                        let before = steps.load(SeqCst);
                        let parallel = block_until(|| steps.load(SeqCst) > before + 1_000);
                        let counted = block_until(|| gauge() == 1);
                        over.store(true, SeqCst);
                        parallel && counted
                    });
                    assert!(made, "the scheduler stood still, or did not count the worker");
                    let seen = sibling.join().unwrap();
                    assert!(!seen.runnable.contains(&me) && !seen.idle.contains(&me), "{seen:?}");
                    if kind != WorkerKind::Fiber {
                        assert!(!seen.waiting.contains(&me), "on no list: {seen:?}");
                        assert_eq!(seen.preemptive, 1);
                    } else {
                        assert!(seen.waiting.contains(&me), "it waits for its errand: {seen:?}");
                    }
                });
            }
        },
    );
}

#[test]
fn the_same_worker_continues_and_is_idle_in_the_end_u79_u85() {
    both_kinds(|node, kind, n| {
        for i in 0..n {
            let where_i_am =
                || (ums::worker::worker_id(), ums::worker::scheduler_id(), thread_number());
            let (before, inside, after) = on(node, i, move || {
                let before = where_i_am();
                let inside =
                    ums::go_preemptive(OUTSIDE, || (where_i_am(), ums::worker::is_worker()));
                (before, inside, where_i_am())
            });
            assert_eq!(before, after);
            let ((worker, on_scheduler, thread), is_worker) = inside;
            assert_eq!((worker, on_scheduler, is_worker), (None, None, false), "a plain thread");
            // A thread goes preemptive itself. A fiber cannot, so its closure runs on another
            // thread (U85).
            assert_eq!(thread == before.2, kind == WorkerKind::Thread);
            let (_, worker) = before.0.unwrap();
            eventually("it is back on the worker list", || {
                let workers = scheduler(node, i).workers;
                workers.iter().any(|w| w.id == worker && w.state == WorkerState::Idle)
            });
        }
    });
}

#[test]
fn several_workers_of_one_scheduler_may_run_at_once_u80() {
    each_alone(
        |b| b,
        |node, kind, n| {
            const AT_ONCE: usize = 4;
            for i in 0..n {
                let meeting = Arc::new(Barrier::new(AT_ONCE));
                let calls: Vec<_> = (0..AT_ONCE)
                    .map(|_| {
                        let meeting = meeting.clone();
                        // No worker passes the barrier until all of them are there at the same
                        // time.
                        start(node, i, move || {
                            ums::go_preemptive(OUTSIDE, || meeting.wait());
                        })
                    })
                    .collect();
                for call in calls {
                    call.join().unwrap();
                }
                let outside = scheduler(node, outside(node, kind, i)).counters;
                assert_eq!(outside.preemptive_max, AT_ONCE as u64);
                assert_eq!(scheduler(node, i).counters.preemptive_switches, AT_ONCE as u64);
            }
        },
    );
}

#[test]
fn each_preemptive_call_uses_up_a_worker_u81() {
    for n in COUNTS {
        for kind in kinds() {
            let two_each = |b: ums::Builder| {
                b.schedulers(n).max_workers(2 * n).placement(ums::node::Placement::AlwaysPreferred)
            };
            one_kind(kind, two_each, |node| {
                let gate = Arc::new(AtomicBool::new(false));
                let call = || {
                    let gate = gate.clone();
                    start(node, n - 1, move || {
                        assert!(ums::go_preemptive(OUTSIDE, || block_until(|| gate.load(SeqCst))));
                    })
                };
                let calls = [call(), call()];
                let outside = outside(node, kind, n - 1);
                eventually("both are outside", || {
                    scheduler(node, outside).counters.preemptive == 2
                });
                let mut third = start(node, n - 1, || ());
                eventually("it is queued", || scheduler(node, n - 1).queued == 1);
                assert!(third.join_for(ms(50)).is_err(), "both workers are used up");
                assert_eq!(scheduler(node, n - 1).queued, 1);
                gate.store(true, SeqCst);
                third.join().unwrap();
                for call in calls {
                    call.join().unwrap();
                }
            });
        }
    }
}

#[test]
fn fibers_of_one_scheduler_share_one_thread_u83() {
    for kind in kinds() {
        for n in COUNTS {
            one_kind(
                kind,
                |b| b.schedulers(n).placement(ums::node::Placement::AlwaysPreferred),
                |node| {
                    for i in 0..n {
                        let gate = Gate::shut();
                        let workers: Vec<_> = (0..8)
                            .map(|_| {
                                let gate = gate.clone();
                                start(node, i, move || {
                                    gate.pass();
                                    thread_number()
                                })
                            })
                            .collect();
                        eventually("all eight are workers now", || gate.waiters() == 8);
                        gate.open();
                        let threads: std::collections::BTreeSet<_> =
                            workers.into_iter().map(|w| w.join().unwrap()).collect();
                        let expected = if kind == WorkerKind::Thread { 8 } else { 1 };
                        assert_eq!(threads.len(), expected);
                    }
                },
            );
        }
    }
}

#[test]
fn the_scheduler_of_fibers_external_code_is_not_in_umsstats_u86_u92() {
    both_kinds(|node, kind, n| {
        node.run(|| ums::go_preemptive(OUTSIDE, || ()));
        let rows = node.umsstats();
        assert_eq!(rows.len(), 8 * n);
        let hidden: Vec<_> = node
            .snapshot()
            .schedulers
            .into_iter()
            .filter(|s| s.status == "HIDDEN ONLINE")
            .collect();
        assert_eq!(hidden.len(), usize::from(kind == WorkerKind::Fiber));
        for s in hidden {
            assert!(s.counters.preemptive_switches > 0, "the external code ran there");
            assert!(s.id >= n);
        }
    });
}

#[test]
fn external_calls_cost_fibers_more_switches_u87() {
    const CALLS: u64 = 200;
    let switches_of = |kind| {
        let mut switches = 0;
        one_kind(
            kind,
            |b| b.schedulers(1),
            |node| {
                // Without the switches to and from the idle loop, whose number depends on how busy
                // the computer is.
                let total = || -> u64 {
                    let all = node.snapshot().schedulers;
                    all.iter().map(|s| s.counters.preemptive_switches).sum()
                };
                let before = total();
                node.run(|| {
                    (0..CALLS).for_each(|_| ums::go_preemptive(OUTSIDE, || ()));
                });
                switches = total() - before;
            },
        );
        switches
    };
    let (thread, fiber) = (switches_of(WorkerKind::Thread), switches_of(WorkerKind::Fiber));
    assert!(fiber >= thread + CALLS, "thread {thread}, fiber {fiber} for {CALLS} calls");
}

#[test]
fn with_no_runnable_worker_the_baton_is_still_passed_on_g7_b27() {
    each_alone(
        |b| b,
        |node, _, n| {
            for i in 0..n {
                let handle = node.clone();
                // The idle loop can run on the stack of a worker that waits, on that of an idle
                // worker, or, if there is only one worker, on neither.
                let gate = Gate::shut();
                let theirs = gate.clone();
                let waiter = start(node, i, move || theirs.pass());
                eventually("it waits", || gate.waiters() == 1);
                let answered = on(node, i, move || {
                    ums::go_preemptive(OUTSIDE, || {
                        let errand = handle.spawn_on(i, || 7).unwrap();
                        errand.join().unwrap()
                    })
                });
                assert_eq!(answered, 7);
                gate.open();
                waiter.join().unwrap();
            }
        },
    );
    // The only worker is preemptive, and its scheduler still handles timers and the inbox.
    for kind in kinds() {
        for n in COUNTS {
            one_kind(
                kind,
                |b| b.schedulers(n),
                |node| {
                    for i in 0..n {
                        let handle = node.clone();
                        let answered = on(node, i, move || {
                            ums::go_preemptive(OUTSIDE, || {
                                handle.spawn_on(i, || ums::sleep(ms(1))).unwrap().join().unwrap()
                            })
                        });
                        assert_eq!(answered, Ok(()));
                    }
                },
            );
        }
    }
}

#[test]
fn a_worker_that_rejoins_waits_for_its_turn_and_that_is_signal_wait_g8_b26() {
    each_alone(
        |b| b,
        |node, _, n| {
            node.reset_waits();
            let (away, coming) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
            let (left, back) = (away.clone(), coming.clone());
            let traveller = start(node, n - 1, move || {
                eventually("the other one is there", || !lists().runnable.is_empty());
                ums::go_preemptive(OUTSIDE, || {
                    assert!(block_until(|| left.load(SeqCst)));
                    back.store(true, SeqCst);
                });
                Instant::now()
            });
            let keeper = start(node, n - 1, move || {
                eventually("the other one has left", || lists().runnable.is_empty());
                away.store(true, SeqCst);
                while !coming.load(SeqCst) {
                    std::hint::spin_loop();
                }
                spin(ms(100)); // it is back long before the lock is released
                Instant::now()
            });
            let (home, let_go) = (traveller.join().unwrap(), keeper.join().unwrap());
            assert!(home >= let_go, "it ran while another held the scheduler");
            let row = wait_row(node, OUTSIDE).expect("the call is counted");
            assert_eq!((row.begun, row.count), (1, 1));
            assert!(row.signal_ns >= 30_000_000, "ready to run, and not let: {row:?}");
            assert!(row.total_ns >= row.signal_ns);
        },
    );
}

#[test]
fn calls_are_counted_and_timed_by_their_own_reason_b20_b26() {
    let mine = WaitReason::register("PREEMPTIVE_TEST_OF_B26", WaitClass::External);
    both_kinds(|node, _, n| {
        node.reset_waits();
        let before = scheduler(node, n - 1).counters.preemptive_switches;
        for _ in 0..3 {
            on(node, n - 1, move || ums::go_preemptive(mine, || std::thread::sleep(ms(5))));
        }
        let row = wait_row(node, mine).expect("the calls are counted");
        assert_eq!((row.begun, row.count, row.class), (3, 3, WaitClass::External));
        assert!(row.total_ns >= 15_000_000 && row.max_ns >= 5_000_000, "{row:?}");
        assert_eq!(scheduler(node, n - 1).counters.preemptive_switches, before + 3);
    });
}

#[test]
fn nested_calls_count_once_b29() {
    both_kinds(|node, _, n| {
        node.reset_waits();
        let before = scheduler(node, n - 1).counters.preemptive_switches;
        let inner = on(node, n - 1, || {
            ums::go_preemptive(OUTSIDE, || {
                ums::go_preemptive(OUTSIDE, || ums::go_preemptive(OUTSIDE, || 7))
            })
        });
        assert_eq!(inner, 7);
        assert_eq!(scheduler(node, n - 1).counters.preemptive_switches, before + 1);
        let row = wait_row(node, OUTSIDE).expect("the call is counted");
        assert_eq!((row.begun, row.count), (1, 1));
    });
}

#[test]
fn a_short_call_stays_and_is_counted_when_it_was_long_b28() {
    both_kinds(|node, _, n| {
        let counts = || {
            let c = scheduler(node, n - 1).counters;
            (c.preemptive_switches, c.short_overruns)
        };
        let before = counts();
        let thread = on(node, n - 1, || {
            let inside = ums::worker::short_external_call(thread_number);
            (inside, thread_number())
        });
        assert_eq!(thread.0, thread.1);
        assert_eq!(counts(), before, "it was short, and no worker left");
        on(node, n - 1, || ums::worker::short_external_call(|| std::thread::sleep(ms(6))));
        assert_eq!(counts(), (before.0, before.1 + 1));
    });
}

#[test]
fn the_cap_on_preemptive_workers_is_never_exceeded_b30() {
    for cap in [1, 2] {
        let capped = |b: ums::Builder| {
            b.preemptive_limit(cap).placement(ums::node::Placement::AlwaysPreferred)
        };
        both_kinds_with(capped, |node, kind, n| {
            let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let callers: Vec<_> = (0..6)
                .map(|_| {
                    let (now, most) = (now.clone(), most.clone());
                    start(node, n - 1, move || {
                        // Repeated, so that one worker asks to go preemptive just after another was
                        // admitted.
                        for _ in 0..20 {
                            ums::go_preemptive(OUTSIDE, || {
                                most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                                std::thread::sleep(Duration::from_micros(100));
                                now.fetch_sub(1, SeqCst);
                            });
                        }
                    })
                })
                .collect();
            for caller in callers {
                caller.join().unwrap();
            }
            assert_eq!(most.load(SeqCst), cap, "as many as may be, and no more");
            let outside = scheduler(node, outside(node, kind, n - 1)).counters;
            assert_eq!(outside.preemptive_max, cap as u64);
            let row = wait_row(node, WaitReason::PREEMPTIVE_CAP).expect("the others waited");
            assert_eq!(row.class, WaitClass::Queue);
        });
    }
}

#[test]
fn a_panic_of_external_code_reaches_the_request_when_its_worker_rejoins_g13() {
    both_kinds(|node, _, n| {
        for i in 0..n {
            let caught = on(node, i, || {
                let before = ums::worker::worker_id();
                let call = std::panic::AssertUnwindSafe(|| {
                    ums::go_preemptive(OUTSIDE, || std::panic::resume_unwind(Box::new(7_i32)))
                });
                let panic = std::panic::catch_unwind(call).expect_err("it panicked");
                assert_eq!(ums::worker::worker_id(), before);
                ums::yield_now();
                panic.downcast_ref::<i32>().copied()
            });
            assert_eq!(caught, Some(7));
        }
    });
}

#[test]
fn external_code_sees_that_its_request_was_cancelled_b59() {
    both_kinds(|node, _, _| {
        let user = node.user();
        let begun = Arc::new(AtomicBool::new(false));
        let says = begun.clone();
        let request = user.enqueue(move || {
            ums::go_preemptive(OUTSIDE, || {
                assert!(!ums::is_cancelled());
                says.store(true, SeqCst);
                block_until(ums::is_cancelled)
            })
        });
        eventually("it runs outside", || begun.load(SeqCst));
        assert!(user.cancel());
        assert!(request.unwrap().join().unwrap(), "it saw the cancellation");
        assert!(!node.run(ums::is_cancelled), "only that request was cancelled");
    });
}

#[test]
fn external_code_that_waits_for_a_task_never_waits_for_a_worker_g11() {
    each_alone(
        |b| b.max_workers(4),
        |node, _, n| {
            let gate = Gate::shut();
            let pass = |i: usize| {
                let gate = gate.clone();
                start(node, i, move || gate.pass())
            };
            let share = |i| scheduler(node, i).workers_max;
            for i in 0..n {
                let theirs = gate.clone();
                let parent = start(node, i, move || {
                    eventually("the queue is long", || lists().queued > lists().workers);
                    let child = ums::spawn(|| 7);
                    let answer = ums::go_preemptive(OUTSIDE, || child.join().unwrap());
                    theirs.pass();
                    answer
                });
                let others: Vec<_> = (0..2 * share(i) + 2).map(|_| pass(i)).collect();
                eventually("parent and child have met", || gate.waiters() >= share(i));
                gate.open();
                assert_eq!(parent.join().unwrap(), 7);
                others.into_iter().for_each(|t| t.join().unwrap());
                eventually("the gate is free", || gate.waiters() == 0);
                gate.shut_again();
            }
        },
    );
}

#[test]
fn on_a_plain_thread_external_code_is_just_called_b29() {
    let thread = ums::go_preemptive(OUTSIDE, thread_number);
    assert_eq!(thread, thread_number());
}

#[test]
fn a_worker_of_a_node_cannot_become_a_scheduler_of_the_windows_model() {
    use ums::windows::{EnterError, SchedulerAction, enter_scheduling_mode};
    let enter = || enter_scheduling_mode(|_, _| SchedulerAction::Leave);
    both_kinds(|node, _, _| {
        let refused = on(node, 0, move || {
            let here = matches!(enter(), Err(EnterError::AlreadyUms));
            let away = || matches!(enter(), Err(EnterError::AlreadyUms));
            [here, ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, away)]
        });
        assert_eq!(refused, [true; 2]);
    });
}
