//! The engine's file system: SQLite's pages, locks, log and waits on the machine's lists.
//!
//! ```text
//!   SQLite ──▶ system (xOpen, xDelete, ...) ──▶ file (xRead, xLock, xShmMap, ...)
//!                                                 │
//!     busy (busy handler) ──▶ locks ◀── database ─┼──▶ shm
//!                                          │      └──▶ log (group commit)
//!                                          └──▶ disk ──▶ host::files
//!                                                └──▶ pages (read past the system's cache)
//!     mutex (SQLite's own mutexes)
//! ```
//!
//! SQLite is unchanged: it is given a file system (`sqlite3_vfs`), mutexes and a busy handler, and
//! keeps its file format. What may wait parks the worker: a page that is not in the system's cache,
//! a sync, a lock.
//!
//! Nouns. A [`Vfs`] is one registered file system, with its disk and its open databases. A
//! *database* is a file with its locks and its log; a *seat* is one connection's place at it.
//!
//! Unsafe, because SQLite calls C functions with its own memory. Named invariants.
//! * **Vfs Forever**: a registered `sqlite3_vfs` and the [`Vfs`] behind its `pAppData` are never
//!   freed.
//! * **File Slot**: SQLite gives each open file a block of `szOsFile` bytes, aligned for pointers,
//!   that stays where it is from xOpen to xClose. We put a `Slot` there: its base first, then a
//!   pointer to the box of the open file. The base has methods only while the box is there, and
//!   SQLite calls a file's methods one at a time, for a connection is used by one worker at a time.
//! * **Lent Argument**: the buffers, names and results that SQLite passes to a callback are valid
//!   for the call, with the sizes it states.
//! * **No Unwind**: a panic does not cross SQLite: each callback catches it and answers
//!   `SQLITE_IOERR`.
//!
//! What it does not do: no memory-mapped reads (xFetch): a page fault would block the scheduler
//! unseen.

mod busy;
mod database;
mod disk;
mod file;
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

use std::ffi::CString;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

pub(crate) use database::{Database, Seat};
#[cfg(test)]
pub(crate) use log::Counts;
pub(crate) use log::{BUCKETS, Trouble};
pub(crate) use pages::PoolCounts;

use database::Databases;
use disk::{Disk, SystemDisk};

/// A registered file system.
pub(crate) struct Vfs {
    name: CString,
    disk: Arc<dyn Disk>,
    databases: Databases,
}

impl Vfs {
    /// The one on the machine's disk, by the name `ums`; or `ums-direct`, which reads databases
    /// past the system's cache.
    pub(crate) fn system(direct: bool) -> &'static Vfs {
        static SYSTEM: [OnceLock<&'static Vfs>; 2] = [const { OnceLock::new() }; 2];
        let name = if direct { "ums-direct" } else { "ums" };
        SYSTEM[usize::from(direct)]
            .get_or_init(|| Vfs::register(name, Arc::new(SystemDisk { direct })))
    }

    /// Registers one with a name of its own, for all of the process's life.
    pub(crate) fn register(name: &str, disk: Arc<dyn Disk>) -> &'static Vfs {
        mutex::install();
        let name = CString::new(name).expect("a file system's name has no zero byte");
        let vfs = Box::leak(Box::new(Vfs { name, disk, databases: Databases::default() }));
        system::register(vfs);
        vfs
    }

    /// What its pool of pages has.
    pub(crate) fn pool_counts(&self) -> PoolCounts {
        self.databases.pool_counts()
    }

    /// Opens a connection whose files are here. It waits at most `patience` for a lock.
    pub(crate) fn connect(
        &'static self,
        path: &std::path::Path,
        patience: Duration,
    ) -> rusqlite::Result<(Connection, Seat)> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection =
            Connection::open_with_flags_and_vfs(path, flags, self.name.as_c_str())?;
        let seat = file::seat(&connection).ok_or_else(|| {
            rusqlite::Error::SqliteFailure(
                rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN),
                Some("the database has no file".into()),
            )
        })?;
        busy::install(&mut connection, seat.clone(), patience)?;
        Ok((connection, seat))
    }
}

/// How long a connection waits for a lock.
pub(crate) const PATIENCE: Duration = busy::TIMEOUT;

/// Whether SQLite's own mutexes are the machine's.
pub(crate) fn has_own_mutexes() -> bool {
    mutex::is_installed()
}

impl fmt::Debug for Vfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vfs({:?})", self.name)
    }
}
