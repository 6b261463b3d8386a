//! What a scheduler is made of, and how it is touched.
//!
//! [`Scheduler`] has two parts. Any thread may reach the first: the inbox, the work queue, the
//! counters. Only the holder of the *baton* may touch the second, [`Core`], which is therefore
//! plain data without locks or atomics; [`Scheduler::with`] is the only way to it. The verbs stand
//! in the files beside this one.

#![allow(unsafe_code)] // Named invariant "Baton", in the module's header.

use std::cell::{Cell, UnsafeCell};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use context::Context;
use fiber::{Fiber, StackPool, Suspender};

use super::options::{Options, WorkerKind};
use super::peers::idle_mask::IdleMask;
use crate::os::driver::{Done, Driver};
use crate::os::entry;
use crate::os::short_lock::ShortLock;
use crate::os::threads::JoinHandle;
use crate::record::counters::{Counters, set};
use crate::record::event_ring::{Ring, RingEvent};
use crate::record::report;
use crate::record::wait_stats::WaitTable;
use crate::scheduler::inbox::Inbox;
use crate::scheduler::lists::WorkerId;
use crate::scheduler::lists::fairness::Fairness;
use crate::scheduler::lists::io_board::IoBoard;
use crate::scheduler::lists::io_list::{IoList, IoResult, Routine};
use crate::scheduler::lists::timer_list::TimerList;
use crate::scheduler::lists::worker_list::Workers;
use crate::scheduler::work_queue::WorkQueue;
use crate::wait::{Ticket, Waiter};
use crate::watch::carriers::Carriers;
use crate::watch::{self, Place, StateFile};

/// What anybody may reach of a scheduler.
pub(crate) struct Scheduler {
    pub(super) me: Weak<Scheduler>,
    /// Its number in the node; hidden ones count on from the visible ones.
    pub index: usize,
    pub options: Options,
    pub inbox: &'static Inbox,
    pub queue: WorkQueue,
    pub counters: Counters,
    pub waits: WaitTable,
    /// What is on the I/O list, for views.
    pub pending: Arc<IoBoard>,
    /// What it did last, if that is recorded.
    pub ring: Option<&'static Ring>,
    /// Requests pending, runnable, running and waiting: the load factor (B2).
    pub load: AtomicUsize,
    /// Users whose home this is.
    pub users: AtomicUsize,
    /// Offline schedulers get no new requests and keep draining.
    pub online: AtomicBool,
    pub stop: AtomicBool,
    /// The scheduler where requests of fiber workers go preemptive (U85).
    pub outside: OnceLock<Weak<Scheduler>>,
    pub peers: Arc<Peers>,
    /// The node it belongs to, whose type stands above this file.
    pub node: OnceLock<Weak<dyn std::any::Any + Send + Sync>>,
    /// The waiters of all workers by their numbers, for views.
    pub roster: ShortLock<BTreeMap<WorkerId, &'static Waiter>>,
    /// How the I/O driver describes itself.
    pub driver_text: String,
    /// In a simulated world, the place of the host thread while contexts change on it.
    #[cfg(feature = "sim")]
    pub carried: crate::os::sim::carry::Carried,
    pub(super) standby: &'static Waiter,
    /// The kernel's number of the thread that was started first: the host of fibers, or the
    /// standby. Or of the carrier that carries.
    pub host_thread: AtomicU32,
    /// Of own contexts, the signals that the host blocks.
    pub(super) host_mask: AtomicU64,
    /// Of thread workers, the waiter whose thread has the baton.
    pub(super) holder: AtomicPtr<Waiter>,
    /// Threads that have ended or are ending.
    pub(super) graves: Mutex<Vec<JoinHandle>>,
    pub(super) busy: AtomicBool,
    /// Whether its current worker sleeps because a lock that is held for moments is not let go
    /// (B48).
    pub(crate) stuck_on_short_lock: AtomicBool,
    /// Whether the present standstill at the hard limit of workers was told.
    pub(crate) standstill_told: AtomicBool,
    /// How many completion routines run, one inside another: none of them may wait (rule 9). And
    /// [`BEGUN`]. Written by the baton's holder.
    pub(super) in_routine: AtomicU32,
    /// A turn runs the completion routines that are due; after them it chooses.
    pub(super) looking: AtomicBool,
    /// Of which queued requests the peers have to be told before a worker runs (scheduler/peers).
    pub(super) peers_unnotified: Cell<PeersUnnotified>,
    /// What detects undeclared blocks, if that is wanted.
    pub(super) detection: Detection,
    /// What takes the baton from a blocked worker, if the option is on.
    pub(super) taker: OnceLock<Arc<dyn crate::watch::watchdog::Subject>>,
    pub(super) core: UnsafeCell<Core>,
}

// SAFETY: Baton: `peers_unnotified` and `core` are touched only by the baton's holder, and the
// baton is handed from thread to thread by an event (release, acquire); everything else is Sync by
// itself.
unsafe impl Sync for Scheduler {}
// SAFETY: Baton: as above; fibers inside `core` are resumed by their host thread only (Home).
unsafe impl Send for Scheduler {}

/// In the count of completion routines: the current worker has begun to wait, and code of the
/// application's runs before it parks.
const BEGUN: u32 = 1 << 31;

/// What such code is told when it tries to.
pub(crate) const HAS_BEGUN: &str =
    "a caller that has begun to wait must not wait for anything else, yield or leave its scheduler";

/// What makes a worker run.
pub(crate) enum Seat {
    /// Its thread waits on the waiter's event.
    Thread(Option<JoinHandle>),
    /// The host thread resumes it. Boxed, and reached through a raw pointer while it runs, so that
    /// the table of workers may move meanwhile. The suspender is its own way out, known once it
    /// has started.
    Fiber(*mut Fiber, Option<Suspender>),
    /// The host thread switches to its context, and its own thread takes it back.
    Own(Own),
}

/// What expires.
#[derive(Clone, Copy)]
pub(crate) enum Timed {
    /// This wait has reached its deadline.
    Wait(Ticket),
    /// This I/O request has: ask for its cancellation, and go on waiting for it (rule 10).
    Io(u64),
}

/// What only the baton's holder touches.
pub(crate) struct Core {
    pub workers: Workers<Seat>,
    /// Which of the ready ones is next.
    pub fairness: Fairness,
    pub timers: TimerList<Timed>,
    /// No timer is due before this many ticks: spares the turn a look at the clock.
    pub timers_sleep_until: u64,
    /// Dropped before the I/O list, whose routines own the buffers that it may be using.
    pub driver: Box<dyn Driver>,
    pub io: IoList,
    pub board: Arc<IoBoard>,
    pub ring: Option<&'static Ring>,
    /// The scheduler's number.
    pub number: u32,
    /// Who holds the baton.
    pub current: WorkerId,
    /// When the present turn began, in ticks: spares a worker that has waited a reading when it
    /// runs again. Whoever hands the baton to such a worker has set it shortly before.
    pub turn_at: u64,
    /// The count of yields when `turn_at` was read: has it changed, the turn is not one worker's.
    pub turn_yields: u64,
    /// What the host thread resumes next; null when the standby is current, or a thread.
    pub fiber: *mut Fiber,
    /// The host thread's own context, where workers have theirs; null elsewhere.
    pub root: *const Context,
    pub pass: Box<Pass>,
    pub stacks: Option<StackPool>,
    /// Completions that the driver has given and nobody has looked at.
    pub done: Vec<Done>,
    /// Routines of completed requests, to be run outside any borrow.
    pub routines: VecDeque<(Routine, IoResult)>,
    /// No worker could be created: do not try again before this time.
    pub create_again: u64,
    /// What is known once there are more workers than the soft limit says.
    pub standstill: Standstill,
    /// When the current quantum began; 0 when nobody has asked yet.
    pub quantum_began: u64,
    pub preemptive: usize,
    /// Places among the preemptive ones that are given to workers which have not run since.
    pub preemptive_granted: usize,
    /// Until when the next request of a user that holds a lock is worth staying awake for; 0: it is
    /// not.
    pub holder_due: u64,
    /// Workers that wait for a place among the preemptive ones (B30).
    pub preemptive_waiters: VecDeque<Ticket>,
}

thread_local! {
    pub(super) static HERE: Cell<*const Scheduler> = const { Cell::new(std::ptr::null()) };
    pub(super) static AWAY: Cell<Option<&'static Waiter>> = const { Cell::new(None) };
    /// The worker that the thread is.
    pub(super) static WORKER: Cell<Option<&'static Waiter>> = const { Cell::new(None) };
}

/// What makes a worker with its own context run.
pub(crate) struct Own {
    /// In its waiter.
    pub(super) context: *const Context,
    pub(super) thread: JoinHandle,
}

/// From whom to whom the next switch goes. Kept in one place, so that a way out is two words.
pub(crate) struct Pass {
    pub(super) from: *const Context,
    pub(super) to: *const Context,
}

/// What is known of a scheduler that has as many workers as its soft limit says.
#[derive(Default)]
pub(crate) struct Standstill {
    pub(super) progress: u64,
    /// When that changed last.
    pub(super) since: u64,
    /// When a worker was made for a request that was overdue.
    pub(super) overdue: u64,
    /// Whether it was told that the hard limit is reached.
    pub(super) told: bool,
}

/// What a scheduler that detects has.
#[derive(Default)]
pub(crate) struct Detection {
    pub(super) place: OnceLock<Arc<Place>>,
    /// The baton was taken from the current worker, and in what; the standby has not seen to it
    /// yet.
    pub(super) lost: AtomicU8,
    /// What the watchdog saw last time, and how often.
    pub(super) stuck: [AtomicU64; 2],
    /// What the host of workers with their own context is doing, where there is one.
    pub(super) host: StateFile,
    /// Those of a scheduler that is tied to no host.
    pub(super) carriers: OnceLock<Carriers>,
    /// What it was poked for last, and how often.
    pub(super) poked: AtomicU64,
    pub(super) pokes: watch::Pokes,
}

/// Which requests a scheduler must tell its peers of before it runs a worker, because it was woken
/// for them, or nobody was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PeersUnnotified {
    /// None.
    Nothing,
    /// Those in its own work queue.
    Own,
    /// Those in any work queue.
    Any,
}

/// The visible schedulers of a node.
pub(crate) struct Peers {
    pub(super) idle: IdleMask,
    pub(super) list: OnceLock<Box<[Weak<Scheduler>]>>,
}

/// The worker that runs external code on this thread, outside its scheduler.
pub(crate) fn away() -> Option<&'static Waiter> {
    AWAY.get()
}

pub(crate) fn set_here(scheduler: Option<&Scheduler>) {
    HERE.set(scheduler.map_or(std::ptr::null(), std::ptr::from_ref));
}

/// Runs code that is not ours where no panic may pass. False: it panicked. What it panicked with is
/// dropped here, and may panic again.
pub(crate) fn contain(call: impl FnOnce()) -> bool {
    let catch =
        |call: &mut dyn FnMut()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).err();
    let mut call = Some(call);
    let mut payload = catch(&mut || call.take().into_iter().for_each(|call| call()));
    let fine = payload.is_none();
    if let Some(again) = catch(&mut || drop(payload.take())) {
        // A payload whose destructor panics with one like itself could go on for ever.
        std::mem::forget(again);
    }
    fine
}

impl Scheduler {
    /// Touches the core. The closure must not switch, park, run user code, or call `with`.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Core) -> R) -> R {
        debug_assert!(
            std::ptr::eq(HERE.get(), self) && entry::is_inside(),
            "a scheduler's lists were touched without its baton"
        );
        // Written by this thread only. Atomic, because the watcher of a blocked worker reads it.
        let busy = self.busy.load(Ordering::Relaxed);
        self.busy.store(true, Ordering::Relaxed);
        assert!(!busy, "a scheduler's lists were touched twice at once");
        // SAFETY: Baton: this thread holds it (checked above in debug builds; every path here
        // comes from `here()`), and `busy` shows that no other borrow is alive. A panic inside
        // leaves `busy` set, so a broken core is never touched again.
        let r = f(unsafe { &mut *self.core.get() });
        self.busy.store(false, Ordering::Relaxed);
        r
    }

    /// Builds a scheduler that nobody runs yet.
    pub(crate) fn new(
        index: usize,
        options: Options,
        peers: Arc<Peers>,
        driver: Box<dyn Driver>,
    ) -> Arc<Scheduler> {
        let inbox = Inbox::take(driver.waker());
        let driver_text = driver.describe();
        let standby = Waiter::take(inbox.address(), crate::scheduler::lists::worker_list::STANDBY);
        let pending = Arc::new(IoBoard::default());
        let ring = options.ring.then(|| Ring::take(index as u32));
        inbox.number.store(index as u32, Ordering::Relaxed);
        let core = Core {
            workers: Workers::new(options.passed_max > 0, standby),
            fairness: Fairness::new(options.passed_max),
            timers: TimerList::new(crate::os::clock::now()),
            timers_sleep_until: 0,
            io: IoList::new(),
            board: pending.clone(),
            ring,
            driver,
            number: index as u32,
            current: crate::scheduler::lists::worker_list::STANDBY,
            turn_at: 0,
            turn_yields: 0,
            fiber: std::ptr::null_mut(),
            root: std::ptr::null(),
            pass: Box::new(Pass::NONE),
            stacks: (options.kind == WorkerKind::Fiber).then(|| options.stacks()),
            done: Vec::new(),
            routines: VecDeque::new(),
            create_again: 0,
            standstill: Standstill::default(),
            quantum_began: 0,
            preemptive: 0,
            preemptive_granted: 0,
            holder_due: 0,
            preemptive_waiters: VecDeque::new(),
        };
        Arc::new_cyclic(|me| Scheduler {
            me: me.clone(),
            index,
            inbox,
            queue: WorkQueue::new(options.queue_max),
            counters: Counters::default(),
            waits: WaitTable::new(),
            pending,
            ring,
            load: AtomicUsize::new(0),
            users: AtomicUsize::new(0),
            online: AtomicBool::new(true),
            stop: AtomicBool::new(false),
            outside: OnceLock::new(),
            node: OnceLock::new(),
            peers,
            roster: ShortLock::default(),
            driver_text,
            #[cfg(feature = "sim")]
            carried: Default::default(),
            standby,
            host_thread: AtomicU32::new(crate::os::thread_number()),
            host_mask: AtomicU64::new(0),
            holder: AtomicPtr::new(std::ptr::null_mut()),
            graves: Mutex::new(Vec::new()),
            busy: AtomicBool::new(false),
            stuck_on_short_lock: AtomicBool::new(false),
            standstill_told: AtomicBool::new(false),
            in_routine: AtomicU32::new(0),
            looking: AtomicBool::new(false),
            peers_unnotified: Cell::new(PeersUnnotified::Nothing),
            detection: Detection::default(),
            taker: OnceLock::new(),
            core: UnsafeCell::new(core),
            options,
        })
    }

    /// Notes an event, if the scheduler has a ring. Baton holder only.
    #[inline]
    pub(crate) fn record(&self, event: RingEvent, worker: WorkerId, detail: u32) {
        if let Some(ring) = self.ring {
            ring.record(event, worker, detail);
        }
    }

    /// Called before anything that may give the baton away: a completion routine must not, for it
    /// runs in the middle of somebody else's turn (rule 9).
    ///
    /// # Panics
    /// In a completion routine; in the closure that queues the caller for a wait; and in debug
    /// builds while the worker says that it holds a foreign lock (B53).
    #[inline]
    pub(crate) fn may_switch(&self) {
        #[cfg(debug_assertions)]
        if let Some(place) = self.current_waiter().foreign.held()
            && !std::thread::panicking()
        {
            panic!(
                "a worker must not wait or yield while it holds a foreign lock: that of {place}"
            );
        }
        if self.in_routine.load(Ordering::Relaxed) != 0 {
            self.refuse_to_switch();
        }
    }

    #[cold]
    pub(super) fn refuse_to_switch(&self) -> ! {
        assert!(self.is_in_routine(), "{HAS_BEGUN}");
        panic!("a completion routine must not wait or yield: hand the wait to a request");
    }

    /// The current worker has begun to wait, and does not park yet; or it is about to.
    pub(crate) fn note_begun(&self, begun: bool) {
        let routines = self.routines_running();
        self.in_routine.store(routines | if begun { BEGUN } else { 0 }, Ordering::Relaxed);
    }

    /// Publishes the lengths of the lists.
    pub(super) fn publish(&self, core: &Core) {
        let c = &self.counters;
        set(&c.runnable, core.workers.runnable());
        set(&c.waiting, core.workers.waiting.len as usize);
        set(&c.idle, core.workers.idle.len as usize);
        set(&c.workers, core.workers.count());
        set(&c.preemptive, core.preemptive);
        set(&c.pending_io, core.io.outstanding());
        set(&c.timers, core.timers.len());
    }

    /// The kernel's number of the thread that has the baton, as far as anybody can tell.
    pub(crate) fn baton_thread(&self) -> u32 {
        // SAFETY: Type Stable: the pointer is null or came from a `&'static Waiter`.
        let holder = unsafe { self.holder.load(Ordering::Relaxed).as_ref() };
        let thread = holder.map_or(0, |waiter| waiter.view.thread.load(Ordering::Relaxed));
        if thread != 0 { thread } else { self.host_thread.load(Ordering::Relaxed) }
    }

    /// Whether a completion routine runs.
    pub(crate) fn is_in_routine(&self) -> bool {
        self.routines_running() > 0
    }

    /// How many completion routines run, one inside another.
    pub(super) fn routines_running(&self) -> u32 {
        self.in_routine.load(Ordering::Relaxed) & !BEGUN
    }

    /// The worker that runs, as far as anybody can tell.
    pub(crate) fn running(&self) -> Option<&'static Waiter> {
        let roster = self.roster.lock();
        roster
            .values()
            .copied()
            .find(|waiter| waiter.is(crate::scheduler::lists::worker_list::State::Running))
    }

    /// Notes whose thread has the baton. Of thread workers only: a fiber's is its host's.
    pub(super) fn held_by(&self, waiter: &'static Waiter) {
        self.holder.store(std::ptr::from_ref(waiter).cast_mut(), Ordering::Relaxed);
    }

    /// Sets a time limit for an I/O request of this scheduler, whose baton the caller holds.
    pub(crate) fn time_io(
        &self,
        deadline: u64,
        token: u64,
    ) -> crate::scheduler::lists::timer_list::TimerId {
        self.with(|core| core.set_timer(deadline, Timed::Io(token)))
    }

    /// Takes a time limit back.
    pub(crate) fn untime(&self, timer: crate::scheduler::lists::timer_list::TimerId) {
        self.with(|core| core.timers.cancel(timer));
    }

    /// The owner of this.
    pub(crate) fn arc(&self) -> Arc<Scheduler> {
        self.me.upgrade().expect("a scheduler that is used is alive")
    }

    /// A sentence for stderr, unless the node was told to write none; see [`report::warn`].
    #[cold]
    pub(crate) fn warn(&self, kind: report::Kind, text: std::fmt::Arguments<'_>) {
        if self.options.warnings {
            report::warn(kind, text);
        }
    }

    /// The name that its threads and workers begin with.
    pub(crate) fn name(&self) -> &str {
        &self.options.name
    }
}

impl Core {
    /// As [`Scheduler::record`].
    #[inline]
    pub(crate) fn record(&self, event: RingEvent, worker: WorkerId, detail: u32) {
        if let Some(ring) = self.ring {
            ring.record(event, worker, detail);
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        debug_assert!(!self.busy.load(Ordering::Relaxed) || std::thread::panicking());
        self.ring.iter().for_each(|ring| ring.give_back());
        self.standby.give_back();
        self.inbox.give_back();
    }
}
