//! The errors of a statement as the client reads them: an SQLSTATE, a message and an optional
//! hint.
//!
//! There are two main kinds. A [`SqlError`] is sent to the client, and the session continues unless
//! the error is fatal. `Failure::Gone` means that the client cannot be reached, so nothing is sent.
//!
//! The table from SQLite's result codes and messages to SQLSTATE is at the bottom.

use std::borrow::Cow;
use std::fmt;
use std::io;

use rusqlite::ffi;

use crate::host::{Interrupted, WaitError};

/// An error that is sent to the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlError {
    /// The five characters of the SQLSTATE.
    pub code: &'static str,
    /// One sentence without a full stop, as PostgreSQL writes them.
    pub message: Cow<'static, str>,
    /// What the user could do about it.
    pub hint: Option<&'static str>,
    /// The error's position: a byte offset into the translated statement.
    pub offset: Option<usize>,
    /// Whether the connection ends after this error.
    pub fatal: bool,
}

impl SqlError {
    /// Returns an error after which the session continues.
    pub fn new(code: &'static str, message: impl Into<Cow<'static, str>>) -> SqlError {
        SqlError { code, message: message.into(), hint: None, offset: None, fatal: false }
    }

    /// Returns an error that ends the connection.
    pub fn fatal(code: &'static str, message: impl Into<Cow<'static, str>>) -> SqlError {
        SqlError { fatal: true, ..SqlError::new(code, message) }
    }

    /// Returns an error for a violation of the protocol by the client.
    pub fn protocol(message: impl Into<Cow<'static, str>>) -> SqlError {
        SqlError::new("08P01", message)
    }

    /// Returns a syntax error.
    pub fn syntax(message: impl Into<Cow<'static, str>>) -> SqlError {
        SqlError::new("42601", message)
    }

    /// Returns an error for a form that PostgreSQL supports and this server does not.
    pub fn unsupported(message: impl Into<Cow<'static, str>>) -> SqlError {
        SqlError::new("0A000", message)
    }

    /// Returns the error of a client that has taken its part of the memory, or that asks when
    /// nothing is left.
    pub(crate) fn out_of_memory() -> SqlError {
        SqlError::new("53200", "out of memory")
            .hint("ums_memory shows what clients take; ums serve has --client-memory and --memory.")
    }

    /// Returns the error of a session that ends because the server stops.
    pub(crate) fn stopping() -> SqlError {
        SqlError::fatal("57P01", "terminating connection due to administrator command")
    }

    /// Returns the same error with a hint.
    pub fn hint(mut self, hint: &'static str) -> SqlError {
        self.hint = Some(hint);
        self
    }
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

impl std::error::Error for SqlError {}

/// The result of an operation that can fail with an error for the client.
pub(crate) type Result<T> = std::result::Result<T, SqlError>;

/// The reason why a request stopped.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error for the client. The session sends it and continues.
    Sql(SqlError),
    /// The client cannot be reached.
    Gone,
    /// The statement has had no effect yet, and must be retried in a later work request.
    Later,
    /// The rest of the message is carried out in the next work request.
    Again,
}

impl<E: Into<SqlError>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Sql(error.into())
    }
}

impl Failure {
    /// Returns whether other clients have changed the schema faster than the statement could be
    /// compiled.
    pub(crate) fn is_changed_schema(&self) -> bool {
        let changed = |error: &SqlError| error.code == "40001" && error.message == CHANGED_SCHEMA;
        matches!(self, Failure::Sql(error) if changed(error))
    }

    /// Returns [`Failure::Gone`]; for `map_err` where an error of the connection ends it.
    pub(crate) fn gone(_: io::Error) -> Failure {
        Failure::Gone
    }

    /// Returns the failure of a read that waits for the client: a cancellation ends the statement,
    /// and any other error the connection.
    pub(crate) fn of_read(error: io::Error) -> Failure {
        match WaitError::of(&error) {
            Some(WaitError::Cancelled) => Interrupted.into(),
            _ => Failure::gone(error),
        }
    }
}

/// Returns the position of an error in `text` as PostgreSQL counts it: in characters, from one.
pub(crate) fn position(text: Option<&str>, error: &SqlError) -> Option<usize> {
    let before = text?.get(..error.offset?)?;
    Some(before.chars().count() + 1)
}

/// The SQLSTATE of everything that SQLite's authorizer refuses.
pub(crate) const NOT_AUTHORIZED: &str = "42501";

const CHANGED_SCHEMA: &str = "the schema has changed during the statement";

pub(crate) const CANCELLED: &str = "canceling statement due to user request";

impl From<Interrupted> for SqlError {
    fn from(_: Interrupted) -> SqlError {
        SqlError::new("57014", CANCELLED)
    }
}

impl From<rusqlite::Error> for SqlError {
    fn from(error: rusqlite::Error) -> SqlError {
        match error {
            rusqlite::Error::SqliteFailure(error, message) => {
                let message =
                    message.unwrap_or_else(|| ffi::code_to_str(error.extended_code).into());
                from_sqlite(error.extended_code, message)
            }
            rusqlite::Error::SqlInputError { error, msg, offset, .. } => SqlError {
                offset: usize::try_from(offset).ok(),
                ..from_sqlite(error.extended_code, msg)
            },
            rusqlite::Error::UserFunctionError(error) => from_message(error.to_string()),
            rusqlite::Error::NulError(_) => {
                SqlError::new("22021", "invalid byte sequence for encoding \"UTF8\": 0x00")
            }
            rusqlite::Error::MultipleStatement => {
                SqlError::syntax("cannot insert multiple commands into a prepared statement")
            }
            other => SqlError::new("XX000", other.to_string()),
        }
    }
}

fn from_sqlite(extended: i32, message: String) -> SqlError {
    let by_extended = match extended {
        ffi::SQLITE_CONSTRAINT_UNIQUE
        | ffi::SQLITE_CONSTRAINT_PRIMARYKEY
        | ffi::SQLITE_CONSTRAINT_ROWID => "23505",
        ffi::SQLITE_ERROR_SNAPSHOT => return snapshot_too_old(),
        LONG_TRANSACTION => return transaction_too_long(),
        ffi::SQLITE_CONSTRAINT_NOTNULL => "23502",
        ffi::SQLITE_CONSTRAINT_FOREIGNKEY => "23503",
        ffi::SQLITE_CONSTRAINT_CHECK => "23514",
        ffi::SQLITE_CONSTRAINT_DATATYPE => "42804",
        _ => "",
    };
    if !by_extended.is_empty() {
        let message = match message.split_once("UNIQUE constraint failed: ") {
            Some((_, key)) => format!("duplicate key value violates unique constraint on {key}"),
            None => message,
        };
        return SqlError::new(by_extended, message);
    }
    match extended & 0xff {
        ffi::SQLITE_BUSY => {
            SqlError::new("40001", "could not serialize access due to concurrent update")
                .hint("The transaction might succeed if retried.")
        }
        ffi::SQLITE_SCHEMA => {
            SqlError::new("40001", CHANGED_SCHEMA).hint("The statement might succeed if retried.")
        }
        ffi::SQLITE_INTERRUPT => SqlError::new("57014", CANCELLED),
        ffi::SQLITE_CONSTRAINT => SqlError::new("23000", message),
        ffi::SQLITE_LOCKED => SqlError::new("55P03", message),
        // The session replaces this error by the authorizer's own.
        ffi::SQLITE_AUTH => SqlError::new(NOT_AUTHORIZED, message),
        ffi::SQLITE_NOMEM => SqlError::out_of_memory(),
        ffi::SQLITE_READONLY => SqlError::new("25006", message),
        ffi::SQLITE_IOERR | ffi::SQLITE_CANTOPEN => SqlError::new("58030", message),
        ffi::SQLITE_CORRUPT | ffi::SQLITE_NOTADB => SqlError::new("XX001", message),
        ffi::SQLITE_FULL => SqlError::new("53100", message),
        ffi::SQLITE_TOOBIG => SqlError::new("54000", message)
            .hint("ums serve --max-value sets the length of a value and of a row."),
        ffi::SQLITE_MISMATCH => SqlError::new("42804", message),
        ffi::SQLITE_RANGE => SqlError::new("42P02", message),
        ffi::SQLITE_ERROR => from_message(message),
        _ => SqlError::new("XX000", message),
    }
}

/// Returns the error of a reader that has lost its snapshot to the limit of the log.
fn snapshot_too_old() -> SqlError {
    SqlError::new("72000", "snapshot too old: the log has reached its limit")
        .hint("End the transaction and begin another; ums serve has --max-log.")
}

/// SQLite's code for a transaction that has written all that one may write to the log. To SQLite it
/// is a full disk: it rolls the transaction back.
pub(crate) const LONG_TRANSACTION: i32 = ffi::SQLITE_FULL | 0xc8 << 8;

/// Returns the error of a transaction that would write more than the log's limit.
fn transaction_too_long() -> SqlError {
    SqlError::new("54000", "the transaction writes more than the log may have")
        .hint("Write less in one transaction; ums serve has --max-log.")
}

/// Chooses the SQLSTATE by the message, because SQLite reports most mistakes in a statement with
/// the same code.
fn from_message(message: String) -> SqlError {
    if message == CANCELLED {
        return SqlError::new("57014", message);
    }
    if let Some(code) = value_code(&message) {
        return SqlError::new(code, message);
    }
    if message.starts_with("unsafe use of ") {
        return SqlError::new(NOT_AUTHORIZED, message)
            .hint("A view, trigger, default or CHECK cannot use it; a statement can.");
    }
    if [" may not be modified", " may not be dropped"].iter().any(|end| message.ends_with(end)) {
        return SqlError::new(NOT_AUTHORIZED, message)
            .hint("SQLite keeps this table itself; CREATE, ALTER and DROP change the schema.");
    }
    if message.starts_with("cannot modify ") && message.ends_with(" because it is a view") {
        return SqlError::unsupported(message).hint("A trigger INSTEAD OF can do it.");
    }
    if message == "Cannot add a column with non-constant default" {
        return SqlError::unsupported(message)
            .hint("Add the column without a default, UPDATE the rows, then SET DEFAULT.");
    }
    if message.starts_with("not authorized") {
        return SqlError::new(NOT_AUTHORIZED, message);
    }
    let found = missing(&message).or_else(|| syntax(&message)).or_else(|| repeated(&message));
    found.unwrap_or_else(|| SqlError::new(other_code(&message), message))
}

/// Messages of this server's functions, and their SQLSTATEs.
const EXACT: [(&str, &str); 26] = [
    (SEVERAL_ROWS, "21000"),
    ("LIKE pattern must not end with escape character", "22025"),
    ("invalid escape string", "22025"),
    ("invalid regular expression", "2201B"),
    ("negative substring length not allowed", "22011"),
    ("cannot take square root of a negative number", "2201F"),
    ("zero raised to a negative power is undefined", "2201F"),
    ("a negative number raised to a non-integer power yields a complex result", "2201F"),
    ("cannot take logarithm of zero", "2201E"),
    ("cannot take logarithm of a negative number", "2201E"),
    ("input is out of range", "22003"),
    ("value out of range: overflow", "22003"),
    ("division by zero", "22012"),
    ("field position must not be zero", "22023"),
    ("null character not permitted", "54000"),
    ("requested character too large for encoding", "54000"),
    ("requested length too large", "54000"),
    ("the arguments of greatest and least have different types", "42804"),
    ("null values cannot be formatted as an SQL identifier", "22004"),
    (MORE_DIGITS, "0A000"),
    (NO_NAN, "0A000"),
    // SQLite's own messages about what PostgreSQL has, and SQLite has not.
    (LONG_ARRAY, "54000"),
    ("integer overflow", "0A000"),
    ("DISTINCT aggregates must have exactly one argument", "0A000"),
    ("Invalid filter parameter type Text at index 0", "0A000"),
    ("row value misused", "0A000"),
];

/// The message about a numeric that a double cannot keep.
pub(crate) const MORE_DIGITS: &str = "a numeric of more than 15 digits is not supported";

/// The message about an array that is too long to be read or made.
pub(crate) const LONG_ARRAY: &str = "the array is too long";

/// The message about the value NaN, of which SQLite makes NULL.
pub(crate) const NO_NAN: &str = "the number NaN is not supported here";

/// The message about a query that stands for a value, and returned several rows.
pub(crate) const SEVERAL_ROWS: &str =
    "more than one row returned by a subquery used as an expression";

/// Returns the SQLSTATE of a message about a value that is none of its type.
fn value_code(message: &str) -> Option<&'static str> {
    if let Some(rest) = message.strip_prefix("invalid input syntax for type ") {
        let of_time = ["date", "time", "interval"].iter().any(|name| rest.starts_with(name));
        return Some(if of_time { "22007" } else { "22P02" });
    }
    const OF_TIMES: [(&str, &str); 14] = [
        ("date/time field value out of range", "22008"),
        ("date field value out of range", "22008"),
        ("time field value out of range", "22008"),
        ("timestamp field value out of range", "22008"),
        ("date out of range", "22008"),
        ("timestamp out of range", "22008"),
        ("interval out of range", "22008"),
        ("cannot subtract infinite ", "22008"),
        ("interval field value out of range", "22015"),
        ("malformed array literal: ", "22P02"),
        ("the time zone of ", "0A000"),
        ("the year of ", "0A000"),
        ("division by zero", "22012"),
        ("operator does not exist: ", "42883"),
    ];
    if let Some((_, code)) = OF_TIMES.iter().find(|(start, _)| message.starts_with(start)) {
        return Some(code);
    }
    if message.starts_with("unit \"") && message.contains(" for type ") {
        return Some(if message.contains(" not supported ") { "0A000" } else { "22023" });
    }
    if message.starts_with("cannot cast type ") {
        return Some("42846");
    }
    if let Some((_, code)) = EXACT.iter().find(|(known, _)| *known == message) {
        return Some(code);
    }
    if message.contains("for format()") || message.contains("format() type") {
        return Some("22023");
    }
    if message.contains("of format() is") || message.contains("in format() is") {
        return Some("54000");
    }
    if message.starts_with("value too long for type ") {
        return Some("22001");
    }
    if message.starts_with("null value in column ") {
        return Some("23502");
    }
    if message.contains("is of type ") && message.contains(" but expression is of type ") {
        return Some("42804");
    }
    let too_large = message.contains(" out of range for type ")
        || message.ends_with(" out of range")
        || message == "numeric field overflow";
    too_large.then_some("22003")
}

/// Returns the text after `start` in the message, without the name of the main database. Returns
/// None if the message does not begin with `start`.
fn after(message: &str, start: &str) -> Option<String> {
    message.strip_prefix(start).map(|text| text.trim().trim_start_matches("main.").to_owned())
}

/// Returns the error for a message about a table, column or function that does not exist.
fn missing(message: &str) -> Option<SqlError> {
    let after = |start: &str| after(message, start);
    if let Some(table) = after("no such table: ").or_else(|| after("no such view: ")) {
        if table.starts_with("pg_") || table.starts_with("information_schema_") {
            let table = table.replacen("information_schema_", "information_schema.", 1);
            return Some(SqlError::unsupported(format!("the view {table} is not supported")));
        }
        return Some(SqlError::new("42P01", format!("relation \"{table}\" does not exist")));
    }
    if let Some(column) = after("no such column: ") {
        const OF_ROWS: [&str; 6] = ["ctid", "tableoid", "xmin", "xmax", "cmin", "cmax"];
        if OF_ROWS.contains(&column.rsplit('.').next().unwrap_or_default()) {
            let message = format!("the system column {column} is not supported");
            return Some(SqlError::unsupported(message));
        }
        return Some(SqlError::new("42703", format!("column \"{column}\" does not exist")));
    }
    if message.contains(" has no column named ") {
        return Some(SqlError::new("42703", message.to_owned()));
    }
    if let Some(function) = after("no such function: ") {
        return Some(SqlError::new("42883", format!("function {function} does not exist")));
    }
    let wrong_number = message.starts_with("wrong number of arguments");
    wrong_number.then(|| SqlError::new("42883", message.to_owned()))
}

/// Returns the error for a message about the syntax.
fn syntax(message: &str) -> Option<SqlError> {
    if let Some(rest) = message.strip_prefix("near \"")
        && let Some(near) = rest.strip_suffix("\": syntax error")
    {
        return Some(SqlError::syntax(format!("syntax error at or near \"{near}\"")));
    }
    if message == "incomplete input" {
        return Some(SqlError::syntax("syntax error at end of input"));
    }
    // Operators of PostgreSQL.
    if let Some(sign) = message.strip_prefix("unrecognized token: \"")
        && sign.starts_with(['#', '@', '^', '?'])
    {
        let sign = sign.trim_end_matches('"');
        return Some(SqlError::unsupported(format!("the operator {sign} is not supported")));
    }
    message.starts_with("unrecognized token").then(|| SqlError::syntax(message.to_owned()))
}

/// Returns the error for a message about a name that is used twice.
fn repeated(message: &str) -> Option<SqlError> {
    if message.ends_with(" already exists") {
        return Some(SqlError::new("42P07", message.to_owned()));
    }
    if let Some(column) = after(message, "ambiguous column name: ") {
        return Some(SqlError::new("42702", format!("column reference \"{column}\" is ambiguous")));
    }
    let column = after(message, "duplicate column name: ")?;
    Some(SqlError::new("42701", format!("column \"{column}\" specified more than once")))
}

/// Returns the SQLSTATE for all other messages.
fn other_code(message: &str) -> &'static str {
    const TOO_COMPLEX: &[&str] = &[
        "too many terms in compound SELECT",
        "Expression tree is too large",
        "too many SQL variables",
        "parser stack overflow",
        "triggers nested too deep",
        "VIEWs and/or subqueries nested too deep",
        "fts5: parser stack overflow",
        "Recursion limit",
        "LIKE or GLOB pattern too complex",
        "too many attached databases",
        "too many arguments on function",
        "the regular expression is too complex",
    ];
    if message.starts_with("foreign key mismatch") {
        "42830"
    } else if message.starts_with("no such savepoint") {
        "3B001"
    } else if message.starts_with("no such index") || message.starts_with("no such trigger") {
        "42704"
    } else if message.starts_with("misuse of aggregate") {
        "42803"
    } else if TOO_COMPLEX.iter().any(|start| message.starts_with(start)) {
        "54001"
    } else {
        "42601"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(sql: &str) -> SqlError {
        let db = rusqlite::Connection::open_in_memory().unwrap();
        db.execute_batch("create table t(a integer primary key, b not null, c check (c > 0))")
            .unwrap();
        db.execute_batch("insert into t values (1, 1, 1)").unwrap();
        db.execute_batch(sql).unwrap_err().into()
    }

    #[test]
    fn sqlite_errors_become_the_sqlstates_that_clients_look_for() {
        let expected = [
            ("select * from missing", "42P01"),
            ("select missing from t", "42703"),
            ("select missing(1)", "42883"),
            ("selec 1", "42601"),
            ("select", "42601"),
            ("create table t(a)", "42P07"),
            ("insert into t values (1, 1, 1)", "23505"),
            ("insert into t(a) values (2)", "23502"),
            ("insert into t values (2, 2, -1)", "23514"),
            ("insert into t values ('x', 2, 2)", "42804"),
        ];
        for (sql, code) in expected {
            assert_eq!(failing(sql).code, code, "{sql}: {}", failing(sql).message);
        }
    }
}
