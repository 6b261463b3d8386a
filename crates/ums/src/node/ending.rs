//! How a node shuts down: it stops accepting requests, finishes those that it has accepted,
//! and ends its schedulers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::acceptors;
use super::handle::{Node, ShutdownReport};
use crate::os::clock;
use crate::os::threads::{self, ThreadHandle, wait_until};
use crate::scheduler::work_queue::Caller;
use crate::scheduler::{Scheduler, away, here};
use crate::task;

impl Node {
    /// Shuts the node down; see [`Node::shutdown`] and, if it `drains`, [`Node::drain`].
    pub(super) fn end(&self, grace: Duration, drains: bool) -> ShutdownReport {
        let is_worker = here().is_some() || away().is_some();
        assert!(!is_worker, "a node is shut down from a plain thread, not from its worker");
        let node = &self.inner;
        let mut report = ShutdownReport::default();
        if node.closing.swap(true, Ordering::AcqRel) {
            return report;
        }
        if drains {
            node.acceptors.stop();
        }
        let all = node.all();
        let busy = || all.iter().map(|s| s.load()).sum::<usize>();
        let moved = || {
            let of = |s: &Arc<Scheduler>| {
                [&s.counters.requests_done, &s.counters.stolen].map(|n| n.load(Ordering::Acquire))
            };
            all.iter().flat_map(of).fold(0, u64::wrapping_add)
        };
        // The loads are read one after the other. A request that is in none of them, and still
        // waits or runs, was stolen meanwhile, or was queued by a request that has ended meanwhile.
        // Both events are counted before the request leaves a load, so `moved` has changed.
        let quiet = || {
            if drains {
                acceptors::cancel_waiting(&all);
            }
            let before = moved();
            let have_ended = !drains || node.acceptors.have_ended();
            have_ended && busy() == 0 && moved() == before
        };
        let deadline = clock::after(grace);
        // Accepted requests are finished. So the node closes its queues in three steps. First it
        // refuses requests from outside. When no request is left that could wait for I/O, it
        // refuses those of completion routines, too. In the end it refuses all requests.
        for callers in [Caller::Routine, Caller::Request] {
            all.iter().for_each(|scheduler| scheduler.queue.open_to(callers));
            let left = deadline.saturating_sub(clock::now());
            wait_until(Duration::from_nanos(left), quiet);
            threads::point("end: quiet");
        }
        for scheduler in &all {
            for request in scheduler.queue.close() {
                report.cancelled += 1;
                request.abandon().into_iter().for_each(crate::current::ready);
            }
        }
        if busy() > 0 {
            report.cancelled += busy();
            self.cancel_running();
            wait_until(grace.max(Duration::from_secs(1)), || busy() == 0);
        }
        node.stop_observing();
        for scheduler in &all {
            scheduler.end();
        }
        self.join_threads(&all, grace);
        report.left = all.iter().map(|s| s.left_over().len()).sum();
        report
    }

    /// Waits for the threads of the schedulers that can end, and joins them. They only have to run
    /// for a moment, but on a busy computer that may take long.
    fn join_threads(&self, all: &[Arc<Scheduler>], grace: Duration) {
        let mut threads = std::mem::take(&mut *self.inner.threads.lock());
        // Both lists are in the order of the schedulers' numbers. The thread of a scheduler that is
        // still busy will not end.
        let ending = || all.iter().zip(&threads).filter(|(s, _)| s.load() == 0);
        let patience = grace.max(Duration::from_secs(5));
        wait_until(patience, || ending().all(|(_, thread)| thread.is_finished()));
        for thread in threads.drain(..).filter(ThreadHandle::is_finished) {
            let _ = thread.join();
        }
    }

    fn cancel_running(&self) {
        for scheduler in self.inner.all() {
            for waiter in scheduler.left_over() {
                if waiter.record.view.request.load(Ordering::Relaxed) != 0 {
                    task::pass_on(crate::scheduler::request::cancel_waiter(waiter));
                }
            }
        }
    }
}
