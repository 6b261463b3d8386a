//! The roster: the waiters of a scheduler's workers, for views and monitors, which do not have the
//! baton. Its owner keeps it under a short lock.

use crate::scheduler::lists::WorkerId;
use crate::wait::Waiter;

/// The waiters of all workers of a scheduler. The numbers of workers are dense, so a place for each
/// number is the smallest table.
#[derive(Default)]
pub(crate) struct Roster(Vec<Option<&'static Waiter>>);

impl Roster {
    /// Notes a new worker.
    pub fn insert(&mut self, id: WorkerId, waiter: &'static Waiter) {
        let at = id as usize;
        if self.0.len() <= at {
            self.0.resize(at + 1, None);
        }
        self.0[at] = Some(waiter);
    }

    /// Strikes a worker out.
    pub fn remove(&mut self, id: WorkerId) {
        if let Some(place) = self.0.get_mut(id as usize) {
            *place = None;
        }
    }

    /// Returns the waiters of all workers, in the order of the workers' numbers.
    pub fn all(&self) -> impl Iterator<Item = &'static Waiter> + '_ {
        self.0.iter().flatten().copied()
    }
}
