//! Models of lending: a worker is continued by one at a time, saved, and is chosen in the end, whatever the order.
//!
//! Bounds: a worker that comes home twice, is chosen each time and comes in again when it was lent, and one who lends, twice at most. What
//! continues the worker is the thread that won it: who lends plays its own kernel thread. Exhaustive.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use ::loom::sync::atomic::{AtomicBool, AtomicU32};

use super::*;

/// What is left out, for the positive controls.
#[derive(Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    /// L2.
    Look,
    /// In C1: who chooses takes whatever the door has brought.
    Choice,
}

struct World {
    word: Lending,
    saved: AtomicBool,
    runs: AtomicU32,
}

impl World {
    fn goes_on(&self) {
        assert_eq!(self.runs.fetch_add(1, AcqRel), 0, "it runs at two places");
        assert!(self.saved.swap(false, AcqRel), "it was not saved");
    }

    fn is_saved(&self) {
        self.runs.fetch_sub(1, AcqRel);
        self.saved.store(true, Release);
    }

    fn lend(&self, without: Without) {
        let look = || without == Without::Look || self.saved.load(Acquire);
        if !self.word.lend(look) {
            return;
        }
        self.goes_on();
        assert!(self.word.is_lent());
        self.word.come_back();
        self.is_saved();
        self.word.back.set();
    }

    /// It comes home, and is chosen.
    fn choose(&self, without: Without) {
        self.word.come_home();
        self.is_saved();
        // The door is told; this is who finds it there.
        if without != Without::Choice {
            self.word.choose();
        }
        self.goes_on();
        assert!(!self.word.is_lent());
    }
}

fn explore(without: Without) {
    ::loom::model(move || {
        let world = Arc::new(World {
            word: Lending::new(),
            saved: AtomicBool::new(false),
            runs: AtomicU32::new(1),
        });
        let lender = world.clone();
        let lender = ::loom::thread::spawn(move || {
            lender.lend(without);
            lender.lend(without);
        });
        world.choose(without);
        if without != Without::Choice {
            world.choose(without);
        }
        lender.join().unwrap();
    });
}

#[test]
fn loom_a_worker_that_may_be_lent_is_continued_by_one_and_chosen_in_the_end() {
    explore(Without::Nothing);
}

#[test]
#[should_panic(expected = "it ")]
fn loom_without_the_look_the_model_finds_it() {
    explore(Without::Look);
}

#[test]
#[should_panic(expected = "it ")]
fn loom_without_the_choice_the_model_finds_it() {
    explore(Without::Choice);
}
