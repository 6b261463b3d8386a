//! Fibers: closures that run on stacks of their own, and can suspend and be resumed.
//!
//! Three nouns. A *stack* is a range of memory with a *guard* below it, a range in which every
//! access faults. A *pool* owns stacks, hands them out and takes them back. A *fiber* is a closure
//! on a stack. When it is resumed it runs, on the thread that resumes it, until it suspends itself
//! or ends.
//!
//! ```text
//!             one slab = one mmap, many stacks            (addresses grow to the right)
//!   ┌───────┬──────────────┬────────┬───────┬──────────────┬────────┬─────
//!   │ guard │ usable  <----│ header │ guard │ usable  <----│ header │ ...
//!   └───────┴──────────────┴────────┴───────┴──────────────┴────────┴─────
//!   low                             low + stride                       the stack grows to the left
//! ```
//!
//! The switch is inlined, and has no system call: on x86-64 it is in this crate (`direct`),
//! elsewhere it is that of crate corosensei (`linked`). The rest of this crate is about stacks: it
//! allocates them, reports an overflow with the worker's name, and never frees a stack that has
//! frames on it.
//!
//! How this crate keeps the named invariants that its unsafe blocks cite:
//!
//! * Own Memory: each address range that is passed to the kernel lies inside a mapping that
//!   [`StackPool`] has made and not unmapped, and that no code borrows. A stack is either in its
//!   pool or *out*. While it is out the pool neither touches nor unmaps it, not even when the pool
//!   is dropped.
//! * Frozen Stack: the frames of a suspended fiber are never freed, reused or unwound. Its stack
//!   becomes free only when the fiber has been resumed to its end.
//! * Signal: the code of the fault handler only reads atomics, formats into its own frame and calls
//!   functions that POSIX allows in a signal handler. It relies on the arguments that the kernel
//!   passes.
//! * Contract: a suspender is used only on its own fiber's stack, while that fiber runs.
//!
//! What this crate does not do: it has no scheduler, moves no fiber between threads, and passes no
//! value through a switch. It does not catch a panic of a fiber's closure: a panic that reaches the
//! *root*, the fiber's first frame, prints a message and aborts the process.
//!
//! # Tools
//!
//! Stacks are registered with valgrind when they are created; outside valgrind that is a few
//! instructions without effect for each stack. `--cfg asan` reports each switch to
//! AddressSanitizer (needs `-Zsanitizer=address`), and `--cfg tsan` to ThreadSanitizer (needs
//! `-Zsanitizer=thread`). Backtraces, `perf` call graphs and debuggers show the fiber's frames,
//! then the fiber's root, then the frames of the code that resumed it; under AddressSanitizer they
//! end at the root.
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

// Arithmetic of times is checked; clippy.toml says what the lint leaves out.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

#[cfg(not(target_os = "linux"))]
compile_error!("fiber builds its stacks from Linux's mmap and madvise");

mod sys;

mod registry;
mod slab;
mod stack;

mod switch;

mod fiber;
mod overflow;
mod pool;
mod saved;

#[cfg(test)]
mod child;

pub use fiber::{Fiber, Suspender};
pub use overflow::{HostGuard, install_overflow_handler, prepare_host_thread};
pub use pool::{StackConfig, StackPool, StackStats};
pub use saved::{Registers, SAVED_WORDS};
pub use slab::StackError;
pub use stack::{Name, Stack, StackRange, StackThread, leaked};
pub use switch::Resume;
