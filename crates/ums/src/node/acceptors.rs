//! What accepts connections on a node: servers, and requests that wait for a connection. A node
//! that drains stops them before it waits for its other requests.

use std::sync::{Arc, Weak};

use crate::os::lock::Lock;
use crate::scheduler::Scheduler;
use crate::wait::Letter;

/// A server that accepts connections itself, without a request that waits for them.
pub(crate) trait Acceptor: Send + Sync {
    /// Stops accepting, and lets what has been accepted end. It does not wait.
    fn stop(&self);
}

/// The servers of a node.
#[derive(Default)]
pub(crate) struct Acceptors {
    all: Lock<Vec<Weak<dyn Acceptor>>>,
}

impl Acceptors {
    pub fn add(&self, acceptor: Weak<dyn Acceptor>) {
        let mut all = self.all.lock();
        all.retain(|acceptor| acceptor.strong_count() > 0);
        all.push(acceptor);
    }

    pub fn stop(&self) {
        // A server may be dropped here for the last time, which must not happen under the lock.
        let all: Vec<_> = self.all.lock().iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|acceptor| acceptor.stop());
    }
}

/// Cancels the requests that wait for a connection. To be called again and again: between two such
/// waits a request waits for something else, or runs.
pub(super) fn cancel_waiting(all: &[Arc<Scheduler>]) {
    for scheduler in all {
        if scheduler.left_over().into_iter().any(Scheduler::accepts) {
            scheduler.inbox.send(Letter::CancelAccepts);
        }
    }
}
