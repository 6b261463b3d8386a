//! The lending word: whether a saved worker may run without its scheduler's baton, in one atomic
//! word.
//!
//! A worker with its own context that rejoins its scheduler after an undeclared block was
//! interrupted at an arbitrary instruction. So it may hold a lock, such as the allocator's. It is
//! saved, and waits to be chosen. If the scheduler itself waits for that lock, it chooses no
//! worker. Then the worker is *lent*: it is allowed to run without the baton, on its own kernel
//! thread, until it asks for its scheduler, that is, until it needs the baton again. (Thread
//! workers at their gates are lent in the same way: `thread.rs`.)
//!
//! The *lender* is the thread that allows the worker to run. The *chooser* is the holder of the
//! baton, which takes the worker from the runnable list to resume it.
//!
//! ```text
//! NONE     | it has the baton, or is no such worker
//! REJOINED | saved, or about to be; when it is saved, it is pushed onto the inbox
//! LENT     | it runs without the baton, and is on the runnable list, or in the inbox
//! PASSED   | it runs without the baton, and is on no list: the chooser has passed it over
//! ASKED    | saved, or about to be; when it is saved, `back` is set. On the runnable list, or in
//!          | the inbox
//!
//! the worker                       the lender                the chooser
//! W1 NONE -> REJOINED
//! W2 is saved, then pushed                                   takes it from the inbox
//!    onto the inbox
//!                                  L1 sees REJOINED
//!                                  L2 sees it saved
//!                                  L3 -> LENT, releases it   C1 REJOINED -> NONE: resumes it
//! W3 runs                                                    C2 LENT -> PASSED: chooses another
//! W4 asks for its scheduler:
//!    LENT -> ASKED
//! W5 is saved, and `back` is set                             C3 ASKED: waits for `back`,
//!    or PASSED -> REJOINED, and W2 again                        -> NONE: resumes it
//! ```
//!
//! The bits above the kind are a count that grows with every change.
//!
//! * *Only one thread resumes it.* L3, C1, C2 and W4 are compare-and-swaps of the word that was
//!   read. While the word is REJOINED, exactly one of L3 and C1 succeeds. In LENT and PASSED the
//!   worker is running. In ASKED only the chooser resumes it.
//! * *It is saved when it is resumed.* For C1, the worker was pushed onto the inbox after it was
//!   saved. For C3, `back` is set after it was saved, once for each ASKED, and consumed once. For
//!   L3, L2 comes after L1, and W1 comes after the worker was last resumed and before it is saved.
//!   So the save that L2 sees belongs to the REJOINED that L1 has seen, or the count has changed
//!   and L3 fails.
//! * *No thread waits for a lent worker that runs.* C3 waits only for a worker that is about to be
//!   saved, and that does nothing else before.
//!
//! If a worker asks for its scheduler while it holds a lock that the scheduler waits for, that is a
//! deadlock of the program's own.
//!
//! The model in `lending_loom.rs` tries every order of these steps.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::os::atomic::AtomicU64;
use crate::os::event::ThreadEvent;

const NONE: u64 = 0;
const REJOINED: u64 = 1;
const LENT: u64 = 2;
const PASSED: u64 = 3;
const ASKED: u64 = 4;
const KIND: u64 = 7;
/// Adding this to the word counts one change.
const STEP: u64 = 8;

fn next(now: u64, kind: u64) -> u64 {
    (now & !KIND).wrapping_add(STEP) | kind
}

/// The lending word of one worker.
pub(crate) struct Lending {
    word: AtomicU64,
    /// Set when a worker that has asked for its scheduler is saved.
    pub back: ThreadEvent,
}

impl Lending {
    pub fn new() -> Lending {
        Lending { word: AtomicU64::new(NONE), back: ThreadEvent::new() }
    }

    /// W1. Called by a worker that is about to be saved. From then on it may be lent, until it is
    /// chosen.
    pub fn rejoin(&self) {
        let now = self.word.load(Relaxed);
        debug_assert_eq!(now & KIND, NONE, "a worker rejoins once");
        self.word.store(next(now, REJOINED), Release);
    }

    /// W4. Called by a lent worker that is about to be saved. If this returns true, the code that
    /// saves the worker sets `back`; otherwise it pushes the worker onto the inbox.
    pub fn ask_for_scheduler(&self) -> bool {
        let now = self.word.load(Relaxed);
        let kept = now & KIND == LENT
            && self.word.compare_exchange(now, next(now, ASKED), Relaxed, Relaxed).is_ok();
        if !kept {
            let now = self.word.load(Relaxed);
            debug_assert_eq!(now & KIND, PASSED, "only a lent worker asks for its scheduler");
            self.word.store(next(now, REJOINED), Release);
        }
        kept
    }

    /// Returns whether the worker runs without the baton. For other threads the answer may be out
    /// of date.
    pub fn is_lent(&self) -> bool {
        matches!(self.word.load(Relaxed) & KIND, LENT | PASSED)
    }

    /// Returns whether the worker has rejoined in a way that allows it to be lent, and has not been
    /// chosen since.
    pub fn is_lendable(&self) -> bool {
        self.word.load(Relaxed) & KIND != NONE
    }

    /// L1 and L2. Returns whether the worker could be lent now.
    pub fn waits(&self, is_saved: impl Fn() -> bool) -> bool {
        self.seen(is_saved).is_some()
    }

    fn seen(&self, is_saved: impl Fn() -> bool) -> Option<u64> {
        let now = self.word.load(Acquire);
        (now & KIND == REJOINED && is_saved()).then_some(now)
    }

    /// L1 to L3. If this returns true, the worker is lent, and the caller makes it run.
    pub fn lend(&self, is_saved: impl Fn() -> bool) -> bool {
        let Some(now) = self.seen(is_saved) else { return false };
        self.word.compare_exchange(now, next(now, LENT), AcqRel, Relaxed).is_ok()
    }

    /// C1 to C3. Returns true if the worker is saved and the caller must resume it. Returns false
    /// if the worker runs without the baton; it will be pushed onto the inbox later.
    pub fn choose(&self) -> bool {
        loop {
            let now = self.word.load(Acquire);
            let kind = now & KIND;
            if kind == ASKED {
                self.back.wait();
                self.word.store(next(now, NONE), Relaxed);
                return true;
            }
            assert!(kind == REJOINED || kind == LENT, "only a worker that has rejoined is chosen");
            let to = if kind == REJOINED { NONE } else { PASSED };
            if self.word.compare_exchange(now, next(now, to), AcqRel, Relaxed).is_ok() {
                return to == NONE;
            }
        }
    }
}

#[cfg(all(test, loom))]
#[path = "lending_loom.rs"]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_was_chosen_is_not_lent() {
        let word = Lending::new();
        assert!(!word.lend(|| true), "it has not rejoined");
        word.rejoin();
        assert!(!word.lend(|| false), "it is not saved");
        assert!(word.choose() && !word.is_lendable());
        assert!(!word.lend(|| true));
    }

    #[test]
    fn a_lent_worker_that_asks_before_it_is_chosen_is_saved_when_it_is_resumed() {
        let word = Lending::new();
        word.rejoin();
        assert!(word.lend(|| true) && word.is_lent());
        assert!(!word.lend(|| true), "it is lent already");
        assert!(word.ask_for_scheduler());
        assert!(!word.lend(|| true), "it has asked for its scheduler");
        word.back.set();
        assert!(word.choose() && !word.is_lendable());
    }

    #[test]
    fn the_chooser_passes_over_a_worker_that_runs_without_the_baton() {
        let word = Lending::new();
        word.rejoin();
        assert!(word.lend(|| true));
        assert!(!word.choose() && word.is_lent());
        assert!(!word.ask_for_scheduler(), "it goes through the inbox");
        assert!(word.lend(|| true), "and may be lent again");
        assert!(word.ask_for_scheduler());
        word.back.set();
        assert!(word.choose());
    }
}
