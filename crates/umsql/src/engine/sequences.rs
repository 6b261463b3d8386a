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
use crate::dialect::sequence::{relation_in, sequence_name};
use crate::dialect::translate::quote;
use crate::error::SqlError;
use crate::sequences::{Change, Sequence, Sequences};
use crate::settings::Config;
use crate::wire::types;
use ums::lock::Lock;

/// Returns the sequences of all numbered columns.
pub(crate) fn sequences(db: &Connection) -> crate::error::Result<Vec<Sequence>> {
    let mut query = db.prepare(
        "SELECT s.name, t.name FROM main.sqlite_schema s JOIN pragma_table_info(s.name) t
         WHERE s.type = 'table' AND t.pk = 1 AND instr(upper(s.sql), 'AUTOINCREMENT') > 0",
    )?;
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut found = Vec::new();
    for row in rows {
        let (table, column): (String, String) = row?;
        let (.., is_numbered) = db.column_metadata(None, table.as_str(), column.as_str())?;
        if is_numbered {
            let name = sequence_name(&table, &column);
            found.push(Sequence { name, table, column, last: 0, change: Change::None });
        }
    }
    Ok(found)
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
        let name = all.of_column(&relation_in(&table).unwrap_or_default(), &column)?;
        Ok(name.map_or(Value::Null, |name| Value::Text(format!("public.{}", spelled(name)))))
    })
}

type Answer = crate::error::Result<Value>;

fn set(all: &mut Sequences, context: &Context<'_>) -> Answer {
    let text = |index| types::to_text(context.get_raw(index));
    let is_called = context.len() < 3 || types::truth(&text(2)) == Some(true);
    let value = match types::decode(Some(text(1).as_bytes()), types::INT8, 0)? {
        Value::Integer(value) => value,
        other => return Ok(other),
    };
    Ok(Value::Integer(all.set(&relation(context)?, value, is_called)?))
}

/// Returns the name as PostgreSQL spells it, in quotes if it needs them.
fn spelled(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if name.bytes().all(is_plain) { name.to_owned() } else { quote(name) }
}

/// Returns the name of the sequence that the first argument is.
fn relation(context: &Context<'_>) -> crate::error::Result<String> {
    let text = types::to_text(context.get_raw(0));
    relation_in(&text)
        .ok_or_else(|| SqlError::new("42P01", format!("relation \"{text}\" does not exist")))
}
