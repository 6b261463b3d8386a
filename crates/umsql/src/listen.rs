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
/// # Errors
/// Those of [`Node::serve`]; and an error if the system refuses a thread.
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
    let owners_only = options.on.is_some();
    let its_node = node.clone();
    let cancel = move |user| its_node.cancel(user);
    server.clock.start(&server.keys, patience.client_check, cancel)?;
    if !owners_only {
        server.slow.leave_workers(share);
    }
    node.serve(listener, options, move |user, _peer| {
        let (session, now) = (server.session(user.id()), Instant::now());
        let session = if owners_only { session.only_for_owners() } else { session };
        Box::new(Served { session, patience, server: server.clone(), begun: now, idle: None })
    })
}

struct Served {
    session: Session,
    server: Arc<Server>,
    patience: Patience,
    /// When the connection was made. After a failed login: when that was.
    begun: Instant,
    /// When the session became idle; `None` before the login, and while nothing limits that time.
    idle: Option<Instant>,
}

impl Served {
    /// Returns what the session of a client that has not logged in waits for. All the time until
    /// the login has one limit, however many requests it takes.
    fn before_login(&self) -> Next {
        let failed = self.session.has_failed();
        let limit = if failed { self.patience.refusal } else { self.patience.login };
        let left = limit.saturating_sub(self.begun.elapsed());
        if limit.is_zero() && !failed {
            Next::Wait
        } else if left.is_zero() && !failed {
            Next::Close
        } else {
            Next::WaitAtMost(left)
        }
    }

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
        self.begun = Instant::now();
        self.before_login()
    }

    /// Carries out a request of a client whose login has failed: ignores what it sends, until the
    /// pause is over.
    fn refuse(&mut self, conn: &mut Connection<'_>) -> Next {
        let mut ignored = [0; 2048];
        if conn.try_read(&mut ignored).is_ok_and(|read| read == 0) {
            return Next::Close;
        }
        if self.begun.elapsed() < self.patience.refusal {
            return self.before_login();
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
                let (server, mut patience) = (&*self.server, self.patience);
                if !self.session.is_logged_in() && !patience.login.is_zero() {
                    // A handshake may have to be sent to a client that does not read.
                    let left = patience.login.saturating_sub(self.begun.elapsed());
                    patience.answer = patience.answer.into_iter().chain([left]).min();
                }
                let is_administrators = self.session.owners_only;
                let wire = &mut Wire { conn, server, patience, is_administrators, part: None };
                let flow = self.session.on_readable(wire);
                // A part of a request does not end the time of being idle.
                if self.session.has_worked() {
                    self.idle = None;
                } else {
                    self.session.subtract_idle(idle);
                }
                flow
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
            Flow::Idle => self.before_login(),
        }
    }

    /// Sends a last message, for which a client that does not read has only a moment.
    fn say_last(
        &mut self,
        conn: &mut Connection<'_>,
        say: impl FnOnce(&mut Session, &mut Wire<'_, '_>),
    ) {
        conn.timeout = Some(LAST_WORDS);
        let patience = Patience { answer: Some(LAST_WORDS), ..self.patience };
        let (server, is_administrators) = (&*self.server, self.session.owners_only);
        let wire = &mut Wire { conn, server, patience, is_administrators, part: None };
        say(&mut self.session, wire);
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
        self.session.refused(&error.to_string())
    }
}

struct Wire<'a, 'b> {
    conn: &'a mut Connection<'b>,
    server: &'a Server,
    patience: Patience,
    /// Whether the connection is one of the administrator's port, which has workers of its own.
    is_administrators: bool,
    /// When the client must have received the part of an answer that is being written; `None` while
    /// no part has had to wait.
    part: Option<Instant>,
}

impl Wire<'_, '_> {
    /// Writes `bytes`, and returns how many are written: fewer than all only after a cancellation,
    /// if that ends the wait.
    fn send(&mut self, bytes: &[u8], cancellable: bool) -> io::Result<usize> {
        let transfer = self.conn.timeout.replace(Duration::ZERO);
        let written = self.conn.write(bytes);
        self.conn.timeout = transfer;
        match written {
            Ok(all) if all == bytes.len() => Ok(all),
            Ok(some) => self.send_rest(bytes, some, cancellable),
            Err(error) if WaitError::of(&error).is_some() => self.send_rest(bytes, 0, cancellable),
            Err(error) => Err(error),
        }
    }

    /// Writes what is left after the first `written` bytes, for which the client has no room yet.
    #[cold]
    fn send_rest(
        &mut self,
        bytes: &[u8],
        mut written: usize,
        cancellable: bool,
    ) -> io::Result<usize> {
        let transfer = self.conn.timeout;
        // The administrator's worker is none of those that clients share.
        let slow = (!self.is_administrators).then_some(&self.server.slow);
        let _waiting = slow.map(|slow| slow.wait_for(Arc::new(self.conn.outlook())));
        self.part = self.part.or_else(|| Some(Instant::now() + self.patience.answer?));
        // A server that stops waits for no client.
        let closing = self.conn.is_closing();
        self.conn.cancellable = cancellable || closing;
        let mut outcome = Ok(());
        while written < bytes.len() && outcome.is_ok() {
            let left = self.part.map(|end| end.saturating_duration_since(Instant::now()));
            self.conn.timeout = left.into_iter().chain(transfer).min();
            outcome = self.conn.write(&bytes[written..]).map(|more| written += more);
        }
        (self.conn.timeout, self.conn.cancellable) = (transfer, true);
        match outcome {
            Err(error) if WaitError::of(&error) == Some(WaitError::Cancelled) && !closing => {
                Ok(written)
            }
            outcome => outcome.map(|()| written),
        }
    }
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
        self.send(bytes, false).map(drop)
    }

    fn write_until_cancelled(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(bytes, true)
    }

    fn begin_part(&mut self) {
        self.part = None;
    }

    fn warn(&self, text: fmt::Arguments<'_>) {
        self.conn.warn(text);
    }

    fn logged_in(&mut self) -> bool {
        self.conn.establish()
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

    fn has_room(&self) -> bool {
        Outlook::has_room(self)
    }

    fn disconnect(&self) {
        Outlook::disconnect(self);
    }
}
