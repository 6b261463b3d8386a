//! What a scheduler consists of, and how its parts are accessed.
//!
//! [`Scheduler`] has two parts. Any thread may access the first: the inbox, the work queue, the
//! counters. Only the holder of the *baton* may access the second, [`Core`], which is therefore
//! plain data without locks or atomics; [`Scheduler::with`] is the only way to it. The other files
//! of this folder have what a scheduler does with these parts, one file for each verb.

#![allow(unsafe_code)] // Named invariant "Baton", in the module's header.

use std::cell::{Cell, UnsafeCell};
use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use fiber::{Fiber, StackPool, Suspender};
use slab::Slab;

use super::blocks::Detection;
use super::kinds::{Hosting, Own, Switching};
use super::options::SchedulerOptions;
use super::spin::Spin;
use super::steal_pause::StealPause;
use super::way_out::WayOut;
use crate::os::asleep::{IdleMask, WorkMask};
use crate::os::atomic_ref::AtomicRef;
use crate::os::bias::HOLDERS;
use crate::os::counted::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use crate::os::driver::{Done, Driver};
use crate::os::entry;
use crate::os::linux::barrier;
use crate::os::lock::Lock;
use crate::os::short_lock::ShortLock;
use crate::os::threads::ThreadHandle;
use crate::record::counters::{Counters, set};
use crate::record::event_ring::{EventRing, RingEvent};
use crate::record::report;
use crate::record::wait_stats::WaitTable;
use crate::scheduler::lists::WorkerId;
use crate::scheduler::lists::fairness::Fairness;
use crate::scheduler::lists::io_board::IoBoard;
use crate::scheduler::lists::io_list::{CompletionRoutine, IoList, IoResult};
use crate::scheduler::lists::roster::Roster;
use crate::scheduler::lists::siblings::Siblings;
use crate::scheduler::lists::timer_list::{TimerId, TimerList};
use crate::scheduler::lists::worker_list::{STANDBY, State, Worker, Workers};
use crate::scheduler::request::{SpareBlocks, WorkRequest};
use crate::scheduler::work_queue::WorkQueue;
use crate::wait::{Inbox, Ticket, Waiter};

/// The scheduler. Its own fields are those that any thread may access.
#[repr(align(128))] // No cache line has parts of two schedulers.
pub(crate) struct Scheduler {
    pub(super) me: Weak<Scheduler>,
    /// The scheduler's number in its node. Hidden schedulers are numbered after the visible ones.
    pub index: usize,
    pub options: SchedulerOptions,
    /// The name of its host thread, with which the names of its workers begin.
    thread_name: String,
    pub inbox: &'static Inbox,
    pub queue: WorkQueue,
    pub counters: Counters,
    pub waits: WaitTable,
    /// The requests that are on the I/O list, for views.
    pub pending: Arc<IoBoard>,
    /// The turn of a yield; see `WorkerKind::yielding_turn`.
    pub(super) yielding: fn(&Scheduler) -> WayOut,
    /// The scheduler's last events, if they are recorded.
    pub ring: Option<&'static EventRing>,
    /// How many requests this scheduler took from others. Written by the baton's holder.
    pub(super) adopted: AtomicUsize,
    /// How many requests have ended on this scheduler. Written by the baton's holder.
    pub(super) ended: AtomicUsize,
    /// The scheduler's number among all schedulers of this process. A handle to a task finds the
    /// scheduler by this number.
    pub serial: u64,
    /// The number by which short locks know the holder of this scheduler's baton.
    pub(super) holder_number: u32,
    /// Users that belong to this scheduler.
    pub users: AtomicUsize,
    /// Whether this scheduler gets new requests. If not, it carries out only those that it has.
    pub online: AtomicBool,
    pub stop: AtomicBool,
    /// The hidden scheduler that runs the preemptive code of fiber workers.
    pub outside: OnceLock<Weak<Scheduler>>,
    pub peers: Arc<Peers>,
    /// The number of the scheduler's node, once the scheduler belongs to one.
    pub node: OnceLock<u64>,
    /// The waiters of all workers by their numbers, for views.
    pub roster: ShortLock<Roster>,
    /// How the I/O driver describes itself.
    pub driver_text: String,
    pub(super) standby: &'static Waiter,
    /// The kernel's number of the scheduler's host thread: of the thread that was started first
    /// (the host of fibers, or the standby), or of the carrier that hosts the scheduler now.
    pub host_thread: AtomicU32,
    /// The waiter of the worker that has the baton. For its holder only; none before the first
    /// switch, while the standby has it.
    pub(super) current_waiter: AtomicRef<Waiter>,
    /// For thread workers, the waiter whose thread has the baton.
    pub(super) holder: AtomicRef<Waiter>,
    pub(super) busy: AtomicBool,
    /// Whether the scheduler's current worker sleeps because another thread does not release a
    /// short lock.
    pub(crate) stuck_on_short_lock: AtomicBool,
    /// Whether the present standstill at the hard limit of workers has been reported.
    pub(crate) standstill_told: AtomicBool,
    /// The number of completion routines that run, one inside another, and the bit [`BEGUN`]. No
    /// completion routine may wait (rule 9 of ARCHITECTURE.md). Written by the baton's holder.
    pub(super) in_routine: AtomicU32,
    /// Set while a turn runs the completion routines that are due, before it chooses.
    pub(super) looking: AtomicBool,
    /// The queued requests that the peers must be notified of before a worker runs
    /// (scheduler/peers).
    pub(super) peers_unnotified: Cell<PeersUnnotified>,
    /// Detects undeclared blocks, if the options ask for that.
    pub(super) detection: Detection,
    /// Hosts workers with their own context.
    pub(super) hosting: Hosting,
    /// Memory for new requests.
    pub(super) spare_blocks: &'static SpareBlocks,
    pub(super) core: UnsafeCell<Core>,
}

// SAFETY: Baton: `peers_unnotified` and `core` are touched only by the baton's holder, and the
// baton is handed from thread to thread by an event (release, acquire). All other fields are Sync
// themselves.
unsafe impl Sync for Scheduler {}
// SAFETY: Baton: as above; fibers inside `core` are resumed by their host thread only (Home).
unsafe impl Send for Scheduler {}

/// A bit in `in_routine`: the current worker has begun to wait, and application code runs before
/// the worker parks.
const BEGUN: u32 = 1 << 31;

/// The panic text if application code tries to wait while that bit is set.
pub(crate) const HAS_BEGUN: &str =
    "a caller that has begun to wait must not wait for anything else, yield or leave its scheduler";

/// How a worker is made to run.
pub(crate) enum ExecutionContext {
    /// A thread, which waits on the waiter's event.
    Thread(Box<ThreadHandle>),
    /// A fiber, which the host thread resumes. It lies on its own stack, and is reached through a
    /// raw pointer, so that the table of workers may move while it runs. The suspender, by which
    /// the fiber leaves its stack, exists once the fiber has started.
    Fiber(NonNull<Fiber>, Option<Suspender>),
    /// An own context, which the host thread switches to.
    Own(Own),
}

// The table of workers has a place of this size for each; it decides how much memory an idle worker
// takes.
const _: () = assert!(size_of::<Worker<ExecutionContext>>() <= 64);

/// What a timer ends when it expires.
#[derive(Clone, Copy)]
pub(crate) enum Timed {
    /// A wait, which has then reached its deadline.
    Wait(Ticket),
    /// An I/O request. Its cancellation is asked for, and its completion is still awaited (rule 10
    /// of ARCHITECTURE.md).
    Io(u64),
    /// A routine: its place in `timed_routines`.
    Call(u32),
}

/// The part of a scheduler that only the baton's holder touches.
pub(crate) struct Core {
    pub workers: Workers<ExecutionContext>,
    /// Chooses which of the ready workers and requests is next.
    pub fairness: Fairness,
    pub timers: TimerList<Timed>,
    /// No timer is due before this time, in ticks. So a turn need not always read the clock.
    pub timers_sleep_until: u64,
    /// Dropped before the I/O list, because the routines there own buffers that the driver may use.
    pub driver: Box<dyn Driver>,
    pub io: IoList,
    pub board: Arc<IoBoard>,
    pub ring: Option<&'static EventRing>,
    /// The scheduler's number.
    pub number: u32,
    /// The worker that holds the baton.
    pub current: WorkerId,
    /// When the present turn began, in ticks. A worker that resumes after a wait uses this value
    /// instead of reading the clock: the worker that handed over the baton has set it shortly
    /// before.
    pub turn_at: u64,
    /// The count of yields when `turn_at` was read: if it has changed, other workers have run
    /// since.
    pub turn_yields: u64,
    /// The switch in progress, if workers have their own context.
    pub switching: Switching,
    /// The stacks of fibers or own contexts, from the first one on.
    pub stacks: Option<StackPool>,
    /// Completions that the driver has delivered and no turn has handled yet.
    pub done: Vec<Done>,
    /// Routines of completed requests, to be run while the lists are not borrowed.
    pub routines: VecDeque<(CompletionRoutine, IoResult)>,
    /// Routines that timers will call.
    pub timed_routines: Slab<(TimerId, CompletionRoutine)>,
    /// No worker is created before this time, because the last attempt has failed; or 0.
    pub create_again: u64,
    /// Measurements that are made while there are at least as many workers as the soft limit.
    pub standstill: Standstill,
    /// When the current quantum began, in ticks; 0 if the current worker has not asked for it yet.
    pub quantum_began: u64,
    pub preemptive: usize,
    /// Preemptive places that have been granted to workers which have not run since.
    pub preemptive_granted: usize,
    /// Until when the idle loop stays awake for the next request of a user that holds a lock, or 0.
    pub holder_due: u64,
    /// The request that the current worker is about to wait for, taken from the work queue.
    pub awaited: Option<WorkRequest>,
    pub siblings: Siblings,
    /// Threads that have ended or are ending, to be joined.
    pub(super) graves: Vec<ThreadHandle>,
    pub(super) spin: Spin,
    pub(super) steal_pause: StealPause,
    /// Workers that wait for a preemptive place.
    pub preemptive_waiters: VecDeque<Ticket>,
}

static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);

/// Returns the number by which short locks know the holder of a scheduler's baton, if the system
/// has the barrier that they need to forget it.
fn holder_number(serial: u64) -> u32 {
    let number = u32::try_from(serial).ok().filter(|number| *number < HOLDERS);
    number.filter(|_| barrier::is_refused().is_none()).unwrap_or(entry::NO_HOLDER)
}

/// The schedulers of this process, by serial number. A handle to a task knows its scheduler by this
/// number, so that it needs to count no reference.
static SCHEDULERS: Lock<BTreeMap<u64, Weak<Scheduler>>> = Lock::new(BTreeMap::new());

thread_local! {
    pub(super) static AWAY: Cell<Option<&'static Waiter>> = const { Cell::new(None) };
    /// The worker that the calling thread is.
    pub(super) static WORKER: Cell<Option<&'static Waiter>> = const { Cell::new(None) };
}

/// Measurements at a scheduler that has reached its soft limit of workers.
#[derive(Default)]
pub(crate) struct Standstill {
    pub(super) progress: u64,
    /// When `progress` changed last.
    pub(super) since: u64,
    /// When a worker beyond the soft limit was last created or granted.
    pub(super) overdue: u64,
    /// How many workers beyond the soft limit may carry out any request.
    pub(super) granted: usize,
    /// How often a reserve worker became such a worker.
    pub(super) grants: u64,
    /// Whether a message has reported that the hard limit is reached.
    pub(super) told: bool,
}

/// The queued requests that a scheduler must notify its peers of before it runs a worker. Either
/// this scheduler was woken because of these requests, or no scheduler was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PeersUnnotified {
    /// None.
    Nothing,
    /// The requests in the scheduler's own work queue.
    Own,
    /// The requests in any work queue.
    Any,
}

/// The visible schedulers of a node.
pub(crate) struct Peers {
    pub(super) idle: IdleMask,
    pub(super) work: WorkMask,
    pub(super) list: OnceLock<Box<[Weak<Scheduler>]>>,
}

/// Returns the scheduler that the calling thread belongs to.
#[inline(always)]
pub(super) fn of_this_thread() -> Option<&'static Scheduler> {
    // SAFETY: Baton: `set_here` has set the address on this thread, which keeps the scheduler's
    // `Arc` until it has cleared it. The reference claims 'static, but leaves this thread only in a
    // `Here`.
    unsafe { entry::scheduler().cast::<Scheduler>().as_ref() }
}

/// Returns the worker that runs external code on this thread, outside its scheduler.
pub(crate) fn away() -> Option<&'static Waiter> {
    AWAY.get()
}

/// Makes the calling thread one that has this scheduler's baton, or none.
pub(crate) fn set_here(scheduler: Option<&Scheduler>) {
    entry::belong_to(scheduler.map_or(std::ptr::null(), std::ptr::from_ref).cast());
    entry::hold_as(scheduler.map_or(entry::NO_HOLDER, |scheduler| scheduler.holder_number));
    SpareBlocks::use_here(scheduler.map(|scheduler| scheduler.spare_blocks));
}

impl Core {
    fn new(
        number: u32,
        options: &SchedulerOptions,
        driver: Box<dyn Driver>,
        board: Arc<IoBoard>,
        ring: Option<&'static EventRing>,
        standby: &'static Waiter,
    ) -> Core {
        Core {
            workers: Workers::new(options.passed_max > 0, standby),
            fairness: Fairness::new(options.passed_max),
            timers: TimerList::new(crate::os::clock::now()),
            timers_sleep_until: 0,
            io: IoList::new(),
            board,
            ring,
            driver,
            number,
            current: STANDBY,
            turn_at: 0,
            turn_yields: 0,
            switching: Switching::new(),
            stacks: None,
            done: Vec::new(),
            routines: VecDeque::new(),
            timed_routines: Slab::new(),
            create_again: 0,
            standstill: Standstill::default(),
            quantum_began: 0,
            preemptive: 0,
            preemptive_granted: 0,
            holder_due: 0,
            awaited: None,
            siblings: Siblings::new(),
            graves: Vec::new(),
            spin: Spin::new(),
            steal_pause: StealPause::new(),
            preemptive_waiters: VecDeque::new(),
        }
    }
}

impl Scheduler {
    /// Borrows the core for `f`, which must not switch, park, run user code, or call `with`.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Core) -> R) -> R {
        debug_assert!(
            of_this_thread().is_some_and(|here| std::ptr::eq(here, self)) && entry::is_inside(),
            "a scheduler's lists were touched without its baton"
        );
        // Written by this thread only. Atomic, because the watcher thread reads it.
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

    /// Builds a scheduler that no thread runs yet.
    pub(crate) fn new(
        index: usize,
        options: SchedulerOptions,
        peers: Arc<Peers>,
        driver: Box<dyn Driver>,
    ) -> Arc<Scheduler> {
        let inbox = Inbox::take(driver.waker());
        let driver_text = driver.describe();
        let standby = Waiter::take(Some(inbox), STANDBY);
        let pending = Arc::new(IoBoard::default());
        let ring = options.ring.then(|| EventRing::take(index as u32));
        inbox.number.store(index as u32, Ordering::Relaxed);
        let core = Core::new(index as u32, &options, driver, pending.clone(), ring, standby);
        let serial = NEXT_SERIAL.fetch_add(1, Ordering::Relaxed);
        let scheduler = Arc::new_cyclic(|me| Scheduler {
            me: me.clone(),
            index,
            thread_name: format!("ums-{}", options.name),
            inbox,
            queue: WorkQueue::new(options.queue_max),
            counters: Counters::default(),
            waits: WaitTable::new(),
            pending,
            yielding: options.kind.yielding_turn(ring.is_some()),
            ring,
            adopted: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            serial,
            holder_number: holder_number(serial),
            users: AtomicUsize::new(0),
            online: AtomicBool::new(true),
            stop: AtomicBool::new(false),
            outside: OnceLock::new(),
            node: OnceLock::new(),
            peers,
            roster: ShortLock::default(),
            driver_text,
            standby,
            host_thread: AtomicU32::new(crate::os::thread_number()),
            current_waiter: AtomicRef::new(),
            holder: AtomicRef::new(),
            busy: AtomicBool::new(false),
            stuck_on_short_lock: AtomicBool::new(false),
            standstill_told: AtomicBool::new(false),
            in_routine: AtomicU32::new(0),
            looking: AtomicBool::new(false),
            peers_unnotified: Cell::new(PeersUnnotified::Nothing),
            detection: Detection::default(),
            hosting: Hosting::default(),
            spare_blocks: SpareBlocks::for_scheduler(),
            core: UnsafeCell::new(core),
            options,
        });
        SCHEDULERS.lock().insert(serial, scheduler.me.clone());
        scheduler
    }

    /// Returns the scheduler with this serial number, unless it has been dropped.
    pub(crate) fn with_serial(serial: u64) -> Option<Arc<Scheduler>> {
        SCHEDULERS.lock().get(&serial)?.upgrade()
    }

    /// Returns its load factor: how many requests are queued, runnable, running or waiting.
    pub(crate) fn load(&self) -> usize {
        // `ended` is read first, because each request that has ended was accepted or adopted
        // before. Acquire: a caller that finds a request gone from this load sees where else it was
        // counted before it left.
        let ended = self.ended.load(Ordering::Acquire);
        let adopted = self.adopted.load(Ordering::Acquire);
        self.queue.accepted().wrapping_add(adopted).wrapping_sub(ended)
    }

    /// Counts a request that is taken from another scheduler. Baton holder only, as the next.
    pub(super) fn count_adopted(&self) {
        let now = self.adopted.load(Ordering::Relaxed).wrapping_add(1);
        self.adopted.store(now, Ordering::Release);
    }

    /// Counts a request that has left this scheduler's load: after everything else that it counts.
    pub(super) fn count_ended(&self) {
        let now = self.ended.load(Ordering::Relaxed).wrapping_add(1);
        self.ended.store(now, Ordering::Release);
    }

    /// Records an event, if the scheduler has an event ring. Only the baton's holder calls this.
    #[inline]
    pub(crate) fn record(&self, event: RingEvent, worker: WorkerId, detail: u32) {
        if let Some(ring) = self.ring {
            ring.record(event, worker, detail);
        }
    }

    /// Called before anything that may give the baton away. A completion routine must not do that,
    /// because it runs in the middle of another worker's turn (rule 9 of ARCHITECTURE.md).
    ///
    /// # Panics
    /// Panics in a completion routine, and in the closure that queues the caller for a wait. In
    /// debug builds it also panics while the worker is noted as the holder of a foreign lock.
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

    /// Notes whether the current worker has begun to wait, or is about to, and has not parked yet.
    pub(crate) fn note_begun(&self, begun: bool) {
        let routines = self.routines_running();
        self.in_routine.store(routines | if begun { BEGUN } else { 0 }, Ordering::Relaxed);
    }

    /// Publishes the lengths of the lists.
    pub(super) fn publish(&self, core: &Core) {
        let c = &self.counters;
        set(&c.runnable, core.workers.runnable());
        set(&c.waiting, core.workers.waiting());
        set(&c.idle, core.workers.idle.len as usize);
        set(&c.workers, core.workers.count());
        set(&c.preemptive, core.preemptive);
        set(&c.pending_io, core.io.outstanding());
        set(&c.timers, core.timers.len());
    }

    /// Returns the kernel's number of the thread that has the baton. If the calling thread is not
    /// that thread, the answer may be stale.
    pub(crate) fn baton_thread(&self) -> u32 {
        let holder = self.holder.load();
        let thread = holder.map_or(0, |waiter| waiter.record.view.thread.load(Ordering::Relaxed));
        if thread != 0 { thread } else { self.host_thread.load(Ordering::Relaxed) }
    }

    /// Returns whether a completion routine runs.
    #[inline]
    pub(crate) fn is_in_routine(&self) -> bool {
        self.routines_running() > 0
    }

    /// Returns how many completion routines run, one inside another.
    #[inline]
    pub(super) fn routines_running(&self) -> u32 {
        self.in_routine.load(Ordering::Relaxed) & !BEGUN
    }

    /// Returns the worker that runs. If the caller does not hold the baton, the answer may be
    /// stale.
    pub(crate) fn running(&self) -> Option<&'static Waiter> {
        self.roster.lock().all().find(|waiter| waiter.is(State::Running))
    }

    /// Notes which thread has the baton. For thread workers only, because fibers run on the host
    /// thread.
    pub(super) fn held_by(&self, waiter: &'static Waiter) {
        self.holder.store(Some(waiter));
    }

    /// Sets a time limit for an I/O request of this scheduler, whose baton the caller holds.
    pub(crate) fn time_io(&self, deadline: u64, token: u64) -> TimerId {
        self.with(|core| core.set_timer(deadline, Timed::Io(token)))
    }

    /// Removes the time limit of an I/O request.
    pub(crate) fn untime(&self, timer: TimerId) {
        self.with(|core| core.timers.cancel(timer));
    }

    /// Returns an `Arc` of this scheduler.
    pub(crate) fn arc(&self) -> Arc<Scheduler> {
        self.me.upgrade().expect("a scheduler that is used is alive")
    }

    /// Writes a message to stderr, unless the node was told to write none; see [`report::warn`].
    #[cold]
    pub(crate) fn warn(&self, kind: report::WarningKind, text: std::fmt::Arguments<'_>) {
        if self.options.warnings {
            report::warn(kind, text);
        }
    }

    /// Returns the scheduler's name, which the names of its threads and workers contain.
    pub(crate) fn name(&self) -> &str {
        &self.options.name
    }

    /// Returns the name of a worker.
    pub(super) fn worker_name(&self, id: WorkerId) -> fiber::Name<'_> {
        fiber::Name::numbered(&self.thread_name, id)
    }
}

impl Core {
    /// Returns the stack of a worker that has ended, if it was one of the pool, to the pool.
    pub(super) fn take_stack_back(&mut self, stack: Option<fiber::Stack>) {
        if let (Some(pool), Some(stack)) = (&mut self.stacks, stack) {
            pool.give(stack);
        }
    }

    /// Records an event for which the clock was read at `at`; see [`EventRing::record_at`].
    #[inline]
    pub(crate) fn record_at(&self, event: RingEvent, worker: WorkerId, detail: u32, at: u64) {
        if let Some(ring) = self.ring {
            ring.record_at(event, worker, detail, at);
        }
    }

    /// Like [`Scheduler::record`].
    #[inline]
    pub(crate) fn record(&self, event: RingEvent, worker: WorkerId, detail: u32) {
        if let Some(ring) = self.ring {
            ring.record(event, worker, detail);
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        SCHEDULERS.lock().remove(&self.serial);
        debug_assert!(!self.busy.load(Ordering::Relaxed) || std::thread::panicking());
        self.ring.iter().for_each(|ring| ring.give_back());
        self.standby.give_back();
        self.inbox.give_back();
        self.spare_blocks.give_back();
    }
}
