//! A session: the server's side of one connection, carried out one work request at a time.
//!
//! ```text
//!            first packet          SASL (with a password)        welcome
//!   Startup ─────────────▶ Login ─────────────▶ Proof ─────────────▶ Ready ──▶ closed
//!      └──────────────────────── (no password) ─────────────────────▲
//! ```
//!
//! A work request consumes one **unit**: a simple query, or the messages of an extended cycle up to
//! its Sync or Flush. A unit that is not complete stays in the input and the session goes idle;
//! only a cycle of 64 KiB or more is begun before its end has arrived. So a statement never
//! waits for the rest of its own request, with one exception: COPY reads its data on the worker.
//!
//! Invariants: An idle session owns no buffer, except one with a part of a unit. Outside a
//! transaction it owns neither a connection of the engine nor the write gate (the right to write to
//! the database, which one session has at a time).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::accounts::Role;
use crate::auth::{Login, WRONG_PASSWORD};
use crate::dialect::tokens::Token;
use crate::dialect::{Edits, Statement, statement};
use crate::engine::{Engine, Lease};
use crate::error::{Failure, Result, SqlError};
use crate::host::{self, Conn};
use crate::keys::Cause;
use crate::memory::{self, Kept, Purse};
use crate::plan::{self, Plan};
use crate::portal::Portal;
use crate::server::Server;
use crate::settings::Config;
use crate::tls::Stream;
use crate::wire::out::{Out, Status};

/// How much is read at once, in bytes.
pub(crate) const CHUNK: usize = 8 << 10;
/// Output is sent when it exceeds this many bytes.
pub(crate) const OUT_MAX: usize = 32 << 10;

/// What a session needs after a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// Nothing, until more input is readable.
    Idle,
    /// Another work request at once: a complete unit has already been read.
    More,
    /// Nothing, until the closure of [`Conn::resume`] is called: the statement waits for the write
    /// gate without a worker.
    Later,
    /// A pause, after which the host calls `refuse` and closes the connection: the login
    /// has failed.
    Refuse,
    /// The end of the connection: the host must close it.
    Close,
}

/// The state of a session's transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tx {
    /// There is none: each statement is its own.
    Idle,
    /// The statements of one query or cycle are one transaction, without BEGIN.
    Implicit,
    /// Between BEGIN and COMMIT.
    Block,
    /// Between an error and ROLLBACK.
    Failed,
}

#[derive(Debug)]
pub(crate) enum Phase {
    Startup,
    Login,
    /// The role is that of the account whose password the client proves.
    Proof(Box<Login>, Role),
    Ready,
}

/// The session of one client.
#[derive(Debug)]
pub struct Session {
    pub(crate) server: Arc<Server>,
    pub(crate) user: u64,
    pub(crate) phase: Phase,
    /// The name that the client has logged in with, or tries to.
    pub(crate) account: Box<str>,
    pub(crate) role: Role,
    /// Whether only owners may log in on this connection.
    pub(crate) owners_only: bool,
    pub(crate) input: Vec<u8>,
    /// How much of `input` is consumed.
    pub(crate) consumed: usize,
    /// Where the current unit ends in `input`.
    pub(crate) unit_end: usize,
    /// The tag of a message for which there is no memory. It is answered with an error after the
    /// messages in `input`, which came before it.
    pub(crate) too_large: Option<u8>,
    /// How many bytes of that message have not arrived yet. They are skipped.
    pub(crate) unread: usize,
    pub(crate) out: Out,

    pub(crate) tx: Tx,
    pub(crate) savepoints: Vec<Box<str>>,
    pub(crate) lease: Option<Box<Lease>>,
    pub(crate) holds_gate: bool,
    /// How long the session has been idle in all since it acquired the gate.
    pub(crate) gate_idle: Duration,
    /// The log's position when this session acquired the gate.
    pub(crate) gate_position: u64,
    /// The position up to which the log must be on the disk before anything more is sent.
    pub(crate) unsettled: Option<u64>,
    /// Whether the current unit has several statements, which are one transaction.
    pub(crate) several: bool,
    /// Whether a statement that finds many writers waiting may give up its worker and wait for the
    /// gate without one: it is then *deferred*.
    pub(crate) may_defer: bool,
    /// Whether a statement is deferred.
    deferred: bool,

    pub(crate) prepared: Vec<(Box<str>, Arc<Plan>)>,
    pub(crate) portals: Vec<(Box<str>, Portal)>,
    pub(crate) skip_to_sync: bool,
    /// The settings, and what holds for the transaction.
    pub(crate) config: Config,
    /// Why the clock may cancel the statement.
    pub(crate) armed: Vec<Cause>,
    /// Whether the clock was asked to cancel the statement, and may have done so.
    pub(crate) was_armed: bool,
    /// Whether the clock has cancelled the request for a statement that had just ended. Then what
    /// follows is carried out in another request, which is not cancelled.
    pub(crate) cancelled_late: bool,
    /// How many statements of the query have been carried out in earlier requests.
    pub(crate) statements_done: usize,
    /// Whether the last request has carried something out, and not only read a part of a unit.
    pub(crate) has_worked: bool,
    /// What the client is told after a pause, because its login failed.
    pub(crate) refusal: Option<SqlError>,
    /// Which kinds of encryption the client has asked for: bits of [`Startup::Encrypt`].
    pub(crate) asked_for: u8,
    /// What the client sends and receives: all bytes pass here.
    pub(crate) stream: Stream,
    /// What the session keeps in memory, and its account.
    pub(crate) kept: Kept,
    pub(crate) purse: Purse,
    /// The number of prepared statements when they were last counted, and their bytes.
    pub(crate) prepared_counted: (usize, usize),
}

impl Server {
    /// Returns a session for the connection that is `user`.
    pub fn session(self: &Arc<Server>, user: u64) -> Session {
        Session::new(Arc::clone(self), user)
    }
}

impl Session {
    fn new(server: Arc<Server>, user: u64) -> Session {
        let purse = Purse::new(server.engine.limits, Arc::clone(&server.engine.budget), user);
        let mut config = Config::new(server.timeouts, server.max_message);
        config.pid = user as u32;
        Session {
            config,
            armed: Vec::new(),
            was_armed: false,
            cancelled_late: false,
            statements_done: 0,
            has_worked: false,
            refusal: None,
            asked_for: 0,
            stream: Stream::default(),
            gate_idle: Duration::ZERO,
            server,
            user,
            phase: Phase::Startup,
            account: "".into(),
            // Until the client has logged in.
            role: Role::Reader,
            owners_only: false,
            input: Vec::new(),
            consumed: 0,
            unit_end: 0,
            too_large: None,
            unread: 0,
            out: Out::default(),
            tx: Tx::Idle,
            savepoints: Vec::new(),
            lease: None,
            holds_gate: false,
            gate_position: 0,
            unsettled: None,
            several: false,
            may_defer: false,
            deferred: false,
            prepared: Vec::new(),
            portals: Vec::new(),
            skip_to_sync: false,
            kept: Kept::default(),
            purse,
            prepared_counted: (0, 0),
        }
    }

    /// Returns true while the session is inside a transaction.
    pub fn in_transaction(&self) -> bool {
        self.tx != Tx::Idle
    }

    /// Carries out one work request: reads what has arrived and consumes one unit of it.
    ///
    /// If the request panics, the client gets an internal error, and only this connection ends.
    pub fn on_readable(&mut self, conn: &mut dyn Conn) -> Flow {
        self.may_defer = true;
        self.has_worked = false;
        if let Some(lease) = &self.lease {
            lease.account().begin(self.user);
        }
        let refusals = self.server.engine.budget.refusals();
        let flow = catch_unwind(AssertUnwindSafe(|| self.request(conn))).unwrap_or_else(|_| {
            self.out.bytes.clear();
            // Where SQLite returns a text, it cannot report that there is no memory for it, and the
            // bindings panic.
            let error = match self.server.engine.budget.refusals() == refusals {
                true => SqlError::fatal("XX000", "internal error"),
                false => SqlError::out_of_memory(),
            };
            self.close_with(conn, &error)
        });
        self.rest();
        memory::stop();
        flow
    }

    /// Reports to the client that the server is shutting down, with SQLSTATE 57P01. The caller then
    /// closes the connection.
    pub fn shut_down(&mut self, conn: &mut dyn Conn) {
        if self.is_logged_in() {
            self.close_with(conn, &SqlError::stopping());
        }
    }

    /// Returns the message that refuses a request: with SQLSTATE 53300, and the reason `why`, or
    /// with 57P01 if the server stops, where `why` is `None`.
    pub fn refused(&mut self, why: Option<&str>) -> Vec<u8> {
        let overloaded = |why| SqlError::fatal("53300", format!("the server is overloaded: {why}"));
        let error = why.map_or_else(SqlError::stopping, overloaded);
        self.out.bytes.clear();
        self.out.error(&error, None);
        self.stream.seal(std::mem::take(&mut self.out.bytes))
    }

    fn request(&mut self, conn: &mut dyn Conn) -> Flow {
        match self.fill(conn) {
            Ok(Fill::Unit) => (),
            Ok(Fill::Part) => return Flow::Idle,
            Ok(Fill::End) => return Flow::Close,
            Err(Failure::Sql(error)) => return self.close_with(conn, &error),
            Err(_) => return Flow::Close,
        }
        // The request may have been cancelled while it was queued.
        let cancelled = self.come_back() || host::cancelled();
        self.has_worked = true;
        if self.out.bytes.capacity() == 0 {
            self.out.bytes = self.server.take_buffer();
        }
        match self.unit(conn, cancelled) {
            Ok(true) | Err(Failure::Again) => (),
            Err(Failure::Later) => {
                if self.flush(conn).is_err() {
                    return Flow::Close;
                }
                self.let_go();
                return self.take_a_place(conn);
            }
            Ok(false) | Err(Failure::Gone) => {
                let _ = self.flush(conn);
                return Flow::Close;
            }
            Err(Failure::Sql(error)) => return self.close_with(conn, &error),
        }
        // A statement that waited for the gate may have ended without writing.
        self.release_gate_outside();
        if self.flush(conn).is_err() {
            return Flow::Close;
        }
        match self.find_unit() {
            Ok(true) | Err(_) => Flow::More,
            Ok(false) if self.stream.holds_input() => Flow::More,
            Ok(false) => Flow::Idle,
        }
    }

    /// Queues the user for the write gate. Until the user has the gate, it needs no worker.
    fn take_a_place(&mut self, conn: &mut dyn Conn) -> Flow {
        self.deferred = true;
        self.server.keys.defer(self.user);
        // True if the gate was free: then the session owns it, and its next request writes.
        let owned = self.server.engine.gate.acquire_or_leave(self.user, conn.resume());
        // A cancellation before this line may have found no deferred statement, or no user in the
        // queue, so it is looked for here.
        self.server.end_cancelled_deferral(self.user, host::cancelled());
        if owned { Flow::More } else { Flow::Later }
    }

    /// Ends the wait that `take_a_place` began, if there is one. Returns true if the statement was
    /// cancelled meanwhile. If it was not, the session owns the gate.
    fn come_back(&mut self) -> bool {
        if !std::mem::take(&mut self.deferred) {
            return false;
        }
        self.holds_gate |= self.server.engine.gate.owner() == Some(self.user);
        if self.holds_gate {
            self.gate_position = self.server.engine.begin_to_write();
        }
        self.disarm(Cause::LockTimeout);
        self.server.keys.end_deferral(self.user)
    }

    pub(crate) fn close_with(&mut self, conn: &mut dyn Conn, error: &SqlError) -> Flow {
        if error.code == WRONG_PASSWORD && self.refusal.is_none() {
            self.refusal = Some(error.clone());
            return Flow::Refuse;
        }
        self.out.error(&SqlError { fatal: true, ..error.clone() }, None);
        let _ = self.flush(conn);
        Flow::Close
    }

    /// Consumes the unit. Returns false if the connection must be closed. If it was `cancelled`
    /// before, while it was queued or deferred, its first statement is the cancelled one.
    fn unit(&mut self, conn: &mut dyn Conn, cancelled: bool) -> std::result::Result<bool, Failure> {
        if matches!(self.phase, Phase::Startup) {
            let packet = self.input[self.consumed..self.unit_end].to_vec();
            self.consumed = self.unit_end;
            return Ok(self.startup(conn, &packet)?);
        }
        let mut cancelled = cancelled;
        while self.consumed < self.unit_end {
            let start = self.consumed;
            let tag = self.input[start];
            let body = match self.take_frame() {
                Err(error) if error.code == "53200" && self.is_logged_in() => {
                    self.refuse_message(conn, tag, error)?;
                    continue;
                }
                frame => frame?.1,
            };
            let is_statement = matches!(tag, b'Q' | b'P' | b'B' | b'D' | b'E' | b'C');
            if cancelled && is_statement && self.is_logged_in() {
                cancelled = false;
                self.refuse_message(conn, tag, host::Interrupted.into())?;
                continue;
            }
            let outcome = match self.phase {
                Phase::Ready => self.message(conn, tag, &body),
                _ => self.password(conn, tag, &body).map_err(Failure::from),
            };
            if matches!(outcome, Err(Failure::Later | Failure::Again)) {
                self.consumed = start;
            }
            if !outcome? {
                return Ok(false);
            }
            if std::mem::take(&mut self.cancelled_late) {
                return Err(Failure::Again);
            }
        }
        if let Some(tag) = self.too_large.take() {
            self.refuse_message(conn, tag, SqlError::out_of_memory())?;
        }
        Ok(true)
    }

    fn message(
        &mut self,
        conn: &mut dyn Conn,
        tag: u8,
        body: &[u8],
    ) -> std::result::Result<bool, Failure> {
        match tag {
            b'X' => return Ok(false),
            b'Q' => self.simple_query(conn, body)?,
            b'P' | b'B' | b'D' | b'E' | b'C' | b'S' | b'H' => self.extended(conn, tag, body)?,
            // The rest of the data of a COPY that has been refused or cancelled.
            b'd' | b'c' | b'f' => (),
            b'F' => {
                self.out.error(&SqlError::unsupported("function calls are not supported"), None);
                self.ready();
            }
            tag => {
                return Err(SqlError::fatal(
                    "08P01",
                    format!("invalid frontend message type {tag}"),
                )
                .into());
            }
        }
        Ok(true)
    }

    /// Answers a message that is not carried out: its statement was cancelled while it was
    /// deferred, or there is no memory for it.
    fn refuse_message(
        &mut self,
        conn: &dyn Conn,
        tag: u8,
        error: SqlError,
    ) -> std::result::Result<(), Failure> {
        self.statements_done = 0;
        self.disarm_all();
        match tag {
            b'Q' | b'F' => {
                self.fail(conn, error.into(), |_| None)?;
                self.several = false;
                self.ready();
                self.let_go();
            }
            b'P' | b'B' | b'D' | b'E' | b'C' if !self.skip_to_sync => {
                self.fail(conn, error.into(), |_| None)?;
                self.skip_to_sync = true;
            }
            // What follows an error, up to Sync, and the data of a COPY that has been refused.
            b'P' | b'B' | b'D' | b'E' | b'C' | b'd' | b'c' | b'f' => (),
            _ => return Err(error.into()),
        }
        Ok(())
    }

    /// Sends the output buffer once the commits that it acknowledges are on the disk.
    pub(crate) fn flush(&mut self, conn: &mut dyn Conn) -> std::result::Result<(), Failure> {
        if self.out.bytes.is_empty() {
            return Ok(());
        }
        let waits = self.config.waits_for_disk();
        let mut unsettled = self.unsettled.take();
        if let Err(error) = settle(&mut unsettled, &self.server.engine, waits) {
            // The buffer may acknowledge a commit that may be lost.
            self.out.bytes.clear();
            self.out.error(&SqlError { fatal: true, ..error }, None);
            let _ = self.stream.write_all(conn, &self.out.bytes);
            self.out.bytes.clear();
            return Err(Failure::Gone);
        }
        let sent = self.stream.write_all(conn, &self.out.bytes).map_err(Failure::gone);
        self.out.bytes.clear();
        sent
    }

    /// Recognises a statement of the query `text`.
    pub(crate) fn recognise(&mut self, tokens: &mut [Token<'_>], text: &str) -> Result<Statement> {
        if self.tx != Tx::Failed && plan::has_types(tokens) {
            let is_refused = drops(tokens) && self.role == Role::Reader;
            if is_refused {
                self.check_owner("write")?;
            }
            plan::recognise(tokens, text, self.lease()?)
        } else {
            statement::recognise(tokens, text, &Edits::default())
        }
    }

    pub(crate) fn ready(&mut self) {
        let status = match self.tx {
            Tx::Idle | Tx::Implicit => Status::Idle,
            Tx::Block => Status::Block,
            Tx::Failed => Status::Failed,
        };
        self.out.ready(status);
    }

    /// Gives back the buffers that an idle session does not need.
    fn rest(&mut self) {
        self.server.give_buffer(std::mem::take(&mut self.out.bytes));
        if self.consumed == self.input.len() {
            self.server.give_buffer(std::mem::take(&mut self.input));
        } else if self.consumed > 0 {
            self.input.drain(..self.consumed);
        }
        if self.input.capacity() > self.input.len() + self.input.len() / 2 + CHUNK {
            self.input.shrink_to_fit();
        }
        self.unit_end = 0;
        self.consumed = 0;
        self.count_rest();
    }
}

/// Returns whether the statement drops or empties a table. What depends on the table is no business
/// of a client that may not.
pub(crate) fn drops(tokens: &[Token<'_>]) -> bool {
    ["drop", "truncate"].iter().any(|word| tokens[0].is(word))
}

/// Waits until a session's commits are on the disk. After an error, nothing that acknowledges them
/// may be sent.
pub(crate) fn settle(unsettled: &mut Option<u64>, engine: &Arc<Engine>, waits: bool) -> Result<()> {
    unsettled.take().map_or(Ok(()), |position| engine.committed(position, waits))
}

/// What [`Session::fill`] found.
pub(crate) enum Fill {
    Unit,
    Part,
    End,
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.deferred {
            drop(self.server.engine.gate.give_up(self.user));
            self.come_back();
        }
        self.disarm_all();
        if self.is_logged_in() {
            self.server.keys.forget(self.user);
            self.server.engine.clients.remove(self.user as u32);
        }
        // Dropping the lease rolls its transaction back, which must come before the gate passes to
        // the next writer.
        self.lease = None;
        if self.holds_gate {
            self.server.engine.gate.release(self.user);
        }
    }
}
