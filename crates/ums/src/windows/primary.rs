//! A thread in scheduling mode: the *primary* of its workers.
//!
//! It has one place, where at most one worker runs at a time. It repeats three steps: it calls its
//! entry point, runs the worker that the entry point names, and waits until that run ends.
//!
//! ```text
//! enter -> proc(Startup) -> run(w) ..ends.. -> proc(Blocked | Yield) -> run(w') ..ends.. -> leave
//! ```
//!
//! Each run ends exactly once, because exactly one exchange of the worker's ownership word ends the
//! run: that of the idle-priority watcher, of the watchdog, or of the worker itself.
//!
//! A worker with its own context runs on the scheduler's own kernel thread, inside `run`, until it
//! yields or continues on its own kernel thread (`own.rs`).
//!
//! *Stuck.* A scheduler may wait for a lock that a worker at its gate holds, for example malloc's.
//! The watchdog detects this: the scheduler waits in a futex while its entry point should decide.
//! The watchdog then allows the workers at their gates to run until their next switch, and repeats
//! that until the scheduler proceeds. These times are counted.
//!
//! Named invariants. **Own Thread**: the thread that sets the pointer in the thread-local clears it
//! before the primary is freed. **One Place**: see `own.rs`.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use ::context::Host;

use super::context::{Context, ContextList};
use super::error::EnterError;
use super::executor::{Executor, News, RunEnd};
use crate::os::counted::AtomicU64;
use crate::os::linux::cpus::{self, Cpus};
use crate::os::lock::Lock;
use crate::record::counters::add;
use crate::scheduler;
use crate::watch::calls::may_block;
use crate::watch::{self, Blocks, Place, PlaceOwner};

/// The phase in which the scheduler's entry point runs.
const DECIDING: u32 = 0;
/// The phase in which the scheduler waits for the end of a run, or for a completion list.
const RESTING: u32 = 1;
/// The phase in which a worker runs on the scheduler's kernel thread.
const HOSTING: u32 = 2;

/// A thread in scheduling mode.
pub struct Primary {
    pub(super) context: Arc<Context>,
    pub(super) executor: Executor,
    phase: AtomicU32,
    /// Whether a worker has ever run on this kernel thread.
    has_hosted: AtomicBool,
    /// The block of a hosted worker for which this thread was last poked (`watch/signals.rs`).
    poked: AtomicU64,
    pokes: watch::Pokes,
    /// The number of decisions of the entry point.
    decisions: AtomicU64,
    state_file: watch::StateFile,
    looks: Looks,
    /// How often workers were allowed to run because this thread waited for a lock that they may
    /// have held.
    pub(super) lent: AtomicU64,
}

thread_local! {
    static HERE: Cell<*const Primary> = const { Cell::new(ptr::null()) };
}

/// Returns the primary of the calling thread.
pub(super) fn here<'a>() -> Option<&'a Primary> {
    // SAFETY: Own Thread: callers do not use the reference after the call in which they asked for
    // it.
    unsafe { HERE.get().as_ref() }
}

/// Waits by calling `f`, on a thread of any kind. A scheduler is RESTING meanwhile, because it does
/// not wait for a worker's lock. A worker may lose its processor meanwhile.
pub(super) fn waiting<R>(f: impl FnOnce() -> R) -> R {
    match here() {
        Some(primary) => primary.resting(f),
        None => may_block(|| Blocks::Unknown, f),
    }
}

/// Takes all contexts of a list. If there are none, waits for one for at most this time.
pub(super) fn take_within(list: &ContextList, timeout_ns: Option<u64>) -> *const Context {
    waiting(|| list.take_within(timeout_ns))
}

/// The owner of a primary's place. It has only a weak reference, because the primary owns the
/// place.
struct Owner(std::sync::Weak<Primary>);

impl PlaceOwner for Owner {
    fn place_is_free(&self, in_call: bool) {
        let news = if in_call { News::BlockedInCall } else { News::BlockedInTrap };
        if let Some(primary) = self.0.upgrade() {
            primary.executor.report(news, 0);
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

/// The number of the watchdog's looks for which a scheduler may wait in a futex before workers are
/// allowed to run.
const STUCK_LOOKS: u64 = 4;

/// The watchdog's looks at a scheduler whose entry point decides.
struct Looks {
    /// The number of the decision during which the scheduler was last seen to wait in a futex.
    seen: AtomicU64,
    /// At how many looks in a row after that it still waited.
    again: AtomicU64,
}

impl Looks {
    fn new() -> Looks {
        Looks { seen: AtomicU64::new(0), again: AtomicU64::new(0) }
    }

    /// Notes a look during the decision with this number, at which the scheduler waits in a futex
    /// or does not. Returns whether the scheduler is stuck.
    fn finds_it_stuck(&self, decision: u64, waits: bool) -> bool {
        if !waits || self.seen.swap(decision, Ordering::Relaxed) != decision {
            self.again.store(0, Ordering::Relaxed);
            return false;
        }
        self.again.fetch_add(1, Ordering::Relaxed) >= STUCK_LOOKS
    }
}

impl Primary {
    /// Makes the primary of the calling thread, which has no place yet.
    fn new() -> Primary {
        Primary {
            context: Context::of_scheduler(),
            executor: Executor::new(),
            phase: AtomicU32::new(DECIDING),
            has_hosted: AtomicBool::new(false),
            poked: AtomicU64::new(0),
            pokes: watch::Pokes::default(),
            decisions: AtomicU64::new(0),
            state_file: watch::StateFile::new(),
            looks: Looks::new(),
            lent: AtomicU64::new(0),
        }
    }

    /// Enters scheduling mode on the calling thread: pins the thread, and opens its place.
    pub(super) fn enter() -> Result<Entered, EnterError> {
        let is_a_nodes_worker = scheduler::here().is_some() || scheduler::away().is_some();
        if here().is_some() || watch::thread::me().is_some() || is_a_nodes_worker {
            return Err(EnterError::AlreadyUms);
        }
        let cpu = CpuLease::take();
        let before = rustix::thread::sched_getaffinity(None).ok();
        cpus::pin_to(cpu.0)?;
        let primary = Arc::new(Primary::new());
        // Without the state file, a stuck scheduler is not detected; everything else works.
        let _ = primary.state_file.open(primary.executor.thread);
        watch::install();
        let host = primary.host_here()?;
        let owner = Box::new(Owner(Arc::downgrade(&primary)));
        let place = Place::open(cpu.0, watch::mechanism()?, owner)?;
        primary.executor.set_place(place);
        schedulers().push(crate::os::thread_number());
        HERE.set(Arc::as_ptr(&primary));
        Ok(Entered { primary, before, host, cpu })
    }

    pub(super) fn place(&self) -> &Place {
        self.executor.place()
    }

    /// Makes the calling thread a host, if workers can have their own context here.
    fn host_here(&self) -> io::Result<Option<Host>> {
        if ::context::supported().is_err() {
            return Ok(None);
        }
        let host = Host::here().map_err(io::Error::other)?;
        self.executor.set_root(host.root());
        Ok(Some(host))
    }

    /// Runs a claimed worker until its run ends.
    #[inline(always)]
    pub(super) fn run(&self, context: &Context) -> RunEnd {
        add(&self.decisions, 1);
        if context.own.is_saved() {
            if let Some(ended) = self.run_in_user_mode(context) {
                return ended;
            }
        } else {
            context.run(&self.executor);
        }
        self.wait_for_end(context)
    }

    /// Executes a claimed and saved worker by a switch. Returns `None` if the worker's run has not
    /// ended, because it continues on its own kernel thread.
    #[inline(always)]
    fn run_in_user_mode(&self, context: &Context) -> Option<RunEnd> {
        context.executed_by(&self.executor);
        self.begins_to_host();
        // SAFETY: One Place: the worker is claimed and saved, and this frame waits for it. See
        // `own.rs`.
        unsafe { (*self.executor.root()).switch_to(&context.own) };
        self.ends_hosting();
        let ended = self.executor.ended_here()?;
        if ended.news == News::Yielded {
            context.may_be_claimed();
        }
        Some(ended)
    }

    /// Waits for the end of the run of a worker that is on its own kernel thread, at this
    /// scheduler's place.
    #[cold]
    fn wait_for_end(&self, context: &Context) -> RunEnd {
        self.phase.store(RESTING, Ordering::Relaxed);
        let ended = self.executor.wait_for_end();
        if ended.news == News::Yielded && context.own.is_saved() {
            context.may_be_claimed();
        }
        self.decides_again();
        ended
    }

    /// Calls `f`, in which the scheduler waits for something other than a worker's lock.
    pub(super) fn resting<R>(&self, f: impl FnOnce() -> R) -> R {
        self.phase.store(RESTING, Ordering::Relaxed);
        let result = f();
        self.decides_again();
        result
    }

    /// Records that a worker is about to run on this kernel thread.
    #[inline]
    fn begins_to_host(&self) {
        self.phase.store(HOSTING, Ordering::Relaxed);
        if !self.has_hosted.load(Ordering::Relaxed) {
            self.has_hosted.store(true, Ordering::Relaxed);
            self.place().stir();
        }
    }

    /// Records that the worker has switched back.
    #[inline]
    fn ends_hosting(&self) {
        self.phase.store(DECIDING, Ordering::Relaxed);
    }

    /// Records that the wait is over. Wakes the watcher now, because workers that begin to run
    /// before the next wait do not wake it.
    fn decides_again(&self) {
        self.phase.store(DECIDING, Ordering::Relaxed);
        match self.has_hosted.load(Ordering::Relaxed) {
            true => self.place().stir(),
            false => watch::watchdog::wake(),
        }
    }

    /// Called by the watcher and the watchdog: returns whether there may be a hosted worker to look
    /// at.
    fn hosts(&self) -> bool {
        self.has_hosted.load(Ordering::Relaxed) && self.phase.load(Ordering::SeqCst) != RESTING
    }

    /// Called by the watcher and the watchdog: returns the call in which a hosted worker is blocked
    /// on this kernel thread. The phase is read after the block was seen, so it is the phase that
    /// this kernel thread stored before it blocked.
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
            watch::poke_blocked(self.executor.thread, &self.state_file, waits);
        }
        news
    }

    /// Returns the number of a block that was seen at the present decision.
    fn number_of(&self, waits: watch::Waits) -> u64 {
        waits.number(self.decisions.load(Ordering::Relaxed))
    }

    fn suspects_hosted(&self) -> u64 {
        self.blocks_hosted().map_or(0, |waits| self.number_of(waits))
    }

    /// Called by the watchdog: returns whether the entry point decides or a worker is hosted. Also
    /// checks whether the scheduler is stuck.
    fn is_deciding_or_stuck(&self) -> bool {
        match self.phase.load(Ordering::Relaxed) {
            DECIDING => {}
            phase => return phase == HOSTING,
        }
        let now = self.decisions.load(Ordering::Relaxed) + 1;
        if self.looks.finds_it_stuck(now, self.state_file.waits_in_futex()) {
            watch::thread::lend(&self.lent);
        }
        true
    }
}

/// The time for which a thread is in scheduling mode. It ends when this is dropped.
pub(super) struct Entered {
    pub primary: Arc<Primary>,
    before: Option<rustix::thread::CpuSet>,
    #[allow(dead_code)] // Kept until it is dropped: workers with their own context switch to it.
    host: Option<Host>,
    #[allow(dead_code)] // Kept until it is dropped.
    cpu: CpuLease,
}

impl Drop for Entered {
    fn drop(&mut self) {
        HERE.set(ptr::null());
        let tid = crate::os::thread_number();
        schedulers().retain(|other| *other != tid);
        self.primary.executor.close_place();
        self.primary.state_file.close();
        if let Some(before) = &self.before {
            let _ = rustix::thread::sched_setaffinity(None, before);
        }
    }
}

/// Returns the kernel thread ids of the threads in scheduling mode.
pub(super) fn schedulers() -> std::sync::MutexGuard<'static, Vec<u32>> {
    static ALL: Lock<Vec<u32>> = Lock::new(Vec::new());
    ALL.lock()
}

/// A processor that a scheduler uses. It is recorded so that the next scheduler takes another one.
struct CpuLease(usize);

static LEASES: Lock<Vec<usize>> = Lock::new(Vec::new());

impl CpuLease {
    /// Takes the allowed processor that the fewest schedulers use.
    fn take() -> CpuLease {
        CpuLease::one_of(&Cpus::read().allowed)
    }

    /// Takes that of these processors that the fewest schedulers use.
    fn one_of(allowed: &[usize]) -> CpuLease {
        let mut leases = LEASES.lock();
        let used = |cpu: &usize| leases.iter().filter(|other| *other == cpu).count();
        let cpu = allowed.iter().copied().min_by_key(used).unwrap_or(0);
        leases.push(cpu);
        CpuLease(cpu)
    }
}

impl Drop for CpuLease {
    fn drop(&mut self) {
        let mut leases = LEASES.lock();
        if let Some(at) = leases.iter().position(|cpu| *cpu == self.0) {
            leases.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No other test takes these processors, because no computer has them.
    #[test]
    fn a_scheduler_takes_the_processor_that_the_fewest_use_and_gives_it_back() {
        let all = [usize::MAX - 1, usize::MAX];
        let (first, second) = (CpuLease::one_of(&all), CpuLease::one_of(&all));
        assert_eq!([first.0, second.0], all);
        drop(second);
        let again = CpuLease::one_of(&all);
        assert_eq!(again.0, all[1], "it was given back");
        drop(first);
        assert_eq!(CpuLease::one_of(&all).0, all[0]);
    }

    #[test]
    fn a_thread_that_has_hosted_a_worker_is_looked_at_whenever_it_does_not_rest() {
        let primary = Arc::new(Primary::new());
        let owner = Owner(Arc::downgrade(&primary));
        assert!(!owner.hosts(), "it has not hosted any");
        primary.has_hosted.store(true, Ordering::Relaxed);
        for (phase, looked_at) in [(DECIDING, true), (HOSTING, true), (RESTING, false)] {
            primary.phase.store(phase, Ordering::Relaxed);
            assert_eq!(owner.hosts(), looked_at);
        }
    }

    #[test]
    fn a_scheduler_is_stuck_only_if_it_waits_at_several_looks_during_one_decision() {
        let looks = Looks::new();
        for decision in 1..3 {
            for _ in 0..=STUCK_LOOKS {
                assert!(!looks.finds_it_stuck(decision, true));
            }
            assert!(looks.finds_it_stuck(decision, true), "it has waited all the time");
        }
        // It computes, and then waits again.
        assert!(!looks.finds_it_stuck(2, false));
        assert!((0..STUCK_LOOKS).all(|_| !looks.finds_it_stuck(2, true)));
        assert!(looks.finds_it_stuck(2, true));
        assert!((0..100).all(|_| !looks.finds_it_stuck(3, false)), "a long computation");
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_hosted_worker_that_blocks_in_a_call_is_suspected_of_the_same_block_until_it_goes_on() {
        let (reads, feeds) = io::pipe().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let primary = Arc::new(Primary::new());
            primary.state_file.open(primary.executor.thread).unwrap();
            tell.send(primary.clone()).unwrap();
            let read = io::Read::read(&mut &reads, &mut [0]).unwrap();
            primary.state_file.close();
            read
        });
        let primary = told.recv().unwrap();
        let owner = Owner(Arc::downgrade(&primary));
        assert_eq!(owner.suspects_hosted(), 0, "it does not host");
        primary.phase.store(HOSTING, Ordering::Relaxed);
        // It may be seen in a short wait of `send` first.
        let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let reads = |waits: watch::Waits| waits.call == Some(libc::SYS_read);
        while !primary.state_file.waits().is_some_and(reads) {
            assert!(std::time::Instant::now() < limit, "it reads from the pipe");
            std::thread::yield_now();
        }
        let suspect = owner.suspects_hosted();
        assert_ne!(suspect, 0);
        assert_eq!(owner.suspects_hosted(), suspect);
        primary.phase.store(DECIDING, Ordering::Relaxed);
        assert_eq!(owner.suspects_hosted(), 0, "the entry point itself is blocked");
        drop(feeds);
        assert_eq!(thread.join().unwrap(), 0);
    }
}
