//! Destructors of the application's values run while none of the library's locks is held, so a
//! destructor may use the very object that drops its value.

mod common;

use std::cell::RefCell;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use common::{child_errand, eventually, kind_named, kinds, on, one_kind, run_child, turn};
use ums::io::{CURRENT, Request};
use ums::sync::channel::{Sender, bounded};
use ums::user::UserLock;
use ums::worker::Coupled;
use ums::{WaitReason, WorkerKind};

/// A value whose destructor calls the closure, and then sets the flag.
struct Looks<F: FnMut()>(F, Arc<AtomicBool>);

impl<F: FnMut()> Drop for Looks<F> {
    fn drop(&mut self) {
        (self.0)();
        self.1.store(true, SeqCst);
    }
}

#[test]
fn the_result_of_a_users_last_request_may_look_at_the_lock_that_drops_it() {
    for kind in kinds() {
        one_kind(
            kind,
            |b| b.schedulers(1),
            |node| {
                let (lock, ended) = (Arc::new(UserLock::new()), Arc::new(AtomicBool::new(false)));
                let user = node.user();
                let id = user.id();
                let (mine, seen, done) = (lock.clone(), lock.clone(), ended.clone());
                let request = user.enqueue(move || {
                    mine.acquire(id, None).expect("it is free");
                    Looks(move || _ = seen.owner(), done)
                });
                let request = request.expect("the node takes work");
                eventually("the request is over", || request.is_finished());
                // From here on only the lock refers to the user, so its release drops the request's
                // result.
                drop(request);
                drop(user);
                let thread = std::thread::spawn(move || lock.release(id));
                eventually("the result's destructor has run", || ended.load(SeqCst));
                thread.join().expect("the lock is free");
            },
        );
    }
}

#[test]
fn an_idle_user_keeps_nothing_of_a_request_that_has_ended() {
    for kind in kinds() {
        one_kind(
            kind,
            |b| b.schedulers(1),
            |node| {
                let user = node.user();
                for round in 0..3 {
                    let result = Arc::new(());
                    let seen = Arc::downgrade(&result);
                    let request = user.enqueue(move || result).unwrap();
                    if round > 0 {
                        eventually("the request has ended", || !user.is_busy());
                    }
                    drop(request);
                    eventually("its result is gone", || seen.strong_count() == 0);
                }
                assert!(!user.cancel(), "no request is left to cancel");
            },
        );
    }
}

#[test]
fn a_value_whose_sending_is_refused_may_look_at_the_channel() {
    let _turn = turn();
    for kind in kinds() {
        let node = common::build(kind, |b| b.schedulers(1));
        let (sender, _receiver) = bounded::<Looks<Box<dyn FnMut() + Send>>>(1);
        let ended = Arc::new(AtomicBool::new(false));
        let value =
            |sender: &Sender<_>, ended: &Arc<AtomicBool>| -> Looks<Box<dyn FnMut() + Send>> {
                let _: &Sender<Looks<Box<dyn FnMut() + Send>>> = sender;
                let sender = sender.clone();
                Looks(Box::new(move || assert!(sender.len() <= 1)), ended.clone())
            };
        sender.try_send(value(&sender, &Arc::default())).expect("there is room");
        let (tx, done) = (sender.clone(), ended.clone());
        let (read, mut write) = UnixStream::pair().expect("a pair");
        read.set_nonblocking(true).expect("it can be");
        let task = node.spawn_on(0, move || {
            let sent = value(&tx, &done);
            // A completion routine must not wait, and sending into a full channel waits.
            let routine = move |_, _| drop(tx.send(sent));
            Request::read(read, vec![0_u8; 1], CURRENT, routine).submit();
            write.write_all(b"x").expect("there is room");
            for _ in 0..10 {
                ums::sleep(std::time::Duration::from_millis(1)).expect("it is not cancelled");
            }
        });
        eventually("the value's destructor has run", || ended.load(SeqCst));
        task.expect("the node takes work").join().expect("the routine's panic is its own");
        assert_eq!(on(&node, 0, || 7), 7);
    }
}

thread_local! {
    static KEPT: RefCell<Option<Coupled>> = const { RefCell::new(None) };
}

#[test]
fn a_time_away_that_is_kept_in_a_thread_local_ends_with_its_request() {
    let Some(kind) = child_errand() else {
        for kind in kinds().into_iter().filter(|kind| *kind != WorkerKind::Fiber) {
            let test = "a_time_away_that_is_kept_in_a_thread_local_ends_with_its_request";
            let output = run_child(test, &format!("{kind:?}"));
            assert!(output.status.success(), "{kind:?}: {output:?}");
        }
        return;
    };
    // The worker's thread ends with the node, and drops the guard that the thread-local still
    // holds.
    one_kind(
        kind_named(kind),
        |b| b.schedulers(1).max_workers(1),
        |node| {
            let keep = || {
                let away = ums::worker::couple(WaitReason::PREEMPTIVE_EXTERNAL).unwrap();
                KEPT.with(|kept| *kept.borrow_mut() = Some(away));
                assert!(!ums::worker::is_worker());
            };
            // Twice on one worker: the second call drops the guard of the first, whose request has
            // ended.
            node.run(keep);
            assert!(node.run(ums::worker::is_worker));
            node.run(keep);
            assert!(node.run(ums::worker::is_worker));
        },
    );
}

/// A value whose destructor locks and waits.
struct Locks(Arc<ums::sync::Mutex<u32>>);

impl Drop for Locks {
    fn drop(&mut self) {
        // Twice: a thread may wait again after its end has begun.
        for _ in 0..2 {
            let mut count = self.0.lock();
            ums::sleep(common::ms(1)).expect("it is not cancelled");
            *count += 1;
        }
    }
}

thread_local! {
    static LATE: RefCell<Option<Locks>> = const { RefCell::new(None) };
}

/// Stores a value in a thread-local before the thread's first use of the library. The library's
/// thread-locals are created later, so they are dropped before this value.
fn keep(total: &Arc<ums::sync::Mutex<u32>>) {
    LATE.with(|late| *late.borrow_mut() = Some(Locks(total.clone())));
    assert!(!ums::worker::is_worker());
    drop(total.lock());
}

#[test]
fn a_destructor_at_the_very_end_of_a_thread_may_lock_and_wait() {
    let test = "a_destructor_at_the_very_end_of_a_thread_may_lock_and_wait";
    let Some(errand) = child_errand() else {
        let kinds = kinds().into_iter().map(|kind| format!("{kind:?}"));
        for errand in kinds.chain(["plain".to_owned()]) {
            let output = run_child(test, &errand);
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{errand}: {}, {text}", output.status);
        }
        return;
    };
    let total = Arc::new(ums::sync::Mutex::new(0));
    if errand == "plain" {
        // The threads wait for each other as well.
        let threads = [(); 8].map(|()| {
            let total = total.clone();
            std::thread::spawn(move || keep(&total))
        });
        threads.into_iter().for_each(|thread| thread.join().expect("it does not panic"));
        assert_eq!(*total.lock(), 16);
        return;
    }
    one_kind(
        kind_named(errand),
        |b| b.schedulers(1),
        |node| {
            let theirs = total.clone();
            let away = move || keep(&theirs);
            node.run(move || ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, away));
        },
    );
    eventually("the destructor has run", || *total.lock() == 2);
}
