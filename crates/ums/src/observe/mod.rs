//! Observing a node while it runs: tables, metrics, traces, backtraces of workers, and the last
//! events before a crash.
//!
//! Everything here only reads what schedulers publish.

pub(crate) mod crash;
mod environment;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
pub(crate) mod stacks;
#[cfg(feature = "metrics")]
pub(crate) mod stats;
pub(crate) mod trace;
pub(crate) mod umsstats;
pub(crate) mod views;
