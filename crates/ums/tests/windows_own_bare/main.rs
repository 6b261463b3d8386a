//! Workers with their own context in a program that interposes nothing: their calls block on their
//! scheduler's kernel thread, and are moved to their own when they are found blocked. The files are
//! those of the other tests.

#![allow(unsafe_code)] // Each file says why, where it has any.

#[path = "../common/faults.rs"]
mod faults;
#[path = "../windows/harness.rs"]
mod harness;
#[path = "../windows/blocking.rs"]
mod blocking;
#[path = "../windows/leaving.rs"]
mod leaving;
#[path = "../windows/races.rs"]
mod races;
#[path = "../windows/stress.rs"]
mod stress;

/// This program interposes blocking calls.
const INTERPOSED: bool = false;
/// Its workers have their own context.
const OWN: bool = true;
