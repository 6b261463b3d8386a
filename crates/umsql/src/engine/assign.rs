//! What a column stores of a value: PostgreSQL's conversion on assignment.
//!
//! ```text
//!   insert into t (price, code) values (x, 'ab ')       price numeric(5,2), code char(3)
//!     ──▶ values (ums_assign(x, 1700, 327686), ums_assign('ab ', 1042, 7))
//! ```
//!
//! SQLite stores any value in any column. A statement that stores a value which may be none of its
//! column's type calls `ums_assign` (`plan/assignments.rs`), and COPY calls [`assigned`]. The
//! arguments are the value, the number of the column's type, and what the declaration adds to the
//! type (`types::modifier`). A fourth argument says how a number becomes a text: with how many
//! digits behind its point, or as a truth value ([`AS_TRUTH`]); or how it becomes a whole number
//! ([`TO_EVEN`]).
//!
//! A text is read as PostgreSQL reads a literal in quotes. What is in the database:
//!
//! | type | value |
//! |---|---|
//! | `char(n)` | without the blanks at its end, which are shown and do not count |
//! | `timestamptz` | in UTC, with `+00` |
//! | `real` | the number of 32 bits that is nearest |
//! | NaN | a text, because SQLite has no such number |

use std::borrow::Cow;

use rusqlite::functions::{Context, SqlFnOutput, SubType};
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, Error, Result};

use super::casts;
use super::json::is_json;
use super::scalar::{deterministic, scalar};
use super::steps::failed;
use super::values::{Answer, Counted};
use crate::error::MORE_DIGITS;
use crate::wire::canonical::{canonical, is_temporal};
use crate::wire::{decimal, floats, scales, types};

/// The fourth argument of `ums_assign` for a truth value.
pub(crate) const AS_TRUTH: i64 = -1;

/// The fourth argument for a floating point number that becomes a whole one: a half is rounded to
/// the even neighbour, where a numeric is rounded away from zero.
pub(crate) const TO_EVEN: i64 = -2;

/// Registers the functions with `connection`.
pub(super) fn register(connection: &Connection) -> Result<()> {
    scalar(connection, "ums_assign", 3, |context| stored(context, None))?;
    scalar(connection, "ums_assign", 4, |context| {
        stored(context, context.get_raw(3).as_i64().ok())
    })?;
    deterministic(connection, "varchar", 2, |context| cut(context, types::VARCHAR))?;
    deterministic(connection, "bpchar", 2, |context| cut(context, types::BPCHAR))?;
    scalar(connection, "ums_not_null", 3, |context| {
        let name = |index| Ok::<_, Error>(types::to_text(context.get_raw(index)));
        match context.get_raw(0) {
            ValueRef::Null => Err(null_refused(&name(1)?, &name(2)?)),
            value => Ok(Stored::Answer(match value {
                ValueRef::Text(text) => Answer::Text(Counted::copy(text)?),
                ValueRef::Blob(blob) => Answer::Blob(Counted::copy(blob)?),
                number => return Ok(Stored::Value(number.try_into()?)),
            })),
        }
    })
}

/// What a function returns: a long text is counted in the statement's memory.
enum Stored {
    Value(Value),
    Answer(Answer),
}

impl SqlFnOutput for Stored {
    fn to_sql(&self) -> Result<(ToSqlOutput<'_>, SubType)> {
        match self {
            Stored::Value(value) => value.to_sql(),
            Stored::Answer(answer) => answer.to_sql(),
        }
    }
}

fn stored(context: &Context<'_>, spelling: Option<i64>) -> Result<Stored> {
    let number = |index| context.get_raw(index).as_i64().unwrap_or(-1);
    let (oid, modifier) = (number(1) as u32, number(2) as i32);
    let value = context.get_raw(0);
    let value = match (value, spelling) {
        (ValueRef::Text(text), _) if is_text(oid) || matches!(oid, types::JSON | types::JSONB) => {
            let text = kept(text, oid, modifier)?;
            return Ok(Stored::Answer(Answer::Text(Counted::copy(text)?)));
        }
        (ValueRef::Blob(blob), _) if oid == types::BYTEA => {
            return Ok(Stored::Answer(Answer::Blob(Counted::copy(blob)?)));
        }
        (ValueRef::Integer(int), Some(AS_TRUTH)) => {
            Some(Value::Text(if int == 0 { "false" } else { "true" }.into()))
        }
        (ValueRef::Real(real), Some(TO_EVEN)) => Some(Value::Real(real.round_ties_even())),
        (ValueRef::Integer(_) | ValueRef::Real(_), Some(scale)) if scale > 0 => {
            scales::with_scale(value, scale as usize).map(Value::Text)
        }
        _ => None,
    };
    let value = value.as_ref().map_or(context.get_raw(0), ValueRef::from);
    Ok(Stored::Value(assigned(value, oid, modifier)?))
}

/// Returns what a column of this type stores of a value.
///
/// # Errors
/// PostgreSQL's, as the text of a function's error, if the value is none of the type.
pub(crate) fn assigned(value: ValueRef<'_>, oid: u32, modifier: i32) -> Result<Value> {
    let text = match value {
        ValueRef::Null => return Ok(Value::Null),
        ValueRef::Text(text) => Some(text),
        _ => None,
    };
    match (oid, text) {
        (types::INT2 | types::INT4 | types::INT8, None) => {
            let out_of_range = |_| failed(&format!("{} out of range", types::name(oid)));
            match value {
                ValueRef::Blob(_) => Err(mismatch(value, oid)),
                _ => casts::whole(value, oid).map_err(out_of_range),
            }
        }
        (types::INT2 | types::INT4 | types::INT8, _) => casts::whole(value, oid),
        (types::FLOAT4 | types::FLOAT8, _) => float(value, oid),
        (types::NUMERIC, _) => numeric(value, modifier),
        (types::BOOL, _) => boolean(value),
        (oid, Some(text)) if is_temporal(oid) => {
            let digits = u32::try_from(modifier).ok();
            let stored = canonical(casts::short(text, oid)?, oid, digits);
            stored.map(Value::Text).map_err(|error| failed(&error.message))
        }
        (types::UUID, Some(text)) => types::uuid_of(&String::from_utf8_lossy(text))
            .map(Value::Text)
            .ok_or_else(|| casts::invalid(value, oid)),
        (types::JSON | types::JSONB, Some(text)) => {
            Ok(ValueRef::Text(kept(text, oid, modifier)?).try_into()?)
        }
        (types::BYTEA, Some(_)) => casts::bytea(value),
        (types::BYTEA, None) if matches!(value, ValueRef::Blob(_)) => Ok(value.try_into()?),
        (types::JSON | types::JSONB, None) if !matches!(value, ValueRef::Blob(_)) => {
            Ok(value.try_into()?)
        }
        (types::UUID | types::BYTEA | types::JSON | types::JSONB, None) => {
            Err(mismatch(value, oid))
        }
        (oid, None) if is_temporal(oid) => Err(mismatch(value, oid)),
        (oid, _) if is_text(oid) => {
            let text = match value {
                ValueRef::Text(text) => Cow::Borrowed(text),
                number => Cow::Owned(types::to_text(number).into_bytes()),
            };
            Ok(ValueRef::Text(kept(&text, oid, modifier)?).try_into()?)
        }
        _ => Ok(value.try_into()?),
    }
}

/// Returns the error for NULL in a column that does not take it.
pub(crate) fn null_refused(column: &str, table: &str) -> Error {
    failed(&format!(
        "null value in column \"{column}\" of relation \"{table}\" violates not-null constraint"
    ))
}

fn is_text(oid: u32) -> bool {
    matches!(oid, types::TEXT | types::VARCHAR | types::BPCHAR)
}

/// Returns the error for a value of another type.
fn mismatch(value: ValueRef<'_>, oid: u32) -> Error {
    let from = types::of_value(value).map_or("unknown", types::name);
    let name = types::name(oid);
    failed(&format!("the column is of type {name} but expression is of type {from}"))
}

fn float(value: ValueRef<'_>, oid: u32) -> Result<Value> {
    match value {
        ValueRef::Text(text) if is_nan(text) => Ok(Value::Text("NaN".into())),
        ValueRef::Blob(_) => Err(mismatch(value, oid)),
        _ => casts::float(value, oid),
    }
}

fn is_nan(text: &[u8]) -> bool {
    let text = text.trim_ascii();
    text.strip_prefix(b"-").unwrap_or(text).eq_ignore_ascii_case(b"nan")
}

/// Returns a number with the digits that the declaration allows.
fn numeric(value: ValueRef<'_>, modifier: i32) -> Result<Value> {
    let text = match value {
        ValueRef::Blob(_) => return Err(mismatch(value, types::NUMERIC)),
        ValueRef::Integer(_) | ValueRef::Real(_) if modifier < 0 => return Ok(value.try_into()?),
        ValueRef::Text(text) => casts::short(text, types::NUMERIC)?.to_owned(),
        ValueRef::Real(real) => sure_digits(real, modifier),
        number => types::to_text(number),
    };
    if is_nan(text.as_bytes()) {
        return Ok(Value::Text("NaN".into()));
    }
    let real: f64 = text.parse().map_err(|_| casts::invalid(value, types::NUMERIC))?;
    let named = text.to_ascii_lowercase().contains("inf");
    if real.is_infinite() && (modifier >= 0 || !(named || matches!(value, ValueRef::Real(_)))) {
        return Err(failed("numeric field overflow"));
    }
    if real.is_infinite() {
        return Ok(Value::Real(real));
    }
    let is_text = matches!(value, ValueRef::Text(_));
    let plain = if text.contains(['e', 'E']) { real.to_string() } else { text };
    let digits = match types::digits(modifier) {
        None => plain,
        Some((precision, scale)) => {
            let rounded = decimal::rounded(&plain, scale.into());
            if decimal::whole_digits(&rounded) + usize::from(scale) > usize::from(precision) {
                return Err(failed("numeric field overflow"));
            }
            rounded
        }
    };
    if is_text && !floats::keeps(&digits) {
        return Err(failed(MORE_DIGITS));
    }
    match digits.parse() {
        Ok(int) => Ok(Value::Integer(int)),
        Err(_) => casts::float(ValueRef::Text(digits.as_bytes()), types::NUMERIC),
    }
}

/// Returns the digits of a number that may be the result of arithmetic. A number that keeps more
/// digits than are sure is written as it is.
fn sure_digits(real: f64, modifier: i32) -> String {
    let text = real.to_string();
    let scale = types::digits(modifier).map_or(0, |(_, scale)| scale.into());
    if !real.is_finite() || decimal::whole_digits(&text) + scale >= floats::DIGITS {
        return text;
    }
    floats::sure(real).to_string()
}

fn boolean(value: ValueRef<'_>) -> Result<Value> {
    match value {
        ValueRef::Integer(0 | 1) => Ok(value.try_into()?),
        ValueRef::Text(text) => {
            let truth = types::truth(&String::from_utf8_lossy(text));
            let truth = truth.ok_or_else(|| casts::invalid(value, types::BOOL))?;
            Ok(Value::Integer(truth.into()))
        }
        _ => Err(mismatch(value, types::BOOL)),
    }
}

/// Returns what a column keeps of a text: without blanks that exceed its length.
fn kept(text: &[u8], oid: u32, modifier: i32) -> Result<&[u8]> {
    if matches!(oid, types::JSON | types::JSONB) {
        let value = ValueRef::Text(text);
        return if is_json(text)? { Ok(text) } else { Err(casts::invalid(value, oid)) };
    }
    let Some(length) = types::length(modifier).filter(|_| oid != types::TEXT) else {
        return Ok(text);
    };
    let end = end_of(text, length);
    if text[end..].iter().any(|byte| *byte != b' ') {
        let name = types::name(oid);
        return Err(failed(&format!("value too long for type {name}({length})")));
    }
    Ok(if oid == types::BPCHAR { without_blanks(&text[..end]) } else { &text[..end] })
}

/// Returns where so many characters of a text end.
fn end_of(text: &[u8], length: usize) -> usize {
    // Bytes that do not continue a character.
    let begins = |(_, byte): &(usize, &u8)| **byte & 0xc0 != 0x80;
    text.iter().enumerate().filter(begins).nth(length).map_or(text.len(), |(at, _)| at)
}

fn without_blanks(text: &[u8]) -> &[u8] {
    let blanks = text.iter().rev().take_while(|byte| **byte == b' ').count();
    &text[..text.len() - blanks]
}

/// Cuts a value to the length of `varchar(n)` or `char(n)`, as a cast does.
fn cut(context: &Context<'_>, oid: u32) -> Result<Answer> {
    let text = match context.get_raw(0) {
        ValueRef::Null => return Ok(Answer::Null),
        ValueRef::Text(text) => Cow::Borrowed(text),
        number => Cow::Owned(types::to_text(number).into_bytes()),
    };
    let length = context.get_raw(1).as_i64().ok().and_then(|length| usize::try_from(length).ok());
    let text = &text[..end_of(&text, length.unwrap_or(0))];
    let text = if oid == types::BPCHAR { without_blanks(text) } else { text };
    Ok(Answer::Text(Counted::copy(text)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::SqlError;

    fn of(value: &Value, declared: &str) -> std::result::Result<Value, SqlError> {
        let (oid, modifier) = (types::by_name(declared), types::modifier(declared));
        Ok(assigned(value.into(), oid, modifier)?)
    }

    fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    #[test]
    fn a_column_stores_what_postgresql_stores_of_a_value() {
        let (int, real) = (Value::Integer, Value::Real);
        for (value, declared, expected) in [
            (text(" 42 "), "int", int(42)),
            (real(2.5), "int", int(3)),
            (real(-2.5), "smallint", int(-3)),
            (real(2.005), "numeric(8,2)", real(2.01)),
            (text("2.005"), "numeric(8,2)", real(2.01)),
            (text("-1.5e2"), "numeric(5,1)", int(-150)),
            (int(999), "numeric(5,2)", int(999)),
            (real(999.994), "numeric(5,2)", real(999.99)),
            (real(1.005 * 3.0), "numeric(5,2)", real(3.02)),
            (real(12_345_678_901.234_567), "numeric(17,6)", real(12_345_678_901.234_567)),
            (real(0.004), "numeric(2,2)", int(0)),
            (text("nan"), "numeric(5,2)", text("NaN")),
            (text("-inf"), "numeric", real(f64::NEG_INFINITY)),
            (real(1.25), "numeric", real(1.25)),
            (int(5), "float8", real(5.0)),
            (real(0.1), "real", real(f64::from(0.1_f32))),
            (text("infinity"), "double precision", real(f64::INFINITY)),
            (text("NaN"), "float8", text("NaN")),
            (text("0e5"), "real", real(0.0)),
            (text("on"), "boolean", int(1)),
            (int(0), "boolean", int(0)),
            (int(123), "varchar(3)", text("123")),
            (text("abc   "), "varchar(3)", text("abc")),
            (text("ab "), "varchar(3)", text("ab ")),
            (text("äöü"), "varchar(3)", text("äöü")),
            (text("ab   "), "char(3)", text("ab")),
            (text("abc    "), "char(3)", text("abc")),
            (text("x  "), "char", text("x")),
            (real(1.5), "text", text("1.5")),
            (text("2026-01-01 10:00:00+05:30"), "timestamp", text("2026-01-01 10:00:00")),
            (text("2026-01-01T10:30:00Z"), "timestamp", text("2026-01-01 10:30:00")),
            (text("2026-01-01 23:00:00-05"), "date", text("2026-01-01")),
            (text("2026-01-01 10:30:00.6"), "timestamp(0)", text("2026-01-01 10:30:01")),
            (text("2026-01-01 10:00:00+05:30"), "timestamptz", text("2026-01-01 04:30:00+00")),
            (
                text("{A0EEBC999C0B4EF8BB6D6BB9BD380A11}"),
                "uuid",
                text("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
            ),
            (text("[1, 2]"), "json", text("[1, 2]")),
            (text("\\xDEAD"), "bytea", Value::Blob(vec![0xde, 0xad])),
            (text("a\\000\\\\"), "bytea", Value::Blob(vec![b'a', 0, b'\\'])),
            (Value::Null, "int", Value::Null),
        ] {
            assert_eq!(of(&value, declared), Ok(expected), "{value:?} {declared}");
        }
    }

    #[test]
    fn a_value_that_is_none_of_its_column_s_type_is_refused() {
        let (int, real) = (Value::Integer, Value::Real);
        for (value, declared, code) in [
            (int(32_768), "smallint", "22003"),
            (text("32768"), "smallint", "22003"),
            (real(1e19), "bigint", "22003"),
            (text("abc"), "int", "22P02"),
            (text("1.5"), "int", "22P02"),
            (int(1000), "numeric(5,2)", "22003"),
            (real(999.995), "numeric(5,2)", "22003"),
            (text("inf"), "numeric(5,2)", "22003"),
            (text("1e400"), "numeric", "22003"),
            (text("cheap"), "numeric", "22P02"),
            (real(1e50), "real", "22003"),
            (real(1e-60), "real", "22003"),
            (text("1e400"), "float8", "22003"),
            (text("abc"), "float8", "22P02"),
            (text("abcd"), "varchar(3)", "22001"),
            (text("abc d"), "char(3)", "22001"),
            (int(1234), "varchar(3)", "22001"),
            (text("2026-02-30"), "date", "22008"),
            (text("soon"), "date", "22007"),
            (int(5), "date", "42804"),
            (text("2026-01-01 25:00:00"), "timestamp", "22008"),
            (text("maybe"), "boolean", "22P02"),
            (int(7), "boolean", "42804"),
            (text("not a key"), "uuid", "22P02"),
            (text("{a: 1}"), "json", "22P02"),
            (text("\\xf"), "bytea", "22P02"),
            (text("\\1"), "bytea", "22P02"),
            (int(1), "bytea", "42804"),
            (Value::Blob(vec![1]), "int", "42804"),
        ] {
            let refused = of(&value, declared).unwrap_err();
            assert_eq!(refused.code, code, "{value:?} {declared}: {refused}");
        }
    }

    #[test]
    fn the_functions_convert_and_refuse_null() {
        let db = Connection::open_in_memory().unwrap();
        register(&db).unwrap();
        let ask = |sql: &str| db.query_row(&format!("select {sql}"), [], |row| row.get(0));
        let of = |sql: &str| ask(sql).map_err(|error| SqlError::from(error).code);
        for (sql, expected) in [
            ("ums_assign('abc  ', 1043, 7)", Ok(text("abc"))),
            ("ums_assign(1, 25, -1, -1)", Ok(text("true"))),
            ("ums_assign(1.5, 1043, 8, 2)", Ok(text("1.50"))),
            ("ums_assign(1.5, 1043, 7, 2)", Err("22001")),
            ("ums_assign(2.5, 23, -1)", Ok(Value::Integer(3))),
            ("ums_assign(2.5, 23, -1, -2)", Ok(Value::Integer(2))),
            ("ums_assign(x'00', 17, -1)", Ok(Value::Blob(vec![0]))),
            ("ums_assign('{', 114, -1)", Err("22P02")),
            ("varchar('äbcd', 2)", Ok(text("äb"))),
            ("varchar(1234, 2)", Ok(text("12"))),
            ("bpchar('a  d', 3)", Ok(text("a"))),
            ("bpchar(null, 3)", Ok(Value::Null)),
            ("ums_not_null(7, 'id', 't')", Ok(Value::Integer(7))),
            ("ums_not_null('x', 'id', 't')", Ok(text("x"))),
            ("ums_not_null(null, 'id', 't')", Err("23502")),
        ] {
            assert_eq!(of(sql), expected, "{sql}");
        }
    }
}
