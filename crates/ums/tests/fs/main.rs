//! Files, with every kind of worker, on 1, 2 and 4 schedulers, over every I/O back end.
//!
//! `everywhere` runs a body on each such node and checks that nothing is left of it. Tests assert
//! only lower bounds of durations.

#[path = "../common/mod.rs"]
mod common;

mod denied;
mod ends;
mod faults;
mod files;
mod model;
mod requests;

use std::io;

use common::{COUNTS, back_ends, kinds, one_kind};
use ums::node::IoChoice;
use ums::{Node, WorkerKind};

/// Runs the body on every kind of node.
fn everywhere(body: impl Fn(&Node)) {
    on_back_ends(|_| true, |node, _| body(node));
}

/// Like `everywhere`, on back ends where operations on files do not complete at once.
fn asynchronously(body: impl Fn(&Node)) {
    on_back_ends(|io| io != IoChoice::Sync, |node, _| body(node));
}

fn on_back_ends(which: impl Fn(IoChoice) -> bool, body: impl Fn(&Node, IoChoice)) {
    for kind in kinds() {
        for io in back_ends(kind).into_iter().filter(|io| which(*io)) {
            for n in COUNTS {
                eprintln!("{kind:?} workers, {n} schedulers, {io:?}");
                one_kind(kind, |b| b.schedulers(n).io(io), |node| body(node, io));
            }
        }
    }
}

/// Returns the kind of the error.
#[track_caller]
fn kind_of<T>(result: io::Result<T>) -> io::ErrorKind {
    result.err().expect("this must fail").kind()
}

/// Returns the number of the error.
#[track_caller]
fn errno_of<T>(result: io::Result<T>) -> Option<i32> {
    result.err().expect("this must fail").raw_os_error()
}

/// Returns whether it failed because the request was cancelled.
#[track_caller]
fn is_cancelled<T>(result: io::Result<T>) -> bool {
    let error = result.err().expect("this must fail");
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<ums::WaitError>());
    inner == Some(&ums::WaitError::Cancelled)
}
