//! The lending word: whether a saved worker may run on without its scheduler's baton, in one atomic word.
//!
//! A worker with its own context that comes home from a block which nobody declared was in the middle of anything: it may hold a lock, such as the
//! allocator's. It is saved, and waits to be chosen. If the machine itself waits for that lock, it chooses nobody. Then the worker is *lent* the
//! right to run on: on its own kernel thread, without the baton, until it asks for its scheduler. Whoever chooses it meanwhile waits until it
//! has come in again. (Threads at their gates have the same: `thread.rs`.)
//!
//! ```text
//! NONE | it has the baton, or is no such worker
//! HOME | saved, or about to be, which the door is told
//! LENT | it runs on without the baton
//! BACK | saved again, or about to be, which `back` is told
//!
//! the worker                        who lends                      who chooses it
//! W1 NONE -> HOME
//! W2 is saved, and the door told                                   finds it by the door
//!                                   L1 sees HOME
//!                                   L2 sees it saved
//!                                   L3 -> LENT, releases it        C1 HOME -> NONE: continues it
//! W3 goes on, and asks at last
//! W4 LENT -> BACK
//! W5 is saved, and `back` is set                                   C2 LENT, BACK: waits for `back`
//!                                                                  C3 -> NONE: continues it
//! ```
//!
//! Above the kind stands a count that grows with every change.
//!
//! * *One continues it.* L3 and C1 change the word from what it was seen to be, so one of them succeeds. After L3 nobody but who chooses continues it.
//! * *What is continued is saved.* For C1 the door has said so, and for C3 `back`, which is set once each time and consumed once. L2 looks after L1, and W1
//!   comes after the worker was continued last and before it is saved: so what L2 sees belongs to this time, or the count is another.
//!
//! It is lent once each time it is home. Who asks for its scheduler with a lock held that the machine waits for has made a deadlock itself.
//!
//! The model in `lending_loom.rs` tries all of this.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::os::atomic::{AtomicBool, AtomicU64};
use crate::os::event::Event;

const NONE: u64 = 0;
const HOME: u64 = 1;
const LENT: u64 = 2;
const BACK: u64 = 3;
const KIND: u64 = 3;
/// One more change.
const STEP: u64 = 4;

fn next(now: u64, kind: u64) -> u64 {
    (now & !KIND).wrapping_add(STEP) | kind
}

/// The word of one worker.
pub(crate) struct Lending {
    word: AtomicU64,
    /// It is saved again.
    pub back: Event,
    /// The worker is inside its request, or drops it: anywhere else it is not lent, for what it does there needs the baton.
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

    /// W4. It is about to be saved, and sets `back` then.
    pub fn come_back(&self) {
        let now = self.word.load(Relaxed);
        debug_assert_eq!(now & KIND, LENT, "only who was lent comes back");
        self.word.store(next(now, BACK), Relaxed);
    }

    /// Whether the worker, which asks this itself, runs on without the baton.
    pub fn is_lent(&self) -> bool {
        self.word.load(Relaxed) & KIND == LENT
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

    /// C1 to C3: when this returns, the worker is saved, and the caller's to continue.
    pub fn choose(&self) {
        loop {
            let now = self.word.load(Acquire);
            match now & KIND {
                NONE => return,
                HOME => {}
                _ => {
                    self.back.wait();
                    let now = self.word.load(Relaxed);
                    debug_assert_eq!(now & KIND, BACK, "it is set by who has come back");
                    return self.word.store(next(now, NONE), Relaxed);
                }
            }
            if self.word.compare_exchange(now, next(now, NONE), AcqRel, Relaxed).is_ok() {
                return;
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
        word.choose();
        assert!(!word.is_lendable());
        assert!(!word.lend(|| true));
    }

    #[test]
    fn one_that_is_lent_is_chosen_when_it_has_come_back() {
        let word = Lending::new();
        word.come_home();
        assert!(word.lend(|| true) && word.is_lent());
        assert!(!word.lend(|| true), "it is lent already");
        word.come_back();
        assert!(!word.lend(|| true), "once each time");
        word.back.set();
        word.choose();
        assert!(!word.is_lendable());
    }
}
