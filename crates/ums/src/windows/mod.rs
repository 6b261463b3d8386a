//! Windows User-Mode Scheduling: write your own scheduler of threads.
//!
//! An application runs many *worker* threads and decides itself which of them runs. Each worker has
//! its own thread context. A thread becomes a scheduler by *entering scheduling mode* with an
//! *entry point*. The entry point is called whenever the scheduler's worker yields **or blocks in
//! the kernel**, in a system call or a page fault, and it names the worker that runs next. A worker
//! whose block has ended appears on a *completion list*.
//!
//! ```text
//!  scheduler thread            worker threads                     completion list
//!  proc(Startup)  -- claim, SchedulerAction::Execute(w) --> w runs
//!  proc(Blocked)  <----------- w blocks ------------------- wakes -----> [w]
//!  proc(Yield{w}) <----------- w yields
//! ```
//!
//! Two workers take turns:
//!
//! ```
//! use std::collections::VecDeque;
//! use ums::windows::{self, CompletionList, Reason, SchedulerAction, WorkerContext};
//!
//! let list = CompletionList::new()?;
//! for _ in 0..2 {
//!     WorkerContext::spawn(&list, || {
//!         for _ in 0..3 {
//!             windows::thread_yield(0).unwrap();
//!         }
//!     })?;
//! }
//! let mut ready = VecDeque::new();
//! let mut yields = 0;
//! windows::enter_scheduling_mode(|scheduler, reason| {
//!     if let Reason::Yield { worker, .. } = reason {
//!         yields += 1;
//!         ready.push_back(worker);
//!     }
//!     loop {
//!         ready.extend(list.poll().filter(|worker| !worker.is_terminated()));
//!         if let Some(worker) = ready.pop_front() {
//!             return SchedulerAction::Execute(scheduler.claim(&worker).unwrap());
//!         }
//!         if list.members() == 0 {
//!             return SchedulerAction::Leave;
//!         }
//!         list.event().wait(None);
//!     }
//! })?;
//! assert_eq!(yields, 6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! *Why the entry point returns what to do next.* On Windows `ExecuteUmsThread` does not return:
//! the scheduler's stack is cut off at the frame that entered scheduling mode, and nothing above
//! that frame survives. In Rust that would skip destructors. So executing has two halves.
//! [`SchedulerThread::claim`] may fail; the entry point then decides what to do. Returning the
//! [`Claim`] in [`SchedulerAction::Execute`] cannot fail, and ends every borrow of the entry point.
//!
//! *An entry point should not wait for a lock that a worker may hold.* Such a wait is no deadlock
//! here, but it takes long: the library detects it after a while, and allows the workers that have
//! woken to run for a moment without being executed. These times are counted. The page
//! `docs/windows.md` in the repository has the details, and the differences from Windows.
//!
//! Files, each of which uses only files above it:
//!
//! * `error`: the errors.
//! * `executor`: the part of a scheduler that its worker uses.
//! * `list`: the completion list. `context`: a worker context.
//! * `own`: workers with their own context, to which the scheduler switches in user mode.
//! * `gate`: the methods that the block watch calls on a worker.
//! * `primary`: a thread in scheduling mode.
//! * `boot`: the beginning and the end of a worker thread.
//! * `handles` and `mode`: the interface for Rust. `snap` and `raw`: the interface for C.

mod error;
mod executor;
mod list;
mod context;
mod own;
mod gate;
mod primary;
mod boot;
mod handles;
mod mode;
mod snap;
#[doc(hidden)]
pub mod raw;

pub use context::{ThreadKind, WorkerCounts};
pub use error::{EnterError, ExecuteError, NotAWorker, TimedOut};
pub use handles::{CompletionList, ContextLock, Items, ListEvent, WorkerBuilder, WorkerContext};
pub use mode::{
    Claim, Current, Reason, SchedulerAction, SchedulerThread, current, enter_scheduling_mode,
    thread_kind, thread_yield,
};
