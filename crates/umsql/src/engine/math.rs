//! Functions of numbers that PostgreSQL has and this build of SQLite has not, and `greatest` and
//! `least`.
//!
//! They compute with doubles. What is exact in a double (`ceil`, `trunc`) has the type of its
//! argument; the others (`sqrt`, `ln`) are doubles, also of a numeric, for which PostgreSQL
//! computes more digits.

use rusqlite::functions::Context;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Result};

use super::scalar::deterministic;
use super::steps::failed;
use super::values::Number;
use crate::wire::{floats, types};

/// Registers the functions with `connection`.
pub(super) fn register(connection: &Connection) -> Result<()> {
    let real = |name, f: fn(f64) -> Result<f64>| {
        deterministic(connection, name, 1, move |context| match number(context, 0)? {
            Some(number) => Ok(Value::Real(f(number.real())?)),
            None => Ok(Value::Null),
        })
    };
    real("sqrt", |x| if x < 0.0 { Err(failed(NEGATIVE_ROOT)) } else { Ok(x.sqrt()) })?;
    real("cbrt", |x| Ok(x.cbrt()))?;
    real("exp", |x| in_range(x.exp()))?;
    real("ln", |x| logarithm(x, f64::ln))?;
    real("log", |x| logarithm(x, f64::log10))?;
    real("log10", |x| logarithm(x, f64::log10))?;
    real("sin", |x| Ok(x.sin()))?;
    real("cos", |x| Ok(x.cos()))?;
    real("tan", |x| Ok(x.tan()))?;
    real("asin", |x| inside(x, f64::asin))?;
    real("acos", |x| inside(x, f64::acos))?;
    real("atan", |x| Ok(x.atan()))?;
    real("sinh", |x| Ok(x.sinh()))?;
    real("cosh", |x| Ok(x.cosh()))?;
    real("tanh", |x| Ok(x.tanh()))?;
    real("degrees", |x| Ok(x.to_degrees()))?;
    real("radians", |x| Ok(x.to_radians()))?;
    let same = |name, f: fn(f64) -> f64| {
        deterministic(connection, name, 1, move |context| {
            Ok(match number(context, 0)? {
                None => Value::Null,
                Some(Number::Whole(int)) => Value::Integer(int),
                Some(Number::Real(real)) => Value::Real(f(real)),
            })
        })
    };
    for name in ["ceil", "ceiling"] {
        same(name, f64::ceil)?;
    }
    same("floor", f64::floor)?;
    same("trunc", f64::trunc)?;
    deterministic(connection, "trunc", 2, truncated)?;
    deterministic(connection, "pi", 0, |_| Ok(std::f64::consts::PI))?;
    two(connection)?;
    for (name, wanted) in
        [("greatest", std::cmp::Ordering::Greater), ("least", std::cmp::Ordering::Less)]
    {
        deterministic(connection, name, -1, move |context| extreme(context, wanted))?;
    }
    Ok(())
}

/// Registers the functions of two numbers.
fn two(connection: &Connection) -> Result<()> {
    let real = |name, f: fn(f64, f64) -> Result<f64>| {
        deterministic(connection, name, 2, move |context| {
            let numbers = number(context, 0)?.zip(number(context, 1)?);
            let result = numbers.map(|(one, other)| f(one.real(), other.real())).transpose()?;
            Ok(result.map_or(Value::Null, Value::Real))
        })
    };
    for name in ["power", "pow"] {
        real(name, power)?;
    }
    real("atan2", |y, x| Ok(y.atan2(x)))?;
    real("div", |one, other| {
        if other == 0.0 { Err(failed("division by zero")) } else { Ok((one / other).trunc()) }
    })?;
    let whole = |name, f: fn(i64, i64) -> Option<i64>| {
        deterministic(connection, name, 2, move |context| {
            let Some((one, other)) = number(context, 0)?.zip(number(context, 1)?) else {
                return Ok(Value::Null);
            };
            let (Number::Whole(one), Number::Whole(other)) = (one, other) else {
                return Err(failed(&format!("function {name}(numeric, numeric) is not supported")));
            };
            f(one, other).map(Value::Integer).ok_or_else(|| failed("bigint out of range"))
        })
    };
    whole("gcd", |one, other| i64::try_from(gcd(one.unsigned_abs(), other.unsigned_abs())).ok())?;
    whole("lcm", |one, other| {
        let (one, other) = (one.unsigned_abs(), other.unsigned_abs());
        let divisor = gcd(one, other).max(1);
        i64::try_from((one / divisor).checked_mul(other)?).ok()
    })
}

const NEGATIVE_ROOT: &str = "cannot take square root of a negative number";

/// Reads an argument; `None` is NULL.
fn number(context: &Context<'_>, index: usize) -> Result<Option<Number>> {
    Number::read(context.get_raw(index), types::FLOAT8)
}

fn in_range(result: f64) -> Result<f64> {
    if result.is_finite() { Ok(result) } else { Err(failed("value out of range: overflow")) }
}

fn logarithm(x: f64, f: fn(f64) -> f64) -> Result<f64> {
    match x {
        0.0 => Err(failed("cannot take logarithm of zero")),
        _ if x < 0.0 => Err(failed("cannot take logarithm of a negative number")),
        _ => Ok(f(x)),
    }
}

fn inside(x: f64, f: fn(f64) -> f64) -> Result<f64> {
    if (-1.0..=1.0).contains(&x) { Ok(f(x)) } else { Err(failed("input is out of range")) }
}

fn power(base: f64, exponent: f64) -> Result<f64> {
    if base == 0.0 && exponent < 0.0 {
        return Err(failed("zero raised to a negative power is undefined"));
    }
    if base < 0.0 && exponent.fract() != 0.0 {
        let why = "a negative number raised to a non-integer power yields a complex result";
        return Err(failed(why));
    }
    in_range(base.powf(exponent))
}

fn gcd(one: u64, other: u64) -> u64 {
    let (mut one, mut other) = (one, other);
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// `trunc(x, places)`.
fn truncated(context: &Context<'_>) -> Result<Value> {
    let (Some(number), ValueRef::Integer(places)) = (number(context, 0)?, context.get_raw(1))
    else {
        return Ok(Value::Null);
    };
    let real = match number {
        Number::Whole(int) if places >= 0 => return Ok(Value::Integer(int)),
        number => number.real(),
    };
    let near = floats::rounded(real, places);
    // Rounding has moved it away from zero by one of the last digit.
    let beyond = near.abs() > real.abs();
    let step =
        if beyond { format!("1e{}", places.saturating_neg()).parse().unwrap_or(0.0) } else { 0.0 };
    Ok(Value::Real(floats::rounded(near - f64::copysign(step, real), places)))
}

/// Returns the greatest or the least of the arguments that are not NULL.
fn extreme(context: &Context<'_>, wanted: std::cmp::Ordering) -> Result<Value> {
    let mut best = ValueRef::Null;
    for index in 0..context.len() {
        let value = context.get_raw(index);
        let is_better = match (best, value) {
            (_, ValueRef::Null) => false,
            (ValueRef::Null, _) => true,
            (ValueRef::Integer(one), ValueRef::Integer(other)) => other.cmp(&one) == wanted,
            (ValueRef::Text(one), ValueRef::Text(other))
            | (ValueRef::Blob(one), ValueRef::Blob(other)) => other.cmp(one) == wanted,
            (
                ValueRef::Integer(_) | ValueRef::Real(_),
                ValueRef::Integer(_) | ValueRef::Real(_),
            ) => {
                let real = |value| match value {
                    ValueRef::Integer(int) => int as f64,
                    ValueRef::Real(real) => real,
                    _ => 0.0,
                };
                real(value).total_cmp(&real(best)) == wanted
            }
            _ => return Err(failed("the arguments of greatest and least have different types")),
        };
        if is_better {
            best = value;
        }
    }
    Ok(Value::try_from(best)?)
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
    fn numbers_are_computed_as_postgresql_does() {
        let cases = [
            ("sqrt(16)", "4.0"),
            ("sqrt(-1)", "cannot take square root of a negative number"),
            ("ln(0)", "cannot take logarithm of zero"),
            ("asin(2)", "input is out of range"),
            ("power(2, 10)", "1024.0"),
            ("power(0, -1)", "zero raised to a negative power is undefined"),
            ("exp(1000)", "value out of range: overflow"),
            ("ceil(1.2)", "2.0"),
            ("ceil(5)", "5"),
            ("trunc(-1.5)", "-1.0"),
            ("trunc(1.567, 1)", "1.5"),
            ("trunc(-1.567, 2)", "-1.56"),
            ("trunc(1299, -2)", "1200.0"),
            ("div(7.5, 2)", "3.0"),
            ("div(1, 0)", "division by zero"),
            ("gcd(12, 18)", "6"),
            ("lcm(4, 6)", "12"),
            ("gcd(0, 0)", "0"),
            ("lcm(9223372036854775807, 2)", "bigint out of range"),
            ("greatest(1, null, 5, 3)", "5"),
            ("least(1.5, 2)", "1.5"),
            ("greatest('a', 'b')", "'b'"),
            ("greatest(null)", "NULL"),
            ("least(1, 'a')", "the arguments of greatest and least have different types"),
        ];
        for (sql, expected) in cases {
            assert_eq!(value(sql), expected, "{sql}");
        }
    }
}
