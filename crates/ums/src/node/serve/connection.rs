//! What a session sees of its connection: reads and writes that park the worker, and what ends a
//! park of the session.

use std::io::{self, Read, Write};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Client, Why};
use crate::io::{wait_readable, wait_writable};
use crate::node::user::User;
use crate::os::clock::{self, NEVER};
use crate::record::reason::WaitReason;

use super::listener::Peer;

/// What a session sees of its connection: the socket, and its user.
pub struct Connection<'a> {
    client: &'a Arc<Client>,
    /// Longest that one read or write waits; None: without a limit.
    pub timeout: Option<Duration>,
}

impl<'a> Connection<'a> {
    pub(super) fn of(client: &'a Arc<Client>) -> Connection<'a> {
        Connection { client, timeout: None }
    }

    /// The user that this connection is.
    pub fn user(&self) -> &User {
        &self.client.user
    }

    /// The other side.
    pub fn peer(&self) -> Peer {
        self.client.peer
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there.
    pub fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        retry(|| self.client.stream.read(buf))
    }

    /// Writes what goes out without waiting.
    ///
    /// # Errors
    /// `WouldBlock` when nothing does.
    pub fn try_write(&mut self, buf: &[u8]) -> io::Result<usize> {
        retry(|| self.client.stream.write(buf))
    }

    /// What ends a [`Next::Park`](super::Next::Park) of this connection, from anywhere.
    pub fn resumer(&self) -> Resumer {
        Resumer { client: Arc::downgrade(self.client) }
    }

    fn deadline(&self) -> u64 {
        self.timeout.map_or(NEVER, clock::after)
    }
}

/// Ends a [`Next::Park`](super::Next::Park).
pub struct Resumer {
    client: Weak<Client>,
}

impl Resumer {
    /// The session gets a work request, with [`Why::Again`]; at once if it is parked, else as soon
    /// as it parks. It must be called once for each park, and never waits.
    pub fn resume(&self) {
        if let Some(client) = self.client.upgrade() {
            client.resume(Why::Again);
        }
    }
}

impl std::fmt::Debug for Resumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Resumer")
    }
}

impl Read for Connection<'_> {
    /// Reads, and parks the worker until there is something.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let deadline = self.deadline();
        loop {
            match self.try_read(buf) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            wait_readable(self.client.fd(), WaitReason::NETWORK_READ, deadline)?;
        }
    }
}

impl Write for Connection<'_> {
    /// Writes, and parks the worker while the other side does not take it.
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let deadline = self.deadline();
        loop {
            match self.try_write(buf) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
            wait_writable(self.client.fd(), WaitReason::NETWORK_WRITE, deadline)?;
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn retry(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
