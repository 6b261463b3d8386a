//! The declaration of a table's column.
//!
//! SQLite numbers rows only in a column whose type is INTEGER, so one that was created as a
//! `bigserial` has a mark in the place of its default (`dialect/keys.rs`), and is a bigint here.
//!
//! SQLite fails with a signal if it is asked for a column of a virtual table that no statement of
//! the connection has used yet, so such a table is used first.

use rusqlite::{Connection, Error, Result, Row};

use crate::dialect::keys::BIG_NUMBER;
use crate::dialect::translate::quote;

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
    let text = format!("PRAGMA {}table_list({})", owner(schema), quote(table));
    // To prepare this statement uses each virtual table that was not used yet. SQLite prepares it
    // again if the tables have changed since. Nothing may run between it and the question.
    let mut list = db.prepare_cached(&text)?;
    let is_used = |row: &Row<'_>| Ok(row.get::<_, i64>("ncol")? > 0);
    let are_used = list.query_map([], is_used)?.collect::<Result<Vec<bool>>>()?;
    if are_used.contains(&false) {
        return Err(Error::QueryReturnedNoRows);
    }
    drop(list);
    let found = db.column_metadata(schema, table, column)?;
    let (declared, collation, not_null, key, numbered) = found;
    if key && declared == Some(c"INTEGER") && big_number(db, schema, table)?.is_some() {
        return Ok((Some(c"bigserial"), collation, not_null, key, numbered));
    }
    Ok(found)
}

/// Returns the numbered column of this table if it is a bigint.
pub(super) fn big_number(
    db: &Connection,
    schema: Option<&str>,
    table: &str,
) -> Result<Option<String>> {
    let text = format!("PRAGMA {}table_info({})", owner(schema), quote(table));
    let mut columns = db.prepare_cached(&text)?;
    let mut rows = columns.query([])?;
    while let Some(row) = rows.next()? {
        if row.get_ref("dflt_value")?.as_str_or_null()? == Some(BIG_NUMBER) {
            return row.get("name").map(Some);
        }
    }
    Ok(None)
}

/// Returns the column of a table that SQLite numbers, and its place in the table.
pub(crate) fn numbered_column(db: &Connection, table: &str) -> Option<(String, usize)> {
    let text = format!("PRAGMA table_info({})", quote(table));
    let mut columns = db.prepare_cached(&text).ok()?;
    let mut rows = columns.query([]).ok()?;
    while let Some(row) = rows.next().ok()? {
        if row.get("pk") == Ok(1) {
            let (name, place): (String, i64) = (row.get("name").ok()?, row.get("cid").ok()?);
            drop(rows);
            let (.., is_numbered) = column_metadata(db, None, table, &name).ok()?;
            return is_numbered.then_some((name, usize::try_from(place).ok()?));
        }
    }
    None
}

fn owner(schema: Option<&str>) -> String {
    schema.map_or(String::new(), |schema| format!("{}.", quote(schema)))
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
        let table =
            "CREATE TABLE t(a INTEGER DEFAULT (NULL /* bigint */) PRIMARY KEY AUTOINCREMENT,
            b int); CREATE TABLE u(a INTEGER PRIMARY KEY AUTOINCREMENT)";
        first.execute_batch(table).unwrap();
        let declared = |table, column| {
            let found = column_metadata(&second, None, table, column).unwrap().0;
            found.unwrap().to_str().unwrap()
        };
        assert_eq!([declared("t", "A"), declared("t", "b")], ["bigserial", "INT"]);
        assert_eq!(declared("u", "a"), "INTEGER");
        drop((first, second));
        std::fs::remove_file(&path).unwrap();
    }
}
