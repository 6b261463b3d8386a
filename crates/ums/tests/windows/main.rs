//! The behaviours of `ums::windows`: what Windows documents, and what is easy to get wrong.
//!
//! `W` numbers are the items of the specification's list of semantics that are easy to get wrong.
//! Each test runs with the mechanism that this machine offers; `stress` runs in all of them, in
//! processes of their own, and as a user without privileges where the tests run as root.

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
/// Whether workers have their own context.
const OWN: bool = false;
