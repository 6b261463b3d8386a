//! Models of the ownership word: a place has one owner, in every order of waking, looking and
//! passing the gate.
//!
//! Bounds: one thread that blocks and wakes, once or twice, and one or two revokers (the watcher
//! and the watchdog). The perf ring is one number: if it is even, the thread runs; if it is odd,
//! the thread is blocked. Within these bounds the models are exhaustive.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use ::loom::sync::atomic::{AtomicU32, AtomicU64};

use super::*;

struct World {
    word: Word,
    /// What the kernel has recorded about the thread.
    ring: AtomicU64,
    /// The number of owners of the place that run: the thread, or the revoker that took the place.
    owners: AtomicU32,
}

impl World {
    fn new() -> Arc<World> {
        let world = Arc::new(World {
            word: Word::new(),
            ring: AtomicU64::new(0),
            owners: AtomicU32::new(1),
        });
        world.word.leave();
        world
    }

    /// Blocks, wakes and passes the gate. Returns whether the thread continues as the owner.
    fn block(&self, gate: bool) -> bool {
        self.owners.fetch_sub(1, AcqRel);
        self.ring.fetch_add(1, Release);
        // The kernel may wake the thread at any time.
        self.ring.fetch_add(1, Release);
        let mine = !gate || self.word.pass();
        if mine {
            self.run();
        }
        mine
    }

    /// Looks once at the thread, and returns whether it took the place.
    fn look(&self) -> bool {
        let seen = self.word.seen();
        if !seen.is_revocable() || self.ring.load(Acquire) % 2 == 0 {
            return false;
        }
        let taken = self.word.revoke(seen);
        if taken {
            self.run();
        }
        taken
    }

    fn run(&self) {
        assert_eq!(self.owners.fetch_add(1, AcqRel), 0, "the place has two owners");
    }
}

#[test]
fn loom_a_blocked_thread_and_its_revoker_never_both_own_the_place_r1_r2() {
    ::loom::model(|| {
        let world = World::new();
        let thread = world.clone();
        let thread = ::loom::thread::spawn(move || thread.block(true) && thread.block(true));
        let taken = world.look();
        let went_on = thread.join().unwrap();
        assert_eq!(taken, !went_on, "the place has one owner in the end");
    });
}

#[test]
fn loom_of_watcher_and_watchdog_one_takes_the_place_r12() {
    ::loom::model(|| {
        let world = World::new();
        let (thread, dog) = (world.clone(), world.clone());
        let thread = ::loom::thread::spawn(move || thread.block(true));
        let dog = ::loom::thread::spawn(move || dog.look());
        let taken = world.look();
        let barked = dog.join().unwrap();
        assert!(!(taken && barked));
        assert_eq!(thread.join().unwrap(), !(taken || barked));
    });
}

/// The positive control: without the gate the same model finds two owners.
#[test]
#[should_panic(expected = "the place has two owners")]
fn loom_without_the_gate_the_model_finds_two_owners() {
    ::loom::model(|| {
        let world = World::new();
        let thread = world.clone();
        let thread = ::loom::thread::spawn(move || thread.block(false));
        world.look();
        thread.join().unwrap();
    });
}
