//! The operators of dates, times, points in time and intervals, as functions under the names that
//! PostgreSQL has for them.
//!
//! ```text
//!   date '2026-01-31' + 1        ──▶  date_pli(pg_date('2026-01-31'), 1)
//!   at - interval '1 hour'       ──▶  timestamp_mi_interval(at, pg_interval('1 hour'))
//!   took < '2 hours'             ──▶  took COLLATE ums_interval < '02:00:00'
//! ```
//!
//! SQLite would add the numbers with which the texts begin. A statement is rewritten where its
//! types are known (`plan/operators.rs`). Where one type is known and the other is not, `ums_plus`
//! and `ums_minus` look at the values.
//!
//! A point in time with a zone has the text of UTC, so the clock never jumps, and a day is one of
//! 24 hours.

use std::cmp::Ordering;

use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Error, Result};

use super::scalar::{deterministic, scalar};
use super::steps::failed;
use crate::error::SqlError;
use crate::wire::canonical::{self, canonical};
use crate::wire::datetime::{self, BEFORE_ALL, DAY, INFINITY};
use crate::wire::interval::{Interval, IntervalFault};
use crate::wire::{time_input, types};

/// What an operation on intervals returns.
type Checked = std::result::Result<Interval, IntervalFault>;

/// The collation by which intervals are compared.
const COLLATION: &str = "ums_interval";

/// Registers the functions with `connection`.
pub(super) fn register(connection: &Connection) -> Result<()> {
    connection.create_collation(COLLATION, compare)?;
    dates(connection)?;
    points(connection)?;
    intervals(connection)?;
    both(connection, "ums_plus", plus)?;
    both(connection, "ums_minus", minus)?;
    both(connection, "age", |a, b| age(point(a)?, point(b)?))?;
    scalar(connection, "age", 1, |context| match context.get_raw(0) {
        ValueRef::Null => Ok(Value::Null),
        value => age(datetime::now().div_euclid(DAY) * DAY, point(value)?),
    })
}

/// Registers a function of two values, which is NULL if one of them is.
fn both(
    connection: &Connection,
    name: &str,
    f: impl Fn(ValueRef<'_>, ValueRef<'_>) -> Result<Value> + Send + 'static,
) -> Result<()> {
    deterministic(connection, name, 2, move |context| {
        match (context.get_raw(0), context.get_raw(1)) {
            (ValueRef::Null, _) | (_, ValueRef::Null) => Ok(Value::Null),
            (one, other) => f(one, other),
        }
    })
}

fn dates(connection: &Connection) -> Result<()> {
    both(connection, "date_pli", |date, days| shifted(date, whole(days)?))?;
    both(connection, "integer_pl_date", |days, date| shifted(date, whole(days)?))?;
    both(connection, "date_mii", |date, days| shifted(date, -whole(days)?))?;
    both(connection, "date_mi", |a, b| {
        let (a, b) = (finite(point(a)?, "dates")?, finite(point(b)?, "dates")?);
        Ok(Value::Integer(a.div_euclid(DAY) - b.div_euclid(DAY)))
    })?;
    both(connection, "datetime_pl", |date, time| {
        timestamp(moved(point(date)?, clock_span(time)?)?)
    })?;
    both(connection, "timedate_pl", |time, date| {
        timestamp(moved(point(date)?, clock_span(time)?)?)
    })?;
    both(connection, "time_pl_interval", |time, more| of_day(clock(time)?, span(more)?.micros))?;
    both(connection, "interval_pl_time", |more, time| of_day(clock(time)?, span(more)?.micros))?;
    both(connection, "time_mi_interval", |time, less| of_day(clock(time)?, negated(less)?.micros))?;
    both(connection, "time_mi_time", |a, b| result(Ok(Interval::of_micros(clock(a)? - clock(b)?))))
}

fn points(connection: &Connection) -> Result<()> {
    for (name, is_zoned) in [("date", false), ("timestamp", false), ("timestamptz", true)] {
        let result = if is_zoned { zoned } else { timestamp };
        both(connection, &format!("{name}_pl_interval"), move |at, more| {
            result(moved(point(at)?, span(more)?)?)
        })?;
        both(connection, &format!("interval_pl_{name}"), move |more, at| {
            result(moved(point(at)?, span(more)?)?)
        })?;
        both(connection, &format!("{name}_mi_interval"), move |at, less| {
            result(moved(point(at)?, negated(less)?)?)
        })?;
    }
    for name in ["timestamp_mi", "timestamptz_mi"] {
        both(connection, name, |a, b| between(point(a)?, point(b)?))?;
    }
    Ok(())
}

fn intervals(connection: &Connection) -> Result<()> {
    both(connection, "interval_pl", |a, b| result(span(a)?.plus(span(b)?)))?;
    both(connection, "interval_mi", |a, b| result(span(a)?.plus(negated(b)?)))?;
    both(connection, "interval_mul", |one, factor| result(span(one)?.times(real(factor)?)))?;
    both(connection, "mul_d_interval", |factor, one| result(span(one)?.times(real(factor)?)))?;
    both(connection, "interval_div", |one, divisor| match real(divisor)? {
        0.0 => Err(failed("division by zero")),
        divisor => result(span(one)?.over(divisor)),
    })?;
    for (name, f) in [
        ("interval_um", Interval::negated as fn(Interval) -> Checked),
        ("justify_hours", Interval::justify_hours),
        ("justify_days", Interval::justify_days),
        ("justify_interval", Interval::justify),
    ] {
        deterministic(connection, name, 1, move |context| match context.get_raw(0) {
            ValueRef::Null => Ok(Value::Null),
            value => result(f(span(value)?)),
        })?;
    }
    Ok(())
}

/// Adds an interval to a value whose type was not known when the statement was prepared.
fn plus(one: ValueRef<'_>, more: ValueRef<'_>) -> Result<Value> {
    match unknown(one)? {
        Unknown::Interval(one) => result(one.plus(span(more)?)),
        Unknown::Point(at) => timestamp(moved(at, span(more)?)?),
        Unknown::Zoned(at) => zoned(moved(at, span(more)?)?),
    }
}

/// Subtracts, where the type of one of the values was not known when the statement was prepared.
fn minus(one: ValueRef<'_>, less: ValueRef<'_>) -> Result<Value> {
    let is_date = |value: ValueRef<'_>| types::to_text(value).trim().len() == "2026-01-05".len();
    if let ValueRef::Integer(_) = less {
        return if is_date(one) { shifted(one, -whole(less)?) } else { Err(no_operator(less)) };
    }
    let (from, to) = (unknown(one)?, unknown(less)?);
    match (from, to) {
        (Unknown::Interval(one), Unknown::Interval(less)) => {
            result(less.negated().and_then(|less| one.plus(less)))
        }
        (Unknown::Point(at), Unknown::Interval(less)) => {
            timestamp(moved(at, less.negated().map_err(fault)?)?)
        }
        (Unknown::Zoned(at), Unknown::Interval(less)) => {
            zoned(moved(at, less.negated().map_err(fault)?)?)
        }
        (Unknown::Interval(_), _) => Err(no_operator(one)),
        (Unknown::Point(a), Unknown::Point(b)) if is_date(one) && is_date(less) => {
            Ok(Value::Integer((a - b) / DAY))
        }
        (Unknown::Point(a) | Unknown::Zoned(a), Unknown::Point(b) | Unknown::Zoned(b)) => {
            between(a, b)
        }
    }
}

/// A value whose text says what it is.
enum Unknown {
    Interval(Interval),
    Point(i64),
    Zoned(i64),
}

fn unknown(value: ValueRef<'_>) -> Result<Unknown> {
    let ValueRef::Text(bytes) = value else { return Err(no_operator(value)) };
    let text = types::to_text(value);
    Ok(match (Interval::parse(&text), time_input::point(&text)) {
        (Ok(interval), _) => Unknown::Interval(interval),
        (_, Some(at)) if datetime::has_zone(bytes) => Unknown::Zoned(at),
        (_, Some(at)) => Unknown::Point(at),
        _ => return Err(no_operator(value)),
    })
}

fn no_operator(value: ValueRef<'_>) -> Error {
    let oid = types::of_value(value).unwrap_or(types::TEXT);
    failed(&format!("operator does not exist: date + {}", types::name(oid)))
}

fn fault(why: IntervalFault) -> Error {
    failed(match why {
        IntervalFault::Syntax => "invalid input syntax for type interval",
        IntervalFault::Range => "interval out of range",
    })
}

/// SQLite keeps only the text of an error; `error.rs` finds its SQLSTATE by that.
fn refused(error: SqlError) -> Error {
    failed(&error.message)
}

pub(super) fn span(value: ValueRef<'_>) -> Result<Interval> {
    canonical::interval(&types::to_text(value)).map_err(refused)
}

fn negated(value: ValueRef<'_>) -> Result<Interval> {
    span(value)?.negated().map_err(fault)
}

/// Returns the value of an interval.
pub(super) fn result(interval: Checked) -> Result<Value> {
    interval.map(|interval| Value::Text(interval.format())).map_err(fault)
}

fn point(value: ValueRef<'_>) -> Result<i64> {
    let text = types::to_text(value);
    match time_input::point(&text) {
        Some(point) => Ok(point),
        None => Err(canonical(&text, types::TIMESTAMP, None).err().map_or_else(range, refused)),
    }
}

fn range() -> Error {
    failed("timestamp out of range")
}

fn finite(point: i64, what: &str) -> Result<i64> {
    match point {
        INFINITY | BEFORE_ALL => Err(failed(&format!("cannot subtract infinite {what}"))),
        point => Ok(point),
    }
}

fn timestamp(point: i64) -> Result<Value> {
    canonical::timestamp(point).map(Value::Text).map_err(refused)
}

fn zoned(point: i64) -> Result<Value> {
    canonical::zoned(point).map(Value::Text).map_err(refused)
}

/// Returns the microseconds since midnight.
fn clock(value: ValueRef<'_>) -> Result<i64> {
    let text = types::to_text(value);
    match time_input::read(&text).ok().and_then(|parts| parts.clock) {
        Some(clock) => Ok(clock),
        None => Err(canonical(&text, types::TIME, None).err().map_or_else(range, refused)),
    }
}

fn clock_span(value: ValueRef<'_>) -> Result<Interval> {
    clock(value).map(Interval::of_micros)
}

/// Returns the time of day so much later. What is beyond midnight is one of the next day.
fn of_day(clock: i64, more: i64) -> Result<Value> {
    let micros = (clock + more % DAY).rem_euclid(DAY);
    Ok(Value::Text(datetime::format_clock(micros.unsigned_abs())))
}

/// Returns a whole number of days.
fn whole(value: ValueRef<'_>) -> Result<i64> {
    match value {
        ValueRef::Integer(int) if i32::try_from(int).is_ok() => Ok(int),
        ValueRef::Integer(_) => Err(failed("date out of range")),
        other => Err(no_operator(other)),
    }
}

fn real(value: ValueRef<'_>) -> Result<f64> {
    match value {
        ValueRef::Integer(int) => Ok(int as f64),
        ValueRef::Real(real) => Ok(real),
        other => Err(no_operator(other)),
    }
}

/// Returns the date so many days later.
fn shifted(date: ValueRef<'_>, days: i64) -> Result<Value> {
    let at = match point(date)? {
        infinite @ (INFINITY | BEFORE_ALL) => infinite,
        at => at + days * DAY,
    };
    canonical::timestamp(at).map_err(|_| failed("date out of range"))?;
    Ok(Value::Text(canonical::date(at)))
}

/// Returns the point in time after months, then days, then microseconds. A day that its month does
/// not have becomes the last one.
fn moved(at: i64, by: Interval) -> Result<i64> {
    if matches!(at, INFINITY | BEFORE_ALL) {
        return Ok(at);
    }
    let (mut day, clock) = (at.div_euclid(DAY), at.rem_euclid(DAY));
    if by.months != 0 {
        let (year, month, date) = datetime::civil(day);
        let months = year * 12 + month - 1 + i64::from(by.months);
        let first = month_begins(months);
        day = first + date.min(month_begins(months + 1) - first) - 1;
    }
    let micros = (day + i64::from(by.days)).checked_mul(DAY);
    let micros = micros.and_then(|micros| micros.checked_add(clock)?.checked_add(by.micros));
    // The largest and the least number mean infinity.
    micros.filter(|at| !matches!(*at, INFINITY | BEFORE_ALL)).ok_or_else(range)
}

/// Returns the first day of a month; the months are counted from January of year 0.
fn month_begins(months: i64) -> i64 {
    datetime::day_of(months.div_euclid(12), months.rem_euclid(12) + 1, 1)
}

/// Returns the time between two points, in days and a rest of less than one.
fn between(a: i64, b: i64) -> Result<Value> {
    let (a, b) = (finite(a, "timestamps")?, finite(b, "timestamps")?);
    result(Interval::of_micros(a - b).justify_hours())
}

/// Returns the years, months and days between two points. Days that are borrowed are those of the
/// earlier one's month.
fn age(a: i64, b: i64) -> Result<Value> {
    let (a, b) = (finite(a, "timestamps")?, finite(b, "timestamps")?);
    let (early, late) = (a.min(b), a.max(b));
    let parts = |at: i64| {
        let (year, month, day) = datetime::civil(at.div_euclid(DAY));
        (year * 12 + month - 1, day, at.rem_euclid(DAY))
    };
    let ((early_month, early_day, early_clock), (month, day, clock)) = (parts(early), parts(late));
    let (mut months, mut days, mut micros) =
        (month - early_month, day - early_day, clock - early_clock);
    if micros < 0 {
        (days, micros) = (days - 1, micros + DAY);
    }
    if days < 0 {
        let length = month_begins(early_month + 1) - month_begins(early_month);
        (months, days) = (months - 1, days + length);
    }
    let age = Interval { months: months as i32, days: days as i32, micros };
    result(if a < b { age.negated() } else { Ok(age) })
}

/// Compares two texts of intervals. A text that is none comes after all that are one.
fn compare(a: &str, b: &str) -> Ordering {
    let key = |text: &str| Interval::parse(text).map(Interval::key);
    match (key(a), key(b)) {
        (Ok(a), Ok(b)) => a.cmp(&b),
        (a, b) if a.is_ok() || b.is_ok() => b.is_ok().cmp(&a.is_ok()),
        _ => a.cmp(b),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::*;

    fn ask(sql: &str) -> std::result::Result<Value, SqlError> {
        let connection = Connection::open_in_memory().unwrap();
        register(&connection).unwrap();
        Ok(connection.query_row(&format!("select {sql}"), [], |row| row.get(0))?)
    }

    #[test]
    fn the_operators_return_what_postgresql_returns() {
        for (sql, expected) in [
            ("date_pli('2026-01-31', 1)", "2026-02-01"),
            ("date_mii('2026-01-31', 31)", "2025-12-31"),
            ("integer_pl_date(1, 'infinity')", "infinity"),
            ("date_pl_interval('2026-01-31', '1 month')", "2026-02-28 00:00:00"),
            ("datetime_pl('2026-01-31', '10:30')", "2026-01-31 10:30:00"),
            ("timestamp_pl_interval('2024-01-31 10:00', '1 mon -1 day')", "2024-02-28 10:00:00"),
            ("timestamp_mi_interval('2026-01-31 10:00', '1 day 2 hours')", "2026-01-30 08:00:00"),
            ("timestamptz_pl_interval('2026-01-31 10:00+02', '1 hour')", "2026-01-31 09:00:00+00"),
            ("timestamp_mi('2026-01-31 10:00', '2026-01-30 08:30')", "1 day 01:30:00"),
            ("timestamp_mi('2026-01-30 08:30', '2026-01-31 10:00')", "-1 days -01:30:00"),
            ("time_pl_interval('23:30', '1 day 1 hour')", "00:30:00"),
            ("time_mi_interval('00:30', '1 hour')", "23:30:00"),
            ("time_mi_time('06:00', '22:15:30')", "-16:15:30"),
            ("interval_mi('1 day', '1 hour')", "1 day -01:00:00"),
            ("interval_div('1 hour', 4)", "00:15:00"),
            ("interval_um('1 hour')", "-01:00:00"),
            ("age('2026-03-04', '2020-01-01')", "6 years 2 mons 3 days"),
            ("age('2026-01-31', '2026-03-01 01:00')", "-1 mons -1 days -01:00:00"),
            ("ums_plus('2026-01-31', '1 day')", "2026-02-01 00:00:00"),
            ("ums_plus('1 day', '1 hour')", "1 day 01:00:00"),
            ("ums_minus('2026-01-31', 31)", "2025-12-31"),
            ("ums_minus('2026-01-31 10:00:00+00', '1 hour')", "2026-01-31 09:00:00+00"),
            ("ums_minus('2026-01-31 10:00', '2026-01-31')", "10:00:00"),
            ("min('1 day', '23:00' COLLATE ums_interval)", "23:00"),
        ] {
            assert_eq!(ask(sql), Ok(Value::Text(expected.into())), "{sql}");
        }
        for (sql, expected) in [
            ("date_mi('2026-03-01', '2026-02-01')", 28),
            ("ums_minus('2026-03-01', '2026-02-01')", 28),
            ("'24:00' = '1 day' COLLATE ums_interval", 1),
            ("'1 mon' > '29 days' COLLATE ums_interval", 1),
            ("'x' > '1000 years' COLLATE ums_interval", 1),
        ] {
            assert_eq!(ask(sql), Ok(Value::Integer(expected)), "{sql}");
        }
        assert_eq!(ask("date_pli('2026-03-01', null)"), Ok(Value::Null));
    }

    #[test]
    fn what_has_no_result_is_an_error() {
        for (sql, code) in [
            ("date_pli('9999-12-31', 1)", "22008"),
            ("date_pli('2026-01-31', 3000000000)", "22008"),
            ("date_pli('2026-01-31', 1.5)", "42883"),
            ("date_pli('2026-01-31', '1')", "42883"),
            ("date_pli('x', 1)", "22007"),
            ("date_mi('infinity', '2026-01-31')", "22008"),
            ("timestamp_pl_interval('2026-01-31', '170000000 years')", "22008"),
            ("timestamp_pl_interval('2026-01-31', 'long')", "22007"),
            ("interval_pl('170000000 years', '170000000 years')", "22008"),
            ("interval_div('1 day', 0)", "22012"),
            ("interval_mul('1 day', 'x')", "42883"),
            ("ums_minus('2026-01-31 10:00', 1)", "42883"),
            ("ums_minus(5, '2026-01-31')", "42883"),
        ] {
            assert_eq!(ask(sql).unwrap_err().code, code, "{sql}: {:?}", ask(sql));
        }
    }

    proptest! {
        /// A month later is the same day of the next month, or its last one.
        #[test]
        fn a_month_never_skips_a_month(day in -700_000i64..2_900_000, months in -600i32..600) {
            let at = moved(day * DAY, Interval { months, ..Interval::default() }).unwrap();
            let (from, to) = (datetime::civil(day), datetime::civil(at / DAY));
            let count = |(year, month, _): (i64, i64, i64)| year * 12 + month;
            prop_assert_eq!(count(to), count(from) + i64::from(months));
            let next = datetime::civil(at / DAY + 1);
            assert!(to.2 == from.2 || (to.2 < from.2 && next.2 == 1), "{from:?} {to:?}");
        }

        /// The time between two points leads from one to the other.
        #[test]
        fn the_difference_is_the_way(a in -9i64 * 365 * DAY..9 * 365 * DAY, b in 0..9 * 365 * DAY) {
            let text = |value: Value| match value { Value::Text(text) => text, _ => String::new() };
            for way in [between(a, b), age(a, b)] {
                let way = Interval::parse(&text(way.unwrap())).unwrap();
                if a >= b && way.months == 0 {
                    prop_assert_eq!(moved(b, way).unwrap(), a);
                }
            }
        }
    }
}
