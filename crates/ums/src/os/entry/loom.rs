//! Models of an entry: the lists are touched by one thread at a time, whatever the order of
//! entering, leaving and taking.
//!
//! Bounds: one worker that enters and leaves twice, and returns once if it was taken; one taker
//! that tries twice. The barrier on all threads is a fence on both sides here. The lists are a cell
//! that loom watches. Exhaustive.
//!
//! Named invariant **Baton**: loom reports two accesses at once, which these models look
//! for.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

use ::loom::cell::UnsafeCell;
use ::loom::sync::atomic::{AtomicBool, fence};

use super::*;

/// What is left out, for the positive controls.
#[derive(Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    /// T2.
    Barrier,
    /// T3.
    Look,
}

struct World {
    entry: Entry,
    lists: UnsafeCell<u32>,
    /// A taken worker has arrived in the inbox.
    inbox: AtomicBool,
    /// It has been chosen.
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

    /// The worker enters, uses the scheduler in two steps, and leaves.
    fn use_the_scheduler(&self) {
        if !self.entry.enter() {
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

    /// Lets the taker try. Returns true if it took the baton, used the scheduler, and has chosen
    /// the worker again when that arrived.
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
            // The end of its request: it stays inside.
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
