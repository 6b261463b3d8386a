//! Waiting for the operating system: how a worker, or a plain thread, does one operation.
//!
//! A *blocking-style* call borrows its buffers: the worker's stack is frozen until the completion
//! has been reaped, so what lies on it (and what it borrows) cannot go away (rule 10). A deadline
//! or a cancellation asks for the operation's end and then still waits for its completion.
//!
//! A *request with a routine* owns what it needs; the routine runs in the context of whichever
//! worker yields, after the request left the I/O list (U63, U64), or before `submit` returns when
//! the operation completed at once (U66).
//!
//! On a plain thread the operation is done by blocking that thread.
//!
//! Named invariant **Frozen Buffer**: what an operation points at stays valid and untouched until
//! its completion; here because the waiting frame cannot go on before.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use crate::error::WaitError;
use crate::lists::io_list::{Completion, Routine};
use crate::os::clock::{self, NEVER};
use crate::os::driver::Op;
use crate::os::linux::call::{self, Tried};
use crate::reason::WaitReason;
use crate::scheduler::{Shared, Submission, Timed, here};
use crate::wait::What;

/// Does one operation and waits for its completion. Gives the system call's result.
///
/// # Errors
/// The system call's error; `TimedOut` when the deadline passed first; an error whose source is
/// [`WaitError::Cancelled`] when the work request was cancelled.
///
/// # Safety
/// Frozen Buffer: what `op` points at is valid for the operation, and nobody else touches it
/// until this returns.
pub(crate) unsafe fn wait_for(op: Op, reason: WaitReason, deadline: u64) -> io::Result<usize> {
    match here() {
        // SAFETY: Frozen Buffer: passed on; `on_worker` returns only after the completion.
        Some(shared) => unsafe { on_worker(shared, op, reason, deadline) },
        // SAFETY: Frozen Buffer: passed on; `on_thread` does the call itself.
        None => unsafe { on_thread(op, deadline) },
    }
}

unsafe fn on_worker(
    shared: &Shared,
    op: Op,
    reason: WaitReason,
    deadline: u64,
) -> io::Result<usize> {
    let party = shared.waiting_party();
    let ticket = party.begin(What::new(reason).fd(op.fd()).uncancellable());
    let submission = shared.with(|core| {
        // SAFETY: Frozen Buffer: the caller's promise, and this frame stays until the completion.
        unsafe { core.submit(op, Completion::Wake(ticket)) }
    });
    let token = match submission {
        Submission::Pending(token) => token,
        Submission::Done(result) => {
            let abandoned = ticket.abandon();
            debug_assert!(abandoned, "nobody else knows this wait");
            return decode(result);
        }
        Submission::Call(..) => unreachable!("a wake is no routine"),
    };
    // SeqCst pairs with `cancel_party`: it sees our token, or we see its flag.
    party.io.store(token, Ordering::SeqCst);
    let timer = shared.with(|core| {
        if party.cancelled.load(Ordering::SeqCst) {
            core.cancel_io(token);
        }
        (deadline != NEVER).then(|| core.set_timer(deadline, Timed::Io(token)))
    });
    let outcome = shared.park(ticket, NEVER);
    party.io.store(0, Ordering::Relaxed);
    let result = shared.with(|core| {
        if let Some(timer) = timer {
            core.timers.cancel(timer);
        }
        core.io.take_result(token)
    });
    outcome.ok()?;
    if result == -libc::ECANCELED {
        let cancelled = party.cancelled.load(Ordering::Relaxed);
        Err(if cancelled { WaitError::Cancelled } else { WaitError::TimedOut })?;
    }
    decode(result)
}

/// A plain thread tries, waits for readiness with `poll(2)`, and tries again.
unsafe fn on_thread(op: Op, deadline: u64) -> io::Result<usize> {
    loop {
        // SAFETY: Frozen Buffer: the caller's promise.
        if let Tried::Finished(result) = unsafe { call::try_now(&op) } {
            return decode(result);
        }
        let left = (deadline != NEVER).then(|| deadline.saturating_sub(clock::now()));
        if left == Some(0) {
            Err(WaitError::TimedOut)?;
        }
        let mut set =
            [libc::pollfd { fd: op.fd(), events: call::poll_events(op.side()), revents: 0 }];
        call::poll(&mut set, left).map_err(io::Error::from_raw_os_error)?;
    }
}

fn decode(result: i32) -> io::Result<usize> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as usize) }
}

/// Waits until the descriptor is readable, hung up or in error.
pub(crate) fn wait_readable(fd: RawFd, reason: WaitReason, deadline: u64) -> io::Result<()> {
    // SAFETY: Frozen Buffer: a poll has no buffer.
    unsafe { wait_for(Op::PollIn { fd }, reason, deadline) }.map(drop)
}

/// Waits until the descriptor is writable, hung up or in error.
pub(crate) fn wait_writable(fd: RawFd, reason: WaitReason, deadline: u64) -> io::Result<()> {
    // SAFETY: Frozen Buffer: a poll has no buffer.
    unsafe { wait_for(Op::PollOut { fd }, reason, deadline) }.map(drop)
}

/// As [`submit`], for a readiness poll, which has no buffer.
pub(crate) fn submit_poll(fd: RawFd, routine: Routine) -> Option<u64> {
    // SAFETY: Frozen Buffer: a poll has no buffer.
    unsafe { submit(Op::PollIn { fd }, routine) }
}

/// Puts an operation with a completion routine on the I/O list of the caller's scheduler (U61).
/// Gives its token, or None when it completed at once and the routine has been called (U66).
///
/// # Panics
/// On a plain thread.
///
/// # Safety
/// Frozen Buffer: what `op` points at stays valid and untouched until the routine runs; so the
/// routine, or something that lives for ever, owns it.
pub(crate) unsafe fn submit(op: Op, routine: Routine) -> Option<u64> {
    let shared = here().expect("I/O with a completion routine is submitted on a worker");
    // SAFETY: Frozen Buffer: passed on.
    let submission = shared.with(|core| unsafe { core.submit(op, Completion::Call(routine)) });
    match submission {
        Submission::Pending(token) => Some(token),
        Submission::Call(routine, result) => {
            shared.run_routine(routine, result);
            None
        }
        Submission::Done(_) => unreachable!("a routine is called"),
    }
}

#[cfg(test)]
mod tests;
