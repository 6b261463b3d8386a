//! The atomics of the lock-free protocols. Normally they are the standard library's. When the
//! models of the protocols run (`RUSTFLAGS="--cfg loom"`), they are loom's, which tries every
//! interleaving and every value that a load may return.
//!
//! Each of these protocols has its models beside it: `event`, `entry`, `bias`, `asleep`, `wait`,
//! `wait/inbox`, `scheduler/peers`,
//! `scheduler/request` and those of `watch`. Counters, and fields that only views read,
//! take part in no protocol, and use the standard library's atomics.

#[cfg(not(loom))]
pub use super::counted::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
#[cfg(loom)]
pub use ::loom::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence,
};
#[cfg(not(loom))]
pub use std::sync::atomic::fence;

/// A fence between a `SeqCst` store and a `SeqCst` load of another variable after it. Loom treats
/// such accesses as release and acquire, and needs the fence to keep their order. For the compiler
/// `SeqCst` is enough.
#[inline(always)]
pub fn no_overtaking() {
    #[cfg(loom)]
    fence(std::sync::atomic::Ordering::SeqCst);
}

/// Lets other threads run. A loop that waits for another thread calls this.
pub fn let_others_run() {
    #[cfg(loom)]
    ::loom::thread::yield_now();
    #[cfg(not(loom))]
    std::thread::yield_now();
}
