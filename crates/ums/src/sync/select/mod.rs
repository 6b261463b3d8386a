//! Select: waits for several things at once, and takes the first that is ready.
//!
//! ```text
//!   try each arm ──one is ready──▶ its closure runs
//!      ▲     │ none
//!      │     ▼
//!      │  begin one wait; give each arm a ticket of it; park
//!      │     ▼
//!      │  remove all tickets
//!      └─────┴──the arm whose ticket was claimed has it──▶ its closure runs
//! ```
//!
//! *Exactly one arm happens.* All tickets name one wait, so of several peers that grant something
//! one succeeds; the others find that the wait has ended, and keep what they have (`wait/arm`). An
//! arm that finds its source ready while the tickets are given abandons the wait. If a peer has
//! claimed an earlier ticket meanwhile, that arm happens instead.

mod macros;

use std::time::{Duration, Instant};

pub use macros::{Happened, select};

use super::patience::Patience;
use crate::current;
use crate::os::clock::{self, NEVER};
use crate::os::random;
use crate::os::threads::operation;
use crate::record::reason::WaitReason;
use crate::wait::error::WaitError;
use crate::wait::{Arm, Outcome, Source, Ticket, Waitable};

/// The most arms of a select: a ticket has room for the number of one.
const ARMS_MAX: usize = 256;

/// Several things to wait for at once, each with a closure that gets its result. The closure of the
/// first that is ready runs; nothing happens to the others. [`Waitable`] lists what can be waited
/// for.
///
/// If several are ready, one of them is chosen at random, so that none starves.
/// [`biased`](Select::biased) changes that. [`select!`](macro@crate::sync::select) does the same,
/// and its arms can `return`, `break` and use `?`.
///
/// While it waits, a select has a place in the queue of each source, as any other wait. A future
/// that was woken and is still pending, and a connection that another caller has accepted, make it
/// wait anew, at the end of the queues. The monitor never ends a select to break a deadlock.
///
/// ```
/// use std::time::Duration;
/// use ums::sync::{Select, channel::unbounded};
/// let (_stop, stopped) = unbounded::<()>();
/// let (tx, numbers) = unbounded();
/// tx.send(7).unwrap();
/// let got = Select::new()
///     .on(&stopped, |_| None)
///     .on(&numbers, |n| n.ok())
///     .on(Duration::from_secs(10), |()| None)
///     .wait()?;
/// assert_eq!(got, Some(7));
/// # Ok::<(), ums::WaitError>(())
/// ```
#[must_use = "a select does nothing until one of its waits is called"]
pub struct Select<'a, R> {
    arms: Vec<Box<dyn Source<R> + 'a>>,
    biased: bool,
}

impl<'a, R: 'a> Select<'a, R> {
    /// Creates a select without arms.
    pub fn new() -> Select<'a, R> {
        Select { arms: Vec::new(), biased: false }
    }

    /// Prefers the arm that was added first, if several are ready. An arm that is always ready
    /// starves those after it, so add urgent arms first and busy ones last.
    pub fn biased(mut self) -> Select<'a, R> {
        self.biased = true;
        self
    }

    /// Adds an arm. If it is chosen, `act` gets its result.
    ///
    /// # Panics
    /// Panics if there are 256 arms already.
    #[track_caller]
    pub fn on<W>(mut self, waitable: W, act: impl FnOnce(W::Output) -> R + 'a) -> Select<'a, R>
    where
        W: Waitable<'a>,
        W::Output: 'a,
    {
        assert!(self.arms.len() < ARMS_MAX, "a select has at most {ARMS_MAX} arms");
        self.arms.push(Box::new(Acting { arm: waitable.arm(), act: Some(act) }));
        self
    }

    /// Runs the closure of an arm that is ready now; returns `None` if none is.
    pub fn try_now(mut self) -> Option<R> {
        operation("select: try_now");
        self.try_each()
    }

    /// Runs the closure of the first arm that is ready; waits as long as necessary.
    ///
    /// # Errors
    /// [`WaitError::Cancelled`] if the work request was cancelled; no arm has happened then.
    ///
    /// # Panics
    /// Panics if there are no arms, because it would wait forever.
    #[track_caller]
    pub fn wait(mut self) -> Result<R, WaitError> {
        assert!(!self.arms.is_empty(), "a select without arms would wait forever");
        self.wait_within(Patience::Cancellable)
    }

    /// Like [`wait`](Select::wait), for at most this time.
    ///
    /// # Errors
    /// [`WaitError`] if the time passed or the work request was cancelled.
    pub fn wait_for(mut self, time: Duration) -> Result<R, WaitError> {
        self.wait_within(Patience::For(time))
    }

    /// Like [`wait`](Select::wait), until this moment at the latest.
    ///
    /// # Errors
    /// [`WaitError`] if the moment came or the work request was cancelled.
    pub fn wait_until(mut self, deadline: Instant) -> Result<R, WaitError> {
        self.wait_within(Patience::Until(deadline))
    }

    fn try_each(&mut self) -> Option<R> {
        let count = self.arms.len();
        let first = if self.biased { 0 } else { random::below(count) };
        (0..count).find_map(|n| self.arms[(first + n) % count].try_now())
    }

    fn wait_within(&mut self, patience: Patience) -> Result<R, WaitError> {
        operation("select: wait");
        let patience = patience.fixed();
        let mut abandoned = 0;
        loop {
            if let Some(result) = self.try_each() {
                return Ok(result);
            }
            self.arms.iter().for_each(|arm| arm.about_to_wait());
            let ready_at = self.arms.iter().map(|arm| arm.deadline()).min().unwrap_or(NEVER);
            let Some((outcome, claimed)) = self.park(patience, ready_at) else {
                // A future that wakes itself in each poll must not keep others from running.
                abandoned += 1;
                if abandoned > 1 {
                    current::after_others(current::waiter(), patience.deadline())?;
                }
                continue;
            };
            abandoned = 0;
            if let Some(result) = claimed.and_then(|arm| self.arms[arm].granted()) {
                return Ok(result);
            }
            // An arm whose time has come is ready now. The others may be, too.
            if outcome != Outcome::TimedOut || clock::now() < ready_at {
                outcome.ok()?;
            }
        }
    }

    /// Waits for all arms at the same time, until `ready_at` at the latest. Returns the arm whose
    /// ticket was claimed, if one was. Returns `None` without a wait if one may be ready now.
    fn park(&self, patience: Patience, ready_at: u64) -> Option<(Outcome, Option<usize>)> {
        let ticket = current::begin(patience.what(WaitReason::SELECT, &self.arms));
        let mut queued = Queued { arms: &[], ticket, claimed: None };
        for (arm, n) in self.arms.iter().zip(0..=u8::MAX) {
            if !arm.queue(ticket.arm(n)) {
                if ticket.abandon() {
                    return None;
                }
                break;
            }
            queued.arms = &self.arms[..=usize::from(n)];
        }
        let outcome = current::park(ticket, patience.deadline().min(ready_at));
        queued.claimed = (outcome == Outcome::Granted).then(|| ticket.claimed_arm().into());
        Some((outcome, queued.claimed))
    }
}

impl<'a, R: 'a> Default for Select<'a, R> {
    fn default() -> Select<'a, R> {
        Select::new()
    }
}

impl<R> std::fmt::Debug for Select<'_, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Select").field("arms", &self.arms.len()).finish()
    }
}

/// The arms that got a ticket; it is removed from all of them when this is dropped.
struct Queued<'s, 'a, R> {
    arms: &'s [Box<dyn Source<R> + 'a>],
    ticket: Ticket,
    claimed: Option<usize>,
}

impl<R> Drop for Queued<'_, '_, R> {
    fn drop(&mut self) {
        for (arm, n) in self.arms.iter().zip(0..=u8::MAX) {
            arm.unqueue(self.ticket.arm(n), self.claimed == Some(n.into()));
        }
    }
}

/// An arm with its closure.
struct Acting<'a, T, F> {
    arm: Arm<'a, T>,
    act: Option<F>,
}

impl<T, F> Acting<'_, T, F> {
    fn act<R>(&mut self, taken: Option<T>) -> Option<R>
    where
        F: FnOnce(T) -> R,
    {
        let taken = taken?;
        Some(self.act.take().expect("a select ends with its first arm")(taken))
    }
}

impl<T, R, F: FnOnce(T) -> R> Source<R> for Acting<'_, T, F> {
    fn try_now(&mut self) -> Option<R> {
        let taken = self.arm.source_mut().try_now();
        self.act(taken)
    }

    fn deadline(&self) -> u64 {
        self.arm.source().deadline()
    }

    fn about_to_wait(&self) {
        self.arm.source().about_to_wait();
    }

    fn queue(&self, ticket: Ticket) -> bool {
        self.arm.source().queue(ticket)
    }

    fn unqueue(&self, ticket: Ticket, granted: bool) {
        self.arm.source().unqueue(ticket, granted);
    }

    fn granted(&mut self) -> Option<R> {
        let taken = self.arm.source_mut().granted();
        self.act(taken)
    }
}

/// Waits for a moment.
struct AtTime(u64);

impl Source<()> for AtTime {
    fn try_now(&mut self) -> Option<()> {
        (clock::now() >= self.0).then_some(())
    }

    fn deadline(&self) -> u64 {
        self.0
    }

    /// The select itself parks until the deadline.
    fn queue(&self, _: Ticket) -> bool {
        true
    }

    fn unqueue(&self, _: Ticket, _: bool) {}

    fn granted(&mut self) -> Option<()> {
        None
    }
}

impl<'a> Waitable<'a> for Duration {
    type Output = ();

    /// The time begins now. [`Duration::MAX`] is never over.
    fn arm(self) -> Arm<'a, ()> {
        Arm::new(AtTime(clock::after(self)))
    }
}

impl<'a> Waitable<'a> for Instant {
    type Output = ();

    fn arm(self) -> Arm<'a, ()> {
        self.saturating_duration_since(Instant::now()).arm()
    }
}

/// A limit that the program may not have: `None` is never over.
impl<'a> Waitable<'a> for Option<Instant> {
    type Output = ();

    fn arm(self) -> Arm<'a, ()> {
        self.map_or(Duration::MAX.arm(), Instant::arm)
    }
}

#[cfg(test)]
mod tests;
