//! A session's view of its connection, and handles to it for other threads.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Weak;
use std::time::Duration;

use super::line::{ClientLine, LineOwner, retry};
use super::listener::Peer;
use super::memory::{KeptMemory, MemoryRefused};
use crate::io::{send_bytes, send_now, wait_for};
use crate::node::user::User;
use crate::os::clock::{self, NEVER};
use crate::os::driver::LiveOp;
use crate::record::reason::WaitReason;
use crate::record::report::WarningKind;
use crate::wait::error::WaitError;

/// A part of what a session writes, if the session does not say where its parts begin.
const PART: usize = 64 << 10;

/// A session's access to its connection: the socket and the user. Calls of [`Read`] and [`Write`]
/// that must wait suspend the worker.
pub struct Connection<'a> {
    line: &'a ClientLine,
    /// The longest time that one read or write waits; `None` means no limit.
    pub timeout: Option<Duration>,
    /// Whether a cancellation of the request ends a write that waits; true when a request begins.
    /// It always ends a write that begins to wait when the connection [is
    /// closing](Connection::is_closing).
    pub cancellable: bool,
    /// The longest time for the client to make room for one part of what the session writes; when a
    /// request begins, that of [`ServeOptions::write_limit`]. A part that has begun to wait keeps
    /// its limit.
    ///
    /// [`ServeOptions::write_limit`]: super::ServeOptions::write_limit
    pub write_limit: Option<Duration>,
    part: Part,
}

/// The part of the answer that is being written.
struct Part {
    /// When the client must have made room for it; `None` while it has not had to wait.
    deadline: Option<u64>,
    /// After so many bytes the next part begins by itself.
    left: usize,
}

impl Part {
    /// Begins a part that ends after this many bytes.
    fn of(bytes: usize) -> Part {
        Part { deadline: None, left: bytes }
    }

    fn wrote(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
        if self.left == 0 {
            *self = Part::of(PART);
        }
    }
}

impl<'a> Connection<'a> {
    pub(super) fn of(line: &'a ClientLine) -> Connection<'a> {
        Connection {
            line,
            timeout: None,
            cancellable: true,
            write_limit: line.shared.write_limit,
            part: Part::of(PART),
        }
    }

    /// Returns the connection's user.
    pub fn user(&self) -> &User {
        &self.line.user
    }

    /// Returns the address of the client.
    pub fn peer(&self) -> Peer {
        self.line.peer
    }

    /// Returns the user id of the process that made this connection, as the system reports it
    /// (`SO_PEERCRED`). Returns `None` if the listener is not a Unix-domain socket.
    ///
    /// # Errors
    /// The system's error.
    pub fn peer_uid(&self) -> io::Result<Option<u32>> {
        self.line.stream.peer_uid()
    }

    /// Reads available input without waiting; returns 0 if the peer has closed the connection.
    ///
    /// # Errors
    /// `WouldBlock` if there is no input; otherwise the system's error.
    pub fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.line.try_read(buf)
    }

    /// Writes as many bytes as is possible without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if nothing can be written; otherwise the system's error.
    pub fn try_write(&mut self, buf: &[u8]) -> io::Result<usize> {
        retry(|| self.line.stream.write(buf))
    }

    /// Writes all of `bytes`, as [`Write::write_all`] does. Returns how many are written: fewer
    /// than all only if the request was cancelled while the write waited, and
    /// [`cancellable`](Connection::cancellable) permits that.
    ///
    /// # Errors
    /// Those of a write.
    pub fn write_until_cancelled(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.send(bytes) {
            (written, Err(error)) if WaitError::of(&error) == Some(WaitError::Cancelled) => {
                Ok(written)
            }
            (written, outcome) => outcome.map(|()| written),
        }
    }

    /// Begins a part of an answer: what is written until the next one begins, however much it is,
    /// has one limit of time ([`ServeOptions::write_limit`]). A session that writes a long answer
    /// calls it for each piece that a slow client can receive in that time. If a session does not
    /// call it in a request, a part is 64 KiB.
    ///
    /// ```
    /// use std::io::Write;
    /// use ums::serve::Connection;
    ///
    /// fn answer(conn: &mut Connection<'_>, rows: &[Vec<u8>]) -> std::io::Result<()> {
    ///     for row in rows {
    ///         conn.begin_part();
    ///         conn.write_all(row)?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// [`ServeOptions::write_limit`]: super::ServeOptions::write_limit
    pub fn begin_part(&mut self) {
        self.part = Part::of(usize::MAX);
    }

    /// Counts that this connection keeps so many bytes, until the result is dropped: for a message
    /// that has arrived in part, an answer, or what belongs to the session. Call it before the
    /// memory is taken, and refuse the request if it fails.
    ///
    /// # Errors
    /// [`ServeOptions::max_connection_memory`] or [`ServeOptions::max_memory`] forbids it. The
    /// error can be converted into an [`io::Error`].
    ///
    /// ```
    /// use ums::serve::{Connection, KeptMemory};
    ///
    /// struct Message {
    ///     bytes: Vec<u8>,
    ///     _kept: KeptMemory,
    /// }
    ///
    /// fn begin(conn: &mut Connection<'_>, len: usize) -> std::io::Result<Message> {
    ///     let kept = conn.keep_memory(len)?;
    ///     Ok(Message { bytes: Vec::with_capacity(len), _kept: kept })
    /// }
    /// ```
    ///
    /// [`ServeOptions::max_connection_memory`]: super::ServeOptions::max_connection_memory
    /// [`ServeOptions::max_memory`]: super::ServeOptions::max_memory
    pub fn keep_memory(&self, bytes: usize) -> Result<KeptMemory, MemoryRefused> {
        KeptMemory::take(self.line.memory().clone(), bytes)
    }

    /// Returns a handle that ends a [`Next::Park`] of this connection, from any thread.
    ///
    /// [`Next::Park`]: super::Next::Park
    pub fn resumer(&self) -> Resumer {
        Resumer { owner: self.line.owner() }
    }

    /// Returns a handle that says from any thread whether the client is still there.
    pub fn outlook(&self) -> Outlook {
        Outlook { owner: self.line.owner() }
    }

    /// Records that the client has proved who it is. From now on it makes no room for new
    /// connections ([`ServeOptions::max_new`]), and [`ServeOptions::login_limit`] does not end it.
    /// Returns false if as many clients as the server permits have done that, or the connection is
    /// being closed; then the session should end.
    ///
    /// [`ServeOptions::max_new`]: super::ServeOptions::max_new
    /// [`ServeOptions::login_limit`]: super::ServeOptions::login_limit
    pub fn establish(&mut self) -> bool {
        self.line.establish()
    }

    /// Writes a message about this client to stderr, with its address, unless there was such a
    /// message in the same second.
    pub fn warn(&self, text: fmt::Arguments<'_>) {
        let text = format_args!("{}: {text}", self.line.peer);
        crate::current::warn(WarningKind::Client, text);
    }

    /// Returns whether this is the connection's last request: the server is stopping, the
    /// connection makes room for a new one, or the client has not logged in in time.
    pub fn is_closing(&self) -> bool {
        self.line.is_stopping()
    }

    fn fd(&self) -> std::os::fd::RawFd {
        self.line.stream.fd()
    }

    /// Returns when a wait that begins now must end, apart from the limit of a part.
    fn deadline(&self) -> u64 {
        self.timeout.map_or(NEVER, clock::after).min(self.line.login_deadline())
    }

    /// Writes as many bytes as there is room for. Returns `WouldBlock` if there is no room.
    fn send_at_once(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = send_now(LiveOp::send(self.fd(), bytes, 0));
        sent.inspect(|sent| self.part.wrote(*sent))
    }

    /// Writes all of `bytes`. Returns how many are written, and why not all, if so.
    fn send(&mut self, bytes: &[u8]) -> (usize, io::Result<()>) {
        match self.send_at_once(bytes) {
            Ok(all) if all == bytes.len() => (all, Ok(())),
            Ok(some) => self.send_rest(bytes, some),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.send_rest(bytes, 0),
            Err(error) => (0, Err(error)),
        }
    }

    /// Writes what is left after the first `written` bytes, for which the client has no room yet.
    #[cold]
    fn send_rest(&mut self, bytes: &[u8], mut written: usize) -> (usize, io::Result<()>) {
        let line = self.line;
        while written < bytes.len() {
            // A client that has read a part is waited for anew, so one that reads steadily is
            // seldom the one that has been waited for longest.
            let _wait = line.wait_for_reader();
            loop {
                match self.send_when_it_can(&bytes[written..]) {
                    Ok(more) => written += more,
                    Err(error) => return (written, Err(error)),
                }
                if written == bytes.len() || self.part.deadline.is_none() {
                    break;
                }
            }
        }
        (written, Ok(()))
    }

    /// Writes as many bytes as there is room for, and waits if there is none.
    fn send_when_it_can(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let begun = || self.write_limit.map_or(NEVER, clock::after);
        let part = *self.part.deadline.get_or_insert_with(begun);
        let deadline = self.deadline().min(part);
        // A server that stops waits for no client.
        let cancellable = self.cancellable || self.is_closing();
        let sent = send_bytes(LiveOp::send(self.fd(), bytes, 0), || deadline, cancellable);
        match &sent {
            Ok(sent) => self.part.wrote(*sent),
            Err(error) => {
                let is_late = WaitError::of(error) == Some(WaitError::TimedOut);
                if is_late && part < NEVER && clock::now() >= part {
                    self.line.end_slow_write();
                }
            }
        }
        sent
    }
}

/// The socket, in non-blocking mode, for code that does its own I/O from
/// [`Why::Connected`](super::Why::Connected) on. Once the session has been idle, a part of the
/// input may have been read from the socket already; [`try_read`](Connection::try_read) returns it.
impl AsFd for Connection<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.line.stream.as_fd()
    }
}

/// A handle that ends a [`Next::Park`](super::Next::Park).
pub struct Resumer {
    owner: Weak<dyn LineOwner>,
}

impl Resumer {
    /// Queues a work request with [`Why::Again`] for the session: immediately if the session is
    /// parked, otherwise as soon as it parks. Call it once for each park. It never waits.
    ///
    /// [`Why::Again`]: super::Why::Again
    pub fn resume(&self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.resume_again();
        }
    }
}

impl fmt::Debug for Resumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resumer")
    }
}

/// A handle that says from any thread whether a client is still there and reads.
#[derive(Clone)]
pub struct Outlook {
    owner: Weak<dyn LineOwner>,
}

impl Outlook {
    /// Returns whether a request of the connection is queued or running.
    pub fn is_busy(&self) -> bool {
        self.owner.upgrade().is_some_and(|owner| owner.line().user.is_busy())
    }

    /// Returns whether the client has closed the connection, or at least its sending side. Input
    /// that was not read yet makes no difference.
    pub fn client_has_gone(&self) -> bool {
        self.owner.upgrade().is_none_or(|owner| owner.line().stream.has_ended())
    }

    /// Returns whether a write would not wait now, because the client has read enough.
    pub fn has_room(&self) -> bool {
        self.owner.upgrade().is_some_and(|owner| owner.line().stream.has_room())
    }

    /// Closes the connection; a read or write that waits for the client ends.
    pub fn disconnect(&self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.line().stream.close();
        }
    }
}

impl fmt::Debug for Outlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outlook")
    }
}

impl Read for Connection<'_> {
    /// Reads; suspends the worker until there is input. Fails with `TimedOut` if the client had to
    /// log in before now ([`ServeOptions::login_limit`]), even if there is input.
    ///
    /// [`ServeOptions::login_limit`]: super::ServeOptions::login_limit
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let login = self.line.login_deadline();
        if login < NEVER && clock::now() >= login {
            return Err(WaitError::TimedOut.during(WaitReason::NETWORK_READ));
        }
        match self.try_read(buf) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
        let deadline = self.deadline();
        wait_for(LiveOp::recv(self.fd(), buf, 0), WaitReason::NETWORK_READ, deadline)
    }
}

impl Write for Connection<'_> {
    /// Writes; suspends the worker while the peer does not read.
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self.send_at_once(buf) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
        let line = self.line;
        let _wait = line.wait_for_reader();
        self.send_when_it_can(buf)
    }

    /// Writes all; suspends the worker while the peer does not read.
    fn write_all(&mut self, buf: &[u8]) -> io::Result<()> {
        self.send(buf).1
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_begins_by_itself_unless_the_session_says_where_it_does() {
        let mut part = Part::of(PART);
        part.deadline = Some(1);
        part.wrote(PART - 1);
        assert_eq!(part.deadline, Some(1));
        part.wrote(1);
        assert_eq!((part.deadline, part.left), (None, PART));
        part.deadline = Some(2);
        part.wrote(5 * PART);
        assert_eq!((part.deadline, part.left), (None, PART));
        let mut part = Part { deadline: Some(3), ..Part::of(usize::MAX) };
        (0..100).for_each(|_| part.wrote(1 << 40));
        assert_eq!(part.deadline, Some(3), "the session has begun it");
    }
}
