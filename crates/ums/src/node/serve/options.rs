//! The options of a server, among them its defences against peers that log in late or never, do not
//! read, make it keep much, or connect too often.

use std::time::Duration;

use crate::node::HiddenScheduler;

/// The options of a server. By default it runs on the visible schedulers, and its one limit is
/// [`write_limit`](ServeOptions::write_limit).
///
/// Each limit has a counter in [`ServerCounters`](super::ServerCounters). `docs/security.md` has a
/// table of what the peer sees.
///
/// ```
/// use std::time::Duration;
/// use ums::serve::ServeOptions;
///
/// let options = ServeOptions {
///     // Peers log in within ten seconds; at most 100 may be about to.
///     login_limit: Some(Duration::from_secs(10)),
///     max_new: 100,
///     max_connections: 1000,
///     // One address cannot take all of that.
///     max_per_address: 50,
///     max_rate_per_address: 20,
///     max_rate: 500,
///     // Peers that do not read leave four workers of a scheduler to others.
///     write_limit: Some(Duration::from_secs(30)),
///     reserved_workers: 4,
///     // What sessions keep with `Connection::keep_memory`.
///     max_memory: 256 << 20,
///     max_connection_memory: 8 << 20,
///     ..ServeOptions::default()
/// };
/// # let _ = options;
/// ```
#[derive(Clone)]
pub struct ServeOptions {
    /// The hidden scheduler that serves the connections; `None`, the default, means the visible
    /// ones.
    pub on: Option<HiddenScheduler>,

    /// The largest number of open connections. Further connections are closed as soon as they are
    /// accepted. 0, the default, means no limit.
    pub max_connections: usize,

    /// The largest number of open connections for which [`Connection::establish`] has not been
    /// called, for protocols in which clients log in. The oldest of them makes room for a new one,
    /// so silent connections keep out no other. With this limit, `max_connections` counts only
    /// established connections, and `establish` enforces it. 0, the default, means no limit.
    ///
    /// The oldest one closes when its request ends. So sessions that wait for their client inside a
    /// request before `establish` can exceed this number; they need
    /// [`login_limit`](ServeOptions::login_limit) or [`Connection::timeout`].
    ///
    /// [`Connection::establish`]: super::Connection::establish
    /// [`Connection::timeout`]: super::Connection::timeout
    pub max_new: usize,

    /// The largest number of open connections from one address: from one IPv4 address, or from one
    /// IPv6 network of 64 bits. Further ones are closed as soon as they are accepted. A Unix-domain
    /// socket has no address, and is not limited. 0, the default, means no limit.
    pub max_per_address: usize,

    /// How many connections in a second one address may make, on average; after a pause, as many at
    /// once. Further ones are closed as soon as they are accepted. Addresses are those of
    /// [`max_per_address`](ServeOptions::max_per_address). 0, the default, means no limit.
    pub max_rate_per_address: u32,

    /// How many connections in a second all peers together may make, also through a Unix-domain
    /// socket, on average; after a pause, as many at once. Further ones are closed as soon as they
    /// are accepted. 0, the default, means no limit.
    pub max_rate: u32,

    /// The longest time from the making of a connection's session until [`Connection::establish`]
    /// was called, in however many requests. Then reads of the session (`Read::read`) fail with
    /// `TimedOut`, and so do writes that must wait; calls that never wait do not. The session is
    /// called for the last time, with [`Why::Stopping`]. `None`, the default, means no limit; it
    /// suits protocols without a login, whose sessions never call `establish`.
    ///
    /// [`Connection::establish`]: super::Connection::establish
    /// [`Why::Stopping`]: super::Why::Stopping
    pub login_limit: Option<Duration>,

    /// The longest time for the peer to make room for one *part* of what a session writes. A part
    /// is 64 KiB of what is written in one request, or what the session says by
    /// [`Connection::begin_part`]. The time of a part begins when a write first has to wait; after
    /// it the write fails with `TimedOut`, and the connection is closed. So a peer that does not
    /// read, or reads a byte now and then, does not keep a worker. `None` means no limit; the
    /// default is 60 seconds.
    ///
    /// A write that waits goes on when the system reports room, and it does so late: with TCP when
    /// about a third of the send buffer is free, with a Unix-domain socket when three quarters are.
    /// If a send buffer has grown to 4 MB, the peer must have read some 1.3 MB by then. So a peer
    /// that reads steadily at less than about 20 KB/s may lose its connection with the default.
    ///
    /// [`Connection::begin_part`]: super::Connection::begin_part
    pub write_limit: Option<Duration>,

    /// How many of a scheduler's workers are kept for connections that do not wait for their peer
    /// to read: for new ones, cancellations, and the requests of others. The peers for which a
    /// worker waits in a write are at most as many as the scheduler with the fewest workers may
    /// have, less this number, and at least one; if there is one more, the one that has been waited
    /// for longest, and whose socket still has no room, loses its connection. All servers of a node
    /// count their peers together; those on a hidden scheduler count with that scheduler's servers.
    /// Each compares that count with its own number, so the server with the smallest reserve lets
    /// the most peers be waited for. What a session waits for when it reads is not counted.
    /// 0, the default, means no limit, and that this server's peers are not counted.
    ///
    /// A server of an administrator, on a hidden scheduler of its own, needs no reserve.
    pub reserved_workers: usize,

    /// How many bytes the connections of this server may keep together, as far as they are counted:
    /// by [`Connection::keep_memory`], which fails beyond the limit, and input that the library has
    /// received before its session reads it (at most 2 KiB for each connection, which are never
    /// refused). 0, the default, means no limit.
    ///
    /// [`Connection::keep_memory`]: super::Connection::keep_memory
    pub max_memory: usize,

    /// How many bytes one connection may keep, counted in the same way. 0, the default, means no
    /// limit.
    pub max_connection_memory: usize,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions {
            on: None,
            max_connections: 0,
            max_new: 0,
            max_per_address: 0,
            max_rate_per_address: 0,
            max_rate: 0,
            login_limit: None,
            write_limit: Some(Duration::from_secs(60)),
            reserved_workers: 0,
            max_memory: 0,
            max_connection_memory: 0,
        }
    }
}
