//! Models of an entry: the lists are touched by one thread at a time, whatever the order of
//! entering, leaving and taking.
//!
//! Bounds: one worker that enters and leaves twice, then enters once more, and loses its baton at
//! most once; one taker that tries twice. In the model, the barrier on all threads is a fence in
//! each of the two threads. The scheduler's lists are a cell that loom watches. Exhaustive.
//!
//! Invariant **Baton**: loom reports two accesses to the cell at the same time, and these models
//! search for such accesses.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

use ::loom::cell::UnsafeCell;
use ::loom::sync::atomic::{AtomicBool, fence};

use super::*;

/// The step that a model leaves out, to check that the model finds the mistake.
#[derive(Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    /// Leaves out T2.
    Barrier,
    /// Leaves out T3.
    Look,
}

struct World {
    entry: Entry,
    lists: UnsafeCell<u32>,
    /// True when a worker whose baton was taken has arrived in the inbox.
    inbox: AtomicBool,
    /// True when the scheduler has chosen that worker.
    chosen: AtomicBool,
}

// SAFETY: Baton.
unsafe impl Sync for World {}
// SAFETY: Baton.
unsafe impl Send for World {}

impl World {
    fn touch(&self) {
        // SAFETY: Baton.
        self.lists.with_mut(|lists| unsafe { *lists += 1 });
    }

    /// The worker enters, uses the scheduler twice, and leaves.
    fn use_the_scheduler(&self) {
        if !self.entry.enter_at_once() && !self.entry.enter() {
            assert!(self.entry.was_taken());
            self.inbox.store(true, Release);
            while !self.chosen.load(Acquire) {
                ::loom::thread::yield_now();
            }
        }
        self.touch();
        self.touch();
        self.entry.leave();
    }

    /// Tries to take the baton. If it succeeds, the taker uses the scheduler, waits until the
    /// worker has arrived in the inbox, and chooses it. Returns whether it succeeded.
    fn take(&self, without: Without) -> bool {
        let barrier = || {
            if without != Without::Barrier {
                fence(SeqCst)
            }
        };
        let taken = match without {
            Without::Look => {
                let asked = self.entry.word.compare_exchange(HELD, TAKEN, SeqCst, SeqCst);
                asked.is_ok()
            }
            _ => self.entry.take(barrier, || true),
        };
        if taken {
            self.touch();
            while !self.inbox.load(Acquire) {
                ::loom::thread::yield_now();
            }
            self.touch();
            self.chosen.store(true, Release);
        }
        taken
    }
}

fn explore(without: Without) {
    ::loom::model(move || {
        let world = Arc::new(World {
            entry: Entry::new(),
            lists: UnsafeCell::new(0),
            inbox: AtomicBool::new(false),
            chosen: AtomicBool::new(false),
        });
        let worker = world.clone();
        let worker = ::loom::thread::spawn(move || {
            worker.use_the_scheduler();
            worker.use_the_scheduler();
            // The end of the worker's request, after which it stays inside.
            if !worker.entry.enter() {
                assert!(worker.entry.was_taken());
                worker.inbox.store(true, Release);
            }
        });
        let _ = world.take(without) || world.take(without);
        worker.join().unwrap();
    });
}

#[test]
fn loom_a_worker_and_its_taker_never_both_use_the_scheduler() {
    explore(Without::Nothing);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_without_the_barrier_the_model_finds_two() {
    explore(Without::Barrier);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_without_the_look_the_model_finds_two() {
    explore(Without::Look);
}
