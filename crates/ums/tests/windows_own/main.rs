//! The behaviours of `ums::windows` once more, with workers that have their own context: all that
//! is said in the files of the other tests holds for them too, but for what [`OWN`] leaves out
//! there. `own` has what only they do.

#![allow(unsafe_code)] // Named invariant **Passed On**, see `ums::watch::calls`; and as each file says.

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
/// Whether workers have their own context.
const OWN: bool = true;
