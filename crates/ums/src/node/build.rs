//! Builds a node: checks its options, and starts its schedulers.

use std::io;
use std::sync::Arc;

use super::builder::Builder;
use super::handle::Node;
use super::inner::{HiddenOptions, NodeInner};
use super::room::raise_descriptors;
use super::started::Started;
use crate::os::clock;
use crate::os::limits;
use crate::os::linux::cpus::Cpus;
use crate::record::plural::counted;
use crate::scheduler::{self, Peers, WorkerKind, WorkerLimit};
use crate::wait::error::BuildError;

impl Builder {
    /// Builds the node as [`build`](Builder::build) does, but ignores the environment.
    pub(crate) fn start(self) -> Result<Node, BuildError> {
        clock::start();
        let machine = Cpus::read();
        let cpus = machine.count;
        let count = self.schedulers.unwrap_or(cpus);
        let option = |text: String| Err(BuildError::Option(text));
        if count == 0 || count > 1024 {
            return option(format!("{count} schedulers: there must be 1 to 1024"));
        }
        // The stack size is checked first, because the automatic limit is computed from it.
        self.check_stack_size()?;
        let limit = self.limit(cpus, count);
        let workers = limit.hard;
        if workers < count {
            let (workers, count) = (counted(workers, "worker"), counted(count, "scheduler"));
            return option(format!("{workers} for {count}: each scheduler needs at least one"));
        }
        if workers.div_ceil(count) > limits::WORKERS_PER_SCHEDULER_MAX {
            return option(format!("{workers} workers are more than this library can number"));
        }
        self.check_kind(count)?;
        raise_descriptors();
        let os = |what| move |source| BuildError::Os { what, source };
        let started = self.start_visible(count, limit, &machine);
        let (visible, threads) = started.map_err(os("starting a scheduler"))?.keep();
        let inner = Arc::new(NodeInner::of(self, visible, threads));
        inner.register();
        for scheduler in &inner.visible {
            let _ = scheduler.node.set(inner.number);
        }
        // From here on, an error drops the node, which stops everything that was started.
        let node = Node { inner: inner.clone(), owner: true };
        if inner.builder.kind == WorkerKind::Fiber {
            // This scheduler runs the fibers' external calls (U85). It is not shown in umsstats
            // (U86).
            let outside = inner.hidden("preemptive", HiddenOptions::default());
            let outside = outside.map_err(os("starting the hidden scheduler for external code"))?;
            for scheduler in &inner.visible {
                let _ = scheduler.outside.set(Arc::downgrade(&outside));
            }
        }
        #[cfg(feature = "monitor")]
        inner.start_watching().map_err(os("starting the monitor"))?;
        Ok(node)
    }

    /// Starts the visible schedulers and gives each of them the list of all.
    fn start_visible(
        &self,
        count: usize,
        limit: WorkerLimit,
        machine: &Cpus,
    ) -> io::Result<Started> {
        let peers = Arc::new(Peers::new(count));
        let mut started = Started::default();
        for index in 0..count {
            // The shares differ by at most one: 255 workers over 4 schedulers are 64, 64, 64 and 63
            // (G9).
            let share = limit.share(index, count);
            // Processor numbers need not begin at 0, so they are taken from the affinity mask.
            let place = machine.allowed.get(index).copied().filter(|_| self.pin);
            // The detection of blocked workers needs a scheduler's threads on one processor.
            let detects = self.detect_blocking && self.kind.is_thread();
            let any = || machine.allowed.get(index % machine.allowed.len().max(1)).copied();
            let place = if detects { place.or_else(any) } else { place };
            let options = self.options(index.to_string(), true, share, place);
            let made = scheduler::start(index, options, peers.clone());
            let (scheduler, thread) = made?;
            started.schedulers.push(scheduler);
            started.threads.push(thread);
        }
        peers.introduce(started.schedulers.iter().map(Arc::downgrade).collect());
        Ok(started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_that_fails_half_way_stops_what_it_had_started_g13() {
        let builder = Node::builder();
        let mut started = Started::default();
        let peers = Arc::new(Peers::new(2));
        for index in 0..2 {
            let options =
                builder.options(index.to_string(), true, WorkerLimit::of_builder(2), None);
            let (scheduler, thread) = scheduler::start(index, options, peers.clone()).unwrap();
            started.schedulers.push(scheduler);
            started.threads.push(thread);
        }
        let left: Vec<_> = started.schedulers.iter().map(Arc::downgrade).collect();
        drop(started);
        assert!(
            left.iter().all(|scheduler| scheduler.upgrade().is_none()),
            "their threads have ended"
        );
    }
}
