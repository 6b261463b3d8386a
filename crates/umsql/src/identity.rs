//! Columns that get numbers after their table was created: ADD GENERATED .. AS IDENTITY, and the
//! statements about sequences with which pg_dump writes a `serial` column.
//!
//! ```text
//!   create sequence t_id_seq                           numbers the column id of the empty table t
//!   alter sequence t_id_seq owned by t.id              is so already
//!   alter table t alter id set default nextval('t_id_seq')  is so already
//! ```
//!
//! There are no sequences besides those of columns.

use rusqlite::{Connection, OptionalExtension};

use crate::dialect::alter::{numbered, other_key};
use crate::dialect::sequence::{SequenceOptions, SequenceStatement, sequence_name};
use crate::dialect::translate::quote;
use crate::engine::{Lease, sequences};
use crate::error::{Failure, Result, SqlError};
use crate::run::Ran;
use crate::session::Session;

impl Session {
    /// Carries out CREATE SEQUENCE, and ALTER SEQUENCE .. OWNED BY.
    pub(crate) fn change_sequence(
        &mut self,
        statement: &SequenceStatement,
    ) -> std::result::Result<Ran, Failure> {
        match statement {
            SequenceStatement::Create { name, if_not_exists, start } => self
                .change_schema("CREATE SEQUENCE", |lease| {
                    create(lease, name, *if_not_exists, *start)
                }),
            SequenceStatement::Own { name, table, column } => {
                let all = self.with_lease(|me, lease| {
                    me.begin_statement(lease)?;
                    Ok(sequences(lease)?)
                })?;
                let found = all.iter().find(|one| one.name.eq_ignore_ascii_case(name));
                let Some(own) = found else {
                    let message = format!("relation \"{name}\" does not exist");
                    return Err(SqlError::new("42P01", message).into());
                };
                if !own.is_of(table, column) {
                    let message = "a sequence that another column owns is not supported";
                    return Err(SqlError::unsupported(message).into());
                }
                Ok(Ran::Complete("ALTER SEQUENCE".into()))
            }
        }
    }
}

/// Numbers the column whose sequence has this name.
fn create(lease: &Lease, name: &str, if_not_exists: bool, start: i64) -> Result<()> {
    let is_taken = "SELECT 1 FROM sqlite_schema WHERE name = ?1 COLLATE NOCASE";
    let is_sequence = sequences(lease)?.iter().any(|one| one.name.eq_ignore_ascii_case(name));
    if is_sequence || lease.prepare(is_taken)?.exists([name])? {
        let message = format!("relation \"{name}\" already exists");
        return if if_not_exists { Ok(()) } else { Err(SqlError::new("42P07", message)) };
    }
    let owner = "SELECT s.name, t.name FROM sqlite_schema s JOIN pragma_table_info(s.name) t
        WHERE s.type = 'table' AND s.name || '_' || t.name || '_seq' = ?1 COLLATE NOCASE";
    let owner = lease.query_row(owner, [name], |row| Ok((row.get(0)?, row.get(1)?)));
    let (table, column): (String, String) = owner.optional()?.ok_or_else(|| {
        SqlError::unsupported("a sequence that is not that of a column is not supported")
            .hint("For the column id of an empty table t, its name is t_id_seq.")
    })?;
    let (_, mut text) = definition(lease, &table)?.unwrap_or_default();
    let options = SequenceOptions { name: None, start };
    number(lease, &table, &mut text, (&column, false), &options)
}

/// Gives a column the next number of its sequence by default. One that is numbered has that
/// already.
pub(crate) fn number_by_default(
    lease: &Lease,
    table: &str,
    definition: &mut String,
    column: &str,
    sequence: &str,
) -> Result<()> {
    let all = sequences(lease)?;
    let own = all.iter().find(|one| one.is_of(table, column));
    if own.is_some_and(|own| own.name.eq_ignore_ascii_case(sequence)) {
        return Ok(());
    }
    let options = SequenceOptions { name: Some(sequence.to_owned()), start: 1 };
    number(lease, table, definition, (column, false), &options)
}

/// Makes a column the number of the row, which SQLite gives.
pub(crate) fn number(
    lease: &Lease,
    table: &str,
    definition: &mut String,
    (column, is_always): (&str, bool),
    options: &SequenceOptions,
) -> Result<()> {
    let own = sequence_name(table, column);
    if options.name.as_ref().is_some_and(|name| !name.eq_ignore_ascii_case(&own)) {
        let message = format!("a sequence of this column with another name than {own}");
        return Err(SqlError::unsupported(message).hint("Leave the name out."));
    }
    let numbered = numbered(definition, column, is_always)?;
    if has_added_key(lease, table)? {
        return Err(other_key());
    }
    let rows = format!("SELECT EXISTS (SELECT 1 FROM {})", quote(table));
    if numbered.is_stored_anew && lease.query_row(&rows, [], |row| row.get(0))? {
        let message = format!("table \"{table}\" has rows, so its column cannot be numbered");
        return Err(SqlError::unsupported(message).hint("Create the table anew."));
    }
    // SQLite keeps the numbers in a table that it makes with the first table that has some.
    lease.execute_batch(
        "CREATE TABLE ums_numbers(x INTEGER PRIMARY KEY AUTOINCREMENT); DROP TABLE ums_numbers",
    )?;
    *definition = numbered.definition;
    lease.redefine(table, definition)?;
    if options.start > 1 {
        let first = "INSERT INTO sqlite_sequence (name, seq) VALUES (?1, ?2)";
        lease.execute(first, (table, options.start - 1))?;
    }
    Ok(())
}

/// Returns whether the table has a primary key that was added later. One of an earlier version has
/// no comment.
pub(crate) fn has_added_key(db: &Connection, table: &str) -> Result<bool> {
    let text = "SELECT EXISTS (SELECT 1 FROM sqlite_schema
        WHERE type = 'index' AND tbl_name = ?1 COLLATE NOCASE
        AND (name = ?1 || '_pkey' COLLATE NOCASE OR sql LIKE '%/* PRIMARY KEY */)'))";
    Ok(db.query_row(text, [table], |row| row.get(0))?)
}

/// Returns the table's name, as it was created, and its definition.
pub(crate) fn definition(db: &Connection, table: &str) -> Result<Option<(String, String)>> {
    let text =
        "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE";
    let row = db.query_row(text, [table], |row| Ok((row.get(0)?, row.get(1)?)));
    Ok(row.optional()?)
}
