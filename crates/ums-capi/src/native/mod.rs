//! `ums.h`: the cooperative scheduler for C.
//!
//! ```text
//!   fault    errors: a negative errno and a sentence; no panic passes it
//!   object   what is behind an opaque pointer: alive, of the right kind, not in use when freed
//!   options, node, task, user, worker, sync, io, stats       the functions, by subject
//! ```
//!
//! An exported name counts as unsafe code, so the lint is off here for the whole folder. Only
//! `object` and `io` have more; what C passes to the others are types of `caller`.

#![allow(unsafe_code)] // Exported names.

pub mod fault;
pub mod object;
pub mod options;
pub mod task;
pub mod node;
pub mod user;
pub mod worker;
pub mod sync;
pub mod io;
pub mod stats;
