//! Bias: a lock that one scheduler uses alone costs it no locked instruction.
//!
//! The first uses of a lock decide. If one *holder*, which is the holder of one scheduler's baton,
//! makes all of them, the lock is *biased* to that holder from then on, until another thread wants
//! it. Then it is *shared*, for good. A lock whose first uses are by several is shared at once.
//!
//! ```text
//!          first use by a holder      all of the first uses        a use by another
//! new ------------------------> tried ------------------> biased -----------------> shared
//!   \------ first use by another ------\---- another ------------------------------->
//! ```
//!
//! The *base* is an ordinary lock. Every use takes it, except those by the holder to which the lock
//! is biased. `owner` changes only under the base.
//!
//! ```text
//! the holder                            another thread, under the base
//! H1 is owner this holder?              R1 owner := shared
//! H2 held := true                       R2 membarrier: a barrier on all threads
//! H3 (no instruction)                   R3 wait until held = false
//! H4 is owner still this holder?
//!    else held := false, use the base
//!    ... uses what the lock guards ...
//! H5 held := false
//! ```
//!
//! * *The holder and another thread never both have the lock.* The barrier R2 takes effect at one
//!   moment of the holder's execution. If H2 comes before that moment, R3 sees `held`, and waits
//!   for H5. If H2 comes after it, H4 sees R1.
//! * *The other thread sees what the holder did under the lock*, because H5 is a release store and
//!   R3 an acquire load. From then on the holder uses the base, too, and sees what others did.
//! * *Only one thread at a time is this holder*: **Baton**, and a thread inside the library does
//!   not lose the baton. A lock is never biased twice, so no thread writes `held` for an earlier
//!   holder after that.
//!
//! The barrier costs some microseconds, and a lock causes at most one in its life, after as many
//! uses as [`TRIED`].

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::atomic::{self, AtomicBool, AtomicU32};
use super::entry::{self, NO_HOLDER};

/// How many uses by one holder bias a lock to it.
const TRIED: u32 = 32;

/// The holders' numbers are below this.
pub const HOLDERS: u32 = 1 << 24;

/// The value of `owner` before the first use of the lock. A value below [`HOLDERS`] is the number
/// of the holder to which the lock is biased. Before that, the value is a holder's number and, in
/// the bits above it, how often that holder has used the lock.
const NEW: u32 = 0;
const SHARED: u32 = u32::MAX;
// No value of `owner` with a number and uses is as large.
const _: () = assert!(NO_HOLDER != SHARED && NO_HOLDER / HOLDERS > TRIED);

/// The holder to which a lock is biased, if there is one.
#[derive(Debug)]
pub struct Bias {
    owner: AtomicU32,
    held: AtomicBool,
}

impl Bias {
    /// Makes the bias of a lock that was never used.
    #[cfg(not(loom))]
    pub const fn new() -> Bias {
        Bias { owner: AtomicU32::new(NEW), held: AtomicBool::new(false) }
    }

    /// Makes the bias of a lock that is shared from the beginning.
    #[cfg(not(loom))]
    pub const fn shared() -> Bias {
        Bias { owner: AtomicU32::new(SHARED), held: AtomicBool::new(false) }
    }

    /// Steps H1 to H4. Returns true if the caller, which is this holder, has the lock now.
    ///
    /// # Panics
    /// If the holder has the lock already.
    #[inline(always)]
    pub fn enter(&self, me: u32) -> bool {
        if self.owner.load(Relaxed) != me {
            return false;
        }
        assert!(!self.held.load(Relaxed), "a short lock was locked twice at once");
        self.held.store(true, Relaxed);
        entry::light_fence();
        if self.owner.load(Relaxed) == me {
            return true;
        }
        self.leave();
        false
    }

    /// Step H5.
    #[inline(always)]
    pub fn leave(&self) {
        self.held.store(false, Release);
    }

    /// Called under the base by a thread that has just taken it: `me` is its number as a holder, if
    /// it has one. When this returns, no other thread has the lock. `barrier` is R2.
    #[inline]
    pub fn used_by(&self, me: u32, barrier: impl FnOnce()) {
        let owner = self.owner.load(Relaxed);
        if owner != SHARED {
            self.decide(owner, me, barrier);
        }
    }

    #[cold]
    fn decide(&self, owner: u32, me: u32, barrier: impl FnOnce()) {
        let (uses, who) = (owner / HOLDERS, owner % HOLDERS);
        let is_new = owner == NEW && me != NO_HOLDER;
        if is_new || (who == me && uses > 0) {
            let uses = uses + 1;
            let uses = if uses == TRIED { 0 } else { uses };
            return self.owner.store(uses * HOLDERS + me, Relaxed);
        }
        self.owner.store(SHARED, SeqCst);
        // Before the lock was biased, every use took the base.
        if owner != NEW && uses == 0 {
            barrier();
            while self.held.load(Acquire) {
                atomic::let_others_run();
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;
