//! The sequences of numbered columns: SQLite's `sqlite_sequence`, and the functions that use it.
//!
//! A function has no connection, so it uses what `numbering` has read before the statement, and
//! what it changes is written afterwards. The statement has the write gate meanwhile.

use std::sync::Arc;

use rusqlite::functions::Context;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OptionalExtension, Result};

use super::functions::failure;
use super::probe::Probe;
use super::scalar::direct;
use super::strings::quoted_name;
use crate::dialect::keys::BIG_NUMBER;
use crate::dialect::sequence::{relation_in, sequence_name};
use crate::dialect::translate::quote;
use crate::sequences::{Change, Sequence, Sequences, unknown};
use crate::settings::Config;
use crate::wire::types;
use ums::lock::Lock;

/// Returns the sequences of all numbered columns.
pub(crate) fn sequences(db: &Connection) -> crate::error::Result<Vec<Sequence>> {
    let mut query = db.prepare(
        "SELECT s.name, t.name, instr(s.sql, ?1) > 0
         FROM main.sqlite_schema s JOIN pragma_table_info(s.name, 'main') t
         WHERE s.type = 'table' AND t.pk = 1 AND instr(upper(s.sql), 'AUTOINCREMENT') > 0",
    )?;
    let rows = query.query_map([BIG_NUMBER], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let mut found = Vec::new();
    for row in rows {
        let (table, column, is_big): (String, String, bool) = row?;
        // A temporary table may have the same name.
        let (.., is_numbered) =
            db.column_metadata(Some("main"), table.as_str(), column.as_str())?;
        if is_numbered {
            let name = sequence_name(&table, &column);
            let max = if is_big { i64::MAX } else { i32::MAX.into() };
            found.push(Sequence { name, table, column, last: 0, max, change: Change::None });
        }
    }
    Ok(found)
}

/// Returns the tables with their columns, and the views.
pub(crate) fn columns(db: &Connection) -> crate::error::Result<Vec<(String, Option<String>)>> {
    let mut query = db.prepare(
        "SELECT s.name, t.name FROM (SELECT name FROM main.sqlite_schema WHERE type = 'table'
           UNION SELECT name FROM temp.sqlite_schema WHERE type = 'table') s
         JOIN pragma_table_xinfo(s.name) t
         UNION ALL SELECT name, NULL FROM main.sqlite_schema WHERE type = 'view'",
    )?;
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(rows.collect::<Result<_>>()?)
}

/// Reads the last numbers: as SQLite does it, also those of rows that have got theirs otherwise.
pub(crate) fn read_numbers(db: &Connection, all: &mut [Sequence]) -> crate::error::Result<()> {
    let number = "SELECT seq FROM main.sqlite_sequence WHERE name = ?1";
    for sequence in all {
        let kept = db.prepare_cached(number)?.query_row([&sequence.table], |row| row.get(0));
        let kept: Option<i64> = kept.optional()?;
        let (column, table) = (quote(&sequence.column), quote(&sequence.table));
        let greatest = format!("SELECT max({column}) FROM main.{table}");
        let greatest: Option<i64> = db.query_row(&greatest, [], |row| row.get(0))?;
        sequence.last = kept.unwrap_or(0).max(greatest.unwrap_or(0));
    }
    Ok(())
}

/// Writes what a statement has changed.
pub(crate) fn write_numbers(db: &Connection, all: &[Sequence]) -> crate::error::Result<()> {
    for sequence in all {
        let value = match sequence.change {
            Change::None => continue,
            // The statement may have stored greater numbers itself.
            Change::Taken => "max(seq, ?2)",
            Change::Set => "?2",
        };
        let update = format!("UPDATE main.sqlite_sequence SET seq = {value} WHERE name = ?1");
        let own = (&sequence.table, sequence.last);
        if db.execute(&update, own)? == 0 {
            db.execute("INSERT INTO main.sqlite_sequence (name, seq) VALUES (?1, ?2)", own)?;
        }
    }
    Ok(())
}

/// Registers the functions with `connection`.
pub(super) fn register(
    connection: &Connection,
    probe: &Probe,
    config: &Arc<Lock<Config>>,
) -> Result<()> {
    let call = |name: &str, arguments: i32, f: fn(&mut Sequences, &Context<'_>) -> Answer| {
        let (config, probing) = (Arc::clone(config), probe.clone());
        direct(connection, name, arguments, move |context| {
            let is_null = |index| context.get_raw(index) == ValueRef::Null;
            if probing.is_on() || (0..context.len()).any(is_null) {
                return Ok(Value::Null);
            }
            let mut config = config.lock();
            f(config.sequences.get_or_insert_default(), context)
                .map_err(|error| failure(&mut config, error))
        })
    };
    call("nextval", 1, |all, context| Ok(Value::Integer(all.next(&relation(context)?)?)))?;
    call("currval", 1, |all, context| Ok(Value::Integer(all.current(&relation(context)?)?)))?;
    call("lastval", 0, |all, _| Ok(Value::Integer(all.latest()?)))?;
    for arguments in [2, 3] {
        call("setval", arguments, set)?;
    }
    call("pg_get_serial_sequence", 2, |all, context| {
        let [table, column] = [0, 1].map(|index| types::to_text(context.get_raw(index)));
        // The text of a number that was cast to regclass, which is the number here (SQLAlchemy).
        if table.parse::<u32>().is_ok() {
            return Ok(Value::Null);
        }
        let name = all.of_column(&relation_in(&table).unwrap_or(table), &column)?;
        Ok(name.map_or(Value::Null, |name| Value::Text(format!("public.{}", quoted_name(name)))))
    })
}

type Answer = crate::error::Result<Value>;

fn set(all: &mut Sequences, context: &Context<'_>) -> Answer {
    let text = |index| types::to_text(context.get_raw(index));
    let decoded = |index, oid| types::decode(Some(text(index).as_bytes()), oid, 0);
    let is_called = context.len() < 3 || decoded(2, types::BOOL)? == Value::Integer(1);
    let value = match decoded(1, types::INT8)? {
        Value::Integer(value) => value,
        other => return Ok(other),
    };
    Ok(Value::Integer(all.set(&relation(context)?, value, is_called)?))
}

/// Returns the name of the sequence that the first argument is.
fn relation(context: &Context<'_>) -> crate::error::Result<String> {
    let text = types::to_text(context.get_raw(0));
    relation_in(&text).ok_or_else(|| unknown(&text))
}
