//! The barrier: a given number of callers wait for each other, then all continue.
//!
//! The last caller to arrive is the leader; it releases the others and does not wait. The barrier
//! can then be used again. A waiter whose deadline passes, or whose request is cancelled, leaves
//! and no longer counts. If the leader comes before it has left, its wait succeeds, because the
//! leader has counted it.

use std::fmt;
use std::time::{Duration, Instant};

use super::patience::Patience;
use super::queue::{Batch, ShortLock, WaitQueue};
use crate::current;
use crate::os::threads::operation;
use crate::record::reason::WaitReason;
use crate::wait::Outcome;
use crate::wait::error::WaitError;

/// A point where a fixed number of workers or threads wait for each other.
///
/// ```
/// let barrier = ums::sync::Barrier::new(3);
/// let leaders = std::thread::scope(|s| {
///     let all: Vec<_> = (0..3).map(|_| s.spawn(|| barrier.wait().unwrap().is_leader())).collect();
///     all.into_iter().map(|t| t.join().unwrap()).filter(|leads| *leads).count()
/// });
/// assert_eq!(leaders, 1);
/// ```
pub struct Barrier {
    waiters: usize,
    round: ShortLock<Round>,
}

/// The callers that have arrived in this round.
struct Round {
    came: usize,
    queue: WaitQueue,
}

/// What [`Barrier::wait`] returns.
#[derive(Debug)]
pub struct BarrierWaitResult(bool);

impl BarrierWaitResult {
    /// Returns whether the caller arrived last; true for exactly one caller of each round.
    pub fn is_leader(&self) -> bool {
        self.0
    }
}

impl Barrier {
    /// Creates a barrier for this many callers; 0 counts as 1, as in std.
    pub const fn new(waiters: usize) -> Barrier {
        Barrier { waiters, round: ShortLock::biased(Round { came: 0, queue: WaitQueue::new() }) }
    }

    /// Waits until all callers have arrived.
    ///
    /// # Errors
    /// [`WaitError::Cancelled`] if the work request was cancelled; the caller no longer counts.
    pub fn wait(&self) -> Result<BarrierWaitResult, WaitError> {
        self.wait_within(Patience::Cancellable)
    }

    /// Like [`wait`](Barrier::wait), for at most this time.
    ///
    /// # Errors
    /// [`WaitError`] if the time passed or the work request was cancelled; the caller no longer
    /// counts.
    pub fn wait_for(&self, time: Duration) -> Result<BarrierWaitResult, WaitError> {
        self.wait_within(Patience::For(time))
    }

    /// Like [`wait`](Barrier::wait), until this moment at the latest.
    ///
    /// # Errors
    /// [`WaitError`] if the moment came or the work request was cancelled; the caller no longer
    /// counts.
    pub fn wait_until(&self, deadline: Instant) -> Result<BarrierWaitResult, WaitError> {
        self.wait_within(Patience::Until(deadline))
    }

    fn wait_within(&self, patience: Patience) -> Result<BarrierWaitResult, WaitError> {
        operation("barrier: wait");
        let settled = current::before_short_lock();
        let mut round = self.round.lock();
        drop(settled);
        if round.came + 1 >= self.waiters {
            round.came = 0;
            let batch: Batch = round.queue.grant_all();
            drop(round);
            batch.ready();
            return Ok(BarrierWaitResult(true));
        }
        let ticket = current::begin(patience.what(WaitReason::BARRIER, self));
        round.came += 1;
        round.queue.push(ticket, ());
        drop(round);
        let outcome = current::park(ticket, patience.deadline());
        if outcome != Outcome::Granted {
            let mut round = self.round.lock();
            if round.queue.remove(ticket) {
                round.came -= 1;
                return outcome.ok().map(|()| BarrierWaitResult(false));
            }
        }
        Ok(BarrierWaitResult(false))
    }

    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.round.lock().queue.len()
    }
}

impl fmt::Debug for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Barrier").field("waiters", &self.waiters).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::testing::{SHORT, until};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn all_callers_arrive_before_any_continues_and_one_leads_each_round() {
        const ROUNDS: usize = 500;
        let (barrier, came, leaders) = (Barrier::new(3), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    for round in 1..=ROUNDS {
                        came.fetch_add(1, Ordering::SeqCst);
                        if barrier.wait().unwrap().is_leader() {
                            leaders.fetch_add(1, Ordering::SeqCst);
                        }
                        assert!(came.load(Ordering::SeqCst) >= 3 * round);
                    }
                });
            }
        });
        assert_eq!(leaders.into_inner(), ROUNDS);
        assert_eq!(barrier.waiting(), 0);
    }

    #[test]
    fn a_waiter_that_leaves_does_not_count() {
        let barrier = Barrier::new(2);
        assert_eq!(barrier.wait_for(SHORT).err(), Some(WaitError::TimedOut));
        assert_eq!(barrier.wait_until(Instant::now()).err(), Some(WaitError::TimedOut));
        std::thread::scope(|s| {
            let other = s.spawn(|| barrier.wait().unwrap().is_leader());
            until(|| barrier.waiting() == 1);
            assert!(barrier.wait().unwrap().is_leader());
            assert!(!other.join().unwrap());
        });
        assert!(Barrier::new(0).wait().unwrap().is_leader());
    }

    #[test]
    fn deadlines_race_with_the_last_comer_and_both_agree() {
        // Two waiters: one passes exactly when the other does.
        let barrier = Barrier::new(2);
        let passed = |time| barrier.wait_for(time).is_ok();
        for i in 0..1_000 {
            let (a, b) = std::thread::scope(|s| {
                let other = s.spawn(|| passed(std::time::Duration::from_nanos(i % 13 * 5_000)));
                let mine = passed(std::time::Duration::from_nanos(i % 7 * 9_000));
                (mine, other.join().unwrap())
            });
            assert_eq!(a, b);
        }
    }
}
