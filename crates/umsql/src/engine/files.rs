//! The file system that the engine's files are on, and how a connection to them is opened.
//!
//! There are two file systems. In *ours* (`vfs`) every wait parks the worker, and commits share
//! syncs. *SQLite's own*, which serves for comparison, blocks the thread and syncs at each commit.
//!
//! It keeps no connections.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::budget::Budget;
use crate::error::{Result, SqlError};
use crate::host::{Cell, HostTable};
use crate::memory::{self, Limits};
use crate::vfs::{BUCKETS, Database, PoolCounts, Trouble, Vfs};

/// The file system on which the database is.
#[derive(Debug, Clone, Copy, Default)]
pub enum Files {
    /// The engine's own: a wait parks the worker.
    #[default]
    Ums,
    /// Like `Ums`, and whole pages of the database are read past the kernel's page cache
    /// (`O_DIRECT`).
    UmsDirect,
    /// SQLite's own, for comparison: a wait for the disk blocks the thread.
    Host,
    /// A file system that a test has created.
    #[cfg(test)]
    #[allow(private_interfaces)]
    On(&'static Vfs),
}

impl Files {
    /// Sets the folder of temporary files: that of the database, because the system's may be
    /// memory.
    pub(super) fn keep_temporary_files_beside(self, database: &Path) {
        let folder = database.parent().filter(|folder| *folder != Path::new(""));
        if let Some(vfs) = self.vfs() {
            vfs.keep_temporary_files_in(folder.unwrap_or(Path::new(".")));
        }
    }

    fn vfs(self) -> Option<&'static Vfs> {
        match self {
            Files::Host => None,
            Files::Ums => Some(Vfs::system(false)),
            Files::UmsDirect => Some(Vfs::system(true)),
            #[cfg(test)]
            Files::On(vfs) => Some(vfs),
        }
    }

    /// Opens a connection that waits at most `patience` for a lock. Also returns the database if
    /// its files are on our file system.
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
        // No statement may damage the schema, and a schema that was made elsewhere may not call
        // what has side effects.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        // On our file system the group commit syncs commits, and the lazy writer writes
        // checkpoints, so SQLite must do neither.
        connection.execute_batch(match &database {
            Some(_) => "PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=0",
            None => "PRAGMA synchronous=FULL",
        })?;
        Ok((connection, database))
    }
}

/// Returns the error that a client gets if the database accepts no more writes.
pub(super) fn error_of(trouble: &Trouble) -> SqlError {
    match trouble {
        Trouble::SyncFailed(error) => SqlError::new(
            "58030",
            format!(
                "the disk failed to store a write ({error}); the database takes no more writes"
            ),
        )
        .hint("Check the disk, then restart the server: it recovers what reached the disk."),
        Trouble::Deleted => SqlError::new(
            "58P01",
            "the database file or its log was deleted while the server has it open; the database \
             takes no more writes",
        )
        .hint("Use BACKUP to save the remaining data to another file, then restart the server."),
    }
}

/// Returns what clients take of memory and disk, as the table `ums_memory`: a row for the server
/// without a user, then a row for each user. User 0 has the idle connections of the pools.
pub(super) fn memory(limits: &Limits, budget: &Budget) -> HostTable {
    let names = [
        "user_id",
        "used_bytes",
        "limit_bytes",
        "statement_bytes",
        "session_bytes",
        "temporary_file_bytes",
        "refusals",
    ];
    let int = |number: u64| Cell::Int(i64::try_from(number).unwrap_or(i64::MAX));
    let row = |user: Cell, used: usize, limit: usize, row: memory::Row| {
        let bytes = [used, limit, row.statements, row.session].map(|bytes| int(bytes as u64));
        let rest = [int(row.temporary), int(row.refusals)];
        std::iter::once(user).chain(bytes).chain(rest).collect::<Vec<Cell>>()
    };
    let users = memory::rows(budget);
    let all = users.iter().fold(memory::Row::default(), |sum, row| memory::Row {
        user: 0,
        statements: sum.statements + row.statements,
        session: sum.session + row.session,
        temporary: sum.temporary + row.temporary,
        refusals: budget.refusals(),
    });
    let mut rows = vec![row(Cell::Null, budget.taken(), budget.limit(), all)];
    rows.extend(
        users
            .into_iter()
            .map(|of| row(int(of.user), of.statements + of.session, limits.client, of)),
    );
    let columns = names.map(|name| (name, "bigint")).to_vec();
    HostTable { name: "ums_memory", columns, rows }
}

/// Returns the counters of the group commit, as the table `ums_group_commit`.
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

/// Returns the counters of the page pool for direct reads, as the table `ums_page_pool`.
pub(super) fn page_pool(files: Files) -> HostTable {
    let pool = files.vfs().map(Vfs::pool_counts);
    let columns = vec![("pages", "bigint"), ("hits", "bigint"), ("misses", "bigint")];
    let row = |counts: PoolCounts| [counts.pages, counts.hits, counts.misses];
    let rows = pool.map(|counts| row(counts).map(|n| Cell::Int(n as i64)).to_vec());
    HostTable { name: "ums_page_pool", columns, rows: rows.into_iter().collect() }
}
