//! The parts of an interval, and sums and averages of intervals.
//!
//! The functions have the names that PostgreSQL has for them inside: `extract` of an interval is
//! `extract_interval`, because the text `01:00:00` alone could also be a time of day. The plan
//! knows the types, and calls these (`plan/operators.rs`).

use rusqlite::functions::{Aggregate, Context, FunctionFlags, WindowAggregate};
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Result};

use super::scalar::deterministic;
use super::steps::failed;
use super::time_operators::{result, span};
use crate::wire::datetime::{DAY, HOUR, MINUTE, SECOND};
use crate::wire::interval::Interval;
use crate::wire::types;

/// Registers the functions with `connection`.
pub(super) fn register(connection: &Connection) -> Result<()> {
    for (name, is_float) in [("extract_interval", false), ("interval_part", true)] {
        part_of(connection, name, move |unit, interval| match part(unit, interval)? {
            Value::Integer(int) if is_float => Ok(Value::Real(int as f64)),
            value => Ok(value),
        })?;
    }
    part_of(connection, "interval_trunc", |unit, interval| {
        truncated(unit, interval).map(|interval| Value::Text(interval.format()))
    })?;
    deterministic(connection, "make_interval", 7, |context| {
        let mut sum = Interval::default();
        for (at, unit) in
            ["years", "months", "weeks", "days", "hours", "mins", "secs"].iter().enumerate()
        {
            match context.get_raw(at) {
                ValueRef::Null => return Ok(Value::Null),
                count => {
                    let more = span(ValueRef::Text(
                        format!("{} {unit}", types::to_text(count)).as_bytes(),
                    ))?;
                    sum = sum.plus(more).map_err(|_| failed("interval out of range"))?;
                }
            }
        }
        result(Ok(sum))
    })?;
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_DETERMINISTIC
        | FunctionFlags::SQLITE_INNOCUOUS;
    connection.create_window_function("interval_sum", 1, flags, Sum { is_average: false })?;
    connection.create_window_function("interval_avg", 1, flags, Sum { is_average: true })
}

/// Registers a function of a unit and an interval.
fn part_of(
    connection: &Connection,
    name: &str,
    f: impl Fn(&str, Interval) -> Result<Value> + Send + 'static,
) -> Result<()> {
    deterministic(connection, name, 2, move |context| {
        match (context.get_raw(0), context.get_raw(1)) {
            (ValueRef::Null, _) | (_, ValueRef::Null) => Ok(Value::Null),
            (unit, interval) => {
                f(types::to_text(unit).trim().to_ascii_lowercase().as_str(), span(interval)?)
            }
        }
    })
}

fn part(unit: &str, interval: Interval) -> Result<Value> {
    let (years, months) = (i64::from(interval.months / 12), i64::from(interval.months % 12));
    let seconds = interval.micros % MINUTE;
    Ok(Value::Integer(match unit {
        "microsecond" | "microseconds" => seconds,
        "millisecond" | "milliseconds" => return Ok(Value::Real(seconds as f64 / 1000.0)),
        "second" => return Ok(Value::Real(seconds as f64 / SECOND as f64)),
        "minute" => interval.micros / MINUTE % 60,
        "hour" => interval.micros / HOUR,
        "day" => interval.days.into(),
        "month" => months,
        "quarter" => months / 3 + 1,
        "year" => years,
        "decade" => years / 10,
        "century" => years / 100,
        "millennium" => years / 1000,
        "epoch" => {
            // A year has a quarter of a day more.
            let days = years as f64 * 365.25 + (months * 30 + i64::from(interval.days)) as f64;
            let micros = interval.micros as f64;
            return Ok(Value::Real((days * DAY as f64 + micros) / SECOND as f64));
        }
        _ => return Err(unknown(unit)),
    }))
}

fn truncated(unit: &str, interval: Interval) -> Result<Interval> {
    let Interval { months, days, micros } = interval;
    let whole = |months: i32| Interval { months, ..Interval::default() };
    let down = |size: i64| Interval { micros: micros - micros % size, ..interval };
    Ok(match unit {
        "microsecond" | "microseconds" => interval,
        "millisecond" | "milliseconds" => down(1000),
        "second" => down(SECOND),
        "minute" => down(MINUTE),
        "hour" => down(HOUR),
        "day" => Interval { months, days, micros: 0 },
        "month" => whole(months),
        "quarter" => whole(months - months % 3),
        "year" => whole(months - months % 12),
        "decade" => whole(months - months % 120),
        "century" => whole(months - months % 1200),
        "millennium" => whole(months - months % 12_000),
        _ => return Err(unknown(unit)),
    })
}

fn unknown(unit: &str) -> rusqlite::Error {
    const OF_DATES: [&str; 8] =
        ["week", "dow", "isodow", "doy", "isoyear", "julian", "timezone", "timezone_hour"];
    let what = if OF_DATES.contains(&unit) { "supported" } else { "recognized" };
    let unit: String = unit.chars().take(40).collect();
    failed(&format!("unit \"{unit}\" not {what} for type interval"))
}

/// The sum of intervals, or their average.
struct Sum {
    is_average: bool,
}

impl Sum {
    /// Returns the value of the function after these intervals: their sum and their number.
    fn of(&self, sum: Option<(Interval, i64)>) -> Result<Value> {
        match sum.filter(|(_, count)| *count > 0) {
            None => Ok(Value::Null),
            Some((sum, count)) if self.is_average => result(sum.over(count as f64)),
            Some((sum, _)) => result(Ok(sum)),
        }
    }
}

impl Aggregate<(Interval, i64), Value> for Sum {
    fn init(&self, _: &mut Context<'_>) -> Result<(Interval, i64)> {
        Ok((Interval::default(), 0))
    }

    fn step(&self, context: &mut Context<'_>, sum: &mut (Interval, i64)) -> Result<()> {
        let value = context.get_raw(0);
        if value != ValueRef::Null {
            let more = sum.0.plus(span(value)?).map_err(|_| failed("interval out of range"))?;
            *sum = (more, sum.1 + 1);
        }
        Ok(())
    }

    fn finalize(&self, _: &mut Context<'_>, sum: Option<(Interval, i64)>) -> Result<Value> {
        self.of(sum)
    }
}

impl WindowAggregate<(Interval, i64), Value> for Sum {
    fn value(&self, sum: Option<&mut (Interval, i64)>) -> Result<Value> {
        self.of(sum.copied())
    }

    fn inverse(&self, context: &mut Context<'_>, sum: &mut (Interval, i64)) -> Result<()> {
        let value = context.get_raw(0);
        if value != ValueRef::Null {
            let less = span(value)?.negated().and_then(|less| sum.0.plus(less));
            *sum = (less.map_err(|_| failed("interval out of range"))?, sum.1 - 1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::SqlError;

    fn ask(sql: &str) -> std::result::Result<Value, SqlError> {
        let connection = Connection::open_in_memory().unwrap();
        register(&connection).unwrap();
        Ok(connection.query_row(&format!("select {sql}"), [], |row| row.get(0))?)
    }

    #[test]
    fn the_parts_of_an_interval_are_those_that_postgresql_finds() {
        let (text, int) = (|text: &str| Value::Text(text.into()), Value::Integer);
        for (sql, expected) in [
            ("extract_interval('hour', '1 day 26:03:04')", int(26)),
            ("extract_interval('day', '40 days')", int(40)),
            ("extract_interval('quarter', '1 year 5 mons')", int(2)),
            ("extract_interval('second', '-00:00:04.5')", Value::Real(-4.5)),
            ("extract_interval('epoch', '1 year 1 mon 1 day')", Value::Real(34_236_000.0)),
            ("interval_part('minute', '90 minutes')", Value::Real(30.0)),
            ("interval_trunc('hour', '1 day 10:30')", text("1 day 10:00:00")),
            ("interval_trunc('year', '30 mons 5 days')", text("2 years")),
            ("make_interval(1, 2, 1, 3, 4, 5, 6.5)", text("1 year 2 mons 10 days 04:05:06.5")),
            (
                "interval_sum(column1) from (values ('1 mon'), (null), ('-1 day'))",
                text("1 mon -1 days"),
            ),
            (
                "interval_avg(column1) from (values ('1 day'), (null), ('2 days'))",
                text("1 day 12:00:00"),
            ),
            ("interval_sum(null)", Value::Null),
        ] {
            assert_eq!(ask(sql), Ok(expected), "{sql}");
        }
        for (sql, code) in [
            ("extract_interval('week', '1 day')", "0A000"),
            ("extract_interval('nosuch', '1 day')", "22023"),
            ("interval_trunc('week', '1 day')", "0A000"),
            ("interval_sum('x')", "22007"),
            (
                "interval_sum(column1) from (values ('170000000 years'), ('170000000 years'))",
                "22008",
            ),
        ] {
            assert_eq!(ask(sql).unwrap_err().code, code, "{sql}");
        }
    }
}
