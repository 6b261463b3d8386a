//! What the connections of one server share, except the connections themselves: its limits, who has
//! a place, and what is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::arrivals::{Arrivals, TurnedAway};
use super::listener::Peer;
use super::logins::Logins;
use super::memory::ServerMemory;
use super::options::ServeOptions;
use super::places::Places;
use crate::node::slow::SlowReaders;
use crate::record::report::WarningKind;

/// The counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerCounters {
    /// How many connections are open now.
    pub open: usize,
    /// How many connections were accepted, and served.
    pub accepted: u64,
    /// How many connections were closed immediately because `max_connections` were open. With
    /// `max_new`: how often `establish` has returned false because so many are established.
    pub refused: u64,
    /// How many connections were closed immediately because `max_per_address` connections of their
    /// address were open.
    pub refused_per_address: u64,
    /// How many connections were closed immediately because of `max_rate_per_address`.
    pub refused_rate_per_address: u64,
    /// How many connections were closed immediately because of `max_rate`.
    pub refused_rate: u64,
    /// How many accepts failed, mostly because no descriptor was free.
    pub accept_errors: u64,
    /// How many connections made room for new ones, because of `max_new`.
    pub made_room: u64,
    /// How many connections were closed because they were not established within `login_limit`.
    pub login_limit_ended: u64,
    /// How many connections were closed because their peers did not read within `write_limit`.
    /// Those that were closing already, and whose peers did not take the last words, do not count.
    pub write_limit_ended: u64,
    /// How many connections were closed because too few workers were left (`reserved_workers`), and
    /// their peers had been waited for longest.
    pub slow_readers_ended: u64,
    /// How many bytes are counted for `max_memory`.
    pub kept_memory: usize,
    /// How often `max_memory` or `max_connection_memory` has refused memory to a session.
    pub memory_refused: u64,
    /// How many bytes of open connections were received and not yet read by their sessions. A
    /// connection that waits for input receives at most 2 KiB before its session is called.
    pub received_ahead: usize,
    /// How many sessions, or calls that make sessions, have panicked. Each panic closed only its
    /// own connection.
    pub panics: u64,
}

/// Counts of events that have no other place. They never decrease.
#[derive(Default)]
pub(super) struct Tallies {
    pub accepted: AtomicU64,
    pub refused: AtomicU64,
    pub refused_per_address: AtomicU64,
    pub refused_rate_per_address: AtomicU64,
    pub refused_rate: AtomicU64,
    pub accept_errors: AtomicU64,
    pub made_room: AtomicU64,
    pub write_limit_ended: AtomicU64,
    pub slow_readers_ended: AtomicU64,
    pub panics: AtomicU64,
}

/// Adds one to a tally.
pub(super) fn tally(of: &AtomicU64) {
    of.fetch_add(1, Ordering::Relaxed);
}

/// What the connections of one server share.
pub(super) struct ServerShared {
    pub places: Places,
    arrivals: Arrivals,
    pub logins: Logins,
    pub memory: Arc<ServerMemory>,
    pub write_limit: Option<Duration>,
    /// The peers for which workers wait, and how many they may be; `None` if they are not counted.
    pub slow: Option<(Arc<SlowReaders>, usize)>,
    pub tallies: Tallies,
    stopping: AtomicBool,
}

impl ServerShared {
    /// Makes what the connections of a server with these options share.
    pub fn new(options: &ServeOptions, slow: Option<(Arc<SlowReaders>, usize)>) -> ServerShared {
        let o = options;
        ServerShared {
            places: Places::new(o.max_connections, o.max_new),
            arrivals: Arrivals::new(o.max_per_address, o.max_rate_per_address, o.max_rate),
            logins: Logins::new(o.login_limit),
            memory: Arc::new(ServerMemory::new(o.max_memory, o.max_connection_memory)),
            write_limit: o.write_limit,
            slow,
            tallies: Tallies::default(),
            stopping: AtomicBool::new(false),
        }
    }

    /// Claims a place for a connection that has been accepted. If there is none, or it comes too
    /// often, that is counted, and false is returned.
    pub fn admit(&self, peer: Peer) -> bool {
        let t = &self.tallies;
        // The place comes first, so that a connection for which there is none takes no token of the
        // rates.
        if !self.places.claim() {
            tally(&t.refused);
            return false;
        }
        match self.arrivals.admit(peer) {
            Ok(()) => return true,
            Err(TurnedAway::AddressIsFull) => tally(&t.refused_per_address),
            Err(TurnedAway::AddressTooFast) => tally(&t.refused_rate_per_address),
            Err(TurnedAway::TooFast) => tally(&t.refused_rate),
        }
        self.places.give_back();
        false
    }

    /// Gives back the place of a connection that was admitted and never served.
    pub fn give_back(&self, peer: Peer) {
        self.arrivals.leave(peer);
        self.places.give_back();
    }

    /// Records that a connection of this peer has closed. Its place was given back before.
    pub fn left(&self, peer: Peer) {
        self.arrivals.leave(peer);
    }

    /// Records that the server is stopping.
    pub fn begin_to_stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    /// Returns whether the server is stopping.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Counts and reports the panic of a session.
    #[cold]
    pub fn report_panic(&self, peer: Peer, when: &str) {
        tally(&self.tallies.panics);
        let text = format_args!("a session of {peer} panicked when it {when}: it is closed");
        crate::current::warn(WarningKind::Panicked, text);
    }

    /// Returns the counters. `received_ahead` is what no session has read yet.
    pub fn counters(&self, received_ahead: usize) -> ServerCounters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (t, memory) = (&self.tallies, &self.memory);
        // Without a limit of memory it is not counted as it comes.
        let uncounted = if memory.is_limited() { 0 } else { received_ahead };
        ServerCounters {
            open: self.places.open(),
            accepted: read(&t.accepted),
            refused: read(&t.refused),
            refused_per_address: read(&t.refused_per_address),
            refused_rate_per_address: read(&t.refused_rate_per_address),
            refused_rate: read(&t.refused_rate),
            accept_errors: read(&t.accept_errors),
            made_room: read(&t.made_room),
            login_limit_ended: self.logins.ended(),
            write_limit_ended: read(&t.write_limit_ended),
            slow_readers_ended: read(&t.slow_readers_ended),
            kept_memory: memory.taken().saturating_add(uncounted),
            memory_refused: memory.refused(),
            received_ahead,
            panics: read(&t.panics),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_without_a_place_takes_no_token_and_one_that_is_too_fast_no_place() {
        let options = ServeOptions { max_connections: 1, max_rate: 2, ..Default::default() };
        let shared = ServerShared::new(&options, None);
        assert!(shared.admit(Peer::Unix));
        assert!((0..9).all(|_| !shared.admit(Peer::Unix)));
        shared.give_back(Peer::Unix);
        assert!(shared.admit(Peer::Unix), "one token is left");
        shared.give_back(Peer::Unix);
        assert!(!shared.admit(Peer::Unix));
        let counters = shared.counters(0);
        assert_eq!((counters.open, counters.refused, counters.refused_rate), (0, 9, 1));
    }
}
