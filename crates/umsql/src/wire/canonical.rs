//! The text that is stored of a date, a time, a point in time or an interval, made of any form in
//! which a client may write it.
//!
//! ```text
//!   '5 Jan 2026'            as a date           2026-01-05
//!   '10:30 PM'              as a time           22:30:00
//!   '2026-01-05 10:30+02'   as a timestamp      2026-01-05 10:30:00      its zone is ignored
//!                           as a timestamptz    2026-01-05 08:30:00+00   every session has UTC
//!   '90 minutes'            as an interval      01:30:00
//! ```
//!
//! The texts of one type sort as its values do, except those of intervals.

use super::datetime::{self, BEFORE_ALL, DAY, INFINITY};
use super::interval::{Interval, IntervalFault};
use super::time_input::{self, TimeFault};
use crate::error::{Result, SqlError};

/// The types of this file.
pub(crate) const DATE: u32 = 1082;
pub(crate) const TIME: u32 = 1083;
pub(crate) const TIMESTAMP: u32 = 1114;
pub(crate) const TIMESTAMPTZ: u32 = 1184;
pub(crate) const INTERVAL: u32 = 1186;

/// The longest text that is read; all longer ones are none.
const TEXT_MAX: usize = 400;

/// The digits of a second that are kept.
const DIGITS: u32 = 6;

/// Returns whether this is the type of dates, times, points in time or intervals.
pub(crate) fn is_temporal(oid: u32) -> bool {
    matches!(oid, DATE | TIME | TIMESTAMP | TIMESTAMPTZ | INTERVAL)
}

/// Returns the stored text of a value of this type, with at most `digits` digits of the second.
///
/// # Errors
/// 22007 if the text has none of the type's forms, 22008 or 22015 if a part of it is too large.
pub(crate) fn canonical(text: &str, oid: u32, digits: Option<u32>) -> Result<String> {
    if text.len() > TEXT_MAX {
        return Err(fault(TimeFault::Syntax, text, oid));
    }
    let rounded = |micros: i64| round(micros, digits.unwrap_or(DIGITS));
    if oid == INTERVAL {
        let interval = interval(text)?;
        return Ok(Interval { micros: rounded(interval.micros), ..interval }.format());
    }
    let parts = time_input::read(text).map_err(|why| fault(why, text, oid))?;
    let none = || fault(TimeFault::Syntax, text, oid);
    match oid {
        DATE => {
            let point = parts.special.or_else(|| parts.day.map(|day| day * DAY));
            Ok(date(point.ok_or_else(none)?))
        }
        TIME => {
            let clock = parts.special.map(|point| point.rem_euclid(DAY)).or(parts.clock);
            Ok(datetime::format_clock(rounded(clock.ok_or_else(none)?).unsigned_abs()))
        }
        TIMESTAMPTZ => parts.utc().ok_or_else(none).and_then(|at| zoned(rounded(at))),
        _ => parts.local().ok_or_else(none).and_then(|at| timestamp(rounded(at))),
    }
}

/// Reads an interval.
///
/// # Errors
/// 22007 if the text has none of its forms, 22015 if a part of it is too large.
pub(crate) fn interval(text: &str) -> Result<Interval> {
    let short = if text.len() > TEXT_MAX { "" } else { text };
    Interval::parse(short).map_err(|why| match why {
        IntervalFault::Syntax => fault(TimeFault::Syntax, text, INTERVAL),
        IntervalFault::Range => {
            let message = format!("interval field value out of range: \"{}\"", shown(text));
            SqlError::new("22015", message)
        }
    })
}

/// Returns the text of the day of a point in time.
pub(crate) fn date(point: i64) -> String {
    let text = datetime::format(point);
    text.split_once(' ').map_or(text.as_str(), |(date, _)| date).to_owned()
}

/// Returns the text of a point in time without a zone.
///
/// # Errors
/// 22008 if its year is not one from 1 to 9999.
pub(crate) fn timestamp(point: i64) -> Result<String> {
    let years = datetime::day_of(1, 1, 1) * DAY..datetime::day_of(10_000, 1, 1) * DAY;
    if years.contains(&point) || matches!(point, INFINITY | BEFORE_ALL) {
        return Ok(datetime::format(point));
    }
    Err(SqlError::new("22008", "timestamp out of range"))
}

/// Returns the text of a point in time with its zone, UTC.
///
/// # Errors
/// As [`timestamp`].
pub(crate) fn zoned(point: i64) -> Result<String> {
    let text = timestamp(point)?;
    Ok(if matches!(point, INFINITY | BEFORE_ALL) { text } else { text + "+00" })
}

/// Writes the binary form of a value with this text. Returns `None` if it is no value of the type.
pub(crate) fn encode(out: &mut Vec<u8>, text: &str, oid: u32) -> Option<()> {
    match oid {
        INTERVAL => out.extend(Interval::parse(text).ok()?.to_bytes()),
        TIME => out.extend(time_input::read(text).ok()?.clock?.to_be_bytes()),
        DATE => {
            let day = match time_input::point(text)? {
                INFINITY => i32::MAX,
                BEFORE_ALL => i32::MIN,
                micros => micros.div_euclid(DAY) as i32,
            };
            out.extend(day.to_be_bytes());
        }
        _ => out.extend(time_input::point(text)?.to_be_bytes()),
    }
    Some(())
}

/// Returns the text of a value in binary form. Returns `None` if it is no value of the type.
pub(crate) fn decode(bytes: &[u8], oid: u32) -> Option<Result<String>> {
    let int = || bytes.try_into().ok().map(i64::from_be_bytes);
    Some(match oid {
        DATE => {
            let point = match i32::from_be_bytes(bytes.try_into().ok()?) {
                i32::MAX => INFINITY,
                i32::MIN => BEFORE_ALL,
                day => i64::from(day) * DAY,
            };
            timestamp(point).map(|_| date(point))
        }
        TIME => {
            let clock = int().filter(|clock| (0..=DAY).contains(clock))?;
            Ok(datetime::format_clock(clock.unsigned_abs()))
        }
        INTERVAL => Ok(Interval::from_bytes(bytes.try_into().ok()?).format()),
        TIMESTAMPTZ => zoned(int()?),
        _ => timestamp(int()?),
    })
}

/// Rounds to so many digits of a second, halves away from zero.
fn round(micros: i64, digits: u32) -> i64 {
    if digits >= DIGITS || matches!(micros, INFINITY | BEFORE_ALL) {
        return micros;
    }
    let unit = 10i64.pow(DIGITS - digits);
    let half = if micros < 0 { -unit / 2 } else { unit / 2 };
    micros.saturating_add(half) / unit * unit
}

fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

fn fault(why: TimeFault, text: &str, oid: u32) -> SqlError {
    let name = match oid {
        DATE => "date",
        TIME => "time",
        INTERVAL => "interval",
        TIMESTAMPTZ => "timestamp with time zone",
        _ => "timestamp",
    };
    let text = shown(text);
    match why {
        TimeFault::Syntax => {
            SqlError::new("22007", format!("invalid input syntax for type {name}: \"{text}\""))
        }
        TimeFault::Range => {
            SqlError::new("22008", format!("date/time field value out of range: \"{text}\""))
        }
        TimeFault::Year => {
            SqlError::unsupported(format!("the year of \"{text}\" is not supported"))
                .hint("Years are those from 1 to 9999.")
        }
        TimeFault::Zone => {
            SqlError::unsupported(format!("the time zone of \"{text}\" is not supported"))
                .hint("Zones are offsets such as +02, and UTC.")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_stores_its_own_text() {
        let of = |text, oid, digits| canonical(text, oid, digits).unwrap();
        for (text, oid, digits, expected) in [
            ("2026-01-05 23:00-02", DATE, None, "2026-01-05"),
            ("infinity", DATE, None, "infinity"),
            ("5 Jan 2026 10:30+02", TIMESTAMP, None, "2026-01-05 10:30:00"),
            ("5 Jan 2026 10:30+02", TIMESTAMPTZ, None, "2026-01-05 08:30:00+00"),
            ("-infinity", TIMESTAMPTZ, None, "-infinity"),
            ("2026-01-31 23:59:59.6", TIMESTAMP, Some(0), "2026-02-01 00:00:00"),
            ("1999-12-31 23:59:58.5", TIMESTAMP, Some(0), "1999-12-31 23:59:58"),
            ("10:30:15.256", TIME, Some(1), "10:30:15.3"),
            ("24:00", TIME, None, "24:00:00"),
            ("2026-01-31 10:30", TIME, None, "10:30:00"),
            ("1.26 s", INTERVAL, Some(1), "00:00:01.3"),
        ] {
            assert_eq!(of(text, oid, digits), expected, "{text} {oid}");
        }
    }

    #[test]
    fn what_is_no_value_has_postgresqls_error() {
        let code = |text: &str, oid| canonical(text, oid, None).unwrap_err().code;
        for (text, oid, expected) in [
            ("noon", TIME, "22007"),
            ("2026-01-31", TIME, "22007"),
            ("10:30", DATE, "22007"),
            ("25:00", TIME, "22008"),
            ("29.2.2024", DATE, "22008"),
            ("9999-12-31 24:00", TIMESTAMP, "22008"),
            ("2026-01-31 10:30 Europe/Berlin", TIMESTAMPTZ, "0A000"),
            ("sometime", INTERVAL, "22007"),
            ("3000000000 days", INTERVAL, "22015"),
            (&"1 ".repeat(300), INTERVAL, "22007"),
        ] {
            assert_eq!(code(text, oid), expected, "{text}");
        }
    }
}
