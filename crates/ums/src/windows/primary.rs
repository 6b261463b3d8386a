//! A thread in scheduling mode: the *primary* of its workers.
//!
//! It has one place. It calls its entry point, runs the worker that this names, and waits for news of
//! it; then again.
//!
//! ```text
//! enter -> proc(Startup) -> run(w) ..news.. -> proc(Blocked | Yield) -> run(w') ..news.. -> proc leaves
//! ```
//!
//! News comes exactly once for each run, because exactly one exchange of the worker's word ends its
//! ownership: the catcher's, the watchdog's, or its own.
//!
//! *Stuck.* A scheduler may wait for a lock that a gated worker holds, malloc's for instance. The
//! watchdog sees it wait in a futex while it should decide, and lends gated workers the right to run until
//! their next switch, again and again, until it goes on. That is counted.
//!
//! Named invariant **Entered**: the pointer in the thread-local is cleared by the same thread before what it
//! points at goes.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::EnterError;
use super::context::Context;
use crate::os::event::Event;
use crate::os::linux::cpus::{self, Cpus};
use crate::watch::{self, Landlord, Place};

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

/// A thread in scheduling mode.
pub struct Primary {
    pub(super) context: Arc<Context>,
    place: OnceLock<Arc<Place>>,
    news: AtomicU32,
    who: AtomicPtr<Context>,
    param: AtomicUsize,
    event: Event,
    phase: AtomicU32,
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

impl Landlord for Tell {
    fn place_is_free(&self, in_call: bool) {
        let news = if in_call { News::BlockedInCall } else { News::BlockedInTrap };
        if let Some(primary) = self.0.upgrade() {
            primary.tell(news, ptr::null(), 0);
        }
    }

    fn check(&self) -> bool {
        self.0.upgrade().is_some_and(|primary| primary.is_deciding_or_stuck())
    }
}

/// How many looks of the watchdog a scheduler may wait in a futex before workers are lent to it.
const STUCK_LOOKS: u64 = 4;

impl Primary {
    /// Enters scheduling mode on the calling thread: pins it, and opens its place.
    pub(super) fn enter() -> Result<Entered, EnterError> {
        if here().is_some() || watch::thread::me().is_some() {
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
            who: AtomicPtr::new(ptr::null_mut()),
            param: AtomicUsize::new(0),
            event: Event::new(),
            phase: AtomicU32::new(DECIDING),
            decisions: AtomicU64::new(0),
            state_file: watch::StateFile::new(),
            stuck: [const { AtomicU64::new(0) }; 2],
            lent: AtomicU64::new(0),
        });
        // Without it a stuck scheduler is not noticed, and nothing else is lost.
        let _ = primary.state_file.open(crate::os::thread_number() as i32);
        let landlord = Box::new(Tell(Arc::downgrade(&primary)));
        let place = Place::open(cpu.0, watch::mechanism(), landlord)?;
        let _ = primary.place.set(place);
        schedulers().push(crate::os::thread_number());
        HERE.set(Arc::as_ptr(&primary));
        Ok(Entered { primary, before, cpu })
    }

    pub(super) fn place(&self) -> &Place {
        self.place.get().expect("a primary has a place while it is entered")
    }

    /// Any thread: the run is over.
    pub(super) fn tell(&self, news: News, who: *const Context, param: usize) {
        self.who.store(who.cast_mut(), Ordering::Relaxed);
        self.param.store(param, Ordering::Relaxed);
        let before = self.news.swap(news as u32, Ordering::AcqRel);
        debug_assert_eq!(before, 0, "a run ends once");
        self.event.set();
    }

    /// Runs a claimed worker until there is news.
    pub(super) fn run(&self, context: &Context) -> Heard {
        self.phase.store(RESTING, Ordering::Relaxed);
        context.run(self);
        let news = loop {
            self.event.wait();
            match self.news.swap(0, Ordering::AcqRel) {
                1 => break News::BlockedInCall,
                2 => break News::BlockedInTrap,
                3 => break News::Yielded,
                _ => {}
            }
        };
        self.decisions.fetch_add(1, Ordering::Relaxed);
        self.phase.store(DECIDING, Ordering::Relaxed);
        watch::watchdog::wake();
        let (who, param) = (self.who.load(Ordering::Relaxed), self.param.load(Ordering::Relaxed));
        Heard { news, who, param }
    }

    /// The calling scheduler waits for something that workers do not hold.
    pub(super) fn resting<R>(&self, f: impl FnOnce() -> R) -> R {
        self.phase.store(RESTING, Ordering::Relaxed);
        let result = f();
        self.phase.store(DECIDING, Ordering::Relaxed);
        watch::watchdog::wake();
        result
    }

    /// For the watchdog: whether it decides, and on the way whether it is stuck in that.
    fn is_deciding_or_stuck(&self) -> bool {
        if self.phase.load(Ordering::Relaxed) != DECIDING {
            return false;
        }
        let now = self.decisions.load(Ordering::Relaxed) + 1;
        let waits = self.state_file.waits_in_futex();
        let [seen, looks] = &self.stuck;
        if !waits || seen.swap(now, Ordering::Relaxed) != now {
            looks.store(0, Ordering::Relaxed);
        } else if looks.fetch_add(1, Ordering::Relaxed) >= STUCK_LOOKS && watch::thread::lend() {
            self.lent.fetch_add(1, Ordering::Relaxed);
        }
        true
    }
}

/// The time in scheduling mode: ends it when dropped.
pub(super) struct Entered {
    pub primary: Arc<Primary>,
    before: Option<rustix::thread::CpuSet>,
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
