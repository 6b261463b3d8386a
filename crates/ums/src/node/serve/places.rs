//! The places of a server: how many connections are open, and which of them are new.
//!
//! A connection is *new* until its session says that the client has proved who it is; then it is
//! *established*. If there is a limit of new connections, each one beyond it takes the place of the
//! oldest, and the limit of all connections is one of established connections.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::os::lock::Lock;
use crate::scheduler::request::UserId;

/// The places of one server.
#[derive(Default)]
pub(super) struct Places {
    /// The number of connections that have a place. A place is claimed before anything else is done
    /// for a connection.
    open: AtomicUsize,
    /// The most connections that may be new at once; 0 means no limit.
    max_new: usize,
    /// The most connections that may be established. Without a limit of new ones it is a limit of
    /// all connections.
    limit: usize,
    /// The connections that are new. The numbers of users grow, so the first one is the oldest.
    /// Empty if there is no limit of new ones.
    new: Lock<BTreeSet<UserId>>,
    established: AtomicUsize,
}

/// Why a connection could not be established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// As many as may be are established.
    Full,
    /// The connection is being closed.
    Closing,
}

/// Adds one to the count of places that are taken, unless `limit` places are.
fn claim(taken: &AtomicUsize, limit: usize) -> bool {
    let claim = |taken| (taken < limit).then_some(taken + 1);
    taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim).is_ok()
}

impl Places {
    /// Makes places of which none is taken. A limit of 0 is none.
    pub fn new(max_connections: usize, max_new: usize) -> Places {
        let limit = if max_connections == 0 { usize::MAX } else { max_connections };
        Places { limit, max_new, ..Places::default() }
    }

    /// Returns how many connections have a place.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Claims a place for a connection; returns false if there is none.
    pub fn claim(&self) -> bool {
        claim(&self.open, if self.max_new == 0 { self.limit } else { usize::MAX })
    }

    /// Gives back the place of a connection that was never added.
    pub fn give_back(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Adds a new connection, which has a place. Returns the oldest new one if they are too many;
    /// it must close.
    pub fn add(&self, user: UserId) -> Option<UserId> {
        if self.max_new == 0 {
            return None;
        }
        let mut new = self.new.lock();
        new.insert(user);
        if new.len() > self.max_new { new.pop_first() } else { None }
    }

    /// Makes a new connection an established one, unless there are too many of them, or it is being
    /// closed.
    pub fn establish(&self, user: UserId) -> Result<(), NoPlace> {
        if self.max_new == 0 {
            return Ok(());
        }
        let mut new = self.new.lock();
        if !new.contains(&user) {
            return Err(NoPlace::Closing);
        }
        if !claim(&self.established, self.limit) {
            // It stays new.
            return Err(NoPlace::Full);
        }
        new.remove(&user);
        Ok(())
    }

    /// Gives back the place of a connection that has closed.
    pub fn forget(&self, user: UserId, was_established: bool) {
        if self.max_new > 0 && was_established {
            self.established.fetch_sub(1, Ordering::Relaxed);
        } else if self.max_new > 0 {
            self.new.lock().remove(&user);
        }
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_connections_make_room_and_established_ones_do_not() {
        let places = Places::new(2, 2);
        assert!((0..5).all(|_| places.claim()));
        assert_eq!((places.add(1), places.add(2), places.add(3)), (None, None, Some(1)));
        assert_eq!(places.establish(1), Err(NoPlace::Closing));
        assert_eq!((places.establish(2), places.establish(3)), (Ok(()), Ok(())));
        assert_eq!((places.add(4), places.add(5)), (None, None));
        assert_eq!(places.establish(4), Err(NoPlace::Full), "two are established");
        places.forget(4, false);
        places.forget(2, true);
        assert_eq!(places.establish(5), Ok(()));
        (1..=5)
            .filter(|user| ![2, 4].contains(user))
            .for_each(|user| places.forget(user, user != 1));
        assert_eq!((places.open(), places.established.load(Ordering::Relaxed)), (0, 0));
        assert!(places.new.lock().is_empty());
    }

    #[test]
    fn without_a_limit_of_new_connections_all_are_limited() {
        let places = Places::new(1, 0);
        assert!(places.claim() && !places.claim());
        assert!(places.add(1).is_none() && places.establish(1).is_ok());
        places.forget(1, true);
        assert!(places.claim());
        assert!((0..9).all(|_| Places::new(0, 0).claim()));
    }
}
