//! Runs a server on a node: each connection is a user of the node, and each unit of its input is
//! one work request.
//!
//! It creates neither the node nor the listener; the caller (`ums serve`, for example) does.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use ums::Node;
use ums::node::EnqueueError;
use ums::serve::{Connection, Listener, Next, ServeOptions, Why};

use crate::host::Conn;
use crate::server::Server;
use crate::session::{Flow, Session};

/// How long a client may take for each step before its connection is closed.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// The time from the connection to the end of the login.
    pub login: Duration,
    /// The time between two requests; `None` means no limit.
    pub idle: Option<Duration>,
    /// The time to send or receive the next bytes in the middle of a request; `None` means no
    /// limit.
    pub transfer: Option<Duration>,
}

impl Default for Patience {
    /// Returns one minute for the login and for sending or receiving bytes, and no limit between
    /// requests.
    fn default() -> Patience {
        let minute = Duration::from_secs(60);
        Patience { login: minute, idle: None, transfer: Some(minute) }
    }
}

/// Serves `server` on `listener` with workers of `node`.
///
/// # Errors
/// Those of [`Node::serve`].
pub fn serve(
    node: &Node,
    listener: impl Into<Listener>,
    options: ServeOptions,
    server: Arc<Server>,
    patience: Patience,
) -> io::Result<ums::serve::Server> {
    // Writers that wait must never occupy all workers of a scheduler.
    let shares = node.snapshot().schedulers.into_iter().take(node.scheduler_count());
    let share = shares.map(|row| row.workers_max).min().unwrap_or(1);
    server.limit_waiting_writers(share - 1);
    node.serve(listener, options, move |user, _peer| {
        let session = server.session(user.id());
        Box::new(Served { session, patience })
    })
}

struct Served {
    session: Session,
    patience: Patience,
}

impl ums::serve::Session for Served {
    fn request(&mut self, conn: &mut Connection<'_>, why: Why) -> Next {
        conn.timeout = self.patience.transfer;
        let mut wire = Wire { conn };
        let flow = match why {
            // In this protocol the client sends first.
            Why::Connected => Flow::Idle,
            Why::Readable | Why::Again => self.session.on_readable(&mut wire),
            Why::TimedOut => {
                self.session.time_out(&mut wire);
                Flow::Close
            }
            Why::Stopping => {
                wire.conn.timeout = Some(Duration::from_secs(1));
                self.session.shut_down(&mut wire);
                Flow::Close
            }
        };
        let limit = if self.session.is_logged_in() {
            self.patience.idle
        } else {
            Some(self.patience.login)
        };
        match flow {
            Flow::Close => Next::Close,
            Flow::More => Next::Again,
            Flow::Later => Next::Park,
            Flow::Idle => limit.map_or(Next::Wait, Next::WaitAtMost),
        }
    }

    fn refused(&mut self, error: EnqueueError) -> Vec<u8> {
        self.session.refused(&error.to_string())
    }
}

struct Wire<'a, 'b> {
    conn: &'a mut Connection<'b>,
}

impl Conn for Wire<'_, '_> {
    fn user(&self) -> u64 {
        self.conn.user().id()
    }

    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.conn.try_read(buf)
    }

    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.conn.read(buf)
    }

    fn resume(&self) -> Box<dyn FnOnce() + Send> {
        let resumer = self.conn.resumer();
        Box::new(move || resumer.resume())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.conn.write_all(bytes)
    }
}
