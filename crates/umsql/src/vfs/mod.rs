//! The engine's file system for SQLite: page reads, locks and syncs of the log park the worker that
//! waits for them.
//!
//! ```text
//!   SQLite (by entry) ──▶ system (xOpen, xDelete, ...) ──▶ file (xRead, xLock, xShmMap, ...)
//!                                                            │
//!                busy (busy handler) ──▶ locks ◀── database ─┼──▶ shm
//!                                                     │      └──▶ log (group commit)
//!                                                     └──▶ disk ──▶ host::files
//!                                                           └──▶ pages (past the system's cache)
//!     mutex (SQLite's own mutexes)
//! ```
//!
//! SQLite is unchanged: this module registers a file system (`sqlite3_vfs`), mutexes and a busy
//! handler, and the file format stays SQLite's. A worker parks where it waits: for a page that is
//! not in the kernel's page cache, a sync, or a lock.
//!
//! Nouns. A [`Vfs`] is one registered file system, with its disk and its open databases. A
//! *database* is a file with its locks and its log; a *seat* is one connection's handle on it.
//!
//! SQLite calls C functions with its own memory. They are in `entry`, the one unsafe file, which
//! says what SQLite guarantees, and call the safe code of the other files.
//!
//! What it does not do: memory-mapped reads (xFetch), because a page fault would block the
//! scheduler undeclared.

mod busy;
mod callback;
mod connect;
mod database;
mod disk;
mod entry;
mod file;
mod filesystem;
mod locks;
mod log;
mod mutex;
mod pages;
mod shm;
mod system;

#[cfg(test)]
mod lossy;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub(crate) use connect::PATIENCE;
pub(crate) use database::Database;
#[cfg(test)]
pub(crate) use database::Seat;
pub(crate) use filesystem::Vfs;
#[cfg(test)]
pub(crate) use log::Counts;
pub(crate) use log::{BUCKETS, Trouble};
pub(crate) use mutex::is_installed as has_own_mutexes;
pub(crate) use pages::PoolCounts;
