//! A thread that leaves its kernel thread, and is switched to in user mode on another.
//!
//! To Rust and to C a thread is its stack, its thread control block and the thread-locals in it.
//! The processor finds these by two registers, the stack pointer and the FS base (on aarch64
//! TPIDR_EL0), and user code may write both. So a thread of the language can stop on one kernel
//! thread and resume, whole, on another.
//!
//! Nouns. A *context* is such a thread as the switch sees it. Its *own kernel thread* is the one
//! that made it: it sleeps while the context is elsewhere. A *host* is a thread on whose kernel
//! thread contexts run, one after the other; it has a context too, its *root*. A context is
//! *coupled* while it runs on its own kernel thread.
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
//!   | ... the context's frames, wherever   |    gap    | the thread's first    |
//!   |     it runs; its saved registers     |           | frames, `detach` last |
//!   +--------------------------------------+-----------+-----------------------+
//!                                                      ^ here sleeps its own kernel thread
//! ```
//!
//! The own kernel thread sleeps in a few instructions that touch no stack, no thread-local and no
//! frame: the context that it belongs to may be running elsewhere, on the same stack and with the
//! same thread control block. The gap is there for the one signal that it takes (see `setxid.rs`).
//! It is never touched otherwise, and costs address space only.
//!
//! How this crate keeps the named invariants that its unsafe blocks cite:
//!
//! * One Place: a context is coupled, saved, or on one host. Only the code that runs in it switches
//!   away from it, and only one thread resumes a saved one. Other threads learn that a context can
//!   be resumed only when all its registers are saved: `decouple` tells them by a [`Post`], sent by
//!   the own kernel thread from the gap, and `leave_for` wakes the own kernel thread from the next
//!   context's stack. A root, and the kernel thread under it, exist as long as a context is on that
//!   host.
//! * Frozen Stack: while code of a context runs, wherever, the FS base is that of the context, and
//!   the stack is its own. Both change together, in one switch. So compiled code that keeps the
//!   address of a thread-local over a switch is right.
//!
//! What belongs to the kernel thread and not to the context: `gettid`, credentials, signal mask,
//! affinity, priority, namespaces, mutexes with priority inheritance, processor clocks. Code that
//! needs these couples first.
//!
//! What this crate does not do: it has no scheduler, chooses no context, preempts none, and does
//! not detect that a context blocks in the kernel. Such a block holds up the host.

// There the functions of `elsewhere` stand for those that are unsafe.
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
mod thread;

pub use post::Post;
pub use record::Context;
pub use support::{Refused, least_stack, supported};
pub use thread::Host;
