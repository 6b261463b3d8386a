//! Clients that do not read their answers: for each a worker waits, with SQLite's frames on its
//! stack. So their number is bounded, and the other workers stay for logins, cancellations and the
//! requests of clients that read.
//!
//! If one more client stops reading than may, the one that has been waited for longest loses its
//! connection. A client that reads, if slowly, is waited for anew for each part of its answer, so
//! it is seldom the first.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use ums::lock::Lock;

use crate::host;

/// The clients that workers wait for.
#[derive(Debug)]
pub(crate) struct SlowReaders {
    /// The most that there may be.
    max: AtomicUsize,
    /// Their users, the longest wait first.
    users: Lock<VecDeque<u64>>,
}

impl Default for SlowReaders {
    fn default() -> SlowReaders {
        SlowReaders { max: AtomicUsize::new(usize::MAX), users: Lock::default() }
    }
}

impl SlowReaders {
    /// Limits how many there may be, for a server of which each scheduler has `workers` workers: an
    /// eighth of them, and two if it has as many, never wait for a client to read.
    pub(crate) fn leave_workers(&self, workers: usize) {
        let reserve = (workers / 8).max(2);
        self.max.store(workers.saturating_sub(reserve).max(1), Ordering::Relaxed);
    }

    /// Records that a worker waits for this user to read, until the result is dropped. May end the
    /// request, and so the connection, of the user that has been waited for longest.
    pub(crate) fn wait_for(&self, user: u64) -> Waiting<'_> {
        let mut users = self.users.lock();
        let first =
            if users.len() >= self.max.load(Ordering::Relaxed) { users.pop_front() } else { None };
        users.push_back(user);
        drop(users);
        if let Some(first) = first {
            host::cancel_request(first);
        }
        Waiting { readers: self, user }
    }
}

/// A wait for a client to read.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    readers: &'a SlowReaders,
    user: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut users = self.readers.users.lock();
        if let Some(at) = users.iter().position(|user| *user == self.user) {
            users.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_stay_and_the_longest_wait_ends_first() {
        let readers = SlowReaders::default();
        for (workers, max) in [(1, 1), (2, 1), (8, 6), (256, 224)] {
            readers.leave_workers(workers);
            assert_eq!(readers.max.load(Ordering::Relaxed), max);
        }
        readers.leave_workers(4);
        let first = readers.wait_for(1);
        let _second = readers.wait_for(2);
        let _third = readers.wait_for(3);
        assert_eq!(*readers.users.lock(), [2, 3]);
        drop(first);
        assert_eq!(*readers.users.lock(), [2, 3]);
    }
}
