//! Refused calls change nothing. A call that panics, because it must not wait or because its caller
//! has no right to it, leaves everything as it was (B53, rule 9).

#![allow(unsafe_code)] // For the harness.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;

use common::*;
use ums::io::Request;
use ums::sync::{Barrier, Condvar, Mutex, RwLock, Semaphore, Sleeper, Wait};
use ums::user::UserLock;
use ums::{WaitError, WaitReason};

const OTHER: WaitReason = WaitReason::OTHER;

/// Returns the text of a panic.
fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).expect("a panic has a text")
}

/// Returns the text of the panic that this call causes.
#[track_caller]
fn refused<T>(call: impl FnOnce() -> T) -> String {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(_) => panic!("it was not refused"),
        Err(panic) => text_of(&*panic),
    }
}

/// Calls this in a completion routine of the caller's scheduler, where it must panic.
#[track_caller]
fn refused_in_a_routine<T>(call: impl FnOnce() -> T + Send + 'static) {
    let (tell, told) = channel();
    let routine = move |_| tell.send(catch_unwind(AssertUnwindSafe(call)).map(drop)).unwrap();
    Request::sync(tempfile::tempfile().unwrap(), false, routine).submit();
    let mut result = None;
    eventually("the routine has run", || (result = told.try_recv().ok(), result.is_some()).1);
    let panic = result.expect("it is there").expect_err("it was not refused");
    let text = text_of(&*panic);
    assert!(text.contains("a completion routine must not wait"), "{text}");
}

#[test]
fn a_wait_refused_in_a_completion_routine_leaves_its_resource_as_it_was() {
    each_alone(
        |b| b.max_workers(16),
        |node, _, _| {
            on(node, 0, || {
                let seats = Arc::new(Semaphore::new(1));
                let s = seats.clone();
                refused_in_a_routine(move || drop(s.acquire_many(2)));
                assert!(seats.try_acquire().is_some(), "the permit is free");

                let lock = Arc::new(RwLock::new(()));
                let reader = lock.read();
                let l = lock.clone();
                refused_in_a_routine(move || drop(l.write()));
                assert!(lock.try_read().is_some(), "readers share it");
                drop(reader);

                let (mutex, changed) = (Arc::new(Mutex::new(())), Arc::new(Condvar::new()));
                let (m, c) = (mutex.clone(), changed.clone());
                refused_in_a_routine(move || c.wait(&mut m.lock()));
                assert!(mutex.try_lock().is_some(), "the routine's guard is gone");

                let barrier = Arc::new(Barrier::new(2));
                let b = barrier.clone();
                refused_in_a_routine(move || b.wait().unwrap().is_leader());
                let b = barrier.clone();
                let other = ums::spawn(move || b.wait().unwrap().is_leader());
                let leads = barrier.wait().unwrap().is_leader();
                assert_ne!(other.join().unwrap(), leads, "the round has two");

                let (sender, receiver) = ums::sync::channel::rendezvous();
                refused_in_a_routine(move || sender.send(1));
                assert!(receiver.try_recv().is_err(), "nothing was sent");
            });
        },
    );
}

#[test]
fn a_run_refused_in_a_completion_routine_queues_nothing() {
    each_alone(
        |b| b,
        |node, _, n| {
            let handle = node.clone();
            let ran = Arc::new(AtomicBool::new(false));
            let tell = ran.clone();
            on(node, n - 1, move || {
                refused_in_a_routine(move || handle.run(move || tell.store(true, SeqCst)));
            });
            eventually("all is done", || node.snapshot().schedulers.iter().all(|s| s.is_idle));
            assert!(!ran.load(SeqCst), "what was refused ran all the same");
        },
    );
}

#[cfg(debug_assertions)]
#[test]
fn a_scope_waits_for_its_tasks_before_it_says_that_a_foreign_lock_is_held_b53() {
    /// Opens a scope whose closure ends while it holds a foreign lock: in its result if `in_result`
    /// is true, otherwise outside.
    fn with_a_lock(in_result: bool) -> bool {
        let gate = Gate::shut();
        let ended = Arc::new(AtomicBool::new(false));
        let (list, mut kept) = (std::sync::Mutex::new(()), None);
        let (pass, tell) = (gate.clone(), ended.clone());
        let open = ums::spawn(move || {
            ums::yield_now();
            gate.open();
        });
        let text = refused(|| {
            ums::scope(|s| {
                s.spawn(move || {
                    pass.pass();
                    tell.store(true, SeqCst);
                });
                let held = ums::sync::foreign(list.lock().unwrap());
                if in_result {
                    return Some(held);
                }
                kept = Some(held);
                None
            })
        });
        assert!(text.contains("holds a foreign lock: that of "), "{text}");
        let ended = ended.load(SeqCst);
        drop(kept);
        open.join().unwrap();
        ended
    }
    each_alone(
        |b| b,
        |node, _, n| {
            for in_result in [true, false] {
                let ended = on(node, n - 1, move || with_a_lock(in_result));
                assert!(ended, "the scope returned while its task ran (in result: {in_result})");
            }
        },
    );
}

#[test]
fn a_release_by_a_user_that_does_not_own_the_lock_changes_nothing() {
    each_alone(
        |b| b,
        |node, _, n| {
            let lock = Arc::new(UserLock::new());
            lock.acquire(1, None).unwrap();
            let l = lock.clone();
            let waiter = start(node, n - 1, move || {
                l.acquire(2, None).unwrap();
                l.release(2);
            });
            eventually("it waits", || lock.waiters() == 1);
            let text = refused(|| lock.release(3));
            assert!(text.contains("3 does not own the lock"), "{text}");
            assert_eq!(lock.owner(), Some(1), "its owner still owns it");
            lock.release(1);
            waiter.join().unwrap();
            let text = refused(|| lock.release(1));
            assert!(text.contains("1 does not own the lock"), "{text}");
            assert_eq!(lock.owner(), None);
        },
    );
}

#[test]
fn a_user_that_releases_too_often_keeps_no_other_from_a_lock() {
    each_alone(
        |b| b,
        |node, _, n| {
            let (lock, user) = (Arc::new(UserLock::new()), node.user());
            let text = refused(|| user.release());
            assert!(text.contains("holds nothing"), "{text}");
            assert!(!user.is_holding(), "it holds nothing still");
            let (l, id) = (lock.clone(), user.id());
            on(node, 0, move || l.acquire(id, None).unwrap());
            // Releases the user's hold, which the lock has made.
            user.release();
            let l = lock.clone();
            let waiter = start(node, n - 1, move || {
                l.acquire(u64::MAX, None).unwrap();
                l.release(u64::MAX);
            });
            eventually("it waits", || lock.waiters() == 1);
            lock.release(id);
            waiter.join().unwrap();
            assert!(!user.is_holding());
        },
    );
}

#[test]
fn a_sleeper_that_wakes_itself_does_not_wait() {
    each_alone(
        |b| b,
        |node, _, n| {
            let wake = || Wait::new(OTHER).park(|me| assert!(me.wake()));
            assert_eq!(wake(), Ok(()), "a plain thread");
            for i in 0..n {
                on(node, i, move || {
                    assert_eq!(wake(), Ok(()));
                    // The worker can wait as before.
                    let mut late = None;
                    let soon = std::time::Instant::now() + ms(1);
                    let wait = Wait::new(OTHER).until(soon);
                    assert_eq!(wait.park(|me| late = Some(me)), Err(WaitError::TimedOut));
                    assert!(!late.is_some_and(Sleeper::wake));
                    assert_eq!(ums::sleep(ms(1)), Ok(()));
                });
            }
        },
    );
}

#[test]
fn a_request_that_cancels_itself_while_it_begins_to_wait_does_not_wait_b59() {
    each_alone(
        |b| b,
        |node, _, _| {
            let (user, handle) = (node.user(), node.clone());
            let id = user.id();
            let outcome = user
                .enqueue(move || Wait::new(OTHER).park(|_| assert!(handle.cancel(id), "it runs")));
            assert_eq!(outcome.unwrap().join().unwrap(), Err(WaitError::Cancelled));
        },
    );
}

#[test]
fn a_worker_that_has_begun_to_wait_can_neither_yield_nor_wait_nor_leave() {
    let told = |text: String| assert!(text.contains("has begun to wait"), "{text}");
    let nested = move || {
        let seats = Arc::new(Semaphore::new(1));
        let s = seats.clone();
        told(refused(move || Wait::new(OTHER).park(|_| drop(s.acquire_many(2)))));
        assert!(seats.try_acquire().is_some(), "the permit is free");
        told(refused(|| Wait::new(OTHER).park(|_| Wait::new(OTHER).park(drop).unwrap())));
    };
    each_alone(
        |b| b,
        |node, kind, n| {
            nested();
            let handle = node.clone();
            told(refused(|| Wait::new(OTHER).park(|_| handle.run(|| ()))));
            for i in 0..n {
                on(node, i, move || {
                    nested();
                    let calls: [fn(); 4] = [
                        ums::yield_now,
                        || ums::sleep(ms(1)).unwrap(),
                        || ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || ()),
                        || ums::scope(|_| ()),
                    ];
                    for call in calls {
                        told(refused(|| Wait::new(OTHER).park(|_| call())));
                    }
                    if kind != ums::WorkerKind::Fiber {
                        let couple = || drop(ums::worker::couple(WaitReason::PREEMPTIVE_EXTERNAL));
                        told(refused(|| Wait::new(OTHER).park(|_| couple())));
                    }
                    // The worker that panicked can be used as before.
                    ums::yield_now();
                    ums::sleep(ms(1)).unwrap();
                });
            }
        },
    );
}

#[test]
fn a_worker_does_not_rejoin_in_the_middle_of_a_wait() {
    for kind in kinds().into_iter().filter(|kind| *kind != ums::WorkerKind::Fiber) {
        one_kind(
            kind,
            |b| b.schedulers(1),
            |node| {
                on(node, 0, || {
                    let away = ums::worker::couple(WaitReason::PREEMPTIVE_EXTERNAL).unwrap();
                    let (tell, told) = channel::<Sleeper>();
                    let waker = std::thread::spawn(move || told.recv().unwrap().wake());
                    let outcome = Wait::new(OTHER).park(move |me| {
                        drop(away);
                        tell.send(me).unwrap();
                    });
                    assert_eq!(outcome, Ok(()));
                    assert!(waker.join().unwrap());
                    assert!(!ums::worker::is_worker(), "it is away to the end of its request");
                });
                on(node, 0, || assert!(ums::worker::is_worker()));
            },
        );
    }
}

#[test]
fn a_result_is_taken_once_and_a_second_join_says_so() {
    each_alone(
        |b| b,
        |node, _, _| {
            on(node, 0, || {
                let mut task = ums::spawn(|| 7);
                assert_eq!(task.join_for(PATIENCE).unwrap(), 7);
                let text = refused(|| task.join_for(PATIENCE));
                assert!(text.contains("result was taken already"), "{text}");
                ums::sleep(ms(1)).unwrap();
            });
        },
    );
}

#[test]
fn what_is_refused_blames_the_callers_line() {
    let _turn = turn();
    let node = build(ums::WorkerKind::Thread, |b| b.schedulers(1));
    let (mutex, lock) = (ums::sync::Mutex::new(()), ums::sync::RwLock::new(()));
    let held = (mutex.lock(), lock.write());
    let most = ums::fs::DirectBuffer::MAX;
    let (tell, told) = channel();
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let at = info.location().map(|at| (at.file().to_owned(), at.line()));
        tell.send(at.unwrap()).unwrap();
    }));
    let first = line!() + 2;
    let texts = [
        ("use Node::spawn", refused(|| ums::spawn(|| ()))),
        ("use Node::spawn", refused(|| ums::task::try_spawn(|| ()))),
        ("use Node::run", refused(|| ums::scope(|_| ()))),
        ("wait for itself", refused(|| mutex.lock())),
        ("wait for itself", refused(|| lock.read())),
        ("wait for itself", refused(|| lock.write())),
        ("there is no scheduler 1: the last is 0", refused(|| node.spawn_on(1, || ()))),
        ("there is no scheduler 7: the last is 0", refused(|| node.set_online(7, true))),
        ("at most DirectBuffer::MAX", refused(|| ums::fs::DirectBuffer::new(most + 1))),
        ("a select without arms", refused(|| ums::sync::Select::<()>::new().wait())),
        ("at least one value", refused(|| ums::sync::channel::broadcast::<u8>(0))),
        ("the period of an interval is zero", refused(|| ums::task::Interval::new(ms(0)))),
    ];
    std::panic::set_hook(before);
    for (line, (says, text)) in (first..).zip(texts) {
        assert!(text.contains(says), "{text}");
        let (file, at) = told.recv().unwrap();
        assert!(file.ends_with("refusals.rs") && at == line, "{says}: {file}:{at}");
    }
    drop(held);
    end(node);
}

#[test]
fn the_last_two_schedulers_online_cannot_be_taken_offline_at_once() {
    const ROUNDS: usize = 20_000;
    let _turn = turn();
    let node = build(ums::WorkerKind::Thread, |b| b.schedulers(2));
    for _ in 0..ROUNDS {
        let start = std::sync::Barrier::new(2);
        let down = |i| {
            start.wait();
            node.set_online(i, false)
        };
        std::thread::scope(|s| {
            let other = s.spawn(|| down(1));
            let both = down(0) & other.join().unwrap();
            assert!(!both, "no scheduler is online");
        });
        node.set_online(0, true);
        node.set_online(1, true);
    }
    end(node);
}

#[cfg(debug_assertions)]
#[test]
fn a_foreign_guard_that_was_forgotten_or_kept_concerns_its_own_request_alone_b53() {
    thread_local! {
        static KEPT: std::cell::RefCell<Option<ums::sync::Foreign<()>>> =
            const { std::cell::RefCell::new(None) };
    }
    // There is one worker, which carries out one request after the other.
    let options = |b: ums::Builder| b.schedulers(1).max_workers(1);
    for kind in kinds() {
        one_kind(kind, options, |node| {
            node.run(|| {
                std::mem::forget(ums::sync::foreign(()));
                let text = refused(ums::yield_now);
                assert!(text.contains("holds a foreign lock: that of "), "{text}");
            });
            node.run(|| ums::sleep(ms(1)).unwrap());
            // A guard that a later request drops is not counted for that request.
            node.run(|| KEPT.with(|kept| *kept.borrow_mut() = Some(ums::sync::foreign(()))));
            node.run(|| {
                ums::sleep(ms(1)).unwrap();
                let held = ums::sync::foreign(());
                KEPT.with(|kept| drop(kept.borrow_mut().take()));
                refused(ums::yield_now);
                drop(held);
                ums::yield_now();
            });
        });
    }
}

/// A mechanism that the environment names is refused if there is no such mechanism, and if it does
/// not work here, stderr says so.
#[test]
fn a_mechanism_that_the_environment_names_is_refused_or_says_that_it_does_not_work() {
    use common::seccomp::{Verdict, filter};
    use ums::watch::{Mechanism, mechanism};
    use ums::windows::{CompletionList, EnterError, WorkerContext, enter_scheduling_mode};
    const ME: &str =
        "a_mechanism_that_the_environment_names_is_refused_or_says_that_it_does_not_work";
    let Some(errand) = child_errand() else {
        let said = |errand: &str| {
            let output = child(ME, errand).env("UMS_WATCH", errand).output().unwrap();
            assert!(output.status.success(), "{errand}: {output:?}");
            String::from_utf8(output.stderr).unwrap()
        };
        assert_eq!(said("trip").matches("ums: ").count(), 0, "the errors say it");
        let text = said("trap");
        assert_eq!(
            text.matches("ums: UMS_WATCH=trap: this mechanism does not work here").count(),
            1
        );
        return;
    };
    if errand == "trap" {
        filter(Verdict::AllButThese, &[libc::SYS_perf_event_open]);
        assert_eq!(mechanism().unwrap(), Mechanism::Trap);
        assert_eq!(mechanism().unwrap(), Mechanism::Trap, "and says so once");
        return;
    }
    const TEXT: &str = "UMS_WATCH=trip: it must be trap, breakpoint or calls";
    let refused = enter_scheduling_mode(|_, _| unreachable!("it does not enter"));
    assert!(matches!(&refused, Err(EnterError::Watch(error)) if error.to_string() == TEXT));
    let list = CompletionList::new().unwrap();
    let refused = WorkerContext::spawn(&list, || unreachable!("it is not created"));
    assert_eq!(refused.unwrap_err().to_string(), TEXT);
    assert_eq!(list.members(), 0);
    let node = ums::Node::builder().schedulers(1).detect_blocking(true).build();
    let text = node.expect_err("it is not built").to_string();
    assert!(text.contains(TEXT), "{text}");
}
