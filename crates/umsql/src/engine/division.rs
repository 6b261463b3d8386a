//! The functions of divisions: `pg_div(a, b)` for `a / b`, and `pg_mod(a, b)` for `a % b`. SQLite's
//! operators return NULL for a divisor of zero; these fail, as PostgreSQL's do. `pg_numeric` is
//! around other arithmetic on numerics, and `float8pl` and its like carry out that on doubles,
//! which fails if the result is too large.
//!
//! Two whole numbers have a whole quotient. A number that is not whole is a numeric or a double;
//! the remainder is computed of its shortest decimal digits, so that `7.5 % 0.1` is zero.

use rusqlite::functions::Context;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Result};

use super::scalar::deterministic;
use super::steps::failed;
use super::values::Number;
use crate::wire::{floats, types};

/// Registers the functions with `connection`.
pub(super) fn register(connection: &Connection) -> Result<()> {
    deterministic(connection, "pg_div", 2, |context| {
        operation(context, i64::checked_div, |one, other| one / other)
    })?;
    deterministic(connection, "pg_numeric", 1, |context| {
        Ok(match context.get_raw(0) {
            ValueRef::Real(real) => Value::Real(floats::sure(real)),
            other => Value::try_from(other)?,
        })
    })?;
    let double = |name, f: fn(f64, f64) -> f64| {
        deterministic(connection, name, 2, move |context| {
            let operand = |index| Number::read(context.get_raw(index), types::FLOAT8);
            let (Some(one), Some(other)) = (operand(0)?, operand(1)?) else {
                return Ok(Value::Null);
            };
            let (one, other) = (one.real(), other.real());
            let result = f(one, other);
            if result.is_infinite() && one.is_finite() && other.is_finite() {
                return Err(failed("value out of range: overflow"));
            }
            Ok(Value::Real(result))
        })
    };
    double("float8pl", |one, other| one + other)?;
    double("float8mi", |one, other| one - other)?;
    double("float8mul", |one, other| one * other)?;
    deterministic(connection, "ums_even", 1, |context| {
        Ok(match context.get_raw(0) {
            ValueRef::Real(real) => Value::Real(real.round_ties_even()),
            other => Value::try_from(other)?,
        })
    })?;
    deterministic(connection, "pg_mod", 2, |context| {
        operation(context, |one, other| one.checked_rem(other).or(Some(0)), remainder)
    })
}

fn operation(
    context: &Context<'_>,
    whole: impl Fn(i64, i64) -> Option<i64>,
    real: impl Fn(f64, f64) -> f64,
) -> Result<Value> {
    // A text is one that was written beside a number.
    let operand = |index| Number::read(context.get_raw(index), types::NUMERIC);
    let (Some(one), Some(other)) = (operand(0)?, operand(1)?) else { return Ok(Value::Null) };
    if other.real() == 0.0 {
        return Err(failed("division by zero"));
    }
    if let (Number::Whole(one), Number::Whole(other)) = (&one, &other) {
        let result = whole(*one, *other).ok_or_else(|| failed("bigint out of range"))?;
        return Ok(Value::Integer(result));
    }
    let result = real(one.real(), other.real());
    if result.is_infinite() && one.real().is_finite() {
        return Err(failed("value out of range: overflow"));
    }
    Ok(Value::Real(result))
}

/// Returns the remainder, which has the sign of the dividend.
fn remainder(one: f64, other: f64) -> f64 {
    let digits = |real: f64| {
        let text = format!("{real:e}");
        let (digits, exponent) = text.split_once('e')?;
        let fraction = digits.split_once('.').map_or(0, |(_, fraction)| fraction.len() as i32);
        let digits: i128 = digits.replace('.', "").parse().ok()?;
        Some((digits, exponent.parse::<i32>().ok()? - fraction))
    };
    let exact = || {
        let ((one, one_places), (other, other_places)) = (digits(one)?, digits(other)?);
        let places = one_places.min(other_places);
        let scaled = |digits: i128, own: i32| {
            digits.checked_mul(10i128.checked_pow((own - places).unsigned_abs())?)
        };
        let rest = scaled(one, one_places)? % scaled(other, other_places)?;
        format!("{rest}e{places}").parse().ok()
    };
    exact().unwrap_or(one % other)
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    fn value(sql: &str) -> String {
        let db = Connection::open_in_memory().unwrap();
        super::register(&db).unwrap();
        let result = db.query_row(&format!("select quote({sql})"), [], |row| row.get(0));
        result.unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn a_divisor_of_zero_is_an_error_and_null_is_null() {
        for sql in ["pg_div(1, 0)", "pg_mod(1, 0)", "pg_div(1.5, 0.0)", "pg_div(1, '0')"] {
            assert_eq!(value(sql), "division by zero", "{sql}");
        }
        assert_eq!(value("pg_div(null, 0)"), "NULL");
        assert_eq!(value("pg_div(-9223372036854775808, -1)"), "bigint out of range");
        assert_eq!(value("pg_div(1e300, 1e-300)"), "value out of range: overflow");
        assert_eq!(value("pg_div(1, 'x')"), "invalid input syntax for type numeric: \"x\"");
    }

    #[test]
    fn quotients_are_whole_if_both_operands_are_and_remainders_are_exact() {
        let cases = [
            ("pg_div(-7, 2)", "-3"),
            ("pg_div(7, 2.0)", "3.5"),
            ("pg_mod(-7, 2)", "-1"),
            ("pg_mod(-9223372036854775808, -1)", "0"),
            ("pg_mod(7.5, 2)", "1.5"),
            ("pg_mod(7.5, 0.1)", "0.0"),
            ("pg_mod(-1.1, 0.25)", "-0.1"),
            ("pg_numeric(0.1 + 0.2)", "0.3"),
            ("pg_numeric(7)", "7"),
            ("float8pl(1, 2.5)", "3.5"),
            ("float8mul(1e308, 10)", "value out of range: overflow"),
            ("float8mi(1, null)", "NULL"),
            ("ums_even(2.5)", "2.0"),
            ("pg_mod(1e300, 7)", &format!("{:?}", 1e300 % 7.0)),
        ];
        for (sql, expected) in cases {
            assert_eq!(value(sql), expected, "{sql}");
        }
    }
}
