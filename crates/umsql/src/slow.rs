//! Clients that do not read their answers: for each a worker waits, with SQLite's frames on its
//! stack. So their number is bounded, and the other workers stay for logins, cancellations and the
//! requests of clients that read.
//!
//! If one more client stops reading than may, the one that has been waited for longest loses its
//! connection. A client that reads, if slowly, is waited for anew for each part of its answer, so
//! it is seldom the first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ums::lock::Lock;

use crate::host::Peer;

/// The clients that workers wait for.
#[derive(Debug)]
pub(crate) struct SlowReaders {
    /// The most that there may be.
    max: AtomicUsize,
    waiting: Lock<Queue>,
}

/// The clients, the longest wait first, each with the number of its wait.
#[derive(Debug, Default)]
struct Queue {
    next: u64,
    clients: VecDeque<(u64, Arc<dyn Peer>)>,
}

impl Default for SlowReaders {
    fn default() -> SlowReaders {
        SlowReaders { max: AtomicUsize::new(usize::MAX), waiting: Lock::default() }
    }
}

impl SlowReaders {
    /// Limits how many there may be, for a server of which each scheduler has `workers` workers: an
    /// eighth of them, and two if it has as many, never wait for a client to read.
    pub(crate) fn leave_workers(&self, workers: usize) {
        let reserve = (workers / 8).max(2);
        self.max.store(workers.saturating_sub(reserve).max(1), Ordering::Relaxed);
    }

    /// Records that a worker waits for this client to read, until the result is dropped. May end
    /// the connection of the client that has been waited for longest.
    ///
    /// That is decided while the lock is held, which the end of a wait takes, too: so the client is
    /// still waited for. If it has just read, its worker is about to go on, and the next client is
    /// looked at.
    pub(crate) fn wait_for(&self, client: Arc<dyn Peer>) -> Waiting<'_> {
        let mut waiting = self.waiting.lock();
        let Queue { next, clients } = &mut *waiting;
        if clients.len() >= self.max.load(Ordering::Relaxed)
            && let Some(first) = clients.iter().position(|(_, client)| !client.has_room())
            && let Some((_, slow)) = clients.remove(first)
        {
            slow.disconnect();
        }
        *next += 1;
        clients.push_back((*next, client));
        Waiting { readers: self, number: *next }
    }
}

/// A wait for a client to read.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    readers: &'a SlowReaders,
    number: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiting = self.readers.waiting.lock();
        if let Ok(at) = waiting.clients.binary_search_by_key(&self.number, |(number, _)| *number) {
            waiting.clients.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[derive(Debug, Default)]
    struct Client {
        has_room: AtomicBool,
        is_disconnected: AtomicBool,
    }

    impl Peer for Client {
        fn is_busy(&self) -> bool {
            true
        }

        fn has_gone(&self) -> bool {
            false
        }

        fn has_room(&self) -> bool {
            self.has_room.load(Ordering::Relaxed)
        }

        fn disconnect(&self) {
            self.is_disconnected.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn workers_stay_and_the_longest_wait_ends_first() {
        let readers = SlowReaders::default();
        for (workers, max) in [(1, 1), (2, 1), (8, 6), (256, 224)] {
            readers.leave_workers(workers);
            assert_eq!(readers.max.load(Ordering::Relaxed), max);
        }
        readers.leave_workers(4);
        let clients: [Arc<Client>; 4] = Default::default();
        let ended = || clients.each_ref().map(|c| c.is_disconnected.load(Ordering::Relaxed));
        let first = readers.wait_for(clients[0].clone());
        let second = readers.wait_for(clients[1].clone());
        assert_eq!(ended(), [false; 4]);
        let third = readers.wait_for(clients[2].clone());
        assert_eq!(ended(), [true, false, false, false]);
        drop((first, second));
        let _fourth = readers.wait_for(clients[3].clone());
        assert_eq!(ended(), [true, false, false, false], "the first two have gone already");
        drop(third);
    }

    #[test]
    fn a_client_that_has_just_read_keeps_its_connection() {
        let readers = SlowReaders::default();
        readers.leave_workers(4);
        let clients: [Arc<Client>; 4] = Default::default();
        let ended = || clients.each_ref().map(|c| c.is_disconnected.load(Ordering::Relaxed));
        let _waits = clients.each_ref().map(|client| {
            if Arc::ptr_eq(client, &clients[2]) {
                // Its worker has not continued yet.
                clients[0].has_room.store(true, Ordering::Relaxed);
            }
            readers.wait_for(client.clone())
        });
        assert_eq!(ended(), [false, true, true, false]);
    }
}
