//! How a node shuts down: it stops accepting requests, finishes those that it has accepted,
//! and ends its schedulers.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::handle::{Node, ShutdownReport};
use super::{acceptors, running};
use crate::os::clock::{self, NEVER};
use crate::os::threads::{self, ThreadHandle, wait_until};
use crate::record::report::{self, WarningKind};
use crate::scheduler::work_queue::Caller;
use crate::scheduler::{Scheduler, away, here};
use crate::task;
use crate::wait::Waiter;

impl Node {
    /// Shuts the node down; see [`Node::shutdown`] and, if it `drains`, [`Node::drain`].
    pub(super) fn end(&self, grace: Duration, drains: bool) -> ShutdownReport {
        let is_worker = here().is_some() || away().is_some();
        assert!(!is_worker, "a node is shut down from a plain thread, not from its worker");
        let node = &self.inner;
        let mut report = ShutdownReport::default();
        if node.closing.swap(true, Ordering::AcqRel) {
            report.left = Ending::of(self, grace, false).left();
            return report;
        }
        if drains {
            node.acceptors.stop();
        }
        let ending = Ending::of(self, grace, drains);
        let all = &ending.all;
        let deadline = clock::after(grace);
        // Accepted requests are finished. So the node closes its queues in three steps. First it
        // refuses requests from outside. When no request is left that could wait for I/O, it
        // refuses those of completion routines, too. In the end it refuses all requests.
        for callers in [Caller::Routine, Caller::Request] {
            all.iter().for_each(|scheduler| scheduler.queue.open_to(callers));
            let left = deadline.saturating_sub(clock::now());
            wait_until(Duration::from_nanos(left), || ending.is_quiet());
            threads::point("end: quiet");
        }
        for scheduler in all {
            for request in scheduler.queue.close() {
                report.cancelled += usize::from(ending.counts(scheduler));
                request.abandon().into_iter().for_each(crate::current::ready);
            }
        }
        if ending.busy() > 0 {
            report.cancelled += ending.unfinished();
            self.cancel_running();
            wait_until(grace.max(Duration::from_secs(1)), || ending.is_over());
        }
        node.stop_observing();
        for scheduler in all {
            scheduler.end();
        }
        self.join_threads(all, grace);
        report.left = ending.left();
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
                if has_request(waiter) {
                    task::pass_on(crate::scheduler::request::cancel_waiter(waiter));
                }
            }
        }
    }
}

/// A node that ends.
struct Ending<'a> {
    node: &'a Node,
    all: Vec<Arc<Scheduler>>,
    /// What this scheduler runs does not count.
    errands: Option<Arc<Scheduler>>,
    grace: Duration,
    drains: bool,
    /// When to say what the node waits for.
    says_at: Cell<u64>,
}

impl Ending<'_> {
    fn of(node: &Node, grace: Duration, drains: bool) -> Ending<'_> {
        let (all, errands) = (node.inner.all(), node.inner.errands());
        let says = drains && node.inner.builder.warnings;
        let says_at = Cell::new(if says { clock::after(running::PATIENCE) } else { NEVER });
        Ending { node, all, errands, grace, drains, says_at }
    }

    fn busy(&self) -> usize {
        self.all.iter().map(|s| s.load()).sum()
    }

    /// Returns how many requests that count have not ended.
    fn unfinished(&self) -> usize {
        self.all.iter().filter(|s| self.counts(s)).map(|s| s.load()).sum()
    }

    fn moved(&self) -> u64 {
        let of = |s: &Arc<Scheduler>| {
            [&s.counters.requests_done, &s.counters.stolen].map(|n| n.load(Ordering::Acquire))
        };
        self.all.iter().flat_map(of).fold(0, u64::wrapping_add)
    }

    /// Returns whether no request is queued, waits or runs.
    ///
    /// The loads are read one after the other. A request that is in none of them, and still waits
    /// or runs, was stolen meanwhile, or was queued by a request that has ended meanwhile. Both
    /// events are counted before the request leaves a load, so `moved` has changed.
    fn is_quiet(&self) -> bool {
        if self.drains {
            acceptors::cancel_waiting(&self.all);
        }
        let before = self.moved();
        let have_ended = !self.drains || self.node.inner.acceptors.have_ended();
        have_ended && self.is_over() && self.moved() == before
    }

    /// Returns whether the loads are zero. If they have not been for long, says so.
    fn is_over(&self) -> bool {
        let over = self.busy() == 0;
        if !over && clock::now() >= self.says_at.get() {
            self.says_at.set(NEVER);
            self.say_what_runs();
        }
        over
    }

    #[cold]
    fn say_what_runs(&self) {
        let Some(runs) = running::what_runs(self.node) else { return };
        let grace = self.grace.as_secs_f64();
        let text = format_args!(
            "a node that drains waits: {runs}. After the grace time ({grace:.1} s) tasks are \
             cancelled, and then have as long again to end"
        );
        report::warn(WarningKind::Ending, text);
    }

    /// Returns whether the requests and workers of this scheduler count.
    fn counts(&self, scheduler: &Arc<Scheduler>) -> bool {
        self.errands.as_ref().is_none_or(|errands| !Arc::ptr_eq(errands, scheduler))
    }

    /// Returns how many workers could not be ended.
    fn left(&self) -> usize {
        let (counted, others): (Vec<_>, Vec<_>) = self.all.iter().partition(|s| self.counts(s));
        let left = |these: Vec<&Arc<Scheduler>>| these.into_iter().map(|s| left_on(s)).sum();
        match left(counted) {
            0 => left(others),
            some => some,
        }
    }
}

fn has_request(waiter: &Waiter) -> bool {
    waiter.record.view.request.load(Ordering::Relaxed) != 0
}

/// Returns how many workers the scheduler could not end. If some of them still carry out a request,
/// the idle ones are left only because these hold up the scheduler, and do not count.
fn left_on(scheduler: &Scheduler) -> usize {
    let left = scheduler.left_over();
    match left.iter().filter(|waiter| has_request(waiter)).count() {
        0 => left.len(),
        busy => busy,
    }
}
