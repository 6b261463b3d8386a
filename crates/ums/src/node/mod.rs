//! The node: the process's set of schedulers, and how it is built, used and shut down.
//!
//! By default there is one scheduler for each processor that the process may use. Workers are
//! spread evenly over the schedulers. Hidden schedulers, for background work, are created on
//! request.

// `builder.rs` and `kinds.rs` hold the options, `build.rs` starts the schedulers (U15, U17, B55,
// G9), `inner.rs` is the state that handles share, `handle.rs` is the interface that programs call,
// and `ending.rs` shuts the node down.
//
// A file uses only files that are declared above it.
pub(crate) mod placement;
pub(crate) mod stats_socket;
pub(crate) mod slow;
pub(crate) mod acceptors;
mod builder;
mod kinds;
mod room;
pub(crate) mod running;
mod started;
mod inner;
mod handle;
mod build;
mod ending;
mod seen;
#[cfg(feature = "monitor")]
mod watched;
pub(crate) mod user;
pub(crate) mod serve;

pub use builder::Builder;
pub use handle::{HiddenScheduler, Node, ShutdownReport};
pub use inner::HiddenOptions;
pub(crate) use inner::NodeInner;
pub use kinds::own_contexts_are_refused;
pub use placement::Placement;

pub use crate::os::linux::open::Choice as IoChoice;
pub use crate::wait::error::EnqueueError;

#[cfg(all(test, target_arch = "x86_64", not(loom)))]
mod interrupted_tests;
