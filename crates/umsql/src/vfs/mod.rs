//! The engine's file system for SQLite. Reading pages, waiting for locks and syncing the log park
//! the worker that waits.
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
//! handler, and the file format is SQLite's. A worker is parked in three places: for a page that is
//! not in the kernel's page cache, for a sync, and for a lock.
//!
//! Nouns. A [`Vfs`] is a registered file system, with its disk and its open databases. A *database*
//! is a file with its locks and its log. A *seat* is one connection's handle on a database.
//!
//! SQLite calls C functions with its own memory. These functions are in `entry`, the one file with
//! unsafe code, which says what SQLite guarantees. They call the safe code of the other files.
//!
//! It does not offer memory-mapped reads (xFetch), because a page fault would block the scheduler
//! undeclared.

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

pub(crate) use callback::guarded;
pub(crate) use connect::PATIENCE;
pub(crate) use database::Database;
#[cfg(test)]
pub(crate) use database::Seat;
pub(crate) use entry::{set_lookaside, spelled};
pub(crate) use filesystem::Vfs;
#[cfg(test)]
pub(crate) use log::Counts;
pub(crate) use log::{BUCKETS, Trouble};
pub(crate) use mutex::is_installed as has_own_mutexes;
pub(crate) use pages::PoolCounts;
