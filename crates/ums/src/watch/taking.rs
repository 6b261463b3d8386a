//! The taking word: whether a kernel thread that is blocked loses what it carries, in one atomic
//! word.
//!
//! A *carrier* (`carriers.rs`) is a kernel thread on which workers with their own context run. When
//! it blocks in the code of one, another shall go on with everything else. The blocked one may wake
//! in that very moment, and runs user code then. The *gate* is a signal that is made pending while
//! it is blocked: whatever instruction it executes next comes after the signal's handler.
//!
//! ```text
//! NONE   | nobody wants anything
//! ASKED  | somebody would take what it carries, if it is still blocked
//! TAKEN  | it carries nothing any more, and does not know
//!
//! who takes                                    the carrier's handler, before any user instruction
//! T1 ASKED
//! T2 the signal; sees it pending, not blocked
//! T3 sees the carrier blocked, where it was
//! T4 sees whether a worker is in user code
//! T5 ASKED -> TAKEN                            H1 -> NONE; what was it?
//! ```
//!
//! Above the kind stands a count that grows with every change, so T5 succeeds only if H1 has not
//! been since T1.
//!
//! * *It woke before T3.* Then T3 finds it running, or blocked elsewhere, or it has passed H1 and
//!   T5 fails. It goes on.
//! * *It wakes after T3.* The signal is pending (T2), so H1 is the first that it does. Before T5:
//!   T5 fails, it goes on. After T5: H1 finds TAKEN, and it stops there.
//! * *What T4 reads* was written by the carrier before it blocked, and stands still from T3 to H1.
//!   If T5 succeeds, H1 comes later than T4.
//!
//! So exactly one of both has what the carrier carried. One at a time asks (`Carriers::alone`).
//! The model in `taking_loom.rs` tries all of this.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::os::atomic::AtomicU64;

const NONE: u64 = 0;
const ASKED: u64 = 1;
const TAKEN: u64 = 2;
const KIND: u64 = 3;
/// One more change.
const STEP: u64 = 4;

/// What was asked, as its word says it.
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

    /// T1. None: it has lost already what it carried.
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

    /// T5. False: the carrier has come back in time.
    pub fn take(&self, asked: Asked) -> bool {
        self.0.compare_exchange(asked.0, next(asked.0, TAKEN), AcqRel, Acquire).is_ok()
    }

    /// Instead of T5.
    pub fn give_up(&self, asked: Asked) {
        let _ = self.0.compare_exchange(asked.0, next(asked.0, NONE), AcqRel, Relaxed);
    }

    /// H1. True: what it carried was taken.
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
    fn a_carrier_that_comes_back_in_time_keeps_what_it_carries() {
        let word = Taking::new();
        let asked = word.ask().unwrap();
        assert!(!word.arrive());
        assert!(!word.take(asked));
        assert!(!word.arrive());
    }

    #[test]
    fn one_that_comes_later_finds_that_once() {
        let word = Taking::new();
        let asked = word.ask().unwrap();
        assert!(word.take(asked));
        assert!(word.ask().is_none(), "it has nothing that could be taken");
        assert!(word.arrive());
        assert!(!word.arrive());
    }

    #[test]
    fn what_was_given_up_takes_nothing_later() {
        let word = Taking::new();
        let old = word.ask().unwrap();
        word.give_up(old);
        let asked = word.ask().unwrap();
        assert!(!word.take(old));
        assert!(word.take(asked));
    }
}
