//! Deadlocks: the monitor finds waits in a circle by the owners of what is waited for, and ends one
//! wait so that the others continue. A long wait is no deadlock.
//!
//! The circles here never end by themselves, so on a slow computer the tests only take longer.

#![allow(unsafe_code)] // For the harness.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use common::watching::{self, Told, nothing, watched};
use common::*;
use ums::monitor::Deadlock;
use ums::monitor::{Condition, Diagnosis, Options, Report};
use ums::stats::WorkerState;
use ums::sync::{Event, Mutex, OnceCell, RawMutex, RwLock};
use ums::task::JoinError;
use ums::user::UserLock;
use ums::{Builder, Node, WaitError, WaitReason, WorkerKind};

/// A wait without a deadline whose call can fail.
const ENDLESS: Duration = Duration::MAX;

/// Returns monitor options that look for deadlocks of 50 ms and for nothing else.
fn deadlocks() -> Options {
    nothing().deadlock(ms(50)).per_minute(1000)
}

/// Runs the body with each kind of worker on one and two schedulers, with the monitor watching.
fn both_watched(options: impl Fn() -> Options, body: impl Fn(&Node, &Told, usize)) {
    for kind in kinds() {
        for n in [1, 2] {
            let told = Told::default();
            let build = |b: Builder| watched(b.schedulers(n), options(), &told);
            one_kind(kind, build, |node| body(node, &told, n));
        }
    }
}

/// Returns how many workers wait for this reason.
fn waiting(node: &Node, reason: WaitReason) -> usize {
    let workers = node.snapshot().workers;
    workers.iter().filter(|w| w.state == WorkerState::Waiting && w.reason == Some(reason)).count()
}

fn wait_until_so_many_wait(node: &Node, reason: WaitReason, count: usize) {
    eventually(&format!("{count} wait for {reason:?}"), || waiting(node, reason) == count);
}

fn of<T>(result: Result<T, WaitError>) -> Arc<Deadlock> {
    match result {
        Err(WaitError::Deadlock(id)) => id.details().expect("it was the last one"),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("the wait was granted"),
    }
}

/// Waits for the only report, and checks that it is a deadlock.
fn the_only(told: &Told) -> Report {
    let report = watching::the_only(told);
    assert_eq!((report.condition, report.diagnosis), (Condition::Deadlock, Diagnosis::Circle));
    report
}

/// A task's worker, and the result of its last lock call.
type End = (Option<(usize, u32)>, Result<(), WaitError>);

/// Mutexes in a ring: each task `i` locks mutex `i`. When all have done so, the tasks lock the next
/// mutex, `i + 1`, one after the other. Returns for each task its worker and the result of its last
/// lock call.
fn ring(node: &Node, n: usize, size: usize) -> Vec<End> {
    let locks: Arc<Vec<_>> = Arc::new((0..size).map(|_| Mutex::new(())).collect());
    let turn = Arc::new(AtomicUsize::new(0));
    let task = |i: usize| {
        let (locks, turn) = (locks.clone(), turn.clone());
        start(node, i % n, move || {
            let _mine = locks[i].lock();
            turn.fetch_add(1, SeqCst);
            eventually("it is its turn", || turn.load(SeqCst) == size + i);
            let second = locks[(i + 1) % size].lock_for(ENDLESS).map(drop);
            (ums::worker::worker_id(), second)
        })
    };
    let tasks: Vec<_> = (0..size).map(task).collect();
    eventually("all have their first", || turn.load(SeqCst) == size);
    for i in 1..size {
        wait_until_so_many_wait(node, WaitReason::MUTEX, i);
        turn.fetch_add(1, SeqCst);
    }
    tasks.into_iter().map(|task| task.join().unwrap()).collect()
}

#[test]
fn two_waits_for_each_other_are_found_and_the_last_to_begin_gives_up_b22() {
    both_watched(deadlocks, |node, told, n| {
        let mut ends = ring(node, n, 2);
        let (victim, error) = ends.pop().unwrap();
        assert_eq!(ends[0].1, Ok(()), "the other continues");
        let deadlock = of(error);
        assert_eq!(deadlock.waiters.len(), 2);
        let at = deadlock.victim.expect("both could fail");
        let number = |w: Option<(u32, u32)>| w.map(|(s, w)| (s as usize, w));
        assert_eq!(number(deadlock.waiters[at].worker), victim);
        assert_eq!(number(deadlock.waiters[1 - at].worker), ends[0].0);
        for waiter in &deadlock.waiters {
            assert_eq!((waiter.reason, waiter.can_fail), (WaitReason::MUTEX, true));
            assert!(waiter.request > 0, "{deadlock}");
        }
        assert!(deadlock.waiters.iter().any(|w| w.waited >= ms(50)), "{deadlock}");
        assert_ne!(deadlock.waiters[0].resource, deadlock.waiters[1].resource);
        let report = the_only(told);
        assert_eq!(report.deadlock.as_ref().unwrap().id, deadlock.id);
        let text = report.to_string();
        assert!(text.contains("ums: DEADLOCK: scheduler"), "{text}");
        assert!(text.contains("for MUTEX 0x") && text.contains("(its wait fails)"), "{text}");
        let counts = node.monitor_counts();
        let found = counts.iter().find(|c| c.condition == Condition::Deadlock).unwrap();
        assert_eq!((found.reports, found.suppressed), (1, 0));
    });
}

#[test]
fn the_error_names_every_waiter_of_a_larger_circle() {
    both_watched(deadlocks, |node, told, n| {
        let mut ends = ring(node, n, 3);
        let (_, error) = ends.pop().unwrap();
        let text = error.unwrap_err().to_string();
        for (worker, end) in &ends {
            let (scheduler, worker) = worker.unwrap();
            assert_eq!(*end, Ok(()));
            assert!(text.contains(&format!("worker {worker} of scheduler {scheduler}")), "{text}");
        }
        let deadlock = of(error);
        assert_eq!(deadlock.waiters.len(), 3, "{deadlock}");
        the_only(told);
    });
}

#[test]
fn where_each_of_them_waits_is_in_the_report() {
    both_watched(deadlocks, |node, told, n| {
        ring(node, n, 2);
        let report = the_only(told);
        for waiter in &report.deadlock.as_ref().unwrap().waiters {
            let named = waiter.waits_at.iter().any(|frame| frame.name.contains("deadlocks::ring"));
            assert!(named, "{report}");
        }
        // The report's text shows the first few waiters.
        assert!(report.to_string().contains("waits at deadlocks::ring"), "{report}");
    });
}

#[test]
fn a_wait_for_oneself_is_reported() {
    both_watched(deadlocks, |node, told, _| {
        let deadlock = on(node, 0, || {
            let lock = Mutex::new(());
            let _held = lock.lock();
            of(lock.lock_for(ENDLESS))
        });
        assert_eq!((deadlock.waiters.len(), deadlock.victim), (1, Some(0)));
        the_only(told);
    });
}

/// Waits until two tasks have called this, each of which holds its first lock.
fn have_both(both: &AtomicUsize) {
    both.fetch_add(1, SeqCst);
    eventually("both have one", || both.load(SeqCst) == 2);
}

#[test]
fn if_no_wait_can_fail_one_panics_and_the_others_continue() {
    both_watched(deadlocks, |node, told, n| {
        let (a, b) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0)));
        let (first_a, first_b) = (a.clone(), b.clone());
        let both = Arc::new(AtomicUsize::new(0));
        let first_both = both.clone();
        let first = start(node, 0, move || {
            let _held = first_a.lock();
            have_both(&first_both);
            *first_b.lock() += 1;
        });
        let second = start(node, n - 1, move || {
            let _held = b.lock();
            have_both(&both);
            wait_until_so_many_wait(&Node::current().unwrap(), WaitReason::MUTEX, 1);
            *a.lock() += 1;
        });
        first.join().expect("it continues");
        let Err(JoinError::Panicked(panic)) = second.join() else { panic!("it is the victim") };
        let text = panic.downcast_ref::<String>().expect("a sentence");
        assert!(
            text.contains("this lock can never be acquired: ") && text.contains("MUTEX"),
            "{text}"
        );
        the_only(told);
    });
}

#[test]
fn a_wait_that_can_fail_gives_up_before_one_that_would_panic() {
    both_watched(deadlocks, |node, told, n| {
        let (a, b) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0)));
        let (first_a, first_b) = (a.clone(), b.clone());
        let both = Arc::new(AtomicUsize::new(0));
        let first_both = both.clone();
        let first = start(node, 0, move || {
            let _held = first_a.lock();
            have_both(&first_both);
            // Begins its wait later than the other task.
            of(first_b.lock_for(ENDLESS)).waiters.len()
        });
        let second = start(node, n - 1, move || {
            let _held = b.lock();
            have_both(&both);
            wait_until_so_many_wait(&Node::current().unwrap(), WaitReason::MUTEX, 1);
            *a.lock() += 1;
        });
        assert_eq!(first.join().unwrap(), 2);
        second.join().unwrap();
        the_only(told);
    });
}

#[test]
fn writers_and_makers_and_joins_are_owners_too() {
    both_watched(deadlocks, |node, told, n| {
        // A writer holds the lock and wants the value. A second worker is making the value and
        // wants to read under the lock.
        let (lock, cell) = (Arc::new(RwLock::new(0)), Arc::new(OnceCell::new()));
        let (l, c) = (lock.clone(), cell.clone());
        let writer = start(node, 0, move || {
            let _held = l.write();
            wait_until_so_many_wait(&Node::current().unwrap(), WaitReason::RWLOCK_SHARED, 1);
            *c.get_or_init(|| 0)
        });
        let maker = start(node, n - 1, move || {
            *cell.get_or_init(|| {
                eventually("it is written", || lock.try_read().is_none());
                lock.read_for(ENDLESS).map(|value| *value).map_or(7, |value| value)
            })
        });
        assert_eq!((writer.join().unwrap(), maker.join().unwrap()), (7, 7));
        // A worker joins a task, and holds the mutex that the task waits for.
        let lock = Arc::new(Mutex::new(0));
        let joined = on(node, 0, move || {
            let held = lock.lock();
            let l = lock.clone();
            let task = ums::spawn(move || l.lock_for(ENDLESS).map(drop));
            // Either wait may be the victim. If it is the join, the join returns its handle.
            match task.join() {
                Err(JoinError::Wait(task, error)) => {
                    drop(held);
                    assert_eq!(task.join().unwrap(), Ok(()));
                    of(Err::<(), _>(error)).waiters[0].reason
                }
                joined => of(joined.unwrap()).waiters[0].reason,
            }
        });
        assert!([WaitReason::MUTEX, WaitReason::JOIN].contains(&joined));
        eventually("both are reported", || told.len() == 2);
    });
}

#[test]
fn users_that_own_what_the_other_waits_for_are_found() {
    both_watched(deadlocks, |node, told, _| {
        let (a, b) = (Arc::new(UserLock::new()), Arc::new(UserLock::new()));
        let (first, second) = (node.user(), node.user());
        a.acquire(first.id(), None).unwrap();
        b.acquire(second.id(), None).unwrap();
        let (id, lock) = (first.id(), b.clone());
        let one = first.enqueue(move || lock.acquire(id, None)).unwrap();
        wait_until_so_many_wait(node, WaitReason::LCK_M_X, 1);
        let (id, lock) = (second.id(), a.clone());
        let two = second.enqueue(move || lock.acquire(id, None)).unwrap();
        let deadlock = of(two.join().unwrap());
        let users: Vec<_> = deadlock.waiters.iter().map(|w| w.user).collect();
        assert!(users.contains(&first.id()) && users.contains(&second.id()), "{deadlock}");
        the_only(told);
        // The victim's client ends its transaction, and the other client gets its lock.
        b.release(second.id());
        assert_eq!(one.join().unwrap(), Ok(()));
        b.release(first.id());
        a.release(first.id());
    });
}

#[test]
fn a_user_with_another_request_queued_is_in_no_circle_since_that_may_release_its_lock() {
    for kind in kinds() {
        let told = Told::default();
        let build = |b: Builder| watched(b.schedulers(1).max_workers(2), deadlocks(), &told);
        one_kind(kind, build, |node| {
            let (lock, mutex) = (Arc::new(UserLock::new()), Arc::new(Mutex::new(())));
            let (owner, other) = (node.user(), node.user());
            lock.acquire(owner.id(), None).unwrap();
            let (id, wanted, held) = (other.id(), lock.clone(), mutex.clone());
            let other_waits = other.enqueue(move || {
                let _held = held.lock();
                wanted.acquire(id, None)
            });
            wait_until_so_many_wait(node, WaitReason::LCK_M_X, 1);
            let owner_waits = owner.enqueue(move || mutex.lock_for(ENDLESS).map(drop)).unwrap();
            // Both workers are busy, so this request is queued. As far as the library can tell, it
            // will release the lock.
            let queued = owner.enqueue(|| ()).unwrap();
            wait_until_so_many_wait(node, WaitReason::MUTEX, 1);
            // Long enough for the monitor to look and to resolve function names, if it were to
            // report.
            std::thread::sleep(ms(1500));
            assert_eq!(told.len(), 0, "{:#?}", told.all());
            lock.release(owner.id());
            assert_eq!(other_waits.unwrap().join().unwrap(), Ok(()));
            assert_eq!(owner_waits.join().unwrap(), Ok(()));
            queued.join().unwrap();
            lock.release(other.id());
            assert_eq!(told.len(), 0, "{:#?}", told.all());
        });
    }
}

#[test]
fn a_plain_thread_in_the_circle_is_seen() {
    both_watched(deadlocks, |node, told, _| {
        let (a, b) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(())));
        let held = a.lock();
        let (other_a, other_b) = (a.clone(), b.clone());
        let task = start(node, 0, move || {
            let _held = other_b.lock();
            other_a.lock_for(ENDLESS).map(drop)
        });
        wait_until_so_many_wait(node, WaitReason::MUTEX, 1);
        // Long enough for the monitor to look at the waits and find no circle.
        std::thread::sleep(ms(300));
        assert_eq!(told.len(), 0, "{:#?}", told.all());
        let deadlock = of(b.lock_for(ENDLESS));
        assert_eq!(deadlock.waiters[deadlock.victim.unwrap()].worker, None);
        drop(held);
        assert_eq!(task.join().unwrap(), Ok(()));
        the_only(told);
    });
}

#[test]
fn a_long_wait_is_no_deadlock_b22() {
    both_watched(deadlocks, |node, told, n| {
        // A chain: each task waits for the next, and the last waits for something without an owner.
        let go = Arc::new(Event::manual(false));
        let locks: Arc<Vec<_>> = Arc::new((0..4).map(|_| Mutex::new(())).collect());
        let task = |i: usize| {
            let (locks, go) = (locks.clone(), go.clone());
            start(node, i % n, move || {
                let _mine = locks[i].lock();
                match locks.get(i + 1) {
                    Some(next) => drop(next.lock()),
                    None => go.wait().unwrap(),
                }
            })
        };
        let mut tasks = Vec::new();
        for i in (0..4).rev() {
            tasks.push(task(i));
            let reason = if i == 3 { WaitReason::EVENT } else { WaitReason::MUTEX };
            wait_until_so_many_wait(node, reason, if i == 3 { 1 } else { 3 - i });
        }
        std::thread::sleep(ms(500));
        go.set();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        assert_eq!(told.len(), 0, "{:#?}", told.all());
    });
}

#[test]
fn locks_that_are_taken_in_good_order_are_never_reported_as_a_deadlock() {
    // The monitor looks all the time, while the waits change.
    both_watched(
        || deadlocks().deadlock(ms(1)),
        |node, told, n| {
            let locks: Arc<Vec<_>> = Arc::new((0..6).map(|_| Mutex::new(0u32)).collect());
            let task = |t: usize| {
                let locks = locks.clone();
                start(node, t % n, move || {
                    let mut dice = 0x9E37_79B9 + t;
                    for _ in 0..40 {
                        dice = dice
                            .wrapping_mul(6364136223846793005)
                            .wrapping_add(1442695040888963407);
                        let (low, high) = (dice >> 33 & 1, 2 + (dice >> 40) % 4);
                        let mut first = locks[low].lock();
                        ums::yield_now();
                        let mut second = locks[high].lock_for(ENDLESS).expect("it is in order");
                        (*first, *second) = (*first + 1, *second + 1);
                        ums::sleep(Duration::from_micros(300)).unwrap();
                    }
                })
            };
            let tasks: Vec<_> = (0..24).map(task).collect();
            tasks.into_iter().for_each(|task| task.join().unwrap());
            assert_eq!(locks.iter().map(|lock| *lock.lock()).sum::<u32>(), 24 * 40 * 2);
            assert_eq!(told.len(), 0, "{:#?}", told.all());
        },
    );
}

#[test]
fn waits_for_locks_taken_in_any_order_end() {
    both_watched(
        || deadlocks().deadlock(ms(5)),
        |node, told, n| {
            let locks: Arc<Vec<_>> = Arc::new((0..3).map(|_| Mutex::new(0u32)).collect());
            let victims = Arc::new(AtomicUsize::new(0));
            let task = |t: usize| {
                let (locks, victims) = (locks.clone(), victims.clone());
                start(node, t % n, move || {
                    for round in 0..4 {
                        let (one, other) = ((t + round) % 3, (t + 2 * round + 1) % 3);
                        let other = if one == other { (one + 1) % 3 } else { other };
                        loop {
                            let mut first = locks[one].lock_for(ENDLESS).unwrap();
                            ums::yield_now();
                            match locks[other].lock_for(ENDLESS) {
                                Ok(mut second) => {
                                    (*first, *second) = (*first + 1, *second + 1);
                                    break;
                                }
                                Err(WaitError::Deadlock(_)) => victims.fetch_add(1, SeqCst),
                                Err(error) => panic!("{error}"),
                            };
                        }
                    }
                })
            };
            let tasks: Vec<_> = (0..4).map(task).collect();
            tasks.into_iter().for_each(|task| task.join().unwrap());
            assert_eq!(locks.iter().map(|lock| *lock.lock()).sum::<u32>(), 4 * 4 * 2);
            eventually("each victim is reported", || told.len() == victims.load(SeqCst));
        },
    );
}

#[test]
fn a_wait_that_is_no_deadlock_wakes_no_thread_once_it_was_examined_b39() {
    both_watched(deadlocks, |node, told, n| {
        let go = Arc::new(Event::manual(false));
        let lock = Arc::new(Mutex::new(()));
        let (g, l) = (go.clone(), lock.clone());
        let holder = start(node, 0, move || {
            let _held = l.lock();
            g.wait().unwrap();
        });
        wait_until_so_many_wait(node, WaitReason::EVENT, 1);
        let waiter = start(node, n - 1, move || drop(lock.lock()));
        wait_until_so_many_wait(node, WaitReason::MUTEX, 1);
        eventually("the monitor sleeps for good", || {
            let before = switches_of_the_monitor();
            std::thread::sleep(ms(400));
            switches_of_the_monitor() == before
        });
        go.set();
        holder.join().unwrap();
        waiter.join().unwrap();
        assert_eq!(told.len(), 0);
    });
}

/// Runs the test in a process of its own, because its deadlock cannot be broken or its effect lasts
/// until the process ends.
fn in_a_child(test: &str, errand: impl Fn(WorkerKind)) {
    if let Some(kind) = child_errand() {
        errand(kind_named(kind));
        println!("as expected");
        std::process::exit(0);
    }
    for kind in kinds() {
        let _turn = turn();
        let output = run_child(test, &format!("{kind:?}"));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("as expected"), "{kind:?}: {output:?}");
    }
}

#[inline(never)]
fn takes_the_lock(lock: &RwLock<u32>) -> ums::sync::RwLockReadGuard<'_, u32> {
    std::hint::black_box(lock).read()
}

#[test]
fn with_traced_locks_readers_are_known_and_where_each_lock_was_taken() {
    in_a_child("with_traced_locks_readers_are_known_and_where_each_lock_was_taken", |kind| {
        let told = Told::default();
        let options = deadlocks().trace_locks(true);
        let node = build(kind, |b| watched(b.schedulers(1), options, &told));
        // Two readers that both wait to write.
        let lock = Arc::new(RwLock::new(0));
        let upgrade = |lock: Arc<RwLock<u32>>, both: Arc<AtomicUsize>| {
            move || {
                let held = takes_the_lock(&lock);
                both.fetch_add(1, SeqCst);
                eventually("both read", || both.load(SeqCst) == 2);
                let written = lock.write_for(ms(100) * 600).map(drop);
                drop(held);
                written
            }
        };
        let both = Arc::new(AtomicUsize::new(0));
        let tasks = [0, 1].map(|_| start(&node, 0, upgrade(lock.clone(), both.clone())));
        for task in tasks {
            // Each task waits for both readers' shares, its own included.
            let deadlock = of(task.join().unwrap());
            for waiter in &deadlock.waiters {
                let named = waiter.taken_at.iter().any(|f| f.name.contains("takes_the_lock"));
                assert!(named, "{deadlock}");
            }
        }
        // A reader that reads again, behind a writer that waits for the reader.
        let again = start(&node, 0, move || {
            let held = takes_the_lock(&lock);
            let l = lock.clone();
            let writer = ums::spawn(move || l.write_for(ENDLESS).map(drop));
            wait_until_so_many_wait(&Node::current().unwrap(), WaitReason::RWLOCK_EXCLUSIVE, 1);
            let again = lock.read_for(ENDLESS).map(drop);
            drop(held);
            (again, writer.join().unwrap())
        });
        let (again, writer) = again.join().unwrap();
        assert_eq!((of(again).waiters.len(), writer), (2, Ok(())));
    });
}

#[test]
fn a_circle_that_cannot_be_broken_is_reported_once() {
    in_a_child("a_circle_that_cannot_be_broken_is_reported_once", |kind| {
        let told = Told::default();
        let node = build(kind, |b| watched(b.schedulers(1), deadlocks(), &told));
        static LOCKS: [RawMutex; 2] = [RawMutex::new(), RawMutex::new()];
        static BOTH: AtomicUsize = AtomicUsize::new(0);
        for i in 0..2 {
            start(&node, 0, move || {
                LOCKS[i].lock(WaitReason::MUTEX);
                BOTH.fetch_add(1, SeqCst);
                eventually("both have one", || BOTH.load(SeqCst) == 2);
                LOCKS[1 - i].lock(WaitReason::MUTEX);
            });
        }
        let report = the_only(&told);
        let deadlock = report.deadlock.as_ref().unwrap();
        assert_eq!((deadlock.waiters.len(), deadlock.victim), (2, None));
        assert!(deadlock.waiters.iter().all(|waiter| !waiter.can_fail));
        std::mem::forget(node);
    });
}
