//! The time limits of a session: settings that clients read and change by SHOW and SET, and write
//! as in PostgreSQL. It measures no time; `session_limits.rs` says where that is done.

use std::time::Duration;

use crate::error::{Result, SqlError};

/// The time limits of a session. A limit of zero is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// How long a statement may take (`statement_timeout`).
    pub statement: Duration,
    /// How long a statement may wait for the write gate (`lock_timeout`).
    pub lock: Duration,
    /// How long a session may be idle in a transaction (`idle_in_transaction_session_timeout`).
    pub idle_in_transaction: Duration,
    /// How long a session may be idle outside a transaction (`idle_session_timeout`).
    pub idle_session: Duration,
}

/// The units of a time, in microseconds, from the longest to the shortest.
const UNITS: [(&str, u64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("min", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];
/// The longest time, in milliseconds.
const TIME_MAX: f64 = i32::MAX as f64;

impl Timeouts {
    /// Returns the limit with this name in SQL.
    fn named(&mut self, name: &str) -> Option<&mut Duration> {
        Some(match name {
            "statement_timeout" => &mut self.statement,
            "lock_timeout" => &mut self.lock,
            "idle_in_transaction_session_timeout" => &mut self.idle_in_transaction,
            "idle_session_timeout" => &mut self.idle_session,
            _ => return None,
        })
    }

    /// Returns the value of the limit with this name, as PostgreSQL writes it.
    pub(crate) fn show(mut self, name: &str) -> Option<String> {
        let micros = self.named(name)?.as_micros() as u64;
        let unit = UNITS.iter().find(|(_, unit)| micros.is_multiple_of(*unit));
        let (unit, size) = unit.copied().unwrap_or(("us", 1));
        Some(if micros == 0 { "0".into() } else { format!("{}{unit}", micros / size) })
    }

    /// Sets the limit with this name. `None` and `DEFAULT` set that of `defaults`. Returns false if
    /// there is no such limit.
    pub(crate) fn set(
        &mut self,
        name: &str,
        value: Option<&str>,
        mut defaults: Timeouts,
    ) -> Result<bool> {
        let (Some(limit), Some(default)) = (self.named(name), defaults.named(name)) else {
            return Ok(false);
        };
        let value = value.filter(|value| !value.eq_ignore_ascii_case("default"));
        *limit = match value {
            Some(value) => parse_time(value).map_err(|wrong| wrong.of(name, value))?,
            None => *default,
        };
        Ok(true)
    }
}

/// What is wrong with the text of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrongTime {
    /// It is not a number with a unit.
    Malformed,
    /// It is negative, or longer than 2,147,483,647 ms.
    OutOfRange,
}

impl WrongTime {
    fn of(self, name: &str, value: &str) -> SqlError {
        let value: String = value.chars().take(40).collect();
        match self {
            WrongTime::Malformed => SqlError::new(
                "22023",
                format!("invalid value for parameter \"{name}\": \"{value}\""),
            )
            .hint("Write a number and a unit: \"us\", \"ms\", \"s\", \"min\", \"h\" or \"d\"."),
            WrongTime::OutOfRange => SqlError::new(
                "22023",
                format!(
                    "{value} is outside the valid range for parameter \"{name}\" \
                     (0 ms .. {TIME_MAX} ms)"
                ),
            ),
        }
    }
}

impl std::fmt::Display for WrongTime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            WrongTime::Malformed => "write a number and a unit: us, ms, s, min, h or d",
            WrongTime::OutOfRange => "the time is negative or too long",
        })
    }
}

impl std::error::Error for WrongTime {}

/// Reads a time: a number of milliseconds, or of the unit that follows it (`5s`, `1.5 min`).
///
/// # Errors
/// What is wrong with the text.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(umsql::parse_time("250"), Ok(Duration::from_millis(250)));
/// assert_eq!(umsql::parse_time("1.5min"), Ok(Duration::from_secs(90)));
/// assert_eq!(umsql::parse_time("soon"), Err(umsql::WrongTime::Malformed));
/// ```
pub fn parse_time(text: &str) -> std::result::Result<Duration, WrongTime> {
    let text = text.trim();
    let end = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '-' | '+')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = number.parse().map_err(|_| WrongTime::Malformed)?;
    let unit = match unit.trim() {
        "" => 1_000,
        unit => UNITS.iter().find(|(name, _)| *name == unit).ok_or(WrongTime::Malformed)?.1,
    };
    let millis = number * unit as f64 / 1000.0;
    if !(0.0..=TIME_MAX).contains(&millis) {
        return Err(WrongTime::OutOfRange);
    }
    // PostgreSQL stores whole milliseconds. A time that is not zero stays a limit.
    let whole = if millis > 0.0 { millis.round().max(1.0) } else { 0.0 };
    Ok(Duration::from_millis(whole as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_written_as_postgresql_does() {
        let read = |text: &str| parse_time(text).map(|time| time.as_millis());
        for (text, millis) in [
            ("0", 0),
            ("100", 100),
            ("5s", 5_000),
            (" 5 s ", 5_000),
            ("1min", 60_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("1.5s", 1_500),
            ("1us", 1),
            ("2147483647", 2_147_483_647),
        ] {
            assert_eq!(read(text), Ok(millis), "{text}");
        }
        for text in ["", "s", "5 x", "1e9", "nan", "inf", "5S", "--1", "5s5"] {
            assert_eq!(read(text), Err(WrongTime::Malformed), "{text}");
        }
        for text in ["-1", "2147483648", "25d", "-5s"] {
            assert_eq!(read(text), Err(WrongTime::OutOfRange), "{text}");
        }
        let show = |millis| {
            let limits = Timeouts { lock: Duration::from_millis(millis), ..Timeouts::default() };
            limits.show("lock_timeout").unwrap()
        };
        let shown = [0, 100, 5_000, 60_000, 90_000, 7_200_000, 86_400_000].map(show);
        assert_eq!(shown, ["0", "100ms", "5s", "1min", "90s", "2h", "1d"]);
        assert_eq!(Timeouts::default().show("work_mem"), None);
    }
}
