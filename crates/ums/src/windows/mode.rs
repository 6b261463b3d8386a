//! Scheduling mode for Rust: the entry point is a closure that returns what to do next.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use super::context::{self, ThreadKind};
use super::error::{EnterError, ExecuteError, NotAWorker};
use super::executor::News;
use super::handles::WorkerContext;
use super::primary::{self, Entered, Primary};
use crate::watch::thread;

/// Why the entry point is called.
#[derive(Debug)]
#[non_exhaustive]
pub enum Reason {
    /// The thread has just entered scheduling mode.
    Startup,
    /// The worker that was executed has blocked in a system call or a page fault, was suspended, or
    /// has ended. The reason does not name the worker: it is the worker that the scheduler executed
    /// last.
    Blocked {
        /// True if it blocked in a system call, as far as can be determined.
        syscall: bool,
    },
    /// The worker has yielded. It is on no list, so the entry point must remember that it is ready.
    Yield {
        /// The worker.
        worker: WorkerContext,
        /// The argument that it passed to [`thread_yield`].
        param: usize,
    },
}

/// What a scheduler does next.
#[derive(Debug)]
#[must_use]
pub enum SchedulerAction {
    /// Runs this worker until it yields or blocks.
    Execute(Claim),
    /// Leaves scheduling mode.
    Leave,
}

/// The right to execute one worker. Dropping it gives the right up.
#[derive(Debug)]
#[must_use = "dropping a claim gives it back: return it in SchedulerAction::Execute"]
pub struct Claim(Option<WorkerContext>);

impl Claim {
    /// Returns the claimed worker.
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

/// The calling scheduler, which is passed to its entry point.
#[derive(Debug)]
pub struct SchedulerThread {
    cpu: usize,
    /// Makes the type neither `Send` nor `Sync`, so it stays on its thread.
    here: PhantomData<*const ()>,
}

impl SchedulerThread {
    /// Claims a worker in order to execute it.
    ///
    /// # Errors
    /// [`ExecuteError`] says why it cannot be executed now.
    pub fn claim(&self, worker: &WorkerContext) -> Result<Claim, ExecuteError> {
        worker.0.claim(self.cpu)?;
        Ok(Claim(Some(worker.clone())))
    }

    /// Returns the processor that this scheduler runs its workers on.
    pub fn cpu(&self) -> usize {
        self.cpu
    }

    /// Returns how often a blocked worker has lost the processor so far, and how many of these
    /// blocks the watchdog detected first.
    pub fn revokes(&self) -> (u64, u64) {
        primary::here().map_or((0, 0), |primary| primary.place().counts())
    }

    /// Returns how often workers that had woken were allowed to run without being executed, because
    /// this scheduler waited for a lock that one of them may have held.
    pub fn lent(&self) -> u64 {
        primary::here().map_or(0, |p| p.lent.load(Ordering::Relaxed))
    }
}

/// Makes the calling thread a scheduler until the entry point returns [`SchedulerAction::Leave`].
///
/// Meanwhile the thread and the workers that it executes are pinned to one processor. The scheduler
/// may take workers from any completion list. A worker whose block has ended appears on the list
/// with which it was created.
///
/// # Errors
/// [`EnterError::AlreadyUms`] if the thread is a worker or scheduler already. [`EnterError::Watch`]
/// if the system offers no way to detect that a worker blocks.
///
/// # Panics
/// Passes on a panic of the entry point. The thread has left scheduling mode then.
pub fn enter_scheduling_mode(
    mut proc: impl FnMut(&SchedulerThread, Reason) -> SchedulerAction,
) -> Result<(), EnterError> {
    let entered: Entered = Primary::enter()?;
    let cpu = entered.primary.place().cpu;
    let scheduler = SchedulerThread { cpu, here: PhantomData };
    let mut reason = Reason::Startup;
    while let SchedulerAction::Execute(mut claim) = proc(&scheduler, reason) {
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

/// Gives the processor to the scheduler, and passes `param` to its entry point. Returns when the
/// worker is executed again.
///
/// # Errors
/// [`NotAWorker`] if the calling thread is not a worker.
#[inline]
pub fn thread_yield(param: usize) -> Result<(), NotAWorker> {
    let context = context::current().ok_or(NotAWorker)?;
    let me = thread::me().ok_or(NotAWorker)?;
    match me.leave_if_hosted() {
        true => context.yield_in_user_mode(me, param),
        false => context.yield_from_own_thread(me, param),
    }
    Ok(())
}

/// The role of the calling thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Current {
    /// The thread is in scheduling mode.
    Scheduler,
    /// The thread is the worker with this context.
    Worker(WorkerContext),
}

/// Returns the role of the calling thread, or `None` for an ordinary thread.
pub fn current() -> Option<Current> {
    match context::current() {
        Some(context) => Some(Current::Worker(WorkerContext::of(context))),
        None => primary::here().map(|_| Current::Scheduler),
    }
}

/// Returns the role of the thread with this kernel thread id. A debugger calls this before it stops
/// a thread.
pub fn thread_kind(tid: u32) -> ThreadKind {
    let is_worker = thread::every().any(|watched| watched.tid() as u32 == tid);
    match () {
        () if tid == 0 => ThreadKind::Plain,
        () if is_worker => ThreadKind::Worker,
        () if primary::schedulers().contains(&tid) => ThreadKind::Scheduler,
        () => ThreadKind::Plain,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::context::BELONGED;
    use super::super::handles::CompletionList;
    use super::*;

    #[test]
    fn a_worker_belongs_to_its_schedulers_place_before_it_may_run_r14() {
        // This runs on a new thread, because entering scheduling mode pins the thread.
        let scheduler = std::thread::spawn(|| {
            let list = CompletionList::new().unwrap();
            for _ in 0..2 {
                WorkerContext::spawn(&list, || ()).unwrap();
            }
            let mut ready: Vec<WorkerContext> = list.poll().collect();
            enter_scheduling_mode(|scheduler, _| match ready.pop() {
                Some(worker) => SchedulerAction::Execute(scheduler.claim(&worker).unwrap()),
                None => SchedulerAction::Leave,
            })
            .unwrap();
            BELONGED.take()
        });
        assert_eq!(scheduler.join().unwrap(), [true, true]);
    }
}
