//! The tests of `ums::windows` again, in a program that interposes blocking calls:
//! `ums::interpose!()`.
//!
//! Here a blocking call gives the processor to another worker before it blocks. If perf is refused,
//! only interposed calls are noticed and gated. The test files are those of the program without
//! interposed calls.

#![allow(unsafe_code)] // Named invariant **Contract**, see `ums::watch::calls`.

ums::interpose!();

#[path = "../common/faults.rs"]
mod faults;
#[path = "../windows/harness.rs"]
mod harness;
#[path = "../windows/blocking.rs"]
mod blocking;
#[path = "../windows/stress.rs"]
mod stress;

/// Whether this program interposes blocking calls.
const INTERPOSED: bool = true;
/// Whether its workers have their own context.
const OWN: bool = false;
