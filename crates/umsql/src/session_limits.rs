//! How a session keeps its time limits.
//!
//! The clock (`clock.rs`) measures the time of statements, whether they run or wait, and cancels
//! them. The time of an idle session is a timer of its connection (`listen.rs`), which asks here
//! what becomes of the session.

use std::time::{Duration, Instant};

use crate::clock::LOOK_AGAIN;
use crate::error::{Failure, SqlError};
use crate::host::{self, Conn};
use crate::keys::{Cause, gate_was_held};
use crate::session::Session;

/// Why an idle session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Idle {
    /// Not now. After this time it must be asked again; `None` means that there is no limit.
    Stays(Option<Duration>),
    TooLong,
    TooLongInTransaction,
    KeepsOthers,
}

impl Idle {
    /// Returns the error with which the session ends.
    pub(crate) fn error(self) -> Option<SqlError> {
        Some(match self {
            Idle::Stays(_) => return None,
            Idle::TooLong => {
                SqlError::fatal("57P05", "terminating connection due to idle-session timeout")
            }
            Idle::TooLongInTransaction => SqlError::fatal(
                "25P03",
                "terminating connection due to idle-in-transaction timeout",
            ),
            Idle::KeepsOthers => gate_was_held(),
        })
    }
}

impl Session {
    /// Returns whether the time that the session is idle now has a limit.
    pub(crate) fn is_limited_when_idle(&self) -> bool {
        let timeouts = self.config.timeouts();
        let idle = if self.in_transaction() {
            timeouts.idle_in_transaction
        } else {
            timeouts.idle_session
        };
        self.holds_gate || !idle.is_zero()
    }

    /// Returns what becomes of the session, which has been idle for this time.
    pub(crate) fn after_idling(&self, idle: Duration) -> Idle {
        let (limit, outcome) = if self.in_transaction() {
            (self.config.timeouts().idle_in_transaction, Idle::TooLongInTransaction)
        } else {
            (self.config.timeouts().idle_session, Idle::TooLong)
        };
        let mut left = None;
        if !limit.is_zero() {
            left = Some(limit.saturating_sub(idle)).filter(|left| !left.is_zero());
            if left.is_none() {
                return outcome;
            }
        }
        let gate_limit = self.server.gate_idle;
        if self.holds_gate && !gate_limit.is_zero() {
            let mut until = gate_limit.saturating_sub(self.gate_idle.saturating_add(idle));
            if until.is_zero() && self.server.keys.someone_waits_to_write() {
                return Idle::KeepsOthers;
            }
            if until.is_zero() {
                until = LOOK_AGAIN.min(gate_limit);
            }
            left = Some(left.map_or(until, |left| left.min(until)));
        }
        Idle::Stays(left)
    }

    /// Records that the session, which owns the gate perhaps, has been idle for this time.
    pub(crate) fn add_idle(&mut self, idle: Duration) {
        if self.holds_gate {
            self.gate_idle = self.gate_idle.saturating_add(idle);
        }
    }

    /// Takes back [`Session::add_idle`]: the session is still idle.
    pub(crate) fn subtract_idle(&mut self, idle: Duration) {
        self.gate_idle = self.gate_idle.saturating_sub(idle);
    }

    /// Returns whether the last request has carried something out, and not only read a part of a
    /// unit.
    pub(crate) fn has_worked(&self) -> bool {
        self.has_worked
    }

    /// Runs a statement, which the clock cancels if it takes longer than `statement_timeout`. A
    /// deferred statement keeps its limit.
    pub(crate) fn within_limit<R>(
        &mut self,
        run: impl FnOnce(&mut Session) -> std::result::Result<R, Failure>,
    ) -> std::result::Result<R, Failure> {
        self.config.begin_statement();
        if !self.config.timeouts().statement.is_zero() {
            self.arm(Cause::StatementTimeout, self.config.timeouts().statement);
        }
        let outcome = run(self);
        if self.was_armed && !matches!(outcome, Err(Failure::Later)) {
            self.was_armed = false;
            self.disarm_all();
            // From here on the clock cancels nothing of this session. If it has cancelled the
            // request before, and the statement has not noticed that, the rest of the request must
            // not notice it either.
            let cancelled = |error: &SqlError| matches!(error.code, "57014" | "40001" | "53200");
            if !matches!(&outcome, Err(Failure::Sql(error)) if cancelled(error)) {
                match self.server.keys.take_cause(self.user) {
                    // Nothing that follows is carried out for a client that is not there.
                    Some(Cause::ClientGone) => return Err(Failure::Gone),
                    cause => self.cancelled_late = cause.is_some(),
                }
            }
        }
        outcome
    }

    /// Limits a wait for the write gate to `lock_timeout`.
    pub(crate) fn limit_wait_for_gate(&mut self) {
        if !self.config.timeouts().lock.is_zero() {
            self.arm(Cause::LockTimeout, self.config.timeouts().lock);
        }
    }

    /// Lets the clock end a COPY that makes no progress from now on, if others wait to write.
    pub(crate) fn expect_progress(&mut self) {
        let limit = self.server.gate_idle;
        if !limit.is_zero() {
            self.disarm(Cause::GateHeld);
            self.arm(Cause::GateHeld, limit);
        }
    }

    /// Lets the clock cancel this session's statement after this time, unless it was asked to
    /// before.
    fn arm(&mut self, cause: Cause, after: Duration) {
        self.was_armed = true;
        if !self.armed.contains(&cause) {
            self.armed.push(cause);
            let at = host::after(Instant::now(), after);
            self.server.clock.arm(self.user, cause, at);
        }
    }

    pub(crate) fn disarm(&mut self, cause: Cause) {
        if let Some(at) = self.armed.iter().position(|armed| *armed == cause) {
            self.armed.swap_remove(at);
            self.server.clock.disarm(self.user, cause);
        }
    }

    pub(crate) fn disarm_all(&mut self) {
        for cause in std::mem::take(&mut self.armed) {
            self.server.clock.disarm(self.user, cause);
        }
    }

    /// Returns the error of a statement that was cancelled: another one if the clock did it, or the
    /// server, which stops.
    pub(crate) fn why_cancelled(
        &mut self,
        conn: &dyn Conn,
        error: SqlError,
    ) -> std::result::Result<SqlError, Failure> {
        self.disarm_all();
        match self.server.keys.take_cause(self.user) {
            None if conn.is_closing() => Ok(SqlError::stopping()),
            None => Ok(error),
            Some(cause) => cause.error().ok_or(Failure::Gone),
        }
    }

    /// Tells the client why its idle session ends. The caller then closes the connection.
    pub(crate) fn end_idle(&mut self, conn: &mut dyn Conn, error: &SqlError) {
        if self.is_logged_in() {
            self.close_with(conn, error);
        }
    }
}
