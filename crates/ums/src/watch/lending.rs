//! The lending word: whether a saved worker may run on without its scheduler's baton, in one atomic
//! word.
//!
//! A worker with its own context that comes home from a block which nobody declared was in the
//! middle of anything: it may hold a lock, such as the allocator's. It is saved, and waits to be
//! chosen. If the machine itself waits for that lock, it chooses nobody. Then the worker is *lent*
//! the right to run on: on its own kernel thread, without the baton, until it asks for its
//! scheduler. (Threads at their gates have the same: `thread.rs`.)
//!
//! ```text
//! NONE | it has the baton, or is no such worker
//! HOME | saved, or about to be, which the inbox is told
//! LENT | it runs on without the baton, and is on the runnable list, or in the inbox
//! OUT  | it runs on without the baton, and is on no list
//! BACK | saved, or about to be, which `back` is told; on the runnable list, or in the inbox
//!
//! the worker                        who lends                      who chooses it
//! W1 NONE -> HOME
//! W2 is saved, and the inbox told                                   finds it by the inbox
//!                                   L1 sees HOME
//!                                   L2 sees it saved
//!                                   L3 -> LENT, releases it        C1 HOME -> NONE: continues it
//! W3 goes on                                                       C2 LENT -> OUT: somebody else is chosen
//! W4 asks at last: LENT -> BACK
//! W5 is saved, and `back` is set                                   C3 BACK: waits for `back`, -> NONE: continues it
//!    or OUT -> HOME, and W2 again
//! ```
//!
//! Above the kind stands a count that grows with every change.
//!
//! * *One continues it.* L3, C1, C2 and W4 change the word from what it was seen to be. While it is
//!   HOME, one of L3 and C1 succeeds; LENT and OUT are the worker's own, and from BACK nobody but
//!   who chooses continues it.
//! * *What is continued is saved.* For C1 the inbox has said so, and for C3 `back`, which is set
//!   once for each BACK and consumed once. L2 looks after L1, and W1 comes after the worker was
//!   continued last and before it is saved: so what L2 sees belongs to this time, or the count is
//!   another.
//! * *Nobody waits for who is loose.* C3 waits for a worker that is about to be saved, and does
//!   nothing else first.
//!
//! Who asks for its scheduler with a lock held that the machine waits for has made a deadlock
//! itself.
//!
//! The model in `lending_loom.rs` tries all of this.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::os::atomic::{AtomicBool, AtomicU64};
use crate::os::event::Event;

const NONE: u64 = 0;
const HOME: u64 = 1;
const LENT: u64 = 2;
const OUT: u64 = 3;
const BACK: u64 = 4;
const KIND: u64 = 7;
/// One more change.
const STEP: u64 = 8;

fn next(now: u64, kind: u64) -> u64 {
    (now & !KIND).wrapping_add(STEP) | kind
}

/// The word of one worker.
pub(crate) struct Lending {
    word: AtomicU64,
    /// It is saved again.
    pub back: Event,
    /// The worker runs what is its request's own: anywhere else it is not lent, for what it does
    /// there needs the baton.
    pub within: AtomicBool,
}

impl Lending {
    pub fn new() -> Lending {
        Lending { word: AtomicU64::new(NONE), back: Event::new(), within: AtomicBool::new(false) }
    }

    /// W1. It is about to be saved, and may be lent until it is chosen.
    pub fn come_home(&self) {
        let now = self.word.load(Relaxed);
        debug_assert_eq!(now & KIND, NONE, "a worker comes home once");
        self.word.store(next(now, HOME), Release);
    }

    /// W4. It was lent, and is about to be saved. True: it sets `back` then; else it goes through
    /// the inbox.
    pub fn come_back(&self) -> bool {
        let now = self.word.load(Relaxed);
        let kept = now & KIND == LENT
            && self.word.compare_exchange(now, next(now, BACK), Relaxed, Relaxed).is_ok();
        if !kept {
            let now = self.word.load(Relaxed);
            debug_assert_eq!(now & KIND, OUT, "only who was lent comes back");
            self.word.store(next(now, HOME), Release);
        }
        kept
    }

    /// Whether the worker runs on without the baton. Who is not the worker hears what is past.
    pub fn is_lent(&self) -> bool {
        matches!(self.word.load(Relaxed) & KIND, LENT | OUT)
    }

    /// Whether it came home so that it may be lent.
    pub fn is_lendable(&self) -> bool {
        self.word.load(Relaxed) & KIND != NONE
    }

    /// L1 and L2: it could be lent now.
    pub fn waits(&self, is_saved: impl Fn() -> bool) -> bool {
        self.seen(is_saved).is_some()
    }

    fn seen(&self, is_saved: impl Fn() -> bool) -> Option<u64> {
        let now = self.word.load(Acquire);
        (now & KIND == HOME && is_saved()).then_some(now)
    }

    /// L1 to L3. True: the caller releases it.
    pub fn lend(&self, is_saved: impl Fn() -> bool) -> bool {
        let Some(now) = self.seen(is_saved) else { return false };
        self.word.compare_exchange(now, next(now, LENT), AcqRel, Relaxed).is_ok()
    }

    /// C1 to C3. True: the worker is saved, and the caller's to continue. False: it runs on, and
    /// will come through the inbox.
    pub fn choose(&self) -> bool {
        loop {
            let now = self.word.load(Acquire);
            let kind = now & KIND;
            if kind == BACK {
                self.back.wait();
                self.word.store(next(now, NONE), Relaxed);
                return true;
            }
            assert!(kind == HOME || kind == LENT, "only who came home is chosen");
            let to = if kind == HOME { NONE } else { OUT };
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
    fn one_that_is_chosen_is_lent_no_more() {
        let word = Lending::new();
        assert!(!word.lend(|| true), "it is not at home");
        word.come_home();
        assert!(!word.lend(|| false), "it is not saved");
        assert!(word.choose() && !word.is_lendable());
        assert!(!word.lend(|| true));
    }

    #[test]
    fn one_that_comes_back_before_it_is_chosen_is_saved_then() {
        let word = Lending::new();
        word.come_home();
        assert!(word.lend(|| true) && word.is_lent());
        assert!(!word.lend(|| true), "it is lent already");
        assert!(word.come_back());
        assert!(!word.lend(|| true), "it has asked for its scheduler");
        word.back.set();
        assert!(word.choose() && !word.is_lendable());
    }

    #[test]
    fn nobody_waits_for_one_that_runs_on() {
        let word = Lending::new();
        word.come_home();
        assert!(word.lend(|| true));
        assert!(!word.choose() && word.is_lent());
        assert!(!word.come_back(), "it goes through the inbox");
        assert!(word.lend(|| true), "and may be lent again");
        assert!(word.come_back());
        word.back.set();
        assert!(word.choose());
    }
}
