//! Stores a new definition of a table, without copying its rows.
//!
//! SQLite describes this way for changes that do not concern how rows are stored: the text of the
//! definition in `sqlite_schema` is replaced. The server does it within the client's transaction,
//! on a connection that may write the schema only meanwhile, and looks afterwards whether SQLite
//! can read the definition.

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OptionalExtension};

use super::allowed::Refused;
use crate::dialect::translate::quote;
use crate::error::{Result, SqlError};

/// Replaces the definition of a table by `definition`. On an error, the caller undoes what has been
/// done so far.
pub(super) fn redefine(
    db: &Connection,
    refused: &Refused,
    table: &str,
    definition: &str,
) -> Result<()> {
    refused.trusting(|| {
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, false)?;
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_WRITABLE_SCHEMA, true)?;
        let stored = store(db, table, definition);
        // Also forgets the connection's copy of the schema.
        let ended = db.execute_batch("PRAGMA writable_schema = RESET");
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
        stored.and(Ok(ended?))
    })?;
    let quoted = table.replace('"', "\"\"");
    db.prepare(&format!("SELECT * FROM \"{quoted}\""))?;
    Ok(())
}

fn store(db: &Connection, table: &str, definition: &str) -> Result<()> {
    let update = "UPDATE sqlite_schema SET sql = ?1
        WHERE type = 'table' AND name = ?2 COLLATE NOCASE";
    if db.execute(update, [definition, table])? != 1 {
        return Err(SqlError::new("42P01", format!("relation \"{table}\" does not exist")));
    }
    // Changes the number of the schema, by which other connections notice the change.
    db.execute_batch("CREATE TABLE ums_changes(x); DROP TABLE ums_changes")?;
    Ok(())
}

/// Looks for rows of a table, or of all, that refer to none.
///
/// # Errors
/// 23503 if there is one.
pub(crate) fn check_keys(db: &Connection, table: Option<&str>) -> Result<()> {
    let within = table.map_or(String::new(), |table| format!("({})", quote(table)));
    let mut query = db.prepare(&format!("PRAGMA foreign_key_check{within}"))?;
    let found = query.query_row([], |row| row.get::<_, String>(0)).optional()?;
    match found {
        None => Ok(()),
        Some(table) => {
            let message = format!("a row of table \"{table}\" violates its foreign key");
            Err(SqlError::new("23503", message))
        }
    }
}
