//! The options of a node.

use std::time::Duration;

#[cfg(feature = "monitor")]
use crate::monitor;
use crate::node::placement::Placement;
use crate::os::limits;
use crate::os::linux::open::Choice;
use crate::scheduler::WorkerKind;

/// The options of a node, created by [`Node::builder`](crate::Node::builder). The defaults suit a
/// server.
///
/// ```
/// let node = ums::Node::builder().schedulers(2).max_workers(100).build()?;
/// assert_eq!(node.scheduler_count(), 2);
/// # Ok::<(), ums::BuildError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    pub(super) kind: WorkerKind,
    pub(super) schedulers: Option<usize>,
    pub(super) max_workers: Option<usize>,
    pub(super) min_workers: usize,
    pub(super) placement: Placement,
    pub(super) fifo: bool,
    pub(super) queue_limit: usize,
    pub(super) stack_size: Option<usize>,
    pub(super) precommit: bool,
    pub(super) idle_worker_timeout: Duration,
    pub(super) idle_spin: Option<Duration>,
    pub(super) holder_spin: Duration,
    pub(super) queue_timeout: Duration,
    pub(super) preemptive_limit: Option<usize>,
    pub(super) pin: bool,
    pub(super) detect_blocking: bool,
    pub(super) take_over_blocked: bool,
    pub(super) io: Choice,
    #[cfg(feature = "monitor")]
    pub(super) monitor: Option<monitor::Options>,
    /// What the environment says of the monitor, for a program that has not chosen its options.
    pub(super) watched_by_default: Option<bool>,
    pub(super) ring: bool,
    pub(super) warnings: bool,
    pub(super) for_c: bool,
    #[cfg(test)]
    pub(super) soft_limit: Option<usize>,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            kind: WorkerKind::Thread,
            schedulers: None,
            max_workers: None,
            min_workers: 1,
            placement: Placement::default(),
            fifo: false,
            queue_limit: limits::QUEUE_MAX,
            stack_size: None,
            precommit: false,
            idle_worker_timeout: Duration::from_nanos(limits::TRIM_AFTER_NS),
            idle_spin: None,
            holder_spin: Duration::from_nanos(limits::HOLDER_SPIN_NS),
            queue_timeout: Duration::MAX,
            preemptive_limit: None,
            pin: false,
            detect_blocking: false,
            take_over_blocked: true,
            io: Choice::Auto,
            #[cfg(feature = "monitor")]
            monitor: None,
            watched_by_default: None,
            ring: true,
            warnings: true,
            for_c: false,
            #[cfg(test)]
            soft_limit: None,
        }
    }
}

impl Builder {
    /// Sets the number of schedulers, 1 to 1024. The default is the number of processors that the
    /// process may use: the least of its affinity mask, its cpuset and its control group's quota,
    /// rounded up.
    pub fn schedulers(mut self, n: usize) -> Builder {
        self.schedulers = Some(n);
        self
    }

    /// Sets the largest number of workers of all schedulers together. The number is divided evenly
    /// among the schedulers: two shares differ by at most one. Once all workers are busy, requests
    /// queue until a worker is free.
    ///
    /// Leave it out unless the program must bound its threads and stacks. The default is the number
    /// for which the system has room. It depends on memory, mappings, threads and process numbers,
    /// whichever is scarcest, and is usually thousands. [`Node::snapshot`](crate::Node::snapshot)
    /// has each scheduler's share (`workers_max`), and the repository's command `ums probe` prints
    /// the limit. From 512 workers on (more on more than four processors), a further worker is
    /// created only if none becomes free for 10 ms, or a request has been queued for 100 ms.
    ///
    /// A limit must be at least the number of tasks that wait at the same time. A task that has
    /// begun keeps its worker while it waits. For example, a proxy with two tasks for each
    /// connection needs two workers for each connection. If every worker waits for something that
    /// only a queued task would do, nothing continues: after a second a message on stderr says
    /// that the scheduler stands still. Then leave `max_workers` out, raise it, or let fewer tasks
    /// wait at once, for example by a semaphore as at
    /// [`TcpListener::accept`](crate::net::TcpListener::accept).
    pub fn max_workers(mut self, n: usize) -> Builder {
        self.max_workers = Some(n);
        self
    }

    /// Sets how many idle workers each scheduler keeps, however long they are idle. The default is
    /// 1.
    pub fn min_workers(mut self, n: usize) -> Builder {
        self.min_workers = n;
        self
    }

    /// Sets how users and requests are spread over the schedulers. The default is
    /// [`Placement::Hinted`].
    pub fn placement(mut self, placement: Placement) -> Builder {
        self.placement = placement;
        self
    }

    /// Selects the behaviour of SQL Server 2000's User Mode Scheduler: classic placement, a
    /// first-in-first-out runnable list, 255 workers, no polling before a scheduler sleeps.
    pub fn classic(mut self) -> Builder {
        self.placement = Placement::Classic;
        self.fifo = true;
        self.max_workers = Some(limits::CLASSIC_WORKERS);
        self
    }

    /// Sets how many requests may wait for a worker on one scheduler; further ones are refused with
    /// [`EnqueueError`](crate::node::EnqueueError). The default is 1,048,576.
    pub fn queue_limit(mut self, n: usize) -> Builder {
        self.queue_limit = n;
        self
    }

    /// Sets how long a request may wait for a worker. A request that has waited longer is not run:
    /// its `JoinHandle` returns [`JoinError::NeverRan`](crate::task::JoinError), and a served
    /// connection is refused and closed. Requests of users that hold a lock are exempt. The default
    /// is no limit.
    pub fn queue_timeout(mut self, span: Duration) -> Builder {
        self.queue_timeout = span;
        self
    }

    /// Sets the size of a worker's stack in bytes. The default is 2 MiB for threads and 256 KiB for
    /// fibers. This is address space, backed by memory only where it is touched. The least is 16
    /// KiB for fibers, 32 KiB for threads and about 64 KiB for workers with their own context.
    pub fn stack_size(mut self, bytes: usize) -> Builder {
        self.stack_size = Some(bytes);
        self
    }

    /// Sets whether fiber stacks are backed with memory when they are created, so that their growth
    /// can never fail. The default is false.
    pub fn precommit_stacks(mut self, yes: bool) -> Builder {
        self.precommit = yes;
        self
    }

    /// Sets how long a worker may be idle before it is destroyed. The default is 15 minutes.
    pub fn idle_worker_timeout(mut self, span: Duration) -> Builder {
        self.idle_worker_timeout = span;
        self
    }

    /// Sets how long a scheduler without work polls before it sleeps: zero for never.
    ///
    /// By default a scheduler learns how long it pays to poll. It polls for at most 50 microseconds
    /// and only while another scheduler of the node has run in the last millisecond. If its idle
    /// periods are long, or I/O ends them, it does not poll at all; an idle process sleeps. Time
    /// that is polled in vain, or for longer than it takes to sleep and wake up, is at most 5 % of
    /// the processor's time. [`SchedulerCounters`](crate::stats::SchedulerCounters) counts the
    /// polls and their time. With a fixed time there is no such limit.
    pub fn idle_spin(mut self, span: Duration) -> Builder {
        self.idle_spin = Some(span);
        self
    }

    /// Sets how long a scheduler without work polls for the next request of a served user that
    /// holds a lock ([`User::hold`](crate::User::hold)) before it sleeps. The default is 100
    /// microseconds, because others wait for that user, and a client that answers immediately does
    /// so in less time than it takes to wake a sleeping thread. The time is spent at most once for
    /// each request, and other threads may run meanwhile. With zero the scheduler sleeps
    /// immediately.
    pub fn holder_spin(mut self, span: Duration) -> Builder {
        self.holder_spin = span;
        self
    }

    /// Sets how many workers of one scheduler may be preemptive at the same time (see
    /// [`go_preemptive`](crate::go_preemptive)). Further workers wait. 0 counts as 1. By default,
    /// only the number of workers limits it.
    pub fn preemptive_limit(mut self, n: usize) -> Builder {
        self.preemptive_limit = Some(n);
        self
    }

    /// Sets whether each scheduler's threads are pinned to a processor of their own. Schedulers for
    /// which there is no further processor are not pinned. The default is false.
    pub fn pin(mut self, yes: bool) -> Builder {
        self.pin = yes;
        self
    }

    /// Sets whether a worker that blocks in the kernel is detected. If it is, its scheduler runs
    /// other workers, and the worker's own code continues only after its scheduler has chosen it
    /// again. This works for thread workers and workers with their own context; with fiber workers
    /// it is an error, because they share their scheduler's thread. Blocking system
    /// calls and page faults are detected with perf events. The repository's command `ums probe`
    /// tells whether the system allows them. If the system refuses them, only programs that use
    /// [`interpose!`](crate::interpose) have their calls detected: in such a program, the functions
    /// of the C library tell the scheduler before they block, which is also faster. With this
    /// option, each scheduler's threads are pinned to one processor, and a switch between workers
    /// costs a few more system calls. The default is false, which costs nothing.
    ///
    /// For workers with their own context, a blocked system call is interrupted and made again;
    /// each of their schedulers has a few more threads, and uses epoll instead of io_uring.
    /// Interposed calls of these workers are handled without this option.
    ///
    /// The page `docs/workers.md` in the repository compares this with
    /// [`take_over_blocked`](Builder::take_over_blocked), which is on by default.
    pub fn detect_blocking(mut self, yes: bool) -> Builder {
        self.detect_blocking = yes;
        self
    }

    /// Sets which I/O back end to use. The default is the best one that the system allows.
    pub fn io(mut self, choice: Choice) -> Builder {
        self.io = choice;
        self
    }
}
