//! Models of lending: in every order of the steps, only one thread resumes the worker at a time,
//! the worker is saved when it is resumed, and it is chosen in the end.
//!
//! Bounds: a worker that rejoins twice, is chosen each time, and asks for its scheduler after it
//! was lent, with a lender that lends once; and a worker that rejoins once and is lent twice, with
//! at most three preemptions. The thread that obtains the worker also plays the kernel thread that
//! runs it. Within these bounds the models are exhaustive.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use ::loom::sync::atomic::{AtomicBool, AtomicU32};

use super::*;

/// The step that a positive control leaves out, so that the model must fail.
#[derive(Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    /// L2 of `lending.rs`.
    Look,
    /// C1: the chooser resumes every worker that it takes from the inbox, whatever the word says.
    Choice,
}

struct World {
    word: Lending,
    saved: AtomicBool,
    inbox: ThreadEvent,
    runs: AtomicU32,
}

impl World {
    fn runs_here(&self) {
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
        self.runs_here();
        assert!(self.word.is_lent());
        let kept = self.word.ask_for_scheduler();
        self.is_saved();
        match kept {
            true => self.word.back.set(),
            false => self.inbox.set(),
        }
    }

    /// The worker rejoins, is pushed onto the inbox, and is chosen.
    fn choose(&self, without: Without) {
        self.word.rejoin();
        self.is_saved();
        self.inbox.set();
        loop {
            self.inbox.wait();
            if without == Without::Choice || self.word.choose() {
                break;
            }
        }
        self.runs_here();
        assert!(without == Without::Choice || !self.word.is_lent());
    }
}

/// Models a worker that rejoins `times` times and a lender that lends `lends` times.
fn explore(without: Without, times: u32, lends: u32) {
    let mut model = ::loom::model::Builder::new();
    model.preemption_bound = (lends > 1).then_some(3);
    model.check(move || {
        let world = Arc::new(World {
            word: Lending::new(),
            saved: AtomicBool::new(false),
            inbox: ThreadEvent::new(),
            runs: AtomicU32::new(1),
        });
        let lender = world.clone();
        let lender = ::loom::thread::spawn(move || (0..lends).for_each(|_| lender.lend(without)));
        (0..times).for_each(|_| world.choose(without));
        lender.join().unwrap();
    });
}

#[test]
fn loom_a_worker_that_may_be_lent_is_resumed_by_one_thread_and_chosen_each_time() {
    explore(Without::Nothing, 2, 1);
}

#[test]
fn loom_a_worker_that_is_lent_again_is_resumed_by_one_thread_and_chosen_in_the_end() {
    explore(Without::Nothing, 1, 2);
}

#[test]
#[should_panic(expected = "it was not saved")]
fn loom_without_the_look_the_model_finds_the_fault() {
    explore(Without::Look, 1, 1);
}

#[test]
#[should_panic(expected = "it runs at two places")]
fn loom_without_the_choice_the_model_finds_the_fault() {
    explore(Without::Choice, 1, 1);
}
