//! Reports of deadlocks: which waiters waited for each other, and which wait was ended with an
//! error.
//!
//! ```text
//!   waiter 0 --waits for what is held by--> waiter 1 --> ... --> waiter n-1
//!      ^                                                             |
//!      +------------------- waits for what is held by ---------------+
//! ```
//!
//! Nouns. A *cycle* is the list of waiters of a deadlock, each of which holds what the one before
//! it waits for. The *victim* is the waiter whose wait ended with an error, so that the others can
//! continue. An error must stay small and copyable, so it contains only the deadlock's number. The
//! last [`KEPT`] deadlocks of the process can be looked up by number.
//!
//! What this file does not do: it finds no deadlocks. The monitor finds them.

use std::collections::VecDeque;
use std::fmt::{Display, Formatter, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::os::lock::Lock;
use crate::record::frame::{Frame, of_the_application};
use crate::record::reason::WaitReason;

/// How many deadlocks are remembered.
const KEPT: usize = 64;
/// Waiters of one deadlock that are shown.
const WAITERS_SHOWN: usize = 32;
/// Frames of one backtrace that are shown.
const FRAMES_SHOWN: usize = 12;

/// The number of a deadlock of this process, from 1 on.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeadlockId(u64);

/// A deadlock: workers, users and threads that waited for each other.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Deadlock {
    /// Its number.
    pub id: DeadlockId,
    /// The waiters of the cycle: each waits for what the next one holds, the last for what the
    /// first holds.
    pub waiters: Vec<DeadlockWaiter>,
    /// The index in `waiters` of the waiter whose wait failed. `None` if no wait of the cycle can
    /// fail; then the deadlock lasts.
    pub victim: Option<usize>,
}

/// One waiter of a deadlock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadlockWaiter {
    /// The numbers of its scheduler and of the worker; `None` for a plain thread.
    pub worker: Option<(u32, u32)>,
    /// The request that it carries out; 0 for none.
    pub request: u64,
    /// The user of that request; 0 for none.
    pub user: u64,
    /// Why it waits.
    pub reason: WaitReason,
    /// The address of what it waits for.
    pub resource: u64,
    /// How long it has waited.
    pub waited: Duration,
    /// Whether its wait can end with an error (or with a panic, if the waiting function returns no
    /// error).
    pub can_fail: bool,
    /// The functions in which it waits, the innermost first. Empty if they are not known.
    pub waits_at: Vec<Frame>,
    /// The functions in which the next waiter of the cycle took what this one waits for. Empty if
    /// locks are not traced
    /// ([`monitor::Options::trace_locks`](crate::monitor::Options::trace_locks)).
    pub taken_at: Vec<Frame>,
}

static LAST: AtomicU64 = AtomicU64::new(0);
static DEADLOCKS: Lock<VecDeque<Arc<Deadlock>>> = Lock::new(VecDeque::new());

impl DeadlockId {
    /// Returns the number of the next deadlock.
    pub(crate) fn next() -> DeadlockId {
        DeadlockId(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(crate) fn from_number(number: u64) -> DeadlockId {
        DeadlockId(number)
    }

    /// Returns the number itself.
    pub fn number(self) -> u64 {
        self.0
    }

    /// Returns the deadlock, or `None` if it was dropped. The last 64 deadlocks are kept.
    pub fn details(self) -> Option<Arc<Deadlock>> {
        DEADLOCKS.lock().iter().rev().find(|deadlock| deadlock.id == self).cloned()
    }
}

/// Keeps the deadlock for later lookups, in place of the oldest one if there are too many.
pub(crate) fn keep(deadlock: Arc<Deadlock>) {
    let mut all = DEADLOCKS.lock();
    if all.len() >= KEPT {
        all.pop_front();
    }
    all.push_back(deadlock);
}

/// Returns the deadlocks that are kept, the oldest first.
pub(crate) fn all_kept() -> Vec<Arc<Deadlock>> {
    DEADLOCKS.lock().iter().cloned().collect()
}

impl std::fmt::Debug for DeadlockId {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}", self.0)
    }
}

/// Prints the number and, while the deadlock is kept, its cycle in one line.
impl Display for DeadlockId {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "deadlock {}", self.0)?;
        self.details().map_or(Ok(()), |deadlock| write!(f, ": {}", deadlock.in_a_line()))
    }
}

impl Deadlock {
    /// Returns the cycle in one line, without backtraces.
    pub fn in_a_line(&self) -> String {
        let shown = self.waiters.iter().take(WAITERS_SHOWN);
        let links: Vec<_> = shown.map(|waiter| waiter.to_string()).collect();
        let first = self.waiters.first().map(DeadlockWaiter::description).unwrap_or_default();
        let more = match self.not_shown() {
            0 => String::new(),
            more => format!(", held by {more} more in a row"),
        };
        format!("{}{more}, held by {first}", links.join(", held by "))
    }

    fn not_shown(&self) -> usize {
        self.waiters.len().saturating_sub(WAITERS_SHOWN)
    }
}

/// Prints a line for each waiter, and below it the places where it waits and where the resource was
/// taken.
impl Display for Deadlock {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for (at, waiter) in self.waiters.iter().enumerate().take(WAITERS_SHOWN) {
            let next = self.waiters[(at + 1) % self.waiters.len()].description();
            let victim = if self.victim == Some(at) { " (its wait fails)" } else { "" };
            write!(f, "\nums:   {waiter}, held by {next}{victim}")?;
            show(f, "waits", &waiter.waits_at)?;
            show(f, "taken", &waiter.taken_at)?;
        }
        match self.not_shown() {
            0 => Ok(()),
            more => write!(f, "\nums:   and {more} more in a row"),
        }
    }
}

fn show(f: &mut Formatter<'_>, what: &str, frames: &[Frame]) -> Result {
    for frame in of_the_application(frames).iter().take(FRAMES_SHOWN) {
        write!(f, "\nums:     {what} at {frame}")?;
    }
    Ok(())
}

impl DeadlockWaiter {
    /// Returns a description of the waiter for a reader: its worker, request and user.
    pub fn description(&self) -> String {
        match self.worker {
            None => "a plain thread".to_owned(),
            Some((scheduler, worker)) if self.request == 0 => {
                format!("worker {worker} of scheduler {scheduler}")
            }
            Some((scheduler, worker)) => format!(
                "worker {worker} of scheduler {scheduler} (request {} of user {})",
                self.request, self.user
            ),
        }
    }
}

impl Display for DeadlockWaiter {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(
            f,
            "{} has waited {} ms for {} {:#x}",
            self.description(),
            self.waited.as_millis(),
            self.reason.name(),
            self.resource
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter(worker: u32) -> DeadlockWaiter {
        DeadlockWaiter {
            worker: Some((0, worker)),
            request: 0,
            user: 0,
            reason: WaitReason::MUTEX,
            resource: 0x10 * u64::from(worker),
            waited: Duration::from_millis(5),
            can_fail: true,
            waits_at: vec![Frame::new("here".into(), Some("a.rs:1".into()))],
            taken_at: Vec::new(),
        }
    }

    #[test]
    fn a_number_tells_the_cycle_until_too_many_have_come_after_it() {
        let make = || {
            let id = DeadlockId::next();
            let waiters = vec![waiter(1), waiter(2)];
            keep(Arc::new(Deadlock { id, waiters, victim: Some(1) }));
            id
        };
        let first = make();
        let line = format!(
            "deadlock {}: worker 1 of scheduler 0 has waited 5 ms for MUTEX 0x10, held by worker 2 \
             of scheduler 0 has waited 5 ms for MUTEX 0x20, held by worker 1 of scheduler 0",
            first.number()
        );
        assert_eq!(first.to_string(), line);
        let text = first.details().unwrap().to_string();
        assert!(text.contains("waits at here (a.rs:1)") && text.contains("(its wait fails)"));
        for _ in 0..KEPT {
            make();
        }
        assert_eq!(first.to_string(), format!("deadlock {}", first.number()));
        assert_eq!(all_kept().len(), KEPT);
    }
}
