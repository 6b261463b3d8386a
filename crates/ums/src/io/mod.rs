//! I/O requests with completion routines, and the waits for I/O of all other modules.
//!
//! A *blocking-style* call borrows its buffers. The worker's stack stays as it is until the
//! completion has been reaped, so the data on the stack, and the data that it borrows, stays valid.
//! If the deadline passes or the work request is cancelled, the call asks the kernel to cancel the
//! operation, and still waits for its completion.
//!
//! A *request with a routine* owns its buffers. The routine runs on the stack of any worker that
//! yields, after the request has left the I/O list. If the operation completes immediately, the
//! routine runs before `submit` returns.
//!
//! On a plain thread the operation blocks that thread.
//!
//! Named invariant **Frozen Buffer**: the memory that an operation points at stays valid and
//! untouched until its completion, because the frame that waits for it cannot continue before.

#![allow(unsafe_code)]

mod readiness;
mod request;
mod watch;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::current::{limit, yield_if_due};
use crate::os::clock::{self, NEVER};
use crate::os::driver::{LiveOp, Op, Side};
use crate::os::limits::{QUANTUM_NS, SLOW_IO_NS};
use crate::os::linux::call::{self, Tried};
use crate::os::sockets;
use crate::record::counters::add;
use crate::record::reason::WaitReason;
use crate::scheduler::alarm::{self, Noticed};
use crate::scheduler::lists::io_list::{Completion, CompletionRoutine};
use crate::scheduler::{Frozen, Scheduler, Submission, Timed, here};
use crate::wait::Waiter;
use crate::wait::What;
use crate::wait::error::WaitError;

pub(crate) use crate::os::op::RECEIVE_MAX;
pub(crate) use readiness::Readiness;
pub(crate) use request::submit_receive;
pub use request::{Buffer, CURRENT, Pending, PendingIo, Request, pending_io};
pub use watch::Watch;

/// Does one operation, waits for its completion, and returns the system call's result. If it need
/// not wait, lets others run if the caller's quantum is over.
///
/// # Errors
/// The system call's error; `TimedOut` if the deadline passed first; an error whose source is
/// [`WaitError::Cancelled`] if the work request was cancelled.
pub(crate) fn wait_for(op: LiveOp<'_>, reason: WaitReason, deadline: u64) -> io::Result<usize> {
    match here() {
        Some(scheduler) => on_worker(&scheduler, op, reason, deadline, true),
        None => on_thread(op, reason, deadline.min(limit())),
    }
}

/// Like [`wait_for`], without a deadline and without cancellation: for operations that change a
/// file, so that the caller always learns whether they did.
///
/// # Errors
/// The system call's error.
pub(crate) fn wait_out(op: LiveOp<'_>, reason: WaitReason) -> io::Result<usize> {
    match here() {
        Some(scheduler) => on_worker(&scheduler, op, reason, NEVER, false),
        None => on_thread(op, reason, NEVER),
    }
}

/// Sends bytes on a stream: as many as there is room for, and waits only if there is no room at
/// all. `deadline` returns the deadline of that wait; a cancellation ends it if it is
/// `cancellable`.
///
/// # Errors
/// As for [`wait_for`].
pub(crate) fn send_bytes(
    mut op: LiveOp<'_>,
    deadline: impl Fn() -> u64,
    cancellable: bool,
) -> io::Result<usize> {
    let mut until = None;
    loop {
        let sent = match send_with_others(&mut op)? {
            Some(sent) => sent,
            None => {
                yield_if_due();
                send_alone(&mut op)
            }
        };
        if let Tried::Finished(result) = sent {
            return decode(result);
        }
        let until = *until.get_or_insert_with(&deadline);
        let (room, reason) = (LiveOp::poll(op.fd(), Side::Out), WaitReason::NETWORK_WRITE);
        match here() {
            Some(on) => on_worker(&on, room, reason, until, cancellable)?,
            None if cancellable => on_thread(room, reason, until.min(limit()))?,
            None => on_thread(room, reason, until)?,
        };
    }
}

/// Sends bytes on a stream: as many as there is room for.
///
/// # Errors
/// `WouldBlock` if there is no room at all; otherwise the system call's error.
pub(crate) fn send_now(mut op: LiveOp<'_>) -> io::Result<usize> {
    match send_with_others(&mut op)?.unwrap_or_else(|| send_alone(&mut op)) {
        Tried::Finished(result) => decode(result),
        Tried::WouldBlock => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// Sends as many bytes of a stream as there is room for, if the driver makes this call together
/// with others because other workers can run. The caller parks for the short time until it does.
/// Returns `None` if the caller should make the call itself.
fn send_with_others(op: &mut LiveOp<'_>) -> io::Result<Option<Tried>> {
    let Some(scheduler) = here().filter(|scheduler| scheduler.gathers()) else { return Ok(None) };
    match on_worker(&scheduler, op.attempt(), WaitReason::NETWORK_WRITE, NEVER, false) {
        Ok(count) => Ok(Some(Tried::Finished(count as i32))),
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(Some(Tried::WouldBlock)),
        // The scheduler ends and has cancelled the operation: nothing was sent.
        Err(error) if WaitError::of(&error).is_some() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sends as many bytes of a stream as there is room for, by a call of its own.
fn send_alone(op: &mut LiveOp<'_>) -> Tried {
    match call::try_now(op) {
        Tried::Finished(result) => Tried::Finished(sockets::result_of(op, result)),
        would_block => would_block,
    }
}

/// Runs a call that blocks and has no asynchronous form on a helper thread, and waits for it. On a
/// plain thread, makes the call on that thread. The call must not use the scheduler.
///
/// # Panics
/// Passes on a panic of `f`.
///
/// # Errors
/// The error of `f`.
pub(crate) fn outside<F, T>(reason: WaitReason, f: F) -> io::Result<T>
where
    F: FnOnce() -> io::Result<T> + Send,
    T: Send,
{
    if here().is_none() {
        return f();
    }
    let (mut f, mut result) = (Some(f), None);
    let mut call = || {
        let f = f.take().expect("a call is made once");
        result = Some(std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)));
        0
    };
    wait_out(LiveOp::call(&mut call), reason)?;
    match result.expect("the helper ran the closure before completing the wait") {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn on_worker(
    scheduler: &Scheduler,
    op: LiveOp<'_>,
    reason: WaitReason,
    deadline: u64,
    cancellable: bool,
) -> io::Result<usize> {
    let waiter = scheduler.waiting_waiter();
    let deadline = if cancellable { deadline.min(waiter.limit()) } else { deadline };
    let cancellable = cancellable && !waiter.is_shielded();
    let what = What::new(reason).uncancellable();
    let ticket = waiter.begin(if op.fd() < 0 { what } else { what.fd(op.fd()) });
    let told = *op;
    let blocks = told.blocks();
    let began = if blocks { clock::ticks() } else { 0 };
    let frozen = Frozen;
    // SAFETY: Frozen Buffer: this frame stays until the completion; if it were unwound before,
    // `frozen` would end the process.
    let op = unsafe { op.untied() };
    let submission = scheduler.with(|core| core.submit(op, Completion::Wake(ticket)));
    if blocks {
        count_slow_submission(scheduler, &told, clock::ticks().saturating_sub(began));
    }
    let (token, since) = match submission {
        Submission::Pending(token, since) => (token, since),
        Submission::Done(result) => {
            let abandoned = ticket.abandon();
            debug_assert!(abandoned, "no other thread knows this wait");
            std::mem::forget(frozen);
            // The other workers had no turn.
            scheduler.yield_if_due();
            return decode(result);
        }
        Submission::Call(..) => unreachable!("a submission that wakes has no routine"),
    };
    if cancellable {
        // Either `cancel_waiter` sees this token, or this thread sees the flag that it has set.
        waiter.record.io.begin(token);
        if waiter.cancelled.load(Ordering::SeqCst) {
            scheduler.with(|core| core.cancel_io(token));
        }
    }
    let timed = || scheduler.with(|core| core.set_timer(deadline, Timed::Io(token)));
    let timer = (deadline != NEVER).then(timed);
    let outcome = scheduler.park_since(ticket, NEVER, since);
    let result = waiter.record.io.end(token);
    if blocks {
        let signalled = waiter.signalled.load(Ordering::Relaxed);
        count_slow_io(scheduler, &told, signalled.saturating_sub(began));
    }
    if let Some(timer) = timer {
        scheduler.with(|core| core.timers.cancel(timer));
    }
    std::mem::forget(frozen);
    outcome.ok()?;
    if result == -libc::ECANCELED {
        return Err(why_ended(waiter, cancellable || deadline == NEVER).during(reason));
    }
    decode(result)
}

/// Returns why an operation has ended without a result: cancelled, if a cancellation ends it.
fn why_ended(waiter: &Waiter, cancellation_ends: bool) -> WaitError {
    let cancelled = cancellation_ends && waiter.cancelled.load(Ordering::Relaxed);
    if cancelled { WaitError::Cancelled } else { WaitError::TimedOut }
}

/// Counts and reports a submission that blocked the scheduler for this many ticks, if that is long.
#[inline]
fn count_slow_submission(scheduler: &Scheduler, op: &Op, took: u64) {
    if lasted(took, QUANTUM_NS) {
        add(&scheduler.counters.slow_submissions, 1);
        alarm::note(Noticed::SlowSubmission, clock::ticks_to_ns(took), op.fd());
    }
}

/// Counts and reports a wait for a file that took this many ticks, if that is long.
#[inline]
fn count_slow_io(scheduler: &Scheduler, op: &Op, took: u64) {
    if lasted(took, SLOW_AFTER_NS.load(Ordering::Relaxed)) {
        add(&scheduler.counters.slow_io, 1);
        alarm::note(Noticed::SlowIo, clock::ticks_to_ns(took), op.fd());
    }
}

/// Returns whether this number of ticks is longer than `ns`. A tick is never longer than a
/// nanosecond, so one comparison nearly always decides.
fn lasted(ticks: u64, ns: u64) -> bool {
    ticks > ns && clock::ticks_to_ns(ticks) > ns
}

/// How many nanoseconds a wait for a file may take before it is counted as slow.
static SLOW_AFTER_NS: AtomicU64 = AtomicU64::new(SLOW_IO_NS);

/// Sets the limit above which a wait for a file counts as slow: it is then counted in `slow_io` of
/// its scheduler's counters. The default is 15 s. Applies to the whole process.
pub fn set_slow_after(span: std::time::Duration) {
    let ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    SLOW_AFTER_NS.store(ns, Ordering::Relaxed);
}

/// Does an operation on a plain thread: tries it, waits for readiness with `poll(2)`, and tries
/// again.
fn on_thread(mut op: LiveOp<'_>, reason: WaitReason, deadline: u64) -> io::Result<usize> {
    loop {
        if let Tried::Finished(result) = call::try_now(&mut op) {
            return decode(result);
        }
        let left = (deadline != NEVER).then(|| deadline.saturating_sub(clock::now()));
        if left == Some(0) {
            return Err(WaitError::TimedOut.during(reason));
        }
        let mut set =
            [libc::pollfd { fd: op.fd(), events: call::poll_events(op.side()), revents: 0 }];
        call::poll(&mut set, left).map_err(io::Error::from_raw_os_error)?;
    }
}

/// Turns a system call's result into an [`io::Result`].
pub(crate) fn decode(result: i32) -> io::Result<usize> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as usize) }
}

/// Waits until the descriptor is writable, hung up or in error.
pub(crate) fn wait_writable(fd: RawFd, reason: WaitReason, deadline: u64) -> io::Result<()> {
    wait_for(LiveOp::poll(fd, Side::Out), reason, deadline).map(drop)
}

/// Waits until the descriptor is readable, hung up or in error.
pub(crate) fn wait_readable(fd: RawFd, reason: WaitReason, deadline: u64) -> io::Result<()> {
    wait_for(LiveOp::poll(fd, Side::In), reason, deadline).map(drop)
}

/// Accepts a connection: one from the listener's queue, or else the next that arrives.
///
/// The caller keeps running until the queue is empty or its quantum is over. If a ring accepted for
/// it, each connection would take a turn, and all ready workers would run in between.
///
/// # Errors
/// As for [`wait_for`].
pub(crate) fn accept(fd: RawFd, flags: i32, deadline: u64) -> io::Result<OwnedFd> {
    if sockets::are_tried_first()
        && let Some(accepted) = accept_now(fd, flags)
    {
        return accepted;
    }
    wait_for(LiveOp::accept(fd, flags), WaitReason::NETWORK_ACCEPT, deadline).map(accepted)
}

/// Accepts a connection that waits in the listener's queue; returns `None` if there is none.
pub(crate) fn accept_now(fd: RawFd, flags: i32) -> Option<io::Result<OwnedFd>> {
    match call::try_now(&mut LiveOp::accept(fd, flags)) {
        Tried::Finished(result) => Some(decode(result).map(accepted)),
        Tried::WouldBlock => None,
    }
}

fn accepted(fd: usize) -> OwnedFd {
    // SAFETY: Own Memory: a new descriptor, which no other code has.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

/// Like [`submit`], for a readiness poll, which has no buffer.
pub(crate) fn submit_poll(fd: RawFd, routine: CompletionRoutine) -> Option<u64> {
    submit(LiveOp::poll(fd, Side::In), routine)
}

/// Puts an operation with a completion routine on the I/O list of the caller's scheduler.
/// Returns its token, or `None` if it completed at once and the routine has been called.
///
/// # Panics
/// Panics on a plain thread.
pub(crate) fn submit(op: LiveOp<'static>, routine: CompletionRoutine) -> Option<u64> {
    let scheduler = here().expect("I/O with a completion routine is submitted on a worker");
    let submission = scheduler.with(|core| core.submit(op, Completion::Call(routine)));
    match submission {
        Submission::Pending(token, _) => Some(token),
        Submission::Call(token, routine, result) => {
            let ran = scheduler.run_or_put_aside(routine, result);
            (!ran).then_some(token)
        }
        Submission::Done(_) => unreachable!("a routine is called"),
    }
}

#[cfg(test)]
mod tests;
