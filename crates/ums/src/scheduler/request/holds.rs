//! What a user holds across its requests, as a number.

use std::sync::atomic::Ordering;

use crate::os::counted::AtomicUsize;

/// How many resources a user holds. This is separate from the user's state, because a lock stores
/// it and drops it under its short lock, where no destructor of the application may run.
#[derive(Default)]
pub(crate) struct Holds(AtomicUsize);

impl Holds {
    pub fn hold(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Decrements the number. Returns false if it was 0.
    pub fn release(&self) -> bool {
        let one_less = |held: usize| held.checked_sub(1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    pub fn is_some(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}
