//! Switches threads in user mode: a thread leaves its kernel thread, and another kernel thread
//! resumes it.
//!
//! To Rust and to C a thread is its stack, its thread control block and the thread-locals in it.
//! The processor finds these by two registers, the stack pointer and the FS base (on aarch64
//! TPIDR_EL0), and user code may write both. So a thread can stop on one kernel thread and resume
//! on another, with the same stack and the same thread-locals.
//!
//! Nouns. A *context* is the record of such a thread: its saved registers, among them the two
//! above. Its *own kernel thread* is the kernel thread that it began on, which sleeps while the
//! context is elsewhere. A *host* is a thread on whose kernel thread other contexts run, one at a
//! time. The host's own context is its *root*. A context is *coupled* while it runs on its own
//! kernel thread.
//!
//! ```text
//!            detach, decouple                     switch_to
//!   COUPLED ------------------> SAVED <---------------------------> ON A HOST
//!      ^  on its own kernel       |                                     |
//!      |  thread                  | release                             | leave_for
//!      +--------------------------+-------------------------------------+
//!
//!   one context's stack (grows to the left)
//!   +--------------------------------------+-----------+-----------------------+
//!   | ... the context's frames, coupled or |    gap    | the thread's first    |
//!   |     on a host; its saved registers   |           | frames, `detach` last |
//!   +--------------------------------------+-----------+-----------------------+
//!                                                      ^ its own kernel thread sleeps here
//! ```
//!
//! The own kernel thread sleeps in a loop of a few instructions that touch neither the stack nor
//! the thread-locals, because the context may be running elsewhere, on the same stack and with the
//! same thread control block. The *gap* is a part of the stack that no frame uses. The frame of the
//! one signal that the sleeping kernel thread takes lies there (see `setxid.rs`). Nothing else
//! touches the gap, so it costs address space only.
//!
//! How this crate keeps the named invariants that its unsafe blocks cite:
//!
//! * One Place: a context is coupled, saved, or on one host. Only the code that runs in it switches
//!   away from it, and only one thread resumes a saved one. Other threads are notified that a
//!   context can be resumed only after all its registers have been saved: in `decouple` its own
//!   kernel thread sends a [`Post`] (a notification) from the gap, and `leave_for` wakes the own
//!   kernel thread from the next context's stack. A root, and the kernel thread that it runs on,
//!   exist as long as a context is on that host.
//! * Frozen Stack: whenever code of a context runs, the FS base is that of the context, and the
//!   stack is its own. Both change together, in one switch. So an address of a thread-local that
//!   compiled code keeps over a switch stays valid.
//!
//! These belong to the kernel thread and not to the context: `gettid`, credentials, signal mask,
//! affinity, priority, namespaces, mutexes with priority inheritance, processor clocks. Code that
//! needs its own couples first.
//!
//! What this crate does not do: it has no scheduler, chooses no context, preempts none, and does
//! not detect that a context blocks in the kernel. Such a block holds up the host.

// Arithmetic of times is checked; clippy.toml says what the lint leaves out.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]
// On these systems `elsewhere` has safe functions in place of the unsafe ones, so the `unsafe`
// around their calls is unused.
#![cfg_attr(
    not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_env = "gnu")),
    allow(unused_unsafe)
)]

#[cfg(not(target_os = "linux"))]
compile_error!("context detaches threads by means of Linux");

mod post;
mod record;

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod x86_64;
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
use x86_64 as arch;
#[cfg(all(target_arch = "aarch64", target_env = "gnu"))]
mod aarch64;
#[cfg(all(target_arch = "aarch64", target_env = "gnu"))]
use aarch64 as arch;
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_env = "gnu")))]
mod elsewhere;
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_env = "gnu")))]
use elsewhere as arch;

mod support;
mod setxid;
// One way to say it for all crates.
#[cfg(test)]
#[path = "../../ums/src/testing/skipped.rs"]
mod skipped;
mod thread;

pub use post::Post;
pub use record::Context;
pub use support::{Refused, least_stack, supported};
pub use thread::Host;
