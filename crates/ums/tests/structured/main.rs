//! Bounds, scopes, groups, tokens, selects and request-locals, in every kind of worker: time limits
//! and shields hold for each wait inside, what a scope or group has started ends with it, exactly
//! one arm of a select happens, and a request sees no values but its own.

#[path = "../common/mod.rs"]
mod common;

mod borrowing;
mod bounds;
mod ending;
mod groups;
mod locals;
mod scopes;
mod select;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use ums::stats::WorkerState;
use ums::{Node, WaitError, WaitReason};

const CANCELLED: WaitError = WaitError::Cancelled;
const TIMED_OUT: WaitError = WaitError::TimedOut;
const SHORT: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Returns how many workers wait for this reason.
fn waiting(node: &Node, reason: WaitReason) -> usize {
    let workers = node.snapshot().workers;
    workers.iter().filter(|w| w.state == WorkerState::Waiting && w.reason == Some(reason)).count()
}

/// Sleeps until the request is cancelled or the time is over, and counts that.
fn sleeps(ended: &AtomicUsize) -> Result<(), WaitError> {
    let slept = ums::sleep(HOUR);
    ended.fetch_add(1, SeqCst);
    slept
}
