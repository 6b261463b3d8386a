//! The declaration of a table's column.
//!
//! SQLite fails with a signal if it is asked for a column of a virtual table that no statement of
//! the connection has used yet, so such a table is used first.

use rusqlite::{Connection, Error, Result, Row};

/// What SQLite tells of a column: its type, its collation, and whether it is NOT NULL, a part of
/// the primary key, and numbered.
pub(super) type Metadata<'c> =
    (Option<&'c std::ffi::CStr>, Option<&'c std::ffi::CStr>, bool, bool, bool);

/// Returns what is declared of a column.
///
/// # Errors
/// If there is no such column, or if the table is a view.
pub(super) fn column_metadata<'c>(
    db: &'c Connection,
    schema: Option<&str>,
    table: &str,
    column: &str,
) -> Result<Metadata<'c>> {
    let owner =
        schema.map_or(String::new(), |schema| format!("\"{}\".", schema.replace('"', "\"\"")));
    let text = format!("PRAGMA {owner}table_list(\"{}\")", table.replace('"', "\"\""));
    // To prepare this statement uses each virtual table that was not used yet. SQLite prepares it
    // again if the tables have changed since. Nothing may run between it and the question.
    let mut list = db.prepare_cached(&text)?;
    let is_used = |row: &Row<'_>| Ok(row.get::<_, i64>("ncol")? > 0);
    let are_used = list.query_map([], is_used)?.collect::<Result<Vec<bool>>>()?;
    if are_used.contains(&false) {
        return Err(Error::QueryReturnedNoRows);
    }
    db.column_metadata(schema, table, column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_table_that_was_not_used_yet_is_used_first() {
        let path = std::env::temp_dir().join(format!("ums-metadata-{}", std::process::id()));
        let first = Connection::open(&path).unwrap();
        first.execute_batch("CREATE VIRTUAL TABLE w USING fts5(a)").unwrap();
        let second = Connection::open(&path).unwrap();
        assert!(column_metadata(&second, None, "w", "w").is_ok());
        assert!(column_metadata(&second, None, "W", "a").is_ok());
        assert!(column_metadata(&second, None, "w", "nothing").is_err());
        assert!(column_metadata(&second, Some("main"), "w", "a").is_ok());
        drop((first, second));
        std::fs::remove_file(&path).unwrap();
    }
}
