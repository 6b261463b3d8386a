//! The behaviours of `ums::windows`: what Windows documents, and what is easy to get wrong.
//!
//! `W` numbers are the items of the specification's list of semantics that are easy to get wrong.
//! Each test runs with the mechanism that this computer offers. `stress` runs with all of them, in
//! processes of their own, and if the tests run as root, as a user without privileges too.

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

/// This program interposes blocking calls.
const INTERPOSED: bool = false;
/// Its workers have their own context.
const OWN: bool = false;
