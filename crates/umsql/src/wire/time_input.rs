//! Reads dates, times of day and points in time in the forms that PostgreSQL reads.
//!
//! ```text
//!   '2026-01-05'  '20260105'  '1/5/2026'  '5 Jan 2026'  'January 5, 2026'     a date
//!   '10:30'  '10:30:15.5'  '10:30 PM'  '24:00'                                a time of day
//!   '2026-01-05 10:30+02'  '2026-01-05T10:30Z'  'epoch'  'infinity'           a point in time
//! ```
//!
//! The text is cut into fields at its spaces, and each field says by its form what it is. Numbers
//! with signs between them are month, day and year, as PostgreSQL's default `DateStyle` says,
//! unless the year comes first.
//!
//! Zones are offsets and the names of UTC. Years are those from 1 to 9999, because the texts that
//! are stored sort as the times do. What a missing part means is the caller's business.

use super::datetime::{self, DAY, HOUR, MINUTE, SECOND};

/// Why a text is no time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeFault {
    /// It has another form.
    Syntax,
    /// One of its parts is too large.
    Range,
    /// Its year is before 1, or after 9999.
    Year,
    /// It names a time zone that the server does not know.
    Zone,
}

/// What a text says of a time.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeParts {
    /// The day, counted from 2000-01-01.
    pub(crate) day: Option<i64>,
    /// Microseconds since midnight, at most [`DAY`].
    pub(crate) clock: Option<i64>,
    /// How many microseconds the zone is ahead of UTC.
    pub(crate) shift: Option<i64>,
    /// `now`, `epoch` and so on: a point in time, in microseconds since 2000.
    pub(crate) special: Option<i64>,
}

impl TimeParts {
    /// Returns the point in time without its zone, in microseconds since 2000.
    pub(crate) fn local(&self) -> Option<i64> {
        let of_day = |day: i64| day * DAY + self.clock.unwrap_or(0);
        self.special.or_else(|| self.day.map(of_day))
    }

    /// Returns the point in time of UTC. A text without a zone is one of UTC.
    pub(crate) fn utc(&self) -> Option<i64> {
        Some(self.local()? - self.shift.unwrap_or(0))
    }
}

/// Returns the point in time that a text means, in microseconds since 2000. It is quick if the text
/// has the form that is stored.
pub(crate) fn point(text: &str) -> Option<i64> {
    datetime::parse(text).or_else(|| read(text).ok()?.utc())
}

/// Returns what the text says.
pub(crate) fn read(text: &str) -> Result<TimeParts, TimeFault> {
    let lower = text.trim().to_ascii_lowercase();
    if let Some(special) = special(&lower) {
        return Ok(TimeParts { special: Some(special), ..TimeParts::default() });
    }
    let mut fields = Fields::default();
    for word in lower.split(|char: char| char.is_whitespace() || char == ',') {
        if !word.is_empty() {
            fields.word(word)?;
        }
    }
    fields.finish()
}

fn special(text: &str) -> Option<i64> {
    let day = |after: i64| {
        let today = datetime::now().div_euclid(DAY);
        (today + after) * DAY
    };
    Some(match text {
        "now" => datetime::now(),
        "today" => day(0),
        "tomorrow" => day(1),
        "yesterday" => day(-1),
        "epoch" => datetime::day_of(1970, 1, 1) * DAY,
        "infinity" | "+infinity" => datetime::INFINITY,
        "-infinity" => datetime::BEFORE_ALL,
        _ => return None,
    })
}

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const WEEKDAYS: [&str; 7] =
    ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

/// Returns the place of a name in the list; three letters of a name are enough.
fn named(list: &[&str], word: &str) -> Option<i64> {
    let word = word.trim_end_matches('.');
    let is = |name: &&str| name.starts_with(word) && (word.len() == 3 || word.len() == name.len());
    let at = list.iter().position(|name| is(name) || (word == "sept" && *name == "september"))?;
    Some(at as i64 + 1)
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn int(text: &str) -> Result<i64, TimeFault> {
    if !is_digits(text) {
        return Err(TimeFault::Syntax);
    }
    text.parse().map_err(|_| TimeFault::Range)
}

/// The fields that have been read so far.
#[derive(Debug, Default)]
struct Fields {
    year: Option<i64>,
    month: Option<i64>,
    day: Option<i64>,
    clock: Option<i64>,
    shift: Option<i64>,
    /// Whether the hours are those after noon, of twelve.
    afternoon: Option<bool>,
}

impl Fields {
    fn word(&mut self, word: &str) -> Result<(), TimeFault> {
        let is_new = self.year.is_none() && self.day.is_none();
        // `T` is between a date and its time.
        let parts =
            word.split_once('t').filter(|(date, _)| date.ends_with(|c: char| c.is_ascii_digit()));
        if let Some((date, time)) = parts.filter(|_| is_new) {
            self.date(date)?;
            return self.clock(time);
        }
        match word {
            "am" | "pm" => return set(&mut self.afternoon, word == "pm"),
            "z" | "utc" | "gmt" | "ut" | "zulu" => return set(&mut self.shift, 0),
            "ad" => return Ok(()),
            "bc" => return Err(TimeFault::Year),
            _ => (),
        }
        if word.contains(':') && !word.starts_with(['+', '-']) {
            return self.clock(word);
        }
        if word.starts_with(['+', '-']) && self.clock.is_some() {
            return set(&mut self.shift, zone(word)?);
        }
        if let Some(month) = named(&MONTHS, word) {
            return set(&mut self.month, month);
        }
        if named(&WEEKDAYS, word).is_some() {
            return Ok(());
        }
        if self.clock.is_some() && word.starts_with(|char: char| char.is_ascii_alphabetic()) {
            return Err(TimeFault::Zone);
        }
        self.date(word)
    }

    /// Reads a date, or the one part of a date that stands alone.
    fn date(&mut self, word: &str) -> Result<(), TimeFault> {
        let parts: Vec<&str> = word.split(['-', '/', '.']).collect();
        let (year, month, day) = match parts[..] {
            [digits] if is_digits(digits) && digits.len() == 8 => {
                (int(&digits[..4])?, int(&digits[4..6])?, int(&digits[6..])?)
            }
            [digits] if self.month.is_some() && self.day.is_some() => {
                return set(&mut self.year, year_of(digits)?);
            }
            [digits] if digits.len() > 2 && self.month.is_some() => {
                return set(&mut self.year, year_of(digits)?);
            }
            [digits] if digits.len() <= 2 => return set(&mut self.day, int(digits)?),
            [first, name, last] if named(&MONTHS, name).is_some() => {
                let month = named(&MONTHS, name).ok_or(TimeFault::Syntax)?;
                if first.len() > 2 {
                    (year_of(first)?, month, int(last)?)
                } else {
                    (year_of(last)?, month, int(first)?)
                }
            }
            [year, month, day] if year.len() > 2 => (year_of(year)?, int(month)?, int(day)?),
            [month, day, year] => (year_of(year)?, int(month)?, int(day)?),
            _ => return Err(TimeFault::Syntax),
        };
        set(&mut self.year, year)?;
        set(&mut self.month, month)?;
        set(&mut self.day, day)
    }

    /// Reads `hh:mm[:ss[.fff]]`, with a zone or the half of the day behind it.
    fn clock(&mut self, word: &str) -> Result<(), TimeFault> {
        let mut word = word;
        for (end, pm) in [("am", false), ("pm", true)] {
            if let Some(rest) = word.strip_suffix(end) {
                set(&mut self.afternoon, pm)?;
                word = rest;
            }
        }
        for end in ["z", "utc", "gmt"] {
            if let Some(rest) = word.strip_suffix(end) {
                set(&mut self.shift, 0)?;
                word = rest;
                break;
            }
        }
        if let Some(at) = word.find(['+', '-']) {
            set(&mut self.shift, zone(&word[at..])?)?;
            word = &word[..at];
        }
        set(&mut self.clock, clock(word)?)
    }

    fn finish(self) -> Result<TimeParts, TimeFault> {
        let clock = match (self.clock, self.afternoon) {
            (Some(clock), Some(_)) if clock >= 13 * HOUR => return Err(TimeFault::Range),
            (Some(clock), Some(pm)) => Some(clock % (12 * HOUR) + if pm { 12 * HOUR } else { 0 }),
            (None, Some(_)) => return Err(TimeFault::Syntax),
            (clock, None) => clock,
        };
        let day = match (self.year, self.month, self.day) {
            (None, None, None) => None,
            (Some(year), Some(month), Some(day)) => Some(checked(year, month, day)?),
            _ => return Err(TimeFault::Syntax),
        };
        if day.is_none() && clock.is_none() {
            return Err(TimeFault::Syntax);
        }
        Ok(TimeParts { day, clock, shift: self.shift, special: None })
    }
}

/// Sets a field, which must not have a value yet.
fn set<T>(field: &mut Option<T>, value: T) -> Result<(), TimeFault> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(TimeFault::Syntax),
    }
}

/// Reads a year. Two digits are one from 1970 to 2069.
fn year_of(digits: &str) -> Result<i64, TimeFault> {
    let year = int(digits)?;
    Ok(match year {
        0..70 if digits.len() <= 2 => year + 2000,
        70..100 if digits.len() <= 2 => year + 1900,
        _ => year,
    })
}

/// Returns the day, counted from 2000-01-01, of a date that exists.
fn checked(year: i64, month: i64, day: i64) -> Result<i64, TimeFault> {
    if year > 9999 {
        return Err(TimeFault::Year);
    }
    if year == 0 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return Err(TimeFault::Range);
    }
    let count = datetime::day_of(year, month, day);
    if datetime::civil(count) == (year, month, day) { Ok(count) } else { Err(TimeFault::Range) }
}

/// Reads `hh:mm[:ss[.fff]]`, or `hhmmss`.
fn clock(text: &str) -> Result<i64, TimeFault> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut parts = [0; 3];
    if let (true, 4 | 6) = (is_digits(whole), whole.len()) {
        for (part, at) in parts.iter_mut().zip((0..whole.len()).step_by(2)) {
            *part = int(&whole[at..at + 2])?;
        }
    } else {
        let count = whole.split(':').count();
        if !(2..=3).contains(&count) || (count == 2 && text.contains('.')) {
            return Err(TimeFault::Syntax);
        }
        for (part, digits) in parts.iter_mut().zip(whole.split(':')) {
            *part = int(digits)?;
        }
    }
    let [hours, minutes, seconds] = parts;
    if hours > 24 || minutes > 59 || seconds > 60 {
        return Err(TimeFault::Range);
    }
    let micros = hours * HOUR + minutes * MINUTE + seconds * SECOND + micros(fraction)?;
    if micros > DAY { Err(TimeFault::Range) } else { Ok(micros) }
}

/// Returns the microseconds of the digits behind a point, rounded.
fn micros(fraction: &str) -> Result<i64, TimeFault> {
    if fraction.is_empty() {
        return Ok(0);
    }
    if !is_digits(fraction) {
        return Err(TimeFault::Syntax);
    }
    let digits: String = fraction.chars().chain("0000000".chars()).take(7).collect();
    Ok((int(&digits)? + 5) / 10)
}

/// Reads `+hh`, `+hhmm` or `+hh:mm[:ss]`, and returns the microseconds ahead of UTC.
fn zone(text: &str) -> Result<i64, TimeFault> {
    let digits = &text[1..];
    let mut parts = [0; 3];
    if is_digits(digits) && digits.len() == 4 {
        parts = [int(&digits[..2])?, int(&digits[2..])?, 0];
    } else {
        if digits.split(':').count() > 3 {
            return Err(TimeFault::Syntax);
        }
        for (part, digits) in parts.iter_mut().zip(digits.split(':')) {
            *part = int(digits)?;
        }
    }
    let [hours, minutes, seconds] = parts;
    if hours > 15 || minutes > 59 || seconds > 59 {
        return Err(TimeFault::Range);
    }
    let shift = hours * HOUR + minutes * MINUTE + seconds * SECOND;
    Ok(if text.starts_with('-') { -shift } else { shift })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the point in time of UTC that a text means, spelled in one form.
    fn of(text: &str) -> Result<String, TimeFault> {
        let parts = read(text)?;
        let clock = || datetime::format(parts.clock.unwrap_or(0))[11..].to_owned();
        Ok(parts.utc().map_or_else(clock, datetime::format))
    }

    #[test]
    fn a_time_is_read_in_postgresqls_forms() {
        for (text, expected) in [
            ("2026-01-05", "2026-01-05 00:00:00"),
            ("20260105", "2026-01-05 00:00:00"),
            ("January 5, 2026", "2026-01-05 00:00:00"),
            ("5 Jan 2026", "2026-01-05 00:00:00"),
            ("Jan 5 2026", "2026-01-05 00:00:00"),
            ("Mon 5-Jan-2026", "2026-01-05 00:00:00"),
            ("2026-jan-05", "2026-01-05 00:00:00"),
            ("01/05/2026", "2026-01-05 00:00:00"),
            ("1.5.26", "2026-01-05 00:00:00"),
            ("2026-01-05T10:30:15.5Z", "2026-01-05 10:30:15.5"),
            ("20260105T103015", "2026-01-05 10:30:15"),
            ("2026-01-05 10:30+02", "2026-01-05 08:30:00"),
            ("2026-01-05 10:30 +02:30", "2026-01-05 08:00:00"),
            ("2026-01-05 10:30-0500 AD", "2026-01-05 15:30:00"),
            ("2026-01-05 10:30 UTC", "2026-01-05 10:30:00"),
            ("2026-01-05 24:00", "2026-01-06 00:00:00"),
            ("2026-12-31 23:59:60", "2027-01-01 00:00:00"),
            ("2026-01-05 10:30:15.1234567", "2026-01-05 10:30:15.123457"),
            ("epoch", "1970-01-01 00:00:00"),
            ("-infinity", "-infinity"),
            ("10:30 PM", "22:30:00"),
            ("12:15am", "00:15:00"),
            ("12:00 pm", "12:00:00"),
        ] {
            assert_eq!(of(text).as_deref(), Ok(expected), "{text}");
        }
        assert_eq!(read("24:00").unwrap().clock, Some(DAY));
    }

    #[test]
    fn what_is_no_time_says_why() {
        use TimeFault::{Range, Syntax, Year, Zone};
        for (text, fault) in [
            ("", Syntax),
            ("noon", Syntax),
            ("5", Syntax),
            ("2026-01", Syntax),
            ("2026-01-05 x", Syntax),
            ("2026-01-05 2026-01-06", Syntax),
            ("10:30 10:31", Syntax),
            ("10", Syntax),
            ("2026-1-1-1", Syntax),
            ("9-é-1 é", Syntax),
            ("2026-02-29", Range),
            ("2026-13-01", Range),
            ("29.2.2024", Range),
            ("25:00", Range),
            ("24:00:01", Range),
            ("13:00 pm", Range),
            ("10:60", Range),
            ("10000-01-01", Year),
            ("0044-03-15 BC", Year),
            ("0000-03-15", Range),
            ("2026-01-05 10:30+16", Range),
            ("2026-01-05 10:30 Europe/Berlin", Zone),
        ] {
            assert_eq!(of(text), Err(fault), "{text}");
        }
    }

    proptest::proptest! {
        /// What is formatted is read back, and any text is read without a panic.
        #[test]
        fn a_formatted_time_is_read_back(day in -730_119i64..2_921_939, clock in 0..DAY) {
            let micros = day * DAY + clock;
            proptest::prop_assert_eq!(read(&datetime::format(micros)).unwrap().utc(), Some(micros));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,40}", digits in "[-0-9:. +/tzpma]{0,24}") {
            let _ = (read(&text), read(&digits));
        }
    }
}
