//! Transactions with PostgreSQL's rules, and the write gate.
//!
//! ```text
//!   Idle ──BEGIN──▶ Block ──error──▶ Failed
//!    ▲ │              │ ▲               │
//!    │ └─several──▶ Implicit            │ ROLLBACK TO
//!    └──COMMIT, ROLLBACK, end───────────┘
//! ```
//!
//! The *engine's transaction* is SQLite's. BEGIN does not open it:
//!
//! ```text
//!   READ COMMITTED               BEGIN  SELECT  SELECT  UPDATE  SELECT  COMMIT
//!                                       ──────  ──────  gate ──────────────▶
//!                                                       transaction ───────▶
//!   REPEATABLE READ, SERIALIZABLE       transaction ───────────────────────▶
//!                                                       gate ──────────────▶
//! ```
//!
//! A statement that writes, or locks rows or tables, first acquires the engine's write gate, and
//! keeps it until the end of its transaction. So writers wait in a queue and never contend for
//! SQLite's own lock.
//!
//! Invariants. Between two requests, a session that owns the gate has an open transaction of the
//! engine. At READ COMMITTED, the transaction is opened with the gate: its snapshot is the newest,
//! and stays so, because no other session commits meanwhile. At the other levels the transaction
//! may have read before its first write, and another one may have written meanwhile. Only then does
//! it fail, with SQLSTATE 40001.
//!
//! Savepoints that were set before the engine's transaction are set in it when it is opened.

use std::time::Duration;

use crate::accounts::Role;
use crate::dialect::translate::quote;
use crate::dialect::{Characteristics, LockPatience, Statement, TableLock};
use crate::engine::Lease;
use crate::error::{Failure, Result, SqlError};
use crate::host;
use crate::keys::Cause;
use crate::session::{Session, Tx};
use crate::tx_mode::TxMode;

impl Session {
    /// Returns what holds for the present transaction, or for the next one if there is none.
    pub(crate) fn mode(&self) -> TxMode {
        if self.tx == Tx::Idle { self.config.default_mode() } else { self.config.mode }
    }

    fn begin(&mut self, tx: Tx) {
        self.config.mode = self.config.default_mode();
        self.config.begin_transaction();
        self.tx = tx;
    }

    /// Begins the transaction of one query or of one extended cycle with several statements.
    pub(crate) fn begin_several(&mut self) {
        if self.several && self.tx == Tx::Idle {
            self.begin(Tx::Implicit);
        }
    }

    /// Commits the implicit transaction of one query or of one extended cycle.
    pub(crate) fn end_implicit(&mut self) -> Result<()> {
        if self.tx == Tx::Implicit { self.commit() } else { Ok(()) }
    }

    pub(crate) fn roll_back(&mut self, then: Tx) {
        if let Some(lease) = &self.lease
            && !lease.is_autocommit()
            && lease.execute_batch("ROLLBACK").is_err()
        {
            // A connection on which the rollback fails is closed.
            self.lease = None;
        }
        self.forget_changes();
        self.tx = then;
        self.portals = Vec::new();
        self.end_changes();
        self.config.mode.open = false;
        self.end_settings(false);
        self.savepoints.clear();
        self.release_gate_outside();
        self.let_go();
    }

    /// Forgets what the connection knows of changes of the schema that were rolled back.
    fn forget_changes(&mut self) {
        let is_altered = self.config.mode.altered;
        if let Some(lease) = self.lease.as_ref().filter(|_| is_altered)
            && lease.forget_schema().is_err()
        {
            self.lease = None;
        }
    }

    fn commit(&mut self) -> Result<()> {
        if let Some(lease) = &self.lease
            && !lease.is_autocommit()
            && let Err(error) = lease.execute_batch("COMMIT")
        {
            self.roll_back(Tx::Idle);
            return Err(error.into());
        }
        self.tx = Tx::Idle;
        self.portals = Vec::new();
        self.end_changes();
        self.config.mode.open = false;
        self.end_settings(true);
        self.savepoints = Vec::new();
        self.release_gate_outside();
        Ok(())
    }

    /// Records that the changes of the schema that the transaction has made are there for others,
    /// or are none. Sessions that have read the schema meanwhile read it again.
    fn end_changes(&mut self) {
        if std::mem::take(&mut self.config.mode.altered) {
            self.lease.iter_mut().for_each(|lease| lease.schema_changed());
            self.server.forget_plans();
        }
    }

    /// Looks, after an error, whether SQLite has rolled the transaction back itself, as it does
    /// when the disk is full.
    pub(crate) fn notice_rollback(&mut self) {
        if self.config.mode.open && self.lease.as_ref().is_none_or(|lease| lease.is_autocommit()) {
            self.config.mode.open = false;
            self.savepoints.clear();
        }
    }

    /// Releases the gate if the session is outside a transaction of the engine.
    pub(crate) fn release_gate_outside(&mut self) {
        let outside = self.lease.as_ref().is_none_or(|lease| lease.is_autocommit());
        if self.holds_gate && outside {
            let position = self.server.engine.log_position();
            if position != self.gate_position {
                self.unsettled = Some(position);
            }
            self.holds_gate = false;
            self.gate_idle = Duration::ZERO;
            self.server.engine.gate.release(self.user);
        }
    }

    /// Returns the connection to the pool if no transaction of the engine needs it.
    pub(crate) fn let_go(&mut self) {
        if self.lease.as_ref().is_some_and(|lease| !lease.pinned && lease.is_autocommit()) {
            self.lease = None;
        }
    }

    /// Returns the session's connection. If it has none, it leases one.
    pub(crate) fn lease(&mut self) -> Result<&mut Lease> {
        if self.lease.is_none() {
            let mut lease = self.server.engine.lease(self.user)?;
            if self.role == Role::Reader {
                lease.restrict();
            }
            self.lease = Some(Box::new(lease));
        }
        Ok(self.lease.as_mut().expect("it was just put there"))
    }

    /// Runs `f` with the session's connection.
    pub(crate) fn with_lease<R>(
        &mut self,
        f: impl FnOnce(&mut Session, &mut Lease) -> std::result::Result<R, Failure>,
    ) -> std::result::Result<R, Failure> {
        self.lease()?;
        let mut lease = self.lease.take().expect("it was just made");
        let outcome = f(self, &mut lease);
        self.lease = Some(lease);
        outcome
    }

    /// Records that a statement is executed, and opens the engine's transaction if all statements
    /// have one snapshot.
    pub(crate) fn begin_statement(&mut self, lease: &Lease) -> Result<()> {
        self.config.mode.queried = true;
        if self.config.mode.isolation.keeps_snapshot() { self.open(lease) } else { Ok(()) }
    }

    /// Opens the engine's transaction if the client has begun one.
    fn open(&mut self, lease: &Lease) -> Result<()> {
        if !matches!(self.tx, Tx::Block | Tx::Implicit) || self.config.mode.open {
            return Ok(());
        }
        lease.execute_batch("BEGIN")?;
        self.config.mode.open = true;
        for name in &self.savepoints {
            lease.execute_batch(&format!("SAVEPOINT {}", quote(name)))?;
        }
        Ok(())
    }

    /// Acquires the write gate until the end of the transaction, which is opened.
    pub(crate) fn own_gate(&mut self, lease: &Lease) -> std::result::Result<(), Failure> {
        self.take_gate(LockPatience::Waits)?;
        Ok(self.open(lease)?)
    }

    /// The same for a statement that locks what it reads. The transaction fails if its snapshot is
    /// not the newest.
    pub(crate) fn own_gate_to_read(
        &mut self,
        lease: &Lease,
        patience: LockPatience,
    ) -> std::result::Result<(), Failure> {
        self.take_gate(patience)?;
        self.open(lease)?;
        if self.config.mode.open && self.config.mode.isolation.keeps_snapshot() {
            // SQLite has no statement that only begins to write. Of a database that does not keep
            // lists for it, this one frees no page.
            lease.execute_batch("PRAGMA main.incremental_vacuum(1)")?;
        }
        Ok(())
    }

    /// Refuses a statement that changes something to a reader, and in a read-only transaction.
    ///
    /// # Errors
    /// 42501 and 25006.
    pub(crate) fn check_may_write(&self) -> Result<()> {
        self.check_owner("write")?;
        if self.mode().read_only {
            let message = "cannot execute this statement in a read-only transaction";
            return Err(SqlError::new("25006", message));
        }
        Ok(())
    }

    /// Acquires the write gate.
    ///
    /// Not all workers may wait for the gate, because its owner may be a client that waits for an
    /// answer on another of its connections. So if many workers wait already, a statement that has
    /// had no effect yet returns its worker and waits in the queue without one.
    fn take_gate(&mut self, patience: LockPatience) -> std::result::Result<(), Failure> {
        self.check_may_write()?;
        if self.holds_gate {
            return Ok(());
        }
        if patience == LockPatience::NoWait {
            self.server.engine.check_writable()?;
            if !self.server.engine.try_gate(self.user) {
                let message = "could not obtain the lock: another transaction writes or has it";
                return Err(SqlError::new("55P03", message).into());
            }
        } else {
            self.limit_wait_for_gate();
            if self.may_defer && self.server.gate_is_crowded() {
                return Err(Failure::Later);
            }
            self.server.engine.check_writable()?;
            self.server.engine.gate.acquire(self.user, None).map_err(|_| host::Interrupted)?;
            self.disarm(Cause::LockTimeout);
        }
        self.holds_gate = true;
        self.gate_position = self.server.engine.begin_to_write();
        Ok(())
    }

    /// Executes transaction control, and returns its command tag. Returns `None` for another
    /// statement.
    pub(crate) fn transaction_control(
        &mut self,
        statement: &Statement,
    ) -> std::result::Result<Option<&'static str>, Failure> {
        Ok(Some(match statement {
            Statement::Begin(begin) => {
                if begin.immediate {
                    // It may be deferred, so it changes nothing before.
                    self.take_gate(LockPatience::Waits)?;
                }
                self.begin_block(begin.characteristics)?;
                if begin.immediate {
                    self.with_lease(|me, lease| me.own_gate_to_read(lease, LockPatience::Waits))?;
                }
                if begin.starts { "START TRANSACTION" } else { "BEGIN" }
            }
            Statement::Commit { chains } | Statement::Rollback { chains } => {
                let is_commit = matches!(statement, Statement::Commit { .. });
                let commits = is_commit && self.tx != Tx::Failed;
                if *chains {
                    return self.end_and_chain(is_commit, commits).map(Some);
                }
                if matches!(self.tx, Tx::Idle | Tx::Implicit) {
                    self.out.warning("25P01", "there is no transaction in progress");
                }
                if commits {
                    self.commit()?;
                    "COMMIT"
                } else {
                    self.roll_back(Tx::Idle);
                    "ROLLBACK"
                }
            }
            Statement::SetTransaction(to) => {
                self.set_transaction(*to)?;
                "SET"
            }
            Statement::SetCharacteristics(to) => {
                self.set_characteristics(*to)?;
                "SET"
            }
            Statement::Lock(lock) => {
                self.lock_tables(lock)?;
                "LOCK TABLE"
            }
            _ => return Ok(self.savepoint_control(statement)?),
        }))
    }

    /// Ends the transaction, and begins another one with the same characteristics.
    fn end_and_chain(
        &mut self,
        is_commit: bool,
        commits: bool,
    ) -> std::result::Result<&'static str, Failure> {
        if matches!(self.tx, Tx::Idle | Tx::Implicit) {
            let word = if is_commit { "COMMIT" } else { "ROLLBACK" };
            let message = format!("{word} AND CHAIN can only be used in transaction blocks");
            return Err(SqlError::new("25P01", message).into());
        }
        let TxMode { isolation, read_only, .. } = self.config.mode;
        if commits {
            self.commit()?;
        } else {
            self.roll_back(Tx::Idle);
        }
        self.begin(Tx::Block);
        (self.config.mode.isolation, self.config.mode.read_only) = (isolation, read_only);
        Ok(if commits { "COMMIT" } else { "ROLLBACK" })
    }

    fn begin_block(&mut self, characteristics: Characteristics) -> Result<()> {
        match self.tx {
            Tx::Idle => self.begin(Tx::Block),
            Tx::Implicit => self.tx = Tx::Block,
            _ => self.out.warning("25001", "there is already a transaction in progress"),
        }
        self.config.mode.change(characteristics)
    }

    pub(crate) fn set_transaction(&mut self, to: Characteristics) -> Result<()> {
        if matches!(self.tx, Tx::Idle | Tx::Implicit) {
            self.warn_outside("SET TRANSACTION");
            return Ok(());
        }
        self.config.mode.change(to)
    }

    /// Locks the tables: for readers of the tables' definitions a snapshot is enough.
    fn lock_tables(&mut self, lock: &TableLock) -> std::result::Result<(), Failure> {
        self.begin_several();
        if self.tx == Tx::Idle {
            return Err(only_in_blocks("LOCK TABLE").into());
        }
        self.with_lease(|me, lease| {
            me.begin_statement(lease)?;
            if !lock.weakest || !me.config.mode.isolation.keeps_snapshot() {
                me.own_gate_to_read(lease, lock.patience)?;
            }
            for table in &lock.tables {
                let mut exists = lease.prepare(&format!("SELECT 1 FROM {}", quote(table)))?;
                exists.query([])?.next()?;
            }
            Ok(())
        })
    }

    fn savepoint_control(&mut self, statement: &Statement) -> Result<Option<&'static str>> {
        Ok(Some(match statement {
            Statement::Savepoint(name) => {
                self.in_block("SAVEPOINT")?;
                self.if_open("SAVEPOINT", name)?;
                self.savepoints.push(name.as_str().into());
                "SAVEPOINT"
            }
            Statement::Release(name) => {
                let at = self.savepoint(name, "RELEASE SAVEPOINT")?;
                self.if_open("RELEASE", name)?;
                self.savepoints.truncate(at);
                for (_, portal) in &mut self.portals {
                    portal.savepoints = portal.savepoints.min(at);
                }
                "RELEASE"
            }
            Statement::RollbackTo(name) => {
                let at = self.savepoint(name, "ROLLBACK TO SAVEPOINT")?;
                self.if_open("ROLLBACK TO", name)?;
                self.forget_changes();
                self.savepoints.truncate(at + 1);
                self.portals.retain(|(_, portal)| portal.savepoints <= at);
                self.tx = Tx::Block;
                "ROLLBACK"
            }
            _ => return Ok(None),
        }))
    }

    /// Executes a statement about a savepoint in the engine's transaction, if that is open.
    fn if_open(&mut self, verb: &str, savepoint: &str) -> Result<()> {
        if let Some(lease) = self.lease.as_ref().filter(|_| self.config.mode.open) {
            lease.execute_batch(&format!("{verb} {}", quote(savepoint)))?;
        }
        Ok(())
    }

    fn in_block(&self, what: &str) -> Result<()> {
        match self.tx {
            Tx::Idle | Tx::Implicit => Err(only_in_blocks(what)),
            Tx::Block | Tx::Failed => Ok(()),
        }
    }

    fn savepoint(&self, name: &str, what: &str) -> Result<usize> {
        self.in_block(what)?;
        let found = self.savepoints.iter().rposition(|known| known.eq_ignore_ascii_case(name));
        found.ok_or_else(|| SqlError::new("3B001", format!("savepoint \"{name}\" does not exist")))
    }
}

fn only_in_blocks(what: &str) -> SqlError {
    SqlError::new("25P01", format!("{what} can only be used in transaction blocks"))
}
