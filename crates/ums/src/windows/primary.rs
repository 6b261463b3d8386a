//! A thread in scheduling mode: the *primary* of its workers.
//!
//! It has one place. It calls its entry point, runs the worker that this names, and waits for news
//! of it; then again.
//!
//! ```text
//! enter -> proc(Startup) -> run(w) ..news.. -> proc(Blocked | Yield) -> run(w') ..news.. -> proc leaves
//! ```
//!
//! News comes exactly once for each run, because exactly one exchange of the worker's word ends its
//! ownership: the watcher's, the watchdog's, or its own.
//!
//! A worker with its own context runs on this very kernel thread, inside `run`, until it yields or
//! goes on on its own (`own.rs`).
//!
//! *Stuck.* A scheduler may wait for a lock that a gated worker holds, malloc's for instance. The
//! watchdog sees it wait in a futex while it should decide, and lends gated workers the right to
//! run until their next switch, again and again, until it goes on. That is counted.
//!
//! Named invariant **Entered**: the pointer in the thread-local is cleared by the same thread
//! before what it points at goes.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use ::context::Host;

use super::EnterError;
use super::context::Context;
use crate::os::event::Event;
use crate::os::linux::cpus::{self, Cpus};
use crate::record::counters::add;
use crate::scheduler;
use crate::watch::{self, Place, PlaceOwner};

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    BlockedInCall = 1,
    BlockedInTrap = 2,
    Yielded = 3,
}

/// News, with what belongs to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    pub news: News,
    /// Who yielded; null otherwise.
    pub who: *const Context,
    pub param: usize,
}

/// Deciding: its entry point runs.
const DECIDING: u32 = 0;
/// It waits for news, or for a completion list.
const RESTING: u32 = 1;
/// A worker runs on this kernel thread.
const HOSTING: u32 = 2;

/// A thread in scheduling mode.
pub struct Primary {
    pub(super) context: Arc<Context>,
    place: OnceLock<Arc<Place>>,
    news: AtomicU32,
    /// News of a worker that has switched back to this thread.
    here: AtomicU32,
    who: AtomicPtr<Context>,
    param: AtomicUsize,
    pub(super) event: Event,
    /// What workers with their own context switch back to; null where there are none. And the
    /// kernel's number of the thread.
    root: AtomicPtr<::context::Context>,
    pub(super) thread: i32,
    /// The signals that the thread blocks when no worker's handler runs on it.
    pub(super) host_mask: u64,
    phase: AtomicU32,
    /// Whether it has ever hosted a worker.
    has_hosted: AtomicBool,
    /// What this thread was poked for last.
    poked: AtomicU64,
    pokes: watch::Pokes,
    /// Grows with every decision.
    decisions: AtomicU64,
    state_file: watch::StateFile,
    /// What the watchdog saw last time, and how often.
    stuck: [AtomicU64; 2],
    /// How often workers were lent the right to run because this thread waited for them.
    pub(super) lent: AtomicU64,
}

thread_local! {
    static HERE: Cell<*const Primary> = const { Cell::new(ptr::null()) };
}

/// The primary that the calling thread is.
pub(super) fn here<'a>() -> Option<&'a Primary> {
    // SAFETY: Entered: uses stay within the call that asked.
    unsafe { HERE.get().as_ref() }
}

/// What tells the primary; it does not keep it alive, for the place belongs to it.
struct Tell(std::sync::Weak<Primary>);

impl PlaceOwner for Tell {
    fn place_is_free(&self, in_call: bool) {
        let news = if in_call { News::BlockedInCall } else { News::BlockedInTrap };
        if let Some(primary) = self.0.upgrade() {
            primary.tell(news, ptr::null(), 0);
        }
    }

    fn check(&self) -> bool {
        self.0.upgrade().is_some_and(|primary| primary.is_deciding_or_stuck())
    }

    fn hosts(&self) -> bool {
        self.0.upgrade().is_some_and(|primary| primary.hosts())
    }

    fn look_at_hosted(&self) -> bool {
        self.0.upgrade().is_some_and(|primary| primary.look_at_hosted())
    }

    fn suspects_hosted(&self) -> u64 {
        self.0.upgrade().map_or(0, |primary| primary.suspects_hosted())
    }
}

/// How many looks of the watchdog a scheduler may wait in a futex before workers are lent to it.
const STUCK_LOOKS: u64 = 4;

impl Primary {
    /// Enters scheduling mode on the calling thread: pins it, and opens its place.
    pub(super) fn enter() -> Result<Entered, EnterError> {
        let is_a_nodes = scheduler::here().is_some() || scheduler::away().is_some();
        if here().is_some() || watch::thread::me().is_some() || is_a_nodes {
            return Err(EnterError::AlreadyUms);
        }
        watch::prepare();
        let cpu = CpuLease::take();
        let before = rustix::thread::sched_getaffinity(None).ok();
        cpus::pin_to(cpu.0)?;
        let primary = Arc::new(Primary {
            context: Context::of_scheduler(),
            place: OnceLock::new(),
            news: AtomicU32::new(0),
            here: AtomicU32::new(0),
            who: AtomicPtr::new(ptr::null_mut()),
            param: AtomicUsize::new(0),
            event: Event::new(),
            root: AtomicPtr::new(ptr::null_mut()),
            thread: crate::os::thread_number() as i32,
            host_mask: watch::mask_here(),
            phase: AtomicU32::new(DECIDING),
            has_hosted: AtomicBool::new(false),
            poked: AtomicU64::new(0),
            pokes: watch::Pokes::default(),
            decisions: AtomicU64::new(0),
            state_file: watch::StateFile::new(),
            stuck: [const { AtomicU64::new(0) }; 2],
            lent: AtomicU64::new(0),
        });
        // Without it a stuck scheduler is not noticed, and nothing else is lost.
        let _ = primary.state_file.open(primary.thread);
        watch::install();
        let host = primary.host_here()?;
        let owner = Box::new(Tell(Arc::downgrade(&primary)));
        let place = Place::open(cpu.0, watch::mechanism(), owner)?;
        let _ = primary.place.set(place);
        schedulers().push(crate::os::thread_number());
        HERE.set(Arc::as_ptr(&primary));
        Ok(Entered { primary, before, host, cpu })
    }

    pub(super) fn place(&self) -> &Place {
        self.place.get().expect("a primary has a place while it is entered")
    }

    /// Makes the calling thread a host, where there can be workers with their own context.
    fn host_here(&self) -> io::Result<Option<Host>> {
        if ::context::supported().is_err() {
            return Ok(None);
        }
        let host = Host::here().map_err(io::Error::other)?;
        self.root.store(ptr::from_ref(host.root()).cast_mut(), Ordering::Relaxed);
        Ok(Some(host))
    }

    /// What a worker in user mode switches back to.
    #[inline]
    pub(super) fn root(&self) -> *const ::context::Context {
        self.root.load(Ordering::Relaxed)
    }

    /// By the worker on this kernel thread, which switches back then: how its run ended. None: it
    /// has not, it goes on on its own kernel thread. Not where other threads write down their news:
    /// those may be quicker than this one.
    #[inline]
    pub(super) fn note_here(&self, news: Option<News>, who: *const Context, param: usize) {
        self.here.store(news.map_or(0, |news| news as u32), Ordering::Relaxed);
        self.note_whose(who, param);
    }

    /// By a worker on its own kernel thread, which will set the event: its run has ended by a
    /// yield.
    pub(super) fn note_yield(&self, who: *const Context, param: usize) {
        self.note_whose(who, param);
        self.news.store(News::Yielded as u32, Ordering::Release);
    }

    #[inline]
    fn note_whose(&self, who: *const Context, param: usize) {
        self.who.store(who.cast_mut(), Ordering::Relaxed);
        self.param.store(param, Ordering::Relaxed);
    }

    /// What was written down by the worker that has just switched back.
    #[inline]
    pub(super) fn heard_here(&self) -> Option<Heard> {
        self.heard(self.here.load(Ordering::Relaxed))
    }

    #[inline]
    fn heard(&self, news: u32) -> Option<Heard> {
        let news = match news {
            1 => News::BlockedInCall,
            2 => News::BlockedInTrap,
            3 => News::Yielded,
            _ => return None,
        };
        let (who, param) = (self.who.load(Ordering::Relaxed), self.param.load(Ordering::Relaxed));
        Some(Heard { news, who, param })
    }

    /// Any thread: the run is over.
    pub(super) fn tell(&self, news: News, who: *const Context, param: usize) {
        self.note_whose(who, param);
        let before = self.news.swap(news as u32, Ordering::AcqRel);
        debug_assert_eq!(before, 0, "a run ends once");
        self.event.set();
    }

    /// Runs a claimed worker until there is news.
    #[inline(always)]
    pub(super) fn run(&self, context: &Context) -> Heard {
        add(&self.decisions, 1);
        if context.own.is_saved() {
            if let Some(heard) = self.run_in_user_mode(context) {
                return heard;
            }
        } else {
            context.run(self);
        }
        self.wait_for_news(context)
    }

    /// The worker runs on its own kernel thread, at this place: waits until it does no more.
    #[cold]
    fn wait_for_news(&self, context: &Context) -> Heard {
        self.phase.store(RESTING, Ordering::Relaxed);
        let heard = loop {
            self.event.wait();
            if let Some(heard) = self.heard(self.news.swap(0, Ordering::AcqRel)) {
                break heard;
            }
        };
        if heard.news == News::Yielded && context.own.is_saved() {
            context.may_be_claimed();
        }
        self.decides_again();
        heard
    }

    /// The calling scheduler waits for something that workers do not hold.
    pub(super) fn resting<R>(&self, f: impl FnOnce() -> R) -> R {
        self.phase.store(RESTING, Ordering::Relaxed);
        let result = f();
        self.decides_again();
        result
    }

    /// A worker is about to run on this kernel thread.
    #[inline]
    pub(super) fn begins_to_host(&self) {
        self.phase.store(HOSTING, Ordering::Relaxed);
        if !self.has_hosted.load(Ordering::Relaxed) {
            self.has_hosted.store(true, Ordering::Relaxed);
            self.place().stir();
        }
    }

    /// It does no more.
    #[inline]
    pub(super) fn ends_hosting(&self) {
        self.phase.store(DECIDING, Ordering::Relaxed);
    }

    /// It waits no more. Between here and the next wait nobody rings for the watcher when a worker
    /// begins to run.
    fn decides_again(&self) {
        self.phase.store(DECIDING, Ordering::Relaxed);
        match self.has_hosted.load(Ordering::Relaxed) {
            true => self.place().stir(),
            false => watch::watchdog::wake(),
        }
    }

    /// For the watcher and the watchdog: whether there may be a hosted worker to look after.
    fn hosts(&self) -> bool {
        self.has_hosted.load(Ordering::Relaxed) && self.phase.load(Ordering::SeqCst) != RESTING
    }

    /// For them: the call that a hosted worker is blocked in, on this kernel thread. What it has
    /// stored before is seen, for it is blocked; so the phase is looked at after that.
    fn blocks_hosted(&self) -> Option<watch::Waits> {
        let waits = self.state_file.waits()?;
        (watch::can_be_carried(waits) && self.phase.load(Ordering::SeqCst) == HOSTING)
            .then_some(waits)
    }

    fn look_at_hosted(&self) -> bool {
        let Some(waits) = self.blocks_hosted() else { return false };
        let now = self.number_of(waits);
        let news = self.poked.swap(now, Ordering::Relaxed) != now;
        if self.pokes.is_worth_one_more(news) {
            watch::poke_blocked(self.thread, &self.state_file, waits);
        }
        news
    }

    /// The same only for the same sight of the same block, as far as can be told.
    fn number_of(&self, waits: watch::Waits) -> u64 {
        self.decisions.load(Ordering::Relaxed) << 16 | waits.pc & 0xffff | 1
    }

    fn suspects_hosted(&self) -> u64 {
        self.blocks_hosted().map_or(0, |waits| self.number_of(waits))
    }

    /// For the watchdog: whether it decides, and on the way whether it is stuck in that.
    fn is_deciding_or_stuck(&self) -> bool {
        match self.phase.load(Ordering::Relaxed) {
            DECIDING => {}
            phase => return phase == HOSTING,
        }
        let now = self.decisions.load(Ordering::Relaxed) + 1;
        let waits = self.state_file.waits_in_futex();
        let [seen, looks] = &self.stuck;
        if !waits || seen.swap(now, Ordering::Relaxed) != now {
            looks.store(0, Ordering::Relaxed);
        } else if looks.fetch_add(1, Ordering::Relaxed) >= STUCK_LOOKS {
            watch::thread::lend(&self.lent);
        }
        true
    }
}

/// The time in scheduling mode: ends it when dropped.
pub(super) struct Entered {
    pub primary: Arc<Primary>,
    before: Option<rustix::thread::CpuSet>,
    #[allow(dead_code)] // Held for its drop: workers with their own context switch back to it.
    host: Option<Host>,
    #[allow(dead_code)] // Held for its drop.
    cpu: CpuLease,
}

impl Drop for Entered {
    fn drop(&mut self) {
        HERE.set(ptr::null());
        let tid = crate::os::thread_number();
        schedulers().retain(|other| *other != tid);
        if let Some(place) = self.primary.place.get() {
            place.close();
        }
        self.primary.state_file.close();
        if let Some(before) = &self.before {
            let _ = rustix::thread::sched_setaffinity(None, before);
        }
    }
}

/// The numbers of the threads that are in scheduling mode.
pub(super) fn schedulers() -> std::sync::MutexGuard<'static, Vec<u32>> {
    static ALL: Mutex<Vec<u32>> = Mutex::new(Vec::new());
    ALL.lock().unwrap_or_else(|e| e.into_inner())
}

/// A processor that a scheduler uses, so that the next takes another.
struct CpuLease(usize);

static LEASES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

impl CpuLease {
    /// The one of those allowed that has the fewest schedulers.
    fn take() -> CpuLease {
        let allowed = Cpus::read().allowed;
        let mut leases = LEASES.lock().unwrap_or_else(|e| e.into_inner());
        let used = |cpu: &usize| leases.iter().filter(|other| *other == cpu).count();
        let cpu = allowed.iter().copied().min_by_key(used).unwrap_or(0);
        leases.push(cpu);
        CpuLease(cpu)
    }
}

impl Drop for CpuLease {
    fn drop(&mut self) {
        let mut leases = LEASES.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(at) = leases.iter().position(|cpu| *cpu == self.0) {
            leases.swap_remove(at);
        }
    }
}

impl From<io::Error> for EnterError {
    fn from(error: io::Error) -> EnterError {
        EnterError::Watch(error)
    }
}
