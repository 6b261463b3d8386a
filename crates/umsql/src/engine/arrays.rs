//! Functions of arrays, which are texts in PostgreSQL's form (`wire::arrays`): `array_agg`, and
//! `ums_elements`, which makes a JSON array of one for SQLite's `json_each`.

use rusqlite::functions::{Aggregate, Context, FunctionFlags};
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Result};

use super::scalar::scalar;
use super::steps::failed;
use crate::error::LONG_ARRAY;
use crate::wire::{arrays, types};

/// The longest array that is read or made, in bytes.
const LENGTH_MAX: usize = 1 << 20;

/// Registers the functions with `connection`.
pub(super) fn register(connection: &Connection) -> Result<()> {
    scalar(connection, "ums_elements", 1, |context| elements(context.get_raw(0)))?;
    scalar(connection, "ums_element", 1, |context| {
        let value = context.get_raw(0);
        Ok(arrays::quoted((value != ValueRef::Null).then(|| types::to_text(value))))
    })?;
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_INNOCUOUS
        | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_aggregate_function("array_agg", 1, flags, Elements)
}

/// Returns the elements of an array as a JSON array.
fn elements(array: ValueRef<'_>) -> Result<Value> {
    let text = match array {
        ValueRef::Null => return Ok(Value::Null),
        other => types::to_text(other),
    };
    if text.len() > LENGTH_MAX {
        return Err(failed(LONG_ARRAY));
    }
    let json = arrays::json(&text).map(Value::Text);
    let shown = || text.chars().take(40).collect::<String>();
    json.ok_or_else(|| failed(&format!("malformed array literal: \"{}\"", shown())))
}

/// The array of all values.
struct Elements;

impl Aggregate<String, Value> for Elements {
    fn init(&self, _: &mut Context<'_>) -> Result<String> {
        Ok(String::new())
    }

    fn step(&self, context: &mut Context<'_>, list: &mut String) -> Result<()> {
        let value = context.get_raw(0);
        list.push(if list.is_empty() { '{' } else { ',' });
        list.push_str(&arrays::quoted((value != ValueRef::Null).then(|| types::to_text(value))));
        if list.len() > LENGTH_MAX { Err(failed(LONG_ARRAY)) } else { Ok(()) }
    }

    fn finalize(&self, _: &mut Context<'_>, list: Option<String>) -> Result<Value> {
        Ok(list.filter(|list| !list.is_empty()).map_or(Value::Null, |list| Value::Text(list + "}")))
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    #[test]
    fn arrays_are_made_and_read() {
        let db = Connection::open_in_memory().unwrap();
        super::register(&db).unwrap();
        let value = |sql: &str| {
            let value = db.query_row(&format!("select quote({sql})"), [], |row| row.get(0));
            value.unwrap_or_else(|error: rusqlite::Error| error.to_string())
        };
        let list = "(values (2, 'b'), (1, 'a c'), (3, null))";
        for (sql, expected) in [
            (
                format!("(select array_agg(column2 order by column1) from {list})"),
                "'{\"a c\",b,NULL}'",
            ),
            (format!("(select array_agg(column1) from {list} where 0)"), "NULL"),
            (
                "ums_elements('{1,\"x\",NULL,-2.5,007,1.50}')".into(),
                "'[1,\"x\",null,-2.5,\"007\",\"1.50\"]'",
            ),
            ("ums_elements('1 2')".into(), "'[1,2]'"),
            ("ums_elements('')".into(), "'[]'"),
            ("ums_elements('a')".into(), "malformed array literal: \"a\""),
        ] {
            assert_eq!(value(&sql), expected, "{sql}");
        }
    }
}
