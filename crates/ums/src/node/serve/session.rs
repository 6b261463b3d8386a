//! What an application implements: the session of a connection, why it is called, and what it says
//! is next.

use std::time::Duration;

use super::connection::Connection;
use crate::wait::error::EnqueueError;

/// The reason why a session is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The connection was just made.
    Connected,
    /// There is input, or the peer has closed the connection.
    Readable,
    /// The session asked for another request.
    Again,
    /// No input came within the time of [`Next::WaitAtMost`].
    TimedOut,
    /// The server is stopping, or this connection must end: it makes room for a new one, or its
    /// client has not logged in in time. This is the session's last call: whatever it returns, the
    /// connection closes.
    Stopping,
}

/// What the server does after a session's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The session is idle until there is input.
    Wait,
    /// The session is idle until there is input, or until this time has passed.
    WaitAtMost(Duration),
    /// The session gets another work request, after those that are queued already.
    Again,
    /// The session is not called, not even for input, until [`Resumer::resume`] is called.
    ///
    /// [`Resumer::resume`]: super::Resumer::resume
    Park,
    /// The connection closes.
    Close,
}

/// The server's side of one connection. Each call is one work request and runs on a worker.
pub trait Session: Send + 'static {
    /// Carries out one request. It may wait, yield, and go preemptive. A panic closes the
    /// connection. A request that was cancelled while it was queued is carried out, too, so that
    /// the session can answer; `ums::is_cancelled` then returns true from its beginning.
    fn request(&mut self, conn: &mut Connection<'_>, why: Why) -> Next;

    /// Called instead of [`request`](Session::request) if a request is refused, because the work
    /// queue is full, the request has waited too long or the node shuts down. The bytes that it
    /// returns are sent to the client, in one non-blocking write, before the connection closes. It
    /// is called by a completion routine and must not wait.
    fn refused(&mut self, error: EnqueueError) -> Vec<u8> {
        let _ = error;
        Vec::new()
    }
}
