//! Which file system the engine's files are on, and how a connection to them is opened.
//!
//! *Ours* (`vfs`): everything that waits parks the worker, and commits share syncs. *SQLite's own*:
//! for comparison; it blocks the thread, and syncs at each commit.
//!
//! What it does not do: it keeps no connections.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::error::{Result, SqlError};
use crate::host::{Cell, HostTable};
use crate::vfs::{BUCKETS, Database, PoolCounts, Trouble, Vfs};

/// The file system under the database.
#[derive(Debug, Clone, Copy, Default)]
pub enum Files {
    /// The engine's own, on the machine's lists.
    #[default]
    Ums,
    /// As `Ums`, and whole pages of the database are read past the system's cache (`O_DIRECT`).
    UmsDirect,
    /// SQLite's, for comparison: it blocks the thread that waits for the disk.
    Host,
    /// One that a test made.
    #[cfg(test)]
    #[allow(private_interfaces)]
    On(&'static Vfs),
}

impl Files {
    fn vfs(self) -> Option<&'static Vfs> {
        match self {
            Files::Host => None,
            Files::Ums => Some(Vfs::system(false)),
            Files::UmsDirect => Some(Vfs::system(true)),
            #[cfg(test)]
            Files::On(vfs) => Some(vfs),
        }
    }

    /// Opens a connection that waits at most `patience` for a lock; also the database as our file
    /// system knows it, if it is on that.
    pub(super) fn connect(
        self,
        path: &Path,
        patience: Duration,
    ) -> Result<(Connection, Option<Arc<Database>>)> {
        let (connection, database) = match self.vfs() {
            Some(vfs) => {
                let (connection, seat) = vfs.connect(path, patience)?;
                (connection, Some(seat.database))
            }
            None => {
                let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
                    | OpenFlags::SQLITE_OPEN_CREATE
                    | OpenFlags::SQLITE_OPEN_NO_MUTEX;
                let connection = Connection::open_with_flags(path, flags)?;
                connection.busy_timeout(patience)?;
                (connection, None)
            }
        };
        // On ours, a commit is synced by the group commit and the log is checkpointed by the lazy
        // writer.
        connection.execute_batch(match &database {
            Some(_) => "PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=0",
            None => "PRAGMA synchronous=FULL",
        })?;
        Ok((connection, database))
    }
}

/// What a client is told about a database that takes no more writes.
pub(super) fn error_of(trouble: &Trouble) -> SqlError {
    match trouble {
        Trouble::SyncFailed(error) => SqlError::new(
            "58030",
            format!("the disk failed to take what was written ({error}); the database takes no more writes"),
        )
        .hint("Look at the disk, then start the server again: it recovers what reached the disk."),
        Trouble::Deleted => SqlError::new(
            "58P01",
            "the database file or its log was deleted while the server has it open; the database takes no more writes",
        )
        .hint("BACKUP what is still there to another file, then start the server again."),
    }
}

/// What the group commit has counted, as the table `ums_group_commit`.
pub(super) fn group_commit(database: Option<&Database>) -> HostTable {
    let counts = database.map(|database| database.log.counts()).unwrap_or_default();
    let mut columns = vec![
        ("syncs", "bigint"),
        ("commits", "bigint"),
        ("commits_not_waited", "bigint"),
        ("log_bytes", "bigint"),
    ];
    const BATCHES: [&str; BUCKETS] = [
        "batches_of_1",
        "batches_of_2",
        "batches_of_4",
        "batches_of_8",
        "batches_of_16",
        "batches_of_32",
        "batches_of_64",
        "batches_of_128",
        "batches_of_256",
        "batches_of_512",
    ];
    columns.extend(BATCHES.map(|name| (name, "bigint")));
    let first = [counts.syncs, counts.commits, counts.not_waited, counts.bytes];
    let row = first.into_iter().chain(counts.batches).map(|n| Cell::Int(n as i64));
    let rows = database.iter().map(|_| row.clone().collect()).collect();
    HostTable { name: "ums_group_commit", columns, rows }
}

/// The pool of pages that are read past the system's cache, as the table `ums_page_pool`.
pub(super) fn page_pool(files: Files) -> HostTable {
    let pool = files.vfs().map(Vfs::pool_counts);
    let columns = vec![("pages", "bigint"), ("hits", "bigint"), ("misses", "bigint")];
    let row = |counts: PoolCounts| [counts.pages, counts.hits, counts.misses];
    let rows = pool.map(|counts| row(counts).map(|n| Cell::Int(n as i64)).to_vec());
    HostTable { name: "ums_page_pool", columns, rows: rows.into_iter().collect() }
}
