//! Records of what schedulers do: reasons of waits, counters, times, events and messages.
//!
//! Schedulers write these records as they run; any thread may read them. Nothing in this room uses
//! workers, schedulers or waits.

pub(crate) mod counters;
pub(crate) mod event_ring;
pub(crate) mod frame;
pub(crate) mod plural;
pub(crate) mod reason;
pub(crate) mod report;
pub(crate) mod spans;
pub(crate) mod wait_stats;
