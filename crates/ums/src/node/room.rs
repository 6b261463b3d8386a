//! The limits that follow from the resources that the system has left, and the options of each
//! scheduler.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::builder::Builder;
use super::kinds;
use crate::os::limits;
use crate::os::linux::room::{Cost, Left, Room};
use crate::scheduler::{SchedulerOptions, WorkerKind, WorkerLimit};

/// The highest value to which the limit of descriptors is raised. There is a bound because some
/// programs loop over all possible descriptors.
const DESCRIPTORS_MAX: u64 = 1 << 20;

impl WorkerLimit {
    /// Returns the limit that the program has set.
    pub(super) fn of_builder(most: usize) -> WorkerLimit {
        WorkerLimit { hard: most, soft: most, set_by: None }
    }

    /// Returns the share of the scheduler with this index: 255 over 4 are 64, 64, 64 and 63.
    pub(super) fn share(self, index: usize, count: usize) -> WorkerLimit {
        let share = |all: usize| all / count + usize::from(index < all % count);
        WorkerLimit { hard: share(self.hard), soft: share(self.soft).max(1), set_by: self.set_by }
    }
}

impl Builder {
    /// Returns the limit of a node with this number of schedulers and processors.
    pub(super) fn limit(&self, cpus: usize, schedulers: usize) -> WorkerLimit {
        let limit = match self.max_workers {
            Some(most) => WorkerLimit::of_builder(most),
            None => self.automatic(self.kind, cpus, schedulers),
        };
        #[cfg(test)]
        let limit = WorkerLimit { soft: self.soft_limit.unwrap_or(limit.soft), ..limit };
        limit
    }

    /// Sets the soft limit, below that of `max_workers`.
    #[cfg(test)]
    pub(crate) fn soft_limit(mut self, n: usize) -> Builder {
        self.soft_limit = Some(n);
        self
    }

    /// Returns the limit for which the system has room, but at least one worker for each scheduler.
    pub(super) fn automatic(
        &self,
        kind: WorkerKind,
        cpus: usize,
        schedulers: usize,
    ) -> WorkerLimit {
        let stack = self.stack_of(kind);
        let cost = match kind {
            WorkerKind::Fiber => Cost::of_fiber(stack, self.precommit),
            WorkerKind::OwnContext => Cost::of_context(stack),
            WorkerKind::Thread => Cost::of_thread(stack),
        };
        let room = Room::for_workers(cost, &Left::read());
        let hard = room.workers.max(schedulers);
        WorkerLimit {
            hard,
            soft: limits::soft_limit_for(cpus).min(hard),
            set_by: Some(room.set_by),
        }
    }

    /// Returns the options of one scheduler.
    pub(super) fn options(
        &self,
        name: String,
        visible: bool,
        limit: WorkerLimit,
        pin: Option<usize>,
    ) -> SchedulerOptions {
        let kind = if visible { self.kind } else { WorkerKind::Thread };
        let stack = self.stack_of(kind);
        SchedulerOptions {
            name,
            kind,
            visible,
            limit,
            workers_floor: self.min_workers.min(limit.hard),
            workers_ready: 0,
            preemptive_max: self.preemptive_limit.unwrap_or(usize::MAX).max(1),
            queue_max: self.queue_limit,
            // The threads of a hidden scheduler may need more than the fibers for which the program
            // has set the size.
            stack_size: stack.max(kinds::least_stack(kind)),
            precommit: self.precommit,
            trim_after_ns: u64::try_from(self.idle_worker_timeout.as_nanos()).unwrap_or(u64::MAX),
            idle_spin_ns: match self.idle_spin {
                // Hidden schedulers are no peers of the others, and the original sleeps at once.
                None => (!visible || self.fifo).then_some(0),
                Some(span) => Some(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)),
            },
            holder_spin_ns: u64::try_from(self.holder_spin.as_nanos()).unwrap_or(u64::MAX),
            queue_timeout_ns: u64::try_from(self.queue_timeout.as_nanos()).unwrap_or(u64::MAX),
            passed_max: if self.fifo { 0 } else { limits::PASSED_MAX },
            steal: visible && self.placement.steals(),
            pin,
            nice: 0,
            detect_blocking: visible && self.detect_blocking && kind.is_thread(),
            take_over_blocked: self.take_over_blocked && !self.fifo,
            io: self.io,
            ring: self.ring,
            warnings: self.warnings,
            for_c: self.for_c,
        }
    }

    /// Returns the stack size of a worker of this kind in bytes.
    pub(super) fn stack_of(&self, kind: WorkerKind) -> usize {
        self.stack_size.unwrap_or(match kind {
            WorkerKind::Fiber => limits::FIBER_STACK,
            _ => limits::THREAD_STACK,
        })
    }
}

/// Raises the process's soft limit of descriptors to its hard limit. The soft limit is about a
/// thousand on most systems, which a server reaches soon. If the system refuses, the limit stays
/// unchanged.
pub(super) fn raise_descriptors() {
    if crate::os::sim::is_here() {
        return;
    }
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX).min(DESCRIPTORS_MAX);
    if limit.current.is_some_and(|now| now < most) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: limit.maximum });
    }
}
