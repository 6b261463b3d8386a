//! Tests of waits, tickets and the waiters of threads.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::os::clock::NEVER;
use crate::record::reason::WaitReason;

#[test]
fn a_wait_ends_once_and_a_stale_ticket_is_harmless_u53() {
    let me = thread_waiter();
    let first = me.begin(What::new(WaitReason::OTHER));
    assert!(first.is_waiting());
    first.claim(Outcome::Granted).unwrap().set_event();
    assert!(first.claim(Outcome::TimedOut).is_none());
    assert_eq!(first.park_thread(crate::os::clock::NEVER), Outcome::Granted);
    let second = me.begin(What::new(WaitReason::OTHER));
    assert!(first.claim(Outcome::Granted).is_none());
    assert_eq!(second.park_thread(crate::os::clock::now() + 1_000_000), Outcome::TimedOut);
}

#[test]
fn claim_races_with_the_deadline_and_one_side_wins_b23() {
    let wins = AtomicUsize::new(0);
    for round in 0..2_000u64 {
        let me = thread_waiter();
        let ticket = me.begin(What::new(WaitReason::OTHER));
        let (wins, deadline) = (&wins, crate::os::clock::now() + round % 7 * 10_000);
        std::thread::scope(|s| {
            s.spawn(move || {
                if let Some(c) = ticket.claim(Outcome::Granted) {
                    wins.fetch_add(1, Ordering::Relaxed);
                    c.set_event();
                }
            });
            if ticket.park_thread(deadline) == Outcome::TimedOut {
                wins.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    assert_eq!(wins.into_inner(), 2_000);
}

#[test]
fn the_waiter_that_a_thread_takes_in_its_last_destructor_is_given_back() {
    struct Last(std::sync::mpsc::Sender<usize>);
    impl Drop for Last {
        fn drop(&mut self) {
            let waiter: *const Waiter = thread_waiter();
            self.0.send(waiter.addr()).unwrap();
        }
    }
    thread_local! {
        static LAST: Cell<Option<Last>> = const { Cell::new(None) };
    }
    let (tell, told) = std::sync::mpsc::channel();
    for _ in 0..200 {
        let last = Last(tell.clone());
        let thread = std::thread::spawn(move || {
            LAST.set(Some(last));
            thread_waiter();
        });
        thread.join().unwrap();
    }
    drop(tell);
    // Tests that run at the same time take some of these waiters.
    let used: std::collections::HashSet<_> = told.iter().collect();
    assert!(used.len() < 150, "{} waiters for 200 threads, one after the other", used.len());
}

#[test]
fn cancelling_ends_a_cancellable_wait_only_b59() {
    let me = thread_waiter();
    let uncancellable = me.begin(What::new(WaitReason::OTHER).uncancellable());
    assert!(me.cancel().is_none());
    assert!(!uncancellable.sees_cancel());
    assert!(uncancellable.abandon());
    let cancellable = me.begin(What::new(WaitReason::OTHER));
    assert!(cancellable.sees_cancel());
    me.cancel().unwrap().set_event();
    assert_eq!(cancellable.park_thread(crate::os::clock::NEVER), Outcome::Cancelled);
    me.cancelled.store(false, Ordering::Relaxed);
}

#[test]
fn a_waiter_has_the_bounds_that_it_was_given_until_it_gets_others() {
    let me = thread_waiter();
    let before = me.bounds();
    let hour = crate::os::clock::now() + 3_600_000_000_000;
    for (shielded, limit) in [(false, hour), (true, NEVER), (true, hour), (false, NEVER)] {
        let bounds = Bounds { shielded, limit, blocks_on: false };
        me.set_bounds(bounds);
        assert_eq!((me.bounds(), me.is_shielded(), me.limit()), (bounds, shielded, limit));
        assert_eq!(me.time_left_ns().is_some(), limit == hour);
        assert!(!me.is_past_limit());
    }
    me.set_bounds(before);
}

/// A resource that no waiter holds.
struct Unowned;

impl Owned for Unowned {
    fn owners(&self, _waiter: Ticket, _tell: &mut dyn FnMut(Owner)) {}
}

#[test]
fn a_wait_can_be_asked_only_if_it_is_for_something_with_owners_and_has_not_ended() {
    let me = thread_waiter();
    let unowned = me.begin(What::new(WaitReason::EVENT));
    assert!(me.askable_wait().is_none(), "an event has no owner");
    assert!(unowned.abandon());
    me.in_wait_for(&Unowned, AsVictim::Never, || {
        assert!(me.askable_wait().is_none(), "the wait has not begun");
        let owned = me.begin(What::new(WaitReason::MUTEX));
        assert!(me.askable_wait().is_some_and(|asked| asked == owned));
        assert!(owned.abandon());
        assert!(me.askable_wait().is_none(), "the wait has ended");
    });
}

#[test]
fn two_waits_of_one_waiter_have_different_numbers() {
    let numbers = [(); 2].map(|()| {
        let ticket = thread_waiter().begin(What::new(WaitReason::MUTEX));
        assert!(ticket.abandon());
        ticket.number()
    });
    assert_ne!(numbers[0], numbers[1]);
}

#[test]
fn what_a_waiter_borrows_stays_as_long_as_it_is_asked() {
    let asked = &thread_waiter().record.view.asked;
    std::thread::scope(|scope| {
        thread_waiter().in_wait_for(&Unowned, AsVictim::Never, || {
            // As a looker does that has found the wait not ended.
            asked.store(true, Ordering::SeqCst);
            scope.spawn(|| {
                // The waiter would return meanwhile, if it did not wait for the looker.
                std::thread::sleep(Duration::from_millis(50));
                asked.store(false, Ordering::SeqCst);
            });
        });
        assert!(!asked.load(Ordering::SeqCst), "it returned while it was asked");
    });
}

/// A waiter keeps the memory for values, once it has some, for its later requests.
#[test]
fn a_waiter_that_never_had_a_value_keeps_no_memory_for_values() {
    let value = Values::default().with(1, Arc::new(1));
    thread_waiter().within(value, || assert!(are_used()));
    let mut taken = vec![Waiter::take(None, 0)];
    // A waiter may have been used before.
    while taken.last().is_some_and(|last| last.scoped.load().is_some()) {
        taken.push(Waiter::take(None, 0));
    }
    let new = taken[taken.len() - 1];
    seeing_none(|| new, || assert!(new.values().is_empty()));
    assert!(new.scoped.load().is_none());
    taken.into_iter().for_each(Waiter::give_back);
}
