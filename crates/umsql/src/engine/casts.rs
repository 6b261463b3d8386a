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
use crate::wire::{datetime, types};

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
    deterministic(connection, "bytea", 1, |context| bytea(context.get_raw(0)))?;
    deterministic(connection, "pg_uuid", 1, |context| uuid(context.get_raw(0)))?;
    // A date of 'today' is another one tomorrow.
    let times = [
        ("pg_date", types::DATE),
        ("pg_timestamp", types::TIMESTAMP),
        ("pg_timestamptz", types::TIMESTAMPTZ),
    ];
    for (name, oid) in times {
        scalar(connection, name, 1, move |context| time(context.get_raw(0), oid))?;
    }
    Ok(())
}

/// Returns a text that is short enough to be a number or a time, without the space around it.
fn short(text: &[u8], oid: u32) -> Result<&str> {
    let short = str::from_utf8(text).ok().filter(|text| text.len() <= TEXT_MAX);
    short.map(str::trim).ok_or_else(|| invalid(ValueRef::Text(&text[..text.len().min(40)]), oid))
}

fn shown(value: ValueRef<'_>) -> String {
    types::to_text(value).chars().take(40).collect()
}

fn invalid(value: ValueRef<'_>, oid: u32) -> Error {
    failed(&format!("invalid input syntax for type {}: \"{}\"", types::name(oid), shown(value)))
}

fn out_of_range(value: ValueRef<'_>, oid: u32) -> Error {
    failed(&format!("value \"{}\" is out of range for type {}", shown(value), types::name(oid)))
}

fn cannot_cast(from: &str, oid: u32) -> Error {
    failed(&format!("cannot cast type {from} to {}", types::name(oid)))
}

fn whole(value: ValueRef<'_>, oid: u32) -> Result<Value> {
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

fn float(value: ValueRef<'_>, oid: u32) -> Result<Value> {
    let real = match value {
        ValueRef::Null => return Ok(Value::Null),
        ValueRef::Integer(int) => int as f64,
        ValueRef::Real(real) => real,
        ValueRef::Text(text) => short(text, oid)?.parse().map_err(|_| invalid(value, oid))?,
        ValueRef::Blob(_) => return Err(cannot_cast("bytea", oid)),
    };
    // SQLite stores NULL instead.
    if real.is_nan() {
        return Err(out_of_range(value, oid));
    }
    Ok(Value::Real(if oid == types::FLOAT4 { f64::from(real as f32) } else { real }))
}

fn number(value: ValueRef<'_>) -> Result<Value> {
    let ValueRef::Text(text) = value else {
        return match value {
            ValueRef::Blob(_) => Err(cannot_cast("bytea", types::NUMERIC)),
            other => Ok(Value::try_from(other)?),
        };
    };
    match short(text, types::NUMERIC)?.parse() {
        Ok(int) => Ok(Value::Integer(int)),
        Err(_) => float(value, types::NUMERIC),
    }
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
    let real = (exact * power(scale)).round() / power(scale);
    let real = if real.is_finite() { real } else { exact };
    if real.abs() >= power(precision.saturating_sub(scale)) {
        return Err(failed("numeric field overflow"));
    }
    Ok(if exact == real { value } else { Value::Real(real) })
}

fn bytea(value: ValueRef<'_>) -> Result<Value> {
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
    let text = match value {
        ValueRef::Null => return Ok(Value::Null),
        ValueRef::Text(text) => short(text, types::UUID)?,
        _ => return Err(cannot_cast("bytea", types::UUID)),
    };
    let text = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
    let digits: String = text.chars().filter(|char| *char != '-').collect();
    if digits.len() != 32 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(invalid(value, types::UUID));
    }
    let digits = digits.to_ascii_lowercase();
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
    Ok(Value::Text(parts.join("-")))
}

fn time(value: ValueRef<'_>, oid: u32) -> Result<Value> {
    let text = match value {
        ValueRef::Null => return Ok(Value::Null),
        ValueRef::Text(text) => short(text, oid)?,
        ValueRef::Blob(_) => return Err(cannot_cast("bytea", oid)),
        _ => return Err(cannot_cast("double precision", oid)),
    };
    let day = |micros: i64| micros.div_euclid(datetime::DAY).saturating_mul(datetime::DAY);
    let micros = match text.to_ascii_lowercase().as_str() {
        "now" => Some(datetime::now()),
        "today" => Some(day(datetime::now())),
        "tomorrow" => Some(day(datetime::now()).saturating_add(datetime::DAY)),
        "yesterday" => Some(day(datetime::now()).saturating_sub(datetime::DAY)),
        _ => datetime::parse(text),
    };
    let Some(micros) = micros else {
        let is_dated = text.splitn(3, '-').filter(|part| part.parse::<u32>().is_ok()).count() >= 2;
        if is_dated {
            let message = format!("date/time field value out of range: \"{}\"", shown(value));
            return Err(failed(&message));
        }
        return Err(invalid(value, oid));
    };
    let text = datetime::format(micros);
    Ok(Value::Text(match oid {
        types::DATE => text[..text.len().min(10)].to_owned(),
        types::TIMESTAMPTZ => format!("{text}+00"),
        _ => text,
    }))
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
            ("numeric('12')", Value::Integer(12)),
            ("numeric('1.005e2', 5, 1)", Value::Real(100.5)),
            ("numeric(1.25, 3, 1)", Value::Real(1.3)),
            ("bytea('\\x00ff')", Value::Blob(vec![0, 255])),
            (
                "pg_uuid('{A0EEBC999C0B4EF8-BB6D6BB9BD380A11}')",
                text("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
            ),
            ("pg_date('2020-02-29 23:59:59')", text("2020-02-29")),
            ("pg_date('2020-02-29 23:00:00-02')", text("2020-03-01")),
            ("pg_timestamp('2020-01-01T10:00')", text("2020-01-01 10:00:00")),
            ("pg_timestamptz('2020-01-01 10:00+02')", text("2020-01-01 08:00:00+00")),
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
            ("float8('NaN')", "22003"),
            ("numeric('x')", "22P02"),
            ("numeric(123.4, 4, 2)", "22003"),
            ("bytea('\\xf')", "22P02"),
            ("pg_uuid('a0')", "22P02"),
            ("pg_uuid(5)", "42846"),
            ("pg_date('2020-13-01')", "22008"),
            ("pg_date('2020-02-30')", "22008"),
            ("pg_date('soon')", "22007"),
            ("pg_timestamp(5)", "42846"),
            ("int4(hex(zeroblob(300)))", "22P02"),
        ] {
            assert_eq!(of(sql).unwrap_err().code, code, "{sql}");
        }
    }
}
