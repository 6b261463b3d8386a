//! Runs statements: SQL on a leased connection, whose rows it sends, and the others by calling what
//! executes them.
//!
//! `transaction` has the rules of transactions and the write gate.

use std::sync::Arc;

use rusqlite::Statement as Prepared;
use rusqlite::types::{Value, ValueRef};

use crate::dialect::statement::check_verb;
use crate::dialect::tokens::{statements, tokens};
use crate::dialect::{Copy, Manner, Sql, Statement};
use crate::engine::{Engine, Lease, check_keys};
use crate::error::{CANCELLED, Failure, NOT_AUTHORIZED, Result, SqlError, position};
use crate::host::{self, Conn};
use crate::memory::{Kept, Purse};
use crate::plan;
use crate::session::{OUT_MAX, Session, Tx, settle};
use crate::tls::Stream;
use crate::wire::message::utf8;
use crate::wire::out::Out;
use crate::wire::types::{self, Column};

/// The most bytes of a suspended portal's result that are kept.
const SUSPENDED_MAX: usize = 64 << 20;

/// How to execute a statement.
#[derive(Debug, Clone, Default)]
pub(crate) struct Call<'a> {
    pub(crate) parameters: &'a [Value],
    pub(crate) formats: &'a [u16],
    /// The most rows to send; zero means all.
    pub(crate) limit: usize,
    /// Whether to keep all rows and to send none.
    pub(crate) keeps: bool,
    /// Whether to count the rows only.
    pub(crate) discards: bool,
    /// The form in which COPY sends the rows.
    pub(crate) copies: Option<&'a Copy>,
    /// Whether to send a RowDescription, or NoData, first.
    pub(crate) describe: bool,
    /// The columns as they were described to the client, if they were.
    pub(crate) columns: Option<Vec<Column>>,
}

/// How an execution ended.
#[derive(Debug, PartialEq)]
pub(crate) enum Ran {
    /// The statement is complete; this is its command tag.
    Complete(String),
    /// The row limit was reached; these are the remaining DataRow messages.
    Suspended(Vec<u8>),
}

impl Session {
    /// Carries out a Query message.
    pub(crate) fn simple_query(
        &mut self,
        conn: &mut dyn Conn,
        body: &[u8],
    ) -> std::result::Result<(), Failure> {
        self.portals.retain(|(name, _)| !name.is_empty());
        let text = body.strip_suffix(b"\0").unwrap_or(body);
        let mut text = utf8(text);
        if let Ok(inner) = text
            && inner.contains('\0')
        {
            text = Err(SqlError::protocol("invalid message format"));
        }
        let outcome = match &text {
            Ok(text) => self.query_text(conn, text),
            Err(error) => Err(error.clone().into()),
        };
        if let Err(failure) = outcome.and_then(|()| Ok(self.end_implicit()?)) {
            let position = |error: &SqlError| position(text.as_ref().ok().copied(), error);
            self.fail(conn, failure, position)?;
        }
        self.several = false;
        self.ready();
        self.let_go();
        Ok(())
    }

    fn query_text(&mut self, conn: &mut dyn Conn, text: &str) -> std::result::Result<(), Failure> {
        let mut list = tokens(text)?;
        let all = statements(&list);
        if all.is_empty() {
            self.out.bare(b'I');
        }
        self.several = all.len() > 1;
        if self.several {
            all.iter().try_for_each(|range| check_verb(&list[range.start]))?;
        }
        let done = std::mem::take(&mut self.statements_done);
        self.may_defer &= done == 0;
        for (number, range) in all.into_iter().enumerate().skip(done) {
            let call = Call { describe: true, ..Call::default() };
            let outcome = self.within_limit(|me| {
                let statement = me.recognise(&mut list[range], text)?;
                me.execute(conn, &statement, call)
            })?;
            self.may_defer = false;
            match outcome {
                Ran::Complete(tag) => self.out.complete(&tag),
                Ran::Suspended(_) => unreachable!("a simple query has no row limit"),
            }
            if std::mem::take(&mut self.cancelled_late) {
                self.statements_done = number + 1;
                return Err(Failure::Again);
            }
        }
        Ok(())
    }

    /// Sends an error to the client, and moves the transaction to the state that follows an error.
    pub(crate) fn fail(
        &mut self,
        conn: &dyn Conn,
        failure: Failure,
        position: impl Fn(&SqlError) -> Option<usize>,
    ) -> std::result::Result<(), Failure> {
        let Failure::Sql(mut error) = failure else { return Err(failure) };
        if matches!(error.code, "40001" | "53200") && host::cancelled() {
            // The statement was cancelled while it waited for a lock, which the engine reports as
            // busy, or when it asked for memory.
            error = host::Interrupted.into();
        }
        if error.code == "57014" && error.message == CANCELLED {
            error = self.why_cancelled(conn, error)?;
        }
        if error.code == NOT_AUTHORIZED
            && let Some(refused) = self.lease.as_ref().and_then(|lease| lease.refused())
        {
            error = SqlError { offset: error.offset, ..refused };
        }
        if error.fatal {
            return Err(Failure::Sql(error));
        }
        self.out.error(&error, position(&error));
        self.notice_rollback();
        match self.tx {
            Tx::Idle => (),
            Tx::Implicit => self.roll_back(Tx::Idle),
            // Without a savepoint a failed transaction cannot continue, so it is rolled back now.
            Tx::Block if self.savepoints.is_empty() => self.roll_back(Tx::Failed),
            Tx::Block | Tx::Failed => self.tx = Tx::Failed,
        }
        self.release_gate_outside();
        Ok(())
    }

    /// Executes one statement. Its rows go to the output; returns its command tag.
    pub(crate) fn execute(
        &mut self,
        conn: &mut dyn Conn,
        statement: &Statement,
        call: Call<'_>,
    ) -> std::result::Result<Ran, Failure> {
        let ends = matches!(
            statement,
            Statement::Commit { .. } | Statement::Rollback { .. } | Statement::RollbackTo(_)
        );
        if self.tx == Tx::Failed && !ends {
            let message =
                "current transaction is aborted, commands ignored until end of transaction block";
            return Err(SqlError::new("25P02", message).into());
        }
        match statement {
            Statement::Sql(sql) => self.execute_sql(conn, sql, call),
            Statement::Alter(alter) => self.alter_table(alter),
            Statement::Owner(owner) => self.change_owner(owner),
            Statement::Sequence(sequence) => self.change_sequence(sequence),
            Statement::CheckConstraints => self.check_constraints(),
            Statement::Explain(explain) => self.explain(conn, explain, call),
            Statement::Prepare(prepare) => {
                self.prepare(prepare)?;
                Ok(Ran::Complete("PREPARE".into()))
            }
            Statement::Execute(execute) => self.execute_prepared(conn, execute, call),
            Statement::Cursor(cursor) => self.cursor(conn, cursor, &call),
            Statement::CopyOut(copy) => self.copy_out(conn, copy),
            Statement::Copy(copy) => {
                self.begin_several();
                self.copy_in(conn, copy)
            }
            other => {
                if let Some(tag) = self.transaction_control(other)? {
                    if call.describe && call.columns.is_none() && call.limit > 0 {
                        self.out.bare(b'n');
                    }
                    return Ok(Ran::Complete(tag.into()));
                }
                self.own_statement(conn, other, call)
            }
        }
    }

    pub(crate) fn execute_sql(
        &mut self,
        conn: &mut dyn Conn,
        sql: &Sql,
        call: Call<'_>,
    ) -> std::result::Result<Ran, Failure> {
        match sql.manner {
            Manner::Plain => (),
            Manner::Numbers(takes) => self.several |= takes.is_some(),
            Manner::Alone if self.tx == Tx::Idle && !self.several => (),
            Manner::Alone => {
                let message = format!("{} cannot run inside a transaction block", sql.tag);
                return Err(SqlError::new("25001", message).into());
            }
        }
        // One statement of the client may be several statements for SQLite. All of them take
        // effect, or none.
        self.several |= sql.texts.len() > 1;
        self.begin_several();
        let outcome = self.with_lease(|me, lease| {
            me.begin_statement(lease)?;
            lease.pinned |= sql.pins;
            let queries = sql.tag == "SELECT" && !sql.alters && !sql.pins && sql.locks.is_none();
            if let Manner::Numbers(takes) = sql.manner {
                me.open_sequences(lease, sql, takes)?;
            }
            let outcome = match queries && lease.is_autocommit() {
                true => me.query(conn, lease, sql, call),
                false => me.run_texts(conn, lease, sql, call),
            };
            let outcome = me.close_sequences(lease, outcome);
            if me.config.mode.checks_keys && outcome.is_ok() && !queries {
                check_keys(lease, None)?;
            }
            if sql.alters && !sql.pins {
                lease.schema_changed();
                me.server.forget_plans();
                me.config.mode.altered = true;
            }
            outcome
        });
        self.release_gate_outside();
        outcome
    }

    /// Runs a query. SQLite compiles it again, up to fifty times, if the schema has changed before
    /// it runs. If the schema changes often, the query has a transaction, whose snapshot stays, so
    /// that it is compiled once more at most. (A statement that writes has the gate meanwhile.)
    fn query(
        &mut self,
        conn: &mut dyn Conn,
        lease: &mut Lease,
        sql: &Sql,
        call: Call<'_>,
    ) -> std::result::Result<Ran, Failure> {
        if !std::mem::take(&mut lease.refreshed) {
            let before = self.out.bytes.len();
            let outcome = self.run_texts(conn, lease, sql, call.clone());
            let changed = outcome.as_ref().is_err_and(Failure::is_changed_schema);
            if !changed || self.out.bytes.len() != before {
                return outcome;
            }
        } else if sql.catalog {
            lease.ensure_catalog()?;
        }
        lease.execute_batch("BEGIN")?;
        let outcome = self.run_texts(conn, lease, sql, call);
        let end = if outcome.is_ok() { "COMMIT" } else { "ROLLBACK" };
        // After some errors SQLite has ended the transaction itself.
        let ended = if lease.is_autocommit() { Ok(()) } else { lease.execute_batch(end) };
        if ended.is_err() && !lease.is_autocommit() {
            let _ = lease.execute_batch("ROLLBACK");
        }
        outcome.and_then(|ran| Ok(ended.map(|()| ran)?))
    }

    pub(crate) fn run_texts(
        &mut self,
        conn: &mut dyn Conn,
        lease: &mut Lease,
        sql: &Sql,
        call: Call<'_>,
    ) -> std::result::Result<Ran, Failure> {
        if sql.catalog {
            lease.ensure_catalog()?;
        }
        let mut rows = 0;
        for (at, text) in sql.texts.iter().enumerate() {
            let located = |failure| locate(failure, sql);
            let mut prepared = lease.prepare_cached(text).map_err(|error| located(error.into()))?;
            if !prepared.readonly() || (sql.tag == "PRAGMA" && writes(text, self.tx)) {
                self.own_gate(lease)?;
            } else if let Some(patience) = sql.locks {
                self.own_gate_to_read(lease, patience)?;
            }
            bind(&mut prepared, call.parameters)?;
            let waits = self.config.waits_for_disk();
            let mut run = Run {
                out: &mut self.out,
                conn,
                stream: &mut self.stream,
                purse: &mut self.purse,
                kept: self.kept,
                engine: &self.server.engine,
                unsettled: &mut self.unsettled,
                waits,
                sent: 0,
                rest: Vec::new(),
            };
            lease.lend(&mut self.config);
            let outcome = run.rows(&mut prepared, sql, lease, &call);
            lease.lend(&mut self.config);
            let (sent, rest) = (run.sent, run.rest);
            self.after_settings()?;
            outcome?;
            self.kept.rows += rest.capacity();
            if !rest.is_empty() {
                // All rows have been stored.
                self.note_taken(sql, lease, 1);
                return Ok(Ran::Suspended(rest));
            }
            // CREATE TABLE .. AS is two statements, of which the second stores rows.
            let changes =
                matches!(sql.tag, "INSERT 0" | "UPDATE" | "DELETE") || sql.alters && at > 0;
            rows += if changes { lease.changes() as usize } else { sent };
            if changes {
                self.note_taken(sql, lease, rows);
            }
            if call.limit > 0 && sent == call.limit {
                // The row limit is exactly the number of rows, so the client's next Execute gets no
                // rows.
                return Ok(Ran::Suspended(Vec::new()));
            }
        }
        Ok(Ran::Complete(sql.complete(rows)))
    }
}

impl Session {
    /// Notes which number an INSERT has taken last from a sequence, if it has stored rows.
    fn note_taken(&mut self, sql: &Sql, lease: &Lease, rows: usize) {
        if let Some(taken) = &sql.taken {
            let number = (rows > 0).then(|| lease.last_insert_rowid());
            self.config.sequences.get_or_insert_default().took_some(taken, number);
        }
    }
}

/// Returns whether a PRAGMA needs the write gate although SQLite does not report that.
fn writes(pragma: &str, tx: Tx) -> bool {
    let pragma = pragma.to_ascii_lowercase();
    // `PRAGMA optimize` writes by internal statements. `PRAGMA defer_foreign_keys` sets something
    // until the end of SQLite's transaction, which must be that of the client.
    let defers = pragma.contains("defer_foreign_keys") && pragma.contains(['=', '(']);
    pragma.contains("optimize") || (defers && tx != Tx::Idle)
}

/// Translates an error's offset in the statement to its offset in the client's query.
fn locate(failure: Failure, sql: &Sql) -> Failure {
    match failure {
        Failure::Sql(mut error) => {
            error.offset = error.offset.and_then(|offset| sql.place(offset));
            Failure::Sql(error)
        }
        gone => gone,
    }
}

/// Binds a value to every `$n` of the statement.
pub(crate) fn bind(prepared: &mut Prepared<'_>, parameters: &[Value]) -> Result<()> {
    prepared.clear_bindings();
    for index in 1..=prepared.parameter_count() {
        let number =
            prepared.parameter_name(index).and_then(|name| name.strip_prefix('$')?.parse().ok());
        let value = number.and_then(|number: usize| parameters.get(number.checked_sub(1)?));
        let value =
            value.ok_or_else(|| SqlError::new("42P02", "there is no value for a parameter"))?;
        prepared.raw_bind_parameter(index, value)?;
    }
    Ok(())
}

/// The rows of one statement while they are sent.
struct Run<'a> {
    out: &'a mut Out,
    conn: &'a mut dyn Conn,
    stream: &'a mut Stream,
    purse: &'a mut Purse,
    /// What the session keeps besides.
    kept: Kept,
    engine: &'a Arc<Engine>,
    /// The session's field with the same name.
    unsettled: &'a mut Option<u64>,
    waits: bool,
    sent: usize,
    /// The DataRow messages beyond the row limit.
    rest: Vec<u8>,
}

impl Run<'_> {
    /// Sends the buffer. The buffer may contain the answer to an earlier statement that committed,
    /// so this function first waits until that commit is durable.
    fn send(&mut self) -> std::result::Result<(), Failure> {
        if let Err(error) = settle(self.unsettled, self.engine, self.waits) {
            self.out.bytes.clear();
            return Err(SqlError { fatal: true, ..error }.into());
        }
        let bytes = &mut self.out.bytes;
        let written = self.stream.write_until_cancelled(self.conn, bytes).map_err(Failure::gone)?;
        // What the client has not received of its rows comes before the error.
        bytes.drain(..written);
        if host::cancelled() {
            return Err(host::Interrupted.into());
        }
        self.out.clear();
        Ok(())
    }

    /// Counts the rows that are kept, and those that are sent next.
    fn count(&mut self, db: &Lease) -> Result<()> {
        let output = self.out.bytes.capacity();
        let kept = Kept { output, rows: self.kept.rows + self.rest.capacity(), ..self.kept };
        self.purse.count(kept, Some(db.account()))
    }

    /// Keeps a row beyond the limit.
    fn keep_row<'a>(
        &mut self,
        columns: &[Column],
        db: &Lease,
        value: impl FnMut(usize) -> Result<ValueRef<'a>>,
    ) -> Result<()> {
        let mut kept = Out { bytes: std::mem::take(&mut self.rest) };
        let before = kept.bytes.capacity();
        kept.data_row(columns, self.engine.limits.client, value)?;
        self.rest = kept.bytes;
        if self.rest.capacity() > before {
            self.count(db)?;
        }
        if self.rest.len() > SUSPENDED_MAX {
            return Err(SqlError::new("54000", "the rest of a portal or cursor is too big"));
        }
        Ok(())
    }

    fn rows(
        &mut self,
        prepared: &mut Prepared<'_>,
        sql: &Sql,
        db: &Lease,
        call: &Call<'_>,
    ) -> std::result::Result<(), Failure> {
        let max = self.engine.limits.client;
        // SQLite shows what a function of its own returns that ALTER TABLE calls.
        let count = if sql.tag == "ALTER TABLE" { 0 } else { prepared.column_count() };
        let known = match &call.columns {
            Some(columns) if columns.len() == count => None,
            Some(_) if count > 0 => {
                return Err(SqlError::unsupported("cached plan must not change result type").into());
            }
            _ if count == 0 => Some(Vec::new()),
            _ => Some(plan::columns(prepared, sql)),
        };
        let mut rows = prepared.raw_query();
        let mut next = rows.next()?;
        let columns = match (known, &call.columns) {
            (Some(known), _) => plan::settle(known, call.formats, |index| {
                types::of_value(next.as_ref()?.get_ref(index).ok()?)
            }),
            (None, columns) => columns.clone().unwrap_or_default(),
        };
        if call.describe && count > 0 {
            match call.copies {
                Some(form) => form.begin(self.out, &columns),
                None => self.out.row_description(&columns),
            }
        }
        while let Some(row) = next {
            let value = |index: usize| -> Result<ValueRef<'_>> { Ok(row.get_ref(index)?) };
            if call.discards || count == 0 {
                self.sent += usize::from(count > 0);
            } else if call.keeps || (call.limit > 0 && self.sent == call.limit) {
                self.keep_row(&columns, db, value)?;
            } else {
                match call.copies {
                    Some(form) => form.row(self.out, &columns, max, value)?,
                    None => self.out.data_row(&columns, max, value)?,
                }
                self.sent += 1;
                if self.out.bytes.len() > OUT_MAX {
                    self.count(db)?;
                    self.send()?;
                }
            }
            next = rows.next()?;
        }
        if call.copies.is_some() {
            self.out.bare(b'c');
        }
        Ok(())
    }
}
