//! User-mode scheduling for Linux: plain blocking code on your own schedulers.
//!
//! `ums` runs many concurrent requests on a few workers, with one cooperative scheduler per
//! processor. A worker is a thread, or a fiber (a stack that is switched in user mode); the code
//! that runs on it is ordinary blocking code. When a worker waits or yields, it chooses the next
//! worker itself and switches to it, so a switch needs no scheduler thread.
//!
//! * [`Node`] owns the schedulers and their workers; [`Node::builder`] configures one.
//! * [`spawn`], [`scope`] and [`sleep`] start tasks and wait; [`sync`] has locks and channels.
//! * [`net`] and [`fs`] are sockets and files whose calls suspend only the calling worker.
//! * [`serve::Server`] serves many connections; each has a worker only while it has work to do.
//! * [`stats`] shows what every worker does and what it waits for.
//!
//! A *work request* is one piece of work that one worker carries out from start to end. Every
//! spawned task and every scoped task is one, and so is each call of a [`serve::Session`]. It is
//! the unit that waits for a worker, is cancelled, and is counted.
//!
//! The calls of [`sync`], [`net`] and [`fs`] also work on a plain thread, which they block.
//!
//! The folder `docs` of the repository is a book, which begins with `docs/first-program.md`.
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
//!
//! # Features
//!
//! On by default: `monitor` (finds workers that do not yield, stuck schedulers and deadlocks),
//! `metrics` (the statistics socket and the page for Prometheus), `traces` (files for trace
//! viewers), `symbols` (names of functions in backtraces), `windows` ([`windows`]). A build without
//! them takes less time. Off by default: `spans` (workers as `tracing` spans), `sim` (schedulers in
//! a simulated world).

// Arithmetic of times is checked; clippy.toml says what the lint leaves out.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]
// Without these, what only the unwinder, the monitor, the statistics and Windows' model use has no
// user.
#![cfg_attr(
    not(all(
        feature = "metrics",
        feature = "monitor",
        feature = "symbols",
        feature = "traces",
        feature = "windows"
    )),
    allow(dead_code)
)]
// docs.rs, which builds with a nightly compiler, shows which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]
// Lets a debugger find the script that lists workers, in every program that links this crate.
#![debugger_visualizer(gdb_script_file = "../gdb/ums.py")]

// A module uses only modules that are declared above it.
mod os;
mod record;
#[doc(hidden)] // For the expansion of `interpose!`.
pub mod watch;
mod wait;
mod scheduler;
mod current;
pub mod sync;
pub mod io;
pub mod net;
pub mod fs;
pub mod task;
pub mod future;
pub mod process;
pub mod thread;
mod backtrace;
#[cfg(feature = "monitor")]
pub mod monitor;
pub mod node;
mod observe;
#[cfg(feature = "windows")]
pub mod windows;
#[doc(hidden)]
pub mod testing;

pub use current::bounds::{shield, with_deadline, with_timeout};
pub use current::{checkpoint, go_preemptive, is_cancelled, sleep, yield_if_due, yield_now};
pub use node::user::User;
#[doc(inline)]
pub use node::{Builder, Node};
#[doc(hidden)] // For the crates beside this one.
pub use os::{lock, pool};
pub use record::reason::WaitReason;
pub use scheduler::WorkerKind;
#[doc(inline)]
pub use task::{JoinHandle, scope, spawn, task_group};
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use testing::fuzz;
#[cfg(feature = "sim")]
pub use testing::sim;
pub use ums_macros::{main, test};
pub use wait::error::{BuildError, WaitError};

/// The calling worker: its number and kind, and less common ways to wait and to go preemptive.
pub mod worker {
    pub use crate::current::{
        assert_may_wait, couple, is_worker, require_thread, scheduler_id, short_external_call,
        sleep_as, word, worker_id, worker_kind, yield_after,
    };
    pub use crate::scheduler::Coupled;
    pub use crate::wait::error::NeedsThread;
}

/// Users: the locks that a [`User`] holds from one request to the next, and the numbers of users.
pub mod user {
    pub use crate::node::user::UserLock;
    pub use crate::scheduler::request::{RequestId, UserId};
}

/// Serving connections: a listener, and a session and a user for each connection; see
/// [`Node::serve`], which has an example.
///
/// A [`Session`](serve::Session) suits a protocol of requests and answers on one socket, with many
/// connections that are mostly idle. Between two requests a connection has no worker, no stack and
/// no buffer: its state is in the session. The server calls the session when there is input, and
/// the call returns what the session waits for next: input on its own socket, a time, or a
/// [`Resumer`](serve::Resumer). Between calls it can wait for nothing else; during a call it may
/// wait for anything.
///
/// Use a task for each connection ([`net`], [`spawn`]) if the code is simpler when it blocks in the
/// middle of a request, or if a connection waits for several sockets at once, as in a proxy. Such a
/// connection keeps one worker for each of its tasks, even while it is idle: 4 to 10 KiB of memory
/// each.
pub mod serve {
    pub use crate::node::serve::{
        Connection, KeptMemory, Listener, MemoryRefused, Next, Outlook, Peer, Resumer,
        ServeOptions, Server, ServerCounters, Session, Why,
    };
}

/// Observing a node: snapshots, views, counters, wait statistics, traces, backtraces of workers.
pub mod stats {
    #[cfg(feature = "metrics")]
    pub use crate::node::stats_socket::StatsSocket;
    pub use crate::observe::crash::print_last_events_on_crash;
    #[cfg(feature = "metrics")]
    pub use crate::observe::metrics::MetricsServer;
    pub use crate::observe::stacks::WorkerStack;
    pub use crate::observe::trace::{Trace, TraceEvent};
    pub use crate::observe::views::{
        Cell, Column, ColumnKind, PendingIoRow, RequestRow, RequestSoFar, SchedulerRow, Snapshot,
        SwitchRow, Table, UserRow, View, WaitRow, WaitsOf, WorkerRow,
    };
    pub use crate::os::short_lock::ShortLockCounts;
    pub use crate::record::counters::SchedulerCounters;
    pub use crate::record::event_ring::{RING_RECORDS, RingEvent};
    pub use crate::record::frame::Frame;
    pub use crate::record::reason::{REASONS_MAX, WaitClass};
    #[cfg(feature = "spans")]
    pub use crate::record::spans::SpanLayer;
    pub use crate::record::wait_stats::{WAIT_BUCKETS, wait_bucket_end};
    pub use crate::scheduler::lists::worker_list::State as WorkerState;
    pub use crate::wait::deadlock::{Deadlock, DeadlockId, DeadlockWaiter};
}

/// What the system offers to `ums` and what `ums` uses of it, as `ums probe` prints it.
pub mod probe {
    pub use crate::node::own_contexts_are_refused;
    pub use crate::os::linux::cpus::{Cpus, Limit, Quota};
    pub use crate::os::linux::facts::{Fact, Facts, to_json as facts_to_json};
    pub use crate::scheduler::taking_over_is_refused;
}
