//! Models of the two masks: no request is left waiting beside a sleeping scheduler (B5).
//!
//! Bounds: one busy scheduler that queues one request, or carries out one itself and then queues
//! another one, and one or two schedulers that go to sleep.
//! One of these may be woken for a worker of its own at the same time. Each run has at most two
//! preemptions, where a thread is stopped although it could continue.

use std::sync::Arc;

use std::sync::atomic::Ordering;

use super::*;
use crate::os::atomic::AtomicUsize;
use crate::os::driver::Waker;
use crate::wait::Inbox;
use crate::wait::Waiter;

/// A node without workers: the masks, an inbox for each scheduler, and one work queue.
struct World {
    mask: IdleMask,
    work: WorkMask,
    schedulers: Vec<(&'static Inbox, Waker)>,
    /// Requests that wait in the work queue of scheduler 0.
    queued: AtomicUsize,
    /// Requests that were taken from there.
    taken: AtomicUsize,
}

impl World {
    fn new(count: usize) -> Arc<World> {
        let scheduler = |_| {
            let waker = Waker::new().expect("a descriptor");
            (Inbox::take(waker.clone()), waker)
        };
        Arc::new(World {
            mask: IdleMask::new(count),
            work: WorkMask::new(count),
            schedulers: (0..count).map(scheduler).collect(),
            queued: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
        })
    }

    /// E1 to E4, by scheduler 0, as in `Scheduler::enqueue`. The fence of E2 is in `Inbox::wake`.
    fn enqueue(&self) {
        self.queued.store(1, Ordering::Relaxed);
        if !self.schedulers[0].0.wake() {
            self.work.post(0);
            self.wake(self.mask.take_other_after_wake(0));
        }
    }

    fn wake(&self, idle: Option<usize>) {
        if let Some(peer) = idle {
            self.schedulers[peer].0.wake();
        }
    }

    /// Takes the request. If it was there, also wakes the sleeping schedulers, so that they can
    /// end.
    fn take(&self) -> bool {
        let took = self.is_queued()
            && self.queued.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if took {
            self.taken.store(1, Ordering::Relaxed);
            self.schedulers.iter().for_each(|(_, waker)| waker.heard.notify());
        }
        took
    }

    /// Returns whether the request is in the queue, if the queue is posted.
    fn is_queued(&self) -> bool {
        let is_empty = || self.queued.load(Ordering::Relaxed) == 0;
        self.work.find(0, |at| self.work.has(at, is_empty)).is_some()
    }

    /// Does what the idle loop and the turn after it do: announces, looks, sleeps. Returns when
    /// this scheduler or another has taken the request, or when a worker has come through this
    /// scheduler's inbox; the scheduler then runs that worker until the model ends.
    fn idle(&self, me: usize) {
        let (inbox, waker) = &self.schedulers[me];
        let mut owes = false;
        loop {
            self.mask.announce(me);
            inbox.announce_sleep();
            if inbox.is_empty() && self.mask.is_set(me) {
                if self.take() || self.taken.load(Ordering::Relaxed) == 1 {
                    return;
                }
                owes = false;
                // The model hangs here if neither side has seen the other.
                waker.heard.wait();
            }
            inbox.awake();
            owes |= self.mask.withdraw(me);
            if !inbox.is_empty() {
                // This scheduler runs its own worker next, so it notifies a peer.
                if owes && self.is_queued() {
                    self.wake(self.mask.take_other(me));
                }
                return inbox.take_all(|_| {});
            }
        }
    }
}

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(body);
}

#[test]
fn loom_a_request_beside_a_scheduler_that_goes_to_sleep_is_taken_b5() {
    model(|| {
        let world = World::new(2);
        let theirs = world.clone();
        let sleeper = ::loom::thread::spawn(move || theirs.idle(1));
        world.enqueue();
        sleeper.join().unwrap();
    });
}

/// The queue is still posted for a request that is gone. The scheduler that goes to sleep takes it
/// off the work mask.
#[test]
fn loom_a_request_that_comes_while_its_queue_is_taken_off_the_mask_is_taken_b5() {
    model(|| {
        let world = World::new(2);
        world.work.post(0);
        let theirs = world.clone();
        let sleeper = ::loom::thread::spawn(move || theirs.idle(1));
        world.enqueue();
        sleeper.join().unwrap();
    });
}

/// One of the two takes the queue off the mask for a moment, in which the other may look.
#[test]
fn loom_one_of_two_schedulers_that_go_to_sleep_takes_the_request_b5() {
    model(|| {
        let world = World::new(3);
        world.work.post(0);
        let idlers = [1, 2].map(|me| {
            let theirs = world.clone();
            ::loom::thread::spawn(move || theirs.idle(me))
        });
        world.enqueue();
        idlers.into_iter().for_each(|idler| idler.join().unwrap());
        assert_eq!(world.taken.load(Ordering::Relaxed), 1);
    });
}

/// The bit may be taken while the inbox still says that the scheduler is awake. If the request does
/// not stay for it, it must not sleep without its bit.
#[test]
fn loom_a_scheduler_whose_bit_was_taken_before_its_sleep_is_woken_for_the_next_request_b5() {
    model(|| {
        let world = World::new(2);
        let theirs = world.clone();
        // The sleeper is the first thread, so that it announces itself without a preemption: the
        // two that are allowed are needed later.
        let busy = ::loom::thread::spawn(move || {
            theirs.enqueue();
            let first = &theirs.queued;
            if first.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                // The busy scheduler has carried it out itself.
                theirs.enqueue();
            }
        });
        world.idle(1);
        busy.join().unwrap();
    });
}

#[test]
fn loom_a_wake_up_that_meets_a_scheduler_with_a_worker_of_its_own_is_passed_on_b5() {
    model(|| {
        let world = World::new(3);
        let idlers = [1, 2].map(|me| {
            let theirs = world.clone();
            ::loom::thread::spawn(move || theirs.idle(me))
        });
        let inbox = world.schedulers[1].0;
        inbox.push(Waiter::take(Some(inbox), 1));
        world.enqueue();
        idlers.into_iter().for_each(|idler| idler.join().unwrap());
        assert_eq!(world.taken.load(Ordering::Relaxed), 1);
    });
}
