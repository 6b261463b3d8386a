//! Windows User-Mode Scheduling: write your own scheduler of threads.
//!
//! An application runs many *worker* threads, each with its own thread context, and decides itself
//! which runs: a thread that has *entered scheduling mode* is called whenever its worker yields
//! **or blocks in the kernel**, in a system call or a page fault, and names the worker that runs
//! next. What has become ready again appears on a *completion list*.
//!
//! ```text
//!  scheduler thread            worker threads                     completion list
//!  proc(Startup)  -- claim, Next::Execute(w) --> w runs
//!  proc(Blocked)  <----------- w blocks ------------------- wakes -----> [w]
//!  proc(Yield{w}) <----------- w yields
//! ```
//!
//! Two workers take turns:
//!
//! ```
//! use std::collections::VecDeque;
//! use ums::windows::{self, CompletionList, Next, Reason, WorkerContext};
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
//!             return Next::Execute(scheduler.claim(&worker).unwrap());
//!         }
//!         if list.members() == 0 {
//!             return Next::Leave;
//!         }
//!         list.event().wait(None);
//!     }
//! })?;
//! assert_eq!(yields, 6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! *Why the entry point returns what to do next.* On Windows `ExecuteUmsThread` does not return:
//! the scheduler's stack is snapped back, and nothing on it survives. In Rust that would skip
//! destructors. So executing has two halves: [`Scheduler::claim`], which may fail and lets the
//! entry point decide what to do then, and returning the [`Claim`] in [`Next::Execute`], which
//! cannot fail and ends every borrow of the entry point by itself.
//!
//! *What to keep away from the entry point*: waiting for what a worker may hold. Here that is no
//! deadlock (a scheduler that waits for a lock has its blocked workers run on for a moment, which
//! is counted), but a delay. See docs/windows.md, which also has what differs from Windows.
//!
//! Files: `list` and `context` are the two nouns, `boot` begins and ends worker threads, `own` has
//! those that are switched to in user mode, `primary` is a thread in scheduling mode; `handles` is
//! the safe side; `raw` and `snap` are for C.

mod list;
mod context;
mod boot;
mod own;
mod primary;
mod snap;
mod handles;
#[doc(hidden)]
pub mod raw;

use std::io;
use std::time::Duration;

pub use context::ThreadKind;
pub use handles::{CompletionList, ContextLock, Items, ListEvent, WorkerBuilder, WorkerContext};

use crate::watch::Blocks;
use crate::watch::calls::may_block;
use primary::{Entered, News, Primary};

/// Why a worker cannot be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ExecuteError {
    /// Its context is locked, or it is still on a completion list: try again later.
    #[error("the worker's context is locked; try again")]
    Locked,
    /// It runs already, or is blocked in the kernel: it will come on its completion list.
    #[error("the worker is running, or blocked in the kernel")]
    Running,
    /// It is suspended. It does not come on the completion list again by itself if it was ready.
    #[error("the worker is suspended")]
    Suspended,
    /// Its thread has ended.
    #[error("the worker has terminated")]
    Terminated,
    /// The context has no thread, or is a scheduler's.
    #[error("the context is not that of a worker")]
    NotAWorker,
    /// The calling thread is not in scheduling mode.
    #[error("the calling thread is not in scheduling mode")]
    NotAScheduler,
    /// The worker's affinity excludes the processor of this scheduler.
    #[error("the worker must not run on the scheduler's processor")]
    Affinity,
}

/// Why a thread cannot enter scheduling mode.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnterError {
    /// It is a worker, of this model or of a [`Node`](crate::Node) (also while that is preemptive),
    /// or in scheduling mode already.
    #[error(
        "the thread is a worker or in scheduling mode already: enter scheduling mode on a thread of its own"
    )]
    AlreadyUms,
    /// Blocking workers cannot be noticed here.
    #[error("block watch cannot be started: {0}")]
    Watch(io::Error),
}

/// How often a worker was executed and has yielded, as Windows counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerCounts {
    /// Executions (Windows: SwitchCount).
    pub executed: u64,
    /// Yields in user mode, without a system call (YieldCount).
    pub yields: u64,
    /// Yields from its own kernel thread (KernelYieldCount). Of workers that have no context of
    /// their own, all.
    pub kernel_yields: u64,
    /// Of these, those after which a worker with its own context could not be executed in user mode
    /// (MixedYieldCount): it was ending.
    pub mixed_yields: u64,
}

/// The calling thread is not a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the calling thread is not a worker")]
pub struct NotAWorker;

/// Nothing came within the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing came on the completion list within the time")]
pub struct TimedOut;

/// Why the entry point is called.
#[derive(Debug)]
#[non_exhaustive]
pub enum Reason {
    /// The thread has just entered scheduling mode.
    Startup,
    /// The worker that was executed has blocked (in a system call, or in a page fault or
    /// suspended), or ended. The scheduler knows whom it executed; the call does not name it.
    Blocked {
        /// In a system call, as far as can be told.
        syscall: bool,
    },
    /// The worker yielded. It is in nobody's hands but these.
    Yield {
        /// Who.
        worker: WorkerContext,
        /// What it gave to [`thread_yield`].
        param: usize,
    },
}

/// What a scheduler does next.
#[derive(Debug)]
#[must_use]
pub enum Next {
    /// Runs this worker until it yields or blocks.
    Execute(Claim),
    /// Leaves scheduling mode.
    Leave,
}

/// The right to execute one worker. Dropped, it is given back.
#[derive(Debug)]
#[must_use = "dropping a claim gives it back: return it in Next::Execute"]
pub struct Claim(Option<WorkerContext>);

impl Claim {
    /// Whose it is.
    pub fn worker(&self) -> &WorkerContext {
        self.0.as_ref().expect("a claim has its worker until it is used")
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(worker) = self.0.take() {
            worker.0.unclaim();
        }
    }
}

/// What the entry point asks its own scheduler for.
#[derive(Debug)]
pub struct Scheduler {
    cpu: usize,
    /// It stays on its thread.
    here: std::marker::PhantomData<*const ()>,
}

impl Scheduler {
    /// Claims a worker in order to execute it.
    ///
    /// # Errors
    /// Says why it cannot be executed now; see [`ExecuteError`].
    pub fn claim(&self, worker: &WorkerContext) -> Result<Claim, ExecuteError> {
        worker.0.claim(self.cpu)?;
        Ok(Claim(Some(worker.clone())))
    }

    /// The processor that this scheduler runs its workers on.
    pub fn cpu(&self) -> usize {
        self.cpu
    }

    /// How often the place was taken from a blocked worker so far, and how many of these times the
    /// watchdog had to.
    pub fn revokes(&self) -> (u64, u64) {
        primary::here().map_or((0, 0), |primary| primary.place().counts())
    }

    /// How often blocked workers were let run on because this scheduler waited for a lock.
    pub fn lent(&self) -> u64 {
        primary::here().map_or(0, |p| p.lent.load(std::sync::atomic::Ordering::Relaxed))
    }
}

/// Makes the calling thread a scheduler until the entry point says [`Next::Leave`].
///
/// The thread is pinned to one processor meanwhile, and so are the workers it executes. It may take
/// workers from any completion list; unblocked ones go to the list they were created with.
///
/// # Errors
/// The thread is a worker or scheduler already; or blocking workers cannot be noticed.
///
/// # Panics
/// With what the entry point panics with, after leaving scheduling mode.
pub fn enter_scheduling_mode(
    mut proc: impl FnMut(&Scheduler, Reason) -> Next,
) -> Result<(), EnterError> {
    let entered: Entered = Primary::enter()?;
    let cpu = entered.primary.place().cpu;
    let scheduler = Scheduler { cpu, here: std::marker::PhantomData };
    let mut reason = Reason::Startup;
    while let Next::Execute(mut claim) = proc(&scheduler, reason) {
        let worker = claim.0.take().expect("a claim has its worker until it is used");
        let heard = entered.primary.run(&worker.0);
        reason = match heard.news {
            News::BlockedInCall => Reason::Blocked { syscall: true },
            News::BlockedInTrap => Reason::Blocked { syscall: false },
            News::Yielded => Reason::Yield { worker, param: heard.param },
        };
    }
    Ok(())
}

/// Gives the processor to the scheduler, with a word for it. Returns when executed again.
///
/// # Errors
#[inline]
pub fn thread_yield(param: usize) -> Result<(), NotAWorker> {
    let context = boot::current().ok_or(NotAWorker)?;
    let me = crate::watch::thread::me().ok_or(NotAWorker)?;
    match me.leave_if_hosted() {
        true => context.yield_in_user_mode(me, param),
        false => context.yield_from_own_thread(me, param),
    }
    Ok(())
}

/// What the calling thread is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Current {
    /// In scheduling mode.
    Scheduler,
    /// A worker, and its context.
    Worker(WorkerContext),
}

/// What the calling thread is; None for an ordinary thread.
pub fn current() -> Option<Current> {
    match boot::current() {
        Some(context) => Some(Current::Worker(WorkerContext::of(context))),
        None => primary::here().map(|_| Current::Scheduler),
    }
}

/// What a thread of this process is, by the kernel's number: a debugger asks this before it stops
/// one.
pub fn thread_kind(tid: u32) -> ThreadKind {
    let is_worker = crate::watch::thread::every().any(|watched| watched.tid() as u32 == tid);
    match () {
        () if tid == 0 => ThreadKind::Plain,
        () if is_worker => ThreadKind::Worker,
        () if primary::schedulers().contains(&tid) => ThreadKind::Scheduler,
        () => ThreadKind::Plain,
    }
}

/// Takes from a list; a scheduler that waits meanwhile waits for no worker's lock.
fn take_within(list: &list::List, timeout_ns: Option<u64>) -> *const context::Context {
    match primary::here() {
        Some(primary) => primary.resting(|| list.take_within(timeout_ns)),
        // A worker's wait, perhaps.
        None => may_block(|| Blocks::Unknown, || list.take_within(timeout_ns)),
    }
}

fn nanoseconds(timeout: Option<Duration>) -> Option<u64> {
    timeout.map(|t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX))
}
