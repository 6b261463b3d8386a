//! Models of the inbox: no scheduler sleeps while something is pushed (rule 4 of ARCHITECTURE.md),
//! and nothing is lost or arrives twice (G6).
//!
//! Bounds: one scheduler, and one or two threads that push. A thread is preempted at most twice at
//! a point where it could continue; runs with more preemptions are not tried.

use super::*;
use crate::os::driver::Waker;

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(body);
}

/// Makes an inbox, and its scheduler's waker.
fn inbox() -> (&'static Inbox, Waker) {
    let waker = Waker::new().expect("a descriptor");
    (Inbox::take(waker.clone()), waker)
}

fn sleep_until_something_came(inbox: &Inbox, waker: &Waker) {
    while inbox.is_empty() {
        inbox.announce_sleep();
        if inbox.is_empty() {
            // This hangs if the scheduler did not see a push and the pusher did not wake it.
            waker.heard.wait();
        }
        inbox.awake();
    }
}

#[test]
fn loom_of_several_pushes_at_once_each_arrives_once_g6() {
    model(|| {
        let (inbox, _) = inbox();
        let pushers = [1, 2].map(|worker| {
            let waiter = Waiter::take(Some(inbox), worker);
            ::loom::thread::spawn(move || inbox.push(waiter))
        });
        let mut came = Vec::new();
        inbox.take_all(|waiter| came.push(waiter.worker.load(Ordering::Relaxed)));
        pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
        inbox.take_all(|waiter| came.push(waiter.worker.load(Ordering::Relaxed)));
        came.sort_unstable();
        assert_eq!(came, [1, 2]);
        assert!(inbox.is_empty());
    });
}

#[test]
fn loom_a_worker_is_taken_alone_only_if_no_other_has_arrived_and_none_is_lost_g6() {
    model(|| {
        let (inbox, _) = inbox();
        let [host, other] = [1, 2].map(|worker| Waiter::take(Some(inbox), worker));
        let pusher = ::loom::thread::spawn(move || inbox.push(other));
        inbox.push(host);
        let alone = inbox.has_only(host) && inbox.take_only(host);
        pusher.join().unwrap();
        let mut came = Vec::new();
        inbox.take_all(|waiter| came.push(waiter.worker.load(Ordering::Relaxed)));
        came.sort_unstable();
        assert_eq!(came, if alone { vec![2] } else { vec![1, 2] });
    });
}

#[test]
fn loom_no_scheduler_sleeps_on_a_push_and_sees_what_was_done_before_it_rule_4() {
    model(|| {
        let (inbox, waker) = inbox();
        let waiter = Waiter::take(Some(inbox), 1);
        let given = std::sync::Arc::new(::loom::cell::Cell::new(0));
        let gift = given.clone();
        let pusher = ::loom::thread::spawn(move || {
            gift.set(7);
            inbox.push(waiter);
        });
        sleep_until_something_came(inbox, &waker);
        inbox.take_all(|waiter| assert_eq!(waiter.worker.load(Ordering::Relaxed), 1));
        assert_eq!(given.get(), 7, "what the pusher did before is seen");
        pusher.join().unwrap();
        assert!(inbox.is_empty());
    });
}

#[test]
fn loom_a_worker_that_is_pushed_twice_arrives_twice_g8() {
    model(|| {
        let (inbox, waker) = inbox();
        let waiter = Waiter::take(Some(inbox), 1);
        let other = Waiter::take(Some(inbox), 2);
        let pusher = ::loom::thread::spawn(move || inbox.push(other));
        inbox.push(waiter);
        let mut came = Vec::new();
        while came.len() < 3 {
            sleep_until_something_came(inbox, &waker);
            let again = came.iter().filter(|w| **w == 1).count();
            inbox.take_all(|waiter| came.push(waiter.worker.load(Ordering::Relaxed)));
            if again == 0 && came.contains(&1) {
                // The worker ran, left its scheduler, and rejoins.
                inbox.push(waiter);
            }
        }
        came.sort_unstable();
        assert_eq!(came, [1, 1, 2]);
        pusher.join().unwrap();
    });
}
