//! `ums.h`: the cooperative scheduler for C.
//!
//! ```text
//!   fault    errors: a negative errno and a message; no panic reaches C
//!   object   the object behind an opaque pointer: alive, of the right kind, not freed while in use
//!   options, monitor, node, task, group, user, worker, sync, channel, io, select, serve, stats
//!            the functions, by subject
//! ```
//!
//! An exported name counts as unsafe code, so the lint is off for the whole folder. Only `object`
//! and `io` contain other unsafe code. The other files receive C's arguments as types of `caller`.

#![allow(unsafe_code)] // Exported names.

pub mod fault;
pub mod object;
pub mod options;
pub mod monitor;
pub mod task;
pub mod node;
pub mod group;
pub mod user;
pub mod worker;
pub mod sync;
pub mod channel;
pub mod io;
pub mod select;
pub mod serve;
pub mod stats;
