//! Converts points in time between their text in SQLite and their binary form on the wire, which is
//! the number of microseconds since 2000-01-01 00:00 UTC.
//!
//! The texts of this file are those that are stored: `2026-01-05`, `2026-01-05 10:30:00.5`, the
//! same with `+00`, and `infinity`. They sort as the times do. `time_input` reads the other forms.

use std::time::{SystemTime, UNIX_EPOCH};

/// The microseconds of a second, a minute, an hour and a day.
pub(crate) const SECOND: i64 = 1_000_000;
pub(crate) const MINUTE: i64 = 60 * SECOND;
pub(crate) const HOUR: i64 = 60 * MINUTE;
pub(crate) const DAY: i64 = 24 * HOUR;
const EPOCH_DAYS: i64 = 10_957; // from 1970 to 2000
/// The point in time after all others, and the one before.
pub(crate) const INFINITY: i64 = i64::MAX;
pub(crate) const BEFORE_ALL: i64 = i64::MIN;

/// Returns true if the text names its time zone.
pub(crate) fn has_zone(text: &[u8]) -> bool {
    text.ends_with(b"Z") || text.iter().skip(10).any(|byte| b"+-".contains(byte))
}

/// Reads `YYYY-MM-DD[ HH:MM[:SS[.ffffff]]][Z|+HH[:MM]]`, the form that is stored.
pub(crate) fn parse(text: &str) -> Option<i64> {
    let text = text.trim();
    let (date, time) = match text.find([' ', 'T']) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, ""),
    };
    let mut parts = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || !(0..=9999).contains(&year) {
        return None;
    }
    let days = days_from_civil(year, month, day) - EPOCH_DAYS;
    if civil_from_days(days + EPOCH_DAYS) != (year, month, day) {
        return None;
    }
    Some(days * DAY + time_of_day(time)?)
}

fn time_of_day(text: &str) -> Option<i64> {
    if text.is_empty() {
        return Some(0);
    }
    let text = text.trim_end_matches('Z');
    let (clock, shift) = match text.find(['+', '-']) {
        Some(at) => (&text[..at], zone(&text[at..])?),
        None => (text, 0),
    };
    let mut parts = clock.split(':');
    let hours: i64 = parts.next()?.parse().ok()?;
    let minutes: i64 = parts.next()?.parse().ok()?;
    let (seconds, micros) = match parts.next() {
        None => (0, 0),
        Some(text) => {
            let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
            if fraction.len() > 6 {
                return None;
            }
            let digits: String = fraction.chars().chain("000000".chars()).take(6).collect();
            (whole.parse::<i64>().ok()?, digits.parse::<i64>().ok()?)
        }
    };
    let in_range =
        (0..24).contains(&hours) && (0..60).contains(&minutes) && (0..=60).contains(&seconds);
    in_range.then(|| ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros - shift)
}

fn zone(text: &str) -> Option<i64> {
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = text[1..].split_once(':').unwrap_or((&text[1..], "0"));
    let minutes = hours.parse::<i64>().ok()? * 60 + minutes.parse::<i64>().ok()?;
    (minutes < 24 * 60).then_some(sign * minutes * 60_000_000)
}

/// Returns the present time.
pub(crate) fn now() -> i64 {
    const FROM_1970_TO_2000: i64 = 946_684_800_000_000;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_micros() as i64).saturating_sub(FROM_1970_TO_2000)
}

/// Formats a point in time. The text has a fraction only if the fraction is not zero.
pub(crate) fn format(micros: i64) -> String {
    match micros {
        INFINITY => return "infinity".to_owned(),
        BEFORE_ALL => return "-infinity".to_owned(),
        _ => (),
    }
    let days = micros.div_euclid(DAY);
    let (year, month, day) = civil_from_days(days + EPOCH_DAYS);
    let rest = micros.rem_euclid(DAY);
    format!("{year:04}-{month:02}-{day:02} {}", format_clock(rest.unsigned_abs()))
}

/// Formats hours, minutes and seconds. The text has a fraction only if the fraction is not zero.
pub(crate) fn format_clock(micros: u64) -> String {
    let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
    let text = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if fraction == 0 {
        return text;
    }
    format!("{text}.{fraction:06}").trim_end_matches('0').to_owned()
}

/// Returns the day, counted from 2000-01-01.
pub(crate) fn day_of(year: i64, month: i64, day: i64) -> i64 {
    days_from_civil(year, month, day) - EPOCH_DAYS
}

/// Returns the year, month and day of a day that is counted from 2000-01-01.
pub(crate) fn civil(day: i64) -> (i64, i64, i64) {
    civil_from_days(day + EPOCH_DAYS)
}

/// Returns the days since 1970-01-01, in the proleptic Gregorian calendar. Years are counted from
/// March, so that the leap day is the last day of its year. 400 such years are 146,097 days.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_microseconds_since_2000() {
        assert_eq!(parse("2000-01-01"), Some(0));
        assert_eq!(parse("2000-01-01 00:00:01.5"), Some(1_500_000));
        assert_eq!(parse("1999-12-31T23:59:59Z"), Some(-1_000_000));
        assert_eq!(parse("2000-01-01 02:00:00+02"), Some(0));
        assert_eq!(parse("2000-01-01 00:00:00-05:30"), Some(19_800_000_000));
        for wrong in
            ["", "x", "2000-13-01", "2001-02-29", "2000-01-01 25:00", "2000-01-01 1", "9-é-1 é"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn every_day_of_four_centuries_survives_both_ways() {
        for day in (-146_097 * 2..146_097).step_by(13) {
            let text = format(day * DAY + 1);
            assert_eq!(parse(&text), Some(day * DAY + 1), "{text}");
        }
    }
}
