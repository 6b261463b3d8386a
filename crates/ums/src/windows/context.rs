//! A worker context: the state of one worker thread that schedulers read and change.
//!
//! The states, and the thread or call that makes each step:
//!
//! ```text
//! UNBORN --start--> STARTING --its thread--> PARKED --claim--> CLAIMED --run--> RUNNING
//!                                              ^                  |                |
//!                                              +-- claim dropped -+                |
//!                                              +------- its thread: yields, or woke at its gate
//!                                              +-- resumed -- OUT <-- its thread: suspended
//!                                                                         ends --> TERMINATED
//! ```
//!
//! A blocked worker is still RUNNING here. Only its ownership word and its place (`watch`) record
//! that it has lost its processor. If its state were changed as well, that write could come late
//! and hit a worker that has already woken. PARKED means that it may be claimed. A separate mark
//! says whether it is in a chain of the completion list; claiming a worker that is in such a chain
//! fails with *Locked*.
//!
//! A PARKED worker with its own context (`own.rs`) is either saved, or waits at its gate on its own
//! kernel thread. This decides how it is executed. When it has been saved, its scheduler makes it
//! PARKED; the first time, the thread that created it does.
//!
//! Named invariants. **Held**: a worker's thread has a hold on its context until the thread has
//! ended; then the completion list has it. While a worker is RUNNING and owns its place, its
//! scheduler waits for the news of its run, so the executor behind its pointer is alive. **Own
//! Thread**: see `watch/thread.rs`. In addition, the pointer to the calling worker's context is
//! cleared at the end of the worker's thread, which has a hold on the context until then.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering, fence,
};
use std::sync::{Arc, OnceLock};

use fiber::StackRange;

use super::error::ExecuteError;
use super::executor::{Executor, News};
use super::list::{self, Link, Linked};
use crate::os::counted::AtomicU64;
use crate::os::event::ThreadEvent;
use crate::record::counters::add;
use crate::watch::{self, Watched};

/// A completion list of worker contexts.
pub type ContextList = list::List<Context>;

/// The function that a worker runs. It may return or call `pthread_exit`.
pub type Routine = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

const UNBORN: u32 = 0;
const STARTING: u32 = 1;
const PARKED: u32 = 2;
const CLAIMED: u32 = 3;
const RUNNING: u32 = 4;
pub(super) const OUT: u32 = 5;
const TERMINATED: u32 = 6;

/// The role of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ThreadKind {
    /// An ordinary thread.
    Plain,
    /// A thread in scheduling mode.
    Scheduler,
    /// A worker.
    Worker,
}

/// The context of a worker or of a scheduler.
#[derive(Debug)]
pub struct Context {
    /// A [`ThreadKind`] as a number.
    kind: AtomicU8,
    state: AtomicU32,
    pub(super) link: Link<Context>,
    /// The number of locks on the context. While there is one, the worker cannot be claimed.
    pub(super) locks: AtomicU32,
    suspends: AtomicU32,
    resumed: ThreadEvent,
    /// A value that the application has stored.
    pub(super) user: AtomicUsize,
    pub(super) teb: AtomicUsize,
    pub(super) tid: AtomicU32,
    pub(super) priority: AtomicI32,
    /// The processors that may run the worker, one bit each; 0 means all.
    pub(super) affinity: AtomicU64,
    /// The processor that the worker's thread was pinned to last; `usize::MAX` for none.
    pinned: AtomicUsize,
    list: OnceLock<Arc<ContextList>>,
    watched: AtomicPtr<Watched>,
    executor: AtomicPtr<Executor>,
    /// Whether the thread's hold on the context has not been released yet. After the thread's end
    /// the hold belongs to the completion list.
    system_hold: AtomicBool,
    /// The worker's registers while it is saved. Unused if the worker has no own context.
    pub(super) own: ::context::Context,
    pub(super) has_own_context: AtomicBool,
    /// Whether the worker can be saved: its thread has left its kernel thread, and is not ending.
    pub(super) detached: AtomicBool,
    /// The range of the worker's stack, if the worker has its own context.
    stack_low: AtomicUsize,
    stack_top: AtomicUsize,
    /// The cancellation state (`pthread_setcancelstate`) that the worker has on its own kernel
    /// thread. In user mode it is never cancellable.
    pub(super) is_cancellable: AtomicI32,
    pub(super) counts: Counts,
}

/// How often each event happened to a worker. Its thread and its scheduler write these counts.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub executed: AtomicU64,
    pub yields: AtomicU64,
    pub kernel_yields: AtomicU64,
    pub mixed_yields: AtomicU64,
}

/// How often a worker was executed and has yielded, as Windows counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerCounts {
    /// Executions (Windows: SwitchCount).
    pub executed: u64,
    /// Yields in user mode, without a system call (YieldCount).
    pub yields: u64,
    /// Yields from the worker's own kernel thread (KernelYieldCount). For a worker without its own
    /// context these are all its yields.
    pub kernel_yields: u64,
    /// The kernel yields of a worker with its own context after which it could not be executed in
    /// user mode, because it was ending (MixedYieldCount).
    pub mixed_yields: u64,
}

thread_local! {
    static CURRENT: Cell<*const Context> = const { Cell::new(ptr::null()) };
}

/// Returns the context of the calling worker, or `None` on any other thread.
#[inline]
pub(super) fn current<'a>() -> Option<&'a Context> {
    watch::thread::me()?;
    // SAFETY: Own Thread: null, or set by this thread, which has a hold on it.
    unsafe { CURRENT.get().as_ref() }
}

/// Sets the context that [`current`] returns on this thread; null for none. The thread has a hold
/// on the context, and clears the pointer before it ends (Own Thread).
pub(super) fn set_current(context: *const Context) {
    CURRENT.set(context);
}

impl Linked for Context {
    fn link(&self) -> &Link<Context> {
        &self.link
    }

    unsafe fn release_deleted(&self) {
        // SAFETY: Held, by the contract: the hold of the chain has passed to the caller.
        unsafe { self.release_system_hold() };
    }
}
#[cfg(all(test, not(loom)))]
thread_local! {
    /// For each worker that this thread has executed: whether the worker belonged to the place when
    /// it became RUNNING.
    pub(super) static BELONGED: std::cell::RefCell<Vec<bool>> =
        const { std::cell::RefCell::new(Vec::new()) };
}

impl Context {
    pub(super) fn new() -> Arc<Context> {
        Arc::new(Context {
            kind: AtomicU8::new(ThreadKind::Plain as u8),
            state: AtomicU32::new(UNBORN),
            link: Link::new(),
            locks: AtomicU32::new(0),
            suspends: AtomicU32::new(0),
            resumed: ThreadEvent::new(),
            user: AtomicUsize::new(0),
            teb: AtomicUsize::new(0),
            tid: AtomicU32::new(0),
            priority: AtomicI32::new(0),
            affinity: AtomicU64::new(0),
            pinned: AtomicUsize::new(usize::MAX),
            list: OnceLock::new(),
            watched: AtomicPtr::new(ptr::null_mut()),
            executor: AtomicPtr::new(ptr::null_mut()),
            system_hold: AtomicBool::new(false),
            own: ::context::Context::new(),
            has_own_context: AtomicBool::new(false),
            detached: AtomicBool::new(false),
            stack_low: AtomicUsize::new(0),
            stack_top: AtomicUsize::new(usize::MAX),
            is_cancellable: AtomicI32::new(0),
            counts: Counts::default(),
        })
    }

    /// Makes the context of a thread that enters scheduling mode.
    pub(super) fn of_scheduler() -> Arc<Context> {
        let context = Context::new();
        context.kind.store(ThreadKind::Scheduler as u8, Ordering::Relaxed);
        context.tid.store(crate::os::thread_number(), Ordering::Relaxed);
        context
    }

    pub(super) fn kind(&self) -> ThreadKind {
        match self.kind.load(Ordering::Acquire) {
            kind if kind == ThreadKind::Worker as u8 => ThreadKind::Worker,
            kind if kind == ThreadKind::Scheduler as u8 => ThreadKind::Scheduler,
            _ => ThreadKind::Plain,
        }
    }

    pub(super) fn list(&self) -> Option<&Arc<ContextList>> {
        self.list.get()
    }

    pub(super) fn is_terminated(&self) -> bool {
        self.state.load(Ordering::Acquire) == TERMINATED
    }

    /// Returns true if its memory may be freed: it never had a thread, or its thread has ended.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state.load(Ordering::Acquire), UNBORN | TERMINATED)
    }

    pub(super) fn counted(&self) -> WorkerCounts {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let Counts { executed, yields, kernel_yields, mixed_yields } = &self.counts;
        WorkerCounts {
            executed: get(executed),
            yields: get(yields),
            kernel_yields: get(kernel_yields),
            mixed_yields: get(mixed_yields),
        }
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.suspends.load(Ordering::Acquire) > 0
    }

    // --- What other threads do to it ----------------------------------------------------------

    /// Makes this context that of a worker of `list`. Returns false if the context has a thread
    /// already or is that of a scheduler.
    pub(super) fn start(self: &Arc<Self>, list: &Arc<ContextList>) -> bool {
        let free = self.kind() == ThreadKind::Plain
            && self
                .state
                .compare_exchange(UNBORN, STARTING, Ordering::AcqRel, Ordering::Acquire)
                .is_ok();
        if free {
            let _ = self.list.set(list.clone());
            self.kind.store(ThreadKind::Worker as u8, Ordering::Release);
        }
        free
    }

    /// Claims the worker: the first half of executing it, which may fail. On success the caller has
    /// the right to run the worker.
    pub(super) fn claim(&self, cpu: usize) -> Result<(), ExecuteError> {
        if self.kind() != ThreadKind::Worker {
            return Err(ExecuteError::NotAWorker);
        }
        if self.link.linked.load(Ordering::Acquire) {
            return Err(ExecuteError::Locked);
        }
        match self.state.compare_exchange(PARKED, CLAIMED, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => {}
            Err(UNBORN | STARTING) => return Err(ExecuteError::NotAWorker),
            Err(TERMINATED) => return Err(ExecuteError::Terminated),
            Err(OUT) => return Err(ExecuteError::Suspended),
            Err(_) => return Err(ExecuteError::Running),
        }
        // These checks come after the exchange. A thread that locks or suspends the context
        // increments the count first and reads the state afterwards, so at least one of the two
        // sees the other.
        let affinity = self.affinity.load(Ordering::Relaxed);
        let refusal = match () {
            () if self.locks.load(Ordering::SeqCst) > 0 => ExecuteError::Locked,
            () if self.is_suspended() => ExecuteError::Suspended,
            () if affinity != 0 && cpu < 64 && affinity & (1 << cpu) == 0 => ExecuteError::Affinity,
            () => return Ok(()),
        };
        self.unclaim();
        Err(refusal)
    }

    /// Undoes `start` after the thread could not be created.
    pub(super) fn unstart(&self) {
        self.kind.store(ThreadKind::Plain as u8, Ordering::Release);
        self.state.store(UNBORN, Ordering::Release);
    }

    /// Puts the context back onto its list, after it was taken out of a chain and not used.
    pub(super) fn requeue(&self, list: &ContextList) {
        self.link.linked.store(true, Ordering::Relaxed);
        list.push(self);
    }

    /// Gives up a claim.
    pub(super) fn unclaim(&self) {
        self.state.store(PARKED, Ordering::Release);
    }

    /// Records that this scheduler runs a claimed worker from now on.
    #[inline]
    pub(super) fn executed_by(&self, executor: &Executor) {
        add(&self.counts.executed, 1);
        self.executor.store(ptr::from_ref(executor).cast_mut(), Ordering::Relaxed);
        self.state.store(RUNNING, Ordering::Release);
    }

    /// Runs a claimed worker at this scheduler's place, on the worker's own kernel thread.
    ///
    /// The worker must belong to the place before it is RUNNING (R14). It may be awake, about to
    /// park, and its event may still be set by an earlier execution for which it did not have to
    /// wait. Then it continues as soon as it is RUNNING. If it still belonged to the place where it
    /// ran last, it would later give up that place instead of this one. The scheduler there would
    /// execute a second worker in addition to its own, and this scheduler would wait forever.
    pub(super) fn run(&self, executor: &Executor) {
        let (place, watched) = (executor.place(), self.watched());
        self.stay_on(place.cpu);
        place.belongs(watched);
        self.executed_by(executor);
        #[cfg(all(test, not(loom)))]
        BELONGED.with_borrow_mut(|all| all.push(place.is_place_of(watched)));
        place.seat(watched);
        watched.go.set();
    }

    /// Allows the worker to be claimed. The worker has yielded and is saved, or has not been queued
    /// to its list yet.
    #[inline]
    pub(super) fn may_be_claimed(&self) {
        self.state.store(PARKED, Ordering::Release);
    }

    /// Pins the worker's own kernel thread to this processor.
    pub(super) fn stay_on(&self, cpu: usize) {
        use rustix::thread::{CpuSet, Pid, sched_setaffinity};
        if self.pinned.swap(cpu, Ordering::Relaxed) == cpu {
            return;
        }
        let mut mask = CpuSet::new();
        mask.set(cpu);
        let tid = Pid::from_raw(self.tid.load(Ordering::Relaxed) as i32);
        // If the kernel refuses, the worker runs on another processor. Then the watchdog detects
        // its blocks instead of the idle-priority watcher.
        let _ = sched_setaffinity(tid, &mask);
    }

    pub(super) fn watched(&self) -> &'static Watched {
        // SAFETY: Own Thread: set before it became PARKED for the first time, and never freed (Type
        // Stable).
        unsafe { &*self.watched.load(Ordering::Acquire) }
    }

    /// Increments the worker's count of suspensions, and stops the worker if it runs. Returns the
    /// previous count.
    pub(super) fn suspend(&self) -> u32 {
        let before = self.suspends.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if matches!(self.state.load(Ordering::SeqCst), CLAIMED | RUNNING) {
            self.watched().ask_to_stop();
        }
        before
    }

    /// Decrements the worker's count of suspensions, and returns the previous count. If the
    /// suspension stopped the worker, the last resume puts it on the completion list.
    pub(super) fn resume(&self) -> u32 {
        let less = |now: u32| now.checked_sub(1);
        let before = self.suspends.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        if before == Ok(1) {
            self.resumed.set();
        }
        before.unwrap_or(0)
    }

    /// Releases the hold of its thread, if the thread has ended.
    ///
    /// # Safety
    /// The caller has a hold of its own on the context.
    pub(super) unsafe fn release_system_hold(&self) {
        if self.is_terminated() && self.system_hold.swap(false, Ordering::AcqRel) {
            if let Some(list) = self.list() {
                list.members.fetch_sub(1, Ordering::Relaxed);
            }
            // SAFETY: Held: `settle_in` has forgotten one `Arc`; the exchange succeeds for one
            // caller only, which drops it.
            unsafe { Arc::decrement_strong_count(ptr::from_ref(self)) };
        }
    }

    // --- What its own thread does -------------------------------------------------------------

    /// Records that the worker's thread exists and is watched. From now on the thread has a hold on
    /// the context: see [`Context::release_system_hold`].
    pub(super) fn settle_in(self: Arc<Self>, watched: &'static Watched) {
        self.watched.store(ptr::from_ref(watched).cast_mut(), Ordering::Release);
        self.tid.store(crate::os::thread_number(), Ordering::Relaxed);
        // SAFETY: Plain Call: numbers.
        self.teb.store(unsafe { libc::pthread_self() } as usize, Ordering::Relaxed);
        self.system_hold.store(true, Ordering::Relaxed);
        self.list().inspect(|list| _ = list.members.fetch_add(1, Ordering::Relaxed));
        std::mem::forget(self);
    }

    /// Records the stack of the calling thread, which is this worker's. If its range is unknown,
    /// every stack counts as the worker's.
    pub(super) fn stack_is_here(&self) {
        if let Some(stack) = StackRange::of_this_thread() {
            self.stack_low.store(stack.low(), Ordering::Relaxed);
            self.stack_top.store(stack.top(), Ordering::Relaxed);
        }
    }

    /// Undoes [`Context::settle_in`].
    ///
    /// # Safety
    /// The caller has a hold of its own on the context, and no other thread uses it yet.
    pub(super) unsafe fn unsettle(&self) {
        self.system_hold.store(false, Ordering::Relaxed);
        self.list().inspect(|list| _ = list.members.fetch_sub(1, Ordering::Relaxed));
        // SAFETY: Held: `settle_in` has forgotten one `Arc`.
        unsafe { Arc::decrement_strong_count(ptr::from_ref(self)) };
    }

    /// Queues the context to its list, and allows the worker to be claimed.
    pub(super) fn queue(&self) {
        if let Some(list) = self.list() {
            self.queue_on(list);
        }
    }

    fn queue_on(&self, list: &ContextList) {
        // The mark is set before the worker may be claimed. Otherwise a scheduler that has a handle
        // of the worker could run it before it is on the list.
        self.link.linked.store(true, Ordering::Relaxed);
        self.state.store(PARKED, Ordering::Release);
        list.push(self);
    }

    /// Parks until a scheduler runs it.
    pub(super) fn wait_to_run(&self) {
        while !self.is_running() {
            self.watched().go.wait();
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.state.load(Ordering::Acquire) == RUNNING
    }

    /// Marks the worker as stopped by a suspension.
    pub(super) fn set_out(&self) {
        self.state.store(OUT, Ordering::Release);
    }

    /// Waits until the worker's count of suspensions is zero.
    pub(super) fn wait_until_resumed(&self) {
        while self.is_suspended() {
            self.set_out();
            self.resumed.wait();
        }
    }

    /// Returns true if the calling code runs on its stack.
    pub(super) fn is_on_its_stack(&self) -> bool {
        let [low, top] = [&self.stack_low, &self.stack_top].map(|end| end.load(Ordering::Relaxed));
        StackRange::new(low, top).is_some_and(StackRange::is_here)
    }

    /// Gives the processor back to the scheduler that runs it, reports how the run ended, and
    /// enters this state. As soon as the state is PARKED, another scheduler may run it.
    pub(super) fn hand_back(&self, state: u32, news: News, param: usize) {
        let executor = self.executor();
        executor.place().vacate(self.watched());
        self.state.store(state, Ordering::Release);
        executor.report(news, param);
    }

    /// Returns the executor of the scheduler that has executed it.
    #[inline]
    pub(super) fn executor(&self) -> &Executor {
        // SAFETY: Held: a scheduler has executed the worker and waits for the end of its run, so
        // the executor is alive.
        unsafe { &*self.executor.load(Ordering::Relaxed) }
    }

    /// Yields. Called inside the library; returns when the worker is run again.
    pub(super) fn yield_to_scheduler(&self, param: usize) {
        self.hand_back(PARKED, News::Yielded, param);
        self.wait_to_run();
    }

    /// Ends. Called inside the library. From here on the thread is an ordinary one and about to
    /// exit.
    pub(super) fn end(&self, list: &ContextList) {
        let watched = self.watched();
        watched.abandon();
        let executor = self.executor();
        executor.place().vacate(watched);
        watched.give_back();
        self.link.linked.store(true, Ordering::Relaxed);
        self.state.store(TERMINATED, Ordering::Release);
        list.push(self);
        // Another thread may have freed the context by now, so it is not used any more.
        executor.report(News::BlockedInCall, 0);
    }
}
