//! Schedulers that have been started for a node that is not complete yet. If the next one cannot be
//! started, they are stopped again.

use std::sync::Arc;

use crate::os::threads::ThreadHandle;
use crate::scheduler::Scheduler;

/// The schedulers of a node that is being built. If this is dropped before `keep` is called, the
/// schedulers are stopped.
#[derive(Default)]
pub(super) struct Started {
    pub schedulers: Vec<Arc<Scheduler>>,
    pub threads: Vec<ThreadHandle>,
}

impl Started {
    /// Passes the ownership of all schedulers to the node.
    pub fn keep(mut self) -> (Vec<Arc<Scheduler>>, Vec<ThreadHandle>) {
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
