//! A worker context: what a scheduler knows and changes of one worker thread.
//!
//! The states, and what makes each step:
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
//! A blocked worker is still RUNNING here: only its ownership word and its place record that it
//! lost its processor, so that no late write can reach a worker that wakes early. PARKED means that
//! it may be claimed. Whether it is in a chain of the completion list is a separate mark; claiming
//! a worker that is in one gives *Locked*.
//!
//! A PARKED worker with its own context (`own.rs`) is either saved, or stands at its gate on its
//! own kernel thread; which of the two decides how it is executed. Its scheduler, or the thread
//! that created it, makes it PARKED once it is saved.
//!
//! Named invariants. **Held**: a worker's thread holds its context until the thread has ended; then
//! the completion list does. While a worker is RUNNING and owns its place, its scheduler waits for
//! news of it, so the executor behind its pointer is alive. **Own Thread**: see `watch/thread.rs`;
//! and the pointer to the calling worker's context is cleared at the end of the worker's thread,
//! which holds the context until then.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
use std::sync::{Arc, OnceLock};

use fiber::StackRange;

use super::error::ExecuteError;
use super::executor::{Executor, News};
use super::list::{self, Link, Linked};
use crate::os::event::Event;
use crate::record::counters::add;
use crate::watch::{self, Watched};

/// A completion list of worker contexts.
pub type List = list::List<Context>;

/// What a worker runs. It may return or call `pthread_exit`.
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
    /// It is in scheduling mode.
    Scheduler,
    /// It is a worker.
    Worker,
}

/// The context of a worker or of a scheduler.
#[derive(Debug)]
pub struct Context {
    /// A [`ThreadKind`] as a number.
    kind: AtomicU8,
    state: AtomicU32,
    pub(super) link: Link<Context>,
    /// Number of locks that hold its context still.
    pub(super) locks: AtomicU32,
    suspends: AtomicU32,
    resumed: Event,
    /// A value of the application's.
    pub(super) user: AtomicUsize,
    pub(super) teb: AtomicUsize,
    pub(super) tid: AtomicU32,
    pub(super) priority: AtomicI32,
    /// The processors that may run it, one bit each; 0 means all.
    pub(super) affinity: AtomicU64,
    /// The processor that its thread was pinned to last; `usize::MAX` for none.
    pinned: AtomicUsize,
    list: OnceLock<Arc<List>>,
    watched: AtomicPtr<Watched>,
    executor: AtomicPtr<Executor>,
    /// The hold of the thread, or after its end of the completion list, has not been released yet.
    system_hold: AtomicBool,
    /// Its registers while it is saved. Never used by a worker without its own context.
    pub(super) own: ::context::Context,
    pub(super) has_own_context: AtomicBool,
    /// It can be saved: its thread has detached from its kernel thread, and is not ending.
    pub(super) detached: AtomicBool,
    /// The range of its stack, if it has its own context.
    stack_low: AtomicUsize,
    stack_top: AtomicUsize,
    /// Whether the C library may cancel the thread while it is on its own kernel thread.
    pub(super) is_cancellable: AtomicI32,
    pub(super) counts: Counts,
}

/// How often each event happened to a worker. Written by its thread and by its scheduler.
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
    /// Yields from its own kernel thread (KernelYieldCount). For a worker without its own context
    /// these are all its yields.
    pub kernel_yields: u64,
    /// Of these, the yields of a worker with its own context after which it could not be executed
    /// in user mode, because it was ending (MixedYieldCount).
    pub mixed_yields: u64,
}

thread_local! {
    static CURRENT: Cell<*const Context> = const { Cell::new(ptr::null()) };
}

/// Returns the context of the calling worker; None on any other thread.
#[inline]
pub(super) fn current<'a>() -> Option<&'a Context> {
    watch::thread::me()?;
    // SAFETY: Own Thread: null, or set by this thread, which holds it.
    unsafe { CURRENT.get().as_ref() }
}

/// Sets the context that [`current`] returns on this thread; null for none. The thread holds the
/// context, and clears the pointer before it ends (Own Thread).
pub(super) fn set_current(context: *const Context) {
    CURRENT.set(context);
}

impl Linked for Context {
    fn link(&self) -> &Link<Context> {
        &self.link
    }

    unsafe fn release_deleted(&self) {
        // SAFETY: Held, by the contract: the chain holds it, so the caller does.
        unsafe { self.release_system_hold() };
    }
}
#[cfg(all(test, not(loom)))]
thread_local! {
    /// For each worker that this thread has executed, whether it belonged to the place when it
    /// became RUNNING.
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
            resumed: Event::new(),
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

    /// Returns the context of a thread that enters scheduling mode.
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

    pub(super) fn list(&self) -> Option<&Arc<List>> {
        self.list.get()
    }

    pub(super) fn is_terminated(&self) -> bool {
        self.state.load(Ordering::Acquire) == TERMINATED
    }

    /// Returns true if its memory may be freed: it never had a thread, or that has ended.
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

    /// Makes it a worker of this list. Returns false if it has a thread already or is a
    /// scheduler's.
    pub(super) fn start(self: &Arc<Self>, list: &Arc<List>) -> bool {
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

    /// Does the part of executing that may fail. On success the caller has the right to run it.
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
        // After the exchange: a thread that locks or suspends the context counts first and reads
        // the state then.
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

    /// Puts it back into its list, after it was taken out of a chain and not used.
    pub(super) fn requeue(&self, list: &List) {
        self.link.linked.store(true, Ordering::Relaxed);
        list.push(self);
    }

    /// Gives a claim back.
    pub(super) fn unclaim(&self) {
        self.state.store(PARKED, Ordering::Release);
    }

    /// Makes a claimed worker run under this scheduler.
    #[inline]
    pub(super) fn executed_by(&self, executor: &Executor) {
        add(&self.counts.executed, 1);
        self.executor.store(ptr::from_ref(executor).cast_mut(), Ordering::Relaxed);
        self.state.store(RUNNING, Ordering::Release);
    }

    /// Runs a claimed worker at this scheduler's place, on the worker's own kernel thread.
    ///
    /// It belongs to the place before it is RUNNING (R14). It may be awake, about to park, and its
    /// event still be set by an earlier execution for which it did not have to wait; then it
    /// continues as soon as it is RUNNING. If it still belonged to the place where it ran last, it
    /// would give up that one: the scheduler there would execute a second worker beside its own,
    /// and this scheduler would wait forever.
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

    /// Allows it to be claimed: it has yielded and is saved, or has not been queued to its list
    /// yet.
    #[inline]
    pub(super) fn may_be_claimed(&self) {
        self.state.store(PARKED, Ordering::Release);
    }

    /// Pins its own kernel thread to this processor.
    pub(super) fn stay_on(&self, cpu: usize) {
        use rustix::thread::{CpuSet, Pid, sched_setaffinity};
        if self.pinned.swap(cpu, Ordering::Relaxed) == cpu {
            return;
        }
        let mut mask = CpuSet::new();
        mask.set(cpu);
        let tid = Pid::from_raw(self.tid.load(Ordering::Relaxed) as i32);
        // If the kernel refuses, the worker runs elsewhere; then the watchdog notices its blocks
        // instead of the idle-priority watcher.
        let _ = sched_setaffinity(tid, &mask);
    }

    pub(super) fn watched(&self) -> &'static Watched {
        // SAFETY: Own Thread: set before it was first PARKED, and never freed (Type Stable).
        unsafe { &*self.watched.load(Ordering::Acquire) }
    }

    /// Suspends it once more; returns how often it was suspended before.
    pub(super) fn suspend(&self) -> u32 {
        let before = self.suspends.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if matches!(self.state.load(Ordering::SeqCst), CLAIMED | RUNNING) {
            self.watched().ask_to_stop();
        }
        before
    }

    /// Resumes it once; returns how often it was suspended before. The last resume puts it on the
    /// completion list again, if it ran when it was suspended.
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
    /// The caller holds the context itself.
    pub(super) unsafe fn release_system_hold(&self) {
        if self.is_terminated() && self.system_hold.swap(false, Ordering::AcqRel) {
            if let Some(list) = self.list() {
                list.members.fetch_sub(1, Ordering::Relaxed);
            }
            // SAFETY: Held: `settle_in` forgot one `Arc`, and only the first caller of this
            // exchange drops it.
            unsafe { Arc::decrement_strong_count(ptr::from_ref(self)) };
        }
    }

    // --- What its own thread does -------------------------------------------------------------

    /// Records that its thread exists and is watched. From now on the thread holds the context: see
    /// [`Context::release_system_hold`].
    pub(super) fn settle_in(self: Arc<Self>, watched: &'static Watched) {
        self.watched.store(ptr::from_ref(watched).cast_mut(), Ordering::Release);
        self.tid.store(crate::os::thread_number(), Ordering::Relaxed);
        // SAFETY: Plain Call: numbers.
        self.teb.store(unsafe { libc::pthread_self() } as usize, Ordering::Relaxed);
        self.system_hold.store(true, Ordering::Relaxed);
        self.list().inspect(|list| _ = list.members.fetch_add(1, Ordering::Relaxed));
        std::mem::forget(self);
    }

    /// Records the stack of the calling thread, which is this worker's. If the range is unknown,
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
    /// The caller holds the context itself, and no other thread knows of it.
    pub(super) unsafe fn unsettle(&self) {
        self.system_hold.store(false, Ordering::Relaxed);
        self.list().inspect(|list| _ = list.members.fetch_sub(1, Ordering::Relaxed));
        // SAFETY: Held: `settle_in` forgot one `Arc`.
        unsafe { Arc::decrement_strong_count(ptr::from_ref(self)) };
    }

    /// Queues it to its list.
    pub(super) fn queue(&self) {
        if let Some(list) = self.list() {
            self.queue_on(list);
        }
    }

    fn queue_on(&self, list: &List) {
        // Before it may be claimed: a scheduler that knows it already must not run it before it is
        // on the list.
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

    /// Marks it as suspended and stopped.
    pub(super) fn set_out(&self) {
        self.state.store(OUT, Ordering::Release);
    }

    /// Waits until it is no longer suspended.
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
    /// enters this state. From there on another scheduler may already run it.
    pub(super) fn hand_back(&self, state: u32, news: News, param: usize) {
        let executor = self.executor();
        executor.place().vacate(self.watched());
        self.state.store(state, Ordering::Release);
        executor.report(news, param);
    }

    /// Returns what it reaches of the scheduler that has executed it.
    #[inline]
    pub(super) fn executor(&self) -> &Executor {
        // SAFETY: Held: it is executed, so the scheduler that did so is there.
        unsafe { &*self.executor.load(Ordering::Relaxed) }
    }

    /// Yields, inside the library; returns when it is run again.
    pub(super) fn yield_to_scheduler(&self, param: usize) {
        self.hand_back(PARKED, News::Yielded, param);
        self.wait_to_run();
    }

    /// Ends, inside the library. The thread is an ordinary one from here on, and about to exit.
    pub(super) fn end(&self, list: &List) {
        let watched = self.watched();
        watched.abandon();
        let executor = self.executor();
        executor.place().vacate(watched);
        watched.give_back();
        self.link.linked.store(true, Ordering::Relaxed);
        self.state.store(TERMINATED, Ordering::Release);
        list.push(self);
        // The context may be freed by now.
        executor.report(News::BlockedInCall, 0);
    }
}
