//! Looking into a node while it runs: tables, metrics, traces, stacks of workers, and what is left
//! after a crash.
//!
//! Everything here reads what schedulers publish and takes part in nothing.

pub(crate) mod crash;
pub(crate) mod metrics;
pub(crate) mod stacks;
pub(crate) mod stats;
pub(crate) mod trace;
pub(crate) mod umsstats;
pub(crate) mod views;
