//! For tests: compares functions that replace SQLite's own with these, and cancels them.

use rusqlite::Connection;
use rusqlite::types::Value;

use super::steps::LOOKS;
use super::{patterns, texts};
use crate::host;

/// Opens a connection with functions that replace SQLite's own.
fn ours() -> Connection {
    let ours = Connection::open_in_memory().unwrap();
    texts::register(&ours, 1 << 20).unwrap();
    patterns::register(&ours).unwrap();
    ours
}

/// Returns how often the functions look during the call.
pub(super) fn looks_in(call: &str) -> usize {
    let ours = ours();
    let before = LOOKS.get();
    ours.query_row(&format!("SELECT {call}"), [], |_| Ok(())).unwrap();
    LOOKS.get() - before
}

/// Returns the SQLSTATEs with which the calls fail in a request that has been cancelled.
pub(super) fn code_when_cancelled(calls: &[&str]) -> Vec<&'static str> {
    let node = ums::Node::builder().schedulers(1).build().unwrap();
    let user = node.user();
    let id = user.id();
    let sqls: Vec<String> = calls.iter().map(|call| format!("SELECT {call}")).collect();
    let request = move || {
        let ours = ours();
        assert!(host::cancel_request(id));
        let error = |sql: &String| ours.query_row(sql, [], |_| Ok(())).unwrap_err();
        sqls.iter().map(|sql| crate::error::SqlError::from(error(sql)).code).collect()
    };
    user.enqueue(request).unwrap().join().unwrap()
}

/// Returns what SQLite's own functions compute, and what these compute.
pub(super) fn both(calls: &[String]) -> Vec<(Option<Value>, Option<Value>)> {
    let plain = Connection::open_in_memory().unwrap();
    let ours = ours();
    let value = |connection: &Connection, call: &String| {
        connection.query_row(&format!("SELECT {call}"), [], |row| row.get::<_, Value>(0)).ok()
    };
    calls.iter().map(|call| (value(&plain, call), value(&ours, call))).collect()
}

/// Asserts that both compute the same, or fail, for each call.
pub(super) fn agree(calls: &[String]) {
    for (call, (plain, ours)) in calls.iter().zip(both(calls)) {
        assert_eq!(plain, ours, "{call}");
    }
}

/// Values of all kinds, as SQL.
pub(super) const TEXTS: [&str; 31] = [
    "NULL",
    "''",
    "'a'",
    "'abcabc'",
    "'äöü'",
    "'a%b_c'",
    "12",
    "1.5",
    "x'61'",
    "x'6162'",
    "1.0",
    "-0.0",
    "1e20",
    "-1e15",
    "1e14",
    "123456789012345.6",
    "0.1+0.2",
    "0.1",
    "1e16",
    "1e17",
    "12345678901234567.0",
    "1e400",
    "-1e400",
    "0.0001",
    "0.00001",
    "-2.5e-10",
    "100.0",
    "'[a-c]'",
    "' ab '",
    "'-'",
    "'a]b'",
];
