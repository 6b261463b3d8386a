//! Schedulers that have been started for a node which is not complete. If the next one cannot be
//! had, they are taken down again.

use std::sync::Arc;

use crate::os::threads::JoinHandle as Thread;
use crate::scheduler::Scheduler;

/// Schedulers of a node that is being built. Dropped early, it takes them down again.
#[derive(Default)]
pub(super) struct Started {
    pub schedulers: Vec<Arc<Scheduler>>,
    pub threads: Vec<Thread>,
}

impl Started {
    /// All are there: they are the node's from here on.
    pub fn keep(mut self) -> (Vec<Arc<Scheduler>>, Vec<Thread>) {
        (std::mem::take(&mut self.schedulers), std::mem::take(&mut self.threads))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.schedulers.iter().for_each(|scheduler| scheduler.end());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
