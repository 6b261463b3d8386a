//! A worker context: what a scheduler knows and moves of one worker thread.
//!
//! States, and who makes each step:
//!
//! ```text
//! UNBORN --start--> STARTING --its thread--> PARKED --claim--> CLAIMED --run--> RUNNING
//!                                              ^                  |                |
//!                                              +---- given back --+                |
//!                                              +------- its thread: yields, or woke at its gate
//!                                              +-- resumed -- OUT <-- its thread: suspended
//!                                                                    its thread: ends --> TERMINATED
//! ```
//!
//! A blocked worker is still RUNNING here: only its ownership word and its place know that it lost
//! its processor, so that a worker which wakes early never meets a late writer. PARKED means that
//! it may be claimed; whether it is in a chain of the completion list is a separate mark, and
//! claiming one that is gives *Locked*.
//!
//! A worker with its own context (`own.rs`) that is PARKED is saved, or stands at its gate on its
//! own kernel thread; how it is executed says that. It is made PARKED by its scheduler, or by who
//! made it, once it is saved.
//!
//! Named invariants. **Held**: a worker's thread holds its context until it has ended; then the
//! completion list does. **Own Thread**: see `watch/thread.rs`. **Executed**: while a worker is
//! RUNNING and owns its place, its scheduler waits for news of it, so the scheduler behind its
//! pointer is alive.

#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
use std::sync::{Arc, OnceLock};

use fiber::StackRange;

use super::list::List;
use super::primary::{News, Primary};
use super::{ExecuteError, WorkerCounts};
use crate::os::event::Event;
use crate::record::counters::add;
use crate::watch::{GateHandler, Watched, signals};

const UNBORN: u32 = 0;
const STARTING: u32 = 1;
const PARKED: u32 = 2;
const CLAIMED: u32 = 3;
const RUNNING: u32 = 4;
const OUT: u32 = 5;
const TERMINATED: u32 = 6;

/// What a thread is to this layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThreadKind {
    /// An ordinary thread.
    Plain,
    /// In scheduling mode.
    Scheduler,
    /// A worker.
    Worker,
}

const PLAIN: u8 = 0;
const SCHEDULER: u8 = 1;
const WORKER: u8 = 2;

/// A worker's context, or a scheduler's own.
#[derive(Debug)]
pub struct Context {
    kind: AtomicU8,
    state: AtomicU32,
    /// The next of its chain; it is in one while `linked`.
    pub(super) link: AtomicPtr<Context>,
    pub(super) linked: AtomicBool,
    /// Its chain was taken out of the list.
    pub(super) taken: AtomicBool,
    /// Deleted while it was on the list: whoever takes it from there lets it go.
    pub(super) deleted: AtomicBool,
    /// How many hold its context still.
    pub(super) locks: AtomicU32,
    suspends: AtomicU32,
    resumed: Event,
    /// What the application keeps here.
    pub(super) user: AtomicUsize,
    pub(super) teb: AtomicUsize,
    pub(super) tid: AtomicU32,
    pub(super) priority: AtomicI32,
    /// Processors that may run it, one bit each; 0 means all.
    pub(super) affinity: AtomicU64,
    /// Where its thread was pinned last; `usize::MAX` for nowhere.
    pinned: AtomicUsize,
    list: OnceLock<Arc<List>>,
    watched: AtomicPtr<Watched>,
    primary: AtomicPtr<Primary>,
    /// The hold of the thread, and after its end of the completion list, is still to be released.
    system_hold: AtomicBool,
    /// Its registers while it is saved. Never, if it is an ordinary thread.
    pub(super) own: ::context::Context,
    pub(super) has_own_context: AtomicBool,
    /// Whether it can be saved: its thread has detached, and has not come to its end.
    pub(super) detached: AtomicBool,
    /// Where its stack lies, if it has its own context.
    stack_low: AtomicUsize,
    stack_top: AtomicUsize,
    /// The C library's state of that, as it is on its own kernel thread.
    pub(super) is_cancellable: AtomicI32,
    pub(super) counts: Counts,
}

/// How often what happened to a worker. Written by its thread, and by whoever executes it.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub executed: AtomicU64,
    pub yields: AtomicU64,
    pub kernel_yields: AtomicU64,
    pub mixed_yields: AtomicU64,
}

impl Context {
    pub(super) fn new() -> Arc<Context> {
        Arc::new(Context {
            kind: AtomicU8::new(PLAIN),
            state: AtomicU32::new(UNBORN),
            link: AtomicPtr::new(ptr::null_mut()),
            linked: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            deleted: AtomicBool::new(false),
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
            primary: AtomicPtr::new(ptr::null_mut()),
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

    /// The context of a thread that enters scheduling mode.
    pub(super) fn of_scheduler() -> Arc<Context> {
        let context = Context::new();
        context.kind.store(SCHEDULER, Ordering::Relaxed);
        context.tid.store(crate::os::thread_number(), Ordering::Relaxed);
        context
    }

    pub(super) fn kind(&self) -> ThreadKind {
        match self.kind.load(Ordering::Acquire) {
            SCHEDULER => ThreadKind::Scheduler,
            WORKER => ThreadKind::Worker,
            _ => ThreadKind::Plain,
        }
    }

    pub(super) fn list(&self) -> Option<&Arc<List>> {
        self.list.get()
    }

    pub(super) fn is_terminated(&self) -> bool {
        self.state.load(Ordering::Acquire) == TERMINATED
    }

    /// Whether its memory may go: it never had a thread, or that has ended.
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

    // --- What others do to it -----------------------------------------------------------------

    /// Becomes a worker of this list. False: it has a thread already, or is a scheduler's.
    pub(super) fn start(self: &Arc<Self>, list: &Arc<List>) -> bool {
        let free = self.kind() == ThreadKind::Plain
            && self
                .state
                .compare_exchange(UNBORN, STARTING, Ordering::AcqRel, Ordering::Acquire)
                .is_ok();
        if free {
            let _ = self.list.set(list.clone());
            self.kind.store(WORKER, Ordering::Release);
        }
        free
    }

    /// The part of executing that may fail: from here on it is the caller's to run.
    pub(super) fn claim(&self, cpu: usize) -> Result<(), ExecuteError> {
        if self.kind() != ThreadKind::Worker {
            return Err(ExecuteError::NotAWorker);
        }
        if self.linked.load(Ordering::Acquire) {
            return Err(ExecuteError::Locked);
        }
        match self.state.compare_exchange(PARKED, CLAIMED, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => {}
            Err(UNBORN | STARTING) => return Err(ExecuteError::NotAWorker),
            Err(TERMINATED) => return Err(ExecuteError::Terminated),
            Err(OUT) => return Err(ExecuteError::Suspended),
            Err(_) => return Err(ExecuteError::Running),
        }
        // After the exchange: who locks or suspends adds first and looks at the state then.
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

    /// The thread could not be had.
    pub(super) fn unstart(&self) {
        self.kind.store(PLAIN, Ordering::Release);
        self.state.store(UNBORN, Ordering::Release);
    }

    /// Back into its list, by who took it out of a chain and does not want it.
    pub(super) fn requeue(&self, list: &List) {
        self.linked.store(true, Ordering::Relaxed);
        list.push(self);
    }

    /// Gives a claim back.
    pub(super) fn unclaim(&self) {
        self.state.store(PARKED, Ordering::Release);
    }

    /// A claimed worker is this scheduler's from now on.
    #[inline]
    pub(super) fn executed_by(&self, primary: &Primary) {
        add(&self.counts.executed, 1);
        self.primary.store(ptr::from_ref(primary).cast_mut(), Ordering::Relaxed);
        self.state.store(RUNNING, Ordering::Release);
    }

    /// Lets a claimed worker run at this scheduler's place, on its own kernel thread.
    pub(super) fn run(&self, primary: &Primary) {
        let place = primary.place();
        self.stay_on(place.cpu);
        self.executed_by(primary);
        let watched = self.watched();
        place.seat(watched);
        watched.go.set();
    }

    /// It has yielded and is saved, or has not come to its list yet: it may be claimed from now on.
    #[inline]
    pub(super) fn may_be_claimed(&self) {
        self.state.store(PARKED, Ordering::Release);
    }

    /// Its own kernel thread stays on this processor from now on.
    pub(super) fn stay_on(&self, cpu: usize) {
        use rustix::thread::{CpuSet, Pid, sched_setaffinity};
        if self.pinned.swap(cpu, Ordering::Relaxed) == cpu {
            return;
        }
        let mut mask = CpuSet::new();
        mask.set(cpu);
        let tid = Pid::from_raw(self.tid.load(Ordering::Relaxed) as i32);
        // Where that is refused it runs elsewhere, and the watchdog detects its blocks instead of the watcher.
        let _ = sched_setaffinity(tid, &mask);
    }

    pub(super) fn watched(&self) -> &'static Watched {
        // SAFETY: Own Thread: set before it was first PARKED, and never freed (Type Stable).
        unsafe { &*self.watched.load(Ordering::Acquire) }
    }

    /// One more who wants it stopped; gives how many there were.
    pub(super) fn suspend(&self) -> u32 {
        let before = self.suspends.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if matches!(self.state.load(Ordering::SeqCst), CLAIMED | RUNNING) {
            self.watched().ask_to_stop();
        }
        before
    }

    /// One less; gives how many there were. The last lets it come on the completion list again, if
    /// it ran when it was suspended.
    pub(super) fn resume(&self) -> u32 {
        let less = |now: u32| now.checked_sub(1);
        let before = self.suspends.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        if before == Ok(1) {
            self.resumed.set();
        }
        before.unwrap_or(0)
    }

    /// Releases the hold that its thread had, once it has ended.
    ///
    /// # Safety
    /// The caller holds the context itself.
    pub(super) unsafe fn release_system_hold(&self) {
        if self.is_terminated() && self.system_hold.swap(false, Ordering::AcqRel) {
            if let Some(list) = self.list() {
                list.members.fetch_sub(1, Ordering::Relaxed);
            }
            // SAFETY: Held: `settle_in` forgot one `Arc`, and the exchange makes this its only end.
            unsafe { Arc::decrement_strong_count(ptr::from_ref(self)) };
        }
    }

    // --- What its own thread does -------------------------------------------------------------

    /// Its thread is there and watched. The context is held by it from now on: see
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

    /// Says where the stack of the calling thread lies, which is this worker's. Where nobody knows,
    /// every stack is taken for it.
    pub(super) fn stack_is_here(&self) {
        if let Some(stack) = StackRange::of_this_thread() {
            self.stack_low.store(stack.low(), Ordering::Relaxed);
            self.stack_top.store(stack.top(), Ordering::Relaxed);
        }
    }

    /// Takes back what [`Context::settle_in`] has done.
    ///
    /// # Safety
    /// The caller holds the context itself, and nobody was told of it.
    pub(super) unsafe fn unsettle(&self) {
        self.system_hold.store(false, Ordering::Relaxed);
        self.list().inspect(|list| _ = list.members.fetch_sub(1, Ordering::Relaxed));
        // SAFETY: Held: `settle_in` forgot one `Arc`.
        unsafe { Arc::decrement_strong_count(ptr::from_ref(self)) };
    }

    /// Queues it for the first time.
    pub(super) fn queue_first(&self) {
        if let Some(list) = self.list() {
            self.queue_on(list);
        }
    }

    fn queue_on(&self, list: &List) {
        // Before it may be claimed: who knows it already must not run it while it is on its way.
        self.linked.store(true, Ordering::Relaxed);
        self.state.store(PARKED, Ordering::Release);
        list.push(self);
    }

    /// Parks until a scheduler runs it.
    pub(super) fn wait_to_run(&self) {
        while !self.owns_place() {
            self.event().wait();
        }
    }

    /// Gives the processor to the scheduler that runs it, with news, and is in this state then.
    /// From there on it may be run again, by another scheduler even.
    fn hand_back(&self, state: u32, news: News, param: usize) {
        let primary = self.primary();
        primary.place().vacate(self.watched());
        self.state.store(state, Ordering::Release);
        primary.tell(news, self, param);
    }

    /// The scheduler that has executed it.
    #[inline]
    pub(super) fn primary(&self) -> &Primary {
        // SAFETY: Executed.
        unsafe { &*self.primary.load(Ordering::Relaxed) }
    }

    /// Yields, inside the machine; returns when it is run again.
    pub(super) fn yield_to_scheduler(&self, param: usize) {
        self.hand_back(PARKED, News::Yielded, param);
        self.wait_to_run();
    }

    /// Ends, inside the machine. The thread is an ordinary one from here on, about to exit.
    pub(super) fn end(&self, list: &List) {
        let watched = self.watched();
        watched.abandon();
        let primary = self.primary();
        primary.place().vacate(watched);
        watched.give_back();
        self.linked.store(true, Ordering::Relaxed);
        self.state.store(TERMINATED, Ordering::Release);
        list.push(self);
        // The context may be gone now.
        primary.tell(News::BlockedInCall, ptr::null(), 0);
    }
}

impl GateHandler for Context {
    fn report(&self) {
        while self.is_suspended() {
            self.state.store(OUT, Ordering::Release);
            self.resumed.wait();
        }
        if let Some(list) = self.list() {
            self.queue_on(list);
        }
    }

    fn owns_place(&self) -> bool {
        self.state.load(Ordering::Acquire) == RUNNING
    }

    fn event(&self) -> &'static Event {
        &self.watched().go
    }

    fn stop(&self) {
        if self.is_suspended() {
            self.hand_back(OUT, News::BlockedInTrap, 0);
            GateHandler::report(self);
            self.wait_to_run();
        }
    }

    fn leave_host(&self, blocks: bool) {
        self.couple(blocks.then_some(News::BlockedInCall));
    }

    fn may_leave_host(&self) -> bool {
        let [low, top] = [&self.stack_low, &self.stack_top].map(|end| end.load(Ordering::Relaxed));
        StackRange::new(low, top).is_some_and(StackRange::is_here)
            && signals::mask_here() == self.primary().host_mask
    }

    fn stop_on_host(&self) -> bool {
        if !self.is_suspended() {
            return false;
        }
        // Said before others can run: who resumes it from now on sets an event that is kept.
        self.state.store(OUT, Ordering::Release);
        self.couple(Some(News::BlockedInTrap));
        signals::masked(|| {
            GateHandler::report(self);
            self.wait_to_run();
            signals::swallow();
        });
        true
    }

    fn before_exit(&self) {
        super::own::leave_for_good();
    }
}
