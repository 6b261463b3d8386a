//! The declaration of a table's column.
//!
//! SQLite numbers rows only in a column whose type is INTEGER, so one that was created as a
//! `bigserial` has a mark (`dialect/keys.rs`), and is a bigint here.
//!
//! SQLite fails with a signal if it is asked for a column of a virtual table that no statement of
//! the connection has used yet, so a table is used first.

use rusqlite::{CachedStatement, Connection, Result};

use crate::dialect::keys::BIG_COLLATION;
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
    // Nothing may run between this and the question.
    drop(select_all(db, schema, table)?);
    let found = db.column_metadata(schema, table, column)?;
    let (_, collation, not_null, key, numbered) = found;
    match is_marked(&found) {
        true => Ok((Some(c"bigserial"), collation, not_null, key, numbered)),
        false => Ok(found),
    }
}

/// Returns a statement that returns no row of a table or view, after it has run: SQLite prepares it
/// again before that if the tables have changed.
pub(super) fn select_all<'c>(
    db: &'c Connection,
    schema: Option<&str>,
    table: &str,
) -> Result<CachedStatement<'c>> {
    let owner = schema.map_or(String::new(), |schema| format!("{}.", quote(schema)));
    let mut all = db.prepare_cached(&format!("SELECT * FROM {owner}{} LIMIT 0", quote(table)))?;
    all.query([])?.next()?;
    Ok(all)
}

/// Returns whether the column, of a table that was used, is the number of the row and a bigint.
pub(super) fn is_big_number(
    db: &Connection,
    schema: Option<&str>,
    table: &str,
    column: &str,
) -> bool {
    db.column_metadata(schema, table, column).is_ok_and(|found| is_marked(&found))
}

fn is_marked((declared, collation, _, key, _): &Metadata<'_>) -> bool {
    *key && *declared == Some(c"INTEGER") && *collation == Some(BIG_COLLATION)
}

/// Returns the column of a table that SQLite numbers, and its place among those that INSERT fills.
pub(crate) fn numbered_column(db: &Connection, table: &str) -> Option<(String, usize)> {
    let all = select_all(db, None, table).ok()?;
    let is_numbered = |name: &&str| {
        let found = db.column_metadata(None, table, *name);
        found.is_ok_and(|(.., is_numbered)| is_numbered)
    };
    let name = all.column_names().into_iter().find(is_numbered)?.to_owned();
    let text = "SELECT cid FROM pragma_table_info(?1) WHERE name = ?2";
    let mut places = db.prepare_cached(text).ok()?;
    let place: u32 = places.query_row([table, &name], |row| row.get(0)).ok()?;
    Some((name, usize::try_from(place).ok()?))
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
        let table = "CREATE TABLE t(b int, a INTEGER COLLATE RTRIM PRIMARY KEY AUTOINCREMENT);
            CREATE TABLE u(a INTEGER PRIMARY KEY AUTOINCREMENT)";
        first.execute_batch(table).unwrap();
        let declared = |table, column| {
            let found = column_metadata(&second, None, table, column).unwrap().0;
            found.unwrap().to_str().unwrap()
        };
        assert_eq!([declared("t", "A"), declared("t", "b")], ["bigserial", "INT"]);
        assert_eq!(declared("u", "a"), "INTEGER");
        assert_eq!(numbered_column(&second, "T"), Some(("a".to_owned(), 1)));
        drop((first, second));
        std::fs::remove_file(&path).unwrap();
    }
}
