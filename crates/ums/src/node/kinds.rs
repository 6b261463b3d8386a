//! The options for the kind of a node's workers, the checks whether the system allows that kind,
//! and the option for workers that block.
//!
//! The one `unsafe fn` here does nothing unsafe itself. Its caller promises the **Contract**: code
//! on fiber workers does not rely on thread-scoped state across a wait or yield.

use super::builder::Builder;
use crate::os::limits;
use crate::os::linux::room::{self, Cost};
use crate::scheduler::{self, WorkerKind};
use crate::wait::error::BuildError;

/// How many mappings and how many threads are left to the rest of the process.
const MAPPINGS_LEFT: u64 = 1024;
const THREADS_LEFT: u64 = 64;

impl Builder {
    /// Makes every worker a fiber: a switch costs nanoseconds and no system call.
    ///
    /// # Safety
    /// All fibers of a scheduler run on one kernel thread. Code that runs on a worker of this node
    /// must not rely on thread-scoped state across anything that may wait or yield. That is:
    ///
    /// * no `thread_local!` value is borrowed (`LocalKey::with`, a `RefCell` guard in it) across a
    ///   wait or yield, and no invariant of unsafe code depends on the assumption that no other
    ///   worker runs on the same thread meanwhile;
    /// * no lock that belongs to a thread (`std::sync`, `parking_lot`, a recursive or robust C
    ///   mutex, the guard of stdout's lock) is held across a wait or yield;
    /// * no C code keeps thread-scoped state across a callback into code that waits.
    ///
    /// This crate's own locks, channels and I/O are safe to use. The page
    /// `docs/workers.md` in the repository compares the kinds of workers.
    ///
    /// ```
    /// // SAFETY: the code below keeps nothing of its thread over a wait.
    /// let builder = unsafe { ums::Node::builder().fiber_workers() };
    /// let node = builder.build()?;
    /// assert_eq!(node.run(|| ums::spawn(|| 1 + 1).join().unwrap()), 2);
    /// # Ok::<(), ums::BuildError>(())
    /// ```
    #[allow(unsafe_code)]
    pub unsafe fn fiber_workers(mut self) -> Builder {
        self.kind = WorkerKind::Fiber;
        self
    }

    /// Sets what happens to a thread worker that has been blocked in the kernel for about 10
    /// milliseconds without having gone preemptive: in a system call, in a page fault, or on a lock
    /// of `std::sync` that another worker holds across a wait. If this is true, the worker's
    /// scheduler runs other workers. The default is true. **The code after such a block runs in
    /// parallel with the other workers of its scheduler**, as in
    /// [`go_preemptive`](crate::go_preemptive), until its next call into this library; there the
    /// worker waits until its scheduler chooses it. This is sound, because Rust's rules for threads
    /// apply throughout. Code that relies on being alone on its scheduler between two calls must
    /// not block there, or must turn this off. Such a worker is counted and shown as preemptive. If
    /// [`preemptive_limit`](Builder::preemptive_limit) is reached, no worker is treated this way.
    ///
    /// This option has no effect in three cases: with
    /// [`detect_blocking`](Builder::detect_blocking), which detects a block sooner and lets no code
    /// run in parallel; with [`classic`](Builder::classic); and if the system refuses the call
    /// `membarrier` ([`probe::taking_over_is_refused`](crate::probe::taking_over_is_refused)).
    pub fn take_over_blocked(mut self, yes: bool) -> Builder {
        self.take_over_blocked = yes;
        self
    }

    /// Gives every worker its own context: the worker is a thread with its own thread-locals,
    /// `errno`, identity and stack, but it runs on its scheduler's host thread and is switched in
    /// user mode, like a fiber. Any code that may run on a thread may run on such a worker. In
    /// [`go_preemptive`](crate::go_preemptive) it continues on its own kernel thread, for calls
    /// that block and for code that needs state which the kernel keeps for each thread. Other
    /// blocking calls block the scheduler. The page `docs/workers.md` in the repository
    /// compares the kinds of workers.
    ///
    /// Available with glibc on x86-64 with FSGSBASE and on aarch64; elsewhere [`Builder::build`]
    /// returns an error that says what is missing.
    ///
    /// ```
    /// # if ums::probe::own_contexts_are_refused().is_none() {
    /// let node = ums::Node::builder().schedulers(1).own_context_workers().build()?;
    /// let same = node.run(|| {
    ///     let me = std::thread::current().id();
    ///     ums::yield_now();
    ///     me == std::thread::current().id()
    /// });
    /// assert!(same);
    /// # }
    /// # Ok::<(), ums::BuildError>(())
    /// ```
    pub fn own_context_workers(mut self) -> Builder {
        self.kind = WorkerKind::OwnContext;
        self
    }

    /// Checks the stack size for workers of this kind.
    pub(super) fn check_stack_size(&self) -> Result<(), BuildError> {
        let Some(bytes) = self.stack_size else { return Ok(()) };
        let (least, most) = (least_stack(self.kind), limits::STACK_MAX);
        let workers = match self.kind {
            WorkerKind::Thread => "thread workers",
            WorkerKind::Fiber => "fiber workers",
            WorkerKind::OwnContext => "workers with their own context",
        };
        if (least..=most).contains(&bytes) {
            return Ok(());
        }
        Err(BuildError::Option(format!(
            "a stack_size of {bytes} bytes: {workers} need at least {least} and at most {most}"
        )))
    }

    /// Checks that the options go together, and that the system allows that many workers of this
    /// kind.
    pub(super) fn check_kind(&self, schedulers: usize) -> Result<(), BuildError> {
        let refuse = |text: String| Err(BuildError::Option(text));
        if self.kind == WorkerKind::Fiber && self.detect_blocking {
            return refuse(
                "detect_blocking and fiber workers do not go together: the fibers of a scheduler \
                 share one thread, and block with it. Choose thread workers or \
                 own_context_workers, or leave detect_blocking out"
                    .into(),
            );
        }
        if self.kind != WorkerKind::OwnContext {
            return Ok(());
        }
        if let Some(why) = own_contexts_are_refused() {
            return refuse(format!("workers cannot have their own context here: {why}"));
        }
        // If no number was set, the limit is the one that the system allows, and needs no check.
        let Some(workers) = self.max_workers.map(|workers| workers as u64) else { return Ok(()) };
        let each = Cost::of_context(self.stack_of(self.kind)).mappings();
        let (maps, need) = (room::max_map_count(), workers * each + MAPPINGS_LEFT);
        if let Some(most) = maps.filter(|most| need > *most) {
            return refuse(format!(
                "{workers} workers with their own context need {need} mappings, and \
                 vm.max_map_count is {most}"
            ));
        }
        let carriers = if self.detect_blocking { schedulers * scheduler::CARRIERS } else { 0 };
        let need = workers + carriers as u64 + THREADS_LEFT;
        match room::threads_left() {
            Some((most, what)) if need > most => refuse(format!(
                "{workers} workers with their own context need {need} threads, and {what} \
                 allows {most}"
            )),
            _ => Ok(()),
        }
    }
}

/// Checks that one scheduler can have that many workers.
pub(super) fn check_worker_count(workers: usize) -> std::io::Result<()> {
    if workers <= limits::WORKERS_PER_SCHEDULER_MAX {
        return Ok(());
    }
    let text = format!("{workers} workers are more than this library can number");
    Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, text))
}

/// Returns the smallest stack size of a worker of this kind, in bytes.
pub(super) fn least_stack(kind: WorkerKind) -> usize {
    match kind {
        WorkerKind::Thread => limits::STACK_MIN,
        WorkerKind::Fiber => limits::FIBER_STACK_MIN,
        WorkerKind::OwnContext => context::least_stack().next_multiple_of(limits::STACK_MIN),
    }
}

/// Returns why workers cannot have their own context on this system
/// ([`Builder::own_context_workers`]), or `None` if they can.
pub fn own_contexts_are_refused() -> Option<String> {
    context::supported().err().map(|why| why.to_string())
}

#[cfg(test)]
mod tests {
    use crate::node::Node;

    #[test]
    fn more_workers_with_their_own_context_than_the_system_can_hold_are_refused_with_a_number() {
        let builder = Node::builder().schedulers(1).max_workers(1 << 20).own_context_workers();
        let Err(error) = builder.build() else { panic!("a million threads") };
        let error = error.to_string();
        let is_clear = error.contains("1048576 workers") && error.contains("max");
        assert!(is_clear || super::own_contexts_are_refused().is_some(), "{error}");
    }
}
