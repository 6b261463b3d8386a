//! The options of a node, as a C structure in which zero means the default.
//!
//! The structure may grow in later versions. Its first field states the size of the caller's
//! structure. If that is smaller, the newer fields are missing and count as zero. If it is larger,
//! the unknown fields must be zero.

use std::mem::offset_of;
use std::time::Duration;

use ums::node::{IoChoice, Placement};
use ums::{Builder, Node};

use super::fault::Fault;
use crate::caller::{self, Record};

/// Workers are threads: any code may run on them.
pub const UMS_WORKERS_THREAD: u32 = 0;
/// Workers are fibers: a switch costs nanoseconds. Code that runs on them must keep no
/// thread-scoped state (thread-local variables, locks that belong to a thread) across a wait.
pub const UMS_WORKERS_FIBER: u32 = 1;

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
    /// UMS_NO_IDLE_SPIN, combined with |.
    pub flags: u32,
}

impl ums_options {
    /// Reads the caller's options, whatever the size of its structure; NULL means all defaults.
    pub fn read(from: &Record<'_, ums_options>) -> Result<ums_options, Fault> {
        let theirs = from.bytes(4096).map_err(|size| {
            let text = format!("ums_options.size is {size}: set it to sizeof(ums_options)");
            Fault::new(libc::EINVAL, text)
        })?;
        let (known, unknown) = theirs.split_at(theirs.len().min(size_of::<ums_options>()));
        if unknown.iter().any(|byte| *byte != 0) {
            return Err(Fault::new(libc::E2BIG, "ums_options has fields that are not known here"));
        }
        let mut bytes = [0; size_of::<ums_options>()];
        bytes[..known.len()].copy_from_slice(known);
        Ok(ums_options::of_bytes(&bytes))
    }

    fn of_bytes(bytes: &[u8; size_of::<ums_options>()]) -> ums_options {
        let word =
            |at: usize| bytes[at..].first_chunk().map_or(0, |bytes| usize::from_ne_bytes(*bytes));
        let long =
            |at: usize| bytes[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        let int =
            |at: usize| bytes[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        ums_options {
            size: word(offset_of!(ums_options, size)),
            schedulers: word(offset_of!(ums_options, schedulers)),
            max_workers: word(offset_of!(ums_options, max_workers)),
            min_workers: word(offset_of!(ums_options, min_workers)),
            queue_limit: word(offset_of!(ums_options, queue_limit)),
            stack_size: word(offset_of!(ums_options, stack_size)),
            preemptive_limit: word(offset_of!(ums_options, preemptive_limit)),
            idle_worker_timeout_ns: long(offset_of!(ums_options, idle_worker_timeout_ns)),
            idle_spin_ns: long(offset_of!(ums_options, idle_spin_ns)),
            queue_timeout_ns: long(offset_of!(ums_options, queue_timeout_ns)),
            worker_kind: int(offset_of!(ums_options, worker_kind)),
            placement: int(offset_of!(ums_options, placement)),
            io: int(offset_of!(ums_options, io)),
            flags: int(offset_of!(ums_options, flags)),
        }
    }

    /// Returns a builder with these options.
    pub fn builder(&self) -> Result<Builder, Fault> {
        let mut builder = Node::builder();
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
        builder = match self.worker_kind {
            UMS_WORKERS_THREAD => builder,
            UMS_WORKERS_FIBER => caller::fiber_workers(builder),
            other => return Err(unknown("worker_kind", other)),
        };
        let known = [
            UMS_CLASSIC,
            UMS_PIN,
            UMS_PRECOMMIT_STACKS,
            UMS_NO_WARNINGS,
            UMS_KEEP_BLOCKED,
            UMS_NO_IDLE_SPIN,
        ];
        let known = known.into_iter().fold(0, |all, flag| all | flag);
        if self.flags & !known != 0 {
            return Err(unknown("flags", self.flags));
        }
        let has = |flag| self.flags & flag != 0;
        builder = if has(UMS_CLASSIC) { builder.classic() } else { builder };
        builder = if has(UMS_NO_IDLE_SPIN) { builder.idle_spin(Duration::ZERO) } else { builder };
        builder = builder.pin(has(UMS_PIN)).precommit_stacks(has(UMS_PRECOMMIT_STACKS));
        Ok(builder.warnings(!has(UMS_NO_WARNINGS)).take_over_blocked(!has(UMS_KEEP_BLOCKED)))
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
            ums_options { worker_kind: 2, ..Default::default() },
            ums_options { placement: 4, ..Default::default() },
            ums_options { io: 4, ..Default::default() },
            ums_options { flags: 64, ..Default::default() },
        ] {
            assert_eq!(bad.builder().unwrap_err().errno(), libc::EINVAL);
        }
        assert!(ums_options::default().builder().is_ok());
    }
}
