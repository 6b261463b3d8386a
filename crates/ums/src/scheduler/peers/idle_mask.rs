//! The idle mask: which schedulers are about to sleep, or sleep, and would take work.
//!
//! The protocol, with its steps S1 to S5 and E1 to E3, stands in the header above this file; its
//! models are beside it.

use std::sync::atomic::Ordering;

use crate::os::atomic::{AtomicU64, fence};

/// A bit for each scheduler: set if it is about to sleep, or sleeps, and would take work.
pub(crate) struct IdleMask(Box<[AtomicU64]>);

impl IdleMask {
    pub(crate) fn new(count: usize) -> IdleMask {
        IdleMask((0..count.div_ceil(64).max(1)).map(|_| AtomicU64::new(0)).collect())
    }

    /// S1 and S2: sets the own bit.
    pub(super) fn announce(&self, index: usize) {
        self.0[index / 64].fetch_or(1 << (index % 64), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// S5. Returns true if an enqueuer has taken the bit before; its push is visible from here on.
    pub(super) fn withdraw(&self, index: usize) -> bool {
        let bit = 1 << (index % 64);
        self.0[index / 64].fetch_and(!bit, Ordering::AcqRel) & bit == 0
    }

    /// E3: takes the bit of one scheduler other than `index`. The caller has pushed and fenced.
    /// Only the thread that clears a bit wakes its owner, so a burst wakes each idle scheduler
    /// once.
    pub(super) fn take_other(&self, index: usize) -> Option<usize> {
        for (at, word) in self.0.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                let bit = bits & bits.wrapping_neg();
                bits &= !bit;
                let who = at * 64 + bit.trailing_zeros() as usize;
                if who != index && word.fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
                    return Some(who);
                }
            }
        }
        None
    }
}
#[cfg(all(test, loom))]
#[path = "loom.rs"]
mod loom;
