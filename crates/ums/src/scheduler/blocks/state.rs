//! The data that a scheduler keeps to detect undeclared blocks.

use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::{Arc, OnceLock};

use crate::record::reason::WaitReason;
use crate::watch::Place;
use crate::watch::watchdog::Subject;

/// The wait reason under which undeclared blocks are counted.
pub(in crate::scheduler) const REASON: WaitReason = WaitReason::PREEMPTIVE_EXTERNAL;

/// Detects that a worker has blocked undeclared, and takes the baton from it.
#[derive(Default)]
pub(crate) struct Detection {
    /// The scheduler's place in the block watch, with `detect_blocking`.
    pub(super) place: OnceLock<Arc<Place>>,
    /// Takes the baton from a blocked worker without block watch, with `take_over_blocked`.
    pub(super) taker: OnceLock<Arc<dyn Subject>>,
    /// How the baton was taken from the current worker, until the standby has acted on it.
    pub(super) lost: AtomicU8,
    /// The progress at the watchdog's last look, and how many looks have found the scheduler stuck
    /// there.
    pub(super) stuck: [AtomicU64; 2],
}
