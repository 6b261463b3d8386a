//! Intervals: months, days and microseconds, which are kept apart, because a month has no fixed
//! number of days and a day none of hours.
//!
//! ```text
//!   '1 year 2 mons 3 days 04:05:06.5'   the text that is stored, and sent
//!   '90 minutes'  '@ 1 day ago'  '1-2'  '1 02:03'  'P1Y2M3DT4H'   are read, too
//! ```
//!
//! In a database an interval is its text. Texts do not sort as intervals do, so a statement
//! compares them by [`Interval::key`], for which a month has 30 days and a day 24 hours, as in
//! PostgreSQL. Databases that were written by hand may have any text that is read.

use super::datetime::{DAY, HOUR, MINUTE, SECOND, format_clock};

/// The days that a month has where months and days are compared.
const MONTH_DAYS: i64 = 30;

/// Why a text is no interval, or an operation has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IntervalFault {
    /// The text has another form.
    Syntax,
    /// A part is too large.
    Range,
}

use IntervalFault::{Range, Syntax};

type Result<T> = std::result::Result<T, IntervalFault>;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) months: i32,
    pub(crate) days: i32,
    pub(crate) micros: i64,
}

impl Interval {
    pub(crate) fn of_micros(micros: i64) -> Interval {
        Interval { micros, ..Interval::default() }
    }

    /// Returns the length by which intervals are compared, in microseconds.
    pub(crate) fn key(self) -> i128 {
        let days = i64::from(self.months) * MONTH_DAYS + i64::from(self.days);
        i128::from(days) * i128::from(DAY) + i128::from(self.micros)
    }

    pub(crate) fn plus(self, other: Interval) -> Result<Interval> {
        Ok(Interval {
            months: self.months.checked_add(other.months).ok_or(Range)?,
            days: self.days.checked_add(other.days).ok_or(Range)?,
            micros: self.micros.checked_add(other.micros).ok_or(Range)?,
        })
    }

    pub(crate) fn negated(self) -> Result<Interval> {
        Ok(Interval {
            months: self.months.checked_neg().ok_or(Range)?,
            days: self.days.checked_neg().ok_or(Range)?,
            micros: self.micros.checked_neg().ok_or(Range)?,
        })
    }

    /// Returns the product. What is left of a month becomes days, and what is left of a day a time.
    pub(crate) fn times(self, factor: f64) -> Result<Interval> {
        self.scaled(|part| part * factor)
    }

    /// Returns the quotient, as [`Interval::times`] does. The divisor is not zero.
    pub(crate) fn over(self, divisor: f64) -> Result<Interval> {
        self.scaled(|part| part / divisor)
    }

    fn scaled(self, scale: impl Fn(f64) -> f64) -> Result<Interval> {
        let round = |value: f64| (value * 1e6).round_ties_even() / 1e6;
        let (exact_months, exact_days) = (scale(self.months.into()), scale(self.days.into()));
        let (months, mut days) = (small(exact_months)?, i64::from(small(exact_days)?));
        let rest_days = round((exact_months - f64::from(months)) * MONTH_DAYS as f64);
        let mut seconds = round((exact_days.fract() + rest_days.fract()) * 86_400.0);
        if seconds.abs() >= 86_400.0 {
            days += (seconds / 86_400.0) as i64;
            seconds %= 86_400.0;
        }
        days += rest_days as i64;
        let micros = scale(self.micros as f64) + seconds * 1e6;
        let days = i32::try_from(days).map_err(|_| Range)?;
        Ok(Interval { months, days, micros: large(micros.round_ties_even())? })
    }

    /// Makes days of every 24 hours.
    pub(crate) fn justify_hours(self) -> Result<Interval> {
        let days = i64::from(self.days) + self.micros / DAY;
        let (days, micros) = same_sign(days, self.micros % DAY, DAY);
        Ok(Interval { days: i32::try_from(days).map_err(|_| Range)?, micros, ..self })
    }

    /// Makes months of every 30 days.
    pub(crate) fn justify_days(self) -> Result<Interval> {
        let days = i64::from(self.days);
        let months = i64::from(self.months) + days / MONTH_DAYS;
        let (months, days) = same_sign(months, days % MONTH_DAYS, MONTH_DAYS);
        Ok(Interval {
            months: i32::try_from(months).map_err(|_| Range)?,
            days: days as i32,
            ..self
        })
    }

    /// Does both, and gives all parts the same sign.
    pub(crate) fn justify(self) -> Result<Interval> {
        let (mut days, micros) = (i64::from(self.days) + self.micros / DAY, self.micros % DAY);
        let mut months = i64::from(self.months) + days / MONTH_DAYS;
        days %= MONTH_DAYS;
        let rest = if days == 0 { micros } else { days };
        if months > 0 && rest < 0 {
            (months, days) = (months - 1, days + MONTH_DAYS);
        } else if months < 0 && rest > 0 {
            (months, days) = (months + 1, days - MONTH_DAYS);
        }
        let (days, micros) = same_sign(days, micros, DAY);
        let months = i32::try_from(months).map_err(|_| Range)?;
        Ok(Interval { months, days: days as i32, micros })
    }

    /// Returns PostgreSQL's text.
    pub(crate) fn format(self) -> String {
        let mut text = String::new();
        let mut is_before = false;
        for (count, unit) in
            [(self.months / 12, "year"), (self.months % 12, "mon"), (self.days, "day")]
        {
            if count != 0 {
                let space = if text.is_empty() { "" } else { " " };
                let plus = if is_before && count > 0 { "+" } else { "" };
                let plural = if count == 1 { "" } else { "s" };
                text += &format!("{space}{plus}{count} {unit}{plural}");
                is_before = count < 0;
            }
        }
        if text.is_empty() || self.micros != 0 {
            let space = if text.is_empty() { "" } else { " " };
            let sign = match self.micros {
                ..0 => "-",
                _ if is_before => "+",
                _ => "",
            };
            text += &format!("{space}{sign}{}", format_clock(self.micros.unsigned_abs()));
        }
        text
    }

    /// Reads an interval.
    pub(crate) fn parse(text: &str) -> Result<Interval> {
        let lower = text.trim().to_ascii_lowercase();
        match lower.strip_prefix('p') {
            Some(iso) => read_iso(iso),
            None => read_words(&lower),
        }
    }

    /// Returns the form on the wire.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.micros.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.days.to_be_bytes());
        bytes[12..].copy_from_slice(&self.months.to_be_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Interval {
        let [a, b, c, d, e, f, g, h, days @ .., m, n, o, p] = bytes;
        let [i, j, k, l] = days;
        Interval {
            micros: i64::from_be_bytes([a, b, c, d, e, f, g, h]),
            days: i32::from_be_bytes([i, j, k, l]),
            months: i32::from_be_bytes([m, n, o, p]),
        }
    }
}

/// Returns a large and a small part with the same sign, of which the large one has `size` small
/// ones.
fn same_sign(large: i64, small: i64, size: i64) -> (i64, i64) {
    if large > 0 && small < 0 {
        (large - 1, small + size)
    } else if large < 0 && small > 0 {
        (large + 1, small - size)
    } else {
        (large, small)
    }
}

fn small(value: f64) -> Result<i32> {
    let fits = value.abs() <= f64::from(i32::MAX);
    if fits { Ok(value as i32) } else { Err(Range) }
}

fn large(value: f64) -> Result<i64> {
    let fits = value.abs() < 2f64.powi(63);
    if fits { Ok(value as i64) } else { Err(Range) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Months(i64),
    Days(i64),
    Micros(i64),
}

fn unit(word: &str) -> Option<Unit> {
    use Unit::{Days, Micros, Months};
    Some(match word {
        "us" | "usec" | "usecs" | "microsecond" | "microseconds" => Micros(1),
        "ms" | "msec" | "msecs" | "millisecond" | "milliseconds" => Micros(1000),
        "s" | "sec" | "secs" | "second" | "seconds" => Micros(SECOND),
        "m" | "min" | "mins" | "minute" | "minutes" => Micros(MINUTE),
        "h" | "hr" | "hrs" | "hour" | "hours" => Micros(HOUR),
        "d" | "day" | "days" => Days(1),
        "w" | "week" | "weeks" => Days(7),
        "mon" | "mons" | "month" | "months" => Months(1),
        "y" | "yr" | "yrs" | "year" | "years" => Months(12),
        "dec" | "decs" | "decade" | "decades" => Months(120),
        "c" | "cent" | "century" | "centuries" => Months(1200),
        "mil" | "mils" | "millennium" | "millennia" => Months(12_000),
        _ => return None,
    })
}

/// Adds up the parts of a text.
#[derive(Default)]
struct Sum {
    months: i64,
    days: i64,
    micros: i64,
    /// The units that the text has had.
    seen: Vec<Unit>,
}

impl Sum {
    /// Adds `number`, which may have a sign and a point.
    fn add(&mut self, number: &str, unit: Unit) -> Result<()> {
        if self.seen.contains(&unit) {
            return Err(Syntax);
        }
        self.seen.push(unit);
        let (sign, digits) = match number.as_bytes().first() {
            Some(b'-') => (-1, &number[1..]),
            Some(b'+') => (1, &number[1..]),
            _ => (1, number),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let fraction = if fraction.is_empty() { 0.0 } else { read(&format!("0.{fraction}"))? };
        let whole: i64 = if whole.is_empty() { 0 } else { read(whole)? };
        let add = |part: &mut i64, size: i64| -> Result<()> {
            let more = whole.checked_mul(size).ok_or(Range)?;
            *part = part.checked_add(sign * more).ok_or(Range)?;
            Ok(())
        };
        match unit {
            Unit::Micros(size) => {
                add(&mut self.micros, size)?;
                self.add_micros(sign as f64 * fraction * size as f64)
            }
            Unit::Days(size) => {
                add(&mut self.days, size)?;
                self.add_days(sign as f64 * fraction * size as f64)
            }
            Unit::Months(1) => {
                add(&mut self.months, 1)?;
                self.add_days(sign as f64 * fraction * MONTH_DAYS as f64)
            }
            Unit::Months(size) => {
                add(&mut self.months, size)?;
                let months = (fraction * size as f64).round_ties_even() as i64;
                self.months = self.months.checked_add(sign * months).ok_or(Range)?;
                Ok(())
            }
        }
    }

    fn add_days(&mut self, days: f64) -> Result<()> {
        self.days = self.days.checked_add(days as i64).ok_or(Range)?;
        self.add_micros(days.fract() * DAY as f64)
    }

    fn add_micros(&mut self, micros: f64) -> Result<()> {
        let micros = micros.round_ties_even() as i64;
        self.micros = self.micros.checked_add(micros).ok_or(Range)?;
        Ok(())
    }

    fn finish(&self) -> Result<Interval> {
        Ok(Interval {
            months: i32::try_from(self.months).map_err(|_| Range)?,
            days: i32::try_from(self.days).map_err(|_| Range)?,
            micros: self.micros,
        })
    }
}

fn read<T: std::str::FromStr>(digits: &str) -> Result<T> {
    if !digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(Syntax);
    }
    digits.parse().map_err(|_| if digits.contains('.') { Syntax } else { Range })
}

/// Reads what follows the P: `1Y2M3DT4H5M6S`, or `1W`.
fn read_iso(text: &str) -> Result<Interval> {
    let (mut sum, mut rest, mut is_time) = (Sum::default(), text, false);
    while !rest.is_empty() {
        if let (Some(time), false) = (rest.strip_prefix('t'), is_time) {
            (rest, is_time) = (time, true);
            continue;
        }
        let end = rest.find(|char: char| char.is_ascii_alphabetic()).ok_or(Syntax)?;
        let unit = match (&rest[end..=end], is_time) {
            ("y", false) => Unit::Months(12),
            ("m", false) => Unit::Months(1),
            ("w", false) => Unit::Days(7),
            ("d", false) => Unit::Days(1),
            ("h", true) => Unit::Micros(HOUR),
            ("m", true) => Unit::Micros(MINUTE),
            ("s", true) => Unit::Micros(SECOND),
            _ => return Err(Syntax),
        };
        if !rest[..end].ends_with(|char: char| char.is_ascii_digit()) {
            return Err(Syntax);
        }
        sum.add(&rest[..end], unit)?;
        rest = &rest[end + 1..];
    }
    if sum.seen.is_empty() { Err(Syntax) } else { sum.finish() }
}

/// Reads numbers with their units, `1-2` (years and months) and `hh:mm:ss`.
fn read_words(text: &str) -> Result<Interval> {
    let text = text.strip_prefix('@').unwrap_or(text).trim_start();
    let (text, is_ago) = match text.strip_suffix("ago") {
        Some(before) => (before, true),
        None => (text, false),
    };
    let mut sum = Sum::default();
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(Syntax);
    }
    while !rest.is_empty() {
        let (number, after) = number(rest)?;
        let word = after.trim_start();
        let end = word.find(|char: char| !char.is_ascii_alphabetic()).unwrap_or(word.len());
        let next = &word[end..];
        if number.contains(':') {
            add_clock(&mut sum, number)?;
            rest = word;
        } else if let Some((years, months)) = years_and_months(number) {
            let sign = if years.starts_with('-') { "-" } else { "" };
            sum.add(years, Unit::Months(12))?;
            sum.add(&format!("{sign}{months}"), Unit::Months(1))?;
            rest = word;
        } else if end > 0 {
            sum.add(number, unit(&word[..end]).ok_or(Syntax)?)?;
            rest = next.trim_start();
        } else {
            // A number alone is one of days before a time, and of seconds at the end.
            let unit = if word.is_empty() { Unit::Micros(SECOND) } else { Unit::Days(1) };
            if !word.is_empty() && !word.contains(':') {
                return Err(Syntax);
            }
            sum.add(number, unit)?;
            rest = word;
        }
    }
    let interval = sum.finish()?;
    if is_ago { interval.negated() } else { Ok(interval) }
}

/// Cuts the number, the pair of numbers or the time with which the text begins from its rest.
fn number(text: &str) -> Result<(&str, &str)> {
    let sign = usize::from(text.starts_with(['+', '-']));
    let belongs = |char: char| char.is_ascii_digit() || ".:-".contains(char);
    let end = text[sign..].find(|char: char| !belongs(char)).map_or(text.len(), |at| sign + at);
    let has_digit = text[sign..end].bytes().any(|byte| byte.is_ascii_digit());
    if has_digit { Ok(text.split_at(end)) } else { Err(Syntax) }
}

fn years_and_months(number: &str) -> Option<(&str, &str)> {
    let at = number[1..].find('-')? + 1;
    Some((&number[..at], &number[at + 1..]))
}

fn add_clock(sum: &mut Sum, text: &str) -> Result<()> {
    let sign = if text.starts_with('-') { "-" } else { "" };
    let mut parts = text.trim_start_matches(['+', '-']).split(':');
    let (hours, minutes) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    let seconds = parts.next().unwrap_or("0");
    if parts.next().is_some() || hours.contains('.') || minutes.contains('.') {
        return Err(Syntax);
    }
    if read::<f64>(minutes)? >= 60.0 || read::<f64>(seconds)? >= 61.0 {
        return Err(Range);
    }
    sum.add(&format!("{sign}{hours}"), Unit::Micros(HOUR))?;
    sum.add(&format!("{sign}{minutes}"), Unit::Micros(MINUTE))?;
    sum.add(&format!("{sign}{seconds}"), Unit::Micros(SECOND))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Strategy, prop_assert_eq, proptest};

    use super::*;

    fn of(text: &str) -> Interval {
        Interval::parse(text).unwrap_or_else(|fault| panic!("{text}: {fault:?}"))
    }

    #[test]
    fn intervals_are_read_and_shown_as_postgresql_does() {
        for (text, shown) in [
            ("1 hour", "01:00:00"),
            ("1 year 2 months 3 days", "1 year 2 mons 3 days"),
            ("1 day 02:03:04", "1 day 02:03:04"),
            ("90 minutes", "01:30:00"),
            ("1.5 hours", "01:30:00"),
            ("-1 day", "-1 days"),
            ("1 week", "7 days"),
            ("36 hours", "36:00:00"),
            ("P1DT2H", "1 day 02:00:00"),
            ("P1Y2M3DT4H5M6.5S", "1 year 2 mons 3 days 04:05:06.5"),
            ("1-2", "1 year 2 mons"),
            ("-1-2", "-1 years -2 mons"),
            ("1 02:03", "1 day 02:03:00"),
            ("10", "00:00:10"),
            ("@ 1 minute ago", "-00:01:00"),
            ("1 mon -1 day", "1 mon -1 days"),
            ("-1 mon 1 day -00:00:01.5", "-1 mons +1 day -00:00:01.5"),
            ("-1 day 02:00", "-1 days +02:00:00"),
            ("1.5 months", "1 mon 15 days"),
            ("1.5 days", "1 day 12:00:00"),
            ("1.5 years", "1 year 6 mons"),
            ("0.5 week", "3 days 12:00:00"),
            ("1d2h3m4s", "1 day 02:03:04"),
            ("250 ms", "00:00:00.25"),
            ("0", "00:00:00"),
            ("2 decades", "20 years"),
        ] {
            assert_eq!(of(text).format(), shown, "{text}");
        }
        for text in [
            "",
            "long",
            "1 x",
            "1 2 days",
            "1 day 2 days",
            "1:2:3:4",
            "P",
            "PT",
            "P1",
            "é",
            "- day",
        ] {
            assert_eq!(Interval::parse(text), Err(Syntax), "{text}");
        }
        for text in ["3000000000 days", "300000000 years", "10:61", "9999999999999999999 s"] {
            assert_eq!(Interval::parse(text), Err(Range), "{text}");
        }
    }

    #[test]
    fn intervals_are_multiplied_and_divided_as_postgresql_does() {
        for (text, factor, shown) in [
            ("1 hour", 3.0, "03:00:00"),
            ("1 day", 1.5, "1 day 12:00:00"),
            ("1 mon", 0.5, "15 days"),
            ("1 mon 1 day", 0.1, "3 days 02:24:00"),
            ("-1 mon", 1.25, "-1 mons -7 days -12:00:00"),
        ] {
            assert_eq!(of(text).times(factor).unwrap().format(), shown, "{text} * {factor}");
        }
        assert_eq!(of("1 hour").over(4.0).unwrap().format(), "00:15:00");
        assert_eq!(of("2 days 04:04:05").over(2.0).unwrap().format(), "1 day 02:02:02.5");
        assert_eq!(of("1 day").times(1e12), Err(Range));
        assert_eq!(of("1 s").times(f64::NAN), Err(Range));
    }

    #[test]
    fn parts_that_are_full_become_larger_ones() {
        assert_eq!(of("40 days").justify_days().unwrap().format(), "1 mon 10 days");
        assert_eq!(of("36 hours").justify_hours().unwrap().format(), "1 day 12:00:00");
        assert_eq!(of("1 mon -1 hour").justify().unwrap().format(), "29 days 23:00:00");
        assert_eq!(of("-35 days 25:00").justify().unwrap().format(), "-1 mons -3 days -23:00:00");
    }

    fn interval() -> impl Strategy<Value = Interval> {
        let parts = (-5000i32..5000, -5000i32..5000, -3 * DAY..3 * DAY);
        parts.prop_map(|(months, days, micros)| Interval { months, days, micros })
    }

    proptest! {
        #[test]
        fn an_interval_survives_its_text_and_its_bytes(one in interval(), other in interval()) {
            prop_assert_eq!(Interval::parse(&one.format()), Ok(one));
            prop_assert_eq!(Interval::from_bytes(one.to_bytes()), one);
            let sum = one.plus(other).unwrap();
            prop_assert_eq!(sum.key(), one.key() + other.key());
            prop_assert_eq!(sum.plus(other.negated().unwrap()), Ok(one));
            prop_assert_eq!(one.justify().unwrap().key(), one.key());
            prop_assert_eq!(one.times(3.0), one.plus(one).unwrap().plus(one));
        }

        #[test]
        fn any_text_is_an_interval_or_none(text in ".{0,30}", near in "[-+@p0-9:. tdhmy]{0,20}") {
            let _ = (Interval::parse(&text), Interval::parse(&near));
        }
    }
}
