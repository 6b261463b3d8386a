//! The scheduler: one baton, five lists, no thread of its own (U19, U49).
//!
//! Nouns. The *baton* is the right to touch a scheduler's lists; its holder is the scheduler's
//! *current worker*, or the *standby* while no worker can host the idle loop. [`Shared`] is what
//! anybody may reach (door, work queue, counters); [`Core`] is what only the baton's holder
//! touches, and is therefore plain data without locks or atomics.
//!
//! ```text
//!     outside                         the current worker
//!   enqueue -> work queue --+
//!   release -> door --------+--> turn: look (I/O, routines, timers, door), choose
//!                           |           |
//!                           |           +-> Stay        go on
//!                           |           +-> Switch(w)   hand the baton to w, park
//!                           |           +-> Idle        sleep on the driver, then look again
//! ```
//!
//! * `turn` brings in what happened and chooses who is next: mechanism-free.
//! * `switch` is the only place that knows what kind a worker is; `own` is about the third kind.
//! * `idle` sleeps, steals and trims; `host` creates workers and runs their main loop.
//! * `preempt` lets a worker leave and come home; `watched` and `blocked` make one leave that blocks; `carrier` lets a scheduler leave a kernel
//!   thread that is blocked.
//!
//! Named invariant **Baton**: `Core` is touched only inside [`Shared::with`], which checks that the
//! calling thread has the baton and that no other borrow is alive; no borrow spans a
//! switch. A worker has the baton for as long as it is inside the library: what [`here`] gives keeps it there. Outside, in a request's own code, it may
//! lose it (`watched`, `blocked`) and get it again at its next entry. Setting the next worker's event *is* handing the baton on: afterwards the giver touches
//! only its own event and its party's atomics until it is chosen again.

#![allow(unsafe_code)]

pub(crate) mod alarm;
mod blocked;
mod carrier;
mod peers;
mod host;
mod idle;
mod lent;
mod limit;
mod own;
mod park;
mod preempt;
mod stop;
mod switch;
mod turn;
mod watched;

use std::cell::{Cell, UnsafeCell};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use fiber::{Fiber, StackPool, Suspender};

use crate::counters::{Counters, set};
use crate::door::Door;
use crate::lists::WorkerId;
use crate::lists::fairness::Fairness;
use crate::lists::io_board::IoBoard;
use crate::lists::io_list::{IoList, IoResult, Routine};
use crate::lists::timer_list::TimerList;
use crate::os::driver::{Done, Driver};
use crate::os::entry::{self, Inside};
use crate::os::short_lock::ShortLock;
use crate::os::threads::JoinHandle;
use crate::report;
use crate::request::WorkRequest;
use crate::ring::{Ring, RingEvent};
use crate::wait::{Party, Ticket};
use crate::wait_stats::WaitTable;
use crate::work_queue::{Caller, WorkQueue};
use crate::worker::Workers;

pub(crate) use crate::watch::carriers::CARRIERS;
pub use blocked::taking_over_is_refused;
pub(crate) use host::start;
pub(crate) use park::{Frozen, ready};
pub(crate) use peers::{Peers, Untold};
pub use preempt::Coupled;
pub(crate) use preempt::{couple, go_preemptive, run_on, short_call};
pub(crate) use turn::Submission;
pub(crate) use watched::can_detect;

/// What a worker is made of (U22).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WorkerKind {
    /// A kernel thread, the default: sound with any code.
    #[default]
    Thread,
    /// A fiber: fast to switch, shares its thread's thread-locals with its siblings.
    Fiber,
    /// A thread that is switched to like a fiber: its thread-locals and identity are its own.
    OwnContext,
}

/// How a scheduler is made.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub name: String,
    pub kind: WorkerKind,
    pub visible: bool,
    /// Most workers.
    pub workers_max: usize,
    /// From so many on, further ones are made only where none becomes free; see `limit`.
    pub workers_soft: usize,
    /// What sets the limit.
    pub limit_set_by: &'static str,
    pub workers_floor: usize,
    pub workers_ready: usize,
    pub preemptive_max: usize,
    pub queue_max: usize,
    pub stack_size: usize,
    pub precommit: bool,
    pub trim_after_ns: u64,
    pub idle_spin_ns: u64,
    /// How long to look for the next request of a user that holds a lock before sleeping.
    pub holder_spin_ns: u64,
    pub queue_timeout_ns: u64,
    pub passed_max: u32,
    pub steal: bool,
    pub pin: Option<usize>,
    /// The nice value of its threads; 0: that of whoever makes them.
    pub nice: i32,
    /// Whether interposed calls of its workers go preemptive.
    pub detect_blocking: bool,
    /// Whether a thread worker that is blocked for long loses the scheduler.
    pub take_over_blocked: bool,
    pub io: crate::os::linux::open::Choice,
    pub ring: bool,
    /// Whether sentences about it go to stderr.
    pub warnings: bool,
}

impl Options {
    /// Whether the machine sets the limit of workers, not the builder.
    pub fn limit_is_the_machines(&self) -> bool {
        self.limit_set_by != crate::limits::SET_BY_BUILDER
    }

    /// Stacks for fiber workers.
    fn stacks(&self) -> StackPool {
        StackPool::new(fiber::StackConfig {
            size: self.stack_size,
            precommit: self.precommit,
            keep_warm: crate::limits::WARM_STACKS,
        })
    }
}

/// What anybody may reach of a scheduler.
pub(crate) struct Shared {
    me: Weak<Shared>,
    /// Its number in the node; hidden ones count on from the visible ones.
    pub index: usize,
    pub options: Options,
    pub door: &'static Door,
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
    pub outside: OnceLock<Weak<Shared>>,
    pub peers: Arc<Peers>,
    /// The node it belongs to, whose type stands above this file.
    pub node: OnceLock<Weak<dyn std::any::Any + Send + Sync>>,
    /// The parties of all workers by their numbers, for views.
    pub roster: ShortLock<BTreeMap<WorkerId, &'static Party>>,
    /// How the I/O driver describes itself.
    pub driver_text: String,
    /// In a simulated world, the place of the host thread while contexts change on it.
    #[cfg(feature = "sim")]
    pub carried: crate::os::sim::carry::Carried,
    standby: &'static Party,
    /// The kernel's number of the thread that was started first: the host of fibers, or the standby. Or of the carrier that carries.
    pub host_thread: AtomicU32,
    /// Of own contexts, the signals that the host blocks.
    host_mask: AtomicU64,
    /// Of thread workers, the party whose thread has the baton.
    holder: AtomicPtr<Party>,
    /// Threads that have ended or are ending.
    graves: Mutex<Vec<JoinHandle>>,
    busy: AtomicBool,
    /// Whether its current worker sleeps because a lock that is held for moments is not let go (B48).
    pub(crate) sick: AtomicBool,
    /// Whether the present standstill at the hard limit of workers was told.
    pub(crate) standstill_told: AtomicBool,
    /// How many completion routines run, one inside another: none of them may wait (rule 9). And
    /// [`BEGUN`]. Written by the baton's holder.
    in_routine: AtomicU32,
    /// A turn runs the completion routines that are due; after them it chooses.
    looking: AtomicBool,
    /// Of which queued requests the peers have to be told before a worker runs (peers.rs).
    untold: Cell<Untold>,
    /// What detects undeclared blocks, if that is wanted.
    detection: watched::Detection,
    /// What takes the baton from a blocked worker, if the option is on.
    taker: OnceLock<Arc<dyn crate::watch::watchdog::Subject>>,
    core: UnsafeCell<Core>,
}

// SAFETY: Baton: `untold` and `core` are touched only by the baton's holder, and the
// baton is handed from thread to thread by an event (release, acquire); everything else is Sync by
// itself.
unsafe impl Sync for Shared {}
// SAFETY: Baton: as above; fibers inside `core` are resumed by their host thread only (Home).
unsafe impl Send for Shared {}

/// In the count of completion routines: the current worker has begun to wait, and code of the
/// application's runs before it parks.
const BEGUN: u32 = 1 << 31;

/// What such code is told when it tries to.
pub(crate) const HAS_BEGUN: &str =
    "a caller that has begun to wait must not wait for anything else, yield or leave its scheduler";

/// What makes a worker run.
pub(crate) enum Seat {
    /// Its thread waits on the party's event.
    Thread(Option<JoinHandle>),
    /// The host thread resumes it. Boxed, and reached through a raw pointer while it runs, so that
    /// the table of workers may move meanwhile. The suspender is its own way out, known once it
    /// has started.
    Fiber(*mut Fiber, Option<Suspender>),
    /// The host thread switches to its context, and its own thread takes it back.
    Own(own::Own),
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
    pub root: *const context::Context,
    pub pass: Box<own::Pass>,
    pub stacks: Option<StackPool>,
    /// Completions that the driver has given and nobody has looked at.
    pub done: Vec<Done>,
    /// Routines of completed requests, to be run outside any borrow.
    pub routines: VecDeque<(Routine, IoResult)>,
    /// No worker could be created: do not try again before this time.
    pub create_again: u64,
    /// What is known once there are more workers than the soft limit says.
    pub standstill: limit::Standstill,
    /// When the current quantum began; 0 when nobody has asked yet.
    pub quantum_began: u64,
    pub preemptive: usize,
    /// Places among the preemptive ones that are given to workers which have not run since.
    pub preemptive_granted: usize,
    /// Until when the next request of a user that holds a lock is worth staying awake for; 0: it is not.
    pub holder_due: u64,
    /// Workers that wait for a place among the preemptive ones (B30).
    pub preemptive_waiters: VecDeque<Ticket>,
}

thread_local! {
    static HERE: Cell<*const Shared> = const { Cell::new(std::ptr::null()) };
    static AWAY: Cell<Option<&'static Party>> = const { Cell::new(None) };
    /// The worker that the thread is.
    static WORKER: Cell<Option<&'static Party>> = const { Cell::new(None) };
}

/// The scheduler whose baton the calling code holds, and cannot lose as long as this lives: the worker is inside (`os/entry.rs`).
pub(crate) struct Here {
    shared: &'static Shared,
    #[allow(dead_code)] // Kept for its drop.
    inside: Inside,
}

impl std::ops::Deref for Here {
    type Target = Shared;
    #[inline(always)]
    fn deref(&self) -> &Shared {
        self.shared
    }
}

impl Here {
    /// Whether it is this one.
    #[inline]
    pub(crate) fn is(&self, other: &Shared) -> bool {
        std::ptr::eq(self.shared, other)
    }
}

/// The scheduler whose baton the calling code holds: None on a plain thread, and in a worker that
/// has gone preemptive. A worker that has lost the baton without knowing it has it again when this returns.
///
/// What comes in several steps keeps what this gives until the last of them: what was asked before another step may be
/// no longer so.
#[inline]
pub(crate) fn here() -> Option<Here> {
    let inside = Inside::enter()?;
    // SAFETY: Baton: the pointer is set by a thread of the scheduler, which keeps its `Arc` until
    // it has cleared the pointer. The 'static is a lie that stays inside this file: it is lent for as long as the calling code is inside.
    match unsafe { HERE.get().as_ref() } {
        Some(shared) => Some(Here { shared, inside }),
        None => settled(inside),
    }
}

/// As [`here`], of a thread that has none: it may be a worker that runs without the baton for a moment,
/// which ends now.
#[cold]
fn settled(inside: Inside) -> Option<Here> {
    match crate::watch::thread::me() {
        Some(me) => me.settle(),
        None => lent::settle(),
    }
    // SAFETY: Baton: as above.
    let shared = unsafe { HERE.get().as_ref() };
    shared.map(|shared| Here { shared, inside })
}

/// As [`here`], where the calling code has interrupted code outside the library; None anywhere else.
pub(crate) fn here_from_outside() -> Option<Here> {
    if entry::is_inside() { None } else { here() }
}

/// The worker that runs external code on this thread, outside its scheduler.
pub(crate) fn away() -> Option<&'static Party> {
    AWAY.get()
}

pub(crate) fn set_here(shared: Option<&Shared>) {
    HERE.set(shared.map_or(std::ptr::null(), std::ptr::from_ref));
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

impl Shared {
    /// Touches the core. The closure must not switch, park, run user code, or call `with`.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut Core) -> R) -> R {
        debug_assert!(
            std::ptr::eq(HERE.get(), self) && entry::is_inside(),
            "a scheduler's lists were touched without its baton"
        );
        // Written by this thread only. Atomic, because the catcher of a blocked worker reads it.
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
    ) -> Arc<Shared> {
        let door = Door::take(driver.waker());
        let driver_text = driver.describe();
        let standby = Party::take(door.address(), crate::worker::STANDBY);
        let pending = Arc::new(IoBoard::default());
        let ring = options.ring.then(|| Ring::take(index as u32));
        door.number.store(index as u32, Ordering::Relaxed);
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
            current: crate::worker::STANDBY,
            turn_at: 0,
            turn_yields: 0,
            fiber: std::ptr::null_mut(),
            root: std::ptr::null(),
            pass: Box::new(own::Pass::NONE),
            stacks: (options.kind == WorkerKind::Fiber).then(|| options.stacks()),
            done: Vec::new(),
            routines: VecDeque::new(),
            create_again: 0,
            standstill: limit::Standstill::default(),
            quantum_began: 0,
            preemptive: 0,
            preemptive_granted: 0,
            holder_due: 0,
            preemptive_waiters: VecDeque::new(),
        };
        Arc::new_cyclic(|me| Shared {
            me: me.clone(),
            index,
            door,
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
            sick: AtomicBool::new(false),
            standstill_told: AtomicBool::new(false),
            in_routine: AtomicU32::new(0),
            looking: AtomicBool::new(false),
            untold: Cell::new(Untold::Nothing),
            detection: watched::Detection::default(),
            taker: OnceLock::new(),
            core: UnsafeCell::new(core),
            options,
        })
    }

    /// Queues a request here, and sees to it that somebody looks (rule 3).
    pub(crate) fn enqueue(
        &self,
        request: WorkRequest,
    ) -> Result<(), (crate::error::EnqueueError, WorkRequest)> {
        crate::os::threads::point("enqueue");
        let bound = request.state().bound;
        let here = here();
        let by = match &here {
            Some(here) if here.is_in_routine() => Caller::Routine,
            Some(_) => Caller::Request,
            None if away().is_some() => Caller::Request,
            None => Caller::Plain,
        };
        if let Err(refused) = self.queue.push(request, by, &self.load) {
            self.counters.requests_refused.fetch_add(1, Ordering::Relaxed);
            return Err(refused);
        }
        let here = here.filter(|here| here.is(self));
        if !self.peers.has_others() && here.is_some() {
            // The caller holds this scheduler's baton, so it is awake; and there is nobody else.
            return Ok(());
        }
        if here.is_some() && self.looking.load(Ordering::Relaxed) {
            // The caller is a completion routine, in a turn that chooses who runs when it has looked at everything.
            // One request will run here then, and its peers need not be woken for it: `choose` sees to the others.
            self.owe(Untold::Own);
            return Ok(());
        }
        // The fence in `wake` stands between our push and both looks: at `asleep` (against the
        // idle protocol in door.rs) and at the idle mask (against the same order in idle.rs).
        if !self.door.wake() && self.options.steal && !bound {
            self.peers.wake_one(self.index);
        }
        Ok(())
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
        if let Some(place) = self.current_party().foreign.held()
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
    fn refuse_to_switch(&self) -> ! {
        assert!(self.is_in_routine(), "{HAS_BEGUN}");
        panic!("a completion routine must not wait or yield: hand the wait to a request");
    }

    /// The current worker has begun to wait, and does not park yet; or it is about to.
    pub(crate) fn note_begun(&self, begun: bool) {
        let routines = self.routines_running();
        self.in_routine.store(routines | if begun { BEGUN } else { 0 }, Ordering::Relaxed);
    }

    /// In a simulated world: what must be so at every turn is so.
    #[cfg(feature = "sim")]
    fn check(&self) {
        if !crate::os::sim::is_here() {
            return;
        }
        let wrong = self.with(|core| {
            let lists = core.workers.check().and_then(|()| core.fairness.check());
            lists.and_then(|()| self.add_up(core))
        });
        if let Err(wrong) = wrong {
            crate::os::sim::fail(&format!("scheduler {}: {wrong}", self.name()));
        }
    }

    /// What is counted is there, and what is there is counted.
    #[cfg(feature = "sim")]
    fn add_up(&self, core: &mut Core) -> Result<(), String> {
        use crate::worker::State;
        let must = |so: bool, text: &dyn Fn() -> String| if so { Ok(()) } else { Err(text()) };
        let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed) as usize;

        let holder = match core.current {
            crate::worker::STANDBY => self.host_thread.load(Ordering::Relaxed),
            _ if self.options.kind != WorkerKind::Thread => {
                self.host_thread.load(Ordering::Relaxed)
            }
            id => core.workers.get(id).party.view.thread.load(Ordering::Relaxed),
        };
        must(holder == crate::os::thread_number(), &|| "two have the baton".into())?;

        // Who has come home keeps its place until it runs.
        let (away, places) = (core.workers.in_state(State::Preemptive), core.preemptive);
        must(away <= places, &|| format!("{away} workers are preemptive, {places} counted"))?;

        let living = core.workers.count() - core.workers.in_state(State::Retired);
        let (made, ended) =
            (of(&self.counters.workers_created), of(&self.counters.workers_retired));
        must(made - ended == living, &|| format!("{living} workers: {made} made, {ended} ended"))?;

        let (asked, known) = (core.io.outstanding(), core.driver.pending() + core.done.len());
        must(asked == known, &|| format!("{asked} operations wait, the driver knows {known}"))?;

        let busy = living - core.workers.in_state(State::Idle) - core.workers.in_state(State::New);
        let (queued, load) = (self.queue.len(), self.load.load(Ordering::Relaxed));
        must(load >= queued + busy, &|| format!("load {load}: {queued} queued, {busy} at work"))
    }

    /// Publishes the lengths of the lists.
    fn publish(&self, core: &Core) {
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
        // SAFETY: Type Stable: the pointer is null or came from a `&'static Party`.
        let holder = unsafe { self.holder.load(Ordering::Relaxed).as_ref() };
        let thread = holder.map_or(0, |party| party.view.thread.load(Ordering::Relaxed));
        if thread != 0 { thread } else { self.host_thread.load(Ordering::Relaxed) }
    }

    /// Whether a completion routine runs.
    pub(crate) fn is_in_routine(&self) -> bool {
        self.routines_running() > 0
    }

    /// How many completion routines run, one inside another.
    fn routines_running(&self) -> u32 {
        self.in_routine.load(Ordering::Relaxed) & !BEGUN
    }

    /// The worker that runs, as far as anybody can tell.
    pub(crate) fn running(&self) -> Option<&'static Party> {
        let roster = self.roster.lock();
        roster.values().copied().find(|party| party.is(crate::worker::State::Running))
    }

    /// Notes whose thread has the baton. Of thread workers only: a fiber's is its host's.
    pub(super) fn held_by(&self, party: &'static Party) {
        self.holder.store(std::ptr::from_ref(party).cast_mut(), Ordering::Relaxed);
    }

    /// Sets a time limit for an I/O request of this scheduler, whose baton the caller holds.
    pub(crate) fn time_io(&self, deadline: u64, token: u64) -> crate::lists::timer_list::TimerId {
        self.with(|core| core.set_timer(deadline, Timed::Io(token)))
    }

    /// Takes a time limit back.
    pub(crate) fn untime(&self, timer: crate::lists::timer_list::TimerId) {
        self.with(|core| core.timers.cancel(timer));
    }

    /// The owner of this.
    pub(crate) fn arc(&self) -> Arc<Shared> {
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
    /// As [`Shared::record`].
    #[inline]
    pub(crate) fn record(&self, event: RingEvent, worker: WorkerId, detail: u32) {
        if let Some(ring) = self.ring {
            ring.record(event, worker, detail);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        debug_assert!(!self.busy.load(Ordering::Relaxed) || std::thread::panicking());
        self.ring.iter().for_each(|ring| ring.give_back());
        self.standby.give_back();
        self.door.give_back();
    }
}
