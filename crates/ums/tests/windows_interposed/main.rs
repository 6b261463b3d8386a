//! The same behaviours in a program that interposes blocking calls: `ums::interpose!()`.
//!
//! Here blocking calls hand the processor over before they block. If perf is refused, they are what
//! notices and gates. The files are those of the tests without interposed calls.

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

/// This program interposes blocking calls.
const INTERPOSED: bool = true;
/// Its workers have their own context.
const OWN: bool = false;
