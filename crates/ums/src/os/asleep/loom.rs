//! Models of a sleeper and its wakers: no sleeper sleeps while something is in a place where it
//! looks, only one waker sets the event, and everything that this waker did before is visible.
//!
//! Bounds: one sleeper (or one of many), and one or two wakers; at most two preemptions of a thread
//! while it could continue. The models of scheduler/inbox and scheduler/peers use the same types.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Asleep, IdleMask, WorkMask};
use crate::os::atomic::{AtomicUsize, fence};

struct World {
    asleep: Asleep,
    event: ::loom::sync::Notify,
    /// The number of things that the wakers have put there.
    things: AtomicUsize,
    /// How often the event was set.
    rings: AtomicUsize,
}

impl World {
    fn put(&self) {
        self.things.fetch_add(1, Ordering::Relaxed);
        if self.asleep.wake() {
            self.rings.fetch_add(1, Ordering::Relaxed);
            self.event.notify();
        }
    }

    /// Sleeps until this many things are there. Returns how often it has announced.
    fn sleep_until(&self, things: usize) -> usize {
        let mut announced = 0;
        while self.things.load(Ordering::Relaxed) < things {
            announced += 1;
            self.asleep.announce();
            if self.things.load(Ordering::Relaxed) < things {
                // It hangs here if a waker and the sleeper miss each other.
                self.event.wait();
            }
            self.asleep.awake();
        }
        announced
    }
}

fn model(body: impl Fn(Arc<World>) + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        body(Arc::new(World {
            asleep: Asleep::new(),
            event: ::loom::sync::Notify::new(),
            things: AtomicUsize::new(0),
            rings: AtomicUsize::new(0),
        }));
    });
}

#[test]
fn loom_no_sleeper_sleeps_beside_what_two_wakers_put_there() {
    model(|world| {
        let wakers = [(); 2].map(|()| {
            let theirs = world.clone();
            ::loom::thread::spawn(move || theirs.put())
        });
        let announced = world.sleep_until(2);
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
        assert!(world.rings.load(Ordering::Relaxed) <= announced, "one ring for each sleep");
    });
}

/// The first waker is stopped between W3 and W4. The sleeper waits only for what the second waker
/// puts there.
fn one_waker_is_stopped(wake: fn(&Asleep) -> bool) {
    model(move |world| {
        let stopped = Arc::new(::loom::sync::Notify::new());
        let (theirs, continues) = (world.clone(), stopped.clone());
        let first = ::loom::thread::spawn(move || {
            let sleeps = wake(&theirs.asleep);
            continues.wait();
            if sleeps {
                theirs.event.notify();
            }
        });
        let theirs = world.clone();
        let second = ::loom::thread::spawn(move || {
            theirs.things.fetch_add(1, Ordering::Relaxed);
            if wake(&theirs.asleep) {
                theirs.event.notify();
            }
        });
        // The model hangs here if the second waker leaves it to the first to set the event.
        world.sleep_until(1);
        stopped.notify();
        first.join().unwrap();
        second.join().unwrap();
    });
}

#[test]
fn loom_a_waker_that_is_stopped_before_it_sets_the_event_delays_no_other() {
    one_waker_is_stopped(Asleep::must_ring);
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_with_the_swap_the_model_finds_the_delay() {
    one_waker_is_stopped(Asleep::wake);
}

#[test]
fn loom_a_sleeper_that_was_woken_sees_what_its_waker_did_before() {
    model(|world| {
        let given = Arc::new(::loom::cell::Cell::new(0));
        let (theirs, gift) = (world.clone(), given.clone());
        let waker = ::loom::thread::spawn(move || {
            gift.set(7);
            theirs.put();
        });
        world.asleep.announce();
        if world.asleep.awake() {
            assert_eq!(given.get(), 7);
        }
        waker.join().unwrap();
    });
}

/// A waker and one of many sleepers, which goes to sleep at the same time.
fn one_of_many(take: fn(&IdleMask) -> Option<usize>) {
    model(move |world| {
        let mask = Arc::new(IdleMask::new(2));
        let (theirs, flags) = (world.clone(), mask.clone());
        let waker = ::loom::thread::spawn(move || {
            theirs.things.fetch_add(1, Ordering::Relaxed);
            if take(&flags) == Some(1) {
                theirs.event.notify();
            }
        });
        mask.announce(1);
        if world.things.load(Ordering::Relaxed) == 0 {
            // It hangs here if neither saw the other.
            world.event.wait();
        }
        mask.withdraw(1);
        waker.join().unwrap();
    });
}

#[test]
fn loom_a_sleeper_of_many_does_not_sleep_beside_what_was_put_there() {
    one_of_many(|mask| mask.take_other(0));
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_without_the_wakers_fence_the_model_finds_a_sleeper() {
    one_of_many(|mask| mask.take_other_after_wake(0));
}

/// A waker, which puts something into a marked place or one without a mark, and one of many
/// sleepers, which looks only if the place is marked.
fn a_place(is_marked: bool, has: fn(&WorkMask, &dyn Fn() -> bool) -> bool) {
    model(move |world| {
        let masks = Arc::new((IdleMask::new(2), WorkMask::new(2)));
        if is_marked {
            masks.1.post(0);
        }
        let (theirs, marks) = (world.clone(), masks.clone());
        let waker = ::loom::thread::spawn(move || {
            theirs.things.fetch_add(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            marks.1.post(0);
            if marks.0.take_other_after_wake(0) == Some(1) {
                theirs.event.notify();
            }
        });
        masks.0.announce(1);
        let is_empty = || world.things.load(Ordering::Relaxed) == 0;
        if masks.1.find(1, |_| has(&masks.1, &is_empty)).is_none() {
            // It hangs here if neither saw the other.
            world.event.wait();
        }
        masks.0.withdraw(1);
        waker.join().unwrap();
        // Whatever the sleeper did, the thing that is there has its mark.
        assert_eq!(masks.1.find(0, |_| true), Some(0));
    });
}

#[test]
fn loom_what_is_put_into_a_place_without_a_mark_is_found() {
    a_place(false, |marks, is_empty| marks.has(0, is_empty));
}

#[test]
fn loom_what_is_put_into_a_place_whose_mark_is_removed_is_found() {
    a_place(true, |marks, is_empty| marks.has(0, is_empty));
}

#[test]
#[should_panic(expected = "Some(0)")]
fn loom_without_the_second_look_the_model_finds_a_place_without_its_mark() {
    // The second look is answered as the first one was.
    a_place(true, |marks, is_empty| {
        let first = is_empty();
        marks.has(0, || first)
    });
}
