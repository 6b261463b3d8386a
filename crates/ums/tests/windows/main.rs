//! The behaviours of `ums::windows`: those that Windows documents, and those that are easy to get
//! wrong.
//!
//! A `W` number is an item of the specification's list of semantics that are easy to get wrong.
//! Each test runs with the mechanism that this computer offers. The tests in `stress` run with all
//! mechanisms, each in a process of its own. If they run as root, they also run as a user without
//! privileges.

#![allow(unsafe_code)] // Each file says why, where it has any.

#[path = "../common/faults.rs"]
mod faults;
mod harness;
mod errors;
mod semantics;
mod blocking;
mod leaving;
mod races;
mod stress;
mod tools;

/// Whether this program interposes blocking calls.
const INTERPOSED: bool = false;
/// Whether its workers have their own context.
const OWN: bool = false;
