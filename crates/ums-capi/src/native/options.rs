//! The options of a node, as a C structure in which zero means the default.
//!
//! The structure may grow in later versions. Its first field states the size of the caller's
//! structure. If that is smaller, the newer fields are missing and count as zero. If it is larger,
//! the unknown fields must be zero.

use std::time::Duration;

use ums::monitor::Options;
use ums::node::{IoChoice, Placement};
use ums::{Builder, Node};

use super::fault::Fault;
use super::monitor::{self, ums_on_report};
use crate::caller::{self, Argument, Misfit, Record};

/// Workers are threads: any code may run on them.
pub const UMS_WORKERS_THREAD: u32 = 0;
/// Workers are fibers: a switch costs nanoseconds. Code that runs on them must keep no
/// thread-scoped state (thread-local variables, locks that belong to a thread) across a wait.
pub const UMS_WORKERS_FIBER: u32 = 1;
/// Workers are threads with their own context, which are switched in user mode: any code may run on
/// them, and a switch costs little more than that of a fiber. Other workers run while one is in a
/// call of the C library that blocks. If the system cannot do it, ums_node_new fails with -EINVAL.
pub const UMS_WORKERS_CONTEXT: u32 = 2;

/// A user's requests go to its scheduler unless that is much busier than the least loaded one.
pub const UMS_PLACEMENT_HINTED: u32 = 0;
/// A user stays for its whole life on the scheduler that had the fewest users when it was created.
pub const UMS_PLACEMENT_CLASSIC: u32 = 1;
/// Each request goes to the scheduler with the least load.
pub const UMS_PLACEMENT_LEAST_LOADED: u32 = 2;

/// Each request goes to its user's scheduler, whatever the load of that scheduler.
pub const UMS_PLACEMENT_ALWAYS_PREFERRED: u32 = 3;

/// The best I/O back end that the system allows.
pub const UMS_IO_AUTO: u32 = 0;
/// io_uring. If the system does not allow it, ums_node_new fails.
pub const UMS_IO_URING: u32 = 1;
/// epoll with file helpers.
pub const UMS_IO_EPOLL: u32 = 2;
/// Plain calls that block.
pub const UMS_IO_SYNC: u32 = 3;

/// The behaviour of the original as a whole: classic placement, a runnable list that is first in
/// first out, 255 workers, no polling before a scheduler sleeps. Overrides `placement` and
/// `max_workers`.
pub const UMS_CLASSIC: u32 = 1;
/// Pins each scheduler's threads to a processor of its own.
pub const UMS_PIN: u32 = 2;
/// Backs the stacks of fibers with memory when they are created.
pub const UMS_PRECOMMIT_STACKS: u32 = 4;
/// Writes no messages to stderr about things that the program's user can correct, such as a worker
/// that does not yield. Then there is also no thread that looks for such workers.
pub const UMS_NO_WARNINGS: u32 = 8;
/// A thread worker that is blocked in the kernel keeps its scheduler. Without this flag such a
/// worker loses the scheduler after some 10 milliseconds, and the code after its block runs in
/// parallel with the scheduler's other workers until its next call of this library.
pub const UMS_KEEP_BLOCKED: u32 = 16;
/// A scheduler without work sleeps at once. Without this flag it may poll first for as long as
/// `idle_spin_ns` says.
pub const UMS_NO_IDLE_SPIN: u32 = 32;
/// A worker that blocks in the kernel is detected at once: its scheduler runs other workers, and
/// its own code continues when the scheduler has chosen it again. For workers that are threads or
/// have their own context.
pub const UMS_DETECT_BLOCKING: u32 = 64;
/// The monitor looks for all conditions, with the limits of the fields from `stall_ns` on, and
/// writes a report of each to stderr. Without this flag it writes a sentence about a few of them.
pub const UMS_MONITOR: u32 = 128;
/// The report of a deadlock says where each lock was taken, and each reader of an ums_rwlock counts
/// as an owner. It costs a few microseconds for each lock that is taken, in the whole process.
pub const UMS_TRACE_LOCKS: u32 = 256;
/// The monitor writes no reports to stderr; on_report gets them.
pub const UMS_NO_REPORTS: u32 = 512;

/// The options of a node. Set `size` to sizeof(ums_options), and all other fields to zero for the
/// defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ums_options {
    /// sizeof(ums_options).
    pub size: usize,
    /// Number of schedulers; 0: one per processor that the process may use.
    pub schedulers: usize,
    /// Maximum number of workers; 0: as many as the computer has room for.
    pub max_workers: usize,
    /// Number of workers that each scheduler keeps, however long they are idle; 0: one.
    pub min_workers: usize,
    /// Number of requests that may wait for a worker on one scheduler before more are refused; 0:
    /// 1048576.
    pub queue_limit: usize,
    /// Bytes of a worker's stack; 0: 2 MiB for threads, 256 KiB for fibers.
    pub stack_size: usize,
    /// Maximum number of workers of one scheduler that may be preemptive at the same time; 0: no
    /// limit.
    pub preemptive_limit: usize,
    /// How long a worker may be idle before it is destroyed; 0: 15 minutes.
    pub idle_worker_timeout_ns: u64,
    /// How long a scheduler without work polls before it sleeps; 0: for as long as that pays, at
    /// most 50 us and 5 % of the time; see also UMS_NO_IDLE_SPIN.
    pub idle_spin_ns: u64,
    /// How long a request may wait for a worker; 0: no limit.
    pub queue_timeout_ns: u64,
    /// UMS_WORKERS_...
    pub worker_kind: u32,
    /// UMS_PLACEMENT_...
    pub placement: u32,
    /// UMS_IO_...
    pub io: u32,
    /// UMS_CLASSIC, UMS_PIN, UMS_PRECOMMIT_STACKS, UMS_NO_WARNINGS, UMS_KEEP_BLOCKED,
    /// UMS_NO_IDLE_SPIN, UMS_DETECT_BLOCKING, UMS_MONITOR, UMS_TRACE_LOCKS, UMS_NO_REPORTS,
    /// combined with |.
    pub flags: u32,
    /// For the monitor, as all fields below, which need UMS_MONITOR: how long a worker or a
    /// completion routine may run without yielding before it is reported; 0: 200 ms.
    pub stall_ns: u64,
    /// The same for a worker whose thread gets no processor; 0: 1 s.
    pub starved_ns: u64,
    /// After what time such a worker is reported as non-yielding; 0: 10 s.
    pub non_yield_ns: u64,
    /// After what time the request of such a worker is cancelled; 0: never.
    pub cancel_after_ns: u64,
    /// How long requests may wait, while all workers wait too, before that is reported; 0: 1 s.
    pub no_workers_ns: u64,
    /// How long requests may wait for any other reason before that is reported; 0: 10 s.
    pub not_picked_up_ns: u64,
    /// How long no scheduler may have picked up a request before that is reported; 0: 60 s.
    pub all_stuck_ns: u64,
    /// How long a wait must last before the monitor looks whether it is part of a deadlock, which
    /// it reports, and breaks by ending one wait with -EDEADLK; 0: 1 s. UMS_FOREVER: never.
    pub deadlock_ns: u64,
    /// After what time a condition that lasts is reported again; 0: 60 s.
    pub repeat_ns: u64,
    /// Called with each report; may be NULL.
    pub on_report: ums_on_report,
    /// The argument of on_report.
    pub report_arg: Argument,
}

/// Reads a structure that begins with its size, whatever that is; NULL means all defaults.
pub(super) fn record<T: Copy + Default>(from: &Record<'_, T>, name: &str) -> Result<T, Fault> {
    from.read().map_err(|misfit| match misfit {
        Misfit::Size(size) => {
            let text = format!("{name}.size is {size}: set it to sizeof({name})");
            Fault::new(libc::EINVAL, text)
        }
        Misfit::UnknownField => {
            Fault::new(libc::E2BIG, format!("{name} has fields that are not known here"))
        }
    })
}

impl ums_options {
    /// Reads the caller's options.
    pub fn read(from: &Record<'_, ums_options>) -> Result<ums_options, Fault> {
        record(from, "ums_options")
    }

    /// Returns a builder with these options.
    pub fn builder(&self) -> Result<Builder, Fault> {
        let mut builder = Node::builder().for_c();
        for (value, set) in [
            (self.schedulers, Builder::schedulers as fn(Builder, usize) -> Builder),
            (self.max_workers, Builder::max_workers),
            (self.min_workers, Builder::min_workers),
            (self.queue_limit, Builder::queue_limit),
            (self.stack_size, Builder::stack_size),
            (self.preemptive_limit, Builder::preemptive_limit),
        ] {
            builder = if value == 0 { builder } else { set(builder, value) };
        }
        for (value, set) in [
            (
                self.idle_worker_timeout_ns,
                Builder::idle_worker_timeout as fn(Builder, Duration) -> Builder,
            ),
            (self.idle_spin_ns, Builder::idle_spin),
            (self.queue_timeout_ns, Builder::queue_timeout),
        ] {
            builder = if value == 0 { builder } else { set(builder, span(value)) };
        }
        self.flagged(self.chosen(builder)?)
    }

    /// Sets the options that choose one of several values.
    fn chosen(&self, mut builder: Builder) -> Result<Builder, Fault> {
        builder = builder.placement(match self.placement {
            UMS_PLACEMENT_HINTED => Placement::Hinted,
            UMS_PLACEMENT_CLASSIC => Placement::Classic,
            UMS_PLACEMENT_LEAST_LOADED => Placement::LeastLoaded,
            UMS_PLACEMENT_ALWAYS_PREFERRED => Placement::AlwaysPreferred,
            other => return Err(unknown("placement", other)),
        });
        builder = builder.io(match self.io {
            UMS_IO_AUTO => IoChoice::Auto,
            UMS_IO_URING => IoChoice::Uring,
            UMS_IO_EPOLL => IoChoice::Epoll,
            UMS_IO_SYNC => IoChoice::Sync,
            other => return Err(unknown("io", other)),
        });
        Ok(match self.worker_kind {
            UMS_WORKERS_THREAD => builder,
            UMS_WORKERS_FIBER => caller::fiber_workers(builder),
            UMS_WORKERS_CONTEXT => builder.own_context_workers(),
            other => return Err(unknown("worker_kind", other)),
        })
    }

    /// Sets the options that are flags, and those of the monitor.
    fn flagged(&self, mut builder: Builder) -> Result<Builder, Fault> {
        let known = [
            UMS_CLASSIC,
            UMS_PIN,
            UMS_PRECOMMIT_STACKS,
            UMS_NO_WARNINGS,
            UMS_KEEP_BLOCKED,
            UMS_NO_IDLE_SPIN,
            UMS_DETECT_BLOCKING,
            UMS_MONITOR,
            UMS_TRACE_LOCKS,
            UMS_NO_REPORTS,
        ];
        let known = known.into_iter().fold(0, |all, flag| all | flag);
        if self.flags & !known != 0 {
            return Err(unknown("flags", self.flags));
        }
        let has = |flag| self.flags & flag != 0;
        builder = if has(UMS_CLASSIC) { builder.classic() } else { builder };
        builder = if has(UMS_NO_IDLE_SPIN) { builder.idle_spin(Duration::ZERO) } else { builder };
        builder = builder.detect_blocking(has(UMS_DETECT_BLOCKING));
        if let Some(options) = self.monitor()? {
            builder = builder.monitor(options);
        }
        builder = builder.pin(has(UMS_PIN)).precommit_stacks(has(UMS_PRECOMMIT_STACKS));
        Ok(builder.warnings(!has(UMS_NO_WARNINGS)).take_over_blocked(!has(UMS_KEEP_BLOCKED)))
    }

    /// Returns the monitor's options; `None` if the program has not asked for the monitor.
    fn monitor(&self) -> Result<Option<Options>, Fault> {
        let mut options = Options::default();
        let mut is_set = self.on_report.is_some();
        for (ns, set) in [
            (self.stall_ns, Options::stall as fn(Options, _) -> Options),
            (self.starved_ns, Options::starved),
            (self.non_yield_ns, Options::non_yield),
            (self.cancel_after_ns, Options::cancel_after),
            (self.no_workers_ns, Options::no_workers),
            (self.not_picked_up_ns, Options::not_picked_up),
            (self.all_stuck_ns, Options::all_stuck),
            (self.deadlock_ns, Options::deadlock),
            (self.repeat_ns, Options::repeat),
        ] {
            is_set |= ns > 0;
            options = if ns == 0 { options } else { set(options, span(ns)) };
        }
        let has = |flag| self.flags & flag != 0;
        is_set |= has(UMS_TRACE_LOCKS) || has(UMS_NO_REPORTS);
        if !has(UMS_MONITOR) {
            let text = "an option of the monitor is set: add UMS_MONITOR to the flags";
            return if is_set { Err(Fault::new(libc::EINVAL, text)) } else { Ok(None) };
        }
        options = options.trace_locks(has(UMS_TRACE_LOCKS));
        options = options.stderr(!has(UMS_NO_REPORTS) && !has(UMS_NO_WARNINGS));
        if let Some(function) = self.on_report {
            let arg = self.report_arg;
            options = options.on_report(move |report| monitor::tell(report, function, arg));
        }
        Ok(Some(options))
    }
}

fn unknown(field: &str, value: u32) -> Fault {
    Fault::new(libc::EINVAL, format!("ums_options.{field} cannot be {value}"))
}

/// Converts a time that C passed. The largest value means no limit.
pub(super) fn span(ns: u64) -> Duration {
    if ns == u64::MAX { Duration::MAX } else { Duration::from_nanos(ns) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_structure_has_defaults_and_a_larger_one_must_end_in_zeroes() {
        let mut words = [0usize; 40];
        words[0] = 2 * size_of::<usize>();
        words[1] = 3;
        words[2] = 99;
        let read = |words: &[usize; 40]| ums_options::read(&Record::of_words(words));
        let options = read(&words).unwrap();
        assert_eq!((options.schedulers, options.max_workers), (3, 0));
        words[0] = size_of_val(&words);
        assert_eq!(read(&words).unwrap().max_workers, 99);
        words[39] = 1;
        assert_eq!(read(&words).unwrap_err().errno(), libc::E2BIG);
        words[0] = 1;
        assert_eq!(read(&words).unwrap_err().errno(), libc::EINVAL);
    }

    #[test]
    fn values_that_mean_nothing_are_refused() {
        for bad in [
            ums_options { worker_kind: 3, ..Default::default() },
            ums_options { placement: 4, ..Default::default() },
            ums_options { io: 4, ..Default::default() },
            ums_options { flags: 1024, ..Default::default() },
            ums_options { stall_ns: 1, ..Default::default() },
            ums_options { flags: UMS_NO_REPORTS, ..Default::default() },
        ] {
            assert_eq!(bad.builder().unwrap_err().errno(), libc::EINVAL);
        }
        assert!(ums_options::default().builder().is_ok());
    }
}
