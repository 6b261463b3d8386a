//! `printf` and `format`, which SQLite computes outside the scheduler if a call may take long: a
//! format of 16 MiB takes a second, in which SQLite looks at no cancellation.
//!
//! Each function has a connection of its own, with nothing but SQLite's functions, in which the
//! call is executed.

use std::cell::RefCell;

use rusqlite::functions::Context;
use rusqlite::limits::Limit;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Error, OpenFlags, Result};

use super::scalar::deterministic;
use super::steps::{look, outside};
use super::values::{Answer, Counted, Lossy};

/// Calls with at most this much [`work`] are computed at once: in about a millisecond.
const AT_ONCE: usize = 8 << 10;

/// Registers the functions with `connection`. No result has more than `max` bytes.
pub(super) fn register(connection: &Connection, max: usize) -> Result<()> {
    for name in ["printf", "format"] {
        let kept: RefCell<Option<Connection>> = RefCell::default();
        deterministic(connection, name, -1, move |context| {
            // While a call computes, no other call of the same connection is made.
            let kept_now = kept.take();
            let plain = kept_now.map_or_else(|| plain(max), Ok)?;
            let (plain, result) = call(plain, name, context);
            kept.replace(Some(plain));
            result
        })?;
    }
    Ok(())
}

/// Opens a connection for the calls.
fn plain(max: usize) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let plain = Connection::open_in_memory_with_flags(flags)?;
    plain.set_limit(Limit::SQLITE_LIMIT_LENGTH, i32::try_from(max).unwrap_or(i32::MAX))?;
    Ok(plain)
}

/// Computes the call, and gives the connection back with the result.
fn call(plain: Connection, name: &str, context: &Context<'_>) -> (Connection, Result<Answer>) {
    let arguments: Vec<ValueRef<'_>> =
        (0..context.len()).map(|index| context.get_raw(index)).collect();
    if work(&arguments) <= AT_ONCE {
        let result = compute(&plain, name, &arguments);
        return (plain, result);
    }
    if let Err(cancelled) = look() {
        return (plain, Err(cancelled));
    }
    let done = outside("PREEMPTIVE_TEXT", move || {
        let result = compute(&plain, name, &arguments);
        (plain, result)
    });
    match look() {
        Ok(()) => done,
        Err(cancelled) => (done.0, Err(cancelled)),
    }
}

/// Returns how many bytes a call reads, and writes to reach a width or a precision. Each number in
/// the format may be one; `*` takes one from the arguments, and may stand for any number.
fn work(arguments: &[ValueRef<'_>]) -> usize {
    let read = arguments.iter().map(|value| bytes_of(*value)).sum();
    let Some(ValueRef::Text(format) | ValueRef::Blob(format)) = arguments.first() else {
        return read;
    };
    if read > AT_ONCE || format.contains(&b'*') {
        return usize::MAX;
    }
    let add = |number: usize, digit: &u8| {
        number.saturating_mul(10).saturating_add(usize::from(digit - b'0'))
    };
    let numbers = format.split(|byte| !byte.is_ascii_digit());
    numbers.map(|digits| digits.iter().fold(0, add)).fold(read, usize::saturating_add)
}

fn bytes_of(value: ValueRef<'_>) -> usize {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.len(),
        _ => 0,
    }
}

fn compute(plain: &Connection, name: &str, arguments: &[ValueRef<'_>]) -> Result<Answer> {
    let marks: Vec<String> = (1..=arguments.len()).map(|number| format!("?{number}")).collect();
    let mut prepared = plain.prepare_cached(&format!("SELECT {name}({})", marks.join(", ")))?;
    for (index, value) in arguments.iter().enumerate() {
        prepared.raw_bind_parameter(index + 1, ToSqlOutput::Borrowed(*value))?;
    }
    let mut rows = prepared.raw_query();
    // The caller's statement takes the code of an error only without its text.
    let coded = |error| match error {
        Error::SqliteFailure(error, _) => Error::SqliteFailure(error, None),
        other => other,
    };
    let row = rows.next().map_err(coded)?.ok_or(Error::QueryReturnedNoRows)?;
    Ok(match row.get_ref(0)? {
        // A precision may cut a character.
        ValueRef::Text(bytes) => Answer::Text(Counted::copy(Lossy::new(bytes)?.text.as_bytes())?),
        _ => Answer::Null,
    })
}

#[cfg(test)]
mod tests {
    use rusqlite::types::Value;

    use super::*;

    #[test]
    fn formats_are_those_of_sqlite() {
        let long = format!("'{}', 7, 'x'", "%d-%s,".repeat(3_000));
        let calls = [
            "'%d %s %5.2f|%-6s|%q|%Q|%x'  , 1, 'a', 2.5, 'b', 'it''s', null, 255",
            "'%!.3s', 'äöü'",
            "'no argument %d %s'",
            "null",
            "",
            "x'2564', 12",
            "'%*d|%.*f', 9, 1, 3, 2.5",
            &long,
        ];
        let (plain, ours) = [(); 2].map(|()| Connection::open_in_memory().unwrap()).into();
        register(&ours, 1 << 20).unwrap();
        for call in calls {
            for name in ["printf", "format"] {
                let sql = format!("SELECT {name}({call})");
                let value = |on: &Connection| on.query_row(&sql, [], |row| row.get::<_, Value>(0));
                assert_eq!(value(&ours), value(&plain), "{sql:.60}");
            }
        }
        let too_long = "SELECT printf('%2000000d', 1)";
        let error = ours.query_row(too_long, [], |_| Ok(())).unwrap_err();
        assert_eq!(crate::error::SqlError::from(error).code, "54000");
    }

    #[test]
    fn what_a_width_writes_is_work() {
        let of = |format: &str| work(&[ValueRef::Text(format.as_bytes()), ValueRef::Integer(1)]);
        assert_eq!((of("%d"), of("%20d, %-30.5f")), (2, 13 + 55));
        for format in ["%16000000d", "%.9000f", "%*d", "%99999999999999999999999d"] {
            assert!(of(format) > AT_ONCE, "{format}");
        }
        assert_eq!(work(&[ValueRef::Integer(99_999)]), 0, "a format without a conversion");
    }
}
