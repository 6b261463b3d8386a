//! `ums::thread`: the interface of `std::thread`, for tasks.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use common::{both_kinds, both_kinds_with, eventually, ms, on, start};
use ums::thread;

#[test]
fn a_thread_is_parked_until_it_is_unparked_and_a_token_is_kept() {
    both_kinds(|node, _, n| {
        on(node, n - 1, || {
            let me = thread::current();
            me.unpark();
            thread::park(); // the token was there before
            let go = Arc::new(AtomicBool::new(false));
            let sets = go.clone();
            let other = thread::spawn(move || {
                sets.store(true, SeqCst);
                me.unpark();
            });
            while !go.load(SeqCst) {
                thread::park();
            }
            other.join().unwrap();
            let me = thread::current();
            thread::park_timeout(ms(1));
            assert_eq!(me.id(), thread::current().id(), "it is the same thread after a wait");
        });
    });
    let me = thread::current();
    let other = std::thread::spawn(move || me.unpark());
    thread::park();
    other.join().unwrap();
}

#[test]
fn each_request_is_a_thread_of_its_own_also_on_the_same_worker() {
    both_kinds_with(
        |b| b.max_workers(4),
        |node, _, n| {
            let ids: Vec<_> = (0..10).map(|_| on(node, n - 1, || thread::current().id())).collect();
            let mut different = ids.clone();
            different.sort_by_key(|id| format!("{id:?}"));
            different.dedup();
            assert_eq!(different.len(), ids.len());
            on(node, n - 1, || {
                thread::current().unpark();
            });
            // The token of the request before is not this one's.
            on(node, n - 1, || {
                let begun = std::time::Instant::now();
                thread::park_timeout(ms(20));
                assert!(begun.elapsed() >= ms(20));
            });
        },
    );
}

#[test]
fn a_thread_has_its_name_and_its_handle_names_it() {
    both_kinds(|node, _, n| {
        on(node, n - 1, || {
            let builder = thread::Builder::new().name("writer".into());
            let named = builder.spawn(|| (thread::current().id(), thread::current())).unwrap();
            let from_outside = named.thread().clone();
            let (id, itself) = named.join().unwrap();
            assert_eq!(from_outside.id(), id);
            assert_eq!(itself.name(), Some("writer"));
            assert!(thread::spawn(|| thread::current().name().is_none()).join().unwrap());
        });
    });
}

#[test]
fn a_panic_comes_out_of_the_join_and_a_stack_that_is_too_large_is_refused() {
    both_kinds(|node, _, n| {
        on(node, n - 1, || {
            let panic = thread::spawn(|| std::panic::resume_unwind(Box::new(7_u32))).join();
            assert_eq!(panic.unwrap_err().downcast_ref(), Some(&7_u32));
            let large = thread::Builder::new().stack_size(1 << 40).spawn(|| ());
            assert_eq!(large.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
            let small = thread::Builder::new().stack_size(1).spawn(|| 1).unwrap();
            assert_eq!(small.join().unwrap(), 1);
        });
    });
}

#[test]
fn a_cancelled_thread_that_parks_in_a_loop_lets_others_run() {
    both_kinds(|node, _, n| {
        let (go, begun) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (ends, begins) = (go.clone(), begun.clone());
        let parks = start(node, n - 1, move || {
            begins.store(true, SeqCst);
            while !ends.load(SeqCst) {
                thread::park();
            }
        });
        eventually("it has begun", || begun.load(SeqCst));
        parks.cancel();
        start(node, n - 1, move || go.store(true, SeqCst)).join().unwrap();
        parks.join().unwrap();
    });
}
