//! The caller, as the scheduler sees it: a worker, or a plain thread outside every scheduler.
//!
//! Every function that waits consists of these three steps, for workers and for plain threads:
//!
//! ```text
//! let me = about_to_wait();            refused here, by a panic, where the caller must not wait
//! let ticket = me.begin(what);         the caller now waits, as far as others can see
//! ... give the ticket to what will end the wait ...
//! match park(ticket, deadline)         others run; returns when the wait was claimed
//! ```
//!
//! Step 1 panics if the caller must not wait here. It comes before a resource stores the ticket,
//! and later steps cannot fail, so no resource keeps the ticket of a waiter that never parks.
//! [`begin`] is the first two steps in one call. Between `begin` and `park` the caller must not
//! wait or yield.

pub(crate) mod bounds;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::os::clock;
use crate::os::short_lock::{Biased, ShortLock};
use crate::record::reason::WaitReason;
use crate::record::report;
use crate::scheduler::{self, away, here};
use crate::scheduler::{Coupled, Here, Scheduler, WorkerKind};
use crate::wait::error::{NeedsThread, WaitError};
use crate::wait::{Claimed, Outcome, Ticket, Waiter, What, thread_waiter};

pub(crate) use crate::scheduler::ready;

/// Returns the calling waiter.
#[inline]
pub(crate) fn waiter() -> &'static Waiter {
    here().map_or_else(thread_waiter, |scheduler| scheduler.current_waiter())
}

/// Called before an operation takes a short lock under which it may begin a wait. A worker that was
/// allowed to run without the baton rejoins its scheduler here, and not under the lock, which the
/// worker that has the baton may need meanwhile. The caller keeps the returned value until it has
/// the lock.
#[inline]
pub(crate) fn before_short_lock() -> Option<Here> {
    here()
}

/// The caller, during one operation that takes a short lock, and that may wake others or wait, such
/// as a send. Where the caller runs is found once, at the beginning: as with [`before_short_lock`],
/// the caller rejoins its scheduler there if it was allowed to run without the baton. It keeps the
/// baton until the operation ends or the caller parks, so the operation must not run application
/// code.
pub(crate) struct Operation {
    here: Option<Here>,
}

impl Operation {
    /// Begins an operation of the caller.
    #[inline(always)]
    pub(crate) fn begin() -> Operation {
        Operation { here: here() }
    }

    /// Begins an operation that waits for nothing and lets others continue. A caller that was
    /// allowed to run without the baton does not rejoin its scheduler, which would make the others
    /// wait for the worker that has the baton.
    #[inline(always)]
    pub(crate) fn begin_release() -> Operation {
        Operation { here: scheduler::here_with_baton() }
    }

    /// Calls `f` while the short lock of the operation's resource is held.
    #[inline(always)]
    pub(crate) fn locked<S, R>(&self, lock: &ShortLock<S>, f: impl FnOnce(&mut S) -> R) -> R {
        lock.with(self.here.as_ref().map(Here::holder_number), f)
    }

    /// The first half of `locked`; see [`ShortLock::by_bias`].
    #[inline(always)]
    pub(crate) fn locked_by_bias<'a, S>(&self, lock: &'a ShortLock<S>) -> Option<Biased<'a, S>> {
        lock.by_bias(self.here.as_ref().map(Here::holder_number))
    }

    /// The second half of `locked`, if the first has returned None.
    #[inline(always)]
    pub(crate) fn locked_by_base<S, R>(
        &self,
        lock: &ShortLock<S>,
        f: impl FnOnce(&mut S) -> R,
    ) -> R {
        lock.by_base(self.here.as_ref().map(Here::holder_number), f)
    }

    /// Returns the scheduler that the caller runs on.
    #[inline(always)]
    pub(crate) fn scheduler(&self) -> Option<&Scheduler> {
        self.here.as_deref()
    }

    /// Returns the caller's waiter.
    #[inline(always)]
    pub(crate) fn waiter(&self) -> &'static Waiter {
        self.scheduler().map_or_else(thread_waiter, Scheduler::current_waiter)
    }

    /// Makes a waiter run whose wait the caller has ended, if there is one.
    #[inline(always)]
    pub(crate) fn ready_if(&self, claimed: Option<Claimed>) {
        if let Some(claimed) = claimed {
            scheduler::ready_from(self.scheduler(), claimed);
        }
    }

    /// Parks the caller until its wait has ended. `deadline` is in nanoseconds of the clock.
    #[inline(always)]
    pub(crate) fn park(&self, ticket: Ticket, deadline: u64) -> Outcome {
        match &self.here {
            Some(scheduler) => scheduler.park(ticket, deadline),
            None => ticket.park_thread(deadline),
        }
    }
}

/// Returns the waiter of a caller that runs on this scheduler, or on none, and is about to wait.
///
/// # Panics
/// As [`about_to_wait`].
#[inline(always)]
pub(crate) fn waiting_on(scheduler: Option<&Scheduler>) -> &'static Waiter {
    scheduler.map_or_else(waiting_thread, Scheduler::waiting_waiter)
}

/// A caller that may wait. It cannot lose its scheduler's baton before it parks.
pub(crate) struct AboutToWait {
    waiter: &'static Waiter,
    here: Option<Here>,
}

impl AboutToWait {
    /// Returns the waiter that waits.
    #[inline]
    pub(crate) fn waiter(&self) -> &'static Waiter {
        self.waiter
    }

    /// Returns the scheduler that the caller runs on.
    #[inline]
    pub(crate) fn here(&self) -> Option<&Here> {
        self.here.as_ref()
    }

    /// Starts the caller's wait. The caller parks on the returned scheduler, and keeps the baton
    /// until then.
    #[inline]
    pub(crate) fn begin_here(self, what: What) -> (Ticket, Option<Here>) {
        (self.waiter.begin(what), self.here)
    }

    /// Starts the caller's wait.
    #[inline]
    pub(crate) fn begin(self, what: What) -> Ticket {
        self.waiter.begin(what)
    }
}

/// Returns the caller as a waiter that has not begun to wait.
///
/// # Panics
/// If the caller must not wait here; see `Scheduler::may_switch`.
#[inline(always)]
pub(crate) fn about_to_wait() -> AboutToWait {
    let here = here();
    let waiter = here.as_ref().map_or_else(waiting_thread, |scheduler| scheduler.waiting_waiter());
    AboutToWait { waiter, here }
}

/// Panics as a wait would if the caller must not wait. This is for code that changes something
/// before it waits.
///
/// # Panics
/// In a completion routine, and in a closure that puts the caller's own wait into a queue.
///
/// ```
/// ums::worker::assert_may_wait(); // a plain thread may wait
/// ```
pub fn assert_may_wait() {
    drop(about_to_wait());
}

/// Returns the caller, before it begins a wait that ends only when others no longer use its frame:
/// it is never refused.
pub(crate) fn must_wait() -> AboutToWait {
    let here = here();
    let waiter = here.as_ref().map_or_else(thread_waiter, |scheduler| scheduler.current_waiter());
    AboutToWait { waiter, here }
}

fn waiting_thread() -> &'static Waiter {
    let waiter = thread_waiter();
    assert!(waiter.is_quiet(), "{}", scheduler::HAS_BEGUN);
    waiter
}

/// Starts a wait of the caller.
///
/// # Panics
/// As [`about_to_wait`].
#[inline]
pub(crate) fn begin(what: What) -> Ticket {
    about_to_wait().begin(what)
}

/// Calls application code between `begin` and `park`. That code panics if it tries to wait, to
/// yield or to leave its scheduler. Returns an error if it panicked.
pub(crate) fn while_begun(call: impl FnOnce()) -> std::thread::Result<()> {
    let here = here();
    here.iter().for_each(|scheduler| scheduler.note_begun(true));
    let result = catch_unwind(AssertUnwindSafe(call));
    here.iter().for_each(|scheduler| scheduler.note_begun(false));
    result
}

/// Parks the caller until its wait has ended. `deadline` is in nanoseconds of the clock.
#[inline]
pub(crate) fn park(ticket: Ticket, deadline: u64) -> Outcome {
    match here() {
        Some(scheduler) => scheduler.park(ticket, deadline),
        None => ticket.park_thread(deadline),
    }
}

/// Returns the waiter to whose request the caller's code belongs: where its values are.
pub(crate) fn waiter_of_request() -> &'static Waiter {
    match scheduler::here_with_baton() {
        // It runs in a turn, on the stack of a worker that it has nothing to do with.
        Some(here) if here.is_in_routine() => thread_waiter(),
        Some(here) => here.current_waiter(),
        // A preemptive worker keeps its values; also one that is lent.
        None => away().unwrap_or_else(thread_waiter),
    }
}

/// Returns the waiter whose bounds the caller's code has: that of the next wait of this code. A
/// completion routine has none, and the worker in whose turn it runs may be waiting.
pub(crate) fn waiter_with_bounds() -> &'static Waiter {
    match here() {
        Some(scheduler) if !scheduler.is_in_routine() => scheduler.current_waiter(),
        _ => thread_waiter(),
    }
}

/// Gives the other workers of this scheduler a turn. Returns when the scheduler chooses the caller
/// again. If no other worker can run, it returns immediately and without a system call.
///
/// On a plain thread this is [`std::thread::yield_now`].
///
/// ```
/// let node = ums::Node::builder().schedulers(1).build()?;
/// let sum = node.run(|| {
///     let half = ums::spawn(|| 20);
///     ums::yield_now();
///     half.join().unwrap() + 22
/// });
/// assert_eq!(sum, 42);
/// # Ok::<(), ums::BuildError>(())
/// ```
// Inlined, as `leave_by` in `scheduler/switch.rs` asks for.
#[inline(always)]
pub fn yield_now() {
    match here() {
        Some(scheduler) => scheduler.yield_now(),
        None => crate::os::threads::yield_now(),
    }
}

/// Yields if the caller has run for a quantum of 4 ms since it was last switched to, and returns
/// whether it did. Costs one reading of the clock and no system call; call it often in long loops.
pub fn yield_if_due() -> bool {
    here().is_some_and(|scheduler| scheduler.yield_if_due())
}

/// Yields if the caller has run for `time` since it was last switched to, and returns whether it
/// did: [`yield_if_due`](crate::yield_if_due) with a quantum of the caller's own, for work whose
/// neighbours should wait for less than 4 ms. The time is counted from the first such call after
/// the switch. On a plain thread this does nothing.
///
/// ```
/// use std::time::Duration;
///
/// let node = ums::Node::builder().schedulers(1).build()?;
/// let sum: u64 = node.run(|| {
///     (0..1_000_000).inspect(|i| {
///         if i % 1_000 == 0 {
///             ums::worker::yield_after(Duration::from_millis(1));
///         }
///     })
///     .sum()
/// });
/// assert_eq!(sum, 499_999_500_000);
/// # Ok::<(), ums::BuildError>(())
/// ```
pub fn yield_after(time: Duration) -> bool {
    let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    here().is_some_and(|scheduler| scheduler.yield_after(time))
}

/// Yields if the quantum is over, and fails where a wait would fail. A long loop calls this so that
/// a cancellation, or a deadline, ends it early.
///
/// # Errors
/// [`WaitError::Cancelled`] if the work request was cancelled; [`WaitError::TimedOut`] if the time
/// of [`with_timeout`](crate::with_timeout) is over.
pub fn checkpoint() -> Result<(), WaitError> {
    let here = here();
    here.iter().for_each(|scheduler| _ = scheduler.yield_if_due());
    still_wanted_on(here)
}

/// Like [`checkpoint`], for an I/O call whose waits have this reason.
pub(crate) fn checkpoint_for(reason: WaitReason) -> io::Result<()> {
    checkpoint().map_err(|error| error.during(reason))
}

/// Fails where a wait would fail, and does not yield: for a caller that is about to wait, so that
/// others run then.
#[inline]
pub(crate) fn still_wanted() -> Result<(), WaitError> {
    still_wanted_on(here())
}

#[inline]
fn still_wanted_on(here: Option<Here>) -> Result<(), WaitError> {
    let (cancelled, waiter) = match here {
        Some(scheduler) => {
            let waiter = scheduler.current_waiter();
            (waiter.is_cancelled(), waiter)
        }
        None => (is_cancelled(), thread_waiter()),
    };
    if cancelled {
        return Err(WaitError::Cancelled);
    }
    if waiter.is_past_limit() { Err(WaitError::TimedOut) } else { Ok(()) }
}

/// Returns whether the work request that the caller carries out was cancelled. Works also while the
/// caller is preemptive. Returns false on a plain thread, and inside [`shield`](crate::shield).
pub fn is_cancelled() -> bool {
    match here() {
        // A completion routine belongs to no request.
        Some(scheduler) => !scheduler.is_in_routine() && scheduler.current_waiter().is_cancelled(),
        // A preemptive worker waits as its thread, so its shield is that of the thread.
        None => away().is_some_and(|w| w.is_cancelled() && !thread_waiter().is_shielded()),
    }
}

/// Returns a number of the calling worker, or of the calling plain thread, which only the program
/// reads and writes. It is 0 at first. Unlike a thread-local, it is each worker's own also with
/// fibers, and code that the caller's stack leads to reads it without being passed anything.
///
/// A worker carries out requests of many users one after the other, and the number stays what it
/// is. So a request that sets it sets it back before its end.
///
/// ```
/// use std::sync::atomic::Ordering::Relaxed;
/// let node = ums::Node::builder().schedulers(1).build()?;
/// let seen = node.run(|| {
///     ums::worker::word().store(7, Relaxed);
///     let other = ums::spawn(|| ums::worker::word().load(Relaxed)).join().unwrap();
///     (ums::worker::word().swap(0, Relaxed), other)
/// });
/// assert_eq!(seen, (7, 0));
/// # Ok::<(), ums::BuildError>(())
/// ```
pub fn word() -> &'static AtomicU64 {
    &waiter().program
}

/// Returns the calling worker, whether it is on its scheduler or preemptive; `None` on a plain
/// thread.
fn worker_waiter() -> Option<&'static Waiter> {
    here().map(|scheduler| scheduler.current_waiter()).or_else(away)
}

/// Lets others run, in place of a wait of the caller that need not park. Fails as the wait would.
pub(crate) fn after_others(me: &Waiter, deadline: u64) -> Result<(), WaitError> {
    yield_now();
    if me.is_cancelled() {
        return Err(WaitError::Cancelled);
    }
    let deadline = deadline.min(me.limit());
    if deadline != clock::NEVER && clock::now() >= deadline {
        Err(WaitError::TimedOut)
    } else {
        Ok(())
    }
}

/// Returns the limit of the caller's waits, in nanoseconds of the clock.
pub(crate) fn limit() -> u64 {
    waiter().limit()
}

/// Waits for this long; other workers run meanwhile. With [`Duration::MAX`] it waits until the work
/// request is cancelled. On a plain thread and in preemptive code, where it cannot be cancelled, it
/// then never returns.
///
/// # Errors
/// [`WaitError::Cancelled`] if the work request was cancelled meanwhile; [`WaitError::TimedOut`] if
/// the time of [`with_timeout`](crate::with_timeout) was over before this sleep's.
///
/// ```
/// use std::time::Duration;
/// let node = ums::Node::builder().schedulers(1).build()?;
/// node.run(|| ums::sleep(Duration::from_millis(1))).unwrap();
/// # Ok::<(), ums::BuildError>(())
/// ```
pub fn sleep(span: Duration) -> Result<(), WaitError> {
    sleep_as(WaitReason::SLEEP, span)
}

/// Sleeps as [`sleep`] does, but views and statistics show the caller's own `reason` for the wait.
///
/// # Errors
/// The errors of [`sleep`].
pub fn sleep_as(reason: WaitReason, span: Duration) -> Result<(), WaitError> {
    let deadline = clock::after(span);
    // What ends the sleep: its own end, or that of the time that the caller has.
    let slept = if limit() < deadline { Err(WaitError::TimedOut) } else { Ok(()) };
    if here().is_none() {
        let span = span.min(Duration::from_nanos(limit().saturating_sub(clock::now())));
        crate::os::threads::sleep(span);
        return slept;
    }
    match park(begin(What::new(reason)), deadline) {
        Outcome::TimedOut => slept,
        other => other.ok(),
    }
}

/// Runs external code that may block or run long, without delaying the scheduler.
///
/// The worker leaves its scheduler for the time of the call, and other workers run there meanwhile,
/// in parallel with `f`. A thread worker runs `f` on its own thread. A fiber worker cannot leave
/// its thread, so `f` runs on a hidden scheduler of threads and the fiber waits; `F` and `R` are
/// `Send` for that reason. On a plain thread, or inside another such call, this only calls `f`.
///
/// # Panics
/// If `f` panics: with the same panic, after the worker has rejoined its scheduler.
///
/// ```
/// let node = ums::Node::builder().schedulers(1).build()?;
/// let text = node.run(|| {
///     ums::go_preemptive(ums::WaitReason::PREEMPTIVE_EXTERNAL, || {
///         std::fs::read_to_string("/proc/self/comm").unwrap()
///     })
/// });
/// assert!(!text.is_empty());
/// # Ok::<(), ums::BuildError>(())
/// ```
pub fn go_preemptive<F, R>(reason: WaitReason, f: F) -> R
where
    F: FnOnce() -> R + Send,
    R: Send,
{
    scheduler::go_preemptive(reason, f)
}

/// Leaves the scheduler until the returned guard is dropped. It does what [`go_preemptive`] does,
/// for code that is not a closure. The worker *couples* with its own kernel thread. Others run on
/// the scheduler meanwhile.
///
/// As long as the guard lives, a worker with its own context runs on its own kernel thread. So this
/// is for calls that block, and for calls whose effect depends on the kernel thread. A thread
/// worker stays on its thread. A panic drops the guard, too. A guard that was forgotten ends with
/// the request. On a plain thread, in a worker that is preemptive already, and within another
/// guard, the call does nothing.
///
/// # Errors
/// [`NeedsThread`] on a fiber worker, which has no kernel thread of its own: use [`go_preemptive`].
///
/// # Panics
/// In a completion routine, which must not wait, and in a closure that runs between the beginning
/// of the caller's wait and its parking.
///
/// ```
/// let node = ums::Node::builder().schedulers(1).build()?;
/// node.run(|| {
///     let away = ums::worker::couple(ums::WaitReason::PREEMPTIVE_EXTERNAL).unwrap();
///     assert!(!ums::worker::is_worker());
///     drop(away);
///     assert!(ums::worker::is_worker());
/// });
/// # Ok::<(), ums::BuildError>(())
/// ```
pub fn couple(reason: WaitReason) -> Result<Coupled, NeedsThread> {
    scheduler::couple(reason)
}

/// Runs external code that is known to be short without leaving the scheduler, because leaving
/// would cost more than the call. A call that takes longer than a quantum is counted in
/// `short_overruns`.
pub fn short_external_call<R>(f: impl FnOnce() -> R) -> R {
    scheduler::short_call(f)
}

/// Returns whether the caller is a worker that runs on its scheduler now.
pub fn is_worker() -> bool {
    here().is_some()
}

/// Returns the number of the scheduler that the caller runs on, or None on a plain thread and while
/// preemptive.
pub fn scheduler_id() -> Option<usize> {
    here().map(|scheduler| scheduler.index)
}

/// Returns the kind of the caller's worker, or None on a plain thread and while preemptive.
pub fn worker_kind() -> Option<WorkerKind> {
    here().map(|scheduler| scheduler.options.kind)
}

/// Declares that the component `component`, which the caller is about to use, needs a kernel thread
/// of its own and so must not run on fiber workers.
///
/// # Errors
/// [`NeedsThread`] on a fiber worker; call it inside [`go_preemptive`], or use thread workers.
pub fn require_thread(component: &'static str) -> Result<(), NeedsThread> {
    match worker_kind() {
        Some(WorkerKind::Fiber) => Err(NeedsThread(component)),
        _ => Ok(()),
    }
}

/// Returns the caller's worker, as (scheduler, worker) numbers.
pub fn worker_id() -> Option<(usize, u32)> {
    let scheduler = here()?;
    Some((scheduler.index, scheduler.with(|core| core.current)))
}

/// Writes a message to stderr, unless the caller's node was built without warnings; see
/// [`report::warn`].
#[cold]
pub(crate) fn warn(kind: report::WarningKind, text: std::fmt::Arguments<'_>) {
    match here() {
        Some(scheduler) => scheduler.warn(kind, text),
        None => report::warn(kind, text),
    }
}

/// Returns the user whose request the caller carries out; 0 if there is none.
pub(crate) fn user() -> crate::scheduler::request::UserId {
    worker_waiter().map_or(0, |waiter| waiter.record.view.user.load(Ordering::Relaxed))
}

/// Makes views show each worker that sleeps on a short lock. The function that is registered here
/// only stores to one atomic, because such a lock may be taken while the scheduler's lists are
/// borrowed.
pub(crate) fn show_waits_for_short_locks() {
    let mark = |stuck_on_short_lock| {
        here()
            .into_iter()
            .for_each(|s| s.stuck_on_short_lock.store(stuck_on_short_lock, Ordering::Relaxed))
    };
    crate::os::short_lock::call_when_stuck(mark);
}
