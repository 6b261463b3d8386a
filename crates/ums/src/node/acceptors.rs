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

    /// Returns whether every connection has closed.
    fn has_ended(&self) -> bool;
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
        self.alive().iter().for_each(|acceptor| acceptor.stop());
    }

    /// Returns whether every connection of every server has closed. A session that is told of the
    /// stop gets a request from a completion routine, so it may still get one while no request
    /// waits or runs.
    pub fn have_ended(&self) -> bool {
        self.alive().iter().all(|acceptor| acceptor.has_ended())
    }

    /// A server may be dropped for the last time by the caller, which must not happen under the
    /// lock.
    fn alive(&self) -> Vec<Arc<dyn Acceptor>> {
        self.all.lock().iter().filter_map(Weak::upgrade).collect()
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
