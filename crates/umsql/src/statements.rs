//! The statements that the session executes without SQLite: DBCC, WAITFOR, BACKUP, KILL,
//! and a few answers with a fixed form.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::types::{Value, ValueRef};

use crate::accounts::Role;
use crate::dialect::Statement;
use crate::error::{Failure, Result, SqlError};
use crate::host::{self, Conn};
use crate::known_settings::REPORTED;
use crate::run::{Call, Ran};
use crate::session::{OUT_MAX, Session, Tx};
use crate::wire::message::format_of;
use crate::wire::out::Out;
use crate::wire::types::{self, Column};

/// How many pages one step of a backup copies.
const BACKUP_PAGES: i32 = 256;
/// How long a backup waits while other connections have its target locked.
const BACKUP_PATIENCE: Duration = Duration::from_secs(5);
/// How long a backup waits between two attempts.
const BACKUP_PAUSE: Duration = Duration::from_millis(5);

/// Returns the columns of a statement of this file. Returns `None` if its answer is only a tag.
pub(crate) fn columns(statement: &Statement) -> Option<Vec<Column>> {
    let column = |name: &str, oid| Column::new(name, oid);
    Some(match statement {
        Statement::Show(name) => {
            let reported = REPORTED.iter().find(|reported| reported.eq_ignore_ascii_case(name));
            vec![column(reported.map_or(&name.replace(' ', "_"), |name| name), types::TEXT)]
        }
        Statement::UmsStats => {
            vec![column("Statistic", types::TEXT), column("Value", types::NUMERIC)]
        }
        Statement::WaitStats => vec![
            column("Wait Type", types::TEXT),
            column("Requests", types::INT8),
            column("Wait Time", types::NUMERIC),
            column("Signal Wait Time", types::NUMERIC),
        ],
        Statement::PartitionProbe(_) => vec![
            column("n", types::INT4),
            column("partstrat", types::CHAR),
            column("count", types::INT8),
        ],
        Statement::Nothing => vec![column("?column?", types::TEXT)],
        Statement::Explain(_) => plan_columns(),
        _ => return None,
    })
}

/// Returns the column of EXPLAIN.
fn plan_columns() -> Vec<Column> {
    vec![Column::new("QUERY PLAN", types::TEXT)]
}

fn text(text: impl Into<String>) -> Value {
    Value::Text(text.into())
}

/// Returns a number with one decimal, as umsstats prints it.
fn one_decimal(value: f64) -> Value {
    text(format!("{value:.1}"))
}

fn umsstats_rows() -> Vec<Vec<Value>> {
    let stats = host::umsstats().into_iter();
    stats.map(|(name, value)| vec![text(name), one_decimal(value)]).collect()
}

fn waitstats_rows() -> Vec<Vec<Value>> {
    let rows = host::waitstats().into_iter().map(|stat| {
        let requests = Value::Integer(stat.requests as i64);
        vec![text(stat.reason), requests, one_decimal(stat.wait_ms), one_decimal(stat.signal_ms)]
    });
    rows.collect()
}

impl Session {
    /// Executes a statement of this file.
    pub(crate) fn own_statement(
        &mut self,
        conn: &mut dyn Conn,
        statement: &Statement,
        call: Call<'_>,
    ) -> std::result::Result<Ran, Failure> {
        self.check_role(statement)?;
        let (rows, tag) = self.answer(statement)?;
        match call.columns.clone().or_else(|| columns(statement)) {
            Some(columns) => self.send_answer(conn, columns, &rows, tag, call),
            None => Ok(Ran::Complete(tag.into())),
        }
    }

    /// Sends the rows of EXPLAIN.
    pub(crate) fn answer_rows(
        &mut self,
        conn: &mut dyn Conn,
        rows: Vec<Vec<Value>>,
        tag: &str,
        call: Call<'_>,
    ) -> std::result::Result<Ran, Failure> {
        let columns = call.columns.clone().unwrap_or_else(plan_columns);
        self.send_answer(conn, columns, &rows, tag, call)
    }

    /// Sends rows, up to the limit.
    fn send_answer(
        &mut self,
        conn: &mut dyn Conn,
        mut columns: Vec<Column>,
        rows: &[Vec<Value>],
        tag: &str,
        call: Call<'_>,
    ) -> std::result::Result<Ran, Failure> {
        for (index, column) in columns.iter_mut().enumerate() {
            column.format = format_of(call.formats, index);
        }
        if call.describe {
            self.out.row_description(&columns);
        }
        let limit = if call.limit > 0 { call.limit } else { usize::MAX };
        let (sent, kept) = rows.split_at(rows.len().min(limit));
        for row in sent {
            self.out.data_row(&columns, usize::MAX, |index| Ok(ValueRef::from(&row[index])))?;
            if self.out.bytes.len() > OUT_MAX {
                self.flush(conn)?;
            }
        }
        if sent.len() == limit {
            let mut rest = Out::default();
            for row in kept {
                rest.data_row(&columns, usize::MAX, |index| Ok(ValueRef::from(&row[index])))?;
            }
            return Ok(Ran::Suspended(rest.bytes));
        }
        Ok(Ran::Complete(if tag == "SELECT" {
            format!("SELECT {}", rows.len())
        } else {
            tag.into()
        }))
    }

    /// Returns an error unless the client is an owner. `what` completes "only owners may".
    pub(crate) fn check_owner(&self, what: &str) -> Result<()> {
        if self.role == Role::Owner {
            return Ok(());
        }
        let name = &self.account;
        let message = format!("permission denied for user \"{name}\": only owners may {what}");
        Err(SqlError::new("42501", message))
    }

    /// Returns an error for a statement of this file that readers may not execute.
    fn check_role(&self, statement: &Statement) -> Result<()> {
        match statement {
            Statement::Backup(_) => self.check_owner("BACKUP"),
            Statement::Kill(_) => self.check_owner("KILL"),
            Statement::ClearWaitStats => self.check_owner("clear statistics"),
            _ => Ok(()),
        }
    }

    fn discard(&mut self, tag: &str) -> Result<()> {
        if matches!(tag, "DISCARD ALL" | "DISCARD TEMP") {
            self.drop_temporary_tables()?;
        }
        if matches!(tag, "DISCARD ALL" | "DISCARD SEQUENCES") {
            self.config.sequences = None;
        }
        if tag == "DISCARD ALL" {
            self.prepared = Vec::new();
            self.portals = Vec::new();
            self.reset(None)?;
        }
        Ok(())
    }

    fn drop_temporary_tables(&mut self) -> Result<()> {
        // Without a connection of its own, the session has none.
        let Some(lease) = &self.lease else { return Ok(()) };
        let tables = "SELECT name FROM sqlite_temp_schema \
             WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~'";
        let mut query = lease.prepare(tables)?;
        let names: Vec<String> =
            query.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        for name in names {
            lease.execute_batch(&format!("DROP TABLE temp.\"{}\"", name.replace('"', "\"\"")))?;
        }
        Ok(())
    }

    /// Returns the rows of the answer, and its tag.
    fn answer(&mut self, statement: &Statement) -> Result<(Vec<Vec<Value>>, &'static str)> {
        let no_rows = Vec::new();
        Ok(match statement {
            Statement::Set { name, value, local } => {
                self.set(name, Some(value), *local)?;
                (no_rows, "SET")
            }
            Statement::Show(name) => (vec![vec![text(self.config.show(name)?)]], "SHOW"),
            Statement::Reset(name) => {
                self.reset(name.as_deref())?;
                (no_rows, "RESET")
            }
            Statement::Discard(tag) => {
                self.discard(tag)?;
                (no_rows, tag)
            }
            Statement::Deallocate(None) => {
                self.prepared = Vec::new();
                (no_rows, "DEALLOCATE ALL")
            }
            Statement::Deallocate(Some(name)) => {
                self.plan_named(name)?;
                self.prepared.retain(|(known, _)| **known != **name);
                (no_rows, "DEALLOCATE")
            }
            Statement::UmsStats => (umsstats_rows(), "SELECT"),
            Statement::WaitStats => (waitstats_rows(), "SELECT"),
            Statement::ClearWaitStats => {
                host::clear_waitstats();
                (no_rows, "DBCC")
            }
            Statement::WaitFor(time) => {
                host::wait_for(*time)?;
                (no_rows, "WAITFOR")
            }
            Statement::Backup(path) => {
                self.backup(path)?;
                (no_rows, "BACKUP")
            }
            Statement::Kill(user) => {
                if !self.server.cancel_user(*user) {
                    return Err(SqlError::new(
                        "42704",
                        format!("user {user} has no request to cancel"),
                    ));
                }
                (no_rows, "KILL")
            }
            Statement::PartitionProbe(table) => {
                let found = self.lease()?.table_exists(None, table.as_str())?;
                let row = vec![Value::Integer(1), Value::Null, Value::Integer(0)];
                (if found { vec![row] } else { no_rows }, "SELECT")
            }
            Statement::Nothing => (no_rows, "SELECT"),
            Statement::Accepted(tag) => (no_rows, tag),
            // `run.rs` executes the others.
            _ => return Err(SqlError::unsupported("this statement cannot be executed here")),
        })
    }

    /// Copies the database to `path`, on a hidden scheduler, in steps. Other workers run between
    /// the steps.
    fn backup(&mut self, path: &str) -> Result<()> {
        if self.tx != Tx::Idle {
            return Err(SqlError::new("25001", "BACKUP cannot run inside a transaction block"));
        }
        if path.is_empty() {
            return Err(SqlError::new("42601", "BACKUP needs the name of a file"));
        }
        let engine = &self.server.engine;
        let target = engine.folders.check(path)?;
        if engine.is_at(&target) {
            return Err(SqlError::new("42501", "the server's own database is no target of BACKUP"));
        }
        host::on_hidden("BACKUP", || copy_database(&engine.second()?, &target, BACKUP_PATIENCE))
    }
}

fn copy_database(from: &Connection, target: &Path, patience: Duration) -> Result<()> {
    // One read transaction covers all steps, so the copy is of one moment, and a writer does not
    // make the backup start again.
    from.execute_batch("BEGIN")?;
    from.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    // SQLite would let others read a file that it creates.
    let made = OpenOptions::new().append(true).create(true).mode(0o600).open(target);
    drop(made.map_err(|error| SqlError::new("58030", error.to_string()))?);
    let mut to = Connection::open(target)?;
    // The loop below waits instead of SQLite. SQLite's own wait would block the thread and could
    // not be cancelled.
    to.busy_timeout(Duration::ZERO)?;
    let backup = Backup::new(from, &mut to)?;
    let mut left = patience;
    loop {
        match backup.step(BACKUP_PAGES)? {
            StepResult::Done => return Ok(()),
            StepResult::More => left = patience,
            _ if left.is_zero() => {
                return Err(SqlError::new("55006", "the file to back up to is in use"));
            }
            _ => {
                left = left.saturating_sub(BACKUP_PAUSE);
                host::sleep(BACKUP_PAUSE)?;
            }
        }
        // This yields, and returns an error if the request was cancelled.
        host::sleep(Duration::ZERO)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_of_another_file_is_refused_without_its_text() {
        let dir = std::env::temp_dir().join(format!("ums-answer-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let server = crate::Server::open(crate::Settings::new(dir.join("db"))).unwrap();
        let refused = server.session(1).answer(&Statement::Savepoint("s".into())).unwrap_err();
        assert_eq!(refused.code, "0A000");
        assert_eq!(refused.message, "this statement cannot be executed here");
        drop(server);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_backup_to_a_file_that_others_use_ends_with_an_error() {
        let name = format!("ums-backup-{}", std::process::id());
        let target = std::env::temp_dir().join(name);
        let other = Connection::open(&target).unwrap();
        other.execute_batch("CREATE TABLE t(x); BEGIN EXCLUSIVE").unwrap();
        let from = Connection::open_in_memory().unwrap();
        from.execute_batch("CREATE TABLE t(x)").unwrap();
        let patience = Duration::from_millis(50);
        let refused = copy_database(&from, &target, patience).unwrap_err();
        assert_eq!(refused.code, "55006");
        other.execute_batch("ROLLBACK").unwrap();
        from.execute_batch("ROLLBACK").unwrap();
        assert!(copy_database(&from, &target, patience).is_ok());
        drop(other);
        std::fs::remove_file(&target).unwrap();
    }
}
