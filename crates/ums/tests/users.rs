//! Users: the placement of users and their requests, what they hold, and administrators' requests
//! while all schedulers are stuck (U88, B1-B5, B18, G11).

#![allow(unsafe_code)] // For the harness.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use common::*;
use ums::node::{HiddenOptions, Placement};
use ums::serve::{Connection, Next};
use ums::serve::{ServeOptions, Session, Why};
use ums::testing::scheduler;
use ums::user::UserLock;
use ums::{JoinHandle, Node};
use ums::{User, WaitError, WorkerKind};

/// Schedulers that are kept busy by a worker that does not yield, so that requests placed there
/// stay visible in the work queue.
struct Busy {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Busy {
    /// Gives each scheduler this load: one running request, and queued ones that no other scheduler
    /// may take.
    fn with(node: &Node, loads: &[usize]) -> Busy {
        let mut busy = Busy { stop: Arc::default(), tasks: Vec::new() };
        for (s, load) in loads.iter().enumerate().filter(|(_, load)| **load > 0) {
            let stop = busy.stop.clone();
            busy.tasks.push(start(node, s, move || {
                while !stop.load(SeqCst) {
                    std::thread::yield_now();
                }
            }));
            eventually("it runs", || scheduler(node, s).queued == 0);
            busy.add(node, s, load - 1);
        }
        busy
    }

    fn add(&mut self, node: &Node, s: usize, requests: usize) {
        self.tasks.extend((0..requests).map(|_| start(node, s, || ())));
    }

    /// Enqueues a request of this user, and returns the scheduler that it is queued on.
    fn placed(&mut self, node: &Node, user: &User) -> usize {
        let queued = || (0..node.scheduler_count()).map(|s| scheduler(node, s).queued);
        let before: Vec<_> = queued().collect();
        self.tasks.push(user.enqueue(|| ()).unwrap());
        queued().zip(before).position(|(now, was)| now > was).expect("it is queued somewhere")
    }

    fn end(mut self) {
        self.stop.store(true, SeqCst);
        std::mem::take(&mut self.tasks).into_iter().for_each(|t| t.join().unwrap());
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // A failed assertion must not leave its schedulers spinning.
        self.stop.store(true, SeqCst);
    }
}

/// Like `Busy::with`, with one load for the first scheduler and another for the rest.
fn busy(node: &Node, n: usize, first: usize, others: usize) -> Busy {
    let loads: Vec<_> = (0..n).map(|s| if s == 0 { first } else { others }).collect();
    Busy::with(node, &loads)
}

fn loads(node: &Node) -> Vec<usize> {
    let visible = node.snapshot().schedulers.into_iter().filter(|s| s.status.starts_with("VIS"));
    visible.map(|s| s.load).collect()
}

#[test]
fn hinted_a_request_goes_to_the_preferred_scheduler_unless_it_is_20_percent_more_loaded_b1() {
    both_kinds(|node, _, n| {
        let user = node.user();
        assert_eq!(user.scheduler(), 0, "all are alike, so the first");
        let elsewhere = if n == 1 { 0 } else { 1 };
        let mut more = busy(node, n, 5, 4);
        assert_eq!(more.placed(node, &user), elsewhere, "5 is 25 per cent above 4");
        more.end();
        let mut busy = busy(node, n, 6, 5);
        assert_eq!(busy.placed(node, &user), 0, "6 is not more than 20 per cent above 5");
        assert_eq!(busy.placed(node, &user), elsewhere, "7 is more than 20 per cent above 5");
        assert_eq!(user.scheduler(), 0, "it still prefers the same scheduler");
        (1..n).for_each(|s| busy.add(node, s, 2));
        assert_eq!(busy.placed(node, &user), 0, "and returns to it");
        busy.end();
    });
}

#[test]
fn load_counts_requests_queued_running_and_waiting_b2() {
    both_kinds(|node, _, n| {
        assert_eq!(loads(node), vec![0; n]);
        let gate = Gate::shut();
        let waiting: Vec<_> = (0..2)
            .map(|_| {
                let gate = gate.clone();
                start(node, n - 1, move || gate.pass())
            })
            .collect();
        eventually("both wait", || gate.waiters() == 2);
        let mut expected = vec![0; n];
        expected[n - 1] = 2;
        assert_eq!(loads(node), expected, "waiting requests count as load");
        let mut only = vec![0; n];
        only[n - 1] = 4;
        let busy = Busy::with(node, &only);
        expected[n - 1] = 6;
        assert_eq!(loads(node), expected, "one runs and three are queued");
        busy.end();
        gate.open();
        waiting.into_iter().for_each(|t| t.join().unwrap());
        eventually("nothing is left", || loads(node) == vec![0; n]);
    });
}

#[test]
fn four_policies_place_the_same_request_b3() {
    for kind in kinds() {
        for n in COUNTS {
            let home = 0;
            let other = if n == 1 { 0 } else { 1 };
            for (policy, slightly_more, much_more) in [
                (Placement::Classic, home, home),
                (Placement::Hinted, home, other),
                (Placement::LeastLoaded, other, other),
                (Placement::AlwaysPreferred, home, home),
            ] {
                let placed = |first, others| {
                    let mut at = 0;
                    one_kind(
                        kind,
                        |b| b.schedulers(n).placement(policy),
                        |node| {
                            let user = node.user();
                            let mut busy = busy(node, n, first, others);
                            at = busy.placed(node, &user);
                            busy.end();
                        },
                    );
                    at
                };
                assert_eq!(placed(6, 5), slightly_more, "{policy:?}, {n} schedulers");
                assert_eq!(placed(9, 2), much_more, "{policy:?}, {n} schedulers");
            }
        }
    }
}

#[test]
fn a_new_user_goes_to_the_least_load_b4() {
    both_kinds(|node, _, n| {
        let first: Vec<_> = (0..n).map(|_| node.user()).collect();
        let homes: Vec<_> = first.iter().map(User::scheduler).collect();
        assert_eq!(homes, (0..n).collect::<Vec<_>>(), "without load, the fewest users");
        let loads: Vec<_> = (0..n).map(|s| n - s).collect();
        let busy = Busy::with(node, &loads);
        let more: Vec<_> = (0..3).map(|_| node.user()).collect();
        assert!(more.iter().all(|u| u.scheduler() == n - 1), "{more:?}");
        busy.end();
    });
}

#[test]
fn an_idle_scheduler_takes_requests_that_have_not_started_b5() {
    both_kinds(|node, _, n| {
        if n == 1 {
            return; // There is no other scheduler to take them.
        }
        let gate = Gate::shut();
        let theirs = gate.clone();
        let started = start(node, 0, move || {
            let home = ums::worker::scheduler_id();
            theirs.pass();
            (home, ums::worker::scheduler_id())
        });
        eventually("it waits", || gate.waiters() == 1);
        let ran_on = on(node, 0, || {
            let tasks: Vec<_> = (0..20).map(|_| ums::spawn(ums::worker::scheduler_id)).collect();
            let began = std::time::Instant::now();
            // This worker does not yield meanwhile, so its scheduler cannot carry them out.
            while !tasks.iter().all(JoinHandle::is_finished) && began.elapsed() < PATIENCE {
                std::thread::yield_now();
            }
            tasks.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(ran_on.iter().all(|s| s.is_some_and(|s| s != 0)), "{ran_on:?}");
        let stolen: u64 = (0..n).map(|s| scheduler(node, s).counters.stolen).sum();
        assert!(stolen >= 20, "{stolen}");
        gate.open();
        assert_eq!(started.join().unwrap(), (Some(0), Some(0)), "a started request stays");
    });
}

#[test]
fn some_policies_forbid_that_b5_u24() {
    for policy in [Placement::Classic, Placement::AlwaysPreferred] {
        both_kinds_with(
            |b| b.placement(policy),
            |node, _, n| {
                let ran_on = on(node, n - 1, || {
                    let tasks: Vec<_> =
                        (0..8).map(|_| ums::spawn(ums::worker::scheduler_id)).collect();
                    spin(ms(10));
                    assert!(!tasks.iter().any(JoinHandle::is_finished));
                    tasks.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
                });
                assert!(ran_on.iter().all(|s| *s == Some(n - 1)), "{policy:?}: {ran_on:?}");
            },
        );
    }
}

#[test]
fn code_that_needs_a_thread_is_refused_by_fibers_with_a_clear_error_u88() {
    both_kinds(|node, kind, n| {
        let (here, away) = on(node, n - 1, || {
            let ask = || ums::worker::require_thread("a thread-bound driver");
            (ask(), ums::go_preemptive(ums::WaitReason::PREEMPTIVE_EXTERNAL, ask))
        });
        assert_eq!(here.is_err(), kind == WorkerKind::Fiber, "{kind:?}: {here:?}");
        if let Err(refused) = here {
            let text = refused.to_string();
            assert!(text.contains("a thread-bound driver needs a thread of its own"), "{text}");
            assert!(text.contains("go_preemptive"), "it says what to do: {text}");
        }
        assert_eq!(away, Ok(()), "outside the scheduler it has a thread");
        let hidden = node.hidden("drivers", HiddenOptions::default()).unwrap();
        let there =
            hidden.spawn(|| ums::worker::require_thread("a driver")).unwrap().join().unwrap();
        assert_eq!(there, Ok(()), "hidden schedulers have threads");
        assert_eq!(ums::worker::require_thread("a driver"), Ok(()), "and so has this test");
    });
}

/// Answers each line of input with a summary of the schedulers.
struct Admin(Node);

impl Session for Admin {
    fn request(&mut self, conn: &mut Connection<'_>, _: Why) -> Next {
        let mut question = [0; 64];
        match conn.try_read(&mut question) {
            Ok(0) => Next::Close,
            Ok(_) => {
                let busy = self.0.snapshot().schedulers.iter().filter(|s| s.load > 0).count();
                let answer = format!("{busy} busy, asked by {:?}\n", ums::worker::worker_kind());
                if conn.write_all(answer.as_bytes()).is_ok() { Next::Again } else { Next::Close }
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Next::Wait,
            Err(_) => Next::Close,
        }
    }
}

fn client(server: &ums::serve::Server) -> TcpStream {
    let client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

fn ask(client: &mut TcpStream) -> String {
    client.write_all(b"?").unwrap();
    let mut answer = String::new();
    while !answer.ends_with('\n') {
        let mut byte = [0; 1];
        client.read_exact(&mut byte).unwrap();
        answer.push(byte[0] as char);
    }
    answer
}

#[test]
fn an_administrator_is_answered_while_all_visible_schedulers_spin_b18() {
    both_kinds(|node, _, n| {
        let options = HiddenOptions { max_workers: Some(3), ready: 3, nice: 0 };
        let hidden = node.hidden("admin", options).unwrap();
        let on_hidden =
            ServeOptions { on: Some(hidden.clone()), max_connections: 1, ..Default::default() };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let handle = node.clone();
        let make = move |_: &User, _| Box::new(Admin(handle.clone())) as Box<dyn Session>;
        let server = node.serve(listener, on_hidden, make).unwrap();
        let spinning = Busy::with(node, &vec![3; n]);
        let mut admin = client(&server);
        for _ in 0..5 {
            // The visible schedulers, and the one that carries out this request.
            assert_eq!(ask(&mut admin), format!("{} busy, asked by Some(Thread)\n", n + 1));
        }
        let user = node.user_on(&hidden);
        let direct = user.enqueue(ums::worker::scheduler_id).unwrap().join().unwrap();
        assert_eq!((direct, user.scheduler()), (Some(hidden.id()), hidden.id()));
        let mut second = client(&server);
        assert_eq!(second.read(&mut [0; 1]).unwrap(), 0, "one administrator at a time");
        assert_eq!(server.counters().refused, 1);
        spinning.end();
        drop(admin);
        assert!(server.stop_and_wait(PATIENCE));
    });
}

#[test]
fn an_administrator_is_answered_while_every_worker_waits_b18() {
    for kind in kinds() {
        for n in COUNTS {
            one_kind(
                kind,
                |b| b.schedulers(n).max_workers(n).placement(Placement::AlwaysPreferred),
                |node| {
                    let gate = Gate::shut();
                    let stuck: Vec<_> = (0..2 * n)
                        .map(|at| {
                            let gate = gate.clone();
                            start(node, at % n, move || gate.pass())
                        })
                        .collect();
                    eventually("all wait", || gate.waiters() == n);
                    let options = HiddenOptions { max_workers: Some(3), ready: 3, nice: 0 };
                    let admin = node.user_on(&node.hidden("admin", options).unwrap());
                    let opens = gate.clone();
                    admin.enqueue(move || opens.open()).unwrap().join().unwrap();
                    stuck.into_iter().for_each(|t| t.join().unwrap());
                },
            );
        }
    }
}

fn owned_by(user: &User) -> Arc<UserLock> {
    let lock = Arc::new(UserLock::new());
    let (l, id) = (lock.clone(), user.id());
    user.enqueue(move || l.acquire(id, None)).unwrap().join().unwrap().unwrap();
    lock
}

/// Enqueues a request that waits for the lock on its worker, records its user's number, and
/// releases the lock.
fn waits_for(user: &User, lock: &Arc<UserLock>, log: &Log<u64>) -> JoinHandle<()> {
    let (place, id) = (lock.waiters(), user.id());
    let (l, log) = (lock.clone(), log.clone());
    let waits = user.enqueue(move || {
        l.acquire(id, None).unwrap();
        log.push(id);
        l.release(id);
    });
    eventually("it has its place in the queue", || lock.waiters() > place);
    waits.unwrap()
}

/// Enqueues a request that joins the lock's queue and ends without waiting. When the lock becomes
/// the user's, the user's next request is enqueued.
fn leaves(user: &Arc<User>, lock: &Arc<UserLock>, log: &Log<u64>) {
    let (l, log, next) = (lock.clone(), log.clone(), user.clone());
    let request = user.enqueue(move || {
        let (lock, id) = (l.clone(), next.id());
        l.acquire_or_leave(id, move || {
            let request = move || (log.push(id), lock.release(id)).1;
            drop(next.enqueue(request).unwrap());
        })
    });
    assert!(!request.unwrap().join().unwrap(), "the lock has an owner");
}

#[test]
fn a_users_lock_goes_to_the_longest_waiter_with_a_worker_or_without() {
    both_kinds(|node, _, _| {
        let (owner, log) = (node.user(), Log::default());
        let lock = owned_by(&owner);
        let users: Vec<_> = (0..6).map(|_| Arc::new(node.user())).collect();
        let mut parked = Vec::new();
        for pair in users.chunks(2) {
            parked.push(waits_for(&pair[0], &lock, &log));
            leaves(&pair[1], &lock, &log);
        }
        assert_eq!((lock.waiters(), lock.waiting_workers()), (6, 3));
        eventually("users without a worker have none", || loads(node).iter().sum::<usize>() == 3);
        assert!(!users.iter().any(|u| u.is_holding()));
        lock.release(owner.id());
        assert!(!owner.is_holding());
        parked.into_iter().for_each(|t| t.join().unwrap());
        eventually("all had it", || log.len() == 6 && lock.owner().is_none());
        assert_eq!(log.all(), users.iter().map(|u| u.id()).collect::<Vec<_>>());
        assert!(!users.iter().any(|u| u.is_holding()));
    });
}

#[test]
fn a_lock_that_prefers_its_own_scheduler_overtakes_the_first_waiter_a_bounded_number_of_times() {
    for kind in kinds() {
        for (passes, expected) in
            [(0, [0, 1, 2, 3, 4, 5]), (1, [0, 2, 1, 3, 5, 4]), (2, [0, 2, 4, 1, 3, 5])]
        {
            let two = |b: ums::Builder| b.schedulers(2).placement(Placement::AlwaysPreferred);
            one_kind(kind, two, |node| {
                let (owner, log) = (node.user(), Log::default());
                let lock = Arc::new(UserLock::near(passes));
                lock.acquire(owner.id(), None).unwrap();
                // Users of the first and of the other scheduler alternate.
                let mut users: Vec<_> = (0..6).map(|_| node.user()).collect();
                users.sort_by_key(User::scheduler);
                let order = [0, 3, 1, 4, 2, 5].map(|at| &users[at]);
                assert_eq!(order.map(User::scheduler), [0, 1, 0, 1, 0, 1]);
                let waits: Vec<_> = order.iter().map(|u| waits_for(u, &lock, &log)).collect();
                lock.release(owner.id());
                waits.into_iter().for_each(|w| w.join().unwrap());
                assert_eq!(log.all(), expected.map(|at| order[at].id()), "{kind:?}, {passes}");
                assert_eq!(lock.owner(), None);
            });
        }
    }
}

#[test]
fn a_user_that_waits_without_a_worker_may_give_its_place_up() {
    both_kinds(|node, _, _| {
        let (owner, log) = (node.user(), Log::default());
        let lock = owned_by(&owner);
        let users: Vec<_> = (0..3).map(|_| Arc::new(node.user())).collect();
        leaves(&users[0], &lock, &log);
        let parked = waits_for(&users[1], &lock, &log);
        leaves(&users[2], &lock, &log);
        assert!(lock.give_up(users[0].id()).is_some());
        assert!(lock.give_up(users[0].id()).is_none(), "a place is given up once");
        assert!(lock.give_up(users[1].id()).is_none(), "a worker's wait is ended by cancelling");
        assert_eq!(lock.waiters(), 2);
        lock.release(owner.id());
        parked.join().unwrap();
        eventually("the others had it", || log.len() == 2 && lock.owner().is_none());
        assert_eq!(log.all(), [users[1].id(), users[2].id()]);
    });
}

#[test]
fn a_cancelled_or_late_request_loses_its_place_and_holds_nothing_b59() {
    both_kinds(|node, _, _| {
        let (owner, log) = (node.user(), Log::default());
        let lock = owned_by(&owner);
        let users: Vec<_> = (0..3).map(|_| node.user()).collect();
        let acquire = |user: &User, span| {
            let (place, l, id) = (lock.waiters(), lock.clone(), user.id());
            let waits = user.enqueue(move || l.acquire(id, span)).unwrap();
            eventually("it waits", || lock.waiters() > place || waits.is_finished());
            waits
        };
        let cancelled = acquire(&users[0], None);
        let last = waits_for(&users[1], &lock, &log);
        let late = acquire(&users[2], Some(ms(20)));
        assert!(users[0].cancel());
        assert_eq!(cancelled.join().unwrap(), Err(WaitError::Cancelled));
        assert_eq!(late.join().unwrap(), Err(WaitError::TimedOut));
        assert_eq!((lock.waiters(), lock.waiting_workers()), (1, 1));
        assert!(!users[0].cancel(), "its request has ended");
        lock.release(owner.id());
        last.join().unwrap();
        assert_eq!((log.all(), lock.owner()), (vec![users[1].id()], None));
        assert!(!users.iter().any(User::is_holding));
    });
}

#[test]
fn the_request_of_a_holder_is_served_beyond_the_maximum_of_workers_g11() {
    for kind in kinds() {
        for n in COUNTS {
            one_kind(
                kind,
                |b| b.schedulers(n).max_workers(n).placement(Placement::AlwaysPreferred),
                |node| {
                    let gate = Gate::shut();
                    let stuck: Vec<_> = (0..n)
                        .map(|s| {
                            let gate = gate.clone();
                            start(node, s, move || gate.pass())
                        })
                        .collect();
                    eventually("every worker waits", || gate.waiters() == n);
                    let (holder, other) = (node.user(), node.user());
                    let ordinary = other.enqueue(|| ()).unwrap();
                    // Holds are counted.
                    holder.hold();
                    holder.hold();
                    holder.release();
                    let opens = gate.clone();
                    let urgent = holder.enqueue(move || {
                        ums::yield_now();
                        ums::sleep(ms(2)).unwrap();
                        opens.waiters()
                    });
                    assert_eq!(urgent.unwrap().join().unwrap(), n, "they all still wait");
                    let at = other.scheduler();
                    let passed = scheduler(node, at).counters.passed_over_max;
                    assert_eq!(passed, 0, "a request that cannot start is passed over by nothing");
                    assert!(scheduler(node, at).workers.len() <= 2, "one beyond the maximum");
                    assert!(holder.is_holding());
                    holder.release();
                    assert!(!holder.is_holding());
                    gate.open();
                    stuck.into_iter().for_each(|t| t.join().unwrap());
                    ordinary.join().unwrap();
                    let reserve = |s| scheduler(node, s).counters.reserve_workers;
                    assert_eq!((0..n).map(reserve).sum::<u64>(), 1);
                },
            );
        }
    }
}

#[test]
fn a_request_can_be_cancelled_as_soon_as_it_runs_b59() {
    both_kinds(|node, _, n| {
        let user = Arc::new(node.user());
        let mut waiting: Vec<_> = Vec::new();
        for round in 0..200 {
            let next = user.clone();
            let gate = Arc::new(UserLock::new());
            gate.acquire(u64::MAX, None).unwrap();
            let theirs = gate.clone();
            // A worker enqueues this request, so another scheduler may run it in parallel with that
            // worker.
            waiting.push(start(node, round % n, move || {
                let id = next.id();
                next.enqueue(move || theirs.acquire(id, None)).unwrap()
            }));
            eventually("it waits", || gate.waiters() == 1);
            assert!(user.cancel(), "it runs, and its user has no record of it");
        }
        for request in waiting {
            assert_eq!(request.join().unwrap().join().unwrap(), Err(WaitError::Cancelled));
        }
    });
}

#[test]
fn a_refused_request_is_not_the_users_last_g2() {
    for kind in kinds() {
        one_kind(
            kind,
            |b| b.schedulers(1).max_workers(1).queue_limit(1),
            |node| {
                let (gate, user, other) = (Arc::new(UserLock::new()), node.user(), node.user());
                gate.acquire(other.id(), None).unwrap();
                let (theirs, id) = (gate.clone(), user.id());
                let first = user.enqueue(move || theirs.acquire(id, None)).unwrap();
                eventually("it waits", || gate.waiters() == 1);
                let queued = other.enqueue(|| ()).unwrap();
                let refused = user.enqueue(|| ()).err();
                assert_eq!(refused, Some(ums::node::EnqueueError::QueueFull(1)));
                assert!(user.is_busy() && user.cancel(), "its first one runs still");
                assert_eq!(first.join().unwrap(), Err(WaitError::Cancelled));
                queued.join().unwrap();
                assert!(!user.is_busy());
            },
        );
    }
}

#[test]
fn a_result_that_was_not_taken_may_ask_for_its_user_when_it_is_dropped() {
    struct Asks(Arc<User>);

    impl Drop for Asks {
        fn drop(&mut self) {
            self.0.is_busy();
        }
    }

    both_kinds(|node, _, _| {
        let user = Arc::new(node.user());
        for _ in 0..3 {
            let asks = Asks(user.clone());
            drop(user.enqueue(move || asks).unwrap());
            eventually("the request has ended", || !user.is_busy());
        }
        user.enqueue(|| ()).unwrap().join().unwrap();
    });
}

#[test]
fn a_worker_of_another_node_queues_where_it_is_told() {
    let _turn = turn();
    let here = build(WorkerKind::Thread, |b| b.schedulers(1));
    let there = build(WorkerKind::Fiber, |b| b.schedulers(1));
    let handle = there.clone();
    let kinds =
        here.run(move || (ums::worker::worker_kind(), handle.run(ums::worker::worker_kind)));
    assert_eq!(kinds, (Some(WorkerKind::Thread), Some(WorkerKind::Fiber)));
    assert_eq!(there.shutdown(ms(30_000)).left, 0);
    assert_eq!(here.shutdown(ms(30_000)).left, 0);
}
