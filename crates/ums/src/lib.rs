//! User-mode scheduling for Linux: plain blocking code on your own schedulers.
//!
//! One cooperative scheduler per processor, many logical users on few workers, threads or fibers
//! as workers behind one interface, and the yielding worker does the scheduling itself. See
//! ARCHITECTURE.md for the design and docs/words.md for the words.
//!
//! ```
//! use std::time::Duration;
//!
//! let node = ums::Node::builder().build()?;
//! let sum = node.run(|| {
//!     let tasks: Vec<_> = (1..=100)
//!         .map(|i| {
//!             ums::spawn(move || {
//!                 ums::sleep(Duration::from_millis(1)).unwrap(); // parks; others run
//!                 i
//!             })
//!         })
//!         .collect();
//!     tasks.into_iter().map(|t| t.join().unwrap()).sum::<u32>()
//! });
//! assert_eq!(sum, 5050);
//! # Ok::<(), ums::BuildError>(())
//! ```

// Debuggers find the script that lists workers in whatever program this is in.
#![debugger_visualizer(gdb_script_file = "../gdb/ums.py")]

// A file uses only what stands above it.
mod limits;
#[cfg(feature = "planted")]
pub mod planted;
mod os;
mod record;
pub mod watch;
mod wait;
mod scheduler;
mod current;
pub mod sync;
pub mod io;
pub mod net;
pub mod fs;
mod task;
pub mod monitor;
mod node;
mod observe;
pub mod windows;
#[doc(hidden)]
pub mod testing;

pub use current::{
    checkpoint, couple, go_preemptive, is_cancelled, is_worker, require_thread, scheduler_id,
    short_external_call, sleep, sleep_as, wait_for_cancel, worker_id, worker_kind, yield_if_due,
    yield_now,
};
pub use node::placement::Placement;
pub use node::serve::{
    Connection, Listener, Next, Peer, Resumer, ServeOptions, Server, ServerCounters, Session, Why,
};
pub use node::stats_socket::StatsSocket;
pub use node::user::{Acquired, User, UserLock};
pub use node::{
    Builder, HiddenOptions, HiddenScheduler, Node, ShutdownReport, own_contexts_are_refused,
};
pub use observe::crash::print_last_events_on_crash;
pub use observe::metrics::MetricsServer;
pub use observe::stacks::WorkerStack;
pub use observe::trace::{Trace, TraceEvent};
pub use observe::views::{
    Cell, Column, ColumnKind, PendingIoRow, RequestRow, RequestSoFar, SchedulerRow, Snapshot,
    SwitchRow, Table, UserRow, View, WaitRow, WaitsOf, WorkerRow,
};
pub use os::linux::cpus::{Cpus, Limit, Quota};
pub use os::linux::facts::{Fact, Facts, to_json as facts_to_json};
pub use os::linux::open::Choice as IoChoice;
pub use os::short_lock::ShortLockCounts;
pub use record::counters::SchedulerCounters;
pub use record::event_ring::{RING_RECORDS, RingEvent};
pub use record::reason::{REASONS_MAX, WaitClass, WaitReason};
pub use record::wait_stats::{WAIT_BUCKETS, wait_bucket_end};
pub use scheduler::lists::worker_list::State as WorkerState;
pub use scheduler::request::{RequestId, UserId};
pub use scheduler::{Coupled, WorkerKind, taking_over_is_refused};
pub use task::{
    CancelHandle, JoinHandle, Scope, ScopedJoinHandle, TaskError, scope, spawn, try_spawn,
};
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub use testing::fuzz;
#[cfg(feature = "sim")]
pub use testing::sim;
pub use wait::deadlock::{Deadlock, DeadlockId, DeadlockWaiter};
pub use wait::error::{BuildError, EnqueueError, NeedsThread, WaitError};
