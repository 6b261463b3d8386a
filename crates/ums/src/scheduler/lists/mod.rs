//! The lists of a scheduler. Lists *return* workers and tickets; they never call the scheduler
//! (rule 15 of ARCHITECTURE.md).
//!
//! The worker list, the runnable list and the waiter list contain workers. A worker is on at most
//! one of them (One List), so it has one pair of links, and [`ListEnds`] is just the two ends.
//! `Workers::shift` and `Workers::wake` move workers between the lists. The timer list and the I/O
//! list have files of their own.

pub(crate) mod fairness;
pub(crate) mod io_board;
pub(crate) mod io_list;
pub(crate) mod roster;
pub(crate) mod siblings;
pub(crate) mod timer_list;
pub(crate) mod worker_list;

/// A worker's number on its scheduler. Numbers are reused.
pub(crate) type WorkerId = u32;

/// The end of a list.
pub(crate) const NO_WORKER: WorkerId = u32::MAX;

/// The two ends of a list of workers, and its length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListEnds {
    pub head: WorkerId,
    pub tail: WorkerId,
    pub len: u32,
}

impl ListEnds {
    /// Returns whether it is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == NO_WORKER
    }

    /// Makes an empty list.
    pub const fn new() -> ListEnds {
        ListEnds { head: NO_WORKER, tail: NO_WORKER, len: 0 }
    }
}
