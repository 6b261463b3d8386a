//! Undeclared blocks: a worker that blocks in the kernel without having gone preemptive loses the
//! baton. The rest of the scheduler uses only the functions that are listed here:
//!
//! ```text
//!   called by       what
//!   kinds/threads   watch_threads                 the scheduler begins
//!                   watch_worker, WatchedWorker   a worker's thread begins and ends
//!                   make_blocked_preemptive       the standby has the baton of a blocked worker
//!   kinds/contexts  open_place                    the scheduler begins
//!                   is_in_user_code, baton_was_taken, make_blocked_preemptive, progress, is_stuck
//!   idle, kinds     stir_place                    a thread runs next that did not run before
//!   stop            watch_no_more                 the scheduler ends
//!   preempt         is_calm                       may the current worker leave where it is?
//! ```
//!
//! * `watched` uses the block watch for thread workers. For workers with their own context,
//!   `kinds/contexts/host.rs` does.
//! * `taker` is for thread workers without block watch.

mod state;
mod taker;
mod watched;

use super::Scheduler;
use watched::DetectingScheduler;

pub(super) use state::{Detection, REASON};
pub use taker::taking_over_is_refused;

impl Scheduler {
    /// Begins to detect thread workers that block undeclared, by the means that the options ask
    /// for. Called on the standby's thread.
    pub(super) fn watch_threads(&self) -> std::io::Result<()> {
        self.open_place(Box::new(DetectingScheduler(self.me.clone())))?;
        self.open_taker()
    }

    /// Ends the detection: no worker loses the baton any more.
    pub(super) fn watch_no_more(&self) {
        self.close_place();
        self.close_taker();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
