//! What a scheduler keeps to detect undeclared blocks.

use std::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::{Arc, OnceLock};

use crate::record::reason::WaitReason;
use crate::watch::Place;
use crate::watch::watchdog::Subject;

/// The wait reason as which an undeclared block is counted.
pub(in crate::scheduler) const REASON: WaitReason = WaitReason::PREEMPTIVE_EXTERNAL;

/// What notices that a worker has blocked undeclared, and takes the baton from it.
#[derive(Default)]
pub(crate) struct Detection {
    /// The place of block watch, if the scheduler detects.
    pub(super) place: OnceLock<Arc<Place>>,
    /// What takes the baton from a blocked worker without block watch, if that option is on.
    pub(super) taker: OnceLock<Arc<dyn Subject>>,
    /// How the baton was taken from the current worker, until the standby has acted on it.
    pub(super) lost: AtomicU8,
    /// What the watchdog saw last time, and how often.
    pub(super) stuck: [AtomicU64; 2],
}
