//! Work requests and the workers that carry them out (U27-U29, U31-U36, U51, U52, G4, G11).

mod common;

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use common::*;
use ums::stats::WorkerState;
use ums::testing::{SchedulerSnapshot, lists, scheduler, when_readable, workers};
use ums::{Builder, Node, WaitReason, WorkerKind};

/// Waits until this scheduler has nothing to do, and returns its view.
fn at_rest(node: &Node, s: usize) -> SchedulerSnapshot {
    eventually("the scheduler is at rest", || {
        let v = scheduler(node, s);
        v.load == 0 && v.workers.iter().all(|w| w.state == WorkerState::Idle)
    });
    scheduler(node, s)
}

fn worker() -> (usize, u32) {
    ums::worker::worker_id().expect("on a worker")
}

/// Creates workers, and lets them become idle.
fn idle_workers(node: &Node, s: usize, count: usize) {
    let gate = Gate::shut();
    let tasks: Vec<_> = (0..count)
        .map(|_| {
            let gate = gate.clone();
            start(node, s, move || gate.pass())
        })
        .collect();
    eventually("all wait", || gate.waiters() == count);
    gate.open();
    tasks.into_iter().for_each(|t| t.join().unwrap());
    at_rest(node, s);
}

#[test]
fn an_idle_worker_takes_the_request_u27() {
    each_alone(
        |b| b,
        |node, _, n| {
            for s in 0..n {
                let first = on(node, s, worker);
                for _ in 0..20 {
                    at_rest(node, s);
                    assert_eq!(on(node, s, worker), first);
                }
                assert_eq!(scheduler(node, s).counters.workers_created, 1);
            }
        },
    );
}

#[test]
fn a_worker_is_made_when_none_is_idle_and_the_maximum_is_not_reached_u28() {
    each_alone(
        |b| b,
        |node, _, n| {
            let gate = Gate::shut();
            let mut tasks = Vec::new();
            for busy in 1..=6 {
                let gate = gate.clone();
                tasks.push(start(node, n - 1, move || (gate.pass(), worker()).1));
                eventually("it waits", || gate_waiters(node, n - 1) == busy);
                assert_eq!(scheduler(node, n - 1).counters.workers_created, busy as u64);
            }
            gate.open();
            let ids: BTreeSet<_> = tasks.into_iter().map(|t| t.join().unwrap()).collect();
            assert_eq!(ids.len(), 6, "each request had a worker of its own");
        },
    );
}

fn gate_waiters(node: &Node, s: usize) -> usize {
    let waits = |w: &ums::testing::WorkerSnapshot| w.state == WorkerState::Waiting;
    scheduler(node, s).workers.iter().filter(|w| waits(w)).count()
}

/// Builder options for two workers on each scheduler.
fn two_workers(n: usize) -> impl Fn(Builder) -> Builder {
    move |b| b.schedulers(n).max_workers(2 * n).placement(ums::node::Placement::AlwaysPreferred)
}

#[test]
fn at_the_maximum_requests_queue_first_in_first_out_u29() {
    for kind in kinds() {
        for n in COUNTS {
            one_kind(kind, two_workers(n), |node| {
                let (gate, other) = (Gate::shut(), Gate::shut());
                let (log, overlap) = (Log::default(), Arc::new(AtomicUsize::new(0)));
                let (g, o) = (gate.clone(), other.clone());
                let holders = [start(node, 0, move || g.pass()), start(node, 0, move || o.pass())];
                eventually("both workers wait", || gate_waiters(node, 0) == 2);
                let queued: Vec<_> = (0..20)
                    .map(|at| {
                        let (log, overlap) = (log.clone(), overlap.clone());
                        start(node, 0, move || {
                            assert_eq!(overlap.fetch_add(1, SeqCst), 0, "one worker was free");
                            log.push(at);
                            ums::yield_now();
                            overlap.fetch_sub(1, SeqCst);
                        })
                    })
                    .collect();
                assert_eq!((scheduler(node, 0).queued, log.len()), (20, 0));
                gate.open();
                queued.into_iter().for_each(|t| t.join().unwrap());
                assert_eq!(log.all(), (0..20).collect::<Vec<_>>());
                other.open();
                holders.into_iter().for_each(|t| t.join().unwrap());
                assert_eq!(scheduler(node, 0).workers.len(), 2, "no more workers than the maximum");
            });
        }
    }
}

#[test]
fn an_idle_user_holds_no_worker_u31() {
    both_kinds(|node, _, n| {
        let users: Vec<_> = (0..1000).map(|_| node.user()).collect();
        for user in &users {
            user.enqueue(|| ()).unwrap().join().unwrap();
        }
        let (mut made, mut idle) = (0, 0);
        for s in 0..n {
            let v = at_rest(node, s);
            made += v.workers.len();
            idle += v.counters.idle as usize;
        }
        assert_eq!(made, idle, "a worker is busy with an idle user");
        // Usually one on each scheduler. On a busy computer a request may come before the worker of
        // the one before is idle.
        assert!(made <= 10 * n, "{made} workers for users that came one after the other");
        assert_eq!(node.snapshot().schedulers.iter().map(|s| s.users).sum::<usize>(), 1000);
    });
}

/// Waits, yields and goes preemptive in turn; after each step it passes the current worker to
/// `look`.
fn restless(rounds: usize, me: usize, mut look: impl FnMut((usize, u32))) {
    for round in 0..rounds {
        match (me + round) % 4 {
            0 => ums::sleep(std::time::Duration::from_micros(40)).unwrap(),
            1 => ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || ()),
            2 => ums::spawn(|| ()).join().unwrap(),
            _ => ums::yield_now(),
        }
        look(worker());
    }
}

#[test]
fn one_worker_carries_out_the_whole_request_u32() {
    both_kinds(|node, kind, n| {
        let tasks: Vec<_> = (0..8 * n)
            .map(|me| {
                start(node, me % n, move || {
                    let (first, thread) = (worker(), thread_number());
                    restless(20, me, |now| {
                        assert_eq!(now, first, "the request changed its worker");
                        assert_eq!(thread_number(), thread, "the request changed its thread");
                    });
                })
            })
            .collect();
        tasks.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(node.worker_kind(), kind);
    });
}

#[test]
fn a_worker_never_changes_to_another_request_midway_u33() {
    both_kinds(|node, _, n| {
        const WORKERS: usize = 4096;
        let at_work: Arc<Vec<AtomicUsize>> =
            Arc::new((0..n * WORKERS).map(|_| AtomicUsize::new(0)).collect());
        let tasks: Vec<_> = (0..8 * n)
            .map(|me| {
                let at_work = at_work.clone();
                start(node, me % n, move || {
                    let slot = |(s, id): (usize, u32)| &at_work[s * WORKERS + id as usize];
                    let mine = slot(worker());
                    assert_eq!(mine.swap(me + 1, SeqCst), 0, "the worker was in another request");
                    restless(20, me, |now| assert_eq!(slot(now).load(SeqCst), me + 1));
                    assert_eq!(mine.swap(0, SeqCst), me + 1, "another request was begun midway");
                })
            })
            .collect();
        tasks.into_iter().for_each(|t| t.join().unwrap());
    });
}

#[test]
fn a_yielding_worker_runs_completion_routines_of_others_u34() {
    each_alone(
        |b| b,
        |node, _, n| {
            let (read, write) = rustix::pipe::pipe().unwrap();
            let (ran, gate) = (Log::default(), Gate::shut());
            let (r, g) = (ran.clone(), gate.clone());
            let submitter = start(node, n - 1, move || {
                let seen = r.clone();
                assert!(when_readable(read.as_raw_fd(), move |_| {
                    let me = worker().1;
                    let seen_me = workers().into_iter().find(|w| w.id == me).unwrap();
                    seen.push((me, seen_me.state, seen_me.request));
                }));
                g.pass();
                drop(read); // Kept open until the routine has run.
                worker().1
            });
            let (ran_on, yielder, request) = on(node, n - 1, move || {
                eventually("the submitter waits", || gate.waiters() == 1);
                rustix::io::write(&write, b"x").unwrap();
                eventually("the routine has run", || ran.len() == 1);
                let (id, state, request) = ran.all()[0];
                assert_eq!(state, WorkerState::Running, "the yielder became idle for it");
                gate.open();
                (id, worker().1, request)
            });
            assert_eq!(ran_on, yielder, "it ran on the worker that yielded");
            assert_ne!(request, 0, "the yielder lost its own request");
            assert_ne!(submitter.join().unwrap(), yielder);
        },
    );
}

#[test]
fn a_finished_worker_passes_on_and_joins_the_worker_list_u35() {
    each_alone(
        |b| b,
        |node, _, n| {
            on(node, n - 1, || {
                let log = Log::default();
                let (l, m) = (log.clone(), log.clone());
                let early = ums::spawn(move || {
                    ums::yield_now();
                    l.push(("early", lists().idle));
                    worker().1
                });
                let late = ums::spawn(move || {
                    ums::yield_now();
                    m.push(("late", lists().idle));
                    worker().1
                });
                eventually("both have ended", || early.is_finished() && late.is_finished());
                let (early, late) = (early.join().unwrap(), late.join().unwrap());
                // The first worker's end made the second one runnable, and put the first worker on
                // the worker list.
                assert_eq!(log.all(), [("early", vec![]), ("late", vec![early])]);
                assert_eq!(lists().idle, [early, late]);
            });
        },
    );
}

#[test]
fn a_finished_worker_with_nothing_to_do_hosts_the_idle_loop_u36() {
    each_alone(
        |b| b,
        |node, kind, n| {
            let thread = on(node, n - 1, thread_number);
            eventually("the scheduler sleeps", || node.snapshot().schedulers[n - 1].is_idle);
            let v = at_rest(node, n - 1);
            assert!(v.counters.idle_switches >= 1);
            let asleep = v.counters.idle_switches;
            // The finished worker's thread itself sleeps, in the wait for I/O and not on the
            // worker's event.
            eventually("its thread sleeps", || about_thread(thread, "stat").contains(") S "));
            let call = about_thread(thread, "syscall");
            let number: i64 = call.split_whitespace().next().unwrap().parse().unwrap();
            assert_ne!(number, libc::SYS_futex, "the {kind:?} worker is parked: {call}");
            std::thread::sleep(ms(20));
            assert_eq!(scheduler(node, n - 1).counters.idle_switches, asleep, "it does not poll");
        },
    );
}

#[test]
fn the_running_worker_continues_with_queued_requests_without_a_switch_u51() {
    each_alone(
        |b| b,
        |node, _, n| {
            // Other workers are idle and could take the requests.
            idle_workers(node, n - 1, 3);
            let (go, log) = (Arc::new(AtomicBool::new(false)), Log::default());
            let g = go.clone();
            let busy = start(node, n - 1, move || {
                while !g.load(SeqCst) {
                    std::hint::spin_loop();
                }
                worker()
            });
            let requests: Vec<_> = (0..100)
                .map(|_| {
                    let (log, handle) = (log.clone(), node.clone());
                    start(node, n - 1, move || {
                        let switches = scheduler(&handle, n - 1).counters.context_switches;
                        let thread = thread_number();
                        let slept = thread_status(thread, "voluntary_ctxt_switches");
                        log.push((worker(), thread, switches, slept));
                    })
                })
                .collect();
            go.store(true, SeqCst);
            let first = busy.join().unwrap();
            requests.into_iter().for_each(|r| r.join().unwrap());
            let log = log.all();
            assert!(log.iter().all(|l| l.0 == first), "another worker took a request");
            assert_eq!(log[0].2, log[99].2, "the scheduler switched between the requests");
            assert_eq!(log[0].1, log[99].1, "another thread took a request");
            // It may sleep for a lock of the C library's allocator, or of the kernel.
            assert!(log[99].3 - log[0].3 < 10, "the thread slept again and again");
        },
    );
}

#[test]
fn any_worker_can_take_any_request_u52() {
    each_alone(
        |b| b,
        |node, _, _| {
            let user = node.user();
            let home = user.scheduler();
            let ask = || user.enqueue(worker).unwrap().join().unwrap();
            let first = ask();
            at_rest(node, home);
            // The user's previous worker is busy with a request of another user now.
            let gate = Gate::shut();
            let g = gate.clone();
            let other = start(node, home, move || (g.pass(), worker()).1);
            eventually("it waits", || gate_waiters(node, home) == 1);
            let second = ask();
            assert_ne!(first, second, "the user's request waited for the worker it had before");
            gate.open();
            assert_eq!(other.join().unwrap(), first);
        },
    );
}

/// Makes a worker runnable and queues a request, in the given order, while the caller keeps the
/// scheduler. Returns the order in which the two then run.
fn runnable_against_queued(runnable_first: bool) -> Vec<&'static str> {
    let (gate, log) = (Gate::shut(), Log::default());
    let (g, l) = (gate.clone(), log.clone());
    let waiter = ums::spawn(move || {
        g.pass();
        l.push("runnable");
    });
    eventually("it waits", || gate.waiters() == 1);
    let l = log.clone();
    let request = move || l.push("queued");
    let request = if runnable_first {
        gate.open();
        spin(std::time::Duration::from_micros(10));
        ums::spawn(request)
    } else {
        let request = ums::spawn(request);
        spin(std::time::Duration::from_micros(10));
        gate.open();
        request
    };
    eventually("both ran", || waiter.is_finished() && request.is_finished());
    log.all()
}

#[test]
fn a_signalled_worker_goes_before_a_queued_request_g4() {
    each_alone(
        |b| b,
        |node, _, n| {
            for first in [true, false] {
                let order = on(node, n - 1, move || runnable_against_queued(first));
                assert_eq!(order, ["runnable", "queued"]);
            }
        },
    );
}

#[test]
fn in_the_classic_profile_the_one_that_has_waited_longer_is_next_g4() {
    both_kinds_with(
        |b| b.classic(),
        |node, _, n| {
            assert_eq!(on(node, n - 1, || runnable_against_queued(true)), ["runnable", "queued"]);
            assert_eq!(on(node, n - 1, || runnable_against_queued(false)), ["queued", "runnable"]);
        },
    );
}

#[test]
fn a_finished_worker_takes_a_queued_request_without_a_switch_g4() {
    each_alone(
        |b| b,
        |node, _, n| {
            idle_workers(node, n - 1, 3);
            let me = node.clone();
            let (first, second) = on(node, n - 1, move || {
                let (s, node) = (n - 1, me.clone());
                let next =
                    ums::spawn(move || (worker(), scheduler(&node, s).counters.context_switches));
                ((worker(), scheduler(&me, s).counters.context_switches), next)
            });
            assert_eq!(second.join().unwrap(), first);
        },
    );
}

#[test]
fn a_request_of_a_user_that_holds_something_goes_first_g4_b12() {
    each_alone(
        |b| b,
        |node, _, _| {
            let holder = node.user();
            let (home, log) = (holder.scheduler(), Log::default());
            let go = Arc::new(AtomicBool::new(false));
            let g = go.clone();
            let busy = start(node, home, move || while !g.load(SeqCst) {});
            eventually("it is busy", || scheduler(node, home).queued == 0);
            let tell = |what: &'static str| {
                let log = log.clone();
                move || log.push(what)
            };
            let mut tasks =
                vec![start(node, home, tell("fresh 1")), start(node, home, tell("fresh 2"))];
            holder.hold();
            tasks.push(holder.enqueue(tell("holder")).unwrap());
            holder.release();
            tasks.push(holder.enqueue(tell("no holder any more")).unwrap());
            go.store(true, SeqCst);
            busy.join().unwrap();
            tasks.into_iter().for_each(|t| t.join().unwrap());
            assert_eq!(log.all(), ["holder", "fresh 1", "fresh 2", "no holder any more"]);
        },
    );
}

/// The request is younger than both workers that can continue, and goes before them.
#[test]
fn a_holders_request_goes_before_older_workers_that_can_continue_g4_b12() {
    each_alone(
        |b| b,
        |node, _, _| {
            let holder = node.user();
            let (home, log) = (holder.scheduler(), Log::default());
            let tell = |what: &'static str| {
                let log = log.clone();
                move || log.push(what)
            };
            let event = Arc::new(ums::sync::Event::manual(false));
            let (waits, woken) = (event.clone(), tell("its wait has ended"));
            let mut tasks = vec![start(node, home, move || {
                waits.wait().unwrap();
                woken();
            })];
            let count =
                |state| scheduler(node, home).workers.iter().filter(|w| w.state == state).count();
            eventually("it waits", || count(WorkerState::Waiting) == 1);
            let [begin, go] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
            let (b, yielded) = (begin.clone(), tell("it has yielded"));
            tasks.push(start(node, home, move || {
                while !b.load(SeqCst) {}
                ums::yield_now();
                yielded();
            }));
            let g = go.clone();
            let busy = start(node, home, move || while !g.load(SeqCst) {});
            begin.store(true, SeqCst);
            eventually("the busy one runs, the other can continue", || {
                scheduler(node, home).queued == 0 && count(WorkerState::Runnable) == 1
            });
            event.set();
            holder.hold();
            tasks.push(holder.enqueue(tell("holder")).unwrap());
            go.store(true, SeqCst);
            busy.join().unwrap();
            tasks.into_iter().for_each(|t| t.join().unwrap());
            holder.release();
            assert_eq!(log.all(), ["holder", "its wait has ended", "it has yielded"]);
        },
    );
}

#[test]
fn a_lock_owners_request_never_waits_behind_those_that_wait_for_the_lock_g11() {
    for kind in kinds() {
        for n in COUNTS {
            one_kind(kind, two_workers(n), |node| {
                let lock = Arc::new(ums::user::UserLock::new());
                let owner = node.user();
                let (l, id) = (lock.clone(), owner.id());
                owner.enqueue(move || l.acquire(id, None)).unwrap().join().unwrap().unwrap();
                assert!(owner.is_holding());
                // Every worker of every scheduler waits for the lock, and an equal number of
                // requests is queued.
                let users: Vec<_> = (0..4 * n).map(|_| node.user()).collect();
                let waiting: Vec<_> = users
                    .iter()
                    .enumerate()
                    .map(|(at, user)| {
                        let (lock, id) = (lock.clone(), user.id());
                        start(node, at % n, move || {
                            lock.acquire(id, None).unwrap();
                            lock.release(id);
                        })
                    })
                    .collect();
                eventually("all workers wait", || lock.waiters() == 2 * n);
                let snapshot = node.snapshot();
                let blockers = snapshot.workers.iter().filter(|w| w.state == WorkerState::Waiting);
                assert!(blockers.map(|w| w.blocking_user).all(|user| user == owner.id()));
                let l = lock.clone();
                owner.enqueue(move || l.release(id)).unwrap().join().unwrap();
                waiting.into_iter().for_each(|t| t.join().unwrap());
                let reserve = |s| scheduler(node, s).counters.reserve_workers;
                assert_eq!((0..n).map(reserve).sum::<u64>(), 1, "one worker beyond the limit");
            });
        }
    }
}

fn nested(depth: usize) -> usize {
    if depth == 0 { 0 } else { ums::spawn(move || nested(depth - 1)).join().unwrap() + 1 }
}

#[test]
fn parents_that_wait_for_children_never_use_up_all_workers_g11() {
    for kind in kinds() {
        for n in COUNTS {
            one_kind(
                kind,
                |b| b.schedulers(n).max_workers(n),
                |node| {
                    assert_eq!(node.run(|| nested(12)), 12);
                    let tasks: Vec<_> = (0..n).map(|s| start(node, s, || nested(6))).collect();
                    tasks.into_iter().for_each(|t| assert_eq!(t.join().unwrap(), 6));
                },
            );
        }
    }
}

#[test]
fn thread_workers_have_a_thread_each_and_fibers_share_one_u22() {
    for kind in kinds() {
        for n in COUNTS {
            one_kind(
                kind,
                |b| b.schedulers(n),
                |node| {
                    let gate = Gate::shut();
                    let tasks: Vec<_> = (0..4)
                        .map(|_| {
                            let gate = gate.clone();
                            start(node, 0, move || (gate.pass(), thread_number()).1)
                        })
                        .collect();
                    eventually("all wait", || gate.waiters() == 4);
                    gate.open();
                    let threads: BTreeSet<_> =
                        tasks.into_iter().map(|t| t.join().unwrap()).collect();
                    let expected = if kind == WorkerKind::Thread { 4 } else { 1 };
                    assert_eq!(threads.len(), expected, "{kind:?}");
                },
            );
        }
    }
}
