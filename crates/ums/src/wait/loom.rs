//! Models of a wait: a wait has one outcome, no cancellation is lost, and no set of the event
//! remains for the next wait.
//!
//! Bounds: one waiter and two threads that try to end its wait, or one such thread and the
//! deadline. Exhaustive.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::*;
use crate::os::atomic;
use crate::record::reason::WaitReason;

/// Takes the waiter of a plain thread, for one run of a model.
fn waiter() -> &'static Waiter {
    Waiter::take(None, 0)
}

/// Ends the wait with this outcome. Returns false if the wait has ended already.
fn end(ticket: Ticket, outcome: Outcome) -> bool {
    ticket.claim(outcome).map(Claimed::set_event).is_some()
}

#[test]
fn loom_a_wait_ends_once_and_the_waiter_sees_how() {
    ::loom::model(|| {
        let me = waiter();
        let ticket = me.begin(What::new(WaitReason::OTHER).uncancellable());
        let ends = [Outcome::Granted, Outcome::Deadlock]
            .map(|outcome| ::loom::thread::spawn(move || end(ticket, outcome)));
        let seen = ticket.park_thread(crate::os::clock::NEVER);
        let ended = ends.map(|thread| thread.join().unwrap());
        assert_eq!(ended, [seen == Outcome::Granted, seen == Outcome::Deadlock]);
        assert!(!me.event.wait_until(0), "no set is left over for the next wait");
    });
}

#[test]
fn loom_a_deadline_against_a_grant_leaves_no_set_over() {
    ::loom::model(|| {
        let me = waiter();
        let ticket = me.begin(What::new(WaitReason::OTHER).uncancellable());
        let granter = ::loom::thread::spawn(move || end(ticket, Outcome::Granted));
        let seen = ticket.park_thread(0);
        assert_eq!(granter.join().unwrap(), seen == Outcome::Granted);
        assert!(!me.event.wait_until(0), "no set is left over for the next wait");
        // A late claim of the old ticket does not touch the next wait.
        let next = me.begin(What::new(WaitReason::OTHER).uncancellable());
        assert!(!end(ticket, Outcome::Granted) && next.is_waiting());
        assert!(next.abandon());
    });
}

#[test]
fn loom_a_cancellation_is_seen_by_the_canceller_or_by_the_waiter_b59() {
    ::loom::model(|| {
        let me = waiter();
        let canceller = ::loom::thread::spawn(move || {
            let claimed = me.cancel();
            let ended = claimed.is_some();
            claimed.into_iter().for_each(Claimed::set_event);
            ended
        });
        let ticket = me.begin(What::new(WaitReason::OTHER));
        // `Scheduler::park` does the same before it sleeps.
        let mine = ticket.sees_cancel().then(|| ticket.claim(Outcome::Cancelled)).flatten();
        let outcome = match mine {
            Some(mine) => {
                mine.kept();
                ticket.take_outcome().unwrap()
            }
            // This call hangs if neither thread has seen the other.
            None => ticket.park_thread(crate::os::clock::NEVER),
        };
        assert_eq!(outcome, Outcome::Cancelled);
        canceller.join().unwrap();
    });
}

#[test]
fn loom_what_the_granter_wrote_is_seen_by_the_waiter() {
    ::loom::model(|| {
        let me = waiter();
        let ticket = me.begin(What::new(WaitReason::OTHER).uncancellable());
        let given = Arc::new(::loom::cell::Cell::new(0));
        let gift = given.clone();
        let granter = ::loom::thread::spawn(move || {
            gift.set(7);
            end(ticket, Outcome::Granted)
        });
        assert_eq!(ticket.park_thread(crate::os::clock::NEVER), Outcome::Granted);
        assert_eq!(given.get(), 7);
        assert!(granter.join().unwrap());
    });
}

/// What the waiter borrows. It contains false once it counts as dropped.
struct Borrowed(atomic::AtomicBool);

impl Owned for Borrowed {
    fn owners(&self, _waiter: Ticket, tell: &mut dyn FnMut(Owner)) {
        assert!(self.0.load(Ordering::Relaxed), "it was asked after it was gone");
        tell(Owner::User(1));
    }

    fn joined(&self) -> Option<Joined> {
        assert!(self.0.load(Ordering::Relaxed), "it was asked after it was gone");
        None
    }
}

#[test]
fn loom_what_a_waiter_borrows_stays_while_it_is_asked() {
    ::loom::model(|| {
        let me = waiter();
        let resource = Arc::new(Borrowed(atomic::AtomicBool::new(true)));
        let (granter, looker) = me.in_wait_for(&*resource, AsVictim::Never, || {
            let ticket = me.begin(What::new(WaitReason::OTHER).uncancellable());
            let granter = ::loom::thread::spawn(move || end(ticket, Outcome::Granted));
            let looker = ::loom::thread::spawn(move || ticket.owners());
            ticket.park_thread(crate::os::clock::NEVER);
            (granter, looker)
        });
        // The memory itself stays allocated, so that a looker that asks too late fails the
        // assertion above.
        resource.0.store(false, Ordering::Relaxed);
        assert!(granter.join().unwrap());
        let _ = looker.join().unwrap();
    });
}

#[test]
fn loom_what_a_waiter_borrows_stays_while_two_ask() {
    ::loom::model(|| {
        let me = waiter();
        let resource = Arc::new(Borrowed(atomic::AtomicBool::new(true)));
        let lookers = me.in_wait_for(&*resource, AsVictim::Never, || {
            let ticket = me.begin(What::new(WaitReason::OTHER).uncancellable());
            let lookers = [(); 2].map(|()| ::loom::thread::spawn(move || _ = ticket.joined()));
            assert!(end(ticket, Outcome::Granted));
            ticket.park_thread(crate::os::clock::NEVER);
            lookers
        });
        resource.0.store(false, Ordering::Relaxed);
        lookers.into_iter().for_each(|looker| looker.join().unwrap());
    });
}

#[test]
fn loom_a_panic_in_an_unended_wait_leaves_no_question() {
    ::loom::model(|| {
        let me = waiter();
        let resource = Borrowed(atomic::AtomicBool::new(true));
        let looker = std::cell::Cell::new(None);
        let waits = || {
            let ticket = me.begin(What::new(WaitReason::OTHER).uncancellable());
            looker.set(Some((ticket, ::loom::thread::spawn(move || ticket.owners()))));
            std::panic::resume_unwind(Box::new(()));
        };
        let asked = || me.in_wait_for(&resource, AsVictim::Never, waits);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(asked));
        assert!(ended.is_err());
        resource.0.store(false, Ordering::Relaxed);
        let (ticket, looker) = looker.take().unwrap();
        let _ = looker.join().unwrap();
        assert!(ticket.abandon());
    });
}
