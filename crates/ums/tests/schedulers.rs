//! Schedulers, their lists and their users (U15, U17-U21, U23-U26, G1, G9, B14, B55).

mod common;

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use common::*;
use ums::node::Placement;
use ums::stats::WorkerState;
use ums::testing::{lists, scheduler, when_readable, workers};
use ums::{Node, User, WaitReason};

#[test]
fn there_is_a_scheduler_for_each_allowed_processor_u15_b55() {
    for kind in kinds() {
        let cpus = ums::probe::Cpus::read();
        one_kind(kind, |b| b, |node| assert_eq!(node.scheduler_count(), cpus.count));
        assert!(cpus.count <= cpus.allowed.len() && !cpus.allowed.is_empty());
        // What counts is the affinity mask, not the number of processors in the computer.
        let one = *cpus.allowed.last().unwrap();
        let masked = std::thread::spawn(move || {
            let mut mask = rustix::thread::CpuSet::new();
            mask.set(one);
            rustix::thread::sched_setaffinity(None, &mask).unwrap();
            one_kind(kind, |b| b, |node| assert_eq!(node.scheduler_count(), 1));
        });
        masked.join().unwrap();
    }
}

fn shares(node: &Node) -> Vec<usize> {
    (0..node.scheduler_count()).map(|s| scheduler(node, s).workers_max).collect()
}

#[test]
fn workers_are_spread_evenly_and_the_sum_is_exact_u17_g9() {
    let shares_of = |kind, n, max| {
        let mut found = Vec::new();
        one_kind(kind, |b| b.schedulers(n).max_workers(max), |node| found = shares(node));
        found
    };
    for kind in kinds() {
        assert_eq!(shares_of(kind, 4, 255), [64, 64, 64, 63]);
        assert_eq!(shares_of(kind, 2, 255), [128, 127]);
        assert_eq!(shares_of(kind, 1, 255), [255]);
        assert_eq!(shares_of(kind, 4, 6), [2, 2, 1, 1]);
        assert_eq!(shares_of(kind, 4, 4), [1, 1, 1, 1]);
    }
}

#[test]
fn the_split_is_the_same_in_both_kinds_u18() {
    let mut found = vec![Vec::new(); kinds().len()];
    for (at, kind) in kinds().into_iter().enumerate() {
        for n in COUNTS {
            one_kind(kind, |b| b.schedulers(n).classic(), |node| found[at].push(shares(node)));
            let number = |b: ums::Builder| b.schedulers(n).max_workers(1000);
            one_kind(kind, number, |node| found[at].push(shares(node)));
        }
    }
    assert!(found.iter().all(|one| *one == found[0]), "{found:?}");
    assert_eq!(
        found[0].iter().step_by(2).map(|s| s.iter().sum()).collect::<Vec<usize>>(),
        [255; 3]
    );
}

#[test]
fn the_automatic_maximum_of_workers_is_what_the_system_has_room_for_b14() {
    let lines = ums::probe::Facts::read().lines();
    let printed = |name| {
        let fact = lines.iter().find(|fact| fact.name == name).unwrap();
        assert!(fact.consequence.starts_with("set by: "), "{fact}");
        fact.value.parse::<usize>().unwrap()
    };
    both_kinds(|node, kind, n| {
        let name = match kind {
            ums::WorkerKind::Thread => "workers.thread",
            ums::WorkerKind::Fiber => "workers.fiber",
            ums::WorkerKind::OwnContext => "workers.context",
        };
        // The limit depends on the available memory, which changes all the time.
        let (most, expected) = (shares(node).iter().sum::<usize>(), printed(name));
        assert!(most.abs_diff(expected) <= expected / 2 && most >= n, "{most} for {expected}");
    });
    both_kinds_with(
        |b| b.classic(),
        |node, _, _| assert_eq!(shares(node).iter().sum::<usize>(), 255),
    );
}

#[test]
fn too_few_workers_for_the_schedulers_are_refused_u17() {
    let refused = Node::builder().schedulers(4).max_workers(3).build().err();
    let text = refused.expect("four schedulers need four workers").to_string();
    assert!(text.contains("3 workers for 4 schedulers"), "{text}");
    assert!(Node::builder().schedulers(0).build().is_err());
}

#[test]
fn each_scheduler_has_five_lists_u19() {
    each_alone(
        |b| b,
        |node, _, n| {
            for s in 0..n {
                on(node, s, || {
                    let before = lists();
                    assert_eq!((before.idle.len(), before.runnable.len()), (0, 0));
                    assert_eq!((before.waiting.len(), before.io, before.timers), (0, 0, 0));
                    let (gate, ends) = (Gate::shut(), Arc::new(AtomicBool::new(false)));
                    let (g, e) = (gate.clone(), ends.clone());
                    let tasks = [
                        ums::spawn(move || g.pass()),
                        ums::spawn(|| assert!(ums::sleep(PATIENCE).is_err(), "it is cancelled")),
                        ums::spawn(move || {
                            while !e.load(SeqCst) {
                                ums::yield_now();
                            }
                        }),
                        ums::spawn(|| ()),
                    ];
                    let (read, write) = rustix::pipe::pipe().unwrap();
                    assert!(when_readable(read.as_raw_fd(), |_| {}));
                    eventually("the last is done", || tasks[3].is_finished());
                    let l = lists();
                    assert_eq!(l.idle.len(), 1, "the worker list: {l:?}");
                    assert_eq!(l.runnable.len(), 1, "the runnable list: {l:?}");
                    assert_eq!(l.waiting.len(), 2, "the waiter list: {l:?}");
                    assert_eq!(l.io, 1, "the I/O list: {l:?}");
                    assert_eq!(l.timers, 1, "the timer list: {l:?}");
                    assert_eq!((l.workers, l.preemptive), (5, 0));
                    rustix::io::write(&write, b"x").unwrap();
                    ends.store(true, SeqCst);
                    tasks[1].cancel();
                    gate.open();
                    tasks.into_iter().for_each(|t| t.join().unwrap());
                    eventually("the lists are empty again", || {
                        let l = lists();
                        (l.idle.len(), l.io, l.timers) == (4, 0, 0) && l.waiting.is_empty()
                    });
                });
            }
        },
    );
}

/// Checks the invariant One List: every worker is on the list that its state names, and on no
/// other.
fn check_one_list() {
    let (l, all) = (lists(), workers());
    let mut seen = BTreeSet::from([l.current]);
    for (list, state) in [
        (&l.idle, WorkerState::Idle),
        (&l.runnable, WorkerState::Runnable),
        (&l.waiting, WorkerState::Waiting),
    ] {
        for id in list {
            assert!(seen.insert(*id), "worker {id} is in two places: {l:?}");
            let worker = all.iter().find(|w| w.id == *id).expect("a listed worker exists");
            assert_eq!(worker.state, state, "worker {id} is on another list: {l:?}");
        }
    }
    let elsewhere = all.iter().filter(|w| !seen.contains(&w.id));
    let elsewhere: Vec<_> = elsewhere.map(|w| w.state).collect();
    assert!(elsewhere.iter().all(|s| *s == WorkerState::Preemptive), "on no list: {elsewhere:?}");
    assert_eq!(elsewhere.len() + seen.len(), l.workers);
}

#[test]
fn a_worker_is_on_at_most_one_list_and_its_state_says_which_u20() {
    both_kinds(|node, _, n| {
        let lock = Arc::new(ums::user::UserLock::new());
        let tasks: Vec<_> = (0..10 * n)
            .map(|me| {
                let lock = lock.clone();
                let body = move || {
                    for round in 0..30 {
                        check_one_list();
                        match (me + round) % 4 {
                            0 => ums::sleep(std::time::Duration::from_micros(30)).unwrap(),
                            1 => {
                                lock.acquire(1000 + me as u64, None).unwrap();
                                check_one_list();
                                lock.release(1000 + me as u64);
                            }
                            2 => ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || ()),
                            _ => ums::yield_now(),
                        }
                    }
                };
                start(node, me % n, body)
            })
            .collect();
        tasks.into_iter().for_each(|t| t.join().unwrap());
    });
}

#[test]
fn a_finished_worker_is_on_the_worker_list_u21() {
    each_alone(
        |b| b,
        |node, _, n| {
            on(node, n - 1, || {
                let done = ums::spawn(ums::worker::worker_id);
                eventually("it has run", || done.is_finished());
                let (_, id) = done.join().unwrap().unwrap();
                assert_eq!(lists().idle, [id]);
                let all = workers();
                let worker = all.iter().find(|w| w.id == id).unwrap();
                assert_eq!((worker.state, worker.request), (WorkerState::Idle, 0));
                assert_eq!(worker.requests_done, 1);
            });
        },
    );
}

#[test]
fn classic_a_new_user_goes_to_the_scheduler_with_the_fewest_users_u23() {
    both_kinds_with(
        |b| b.classic(),
        |node, _, n| {
            // If several schedulers have the fewest users, the first of them is chosen, so users
            // are dealt out in turn.
            let mut users: Vec<_> = (0..3 * n).map(|_| node.user()).collect();
            let homes: Vec<_> = users.iter().map(User::scheduler).collect();
            assert_eq!(homes, (0..3 * n).map(|i| i % n).collect::<Vec<_>>());
            // Only the number of users counts, not the load: the chosen scheduler has work, the
            // others have none.
            let sparse = n / 2;
            let mut kept = 0;
            users.retain(|u| u.scheduler() != sparse || std::mem::replace(&mut kept, 1) == 0);
            let gate = Gate::shut();
            let g = gate.clone();
            let busy = start(node, sparse, move || g.pass());
            let new = [node.user(), node.user()];
            assert_eq!(new.each_ref().map(User::scheduler), [sparse, sparse]);
            gate.open();
            busy.join().unwrap();
        },
    );
}

/// Starts a request that spins until it is told to stop.
fn spinning(user: &User, stop: &Arc<AtomicBool>) -> ums::JoinHandle<usize> {
    let stop = stop.clone();
    let handle = user.enqueue(move || {
        while !stop.load(SeqCst) {
            std::hint::spin_loop();
        }
        ums::worker::scheduler_id().unwrap()
    });
    handle.unwrap()
}

#[test]
fn classic_a_user_never_changes_its_scheduler_u24() {
    both_kinds_with(
        |b| b.classic(),
        |node, _, n| {
            let users: Vec<_> = (0..n).map(|_| node.user()).collect();
            let (home, stop) = (users[0].scheduler(), Arc::new(AtomicBool::new(false)));
            // The request's scheduler does not yield and the others are idle; still the request
            // waits for its own scheduler.
            let busy = spinning(&users[0], &stop);
            eventually("it has begun", || scheduler(node, home).queued == 0);
            let waiting: Vec<_> =
                (0..20).map(|_| users[0].enqueue(ums::worker::scheduler_id).unwrap()).collect();
            std::thread::sleep(ms(30));
            assert_eq!(scheduler(node, home).queued, 20, "requests left their scheduler");
            stop.store(true, SeqCst);
            assert_eq!(busy.join().unwrap(), home);
            for request in waiting {
                assert_eq!(request.join().unwrap(), Some(home));
            }
            assert_eq!(users[0].scheduler(), home);
        },
    );
}

#[test]
fn a_user_whose_scheduler_is_offline_gets_another_and_returns_u24() {
    for placement in [Placement::Classic, Placement::AlwaysPreferred] {
        both_kinds_with(
            |b| b.placement(placement),
            |node, _, n| {
                let user = node.user();
                let home = user.scheduler();
                let place = || user.enqueue(ums::worker::scheduler_id).unwrap().join().unwrap();
                // The last scheduler cannot be taken offline.
                assert_eq!(node.set_online(home, false), n > 1);
                assert_eq!(place() == Some(home), n == 1, "{placement:?}");
                node.set_online(home, true);
                assert_eq!((place(), user.scheduler()), (Some(home), home), "{placement:?}");
            },
        );
    }
}

/// Two users of one scheduler, both with work to do. Returns the schedulers on which they ran, and
/// whether both ran at the same time.
fn two_hot_users(
    node: &Node,
    users: &[User],
    patience: std::time::Duration,
) -> (BTreeSet<usize>, bool) {
    let home = users[0].scheduler();
    let hot: Vec<_> = users.iter().filter(|u| u.scheduler() == home).take(2).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let requests = [spinning(hot[0], &stop), spinning(hot[1], &stop)];
    let running = |s| scheduler(node, s).workers.iter().any(|w| w.request != 0);
    let began = std::time::Instant::now();
    while !(running(0) && running(1)) && began.elapsed() < patience {
        std::thread::sleep(ms(1));
    }
    let together = running(0) && running(1);
    stop.store(true, SeqCst);
    (requests.into_iter().map(|r| r.join().unwrap()).collect(), together)
}

#[test]
fn classic_two_hot_users_may_share_one_scheduler_while_another_is_idle_u25() {
    for kind in kinds() {
        one_kind(
            kind,
            |b| b.schedulers(2).classic(),
            |node| {
                let users: Vec<_> = (0..4).map(|_| node.user()).collect();
                assert_eq!(two_hot_users(node, &users, ms(50)), (BTreeSet::from([0]), false));
                assert_eq!(scheduler(node, 1).counters.requests_done, 0, "the other stood idle");
            },
        );
        // With the default policy, the two users run on different schedulers.
        one_kind(
            kind,
            |b| b.schedulers(2),
            |node| {
                let users: Vec<_> = (0..4).map(|_| node.user()).collect();
                assert_eq!(two_hot_users(node, &users, PATIENCE), (BTreeSet::from([0, 1]), true));
            },
        );
    }
}

#[test]
fn classic_a_user_that_returns_is_placed_anew_u26() {
    both_kinds_with(
        |b| b.classic(),
        |node, _, n| {
            let mut users: Vec<_> = (0..2 * n).map(|_| node.user()).collect();
            // This user was the last to be placed on its scheduler. A new user gets the same place.
            let last = users.pop().unwrap();
            let was = last.scheduler();
            drop(last);
            users.push(node.user());
            assert_eq!(users.last().unwrap().scheduler(), was);
            if n == 1 {
                return;
            }
            // Two users of another scheduler leave as well, so that scheduler has the fewest users
            // now.
            let other = (was + 1) % n;
            users.pop();
            users.retain(|u| u.scheduler() != other);
            assert_eq!(node.user().scheduler(), other);
        },
    );
}

#[test]
fn work_queue_waiters_and_waiter_list_are_three_things_g1() {
    for kind in kinds() {
        for n in COUNTS {
            let options = |b: ums::Builder| {
                b.schedulers(n).max_workers(3 * n).placement(Placement::AlwaysPreferred)
            };
            one_kind(kind, options, three_things);
        }
    }
}

fn three_things(node: &Node) {
    let (gate, ran) = (Gate::shut(), Arc::new(AtomicBool::new(false)));
    let (g, r) = (gate.clone(), ran.clone());
    let tasks = [
        start(node, 0, move || g.pass()),
        start(node, 0, || assert!(ums::sleep(PATIENCE).is_err(), "it is cancelled")),
        start(node, 0, || {
            let wait = ums::sync::Wait::new(ums::WaitReason::OTHER);
            assert!(wait.park(drop).is_err(), "it is cancelled");
        }),
    ];
    eventually("three wait", || {
        scheduler(node, 0).workers.iter().filter(|w| w.state == WorkerState::Waiting).count() == 3
    });
    let queued = start(node, 0, move || r.store(true, SeqCst));
    assert_eq!(gate.waiters(), 1, "waiters of the resource");
    let seen = scheduler(node, 0);
    assert_eq!(seen.queued, 1, "requests without a worker");
    let mut reasons: Vec<_> = seen.workers.iter().map(|w| w.reason.name()).collect();
    reasons.sort_unstable();
    assert_eq!(reasons, ["LCK_M_X", "OTHER", "SLEEP"], "the scheduler's waiter list");
    assert!(!ran.load(SeqCst));
    gate.open();
    tasks[1].cancel();
    tasks[2].cancel();
    queued.join().unwrap();
    tasks.into_iter().for_each(|t| t.join().unwrap());
}
