//! Siblings: requests of the same code that one worker, their *parent*, has queued, and for which
//! it waits one after the other.
//!
//! A program often starts many small tasks, and then waits for each in the order in which it
//! started them. Without this file each task would cost two switches: from the parent to the worker
//! of the task, and back. The rule (rule 4 of lists/fairness): if the parent will probably wait for
//! its requests in order, and the one that it has waited for has ended quickly, then its worker
//! goes on with the next sibling, and with the one after that, for at most [`TICKS`]. Then the
//! parent runs, and finds that the tasks for which it is about to wait have ended.
//!
//! ```text
//!   the parent waits for     a      b                      a
//!   the worker carries out   a      b c d e ...            a b c d e ...
//!   the parent runs            ---              ---                      ---
//!                            the first parent              later ones
//! ```
//!
//! Two things say that a parent will wait for its requests in order. One is that it has waited for
//! two that were queued one right after the other. The other is that an earlier parent has waited
//! for requests of the same code like that, that none has waited for such requests in another order
//! since, and that this one has not waited itself. A request that has waited may be a
//! parent, and a worker that went on with the next one would begin a second branch of a tree
//! before the first has ended. (It has not waited if its last turn began when it did. In a
//! simulated world the clock may stand still meanwhile.)
//!
//! If the parent does not wait for the next sibling, it runs later than it could: by what quick
//! siblings take in [`TICKS`], and by the rest of the last one.
//!
//! This file keeps what the rule depends on. It does not know what a request is: positions say
//! which request was queued after which, and numbers which of them run the same code.

use super::{NO_WORKER, WorkerId};

/// For how long a worker goes on with siblings after their parent could run, and for how long the
/// request before them may have run, in ticks; about 20 microseconds at 3 GHz, in which a thread
/// begins to run. The last sibling may take longer.
const TICKS: u64 = 65_536;

/// The siblings that a worker of this scheduler carries out now, or has carried out last.
pub(crate) struct Siblings {
    /// The worker that waits, or has waited, for them in order.
    parent: WorkerId,
    /// The number of the request that it carries out.
    request: u64,
    /// The position of the last request that the parent has waited for, or of the last sibling
    /// that a worker has begun after it.
    last: u64,
    /// When the parent's wait ended, in ticks; 0 if no sibling went before the parent.
    since: u64,
    /// The code of the last requests that a parent has waited for in order; 0 if there are none, or
    /// if a parent has waited for requests of that code in another order since.
    in_order: usize,
    /// The code of the siblings.
    code: usize,
}

/// A request that has ended, and may have siblings.
#[derive(Clone, Copy)]
pub(crate) struct EndedSibling {
    /// Its position in the lane in which it was last. For `Siblings::joined`, 0 if that is not the
    /// own lane.
    pub position: u64,
    /// A number that stands for the code that it has run; not 0.
    pub code: usize,
    /// When it began and when it ended, in ticks.
    pub began: u64,
    pub now: u64,
}

impl Siblings {
    pub const fn new() -> Siblings {
        Siblings { parent: NO_WORKER, request: 0, last: 0, since: 0, in_order: 0, code: 0 }
    }

    /// Notes that a request has ended for which a parent has waited: a worker, and the number of
    /// the request that it carries out. `turn` is when the last turn before the end began, in
    /// ticks. Returns whether the next sibling may follow: the parent will probably wait for its
    /// requests in order, and that turn was quick.
    #[inline]
    pub fn joined(&mut self, parent: (WorkerId, u64), ended: &EndedSibling, turn: u64) -> bool {
        let EndedSibling { position, code, began, now } = *ended;
        let in_order = if parent == (self.parent, self.request) {
            let follows = position != 0 && position.wrapping_sub(self.last) <= 1;
            if follows {
                self.in_order = code;
            } else if position != 0 && position < self.last && self.in_order == code {
                self.in_order = 0;
            }
            follows
        } else {
            position != 0 && code == self.in_order && began == turn
        };
        (self.parent, self.request) = parent;
        (self.last, self.since, self.code) = (position, 0, code);
        in_order && now.saturating_sub(turn) < TICKS
    }

    /// Returns the code of the siblings.
    #[inline]
    pub fn code(&self) -> usize {
        self.code
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

    /// A request at this position that ran `code` from the time 100 to 200, in one turn.
    fn ended(position: u64, code: usize) -> EndedSibling {
        EndedSibling { position, code, began: 100, now: 200 }
    }

    #[test]
    fn siblings_follow_one_another_once_two_were_joined_in_order() {
        let mut row = Siblings::new();
        let joined = |row: &mut Siblings, parent, position| {
            row.in_order = 0;
            row.joined((parent, 1), &ended(position, 1), 100)
        };
        // The first, then the second, then two that follow it.
        assert!(!joined(&mut row, 7, 10) && row.row_of(10).is_none());
        assert!(joined(&mut row, 7, 11) && row.row_of(11).is_none());
        row.row_begins(200);
        assert_eq!(row.row_of(11), Some((7, 200)));
        row.next_begins();
        row.next_begins();
        assert_eq!((row.row_of(13), row.row_of(12)), (Some((7, 200)), None));
        assert!(row.has_time(200 + TICKS - 1) && !row.has_time(200 + TICKS));
        // The parent runs, and waits for the next.
        assert!(joined(&mut row, 7, 14) && row.row_of(14).is_none());
        // One that a worker has begun already, and that had to wait itself.
        row.row_begins(0);
        row.next_begins();
        assert!(row.row_of(15).is_some() && joined(&mut row, 7, 15));
        // Out of order, or another worker.
        for (parent, position) in [(7, 17), (7, 16), (8, 17), (8, 16), (7, 17)] {
            assert!(!joined(&mut row, parent, position), "{parent}, {position}");
        }
    }

    #[test]
    fn no_sibling_follows_a_request_that_was_not_quick() {
        let mut row = Siblings::new();
        let late = |position| EndedSibling { now: 100 + TICKS, ..ended(position, 1) };
        assert!(!row.joined((7, 1), &late(10), 100) && !row.joined((7, 1), &late(11), 100));
        assert!(row.joined((7, 1), &late(12), 101));
    }

    #[test]
    fn the_siblings_of_a_later_parent_follow_its_first_one_if_they_run_the_same_code() {
        let mut row = Siblings::new();
        row.joined((7, 1), &ended(10, 1), 100);
        assert!(!row.joined((8, 1), &ended(20, 1), 100), "no parent has waited in order yet");
        row.joined((8, 1), &ended(21, 1), 100);
        assert!(row.joined((9, 1), &ended(30, 1), 100));
        assert!(!row.joined((8, 1), &ended(40, 2), 100), "it is other code");
        assert!(row.joined((9, 2), &ended(50, 1), 100), "the worker carries out another request");
        assert!(!row.joined((8, 1), &ended(60, 1), 150), "it has waited itself");
        // A parent passes over some of its requests, or has queued others in between.
        assert!(!row.joined((8, 1), &ended(70, 1), 100) && row.joined((9, 3), &ended(80, 1), 100));
        // It waits for the later one first.
        assert!(!row.joined((9, 3), &ended(75, 1), 100) && !row.joined((8, 2), &ended(90, 1), 100));
    }

    #[test]
    fn a_request_of_another_lane_has_no_siblings_and_teaches_no_order() {
        let mut row = Siblings::new();
        // In another lane, and so without a position.
        for _ in 0..3 {
            assert!(!row.joined((7, 1), &ended(0, 1), 100));
        }
        row.joined((8, 1), &ended(10, 1), 100);
        assert!(row.joined((8, 1), &ended(11, 1), 100));
        assert!(row.joined((9, 1), &ended(20, 1), 100) && row.code() == 1);
        assert!(!row.joined((8, 2), &ended(0, 1), 100));
    }
}
