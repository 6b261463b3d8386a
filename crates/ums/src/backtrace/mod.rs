//! Backtraces: which functions a thread or a suspended worker is in, with their names.
//!
//! ```text
//!   a worker --looker--> sample or copy of its stack --unwind--> addresses --symbols--> names
//!                                                                   |
//!                                        loaded: the object at an address, and its file
//! ```
//!
//! The monitor's reports, [`Node::stacks`](crate::Node::stacks) and simulation use it. No scheduler
//! is stopped for a backtrace. Without the feature `symbols` no stack is unwound, and a backtrace
//! is one address.

#[cfg(feature = "symbols")]
mod loaded;
#[cfg(feature = "symbols")]
mod symbols;
#[cfg_attr(not(feature = "symbols"), path = "unwind_off.rs")]
pub(crate) mod unwind;
pub(crate) mod looker;
