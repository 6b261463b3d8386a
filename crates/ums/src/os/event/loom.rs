//! Models of the event: thread hand-off without a lost wake-up (U10..U12).
//!
//! Bounds: two threads that hand over twice; one wait with a deadline against one set. Exhaustive.

#![allow(unsafe_code)]

use std::sync::Arc;

use super::*;

#[test]
fn loom_a_hand_off_between_two_threads_loses_no_set() {
    ::loom::model(|| {
        let (here, there) = (Arc::new(ThreadEvent::new()), Arc::new(ThreadEvent::new()));
        let (h, t) = (here.clone(), there.clone());
        let peer = ::loom::thread::spawn(move || {
            for _ in 0..2 {
                t.wait();
                h.set();
            }
        });
        for _ in 0..2 {
            there.set();
            here.wait();
        }
        peer.join().unwrap();
    });
}

#[test]
fn loom_a_set_that_meets_a_deadline_counts_now_or_for_the_next_wait() {
    ::loom::model(|| {
        let event = Arc::new(ThreadEvent::new());
        let setter = event.clone();
        let peer = ::loom::thread::spawn(move || setter.set());
        if !event.wait_until(0) {
            event.wait();
        }
        peer.join().unwrap();
        assert!(!event.wait_until(0), "one set ends one wait");
    });
}

#[test]
fn loom_what_was_written_before_the_set_is_seen_after_the_wait() {
    ::loom::model(|| {
        let event = Arc::new(ThreadEvent::new());
        let word = Arc::new(::loom::cell::Cell::new(0));
        let (e, w) = (event.clone(), word.clone());
        let peer = ::loom::thread::spawn(move || {
            // Loom checks that no other thread accesses the cell at the same time.
            w.set(7);
            e.set();
        });
        event.wait();
        assert_eq!(word.get(), 7);
        peer.join().unwrap();
    });
}
