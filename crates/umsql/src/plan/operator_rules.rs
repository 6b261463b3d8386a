//! Which operators dates, times, points in time and intervals have, and what each returns: those of
//! PostgreSQL. Each is a function of `engine/time_operators.rs`.

use crate::wire::canonical::is_temporal;
use crate::wire::types::{self, DATE, INTERVAL, TIME, TIMESTAMP, TIMESTAMPTZ};

/// What follows an operand that is compared as an interval.
pub(super) const COLLATE: &str = " COLLATE ums_interval";

/// Stands for the type of a name that means columns of several types, of which one is a time.
pub(super) const UNSURE: u32 = 1;

/// What becomes of an operator between two operands, of which one is a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arithmetic {
    /// A function is called, whose result has this type, if that is known.
    Call(&'static str, Option<u32>),
    /// There is no such operator.
    None,
    /// The server cannot know which operator it is.
    Unsure,
}

/// Returns what becomes of `left sign right`. `None` stands for a type that is not known.
pub(super) fn arithmetic(sign: &str, left: Option<u32>, right: Option<u32>) -> Arithmetic {
    let call = |function, oid| Arithmetic::Call(function, Some(oid));
    let (Some(left), Some(right)) = (left, right) else { return half_known(sign, left, right) };
    if left == UNSURE || right == UNSURE {
        return Arithmetic::Unsure;
    }
    let is_number = |oid| {
        is_day_count(oid)
            || matches!(oid, types::INT8 | types::NUMERIC | types::FLOAT4 | types::FLOAT8)
    };
    match (sign, left, right) {
        ("+", DATE, days) if is_day_count(days) => call("date_pli", DATE),
        ("+", days, DATE) if is_day_count(days) => call("integer_pl_date", DATE),
        ("+", DATE, INTERVAL) => call("date_pl_interval", TIMESTAMP),
        ("+", INTERVAL, DATE) => call("interval_pl_date", TIMESTAMP),
        ("+", DATE, TIME) => call("datetime_pl", TIMESTAMP),
        ("+", TIME, DATE) => call("timedate_pl", TIMESTAMP),
        ("+", TIMESTAMP, INTERVAL) => call("timestamp_pl_interval", TIMESTAMP),
        ("+", INTERVAL, TIMESTAMP) => call("interval_pl_timestamp", TIMESTAMP),
        ("+", TIMESTAMPTZ, INTERVAL) => call("timestamptz_pl_interval", TIMESTAMPTZ),
        ("+", INTERVAL, TIMESTAMPTZ) => call("interval_pl_timestamptz", TIMESTAMPTZ),
        ("+", TIME, INTERVAL) => call("time_pl_interval", TIME),
        ("+", INTERVAL, TIME) => call("interval_pl_time", TIME),
        ("+", INTERVAL, INTERVAL) => call("interval_pl", INTERVAL),
        ("-", DATE, days) if is_day_count(days) => call("date_mii", DATE),
        ("-", DATE, DATE) => call("date_mi", types::INT4),
        ("-", DATE, INTERVAL) => call("date_mi_interval", TIMESTAMP),
        ("-", TIMESTAMP, INTERVAL) => call("timestamp_mi_interval", TIMESTAMP),
        ("-", TIMESTAMPTZ, INTERVAL) => call("timestamptz_mi_interval", TIMESTAMPTZ),
        ("-", DATE | TIMESTAMP, DATE | TIMESTAMP) => call("timestamp_mi", INTERVAL),
        ("-", DATE | TIMESTAMP | TIMESTAMPTZ, DATE | TIMESTAMP | TIMESTAMPTZ) => {
            call("timestamptz_mi", INTERVAL)
        }
        ("-", TIME, TIME) => call("time_mi_time", INTERVAL),
        ("-", TIME, INTERVAL) => call("time_mi_interval", TIME),
        ("-", INTERVAL, INTERVAL) => call("interval_mi", INTERVAL),
        ("*", INTERVAL, number) if is_number(number) => call("interval_mul", INTERVAL),
        ("*", number, INTERVAL) if is_number(number) => call("mul_d_interval", INTERVAL),
        ("/", INTERVAL, number) if is_number(number) => call("interval_div", INTERVAL),
        _ => Arithmetic::None,
    }
}

/// Dates have operators with `integer`, to which `smallint` is converted.
fn is_day_count(oid: u32) -> bool {
    matches!(oid, types::INT2 | types::INT4)
}

/// Returns what becomes of an operator if one type is known only when the values are there.
fn half_known(sign: &str, left: Option<u32>, right: Option<u32>) -> Arithmetic {
    let (call, open) = (|function, oid| Arithmetic::Call(function, Some(oid)), None);
    match (sign, left, right) {
        ("+", Some(DATE), None) => call("date_pli", DATE),
        ("+", None, Some(DATE)) => call("integer_pl_date", DATE),
        ("+", Some(TIMESTAMP), None) => call("timestamp_pl_interval", TIMESTAMP),
        ("+", Some(TIMESTAMPTZ), None) => call("timestamptz_pl_interval", TIMESTAMPTZ),
        ("+", None, Some(INTERVAL)) => Arithmetic::Call("ums_plus", open),
        ("-", Some(DATE | TIMESTAMP | TIMESTAMPTZ), None) => Arithmetic::Call("ums_minus", open),
        ("-", None, Some(DATE | TIMESTAMP | TIMESTAMPTZ | INTERVAL)) => {
            Arithmetic::Call("ums_minus", open)
        }
        ("-", Some(INTERVAL), None) => call("interval_mi", INTERVAL),
        ("*", Some(INTERVAL), None) => call("interval_mul", INTERVAL),
        ("*", None, Some(INTERVAL)) => call("mul_d_interval", INTERVAL),
        ("/", Some(INTERVAL), None) => call("interval_div", INTERVAL),
        _ => Arithmetic::Unsure,
    }
}

/// The type of a literal in quotes, or of an undeclared parameter, beside an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beside {
    Type(u32),
    /// Several operators fit.
    Several,
    /// The operand is no time, or has no such operator.
    None,
}

/// Returns the type of an open operand of `sign` beside an operand of the type `oid`.
pub(super) fn beside(sign: &str, oid: u32) -> Beside {
    match (sign, oid) {
        ("+", DATE | TIME) => Beside::Several,
        ("+", TIMESTAMP | TIMESTAMPTZ) => Beside::Type(INTERVAL),
        ("+" | "-", INTERVAL) | ("-", DATE | TIME | TIMESTAMP | TIMESTAMPTZ) => Beside::Type(oid),
        ("*" | "/", INTERVAL) => Beside::Type(types::FLOAT8),
        _ => Beside::None,
    }
}

/// What becomes of the operands of a comparison, of which one is a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    /// Their texts are compared.
    Texts,
    /// They are compared as intervals.
    Intervals,
    /// The left one is converted to the type of the right one, or the other way round.
    Left,
    Right,
    /// Two points in time: the one that is not a column is converted.
    Either,
    /// There is no such operator.
    None,
}

/// Returns how two values are compared.
pub(super) fn comparison(left: Option<u32>, right: Option<u32>) -> Comparison {
    match (left, right) {
        (Some(INTERVAL), None | Some(INTERVAL | TIME)) | (None | Some(TIME), Some(INTERVAL)) => {
            Comparison::Intervals
        }
        (Some(DATE), Some(TIMESTAMP | TIMESTAMPTZ)) => Comparison::Left,
        (Some(TIMESTAMP | TIMESTAMPTZ), Some(DATE)) => Comparison::Right,
        (Some(TIMESTAMP), Some(TIMESTAMPTZ)) | (Some(TIMESTAMPTZ), Some(TIMESTAMP)) => {
            Comparison::Either
        }
        (Some(left), Some(right)) if left == right => Comparison::Texts,
        // Texts are compared with the texts that are stored.
        (None | Some(types::TEXT | types::VARCHAR | types::BPCHAR | UNSURE), _)
        | (_, None | Some(types::TEXT | types::VARCHAR | types::BPCHAR | UNSURE)) => {
            Comparison::Texts
        }
        _ => Comparison::None,
    }
}

/// Returns the name of a type in a message.
pub(super) fn type_name(oid: Option<u32>) -> &'static str {
    match oid {
        None | Some(types::UNKNOWN | UNSURE) => "unknown",
        Some(oid) => types::name(oid),
    }
}

/// Returns the type of a call by the types of its arguments.
pub(super) fn call_type(function: &str, arguments: &[Option<u32>]) -> Option<u32> {
    let first = || arguments.first().copied().flatten();
    let known = || arguments.iter().flatten().find(|oid| **oid != types::UNKNOWN).copied();
    match function {
        "max" | "min" | "greatest" | "least" | "abs" | "coalesce" | "ifnull" | "nullif" | "lag"
        | "lead" | "first_value" | "last_value" | "nth_value" => known(),
        "sum" => match first()? {
            types::INT2 | types::INT4 => Some(types::INT8),
            types::INT8 => Some(types::NUMERIC),
            other => Some(other),
        },
        "avg" => match first()? {
            oid @ (types::FLOAT4 | types::FLOAT8) if !is_temporal(oid) => Some(types::FLOAT8),
            INTERVAL => Some(INTERVAL),
            _ => Some(types::NUMERIC),
        },
        "round" | "trunc" | "ceil" | "ceiling" | "floor" | "sign" | "numeric" | "extract" => {
            Some(types::NUMERIC)
        }
        "pg_div" | "pg_mod" => wider(first(), arguments.get(1).copied().flatten()),
        "iif" => arguments.last().copied().flatten(),
        "date_part" => Some(types::FLOAT8),
        "date_trunc" => match arguments.get(1).copied().flatten()? {
            DATE => Some(TIMESTAMPTZ),
            TIME => Some(INTERVAL),
            other => Some(other),
        },
        _ => None,
    }
}

/// Returns the type of an operation of numbers; `None` if one of the types is not known.
pub(super) fn wider(left: Option<u32>, right: Option<u32>) -> Option<u32> {
    const NUMBERS: [u32; 6] =
        [types::INT2, types::INT4, types::INT8, types::NUMERIC, types::FLOAT4, types::FLOAT8];
    let rank = |oid: u32| NUMBERS.iter().position(|number| *number == oid);
    let known = |oid: Option<u32>| oid.filter(|oid| *oid != types::UNKNOWN);
    let (left, right) = match (known(left), known(right)) {
        (Some(left), None) if right.is_some() => (left, left),
        (None, Some(right)) if left.is_some() => (right, right),
        (left, right) => (left?, right?),
    };
    Some(if rank(right)? > rank(left)? { right } else { left })
}

/// Returns the type of a number in the statement.
pub(super) fn of_number(text: &str) -> Option<u32> {
    Some(match text.parse::<i64>() {
        Ok(int) if i32::try_from(int).is_ok() => types::INT4,
        Ok(_) => types::INT8,
        Err(_) => types::NUMERIC,
    })
}
