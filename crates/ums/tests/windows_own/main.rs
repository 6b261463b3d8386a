//! The tests of `ums::windows` again, with workers that have their own context. All tests of the
//! other programs hold for such workers too, except those that [`OWN`] leaves out. The file `own`
//! tests what only such workers do.

// Named invariant **Contract**: `ums::watch::calls` defines it for interposed functions. Each test
// file names its own.
#![allow(unsafe_code)]

ums::interpose!();

#[path = "../common/faults.rs"]
mod faults;
#[path = "../common/signals.rs"]
mod signals;
#[path = "../windows/harness.rs"]
mod harness;
#[path = "../windows/errors.rs"]
mod errors;
#[path = "../windows/semantics.rs"]
mod semantics;
#[path = "../windows/blocking.rs"]
mod blocking;
#[path = "../windows/leaving.rs"]
mod leaving;
#[path = "../windows/stress.rs"]
mod stress;
mod own;

/// Whether this program interposes blocking calls.
const INTERPOSED: bool = true;
/// Whether its workers have their own context.
const OWN: bool = true;
