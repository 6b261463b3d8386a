//! Undeclared blocks: a worker that blocks in the kernel without having gone preemptive loses the
//! baton. The rest of the scheduler uses only what is listed here:
//!
//! ```text
//!   called by   what
//!   host        watch_for_blocks              the scheduler begins
//!               watch_worker, WatchedWorker   a worker's thread begins and ends
//!               stir_place                    a thread is about to run that did not run before
//!               make_blocked_preemptive       the standby has the baton of a blocked worker
//!   stop        watch_no_more                 the scheduler ends
//!   contexts    is_in_user_code, baton_was_taken, make_blocked_preemptive, progress
//!   preempt     is_calm                       whether the current worker may leave where it is
//! ```
//!
//! * `watched` uses the block watch for thread workers, and asks `contexts` about the kernel thread
//!   that hosts workers with their own context.
//! * `taker` is for thread workers without block watch.

mod state;
mod taker;
mod watched;

use super::{Scheduler, WorkerKind};

pub(super) use state::{Detection, REASON};
pub use taker::taking_over_is_refused;

impl Scheduler {
    /// Begins to detect workers that block undeclared, by the means that the options ask for.
    /// Called on the standby's thread.
    pub(super) fn watch_for_blocks(&self) -> std::io::Result<()> {
        self.open_place()?;
        self.open_taker()
    }

    /// Ends the detection: no worker loses the baton any more.
    pub(super) fn watch_no_more(&self) {
        self.close_place();
        self.close_taker();
    }
}

/// Returns whether undeclared blocks of workers of this kind can be detected.
pub(crate) fn can_detect(kind: WorkerKind) -> bool {
    kind != WorkerKind::Fiber
}

#[cfg(all(test, not(loom)))]
mod tests;
