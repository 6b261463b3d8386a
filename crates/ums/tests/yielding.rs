//! Yielding, the runnable list, and workers that wait for each other (U41, U44, U46-U50, U53-U56,
//! G3, B9). The kernel's view of parked threads is tested in `taking_over.rs`.

mod common;

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};

use common::*;
use ums::node::Placement;
use ums::stats::WorkerState;
use ums::sync::{Event, Mutex, RwLock};
use ums::testing::{lists, scheduler, when_readable, workers};
use ums::{Builder, Node, WorkerKind};

/// Returns the number of the caller's worker.
fn me() -> u32 {
    ums::worker::worker_id().expect("on a worker").1
}

/// Runs the body on a worker of each scheduler in turn, with each worker kind, on 1, 2 and 4
/// schedulers.
fn on_each(options: impl Fn(Builder) -> Builder, body: fn(&Node)) {
    each_alone(options, |node, _, n| {
        for s in 0..n {
            let handle = node.clone();
            on(node, s, move || body(&handle));
        }
    });
}

/// Starts a worker that yields until `stop` is set, and lets it begin.
fn yielder(stop: &Arc<AtomicBool>) -> (ums::JoinHandle<()>, u32) {
    let (stop, id) = (stop.clone(), Arc::new(AtomicU32::new(0)));
    let i = id.clone();
    let task = ums::spawn(move || {
        i.store(me(), SeqCst);
        while !stop.load(SeqCst) {
            ums::yield_now();
        }
    });
    eventually("it has begun", || id.load(SeqCst) != 0);
    (task, id.load(SeqCst))
}

#[test]
fn the_runnable_list_holds_workers_in_the_middle_of_a_request_u41() {
    on_each(
        |b| b,
        |_| {
            let stop = Arc::new(AtomicBool::new(false));
            let siblings: Vec<_> = (0..3).map(|_| yielder(&stop)).collect();
            let runnable = lists().runnable;
            let ids: BTreeSet<_> = siblings.iter().map(|s| s.1).collect();
            assert_eq!(runnable.iter().copied().collect::<BTreeSet<_>>(), ids);
            for worker in workers().iter().filter(|w| ids.contains(&w.id)) {
                assert_eq!(worker.state, WorkerState::Runnable);
                assert_ne!(worker.request, 0, "a runnable worker has a request");
            }
            // The first worker on the list runs next, and the worker that yields goes to the end of
            // the list.
            ums::yield_now();
            assert_eq!(lists().runnable, runnable, "all three ran, in order, and then we");
            stop.store(true, SeqCst);
            siblings.into_iter().for_each(|s| s.0.join().unwrap());
        },
    );
}

#[test]
fn any_worker_may_signal_u44() {
    on_each(
        |b| b,
        |_| {
            let (event, last) = (Arc::new(Event::auto(false)), Arc::new(AtomicU32::new(0)));
            let (e, l) = (event.clone(), last.clone());
            let woken = ums::spawn(move || {
                [(); 2].map(|()| {
                    e.wait().unwrap();
                    l.load(SeqCst)
                })
            });
            let signal = || {
                let (event, last) = (event.clone(), last.clone());
                ums::spawn(move || {
                    event.set();
                    last.store(me(), SeqCst);
                    ums::yield_now();
                    (me(), ums::yield_now()).0
                })
            };
            eventually("it waits", || lists().waiting.len() == 1);
            let first = signal();
            eventually("it waits again", || first.is_finished());
            // Keeps the first request's worker busy, so that the second request gets another
            // worker.
            let gate = Gate::shut();
            let g = gate.clone();
            let busy = ums::spawn(move || g.pass());
            eventually("it waits", || gate.waiters() == 1);
            let second = signal();
            let by = woken.join().unwrap();
            let signallers = [first.join().unwrap(), second.join().unwrap()];
            assert_eq!(by, signallers, "the worker that yielded after the signal made it run");
            assert_ne!(by[0], by[1]);
            gate.open();
            busy.join().unwrap();
        },
    );
}

#[test]
fn there_are_several_kinds_of_yield_u46() {
    on_each(
        |b| b,
        |_| {
            let (stop, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
            let (s, t) = (stop.clone(), turns.clone());
            let peer = ums::spawn(move || {
                while !s.load(SeqCst) {
                    t.fetch_add(1, SeqCst);
                    ums::yield_now();
                }
            });
            let gives_a_turn = |what: &dyn Fn()| {
                let before = turns.load(SeqCst);
                what();
                turns.load(SeqCst) > before
            };
            assert!(gives_a_turn(&ums::yield_now));
            assert!(gives_a_turn(&|| ums::sleep(ms(5)).unwrap()));
            // `yield_if_due` does nothing within the worker's quantum. After the quantum it gives
            // the others a turn.
            ums::yield_now();
            assert!(!gives_a_turn(&|| assert!(!ums::yield_if_due())));
            spin(ms(5));
            assert!(gives_a_turn(&|| assert!(ums::yield_if_due())));
            assert!(!gives_a_turn(&|| assert!(!ums::yield_if_due())));
            spin(ms(5));
            assert!(gives_a_turn(&|| ums::checkpoint().unwrap()));
            // `yield_after` has the caller's quantum.
            let after = |time| ums::worker::yield_after(time);
            assert!(gives_a_turn(&|| assert!(after(ms(0)))));
            assert!(!gives_a_turn(&|| assert!(!after(std::time::Duration::MAX))));
            spin(ms(2));
            assert!(gives_a_turn(&|| assert!(after(ms(2)))));
            stop.store(true, SeqCst);
            peer.join().unwrap();
        },
    );
}

#[test]
fn a_worker_yields_at_its_end_or_by_an_explicit_call_u47() {
    on_each(
        |b| b,
        |_| {
            let log = Log::default();
            let (a, b) = (log.clone(), log.clone());
            let first = ums::spawn(move || {
                a.push("first begins");
                spin(ms(2));
                a.push("first goes on");
                ums::yield_now();
                a.push("first ends");
            });
            let second = ums::spawn(move || {
                b.push("second begins");
                spin(ms(2));
                b.push("second ends");
            });
            eventually("both ended", || first.is_finished() && second.is_finished());
            let expected =
                ["first begins", "first goes on", "second begins", "second ends", "first ends"];
            assert_eq!(log.all(), expected);
        },
    );
}

/// Returns how often each thread of the node has gone to sleep.
fn sleeps() -> Vec<(u32, u64)> {
    let numbers = node_thread_numbers().into_iter();
    numbers.map(|t| (t, thread_status(t, "voluntary_ctxt_switches"))).collect()
}

/// Returns the threads that slept between two readings, and so must have run.
fn ran_between(before: &[(u32, u64)], after: &[(u32, u64)]) -> BTreeSet<u32> {
    let same = |(t, n): &&(u32, u64)| !before.contains(&(*t, *n));
    after.iter().filter(same).map(|(t, _)| *t).collect()
}

#[test]
fn the_yielder_itself_makes_the_next_one_run_and_no_third_thread_does_u48_u49() {
    for n in COUNTS {
        let alone = |b: Builder| b.schedulers(n).placement(Placement::AlwaysPreferred);
        one_kind(WorkerKind::Thread, alone, |node| {
            on(node, 0, || {
                let stop = Arc::new(AtomicBool::new(false));
                let (peer, id) = yielder(&stop);
                let peers_thread = workers().iter().find(|w| w.id == id).unwrap().thread;
                (0..10).for_each(|_| ums::yield_now());
                // Reading the counts takes a while, and the pair may sleep meanwhile.
                let pair = BTreeSet::from([thread_number(), peers_thread]);
                others_sleep(&[thread_number(), peers_thread]);
                let before = sleeps();
                (0..1000).for_each(|_| ums::yield_now());
                let after = sleeps();
                let ran = ran_between(&before, &after);
                assert!(ran.is_subset(&pair), "{ran:?} ran, and not only {pair:?}");
                assert!(ran.contains(&thread_number()), "two threads took turns");
                stop.store(true, SeqCst);
                peer.join().unwrap();
            });
        });
    }
}

#[test]
fn release_and_signal_are_the_doing_of_the_releasing_worker_alone_u56() {
    for n in COUNTS {
        let alone = |b: Builder| b.schedulers(n).placement(Placement::AlwaysPreferred);
        one_kind(WorkerKind::Thread, alone, |node| {
            on(node, 0, || {
                let lock = Arc::new(Mutex::new(0));
                let l = lock.clone();
                let guard = lock.lock();
                let waiter = ums::spawn(move || {
                    for _ in 0..100 {
                        *l.lock() += 1;
                    }
                    thread_number()
                });
                eventually("it waits", || lists().waiting.len() == 1);
                others_sleep(&[thread_number()]);
                let before = sleeps();
                drop(guard);
                while *lock.lock() < 100 {
                    ums::yield_now();
                }
                let ran = ran_between(&before, &sleeps());
                let pair = BTreeSet::from([thread_number(), waiter.join().unwrap()]);
                assert!(ran.is_subset(&pair), "{ran:?} ran, and not only {pair:?}");
            });
        });
    }
}

#[test]
fn there_are_no_threads_but_the_workers_and_one_standby_u49() {
    for n in COUNTS {
        one_kind(
            WorkerKind::Thread,
            |b| b.schedulers(n),
            |node| {
                let gate = Gate::shut();
                let tasks: Vec<_> = (0..3 * n)
                    .map(|at| {
                        let gate = gate.clone();
                        start(node, at % n, move || gate.pass())
                    })
                    .collect();
                eventually("all wait", || gate.waiters() == 3 * n);
                assert_eq!(node_threads().len(), 3 * n + n, "{:?}", node_threads());
                gate.open();
                tasks.into_iter().for_each(|t| t.join().unwrap());
            },
        );
    }
}

#[test]
fn any_worker_does_the_housekeeping_u50() {
    on_each(
        |b| b,
        |_| {
            let (ran, done) = (Log::default(), Arc::new(Event::manual(false)));
            let pipes = [(); 2].map(|()| rustix::pipe::pipe().unwrap());
            for (at, pipe) in pipes.iter().enumerate() {
                let ran = ran.clone();
                assert!(when_readable(pipe.0.as_raw_fd(), move |_| ran.push((at, me()))));
            }
            let next = Arc::new(AtomicUsize::new(0));
            let keepers: Vec<_> = (0..2)
                .map(|at| {
                    let (ran, done, next) = (ran.clone(), done.clone(), next.clone());
                    let write = rustix::io::dup(&pipes[at].1).unwrap();
                    ums::spawn(move || {
                        eventually("its turn", || next.load(SeqCst) == at);
                        rustix::io::write(&write, b"x").unwrap();
                        eventually("its routine has run", || ran.len() > at);
                        next.store(at + 1, SeqCst);
                        if at == 1 {
                            done.set();
                        }
                        // The request does not end, so its worker stays in use, and the other
                        // request has a worker of its own.
                        done.wait().unwrap();
                        me()
                    })
                })
                .collect();
            // While this worker waits, the completions are found by the two keepers.
            done.wait().unwrap();
            let ids: Vec<_> = keepers.into_iter().map(|k| k.join().unwrap()).collect();
            assert_ne!(ids[0], ids[1]);
            let by: Vec<_> = ran.all().into_iter().map(|r: (usize, u32)| r.1).collect();
            assert!(by.iter().all(|id| ids.contains(id)), "{by:?} are not of {ids:?}");
            assert_eq!(by[1], ids[1], "the other keeper was parked by then");
        },
    );
}

#[test]
fn a_worker_that_waits_for_a_resource_stands_in_its_queue_u53() {
    on_each(
        |b| b,
        |node| {
            let lock = Arc::new(Mutex::new(Vec::new()));
            let guard = lock.lock();
            let waiters: Vec<_> = (0..3)
                .map(|at| {
                    let lock = lock.clone();
                    ums::spawn(move || (lock.lock().push(at), me()).1)
                })
                .collect();
            eventually("three wait", || lists().waiting.len() == 3);
            let waiting = lists().waiting;
            let here = ums::worker::scheduler_id().unwrap();
            let rows = node.snapshot().workers;
            for id in &waiting {
                let row = rows.iter().find(|w| (w.scheduler, w.id) == (here, *id)).unwrap();
                assert_eq!(row.state, WorkerState::Waiting);
                assert_eq!(row.reason, Some(ums::WaitReason::MUTEX));
                assert_ne!(row.resource, 0, "it says what it waits for");
                assert_eq!(
                    row.blocker.map(|b| (b.0, b.1)),
                    ums::worker::worker_id(),
                    "and what holds it"
                );
            }
            assert_eq!(lists().timers, 0, "it waits without a timeout");
            (0..10).for_each(|_| ums::yield_now());
            assert_eq!(lists().waiting, waiting, "no wait ends by our yields");
            drop(guard);
            let ids: Vec<_> = waiters.into_iter().map(|w| w.join().unwrap()).collect();
            assert_eq!(ids, waiting);
            assert_eq!(*lock.lock(), [0, 1, 2], "first come, first served");
        },
    );
}

#[test]
fn release_moves_one_exclusive_waiter_or_a_group_of_shared_ones_u54() {
    on_each(
        |b| b,
        |_| {
            let (lock, log) = (Arc::new(RwLock::new(())), Log::default());
            let guard = lock.write();
            let tasks: Vec<_> = ["r1", "r2", "r3", "w1", "w2", "r4"]
                .into_iter()
                .enumerate()
                .map(|(at, name)| {
                    let (lock, log) = (lock.clone(), log.clone());
                    let task = ums::spawn(move || {
                        if name.starts_with('r') {
                            let _shared = lock.read();
                            log.push(name);
                            ums::yield_now();
                        } else {
                            let _alone = lock.write();
                            log.push(name);
                            ums::yield_now();
                        }
                    });
                    eventually("it waits", || lists().waiting.len() == at + 1);
                    task
                })
                .collect();
            let waiting = lists().waiting;
            drop(guard);
            assert_eq!(lists().runnable, waiting[..3], "the three shared ones, as a group");
            assert_eq!(lists().waiting, waiting[3..]);
            eventually("the first exclusive one has it", || log.len() == 4);
            assert_eq!(lists().waiting, waiting[4..], "an exclusive one alone");
            tasks.into_iter().for_each(|t| t.join().unwrap());
            assert_eq!(log.all(), ["r1", "r2", "r3", "w1", "w2", "r4"]);
        },
    );
}

/// Makes one worker wait for a lock and another one yield, and releases the lock. Returns the
/// runnable list right after the release, the waiter, the other worker, and the order in which the
/// two ran.
fn release_beside_a_yielder() -> (Vec<u32>, u32, u32, Vec<u32>) {
    let (lock, log, stop) =
        (Arc::new(Mutex::new(())), Log::default(), Arc::new(AtomicBool::new(false)));
    let guard = lock.lock();
    let (l, n) = (lock.clone(), log.clone());
    let waiter = ums::spawn(move || {
        drop(l.lock());
        n.push(me());
    });
    eventually("it waits", || lists().waiting.len() == 1);
    let waiting = lists().waiting[0];
    let (s, n) = (stop.clone(), log.clone());
    let other = ums::spawn(move || {
        while !s.load(SeqCst) {
            ums::yield_now();
        }
        n.push(me());
    });
    eventually("it yields", || lists().runnable.len() == 1);
    let yielding = lists().runnable[0];
    stop.store(true, SeqCst);
    drop(guard);
    let after = lists().runnable;
    spin(ms(2));
    assert_eq!(log.len(), 0, "release ran a worker");
    ums::yield_now();
    let ran = log.all();
    waiter.join().unwrap();
    other.join().unwrap();
    (after, waiting, yielding, ran)
}

#[test]
fn release_runs_no_worker_and_the_next_yield_runs_the_first_u55() {
    on_each(
        |b| b,
        |_| {
            let (runnable, waiter, other, ran) = release_beside_a_yielder();
            // The signalled worker goes ahead of the one that merely yielded (B9).
            assert_eq!(runnable, [waiter, other]);
            assert_eq!(ran, runnable);
        },
    );
    // The original's runnable list is first in, first out.
    both_kinds_with(
        |b| b.classic(),
        |node, _, n| {
            let (runnable, waiter, other, ran) = on(node, n - 1, release_beside_a_yielder);
            assert_eq!(runnable, [other, waiter]);
            assert_eq!(ran, runnable);
        },
    );
}

/// Two workers that hand a lock to each other stop after this many times, so that a test in which a
/// third worker starves ends too.
const ENOUGH: usize = 100_000;

/// Two workers hand a lock to each other, beside a worker that yields. Returns how many hand-overs
/// there are between the turns of the third worker.
fn rounds_between_turns() -> Vec<usize> {
    let lock = Arc::new(ums::user::UserLock::new());
    let (rounds, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let pair: Vec<_> = [1 << 40, 1 << 41]
        .map(|id| {
            let (lock, rounds, stop) = (lock.clone(), rounds.clone(), stop.clone());
            ums::spawn(move || {
                while !stop.load(SeqCst) && rounds.load(SeqCst) < ENOUGH {
                    lock.acquire(id, None).unwrap();
                    rounds.fetch_add(1, SeqCst);
                    if lock.waiters() == 0 {
                        ums::yield_now(); // Until the other has come.
                    }
                    lock.release(id);
                }
            })
        })
        .into();
    eventually("the pair has begun", || rounds.load(SeqCst) > 10);
    let turns = (0..20).map(|_| {
        ums::yield_now();
        rounds.load(SeqCst)
    });
    let turns: Vec<_> = turns.collect();
    stop.store(true, SeqCst);
    pair.into_iter().for_each(|t| t.join().unwrap());
    assert!(rounds.load(SeqCst) < ENOUGH, "the third worker starved until the others had ended");
    turns.windows(2).map(|w| w[1] - w[0]).collect()
}

#[test]
fn signalled_workers_go_first_a_thousand_times_in_a_row_at_most_b9() {
    each_alone(
        |b| b,
        |node, _, n| {
            let rounds = on(node, n - 1, rounds_between_turns);
            assert!(rounds.iter().all(|r| *r <= 1002), "the third worker starved: {rounds:?}");
            // A turn that the system interrupts counts as a long one.
            assert!(rounds.iter().any(|r| *r >= 900), "signalled workers go first: {rounds:?}");
        },
    );
    both_kinds_with(
        |b| b.classic(),
        |node, _, n| {
            let rounds = on(node, n - 1, rounds_between_turns);
            assert!(rounds.iter().all(|r| *r <= 4), "first in, first out: {rounds:?}");
        },
    );
}

#[test]
fn the_longest_turn_is_counted_b13() {
    on_each(
        |b| b,
        |node| {
            let s = ums::worker::scheduler_id().unwrap();
            let before = scheduler(node, s).counters.longest_turn;
            // A turn that is twice as long as any before it, and that ends with a wait.
            let began = ums::testing::ticks();
            while ums::testing::ticks() - began <= 2 * before {}
            ums::sleep(ms(1)).unwrap();
            let after = scheduler(node, s).counters.longest_turn;
            assert!(after > before, "{before} ticks, and then {after}");
            assert!(scheduler(node, s).counters.passed_over_max <= 1000);
        },
    );
}

#[test]
fn a_yield_that_picks_itself_is_a_yield_and_no_switch_g3() {
    on_each(
        |b| b,
        |node| {
            let s = ums::worker::scheduler_id().unwrap();
            let before = scheduler(node, s).counters;
            (0..1000).for_each(|_| ums::yield_now());
            let after = scheduler(node, s).counters;
            assert_eq!(after.yields - before.yields, 1000);
            assert_eq!(after.context_switches, before.context_switches);
            assert_eq!(after.idle_switches, before.idle_switches);
        },
    );
}

#[test]
fn a_turn_looks_at_io_then_timers_then_the_inbox_then_the_runnable_list_g3() {
    each_alone(
        |b| b,
        |node, _, n| {
            on(node, n - 1, || {
                let (log, gate) = (Log::default(), Gate::shut());
                let stop = Arc::new(AtomicBool::new(false));
                let (l, g) = (log.clone(), gate.clone());
                let by_inbox = ums::spawn(move || {
                    g.pass();
                    l.push("inbox");
                });
                eventually("it waits", || gate.waiters() == 1);
                let (l, s) = (log.clone(), stop.clone());
                let yields = ums::spawn(move || {
                    while !s.load(SeqCst) {
                        ums::yield_now();
                    }
                    l.push("runnable");
                });
                eventually("it yields", || lists().runnable.len() == 1);
                let (read, write) = rustix::pipe::pipe().unwrap();
                let (l, waits) = (log.clone(), Log::default());
                let w = waits.clone();
                assert!(when_readable(read.as_raw_fd(), move |_| {
                    w.push(lists().waiting.len());
                    l.push("I/O");
                }));
                // A ring passes requests to the kernel in batches, after some turns.
                (0..100).for_each(|_| ums::yield_now());
                let l = log.clone();
                let by_timer = ums::spawn(move || {
                    ums::sleep(ms(200)).unwrap();
                    l.push("timer");
                });
                eventually("it sleeps", || lists().waiting.len() == 2);

                // All of the following happens while this worker keeps the scheduler.
                stop.store(true, SeqCst);
                let opened = Arc::new(AtomicBool::new(false));
                let o = opened.clone();
                let outside = std::thread::spawn(move || {
                    gate.open();
                    o.store(true, SeqCst);
                });
                while !opened.load(SeqCst) {}
                spin(ms(220));
                rustix::io::write(&write, b"x").unwrap();
                spin(ms(1));
                assert_eq!(log.len(), 0);
                eventually("the routine has run", || log.len() > 0);
                assert_eq!(waits.all(), [2], "timers and inbox are looked at after I/O");
                eventually("all ran", || log.len() == 4);
                assert_eq!(log.all(), ["I/O", "timer", "inbox", "runnable"]);
                outside.join().unwrap();
                [by_inbox, yields, by_timer].into_iter().for_each(|t| t.join().unwrap());
            })
        },
    );
}
