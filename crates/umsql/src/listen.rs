//! Runs a server on a node: each connection is a user of the node, and each unit of its input is
//! one work request.
//!
//! It creates neither the node nor the listener; the caller (`ums serve`, for example) does.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ums::Node;
use ums::node::EnqueueError;
use ums::serve::{Connection, Listener, Next, Outlook, ServeOptions, Why};

use crate::host::{Conn, Peer, WaitError};
use crate::server::Server;
use crate::session::{Flow, Session};
use crate::session_limits::Idle;

/// The time to send the last message of a connection.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long a client may take for each step before its connection is closed.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// The time from the connection to the end of the login; zero means no limit.
    pub login: Duration,
    /// The time to send or receive the next bytes in the middle of a request; `None` means no
    /// limit.
    pub transfer: Option<Duration>,
    /// The time to receive one part of an answer: 32 KiB, or one long row; `None` means no limit.
    /// It ends the wait for a client that reads a byte now and then.
    pub answer: Option<Duration>,
    /// How often the clients of running and waiting statements are looked at. If a client has
    /// closed the connection, its statement is cancelled. `None`: never. The first call of
    /// [`serve`] for a server decides.
    pub client_check: Option<Duration>,
    /// The time from a failed login to its answer, so that passwords cannot be tried quickly.
    pub refusal: Duration,
}

impl Default for Patience {
    /// Returns one minute for the login, for sending or receiving bytes, and for a part of an
    /// answer, a look at the clients each second, and a second until a login is refused.
    fn default() -> Patience {
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        Patience {
            login: minute,
            transfer: Some(minute),
            answer: Some(minute),
            client_check: Some(second),
            refusal: second,
        }
    }
}

/// Serves `server` on `listener` with workers of `node`. A listener with a hidden scheduler
/// (`options.on`) is one for administrators, on which only owners may log in.
///
/// `patience` replaces the limits of time in `options`. If `options` reserve no workers for clients
/// that read, an eighth of a scheduler's workers are reserved, and at least two; on an
/// administrator's listener none are.
///
/// # Errors
/// Those of [`Node::serve`]; and an error if the system refuses a thread.
pub fn serve(
    node: &Node,
    listener: impl Into<Listener>,
    mut options: ServeOptions,
    server: Arc<Server>,
    patience: Patience,
) -> io::Result<ums::serve::Server> {
    // Writers that wait must never occupy all workers of a scheduler.
    let shares = node.snapshot().schedulers.into_iter().take(node.scheduler_count());
    let share = shares.map(|row| row.workers_max).min().unwrap_or(1);
    server.limit_waiting_writers(share - 1);
    let owners_only = options.on.is_some();
    let its_node = node.clone();
    let cancel = move |user| its_node.cancel(user);
    server.clock.start(&server.keys, patience.client_check, cancel)?;
    if !owners_only && options.reserved_workers == 0 {
        options.reserved_workers = (share / 8).max(2);
    }
    options.login_limit = Some(patience.login).filter(|limit| !limit.is_zero());
    options.write_limit = patience.answer;
    node.serve(listener, options, move |user, _peer| {
        let session = server.session(user.id());
        let session = if owners_only { session.only_for_owners() } else { session };
        let server = server.clone();
        Box::new(Served { session, patience, server, failed: None, idle: None })
    })
}

struct Served {
    session: Session,
    server: Arc<Server>,
    patience: Patience,
    /// When the login failed.
    failed: Option<Instant>,
    /// When the session became idle; `None` before the login, and while nothing limits that time.
    idle: Option<Instant>,
}

impl Served {
    /// Returns what an idle session waits for, or closes it if it has been idle for too long.
    fn idle(&mut self, conn: &mut Connection<'_>) -> Next {
        if !self.session.is_limited_when_idle() {
            return Next::Wait;
        }
        let since = *self.idle.get_or_insert_with(Instant::now);
        let outcome = self.session.after_idling(since.elapsed());
        if let Some(error) = outcome.error() {
            self.say_last(conn, |session, wire| session.end_idle(wire, &error));
            return Next::Close;
        }
        match outcome {
            Idle::Stays(Some(left)) => Next::WaitAtMost(left),
            _ => Next::Wait,
        }
    }

    /// Writes to the log that the login has failed, and begins the pause before the answer.
    fn log_failure(&mut self, conn: &Connection<'_>) -> Next {
        conn.warn(format_args!(
            "login as {:?} failed: wrong password",
            self.session.claimed_user()
        ));
        self.failed = Some(Instant::now());
        Next::WaitAtMost(self.patience.refusal)
    }

    /// Carries out a request of a client whose login has failed: ignores what it sends, until the
    /// pause is over.
    fn refuse(&mut self, conn: &mut Connection<'_>) -> Next {
        let mut ignored = [0; 2048];
        if conn.try_read(&mut ignored).is_ok_and(|read| read == 0) {
            return Next::Close;
        }
        let since = self.failed.map_or(Duration::MAX, |failed| failed.elapsed());
        if since < self.patience.refusal {
            return Next::WaitAtMost(self.patience.refusal.saturating_sub(since));
        }
        self.say_last(conn, |session, wire| session.refuse(wire));
        Next::Close
    }

    /// Carries out a request.
    fn next(&mut self, conn: &mut Connection<'_>, why: Why) -> Next {
        conn.timeout = self.patience.transfer;
        if self.session.has_failed() && why != Why::Stopping {
            return self.refuse(conn);
        }
        let flow = match why {
            // In this protocol the client sends first.
            Why::Connected => Flow::Idle,
            // Input may have come since the time was over. A statement in it is carried out.
            Why::Readable | Why::Again | Why::TimedOut => {
                self.server.clock.notice();
                let idle = self.idle.map_or(Duration::ZERO, |since| since.elapsed());
                self.session.add_idle(idle);
                conn.begin_part();
                let flow = self.session.on_readable(&mut Wire { conn });
                // A part of a request does not end the time of being idle.
                if self.session.has_worked() {
                    self.idle = None;
                } else {
                    self.session.subtract_idle(idle);
                }
                flow
            }
            // The time for the login may be over, or the server stops, during the pause before a
            // refusal. It is said then.
            Why::Stopping if self.session.has_failed() => {
                // With unread input the end of the connection could overtake the refusal.
                let _ = conn.try_read(&mut [0; 2048]);
                self.say_last(conn, |session, wire| session.refuse(wire));
                Flow::Close
            }
            Why::Stopping => {
                self.say_last(conn, |session, wire| session.shut_down(wire));
                Flow::Close
            }
        };
        match flow {
            Flow::Close => Next::Close,
            Flow::More => Next::Again,
            Flow::Later => Next::Park,
            Flow::Refuse => self.log_failure(conn),
            Flow::Idle if self.session.is_logged_in() => self.idle(conn),
            // The connection has a limit of time for the login.
            Flow::Idle => Next::Wait,
        }
    }

    /// Sends a last message, for which a client that does not read has only a moment.
    fn say_last(
        &mut self,
        conn: &mut Connection<'_>,
        say: impl FnOnce(&mut Session, &mut Wire<'_, '_>),
    ) {
        (conn.timeout, conn.write_limit) = (Some(LAST_WORDS), Some(LAST_WORDS));
        conn.begin_part();
        say(&mut self.session, &mut Wire { conn });
    }
}

impl ums::serve::Session for Served {
    fn request(&mut self, conn: &mut Connection<'_>, why: Why) -> Next {
        let next = self.next(conn, why);
        if next == Next::Close {
            self.say_last(conn, |session, wire| session.end_stream(wire));
        }
        next
    }

    fn refused(&mut self, error: EnqueueError) -> Vec<u8> {
        let why = (error != EnqueueError::ShuttingDown).then(|| error.to_string());
        self.session.refused(why.as_deref())
    }
}

struct Wire<'a, 'b> {
    conn: &'a mut Connection<'b>,
}

impl Conn for Wire<'_, '_> {
    fn user(&self) -> u64 {
        self.conn.user().id()
    }

    fn peer_uid(&self) -> Option<u32> {
        // After an error the client must prove a password, as on a port.
        self.conn.peer_uid().ok().flatten()
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
        self.conn.cancellable = false;
        let written = self.conn.write_all(bytes);
        self.conn.cancellable = true;
        written
    }

    fn write_until_cancelled(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.conn.write_until_cancelled(bytes)?;
        // A server that stops waits for no client.
        if written < bytes.len() && self.conn.is_closing() {
            return Err(WaitError::Cancelled.into());
        }
        Ok(written)
    }

    fn begin_part(&mut self) {
        self.conn.begin_part();
    }

    fn warn(&self, text: fmt::Arguments<'_>) {
        self.conn.warn(text);
    }

    fn logged_in(&mut self) -> bool {
        self.conn.establish()
    }

    fn is_closing(&self) -> bool {
        self.conn.is_closing()
    }

    fn peer(&self) -> Option<Arc<dyn Peer>> {
        Some(Arc::new(self.conn.outlook()))
    }
}

impl Peer for Outlook {
    fn is_busy(&self) -> bool {
        Outlook::is_busy(self)
    }

    fn has_gone(&self) -> bool {
        self.client_has_gone()
    }
}
