//! SQLite on the schedulers: connections that are leased for a request or a transaction, that yield
//! and can be cancelled while they run, and that have the statistics of `ums` as tables.
//!
//! Invariant *Lease*: a connection belongs to one session from [`Engine::lease`] until the lease is
//! dropped, and goes back to the pool only outside a transaction and unchanged by its user.
//!
//! What it does not do: the wire protocol and transaction blocks, which are the session's.

mod catalog;
mod files;
mod functions;
mod lazy_writer;
mod opening;
mod probe;
mod tables;

mod connections;

pub(crate) use connections::{Engine, Lease};
pub use files::Files;
