//! Joins of tasks that have not begun: the joiner's scheduler starts such a task at once, and the
//! end of the task gives the baton straight back to the joiner (B9, G11, B59).

mod common;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use ums::task::JoinError;
use ums::testing::scheduler;
use ums::{Builder, JoinHandle, Node, WaitError, WaitReason, WorkerKind};

/// Spawns this many tasks, and joins them in the order of their numbers.
fn batch(tasks: usize) -> usize {
    let all: Vec<_> = (0..tasks).map(|number| ums::spawn(move || number)).collect();
    all.into_iter().map(|task| task.join().expect("it returns a number")).sum()
}

/// Spawns a tree of tasks, and joins each task's children in turn.
fn tree(leaves: usize) -> usize {
    if leaves == 1 {
        return 1;
    }
    let children: Vec<_> = (0..10).map(|_| ums::spawn(move || tree(leaves / 10))).collect();
    children.into_iter().map(|child| child.join().expect("a subtree")).sum()
}

fn at_rest(node: &Node, s: usize) {
    eventually("the scheduler is at rest", || scheduler(node, s).load == 0);
}

#[test]
fn each_joined_task_runs_once_and_is_counted_once() {
    each_alone(
        |b| b,
        |node, _, n| {
            for s in 0..n {
                at_rest(node, s);
                let done = scheduler(node, s).counters.requests_done;
                node.reset_waits();
                // More than the choices after which age alone decides, and than the own lane holds.
                for tasks in [1, 2, 900, 2500] {
                    assert_eq!(on(node, s, move || batch(tasks)), tasks * (tasks - 1) / 2);
                }
                at_rest(node, s);
                assert_eq!(scheduler(node, s).counters.requests_done - done, 3403 + 4);
                let waits = node.snapshot().waits;
                let of = |reason: WaitReason| waits.iter().find(|w| w.reason == reason).unwrap();
                assert_eq!(of(WaitReason::THREADPOOL).count, 3403 + 4);
                let joins = of(WaitReason::JOIN).count;
                assert!((1..=3403).contains(&joins), "{joins} joins");
            }
        },
    );
}

#[test]
fn a_tree_of_tasks_is_joined_whether_or_not_others_take_parts_of_it() {
    let limits: [fn(Builder, usize) -> Builder; 3] =
        [|b, _| b, |b, n| b.max_workers(n), |b, _| b.classic()];
    for options in limits {
        for kind in kinds() {
            for n in COUNTS {
                one_kind(
                    kind,
                    |b| options(b.schedulers(n), n),
                    |node| assert_eq!(node.run(|| tree(1000)), 1000),
                );
            }
        }
    }
}

/// Computes for this long.
fn compute(time: Duration) {
    let began = std::time::Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// A join of a task that computes this long counts as a whole choice.
const SLOW: Duration = Duration::from_micros(30);

#[test]
fn a_queued_request_runs_beside_endless_joins_b9() {
    // Each join makes two choices that pass over the old request: the task starts, and the joiner
    // goes on. They count as a part of a choice and as a whole one if the task is slow, and as two
    // parts at least if it is quick. A turn that the system interrupts counts as a long one.
    for (time, range) in [(Duration::ZERO, 20..=32_010), (SLOW, 20..=1_010)] {
        each_alone(
            |b| b,
            |node, _, n| {
                let joined = on(node, n - 1, move || {
                    let old = ums::spawn(|| ());
                    let mut joined = 0;
                    while !old.is_finished() {
                        ums::spawn(move || compute(time)).join().unwrap();
                        joined += 1;
                    }
                    joined
                });
                assert!(range.contains(&joined), "{joined} tasks went before an older request");
            },
        );
    }
}

#[test]
fn a_worker_whose_wait_has_ended_runs_beside_endless_joins_b9() {
    let cases = [(Duration::ZERO, 32_010), (SLOW, 3)];
    let each = kinds().into_iter().flat_map(|kind| cases.map(|(time, most)| (kind, time, most)));
    for (kind, time, most) in each {
        one_kind(
            kind,
            |b| b.schedulers(1),
            |node| {
                let joined = node.run(move || {
                    let [wakes, runs] =
                        std::array::from_fn(|_| Arc::new(ums::sync::Event::manual(false)));
                    let (w, r) = (wakes.clone(), runs.clone());
                    let begun = Arc::new(AtomicBool::new(false));
                    let b = begun.clone();
                    let woken = ums::spawn(move || {
                        b.store(true, SeqCst);
                        w.wait().unwrap();
                        r.set();
                    });
                    // On the only scheduler, it waits when this worker runs again.
                    while !begun.load(SeqCst) {
                        ums::sleep(ms(1)).unwrap();
                    }
                    let mut joined = 0;
                    while !runs.is_set() {
                        let w = wakes.clone();
                        ums::spawn(move || (w.set(), compute(time)).1).join().unwrap();
                        joined += 1;
                    }
                    woken.join().unwrap();
                    joined
                });
                assert!(joined <= most, "{joined} tasks went before a worker that was woken");
            },
        );
    }
}

/// Returns how often a worker has waited for a task since the waits were reset.
fn joins(node: &Node) -> u64 {
    let waits = node.snapshot().waits;
    waits.iter().find(|w| w.reason == WaitReason::JOIN).expect("a row for each reason").count
}

#[test]
fn the_next_tasks_follow_two_that_were_joined_in_order_g11() {
    each_alone(
        |b| b,
        |node, kind, n| {
            at_rest(node, n - 1);
            // Joined from the last one, each task is waited for. This comes first, because after
            // many slow joins things go by age, and then older tasks begin before those joined.
            node.reset_waits();
            on(node, n - 1, move || {
                let all: Vec<_> = (0..100).map(|_| ums::spawn(|| ())).collect();
                all.into_iter().rev().for_each(|task| task.join().unwrap());
            });
            assert!(joins(node) >= 100, "{} joins", joins(node));
            let (rounds, tasks) = (50, 20);
            node.reset_waits();
            on(node, n - 1, move || (0..rounds).for_each(|_| _ = batch(tasks)));
            // At least one task follows each that is joined after the first one. A thread may take
            // so long to begin that its task is not a quick one.
            let (joins, most) = (joins(node), rounds * (tasks / 2 + 1));
            let most = if kind == WorkerKind::Thread { rounds * tasks } else { most * 3 / 2 };
            assert!(joins <= most as u64, "{joins} joins of {rounds} times {tasks} tasks");
        },
    );
}

#[test]
fn a_joiner_does_not_wait_for_all_its_slow_tasks_b9() {
    each_alone(
        |b| b,
        |node, _, n| {
            let ended = Arc::new(AtomicUsize::new(0));
            on(node, n - 1, move || {
                let slow = |_| {
                    let ended = ended.clone();
                    ums::spawn(move || (compute(SLOW * 3), ended.fetch_add(1, SeqCst)).1)
                };
                let all: Vec<_> = (0..100).map(slow).collect();
                for (joined, task) in (1..).zip(all) {
                    task.join().unwrap();
                    let ended = ended.load(SeqCst);
                    assert_eq!(ended, joined, "tasks ran before join {joined} returned");
                }
            });
        },
    );
}

#[test]
fn a_worker_that_yielded_and_a_queued_request_run_beside_endless_batches_b9() {
    each_alone(
        |b| b,
        |node, _, n| {
            let (old, yielder, batches) = on(node, n - 1, || {
                let [stop, yielded] = std::array::from_fn(|_| Arc::new(AtomicBool::new(false)));
                let (s, y) = (stop.clone(), yielded.clone());
                let yielder = ums::spawn(move || {
                    while !s.load(SeqCst) {
                        ums::yield_now();
                        y.store(true, SeqCst);
                    }
                });
                // It has yielded after this, and not run again.
                ums::yield_now();
                let old = ums::spawn(|| ());
                yielded.store(false, SeqCst);
                let mut batches = 0;
                while !(old.is_finished() && yielded.load(SeqCst)) && batches < 20_000 {
                    batch(20);
                    batches += 1;
                }
                stop.store(true, SeqCst);
                (old.is_finished(), yielder.join().is_ok(), batches)
            });
            assert!(old && yielder && batches < 20_000, "{batches} batches went before them");
        },
    );
}

#[test]
fn tasks_that_are_joined_in_order_are_in_time_however_long_they_were_queued() {
    each_alone(
        |b| b.queue_timeout(ms(20)),
        |node, _, n| {
            // If the joiner loses its processor, the next look at the queue may refuse those that
            // it has not joined yet.
            let are_in_time = || {
                let all: Vec<_> = (0..20).map(|number| ums::spawn(move || number)).collect();
                compute(ms(40));
                all.into_iter().enumerate().all(|(number, task)| task.join().ok() == Some(number))
            };
            // The joiner itself may have been queued for too long.
            let joined = (0..50).find_map(|_| {
                start(node, n - 1, move || (0..50).any(|_| are_in_time())).join().ok()
            });
            assert_eq!(joined, Some(true));
        },
    );
}

#[test]
fn a_task_that_waits_among_joined_ones_holds_none_of_them_up() {
    each_alone(
        |b| b,
        |node, _, n| {
            let gate = Gate::shut();
            let log = Log::default();
            let (g, l) = (gate.clone(), log.clone());
            let joiner = start(node, n - 1, move || {
                let task = |number| {
                    let (l, g) = (l.clone(), g.clone());
                    ums::spawn(move || {
                        if number == 2 {
                            g.pass();
                        }
                        l.push(number);
                    })
                };
                let all: Vec<_> = (0..6).map(task).collect();
                all.into_iter().for_each(|task| task.join().unwrap());
            });
            eventually("the third task waits", || gate.waiters() == 1);
            eventually("the others have ended", || log.all().len() == 5);
            gate.open();
            joiner.join().unwrap();
            assert_eq!(log.all(), [0, 1, 3, 4, 5, 2]);
        },
    );
}

#[test]
fn a_task_of_another_worker_does_not_follow_joined_ones_b9() {
    each_alone(
        |b| b,
        |node, _, n| {
            let log = Log::default();
            let [asks, told] = std::array::from_fn(|_| Arc::new(ums::sync::Event::auto(false)));
            let (a, t, l) = (asks.clone(), told.clone(), log.clone());
            let other = start(node, n - 1, move || {
                a.wait().unwrap();
                drop(ums::spawn(move || l.push("stranger")));
                t.set();
            });
            let l = log.clone();
            let joiner = start(node, n - 1, move || {
                let pair = [ums::spawn(|| ()), ums::spawn(|| ())];
                asks.set();
                told.wait().unwrap();
                pair.into_iter().for_each(|task| task.join().unwrap());
                l.push("joiner");
            });
            joiner.join().unwrap();
            other.join().unwrap();
            at_rest(node, n - 1);
            assert_eq!(log.all(), ["joiner", "stranger"]);
        },
    );
}

#[test]
fn a_worker_that_a_task_has_woken_goes_before_the_next_task_and_the_joiner_b9() {
    each_alone(
        |b| b,
        |node, _, n| {
            let log = Log::default();
            let l = log.clone();
            on(node, n - 1, move || {
                let event = Arc::new(ums::sync::Event::auto(false));
                let begins = Arc::new(AtomicBool::new(false));
                let (e, begun, woken) = (event.clone(), begins.clone(), l.clone());
                let woken = ums::spawn(move || {
                    begun.store(true, SeqCst);
                    e.wait().unwrap();
                    woken.push("woken");
                });
                // It does not yield before it waits.
                while !begins.load(SeqCst) {
                    ums::yield_now();
                }
                let task = |name| {
                    let (l, e) = (l.clone(), event.clone());
                    ums::spawn(move || {
                        l.push(name);
                        if name == "b" {
                            e.set();
                        }
                    })
                };
                for (task, name) in ["a", "b", "c"].map(|name| (task(name), name)) {
                    task.join().unwrap();
                    l.push(name);
                    // The next join is a slow one, and its task is quick.
                    compute(SLOW);
                }
                woken.join().unwrap();
            });
            assert_eq!(log.all(), ["a", "a", "b", "woken", "b", "c", "c"]);
        },
    );
}

#[test]
fn a_worker_that_ends_a_request_goes_on_with_the_oldest_u29() {
    for kind in kinds() {
        one_kind(
            kind,
            |b| b.schedulers(1),
            |node| {
                let [computes, queued] = std::array::from_fn(|_| Arc::new(AtomicBool::new(false)));
                let log = Log::default();
                let (c, q, l) = (computes.clone(), queued.clone(), log.clone());
                let spawner = start(node, 0, move || {
                    c.store(true, SeqCst);
                    while !q.load(SeqCst) {
                        std::hint::spin_loop();
                    }
                    for number in 1..=3 {
                        let l = l.clone();
                        drop(ums::spawn(move || l.push(number)));
                    }
                });
                eventually("it computes", || computes.load(SeqCst));
                // Queued by another thread, and older than those that the worker spawns.
                let l = log.clone();
                let old = start(node, 0, move || l.push(0));
                queued.store(true, SeqCst);
                spawner.join().unwrap();
                old.join().unwrap();
                at_rest(node, 0);
                assert_eq!(log.all(), [0, 1, 2, 3]);
            },
        );
    }
}

#[test]
fn in_the_classic_profile_a_join_changes_no_order() {
    both_kinds_with(
        |b| b.classic(),
        |node, _, n| {
            let log = Log::default();
            let l = log.clone();
            on(node, n - 1, move || {
                let note = |number| {
                    let l = l.clone();
                    ums::spawn(move || l.push(number))
                };
                let all: Vec<_> = (0..20).map(note).collect();
                all.into_iter().rev().for_each(|task| task.join().unwrap());
            });
            assert_eq!(log.all(), (0..20).collect::<Vec<_>>());
        },
    );
}

#[test]
fn a_panic_of_a_task_that_a_join_starts_reaches_the_joiner() {
    both_kinds(|node, _, n| {
        let texts = on(node, n - 1, || {
            let fail = |number: usize| {
                ums::spawn(move || assert!(number.is_multiple_of(2), "no. {number}"))
            };
            let all: Vec<_> = (0..50).map(fail).collect();
            let text = |task: JoinHandle<()>| match task.join() {
                Ok(()) => String::new(),
                Err(JoinError::Panicked(panic)) => *panic.downcast::<String>().unwrap(),
                Err(error) => panic!("{error}"),
            };
            all.into_iter().map(text).collect::<Vec<_>>()
        });
        for (number, text) in texts.into_iter().enumerate() {
            let expected = if number % 2 == 0 { String::new() } else { format!("no. {number}") };
            assert_eq!(text, expected);
        }
    });
}

#[test]
fn a_joiner_or_its_task_can_be_cancelled_at_each_step_b59() {
    both_kinds(|node, _, n| {
        // Before the join: the task never runs.
        let never = on(node, n - 1, || {
            let task = ums::spawn(|| unreachable!("it was cancelled before it began"));
            task.cancel();
            matches!(task.join(), Err(JoinError::NeverRan))
        });
        // With several schedulers, another may have begun it.
        assert!(never || n > 1);
        // While the joiner waits: the task, which waits, too, ends with an error.
        let ended = on(node, n - 1, || {
            let task = ums::spawn(|| ums::sleep(Duration::MAX));
            let cancel = task.cancel_handle();
            let begun = ums::spawn(move || {
                while !cancel.is_finished() {
                    cancel.cancel();
                    ums::yield_now();
                }
            });
            let slept = task.join().ok();
            begun.join().unwrap();
            slept
        });
        assert!([None, Some(Err(WaitError::Cancelled))].contains(&ended), "{ended:?}");
        // The joiner: it gets its handle back, and the task goes on.
        let gate = Gate::shut();
        let (pass, done) = (gate.clone(), Arc::new(AtomicUsize::new(0)));
        let d = done.clone();
        let joiner = start(node, n - 1, move || {
            let task = ums::spawn(move || (pass.pass(), d.fetch_add(1, SeqCst)).1);
            match task.join() {
                Err(JoinError::Wait(task, WaitError::Cancelled)) => Some(task),
                _ => None,
            }
        });
        eventually("the task waits", || gate.waiters() == 1);
        joiner.cancel();
        let task = joiner.join().unwrap().expect("the joiner gets its handle back");
        assert!(!task.is_finished() && done.load(SeqCst) == 0);
        gate.open();
        task.join().unwrap();
        assert_eq!(done.load(SeqCst), 1);
    });
}

#[test]
fn the_end_of_a_joined_task_lets_timers_and_other_threads_in() {
    each_alone(
        |b| b,
        |node, _, n| {
            let stop = Arc::new(AtomicBool::new(false));
            let s = stop.clone();
            let busy = start(node, n - 1, move || {
                while !s.load(SeqCst) {
                    batch(10);
                }
            });
            // Each beside endless joins: a timer, a wake-up by another thread, I/O, a cancellation.
            on(node, n - 1, || ums::sleep(ms(5)).unwrap());
            let event = Arc::new(ums::sync::Event::manual(false));
            let e = event.clone();
            let waits = start(node, n - 1, move || e.wait());
            std::thread::sleep(ms(2));
            event.set();
            waits.join().unwrap().unwrap();
            let (mut far, mut near) = ums::net::UnixStream::pair().unwrap();
            let reads = start(node, n - 1, move || {
                let mut byte = [0];
                near.read(&mut byte).map(|_| byte)
            });
            std::thread::sleep(ms(2));
            far.write_all(&[7]).unwrap();
            assert_eq!(reads.join().unwrap().unwrap(), [7]);
            let begun = Arc::new(AtomicBool::new(false));
            let b = begun.clone();
            let sleeps = start(node, n - 1, move || {
                b.store(true, SeqCst);
                ums::sleep(Duration::MAX)
            });
            eventually("it has begun", || begun.load(SeqCst));
            sleeps.cancel();
            assert_eq!(sleeps.join().unwrap(), Err(WaitError::Cancelled));
            stop.store(true, SeqCst);
            busy.join().unwrap();
        },
    );
}

/// Returns the node's user whose requests do not wait for others.
fn holder(node: &Node) -> Arc<ums::User> {
    let user = Arc::new(node.user());
    user.hold();
    user
}

#[test]
fn an_urgent_request_runs_before_a_joiner_whose_task_has_ended() {
    for kind in kinds() {
        one_kind(
            kind,
            |b| b.schedulers(1),
            |node| {
                let user = holder(node);
                let (theirs, ran) = (user.clone(), Arc::new(AtomicBool::new(false)));
                let tells = ran.clone();
                node.run(move || {
                    let task = ums::spawn(move || {
                        theirs.enqueue(move || tells.store(true, SeqCst)).unwrap()
                    });
                    let urgent = task.join().unwrap();
                    assert!(ran.load(SeqCst), "the joiner goes on before it, in {kind:?}");
                    urgent.join().unwrap();
                });
                user.release();
            },
        );
    }
}

/// The scheduler prefers a row of siblings only while they are quick, so this is tried often.
#[test]
fn an_urgent_request_runs_before_the_next_of_the_siblings_that_are_joined_in_order() {
    const TASKS: usize = 4;
    const URGENT: usize = TASKS;
    let play = |user: &Arc<ums::User>, by: usize| {
        let order = Arc::new(Mutex::new(Vec::with_capacity(TASKS + 1)));
        let task = |number| {
            let (user, order) = (user.clone(), order.clone());
            ums::spawn(move || {
                order.lock().unwrap().push(number);
                let tells = move || order.lock().unwrap().push(URGENT);
                (number == by).then(|| user.enqueue(tells).unwrap())
            })
        };
        let tasks: Vec<_> = (0..TASKS).map(task).collect();
        let urgent: Vec<_> = tasks.into_iter().filter_map(|task| task.join().unwrap()).collect();
        urgent.into_iter().for_each(|urgent| urgent.join().unwrap());
        let order = order.lock().unwrap();
        order.clone()
    };
    for kind in kinds() {
        one_kind(
            kind,
            |b| b.schedulers(1),
            |node| {
                let user = holder(node);
                let theirs = user.clone();
                node.run(move || {
                    for _ in 0..50 {
                        // By the one after which the row would begin, and by one of the row.
                        assert_eq!(play(&theirs, 1), [0, 1, URGENT, 2, 3], "{kind:?}");
                        assert_eq!(play(&theirs, 2), [0, 1, 2, URGENT, 3], "{kind:?}");
                    }
                });
                user.release();
            },
        );
    }
}
