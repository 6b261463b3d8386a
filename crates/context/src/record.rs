//! The record of a context: the registers that a switch saves outside the stack, and the word that
//! the context's own kernel thread sleeps on.

use std::ptr::from_ref;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The saved state of a thread that can leave its kernel thread; the crate's page defines the
/// words. It must not move in memory while any thread may resume it.
#[derive(Debug)]
#[repr(C)]
pub struct Context {
    /// The stack pointer while it is saved, otherwise 0.
    pub(crate) sp: AtomicUsize,
    /// The address of its thread control block.
    pub(crate) fs: AtomicUsize,
    pub(crate) mxcsr: AtomicU32,
    pub(crate) x87: AtomicU16,
    /// The event that its own kernel thread sleeps on until it is released; `post.rs` has the
    /// values.
    pub(crate) go: AtomicU32,
    /// The top of the gap: the stack pointer of its own kernel thread while that sleeps.
    pub(crate) gap: AtomicUsize,
    /// The signal mask that it gets back when it couples again.
    pub(crate) mask: AtomicU64,
}

impl Default for Context {
    fn default() -> Context {
        Context::new()
    }
}

impl Context {
    /// Returns the record for a thread that will be created later.
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

    /// Returns the address of a word that holds its stack pointer while it is saved, and is 0 while
    /// it runs with its own stack pointer and FS base. On x86-64 the next instruction, rbx and rbp
    /// are saved at that stack pointer.
    pub fn saved_at(&self) -> usize {
        from_ref(&self.sp).expose_provenance()
    }

    /// Returns its stack pointer while it is saved, otherwise 0. The answer may be stale, as that
    /// of [`is_saved`](Context::is_saved).
    #[inline]
    pub fn stack_pointer(&self) -> usize {
        self.sp.load(Ordering::Relaxed)
    }

    /// Returns the address of its thread control block. The thread-locals of a program and of the
    /// libraries that it starts with are at the same distance from it in each thread.
    #[inline]
    pub fn thread_pointer(&self) -> usize {
        self.fs.load(Ordering::Relaxed)
    }

    /// Returns whether it is saved. The answer may be stale, unless only the caller may resume the
    /// context (*One Place*).
    pub fn is_saved(&self) -> bool {
        self.sp.load(Ordering::Acquire) != 0
    }
}
