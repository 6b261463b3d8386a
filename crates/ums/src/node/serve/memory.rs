//! The memory that the connections of a server keep, as far as it is counted: what their sessions
//! say ([`Connection::keep_memory`](super::Connection::keep_memory)), and the input that the
//! library has received ahead.
//!
//! The sum of a server and the sum of each connection have limits. Nothing is taken or freed here:
//! these are numbers. What is received ahead is counted and never refused, because it is at most
//! 2 KiB for each connection.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// What all connections of one server keep.
pub(super) struct ServerMemory {
    limit: usize,
    connection_limit: usize,
    taken: AtomicUsize,
    refused: AtomicU64,
}

impl ServerMemory {
    /// Makes the sum of a server, with the limits of it and of each connection. 0 is no limit.
    pub fn new(limit: usize, connection_limit: usize) -> ServerMemory {
        let most = |limit| if limit == 0 { usize::MAX } else { limit };
        ServerMemory {
            limit: most(limit),
            connection_limit: most(connection_limit),
            taken: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Returns whether there is a limit.
    pub fn is_limited(&self) -> bool {
        self.limit.min(self.connection_limit) < usize::MAX
    }

    /// Returns how many bytes are counted now.
    pub fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// Returns how often a limit has refused memory.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }
}

/// What one connection keeps.
pub(super) struct ClientMemory {
    server: Arc<ServerMemory>,
    taken: AtomicUsize,
}

impl ClientMemory {
    /// Makes the sum of a connection that keeps nothing.
    pub fn new(server: Arc<ServerMemory>) -> ClientMemory {
        ClientMemory { server, taken: AtomicUsize::new(0) }
    }

    /// Counts bytes that cannot be refused.
    pub fn count(&self, bytes: usize) {
        self.taken.fetch_add(bytes, Relaxed);
        self.server.taken.fetch_add(bytes, Relaxed);
    }

    /// Counts that bytes are not kept any more.
    pub fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Relaxed);
        self.server.taken.fetch_sub(bytes, Relaxed);
    }

    /// Counts bytes. If a limit forbids it, counts only the refusal.
    fn take(&self, bytes: usize) -> Result<(), MemoryRefused> {
        if !add(&self.taken, bytes, self.server.connection_limit) {
            self.server.refused.fetch_add(1, Relaxed);
            return Err(MemoryRefused::Connection);
        }
        if !add(&self.server.taken, bytes, self.server.limit) {
            self.taken.fetch_sub(bytes, Relaxed);
            self.server.refused.fetch_add(1, Relaxed);
            return Err(MemoryRefused::Server);
        }
        Ok(())
    }
}

/// Adds bytes to a sum, unless it would exceed its limit.
fn add(sum: &AtomicUsize, bytes: usize, limit: usize) -> bool {
    let more = |sum: usize| sum.checked_add(bytes).filter(|sum| *sum <= limit);
    sum.fetch_update(Relaxed, Relaxed, more).is_ok()
}

/// Bytes that a connection keeps, until this is dropped; from
/// [`Connection::keep_memory`](super::Connection::keep_memory). It may be kept in the session.
pub struct KeptMemory {
    of: Arc<ClientMemory>,
    bytes: usize,
}

impl KeptMemory {
    /// Counts these bytes for a connection.
    pub(super) fn take(of: Arc<ClientMemory>, bytes: usize) -> Result<KeptMemory, MemoryRefused> {
        of.take(bytes)?;
        Ok(KeptMemory { of, bytes })
    }

    /// Returns how many bytes are counted.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts another number of bytes, because a buffer has grown or become smaller.
    ///
    /// # Errors
    /// A limit forbids the larger number. The old number stays counted.
    pub fn resize(&mut self, bytes: usize) -> Result<(), MemoryRefused> {
        if bytes > self.bytes {
            // Bounded: by the comparison.
            self.of.take(bytes - self.bytes)?;
        } else {
            // Bounded: by the comparison.
            self.of.give_back(self.bytes - bytes);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for KeptMemory {
    fn drop(&mut self) {
        self.of.give_back(self.bytes);
    }
}

impl fmt::Debug for KeptMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptMemory").field("bytes", &self.bytes).finish()
    }
}

/// The limit that has refused memory to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryRefused {
    /// That of the connection ([`ServeOptions::max_connection_memory`]).
    ///
    /// [`ServeOptions::max_connection_memory`]: super::ServeOptions::max_connection_memory
    Connection,
    /// That of all connections of the server together ([`ServeOptions::max_memory`]).
    ///
    /// [`ServeOptions::max_memory`]: super::ServeOptions::max_memory
    Server,
}

impl fmt::Display for MemoryRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemoryRefused::Connection => "the connection may not keep so much memory",
            MemoryRefused::Server => "the server's connections may not keep so much memory",
        })
    }
}

impl std::error::Error for MemoryRefused {}

impl From<MemoryRefused> for io::Error {
    /// Makes an error of the kind `OutOfMemory`.
    fn from(error: MemoryRefused) -> io::Error {
        io::Error::new(io::ErrorKind::OutOfMemory, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_limits_hold_and_what_is_dropped_is_given_back() {
        let server = Arc::new(ServerMemory::new(100, 60));
        let [one, two] = [(); 2].map(|()| Arc::new(ClientMemory::new(server.clone())));
        let take = |of: &Arc<ClientMemory>, bytes| KeptMemory::take(of.clone(), bytes);
        let mut kept = take(&one, 60).unwrap();
        assert_eq!(take(&one, 1).unwrap_err(), MemoryRefused::Connection);
        assert_eq!(take(&two, 41).unwrap_err(), MemoryRefused::Server);
        assert_eq!(take(&two, usize::MAX).unwrap_err(), MemoryRefused::Connection);
        let other = take(&two, 40).unwrap();
        assert_eq!((server.taken(), server.refused()), (100, 3));
        kept.resize(10).unwrap();
        assert_eq!(kept.resize(61), Err(MemoryRefused::Connection));
        assert_eq!((kept.bytes(), server.taken()), (10, 50));
        // What was received ahead is counted, too, and is never refused.
        two.count(90);
        assert_eq!(take(&one, 1).unwrap_err(), MemoryRefused::Server);
        two.give_back(90);
        drop((kept, other));
        assert_eq!(server.taken(), 0);
        drop(take(&one, 60).unwrap());
    }

    #[test]
    fn zero_is_no_limit() {
        let server = Arc::new(ServerMemory::new(0, 0));
        assert!(!server.is_limited());
        assert!(ServerMemory::new(1, 0).is_limited() && ServerMemory::new(0, 1).is_limited());
        let kept = KeptMemory::take(Arc::new(ClientMemory::new(server.clone())), 1 << 40).unwrap();
        assert_eq!((kept.bytes(), server.taken()), (1 << 40, 1 << 40));
    }
}
