//! SQLite on the schedulers. Connections are leased for a request or a transaction. They yield
//! while they run, and can be cancelled. The statistics of `ums` are tables in SQL.
//!
//! Invariant *Lease*: a connection belongs to one session from [`Engine::lease`] until the lease is
//! dropped. It returns to the pool only outside a transaction and only if the session has not
//! changed it.
//!
//! The wire protocol and transaction blocks are not here; they belong to the session.

mod allowed;
mod alter;
mod arrays;
mod assign;
mod casts;
mod catalog;
mod clients;
mod files;
mod folders;
mod formats;
mod functions;
mod json;
mod intervals;
mod lazy_writer;
mod limits;
mod math;
mod opening;
mod patterns;
mod probe;
#[cfg(test)]
mod sameness;
mod scalar;
mod search;
mod sequences;
mod steps;
mod strings;
mod tables;
mod templates;
mod texts;
mod time_operators;
mod times;
mod values;

mod connections;
mod definitions;
mod empty_catalog;
mod digests;
mod division;

pub(crate) use alter::check_keys;
pub(crate) use assign::{AS_TRUTH, TO_EVEN, assigned, null_refused};
pub(crate) use connections::{Engine, Lease};
pub use files::Files;
pub(crate) use sequences::{columns, read_numbers, sequences, write_numbers};
