//! The limits of a statement: how deep and how long it may be. SQLite recurses while it prepares
//! some statements, and a worker's stack is small; the tests in `connections.rs` measure that each
//! limit leaves half of it. `docs/security.md` lists the limits for users.

use rusqlite::Connection;
use rusqlite::limits::Limit;

use crate::error::Result;

/// The limits, with their values.
const LIMITS: [(Limit, i32); 9] = [
    (Limit::SQLITE_LIMIT_EXPR_DEPTH, 200),
    (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 100),
    // While SQLite prepares a statement it prepares the triggers of each table that it changes,
    // and the triggers of the tables that those change.
    (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 100),
    (Limit::SQLITE_LIMIT_PARSER_DEPTH, 1000),
    (Limit::SQLITE_LIMIT_FUNCTION_ARG, 127),
    (Limit::SQLITE_LIMIT_ATTACHED, 10),
    (Limit::SQLITE_LIMIT_VDBE_OP, 25_000_000),
    // SQLite's own threads would run beside the schedulers.
    (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
    (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1000),
];

/// The longest text of a statement. What reads it does not yield.
const TEXT_MAX: i32 = 8 << 20;

/// Sets the limits of a connection; `value` is the length of a value in bytes.
pub(super) fn set(connection: &Connection, value: usize) -> Result<()> {
    for (limit, value) in LIMITS {
        connection.set_limit(limit, value)?;
    }
    let value = i32::try_from(value).unwrap_or(i32::MAX);
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, value)?;
    connection.set_limit(Limit::SQLITE_LIMIT_SQL_LENGTH, TEXT_MAX)?;
    Ok(())
}
