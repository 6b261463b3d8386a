//! Functions of arrays, which are texts in PostgreSQL's form (`wire::arrays`): `array_agg`,
//! `array_to_string`, `array_remove`, `array_upper`, and `ums_elements`, which makes a JSON array
//! of one for SQLite's `json_each`.

use rusqlite::functions::{Aggregate, Context, FunctionFlags};
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Error, Result};

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
    for arguments in [2, 3] {
        scalar(connection, "array_to_string", arguments, joined)?;
    }
    scalar(connection, "array_remove", 2, |context| {
        let Some(mut list) = list(context)? else { return Ok(Value::Null) };
        let removed = optional_text(context.get_raw(1));
        list.retain(|element| *element != removed);
        let list: Vec<_> = list.into_iter().map(arrays::quoted).collect();
        Ok(Value::Text(format!("{{{}}}", list.join(","))))
    })?;
    scalar(connection, "array_upper", 2, |context| {
        let of_first = context.get::<Option<i64>>(1)? == Some(1);
        let list = list(context)?.filter(|list| of_first && !list.is_empty());
        Ok(list.map_or(Value::Null, |list| Value::Integer(list.len() as i64)))
    })?;
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_INNOCUOUS
        | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_aggregate_function("array_agg", 1, flags, Elements)
}

/// Joins the elements of an array; those that are NULL are left out unless there is a third
/// argument to stand for them.
fn joined(context: &Context<'_>) -> Result<Value> {
    let Some(list) = list(context)? else { return Ok(Value::Null) };
    let Some(between) = optional_text(context.get_raw(1)) else { return Ok(Value::Null) };
    let null = if context.len() > 2 { optional_text(context.get_raw(2)) } else { None };
    let shown = list.iter().filter_map(|element| element.as_deref().or(null.as_deref()));
    let mut out = String::new();
    for (at, element) in shown.enumerate() {
        let between = if at > 0 { &between[..] } else { "" };
        if out.len() + between.len() + element.len() > LENGTH_MAX {
            return Err(failed(LONG_ARRAY));
        }
        out += between;
        out += element;
    }
    Ok(Value::Text(out))
}

/// Returns the elements of the array that is the first argument; `None` for NULL.
fn list(context: &Context<'_>) -> Result<Option<Vec<Option<String>>>> {
    let Some(text) = optional_text(context.get_raw(0)) else { return Ok(None) };
    if text.len() > LENGTH_MAX {
        return Err(failed(LONG_ARRAY));
    }
    if text.strip_prefix('{').is_some_and(|inner| inner.trim_start().starts_with('{')) {
        return Err(failed("arrays of arrays are not supported"));
    }
    arrays::elements(&text).map(Some).ok_or_else(|| malformed(&text))
}

fn optional_text(value: ValueRef<'_>) -> Option<String> {
    (value != ValueRef::Null).then(|| types::to_text(value))
}

fn malformed(text: &str) -> Error {
    let shown: String = text.chars().take(40).collect();
    failed(&format!("malformed array literal: \"{shown}\""))
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
    json.ok_or_else(|| malformed(&text))
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

    use crate::error::LONG_ARRAY;

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
            ("array_to_string('{a,NULL,b}', ', ')".into(), "'a, b'"),
            ("array_to_string('{a,NULL,b}', ', ', '*')".into(), "'a, *, b'"),
            ("array_to_string('{}', ', ')".into(), "''"),
            ("array_remove('{a,NULL,b,\"a\"}', 'a')".into(), "'{NULL,b}'"),
            ("array_upper('{a,b}', 1)".into(), "2"),
            ("array_upper('{}', 1)".into(), "NULL"),
            ("array_upper('{{1,2}}', 1)".into(), "arrays of arrays are not supported"),
            (
                "array_to_string('{' || replace(hex(zeroblob(9999)), '0', 'NULL,') || 'a}', '', \
                 hex(zeroblob(9999)))"
                    .into(),
                LONG_ARRAY,
            ),
            ("ums_elements('')".into(), "'[]'"),
            ("ums_elements('a')".into(), "malformed array literal: \"a\""),
        ] {
            assert_eq!(value(&sql), expected, "{sql}");
        }
    }
}
