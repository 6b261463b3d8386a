//! What is noted while schedulers run: reasons of waits, counters, times, events and messages.
//!
//! Everything here is written on the schedulers' paths and read from anywhere else. It knows no
//! worker, no scheduler and no wait.

pub(crate) mod counters;
pub(crate) mod event_ring;
pub(crate) mod frame;
pub(crate) mod reason;
pub(crate) mod report;
pub(crate) mod spans;
pub(crate) mod wait_stats;
