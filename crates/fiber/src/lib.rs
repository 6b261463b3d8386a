//! A stack that code can leave and return to.
//!
//! Three nouns. A *stack* is a piece of memory with a guard below it. A *pool* owns stacks, hands
//! them out and takes them back. A *fiber* is a closure on a stack: it runs when it is resumed,
//! until it suspends itself or ends, always on the thread that resumes it.
//!
//! ```text
//!             one slab = one mmap, many stacks            (addresses grow to the right)
//!   ┌───────┬──────────────┬────────┬───────┬──────────────┬────────┬─────
//!   │ guard │ usable  <----│ header │ guard │ usable  <----│ header │ ...
//!   └───────┴──────────────┴────────┴───────┴──────────────┴────────┴─────
//!   low                             low + stride                       the stack grows to the left
//! ```
//!
//! The switch is corosensei's, inlined, and nothing is added to it. The rest of this crate is about
//! stacks: where they come from, what happens when one is too small, and that none is ever freed
//! under a frame.
//!
//! How this crate keeps the named invariants that its unsafe blocks cite:
//!
//! * Own Memory: an address range given to the kernel lies inside one mapping that [`StackPool`]
//!   made, has not unmapped, and that nothing borrows. A stack is either in its pool or out; while
//!   it is out the pool neither touches nor unmaps it, not even when the pool is dropped.
//! * Frozen Stack: the frames of a suspended fiber are never freed, reused or unwound; only
//!   resuming the fiber to its end gives its stack back.
//! * Signal: what runs in the fault handler only reads atomics, formats into its own frame and
//!   calls functions that POSIX allows in a signal handler; it trusts what the kernel passes to it.
//! * Contract: a suspender is used only on its own fiber's stack, while that fiber runs.
//!
//! What this crate does not do: it has no scheduler, moves no fiber between threads, passes no
//! value through a switch, and does not contain a panic of a fiber's closure (a panic that reaches
//! the root prints a sentence and ends the process).
//!
//! # Tools
//!
//! Stacks are registered with valgrind as they are made; outside valgrind that is a handful of
//! no-op instructions per stack. The feature `sanitizer` reports each switch to AddressSanitizer
//! (needs `-Zsanitizer=address`), and the feature `tsan` to ThreadSanitizer (needs
//! `-Zsanitizer=thread`). Backtraces, `perf` call graphs and debuggers see the fiber's frames, then
//! the fiber's root, then the frames of the code that resumed it; under AddressSanitizer they end
//! at the root.
//!
//! # Example
//!
//! ```
//! use fiber::{Fiber, Resume, StackConfig, StackPool};
//!
//! let mut pool = StackPool::new(StackConfig::default());
//! let stack = pool.take()?;
//! let mut worker = Fiber::new(stack, "worker 1", |me| {
//!     // SAFETY: Contract: this is the fiber that `me` belongs to.
//!     unsafe { me.suspend() };
//! });
//! assert_eq!(worker.resume(), Resume::Suspended);
//! assert_eq!(worker.resume(), Resume::Finished);
//! pool.give(worker.into_stack());
//! # Ok::<(), fiber::StackError>(())
//! ```

#[cfg(not(target_os = "linux"))]
compile_error!("fiber builds its stacks from Linux's mmap and madvise");

mod sys;

mod registry;
mod slab;
mod stack;

mod fiber;
mod overflow;
mod pool;
mod saved;

#[cfg(test)]
mod child;

pub use fiber::{Fiber, Resume, Suspender};
pub use overflow::{HostGuard, install_overflow_handler, prepare_host_thread};
pub use pool::{StackConfig, StackPool, StackStats};
pub use saved::{Registers, SAVED_WORDS};
pub use slab::StackError;
pub use stack::{Stack, StackRange, leaked};
