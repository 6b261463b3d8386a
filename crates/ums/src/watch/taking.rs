//! The taking word: whether a kernel thread that is blocked loses the scheduler that it carries, in
//! one atomic word.
//!
//! A *carrier* (`carriers.rs`) is a kernel thread on which workers with their own context run. When
//! it blocks in the code of one of them, another thread (the *taker*) may take the scheduler from
//! it, so that a spare carrier continues the scheduler's other workers. But the blocked carrier may
//! wake at that very moment and run user code. The *gate* prevents that. It is a signal that is
//! made pending while the carrier is blocked: its handler runs before any other instruction of the
//! carrier.
//!
//! ```text
//! NONE   | no thread tries to take the scheduler
//! ASKED  | a taker will take the scheduler if the carrier is still blocked
//! TAKEN  | the carrier has lost the scheduler, and its handler has not run since
//!
//! the taker                                    the carrier's handler, before any user instruction
//! T1 -> ASKED
//! T2 sends the signal; sees it pending, not blocked
//! T3 sees the carrier blocked, in the same wait
//! T4 sees whether a worker is in user code
//! T5 ASKED -> TAKEN                            H1 -> NONE, and sees which kind the word was
//! ```
//!
//! The bits above the kind are a count that grows with every change, so T5 succeeds only if H1 has
//! not run since T1.
//!
//! * *The carrier woke before T3.* Then T3 sees it running, or blocked in another wait, or it has
//!   passed H1 and T5 fails. In all three cases it continues.
//! * *It wakes after T3.* The signal is pending (T2), so it runs H1 first. If H1 comes before T5,
//!   T5 fails and the carrier continues. If H1 comes after T5, H1 finds TAKEN and the carrier stops
//!   there.
//! * *What T4 reads* was written by the carrier before it blocked, and does not change between T3
//!   and H1. If T5 succeeds, H1 comes later than T4.
//!
//! So exactly one of carrier and taker has the scheduler. One taker at a time tries
//! (`Carriers::alone`). The model in `taking_loom.rs` tries every order of these steps.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::os::atomic::AtomicU64;

const NONE: u64 = 0;
const ASKED: u64 = 1;
const TAKEN: u64 = 2;
const KIND: u64 = 3;
/// Adding this to the word counts one change.
const STEP: u64 = 4;

/// The word as T1 has written it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked(u64);

/// The word of one carrier.
#[derive(Debug)]
pub(super) struct Taking(AtomicU64);

fn next(now: u64, kind: u64) -> u64 {
    (now & !KIND).wrapping_add(STEP) | kind
}

impl Taking {
    pub fn new() -> Taking {
        Taking(AtomicU64::new(NONE))
    }

    /// T1. Returns `None` if the carrier has already lost the scheduler.
    pub fn ask(&self) -> Option<Asked> {
        let mut now = self.0.load(Acquire);
        loop {
            if now & KIND == TAKEN {
                return None;
            }
            match self.0.compare_exchange(now, next(now, ASKED), AcqRel, Acquire) {
                Ok(_) => return Some(Asked(next(now, ASKED))),
                Err(other) => now = other,
            }
        }
    }

    /// T5. Returns false if the carrier has run H1 since T1.
    pub fn take(&self, asked: Asked) -> bool {
        self.0.compare_exchange(asked.0, next(asked.0, TAKEN), AcqRel, Acquire).is_ok()
    }

    /// Ends the attempt without T5.
    pub fn give_up(&self, asked: Asked) {
        let _ = self.0.compare_exchange(asked.0, next(asked.0, NONE), AcqRel, Relaxed);
    }

    /// H1. Returns whether the scheduler was taken.
    pub fn arrive(&self) -> bool {
        let mut now = self.0.load(Acquire);
        loop {
            if now & KIND == NONE {
                return false;
            }
            match self.0.compare_exchange(now, next(now, NONE), AcqRel, Acquire) {
                Ok(_) => return now & KIND == TAKEN,
                Err(other) => now = other,
            }
        }
    }
}

#[cfg(all(test, loom))]
#[path = "taking_loom.rs"]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_carrier_that_wakes_in_time_keeps_the_scheduler() {
        let word = Taking::new();
        let asked = word.ask().unwrap();
        assert!(!word.arrive());
        assert!(!word.take(asked));
        assert!(!word.arrive());
    }

    #[test]
    fn a_carrier_that_wakes_too_late_learns_that_once() {
        let word = Taking::new();
        let asked = word.ask().unwrap();
        assert!(word.take(asked));
        assert!(word.ask().is_none(), "it carries no scheduler that could be taken");
        assert!(word.arrive());
        assert!(!word.arrive());
    }

    #[test]
    fn an_attempt_that_was_given_up_takes_nothing_later() {
        let word = Taking::new();
        let old = word.ask().unwrap();
        word.give_up(old);
        let asked = word.ask().unwrap();
        assert!(!word.take(old));
        assert!(word.take(asked));
    }
}
