//! The tests of `ums::windows` again, with workers that have their own context, in a program that
//! interposes nothing. A call that blocks does so on the scheduler's kernel thread; when the block
//! is noticed, the worker is moved to its own. The test files are those of the other programs.

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

/// Whether this program interposes blocking calls.
const INTERPOSED: bool = false;
/// Whether its workers have their own context.
const OWN: bool = true;
