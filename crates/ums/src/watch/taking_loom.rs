//! Models of taking a scheduler from a carrier: in every order of waking, looking and taking, one
//! kernel thread carries the scheduler.
//!
//! Bounds: one carrier that blocks and wakes once and then runs two instructions, and one taker.
//! Three words model the kernel: how often the carrier has been put to sleep and woken (odd: it is
//! blocked), whether the signal is pending, and whether a worker is in user code. In the kernel,
//! locks order these words; in the model, fences do. Within these bounds the models are exhaustive.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release, SeqCst};

use ::loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};

use super::*;

/// The step that a positive control leaves out, so that the model must fail.
#[derive(Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    /// The handler lets the carrier continue whatever the word says.
    Gate,
    /// T3 of `taking.rs`.
    Look,
}

struct World {
    word: Taking,
    sleeps: AtomicU64,
    pending: AtomicBool,
    in_user: AtomicBool,
    carriers: AtomicU32,
}

impl World {
    fn new() -> Arc<World> {
        Arc::new(World {
            word: Taking::new(),
            // The carrier is blocked.
            sleeps: AtomicU64::new(1),
            pending: AtomicBool::new(false),
            in_user: AtomicBool::new(true),
            carriers: AtomicU32::new(0),
        })
    }

    /// On the way back to user code, handles the pending signal first. Returns whether the carrier
    /// may continue.
    fn may_continue(&self, without: Without) -> bool {
        fence(SeqCst);
        if !self.pending.swap(false, AcqRel) {
            return true;
        }
        let taken = self.word.arrive();
        !taken || without == Without::Gate
    }

    /// The carrier wakes, and runs. Returns whether it still carries the scheduler.
    fn wake(&self, without: Without) -> bool {
        self.sleeps.fetch_add(1, AcqRel);
        if !self.may_continue(without) {
            return false;
        }
        self.run();
        // A switch: the code that runs next is not user code.
        self.in_user.store(false, Release);
        self.may_continue(without)
    }

    /// Looks once, and returns whether it took the scheduler.
    fn take(&self, without: Without) -> bool {
        let before = self.sleeps.load(Acquire);
        if before % 2 == 0 {
            return false;
        }
        let Some(asked) = self.word.ask() else { return false };
        self.pending.store(true, Release);
        fence(SeqCst);
        let gate = self.pending.load(Acquire);
        let still = without == Without::Look || self.sleeps.load(Acquire) == before;
        if !gate || !still || !self.in_user.load(Acquire) {
            self.word.give_up(asked);
            return false;
        }
        let taken = self.word.take(asked);
        if taken {
            self.run();
        }
        taken
    }

    fn run(&self) {
        assert_eq!(self.carriers.fetch_add(1, AcqRel), 0, "two carry one scheduler");
    }
}

fn explore(without: Without) {
    ::loom::model(move || {
        let world = World::new();
        let carrier = world.clone();
        let carrier = ::loom::thread::spawn(move || carrier.wake(without));
        let taken = world.take(without);
        assert_eq!(carrier.join().unwrap(), !taken, "one thread carries the scheduler in the end");
    });
}

#[test]
fn loom_a_blocked_carrier_and_its_taker_never_both_carry() {
    explore(Without::Nothing);
}

#[test]
#[should_panic(expected = "two carry one scheduler")]
fn loom_without_the_gate_the_model_finds_two() {
    explore(Without::Gate);
}

#[test]
#[should_panic(expected = "two carry one scheduler")]
fn loom_without_the_look_the_model_finds_two() {
    explore(Without::Look);
}
