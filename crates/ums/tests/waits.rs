//! Wait statistics: reasons, times and blockers (B20-B22).

#![allow(unsafe_code)] // For the harness.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use common::*;
use ums::stats::{WaitClass, WaitRow, WorkerState};
use ums::sync::{Event, Mutex};
use ums::testing::{lists, scheduler};
use ums::user::UserLock;
use ums::{Node, WaitError, WaitReason};

fn row(node: &Node, reason: WaitReason) -> Option<WaitRow> {
    node.snapshot().waits.into_iter().find(|row| row.reason == reason)
}

#[test]
fn each_reason_has_its_count_and_its_times_b20() {
    each_alone(
        |b| b,
        |node, _, n| {
            for i in 0..n {
                // On a busy computer a sleep may be over before it is looked at.
                let is_seen = |span: &u64| {
                    node.reset_waits();
                    assert!(row(node, WaitReason::SLEEP).is_none(), "nothing since the reset");
                    let span = ms(*span);
                    let first = start(node, i, move || ums::sleep(span));
                    eventually("it sleeps", || row(node, WaitReason::SLEEP).is_some());
                    let seen = row(node, WaitReason::SLEEP).expect("a wait has begun");
                    first.join().unwrap().unwrap();
                    assert_eq!(seen.begun, 1);
                    seen.count == 0
                };
                assert!([60, 600, 6_000].iter().any(is_seen), "begun, and not over");
                on(node, i, || ums::sleep(ms(20)).unwrap());
                let seen = row(node, WaitReason::SLEEP).expect("two waits have ended");
                assert_eq!((seen.begun, seen.count), (2, 2));
                assert!(seen.total_ns >= 80_000_000 * 9 / 10, "{seen:?}");
                assert!(seen.max_ns >= 60_000_000 * 9 / 10, "{seen:?}");
                assert!(seen.max_ns <= seen.total_ns && seen.signal_ns <= seen.total_ns);
            }
        },
    );
}

#[test]
fn the_time_until_the_wake_up_and_the_time_after_it_are_counted_apart_b20() {
    each_alone(
        |b| b,
        |node, _, n| {
            node.reset_waits();
            on(node, n - 1, || {
                let lock = Arc::new(UserLock::new());
                lock.acquire(1, None).unwrap();
                let theirs = lock.clone();
                let waiter = ums::spawn(move || theirs.acquire(2, None));
                eventually("it waits", || lists().waiting.len() == 1);
                spin(ms(20)); // resource wait
                lock.release(1);
                spin(ms(50)); // signal wait: it could run, but this worker does not yield
                waiter.join().unwrap().unwrap();
                lock.release(2);
            });
            let seen = row(node, WaitReason::LCK_M_X).expect("it waited");
            let resource = seen.total_ns - seen.signal_ns;
            assert!(resource >= 18_000_000, "{seen:?}");
            assert!(seen.signal_ns >= 45_000_000, "{seen:?}");
        },
    );
}

#[test]
fn waiting_for_a_worker_is_a_wait_of_its_own_b21() {
    for kind in kinds() {
        for n in COUNTS {
            one_kind(
                kind,
                |b| b.schedulers(n).max_workers(n).placement(ums::node::Placement::AlwaysPreferred),
                |node| {
                    node.reset_waits();
                    let gate = Gate::shut();
                    let held = gate.clone();
                    let first = start(node, n - 1, move || held.pass());
                    eventually("it waits", || gate.waiters() == 1);
                    let second = start(node, n - 1, || ());
                    eventually("it is queued", || scheduler(node, n - 1).queued == 1);
                    gate.open();
                    first.join().unwrap();
                    second.join().unwrap();
                    let seen = row(node, WaitReason::THREADPOOL).expect("it waited");
                    assert_eq!(seen.class, WaitClass::Queue);
                    assert!(seen.max_ns > 0);
                },
            );
        }
    }
}

#[test]
fn reasons_fall_into_classes_b21() {
    let class = WaitReason::class;
    assert_eq!(class(WaitReason::MUTEX), WaitClass::Resource);
    assert_eq!(class(WaitReason::SLEEP), WaitClass::Queue);
    assert_eq!(class(WaitReason::THREADPOOL), WaitClass::Queue);
    assert_eq!(class(WaitReason::SCHEDULER_YIELD), WaitClass::Resource);
    for reason in WaitReason::all() {
        let outside =
            reason.name().starts_with("PREEMPTIVE_") && reason != WaitReason::PREEMPTIVE_CAP;
        assert_eq!(class(reason) == WaitClass::External, outside, "{reason:?}");
    }
}

#[test]
fn a_waiting_task_names_what_it_waits_for_and_its_blocker_b22() {
    both_kinds(|node, _, n| {
        let (owner, waiter) = (node.user(), node.user());
        let lock = Arc::new(UserLock::new());
        lock.acquire(owner.id(), None).unwrap();
        let (theirs, id) = (lock.clone(), waiter.id());
        let waits = waiter.enqueue(move || theirs.acquire(id, None)).unwrap();
        eventually("it waits", || lock.waiters() == 1);
        let find = || {
            let workers = node.snapshot().workers;
            workers.into_iter().find(|w| w.user == id && w.state == WorkerState::Waiting)
        };
        eventually("the views show it", || find().is_some());
        let seen = find().expect("it was not released");
        assert_eq!(seen.reason, Some(WaitReason::LCK_M_X));
        assert_eq!(seen.resource, Arc::as_ptr(&lock) as u64);
        assert_eq!(seen.blocking_user, owner.id());
        lock.release(owner.id());
        waits.join().unwrap().unwrap();

        // If workers hold a lock, the blocker is a worker.
        let mutex = Arc::new(Mutex::new(()));
        let (held, gate) = (mutex.clone(), Gate::shut());
        let (theirs, wanted) = (gate.clone(), mutex.clone());
        let holder = start(node, n - 1, move || {
            let _guard = held.lock();
            theirs.pass();
            ums::worker::worker_id()
        });
        eventually("it holds the lock", || gate.waiters() == 1);
        let waits = start(node, 0, move || drop(wanted.lock()));
        let find = || {
            let workers = node.snapshot().workers;
            workers.into_iter().find(|w| w.reason == Some(WaitReason::MUTEX))
        };
        eventually("the views show it", || find().is_some());
        let blocker = find().and_then(|w| w.blocker).map(|(on, worker, _)| (on, worker));
        gate.open();
        assert_eq!(blocker, holder.join().unwrap());
        waits.join().unwrap();
    });
}

#[test]
fn a_deadlock_shows_as_a_cycle_of_blockers_and_cancelling_one_ends_it_b22() {
    both_kinds(|node, _, n| {
        let locks = [Arc::new(UserLock::new()), Arc::new(UserLock::new())];
        let users = [node.user(), node.user()];
        let both = Gate::shut();
        let crossed = |me: usize| {
            let (mine, theirs) = (locks[me].clone(), locks[1 - me].clone());
            let (id, both) = (users[me].id(), both.clone());
            let request = move || {
                mine.acquire(id, None).unwrap();
                both.pass();
                let got = theirs.acquire(id, None);
                if got.is_ok() {
                    theirs.release(id);
                }
                mine.release(id);
                got
            };
            users[me].enqueue(request).unwrap()
        };
        let requests = [crossed(0), crossed(1)];
        eventually("each has its own", || both.waiters() == 2);
        both.open();
        let blocked_by = |id| {
            let workers = node.snapshot().workers;
            let row = workers.into_iter().find(|w| w.user == id)?;
            (row.reason == Some(WaitReason::LCK_M_X)).then_some(row.blocking_user)
        };
        let [a, b] = [users[0].id(), users[1].id()];
        eventually("they wait for each other", || {
            blocked_by(a) == Some(b) && blocked_by(b) == Some(a)
        });
        assert!(users[n % 2].cancel());
        let ended = requests.map(|r| r.join().unwrap());
        assert_eq!(ended[n % 2], Err(WaitError::Cancelled));
        assert_eq!(ended[1 - n % 2], Ok(()));
    });
}

#[test]
fn the_views_as_tables_have_a_cell_for_each_column_b22() {
    both_kinds(|node, _, n| {
        let sleeper = start(node, n - 1, || ums::sleep(ms(600_000)));
        eventually("it sleeps", || scheduler(node, n - 1).counters.timers == 1);
        let tables = node.snapshot().tables();
        let names: Vec<_> = tables.iter().map(|t| t.name).collect();
        let expected: Vec<_> = ums::stats::View::ALL.iter().map(|v| v.empty().name).collect();
        assert_eq!(names, expected);
        for table in &tables {
            // These tables are empty: the sleeper is no user, has not ended a wait and uses no
            // descriptor, and the node has neither a monitor nor a recording.
            let empty = ["ums_wait_histogram", "ums_request_waits", "ums_users", "ums_user_waits"];
            let watched = ["ums_monitor", "ums_reports", "ums_stalls", "ums_deadlocks", "ums_ring"];
            let some = !empty.contains(&table.name)
                && !watched.contains(&table.name)
                && table.name != "ums_pending_io";
            assert!(!some || !table.rows.is_empty(), "{} has rows", table.name);
            assert!(table.rows.iter().all(|row| row.len() == table.columns.len()));
        }
        sleeper.cancel();
        drop(sleeper.join());
    });
}

/// Two workers that wake each other and wait have the shortest turns. A queued request, a timer,
/// and a message from another thread come in time beside them.
#[test]
fn workers_that_only_wake_each_other_let_everything_else_in_b9_g3() {
    each_alone(
        |b| b,
        |node, _, n| {
            let [ping, pong] = [(); 2].map(|()| Arc::new(Event::auto(false)));
            let over = Arc::new(AtomicBool::new(false));
            let pair =
                [(ping.clone(), pong.clone()), (pong, ping.clone())].map(|(mine, others)| {
                    let over = over.clone();
                    start(node, n - 1, move || {
                        while !over.load(SeqCst) {
                            mine.wait().unwrap();
                            others.set();
                        }
                    })
                });
            ping.set();
            assert_eq!(on(node, n - 1, || 7), 7, "a request from outside");
            on(node, n - 1, || ums::sleep(ms(1)).unwrap());
            let (asked, answered) = (Arc::new(Event::auto(false)), Arc::new(Event::auto(false)));
            let (asks, answers) = (asked.clone(), answered.clone());
            let third = start(node, n - 1, move || {
                answers.set();
                asks.wait().unwrap();
                ums::spawn(|| 8).join().unwrap()
            });
            answered.wait().unwrap();
            asked.set();
            assert_eq!(third.join().unwrap(), 8);
            over.store(true, SeqCst);
            pair.into_iter().for_each(|worker| worker.join().unwrap());
        },
    );
}

/// A thousand of their turns would last two seconds.
#[test]
fn a_request_begins_in_time_beside_workers_with_long_turns_b9() {
    each_alone(
        |b| b,
        |node, _, n| {
            let [ping, pong] = [(); 2].map(|()| Arc::new(Event::auto(false)));
            let (over, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
            let pair = [(ping.clone(), pong.clone()), (pong, ping.clone())];
            let pair = pair.map(|(mine, others)| {
                let (over, turns) = (over.clone(), turns.clone());
                start(node, n - 1, move || {
                    while !over.load(SeqCst) {
                        mine.wait().unwrap();
                        let began = Instant::now();
                        while began.elapsed() < ms(2) {}
                        turns.fetch_add(1, SeqCst);
                        others.set();
                    }
                })
            });
            ping.set();
            eventually("both have turns", || turns.load(SeqCst) > 2);
            let (before, seen) = (turns.load(SeqCst), turns.clone());
            let after = on(node, n - 1, move || seen.load(SeqCst));
            assert!(after - before < 300, "{} turns before it", after - before);
            over.store(true, SeqCst);
            pair.into_iter().for_each(|worker| worker.join().unwrap());
        },
    );
}
