//! Siblings: requests that one worker, their *parent*, has queued, and for which it waits one after
//! the other.
//!
//! A program often starts many small tasks, and then waits for each in the order in which it
//! started them. Without this file each task would cost two switches: from the parent to the worker
//! of the task, and back. The rule (rule 4 of lists/fairness): if the parent has waited for two
//! requests that were queued one right after the other, and the second has ended quickly, then its
//! worker goes on with the next sibling, and with the one after that, for at most [`TICKS`]. Then
//! the parent runs, and finds that the tasks for which it is about to wait have ended.
//!
//! ```text
//!   the parent waits for     a      b
//!   the worker carries out   a      b c d e ...
//!   the parent runs            ---              ---
//! ```
//!
//! This file keeps what the rule depends on. It does not know what a request is: positions say
//! which request was queued after which.

use super::{NO_WORKER, WorkerId};

/// For how long a worker goes on with siblings after their parent could run, and for how long the
/// request before them may have run, in ticks; about 20 microseconds at 3 GHz, in which a thread
/// begins to run. The last sibling may take longer.
const TICKS: u64 = 65_536;

/// The siblings that a worker of this scheduler carries out now, or has carried out last.
pub(crate) struct Siblings {
    /// The worker that waits, or has waited, for them in order.
    parent: WorkerId,
    /// The position of the last request that the parent has waited for, or of the last sibling
    /// that a worker has begun after it.
    last: u64,
    /// When the parent's wait ended, in ticks; 0 if no sibling went before the parent.
    since: u64,
}

impl Siblings {
    pub const fn new() -> Siblings {
        Siblings { parent: NO_WORKER, last: 0, since: 0 }
    }

    /// Notes that the request at this position has ended, and that this worker has waited for it.
    /// Returns whether it has waited for the request before that one, too.
    #[inline]
    pub fn joined(&mut self, parent: WorkerId, position: u64) -> bool {
        let in_order = self.parent == parent && position.wrapping_sub(self.last) <= 1;
        *self = Siblings { parent, last: position, since: 0 };
        in_order
    }

    /// Returns whether a request that began and ended at these times, in ticks, was so quick that
    /// its sibling may follow.
    #[inline]
    pub fn is_quick(began: u64, now: u64) -> bool {
        now.saturating_sub(began) < TICKS
    }

    /// Notes that siblings go before the parent, whose wait has ended at the time `now`, in ticks.
    #[inline]
    pub fn row_begins(&mut self, now: u64) {
        self.since = now.max(1);
    }

    /// Returns the parent and when its wait ended, if the request at this position is the last that
    /// began of a row of siblings that went before their parent.
    #[inline]
    pub fn row_of(&self, position: u64) -> Option<(WorkerId, u64)> {
        (position == self.last && self.since > 0).then_some((self.parent, self.since))
    }

    /// Returns whether a worker may go on with the next sibling at the time `now`, in ticks.
    #[inline]
    pub fn has_time(&self, now: u64) -> bool {
        now.saturating_sub(self.since) < TICKS
    }

    /// Notes that a worker goes on with the next sibling.
    #[inline]
    pub fn next_begins(&mut self) {
        self.last += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_follow_one_another_once_two_were_joined_in_order() {
        let mut row = Siblings::new();
        // The first, then the second, then two that follow it.
        assert!(!row.joined(7, 10) && row.row_of(10).is_none());
        assert!(row.joined(7, 11) && row.row_of(11).is_none());
        row.row_begins(200);
        assert_eq!(row.row_of(11), Some((7, 200)));
        row.next_begins();
        row.next_begins();
        assert_eq!((row.row_of(13), row.row_of(12)), (Some((7, 200)), None));
        assert!(row.has_time(200 + TICKS - 1) && !row.has_time(200 + TICKS));
        // The parent runs, and waits for the next.
        assert!(row.joined(7, 14) && row.row_of(14).is_none());
        // One that a worker has begun already, and that had to wait itself.
        row.row_begins(0);
        row.next_begins();
        assert!(row.row_of(15).is_some() && row.joined(7, 15));
        // Out of order, or another worker.
        for (parent, position) in [(7, 17), (7, 16), (8, 17), (8, 16), (7, 17)] {
            assert!(!row.joined(parent, position), "{parent}, {position}");
        }
        assert!(Siblings::is_quick(5, 4 + TICKS) && !Siblings::is_quick(5, 5 + TICKS));
    }
}
