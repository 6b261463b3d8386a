//! Writes a database as SQL text, also one whose schema is damaged, so that a server refuses it:
//! what can be read is written, and what cannot is listed.
//!
//! It reads the file with SQLite's own file system, without a node, and changes nothing in it.
//! Virtual tables are left out; the tables in which they keep their data are ordinary ones.

use std::io::{self, Write};
use std::path::Path;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};

use crate::dialect::translate::quote;
use crate::error::SqlError;

/// What an export has written and left out.
#[derive(Debug, Default)]
pub struct Exported {
    /// The number of tables that were written with all of their rows.
    pub tables: usize,
    /// The number of rows that were written.
    pub rows: u64,
    /// What was left out, in full or from a row on: name and reason.
    pub left_out: Vec<(String, String)>,
}

/// A row of the schema table. A damaged row lacks some of its columns.
struct Entry {
    kind: String,
    name: String,
    sql: String,
}

/// Writes the database in the file `path` to `to`, as statements that create it again.
///
/// # Errors
/// If the file cannot be opened, if not even the list of its tables can be read, or if writing
/// fails.
pub fn export(path: &Path, to: &mut dyn Write) -> Result<Exported, Box<dyn std::error::Error>> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(SqlError::from)?;
    // With this setting SQLite uses the part of the schema that it understands.
    connection.execute_batch("PRAGMA trusted_schema = off; PRAGMA writable_schema = on")?;
    let entries = entries(&connection)?;
    let mut exported = Exported::default();
    writeln!(to, "PRAGMA foreign_keys = off;\nBEGIN;")?;
    for entry in entries.iter().filter(|entry| entry.kind == "table") {
        if entry.name.starts_with("sqlite_") {
            continue;
        }
        match table(&connection, entry, to, &mut exported.rows)? {
            Ok(()) => exported.tables += 1,
            Err(reason) => exported.left_out.push((entry.name.clone(), reason)),
        }
    }
    for entry in entries.iter().filter(|entry| entry.kind != "table" && !entry.sql.is_empty()) {
        writeln!(to, "{};", entry.sql)?;
    }
    writeln!(to, "COMMIT;")?;
    to.flush()?;
    Ok(exported)
}

fn entries(connection: &Connection) -> Result<Vec<Entry>, SqlError> {
    const LIST: &str = "SELECT type, name, sql FROM sqlite_schema ORDER BY rowid";
    // The first statement after the schema was read reports its damage; the next one is prepared.
    let mut statement = connection.prepare(LIST).or_else(|_| connection.prepare(LIST))?;
    let mut rows = statement.query([])?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next()? {
        let text = |index| -> Result<String, SqlError> {
            Ok(match row.get_ref(index)? {
                ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                _ => String::new(),
            })
        };
        entries.push(Entry { kind: text(0)?, name: text(1)?, sql: text(2)? });
    }
    Ok(entries)
}

/// Writes a table. The inner result is the reason why it was left out, or cut short.
fn table(
    connection: &Connection,
    entry: &Entry,
    to: &mut dyn Write,
    written: &mut u64,
) -> io::Result<Result<(), String>> {
    let words: Vec<_> = entry.sql.split_ascii_whitespace().take(2).collect();
    if words.len() == 2 && words[1].eq_ignore_ascii_case("virtual") {
        return Ok(Err("it is a virtual table".into()));
    }
    let columns = match columns(connection, &entry.name) {
        Ok(columns) if !columns.is_empty() => columns,
        Ok(_) => return Ok(Err("its definition is damaged".into())),
        Err(error) => return Ok(Err(error.to_string())),
    };
    let name = quote(&entry.name);
    let query = format!("SELECT {columns} FROM main.{name}");
    let mut statement = match connection.prepare(&query) {
        Ok(statement) => statement,
        Err(error) => return Ok(Err(error.to_string())),
    };
    writeln!(to, "{};", entry.sql)?;
    let count = statement.column_count();
    let mut rows = statement.raw_query();
    loop {
        let row = match rows.next() {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(Ok(())),
            Err(error) => return Ok(Err(format!("only a part was readable: {error}"))),
        };
        write!(to, "INSERT INTO {name}({columns}) VALUES(")?;
        for index in 0..count {
            let comma = if index > 0 { "," } else { "" };
            let value = row.get_ref(index).unwrap_or(ValueRef::Null);
            write!(to, "{comma}{}", literal(value))?;
        }
        writeln!(to, ");")?;
        *written += 1;
    }
}

/// Returns the names of the columns that hold values, which generated columns do not.
fn columns(connection: &Connection, table: &str) -> rusqlite::Result<String> {
    let list = "SELECT name FROM pragma_table_xinfo(?1) WHERE hidden = 0";
    let mut statement = connection.prepare(list)?;
    let names = statement.query_map([table], |row| row.get::<_, String>(0))?;
    let names = names.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(names.iter().map(|name| quote(name)).collect::<Vec<_>>().join(","))
}

/// Returns a value as SQL.
fn literal(value: ValueRef<'_>) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    match value {
        ValueRef::Null => "NULL".into(),
        ValueRef::Integer(integer) => integer.to_string(),
        ValueRef::Real(real) if real.is_infinite() => {
            if real > 0.0 { "9e999" } else { "-9e999" }.into()
        }
        ValueRef::Real(real) => format!("{real:e}"),
        ValueRef::Blob(blob) => format!("x'{}'", hex(blob)),
        ValueRef::Text(text) => match std::str::from_utf8(text) {
            Ok(text) if !text.contains('\0') => format!("'{}'", text.replace('\'', "''")),
            _ => format!("CAST(x'{}' AS TEXT)", hex(text)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Server, Settings};

    #[test]
    fn a_damaged_schema_is_refused_with_advice_and_the_rest_can_be_exported() {
        let folder = std::env::temp_dir().join(format!("ums-export-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("damaged.db");
        let connection = Connection::open(&path).unwrap();
        let rows = "CREATE TABLE a(n INTEGER PRIMARY KEY, x, g AS (n + 1)); CREATE TABLE b(x);
            CREATE TABLE c(\"odd \"\"name\"); CREATE INDEX i ON a(x); CREATE VIEW v AS SELECT 1;
            INSERT INTO a VALUES (1, 'it''s'), (2, NULL), (3, x'00ff'), (4, 0.1), (5, -9e999),
              (6, CAST(x'610062' AS TEXT)), (7, -9223372036854775808);
            INSERT INTO b VALUES (1); INSERT INTO c VALUES (2);
            PRAGMA writable_schema = on; UPDATE sqlite_schema SET sql = 'CREATE nonsense'
              WHERE name = 'b'";
        connection.execute_batch(rows).unwrap();
        drop(connection);
        let error = Server::open(Settings::new(&path)).unwrap_err();
        assert_eq!(error.code, "XX001");
        assert!(error.message.contains("ums export"), "{error}");

        let mut text = Vec::new();
        let exported = export(&path, &mut text).unwrap();
        assert_eq!((exported.tables, exported.rows, exported.left_out.len()), (2, 8, 1));
        assert_eq!(exported.left_out[0].0, "b");
        let again = Connection::open_in_memory().unwrap();
        again.execute_batch(std::str::from_utf8(&text).unwrap()).unwrap();
        let all =
            "SELECT group_concat(quote(x), ' '), sum(g), (SELECT sum(\"odd \"\"name\") FROM c),
            (SELECT count(*) FROM sqlite_schema WHERE name IN ('i', 'v')) FROM a";
        let found: (String, i64, i64, i64) = again
            .query_row(all, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
            .unwrap();
        assert_eq!((found.1, found.2, found.3), (35, 2, 2));
        for value in ["'it''s' NULL X'00FF' 0.1 -9", "-9223372036854775808"] {
            assert!(found.0.contains(value), "{}", found.0);
        }
        let bytes: String =
            again.query_row("SELECT hex(x) FROM a WHERE n = 6", [], |row| row.get(0)).unwrap();
        assert_eq!(bytes, "610062");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
