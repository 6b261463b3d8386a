//! The behaviours of `ums::windows` once more, with workers that have their own context: everything
//! in the files of the other tests holds for them too, except what [`OWN`] leaves out there. `own`
//! has what only they do.

// Named invariant **Contract**, see `ums::watch::calls`; and as each file says.
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

/// This program interposes blocking calls.
const INTERPOSED: bool = true;
/// Its workers have their own context.
const OWN: bool = true;
