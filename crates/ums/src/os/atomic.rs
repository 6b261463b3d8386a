//! The atomics of the lock-free protocols: the standard library's, or loom's when their models run
//! (`RUSTFLAGS="--cfg loom"`), which then tries every interleaving and every value that a load may
//! see.
//!
//! The protocols are those of `event.rs`, `wait`, `scheduler/inbox` and `scheduler/peers`; each has
//! its models beside it, in `loom.rs`. Counters and what views show are no protocol, and stay
//! standard.

#[cfg(loom)]
pub use ::loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence};

/// A fence for a `SeqCst` store that a `SeqCst` load of another variable must not overtake. Loom
/// treats such accesses as release and acquire, and needs the fence; for a compiler the orders are
/// enough.
#[inline(always)]
pub fn no_overtaking() {
    #[cfg(loom)]
    fence(std::sync::atomic::Ordering::SeqCst);
}

/// Lets other threads run, in a loop that waits for one of them.
pub fn let_others_run() {
    #[cfg(loom)]
    ::loom::thread::yield_now();
    #[cfg(not(loom))]
    std::thread::yield_now();
}
