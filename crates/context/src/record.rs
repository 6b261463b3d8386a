//! The record of a context: what a switch saves, and what its own kernel thread sleeps on.

use std::ptr::from_ref;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A thread as the switch sees it. It must not move in memory while any thread may resume it.
#[derive(Debug)]
#[repr(C)]
pub struct Context {
    /// The stack pointer while it is saved, otherwise 0.
    pub(crate) sp: AtomicUsize,
    /// The address of its thread control block.
    pub(crate) fs: AtomicUsize,
    pub(crate) mxcsr: AtomicU32,
    pub(crate) x87: AtomicU16,
    /// The event that its own kernel thread sleeps on, see `post.rs`.
    pub(crate) go: AtomicU32,
    /// Where its own kernel thread sleeps.
    pub(crate) gap: AtomicUsize,
    /// Its signal mask while it is not coupled.
    pub(crate) mask: AtomicU64,
}

impl Default for Context {
    fn default() -> Context {
        Context::new()
    }
}

impl Context {
    /// Returns a context for a thread that does not exist yet.
    pub const fn new() -> Context {
        Context {
            sp: AtomicUsize::new(0),
            fs: AtomicUsize::new(0),
            mxcsr: AtomicU32::new(0),
            x87: AtomicU16::new(0),
            go: AtomicU32::new(0),
            gap: AtomicUsize::new(0),
            mask: AtomicU64::new(0),
        }
    }

    /// Returns the signal mask that it had when it decoupled last.
    pub fn mask(&self) -> u64 {
        self.mask.load(Ordering::Relaxed)
    }

    /// Returns the address of the word that holds its stack pointer while it is saved, and 0 while
    /// it runs with its own stack pointer and FS base. Saved at that stack pointer are
    /// the next instruction, rbx and rbp.
    pub fn saved_at(&self) -> usize {
        from_ref(&self.sp).expose_provenance()
    }

    /// Returns whether it is saved. The answer may be stale unless the caller has it (*One Place*).
    pub fn is_saved(&self) -> bool {
        self.sp.load(Ordering::Acquire) != 0
    }
}
