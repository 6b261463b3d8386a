//! Models of the own lane: each request is taken once, and a thread that is about to sleep sees a
//! request that was queued before.
//!
//! Bounds: one thread that queues two requests, and one or two others. Each run has at most three
//! preemptions, or four where that is needed.

use std::sync::Arc;

use super::ring::Ring;
use super::*;
use crate::os::atomic::{AtomicBool, AtomicUsize, fence};
use crate::scheduler::request::make;

fn model(body: impl Fn() + Sync + Send + 'static) {
    model_within(3, body);
}

fn model_within(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

/// A lane, and how often its requests were taken.
struct World {
    lane: Ring,
    taken: AtomicUsize,
}

impl World {
    fn new() -> Arc<World> {
        let world = World { lane: Ring::new(), taken: AtomicUsize::new(0) };
        world.lane.open();
        Arc::new(world)
    }

    fn count(&self, request: Option<WorkRequest>) {
        if let Some(request) = request {
            self.taken.fetch_add(1, Ordering::Relaxed);
            drop(request.abandon());
        }
    }
}

#[test]
fn loom_of_owner_thief_and_canceller_each_request_is_taken_once() {
    model(|| {
        let world = World::new();
        let (first, known) = make(RequestState::new(1, false), || ());
        assert!(world.lane.push(first, 1).is_ok());
        let [thief, canceller] = [world.clone(), world.clone()];
        let thief = ::loom::thread::spawn(move || {
            thief.count(thief.lane.take_for_another(|| ()));
        });
        let canceller = ::loom::thread::spawn(move || {
            canceller.count(canceller.lane.take_this(known.state()));
        });
        let second = make(RequestState::new(2, false), || ()).0;
        assert!(world.lane.push(second, 1).is_ok(), "the second place is free");
        world.count(world.lane.take());
        thief.join().unwrap();
        canceller.join().unwrap();
        std::iter::from_fn(|| world.lane.take()).for_each(|request| world.count(Some(request)));
        assert_eq!((world.taken.load(Ordering::Relaxed), world.lane.len()), (2, 0));
    });
}

#[test]
fn loom_of_a_request_and_a_sleeper_one_sees_the_other() {
    model(|| {
        let world = World::new();
        let idle = Arc::new(AtomicBool::new(false));
        let (sleeper, announced) = (world.clone(), idle.clone());
        // S1 to S3 of scheduler/peers. Before it, the sleeper takes a request.
        let sleeper = ::loom::thread::spawn(move || {
            sleeper.count(sleeper.lane.take_for_another(|| ()));
            announced.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            sleeper.lane.len() == 0
        });
        // E1 to E3, twice.
        let mut seen = false;
        for user in 1..=2 {
            assert!(world.lane.push(make(RequestState::new(user, false), || ()).0, 1).is_ok());
            fence(Ordering::SeqCst);
            seen |= idle.load(Ordering::Relaxed);
        }
        let sleeps = sleeper.join().unwrap();
        let waits = world.taken.load(Ordering::Relaxed) < 2;
        assert!(!sleeps || seen || !waits, "a request waits beside a sleeper");
        std::iter::from_fn(|| world.lane.take()).for_each(|request| world.count(Some(request)));
    });
}

#[test]
fn loom_of_a_promotion_the_queue_is_never_empty_meanwhile() {
    model(|| {
        let queue = Arc::new(WorkQueue::new(10));
        let (new, known) = make(RequestState::new(1, false), || ());
        assert!(queue.push_own(new, Caller::Request, 1).is_ok());
        let promoter = queue.clone();
        let promoter = ::loom::thread::spawn(move || promoter.promote(known.state()));
        assert!(queue.len() > 0, "a sleeper would miss the request");
        assert!(promoter.join().unwrap());
        assert_eq!((queue.len(), queue.urgent()), (1, 1));
        queue.take(true).into_iter().for_each(|request| drop(request.abandon()));
    });
}

#[test]
fn loom_of_a_promotion_of_all_the_queue_is_never_empty_meanwhile() {
    model_within(4, || {
        let queue = Arc::new(WorkQueue::new(10));
        let push = |user| {
            let new = make(RequestState::new(user, false), || ()).0;
            assert!(queue.push_own(new, Caller::Request, 1).is_ok());
        };
        push(1);
        let promoter = queue.clone();
        let promoter = ::loom::thread::spawn(move || promoter.promote_all());
        queue.take(false).into_iter().for_each(|request| drop(request.abandon()));
        push(2);
        assert!(queue.len() > 0, "a sleeper would miss the request");
        assert!(!promoter.join().unwrap(), "no request is urgent");
        std::iter::from_fn(|| queue.take(false)).for_each(|request| drop(request.abandon()));
        assert_eq!(queue.len(), 0);
    });
}

#[test]
fn loom_of_a_move_to_the_stale_lane_the_queue_is_never_empty_meanwhile() {
    model(|| {
        let queue = Arc::new(WorkQueue::new(10));
        let push = |user| {
            let (new, known) = make(RequestState::new(user, false), || ());
            assert!(queue.push_own(new, Caller::Request, 1).is_ok());
            known
        };
        let old = push(1);
        // The lane has two slots. The next request takes the second, the one after it the first.
        let young = push(2);
        let sleeper = queue.clone();
        let sleeper = ::loom::thread::spawn(move || sleeper.len() > 0);
        let found = queue.take_own(young.state()).expect("it was just queued");
        drop(found.abandon());
        push(3);
        assert!(sleeper.join().unwrap(), "a sleeper would miss the first request");
        assert!(!old.state().is_done() && queue.take(false).is_some_and(|r| r.state().user == 1));
        std::iter::from_fn(|| queue.take(false)).for_each(|request| drop(request.abandon()));
    });
}
