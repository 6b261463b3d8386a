//! The functions that casts call. SQLite's own CAST makes 0 of a text that is no number; these
//! return PostgreSQL's value, or its error.
//!
//! A time with a zone becomes UTC, which is the time zone of every session. A number that becomes a
//! whole one is rounded, halves away from zero, as PostgreSQL's numeric is.

use rusqlite::functions::Context;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Error, Result};

use super::scalar::{deterministic, scalar};
use super::steps::failed;
use crate::error::{MORE_DIGITS, NO_NAN};
use crate::wire::canonical::canonical;
use crate::wire::{floats, types};

/// The largest texts that are read as a number or a time; all longer ones are none.
const TEXT_MAX: usize = 400;

/// Registers the functions with `connection`.
pub(super) fn register(connection: &Connection) -> Result<()> {
    for (name, oid) in [("int2", types::INT2), ("int4", types::INT4), ("int8", types::INT8)] {
        deterministic(connection, name, 1, move |context| whole(context.get_raw(0), oid))?;
    }
    for (name, oid) in [("float4", types::FLOAT4), ("float8", types::FLOAT8)] {
        deterministic(connection, name, 1, move |context| float(context.get_raw(0), oid))?;
    }
    deterministic(connection, "numeric", 1, |context| number(context.get_raw(0)))?;
    deterministic(connection, "numeric", 2, |context| scaled(context, 0))?;
    deterministic(connection, "numeric", 3, |context| {
        scaled(context, context.get_raw(2).as_i64().unwrap_or(0))
    })?;
    deterministic(connection, "round", 2, round)?;
    deterministic(connection, "pg_text", 1, |context| {
        Ok(match context.get_raw(0) {
            ValueRef::Integer(int) => Value::Text(int.to_string()),
            ValueRef::Real(real) => Value::Text(floats::double(real)),
            ValueRef::Blob(_) => Value::Text(types::to_text(context.get_raw(0))),
            other => Value::try_from(other)?,
        })
    })?;
    deterministic(connection, "pg_text_real", 1, |context| {
        Ok(match context.get_raw(0) {
            ValueRef::Real(real) => Value::Text(floats::single(real as f32)),
            other => Value::try_from(other)?,
        })
    })?;
    deterministic(connection, "bytea", 1, |context| bytea(context.get_raw(0)))?;
    deterministic(connection, "pg_uuid", 1, |context| uuid(context.get_raw(0)))?;
    // A date of 'today' is another one tomorrow.
    scalar(connection, "pg_date", 1, |context| time(context, types::DATE))?;
    for (name, oid) in [
        ("pg_time", types::TIME),
        ("pg_timestamp", types::TIMESTAMP),
        ("pg_timestamptz", types::TIMESTAMPTZ),
        ("pg_interval", types::INTERVAL),
    ] {
        for arguments in [1, 2] {
            scalar(connection, name, arguments, move |context| time(context, oid))?;
        }
    }
    Ok(())
}

/// Returns a text that is short enough to be a number or a time, without the space around it.
pub(super) fn short(text: &[u8], oid: u32) -> Result<&str> {
    let short = str::from_utf8(text).ok().filter(|text| text.len() <= TEXT_MAX);
    short.map(str::trim).ok_or_else(|| invalid(ValueRef::Text(&text[..text.len().min(40)]), oid))
}

fn shown(value: ValueRef<'_>) -> String {
    types::to_text(value).chars().take(40).collect()
}

pub(super) fn invalid(value: ValueRef<'_>, oid: u32) -> Error {
    failed(&format!("invalid input syntax for type {}: \"{}\"", types::name(oid), shown(value)))
}

fn out_of_range(value: ValueRef<'_>, oid: u32) -> Error {
    failed(&format!("value \"{}\" is out of range for type {}", shown(value), types::name(oid)))
}

fn cannot_cast(from: &str, oid: u32) -> Error {
    failed(&format!("cannot cast type {from} to {}", types::name(oid)))
}

pub(super) fn whole(value: ValueRef<'_>, oid: u32) -> Result<Value> {
    let int = match value {
        ValueRef::Null => return Ok(Value::Null),
        ValueRef::Integer(int) => int,
        // 2^63 itself does not fit.
        ValueRef::Real(real)
            if real.round() >= -(2f64.powi(63)) && real.round() < 2f64.powi(63) =>
        {
            real.round() as i64
        }
        ValueRef::Real(_) => return Err(out_of_range(value, oid)),
        ValueRef::Text(bytes) => {
            let text = short(bytes, oid)?;
            let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            if !is_number {
                return Err(invalid(value, oid));
            }
            text.parse().map_err(|_| out_of_range(value, oid))?
        }
        ValueRef::Blob(_) => return Err(cannot_cast("bytea", oid)),
    };
    let fits = match oid {
        types::INT2 => i16::try_from(int).is_ok(),
        types::INT4 => i32::try_from(int).is_ok(),
        _ => true,
    };
    if fits { Ok(Value::Integer(int)) } else { Err(out_of_range(value, oid)) }
}

pub(super) fn float(value: ValueRef<'_>, oid: u32) -> Result<Value> {
    let real = match value {
        ValueRef::Null => return Ok(Value::Null),
        ValueRef::Integer(int) => int as f64,
        ValueRef::Real(real) => real,
        ValueRef::Text(text) => short(text, oid)?.parse().map_err(|_| invalid(value, oid))?,
        ValueRef::Blob(_) => return Err(cannot_cast("bytea", oid)),
    };
    let kept = if oid == types::FLOAT4 { f64::from(real as f32) } else { real };
    // What is infinite was so before, or was called so.
    let digits = |text: &[u8]| text.iter().any(u8::is_ascii_digit);
    let is_named = match value {
        ValueRef::Text(text) => !digits(text),
        _ => real.is_infinite(),
    };
    let vanishes = kept == 0.0 && (real != 0.0 || has_digit(value));
    // SQLite stores NULL instead of NaN.
    if real.is_nan() {
        return Err(failed(NO_NAN));
    }
    if vanishes || (kept.is_infinite() && !is_named) {
        return Err(out_of_range(value, oid));
    }
    Ok(Value::Real(kept))
}

/// Returns whether a text has a digit that is not zero before its exponent.
fn has_digit(value: ValueRef<'_>) -> bool {
    let ValueRef::Text(text) = value else { return false };
    let before = text.iter().take_while(|byte| !byte.eq_ignore_ascii_case(&b'e'));
    before.into_iter().any(|byte| matches!(byte, b'1'..=b'9'))
}

fn number(value: ValueRef<'_>) -> Result<Value> {
    let ValueRef::Text(text) = value else {
        return match value {
            ValueRef::Blob(_) => Err(cannot_cast("bytea", types::NUMERIC)),
            other => Ok(Value::try_from(other)?),
        };
    };
    let text = short(text, types::NUMERIC)?;
    if let Ok(int) = text.parse() {
        return Ok(Value::Integer(int));
    }
    let number = float(value, types::NUMERIC)?;
    if floats::keeps(text) { Ok(number) } else { Err(failed(MORE_DIGITS)) }
}

/// `round(x, places)`.
fn round(context: &Context<'_>) -> Result<Value> {
    let ValueRef::Integer(places) = context.get_raw(1) else {
        return match context.get_raw(1) {
            ValueRef::Null => Ok(Value::Null),
            other => Err(invalid(other, types::INT4)),
        };
    };
    Ok(match number(context.get_raw(0))? {
        Value::Real(real) => Value::Real(floats::rounded(real, places)),
        Value::Integer(int) if places < 0 => Value::Real(floats::rounded(int as f64, places)),
        other => other,
    })
}

/// Returns a number with at most `scale` digits after the point, and with the precision that the
/// second argument says.
fn scaled(context: &Context<'_>, scale: i64) -> Result<Value> {
    let precision = context.get_raw(1).as_i64().unwrap_or(0);
    let value = number(context.get_raw(0))?;
    let exact = match value {
        Value::Integer(int) => int as f64,
        Value::Real(real) => real,
        other => return Ok(other),
    };
    let power = |digits: i64| 10f64.powi(digits.clamp(-400, 400) as i32);
    let real = floats::rounded(exact, scale);
    if real.abs() >= power(precision.saturating_sub(scale)) {
        return Err(failed("numeric field overflow"));
    }
    Ok(if exact == real { value } else { Value::Real(real) })
}

pub(super) fn bytea(value: ValueRef<'_>) -> Result<Value> {
    let ValueRef::Text(text) = value else {
        return match value {
            ValueRef::Null | ValueRef::Blob(_) => Ok(Value::try_from(value)?),
            ValueRef::Integer(_) => Err(cannot_cast("integer", types::BYTEA)),
            _ => Err(cannot_cast("double precision", types::BYTEA)),
        };
    };
    types::decode(Some(text), types::BYTEA, 0).map_err(|error| failed(&error.message))
}

/// Returns a UUID as PostgreSQL writes it: in lower case, with hyphens.
fn uuid(value: ValueRef<'_>) -> Result<Value> {
    match value {
        ValueRef::Null => Ok(Value::Null),
        ValueRef::Text(text) => types::uuid_of(short(text, types::UUID)?)
            .map(Value::Text)
            .ok_or_else(|| invalid(value, types::UUID)),
        _ => Err(cannot_cast("bytea", types::UUID)),
    }
}

/// Returns a time or an interval. The second argument is the number of digits of its seconds.
fn time(context: &Context<'_>, oid: u32) -> Result<Value> {
    let text = match context.get_raw(0) {
        ValueRef::Null => return Ok(Value::Null),
        ValueRef::Text(text) => short(text, oid)?,
        ValueRef::Blob(_) => return Err(cannot_cast("bytea", oid)),
        ValueRef::Integer(_) => return Err(cannot_cast("integer", oid)),
        ValueRef::Real(_) => return Err(cannot_cast("double precision", oid)),
    };
    let digits = if context.len() > 1 { Some(context.get(1)?) } else { None };
    canonical(text, oid, digits).map(Value::Text).map_err(|error| failed(&error.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sql: &str) -> std::result::Result<Value, crate::error::SqlError> {
        let db = Connection::open_in_memory().unwrap();
        register(&db).unwrap();
        Ok(db.query_row(&format!("SELECT {sql}"), [], |row| row.get(0))?)
    }

    #[test]
    fn casts_return_what_postgresql_returns() {
        let text = |text: &str| Value::Text(text.into());
        for (sql, value) in [
            ("int4(' -7 ')", Value::Integer(-7)),
            ("int4(1.5)", Value::Integer(2)),
            ("int8('9223372036854775807')", Value::Integer(i64::MAX)),
            ("int2(NULL)", Value::Null),
            ("float8('1e3')", Value::Real(1000.0)),
            ("float8('-infinity')", Value::Real(f64::NEG_INFINITY)),
            ("float4(9e999)", Value::Real(f64::INFINITY)),
            ("float8('0e5')", Value::Real(0.0)),
            ("numeric('12')", Value::Integer(12)),
            ("numeric('1.005e2', 5, 1)", Value::Real(100.5)),
            ("numeric(1.25, 3, 1)", Value::Real(1.3)),
            ("bytea('\\x00ff')", Value::Blob(vec![0, 255])),
            (
                "pg_uuid('{A0EEBC999C0B4EF8-BB6D6BB9BD380A11}')",
                text("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
            ),
            ("pg_date('2020-02-29 23:59:59')", text("2020-02-29")),
            ("pg_date('2020-02-29 23:00:00-02')", text("2020-02-29")),
            ("pg_timestamp('2020-01-01T10:00')", text("2020-01-01 10:00:00")),
            ("pg_timestamptz('2020-01-01 10:00+02')", text("2020-01-01 08:00:00+00")),
            ("pg_timestamp('2020-01-01 10:00:00.26', 1)", text("2020-01-01 10:00:00.3")),
            ("pg_time('10:30 PM')", text("22:30:00")),
            ("pg_interval('90 minutes')", text("01:30:00")),
        ] {
            assert_eq!(of(sql), Ok(value), "{sql}");
        }
    }

    #[test]
    fn what_is_no_value_of_the_type_is_an_error() {
        for (sql, code) in [
            ("int4('a')", "22P02"),
            ("int4('')", "22P02"),
            ("int4('1.5')", "22P02"),
            ("int4(3000000000)", "22003"),
            ("int2('40000')", "22003"),
            ("int8(1e19)", "22003"),
            ("int8('9223372036854775808')", "22003"),
            ("int4(x'01')", "42846"),
            ("float8('1,5')", "22P02"),
            ("float8('1e400')", "22003"),
            ("float8('1e-400')", "22003"),
            ("float4(1e50)", "22003"),
            ("float4(1e-60)", "22003"),
            ("float8('NaN')", "0A000"),
            ("numeric('12345678901234567890.5')", "0A000"),
            ("numeric('x')", "22P02"),
            ("numeric(123.4, 4, 2)", "22003"),
            ("bytea('\\xf')", "22P02"),
            ("pg_uuid('a0')", "22P02"),
            ("pg_uuid(5)", "42846"),
            ("pg_date('2020-13-01')", "22008"),
            ("pg_date('2020-02-30')", "22008"),
            ("pg_date('soon')", "22007"),
            ("pg_timestamp(5)", "42846"),
            ("pg_time('noon')", "22007"),
            ("pg_time('25:00')", "22008"),
            ("pg_interval('long')", "22007"),
            ("pg_timestamptz('2020-01-01 10:00 Europe/Berlin')", "0A000"),
            ("int4(hex(zeroblob(300)))", "22P02"),
        ] {
            assert_eq!(of(sql).unwrap_err().code, code, "{sql}");
        }
    }
}
