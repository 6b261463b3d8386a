//! Extreme sizes, counts and times, of every public function that takes one. Each is refused with
//! an error that says why, panics as documented, or has its literal meaning.
//!
//! ```text
//!   waits, files, sockets,
//!   options, windows          the tables: a function, where it is called, and a use of it
//!   literal                   tests of what a node does with its extremes
//!   tries                     how a wait is tried with too little and with endless time
//!   sources                   what the sources have, to compare with the tables
//! ```
//!
//! [`every_public_function_with_a_size_or_a_time_is_in_a_table`] compares the tables with the
//! sources, so a new function cannot be left out. Numbers that only name something, such as a
//! user's, are not looked at. No test measures a time: a wait that should last is woken after a
//! millisecond, and must not have ended before; a wait that should not last must end by itself.

#![allow(unsafe_code)] // For the harness.

#[path = "../common/mod.rs"]
mod common;

mod files;
mod literal;
mod options;
mod sockets;
mod sources;
mod tries;
mod waits;
mod windows;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use common::{build, kinds, ms, on, turn};
use ums::WorkerKind;
use ums::node::ShutdownReport;

/// Where a use runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    /// On a worker.
    Worker,
    /// On a plain thread; it may build a node of its own.
    Thread,
    /// On a worker, and on a plain thread.
    Both,
}

/// A function as [`sources`] names it, where its use runs, and the use.
type Entry = (&'static str, On, fn(WorkerKind));

fn tables() -> impl Iterator<Item = &'static Entry> {
    let tables = [waits::TABLE, files::TABLE, sockets::TABLE, options::TABLE, windows::TABLE];
    tables.into_iter().flatten()
}

#[test]
fn every_extreme_is_refused_or_has_its_literal_meaning() {
    let _turn = turn();
    tries::be_quiet();
    let mut failed = Vec::new();
    for kind in kinds() {
        let _watch = common::Watchdog::start(format!("{kind:?} workers"));
        let node = build(kind, |b| b.schedulers(1));
        for &(name, place, tried) in tables() {
            eprintln!("{kind:?} workers: {name}");
            let mut attempt = |at: On, call: &dyn Fn()| {
                if catch_unwind(AssertUnwindSafe(call)).is_err() {
                    failed.push(format!("{name}, {kind:?} workers, {at:?}"));
                }
            };
            if place != On::Thread {
                attempt(On::Worker, &|| on(&node, 0, move || tried(kind)));
            }
            if place != On::Worker {
                attempt(On::Thread, &|| tried(kind));
            }
        }
        assert_eq!(node.shutdown(Duration::from_secs(30)), ShutdownReport::default());
    }
    assert!(failed.is_empty(), "{failed:#?}");
    eprintln!("{} functions, {} calls", tables().count(), tries::count());
}

#[test]
fn every_public_function_with_a_size_or_a_time_is_in_a_table() {
    let found = sources::read();
    let listed: BTreeSet<String> = tables().map(|(name, ..)| (*name).to_owned()).collect();
    let missing: Vec<_> = found.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(missing.is_empty(), "in the sources, and in no table: {missing:#?}");
    assert!(gone.is_empty(), "in a table, and not in the sources: {gone:#?}");
    assert_eq!(tables().count(), listed.len(), "a function is in the tables twice");
}
