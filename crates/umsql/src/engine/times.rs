//! The parts of a date, a time or a point in time: `extract`, `date_part` and `date_trunc`; and
//! times that are made of parts: `make_date`, `to_timestamp`.
//!
//! The database has all three as texts, so the text says which it is. A point in time with a zone
//! is read as UTC, which is the time zone of every session.

use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Error, Result};

use super::scalar::deterministic;
use super::steps::failed;
use crate::wire::canonical::{canonical, zoned};
use crate::wire::datetime::{HOUR, MINUTE, SECOND};
use crate::wire::{datetime, time_input, types};

/// Registers the functions with `connection`.
pub(super) fn register(connection: &Connection) -> Result<()> {
    for name in ["extract", "date_part"] {
        deterministic(connection, name, 2, move |context| {
            let (field, at) = (context.get_raw(0), context.get_raw(1));
            let Some(at) = Point::read(at)? else { return Ok(Value::Null) };
            let value = at.part(&unit(field)?)?;
            let is_float = name == "date_part" && !matches!(value, Value::Null);
            Ok(match value {
                Value::Integer(int) if is_float => Value::Real(int as f64),
                value => value,
            })
        })?;
    }
    made(connection)?;
    deterministic(connection, "date_trunc", 2, |context| {
        let Some(at) = Point::read(context.get_raw(1))? else { return Ok(Value::Null) };
        at.truncated(&unit(context.get_raw(0))?).map(Value::Text)
    })
}

/// Registers the functions that make a time of numbers.
fn made(connection: &Connection) -> Result<()> {
    for (name, count, oid) in [
        ("make_date", 3, types::DATE),
        ("make_time", 3, types::TIME),
        ("make_timestamp", 6, types::TIMESTAMP),
    ] {
        deterministic(connection, name, count, move |context| {
            let given = (0..context.len()).map(|at| context.get_raw(at)).collect::<Vec<_>>();
            if given.contains(&ValueRef::Null) {
                return Ok(Value::Null);
            }
            let part = |at: usize| types::to_text(given[at]);
            let date = || format!("{:0>4}-{}-{}", part(0), part(1), part(2));
            let clock = |at: usize| format!("{}:{}:{}", part(at), part(at + 1), part(at + 2));
            let text = match oid {
                types::DATE => date(),
                types::TIME => clock(0),
                _ => format!("{} {}", date(), clock(3)),
            };
            let what = name.trim_start_matches("make_");
            let wrong = |_| failed(&format!("{what} field value out of range: {text:.40}"));
            canonical(&text, oid, None).map(Value::Text).map_err(wrong)
        })?;
    }
    deterministic(connection, "to_timestamp", 1, |context| {
        let seconds = match context.get_raw(0) {
            ValueRef::Null => return Ok(Value::Null),
            ValueRef::Integer(int) => int as f64,
            ValueRef::Real(real) => real,
            _ => return Err(failed("function to_timestamp(text) does not exist")),
        };
        let micros = (seconds - EPOCH as f64) * SECOND as f64;
        let point = micros.clamp(-1e18, 1e18).round() as i64;
        zoned(point).map(Value::Text).map_err(|error| failed(&error.message))
    })?;
    deterministic(connection, "isfinite", 1, |context| {
        Ok(match context.get_raw(0) {
            ValueRef::Null => Value::Null,
            value => Value::Integer((!types::to_text(value).ends_with("infinity")).into()),
        })
    })
}

fn unit(value: ValueRef<'_>) -> Result<String> {
    Ok(types::to_text(value).trim().to_ascii_lowercase())
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Date,
    Time,
    Timestamp,
    Zoned,
}

/// A date, a time or a point in time.
struct Point {
    kind: Kind,
    /// Microseconds since 2000-01-01 00:00 UTC; for a time of day, since midnight.
    micros: i64,
}

/// The seconds from 1970 to 2000.
const EPOCH: i64 = 946_684_800;
/// The longest text that is read.
const TEXT_MAX: usize = 64;

impl Point {
    fn read(value: ValueRef<'_>) -> Result<Option<Point>> {
        let text = match value {
            ValueRef::Null => return Ok(None),
            value => types::to_text(value),
        };
        let text = text.trim();
        let is_time = text.find(':').is_some_and(|at| at < 3);
        let full = if is_time { format!("2000-01-01 {text}") } else { text.to_owned() };
        let micros = Some(&full).filter(|full| full.len() <= TEXT_MAX);
        let Some(micros) = micros.and_then(|full| time_input::point(full)) else {
            let shown: String = text.chars().take(40).collect();
            return Err(failed(&format!("invalid input syntax for type timestamp: \"{shown}\"")));
        };
        if matches!(micros, datetime::INFINITY | datetime::BEFORE_ALL) {
            return Err(failed("timestamp out of range"));
        }
        let kind = match is_time {
            true => Kind::Time,
            false if !text.contains([' ', 'T']) => Kind::Date,
            false if datetime::has_zone(text.as_bytes()) => Kind::Zoned,
            false => Kind::Timestamp,
        };
        Ok(Some(Point { kind, micros }))
    }

    fn part(&self, unit: &str) -> Result<Value> {
        let day = self.micros.div_euclid(datetime::DAY);
        let clock = self.micros.rem_euclid(datetime::DAY);
        let (year, month, date) = datetime::civil(day);
        let real = |micros: i64, per: i64| Value::Real(micros as f64 / per as f64);
        let seconds = clock % MINUTE;
        let of_clock = match unit {
            "hour" => Some(Value::Integer(clock / HOUR)),
            "minute" => Some(Value::Integer(clock / MINUTE % 60)),
            "second" => Some(real(seconds, SECOND)),
            "millisecond" | "milliseconds" => Some(real(seconds, 1000)),
            "microsecond" | "microseconds" => Some(Value::Integer(seconds)),
            "timezone" | "timezone_hour" | "timezone_minute" if self.kind == Kind::Zoned => {
                Some(Value::Integer(0))
            }
            _ => None,
        };
        if let Some(value) = of_clock {
            return if self.kind == Kind::Date { Err(self.unknown(unit, true)) } else { Ok(value) };
        }
        if unit == "epoch" {
            return Ok(match self.kind {
                Kind::Time => real(clock, SECOND),
                Kind::Date => Value::Integer(self.micros / SECOND + EPOCH),
                _ => real(self.micros + EPOCH * SECOND, SECOND),
            });
        }
        // 2000-01-01 was a Saturday.
        let weekday = (day + 6).rem_euclid(7);
        let thursday = day + 3 - (weekday + 6) % 7;
        let week_year = datetime::civil(thursday).0;
        let of_date = match unit {
            "year" => year,
            "month" => month,
            "day" => date,
            "quarter" => (month + 2) / 3,
            "decade" => year.div_euclid(10),
            "century" => (year + 99).div_euclid(100),
            "millennium" => (year + 999).div_euclid(1000),
            "dow" => weekday,
            "isodow" => (weekday + 6) % 7 + 1,
            "doy" => day - datetime::day_of(year, 1, 1) + 1,
            "week" => (thursday - datetime::day_of(week_year, 1, 1)) / 7 + 1,
            "isoyear" => week_year,
            "julian" => day + 2_451_545,
            _ => return Err(self.unknown(unit, false)),
        };
        match self.kind {
            Kind::Time => Err(self.unknown(unit, true)),
            _ => Ok(Value::Integer(of_date)),
        }
    }

    fn truncated(&self, unit: &str) -> Result<String> {
        let day = self.micros.div_euclid(datetime::DAY);
        let (year, month, _) = datetime::civil(day);
        let first = |year, month| datetime::day_of(year, month, 1) * datetime::DAY;
        let down = |size: i64| self.micros - self.micros.rem_euclid(size);
        let weekday = (day + 6).rem_euclid(7);
        let micros = match unit {
            "microseconds" => self.micros,
            "milliseconds" => down(1000),
            "second" => down(SECOND),
            "minute" => down(MINUTE),
            "hour" => down(HOUR),
            _ if self.kind == Kind::Time => return Err(self.unknown(unit, true)),
            "day" => day * datetime::DAY,
            "week" => (day - (weekday + 6) % 7) * datetime::DAY,
            "month" => first(year, month),
            "quarter" => first(year, (month - 1) / 3 * 3 + 1),
            "year" => first(year, 1),
            "decade" => first(year - year.rem_euclid(10), 1),
            "century" => first((year - 1).div_euclid(100) * 100 + 1, 1),
            "millennium" => first((year - 1).div_euclid(1000) * 1000 + 1, 1),
            _ => return Err(self.unknown(unit, false)),
        };
        let text = datetime::format(micros);
        Ok(match self.kind {
            Kind::Time => text[11..].to_owned(),
            // A date becomes a point in time with a zone.
            Kind::Date | Kind::Zoned => format!("{text}+00"),
            Kind::Timestamp => text,
        })
    }

    fn unknown(&self, unit: &str, is_unit: bool) -> Error {
        let name = match self.kind {
            Kind::Date => "date",
            Kind::Time => "time without time zone",
            Kind::Timestamp => "timestamp without time zone",
            Kind::Zoned => "timestamp with time zone",
        };
        let unit: String = unit.chars().take(40).collect();
        let what = if is_unit { "supported" } else { "recognized" };
        failed(&format!("unit \"{unit}\" not {what} for type {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(sql: &str) -> std::result::Result<Value, String> {
        let connection = Connection::open_in_memory().unwrap();
        register(&connection).unwrap();
        let asked = connection.query_row(&format!("select {sql}"), [], |row| row.get(0));
        asked.map_err(|error| error.to_string())
    }

    #[test]
    fn the_parts_of_a_time_are_those_that_postgresql_finds() {
        let int = Value::Integer;
        let cases = [
            ("extract('year', '2026-03-04')", int(2026)),
            ("extract('DOW', '2026-03-04')", int(3)),
            ("extract('isodow', '2026-03-08')", int(7)),
            ("extract('doy', '2026-03-04')", int(63)),
            ("extract('week', '2026-01-01')", int(1)),
            ("extract('week', '2027-01-01')", int(53)),
            ("extract('isoyear', '2027-01-01')", int(2026)),
            ("extract('quarter', '2026-08-04')", int(3)),
            ("extract('century', '2000-08-04')", int(20)),
            ("extract('century', '2001-08-04')", int(21)),
            ("extract('epoch', '2026-01-01')", int(1_767_225_600)),
            ("extract('hour', '10:30:15')", int(10)),
            ("extract('second', '10:30:15.5')", Value::Real(15.5)),
            ("extract('epoch', '01:00')", Value::Real(3600.0)),
            ("extract('milliseconds', '2026-01-31 10:20:30.25')", Value::Real(30250.0)),
            ("extract('hour', '2026-01-31 10:20:30+02')", int(8)),
            ("extract('timezone', '2026-01-31 10:20:30+00')", int(0)),
            ("extract('year', null)", Value::Null),
            ("date_part('month', '2026-03-04')", Value::Real(3.0)),
            ("date_part('month', null)", Value::Null),
        ];
        for (sql, expected) in cases {
            assert_eq!(ask(sql), Ok(expected), "{sql}");
        }
    }

    #[test]
    fn a_time_is_truncated_to_its_unit() {
        let cases = [
            ("date_trunc('month', '2026-03-14')", "2026-03-01 00:00:00+00"),
            ("date_trunc('week', '2026-01-31 10:20:30')", "2026-01-26 00:00:00"),
            ("date_trunc('quarter', '2026-05-31 10:20:30')", "2026-04-01 00:00:00"),
            ("date_trunc('minute', '2026-01-31 10:20:30+00')", "2026-01-31 10:20:00+00"),
            ("date_trunc('hour', '10:30')", "10:00:00"),
            ("date_trunc('century', '2000-05-31 10:20:30')", "1901-01-01 00:00:00"),
            ("date_trunc('decade', '1999-05-31 10:20:30')", "1990-01-01 00:00:00"),
            ("make_date(2026, 3, 4)", "2026-03-04"),
            ("make_time(8, 15, 23.5)", "08:15:23.5"),
            ("make_timestamp(2026, 1, 31, 10, 20, 30.5)", "2026-01-31 10:20:30.5"),
            ("to_timestamp(1769853630.5)", "2026-01-31 10:00:30.5+00"),
        ];
        for (sql, expected) in cases {
            assert_eq!(ask(sql), Ok(Value::Text(expected.into())), "{sql}");
        }
    }

    #[test]
    fn what_is_no_unit_or_no_time_is_an_error() {
        let cases = [
            ("extract('nosuch', '2026-03-04')", "unit \"nosuch\" not recognized for type date"),
            ("extract('hour', '2026-03-04')", "unit \"hour\" not supported for type date"),
            ("extract('year', '10:30')", "unit \"year\" not supported for type time"),
            ("date_trunc('nosuch', '2026-03-04 10:20')", "unit \"nosuch\" not recognized"),
            ("make_date(2026, 2, 30)", "date field value out of range: 2026-2-30"),
            ("make_time(25, 0, 0)", "time field value out of range"),
            ("to_timestamp(1e300)", "timestamp out of range"),
            ("extract('year', 'infinity')", "timestamp out of range"),
            ("extract('year', 'x')", "invalid input syntax for type timestamp: \"x\""),
        ];
        for (sql, message) in cases {
            assert!(ask(sql).unwrap_err().contains(message), "{sql}: {:?}", ask(sql));
        }
    }
}
