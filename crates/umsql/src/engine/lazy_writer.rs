//! The lazy writer: runs checkpoints on a hidden scheduler, off the commit path.
//!
//! A *checkpoint* copies pages from the log into the database, so that the log can begin again.
//! SQLite would do that in the commit that finds the log too long. Here the commit only requests a
//! checkpoint, and a worker of the hidden scheduler `lazy writer` writes it, on a connection of its
//! own. The worker is started when there is something to do, so an idle server has none.
//!
//! ```text
//!   the log has grown by 1,000 pages   PASSIVE: copies the pages that no reader needs in the log
//!   and is 8,000 pages long            RESTART: owns the write gate and waits for readers of the
//!                                      log, so that the next writer begins the log again
//!   and is 64,000 pages long           TRUNCATE: also gives the file's space back
//! ```
//!
//! So the log grows beyond that only while readers keep an old snapshot open. At the limit of the
//! log (`Limits::log`) they lose it: their next read fails. The lazy writer also
//! syncs the log shortly after commits that did not wait for a sync (`synchronous_commit=off`).
//!
//! Durability does not depend on the lazy writer: a checkpoint itself syncs what it needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::Connection;

use crate::error::Result;
use crate::host::{self, ParkingMutex, UserLock};
use crate::vfs::Database;

/// A page in the log: 4 KiB and the frame's header.
const FRAME: u64 = 4096 + 24;
/// A checkpoint is due when the log has grown by this many bytes.
const DUE: u64 = 1_000 * FRAME;
/// From this length on, the log is made to begin again.
const LONG: u64 = 8_000 * FRAME;
/// From this length on, the log's file is also truncated.
const TOO_LONG: u64 = 64_000 * FRAME;
/// The user number with which the lazy writer owns the write gate; no connection has it.
pub(super) const USER: u64 = u64::MAX;
/// How long it waits for the gate. After that, the rest is left to the next checkpoint.
const GATE_PATIENCE: Duration = Duration::from_secs(2);
/// How long it waits for transactions that still read from the log. Writers wait during this time,
/// too.
pub(super) const READERS_PATIENCE: Duration = Duration::from_millis(100);
/// How long a commit with `synchronous_commit=off` may stay unsynced.
const SYNC_SOON: Duration = Duration::from_millis(200);
const SCHEDULER: &str = "lazy writer";

/// The state of the lazy writer between two runs.
#[derive(Debug)]
pub(super) struct LazyWriter {
    /// The database in this crate's file system. `None` if its files are in SQLite's own file
    /// system.
    database: Option<Arc<Database>>,
    gate: Arc<UserLock>,
    /// The length of the log, in bytes, at which readers of old snapshots lose them.
    limit: u64,
    checkpoints: AtomicBool,
    syncs: AtomicBool,
    /// This connection is open at least as long as the engine. So no other connection is the last
    /// to close, which would delete the log while commits wait for it.
    connection: ParkingMutex<Connection>,
}

impl LazyWriter {
    pub(super) fn new(
        connection: Connection,
        database: Option<Arc<Database>>,
        gate: Arc<UserLock>,
        limit: u64,
    ) -> LazyWriter {
        LazyWriter {
            database,
            gate,
            limit,
            checkpoints: AtomicBool::new(false),
            syncs: AtomicBool::new(false),
            connection: ParkingMutex::new(connection),
        }
    }

    /// Starts a checkpoint if one is due and none is running.
    pub(super) fn checkpoint_if_due(self: &Arc<LazyWriter>) {
        let Some(database) = &self.database else { return };
        if !database.log.has_grown_by(DUE) || self.checkpoints.swap(true, Ordering::AcqRel) {
            return;
        }
        let lazy = Arc::clone(self);
        let begin = move || lazy.checkpoint();
        if !host::start_hidden(SCHEDULER, begin) {
            self.checkpoint();
        }
    }

    /// Syncs the log soon, for commits with `synchronous_commit=off`.
    pub(super) fn sync_soon(self: &Arc<LazyWriter>) {
        if self.syncs.swap(true, Ordering::AcqRel) {
            return;
        }
        let lazy = Arc::clone(self);
        let started = host::start_hidden(SCHEDULER, move || {
            // If the server stops, the sleep ends early.
            let _ = host::sleep(SYNC_SOON);
            lazy.sync_now();
        });
        if !started {
            self.sync_now();
        }
    }

    fn sync_now(&self) {
        drop(Flag(&self.syncs));
        if let Some(database) = &self.database {
            // The log keeps a failure, and reports it to the next commit.
            let _ = database.sync_log();
        }
    }

    fn checkpoint(&self) {
        let _running = Flag(&self.checkpoints);
        let Some(database) = &self.database else { return };
        let connection = self.connection.lock();
        database.locks.begin_era();
        // The cause of an error here will also affect a later commit, which reports it.
        let _ = run(&connection, "PASSIVE");
        let end = database.log.end();
        if end >= LONG.min(self.limit) && self.gate.acquire(USER, Some(GATE_PATIENCE)).is_ok() {
            let _owned = Owned(&self.gate);
            let mode = if end >= TOO_LONG.min(self.limit) { "TRUNCATE" } else { "RESTART" };
            let done = run(&connection, mode);
            if end >= self.limit && done.is_ok_and(|complete| !complete) {
                database.locks.revoke_old_readers();
                let _ = run(&connection, mode);
            }
        }
    }
}

/// Clears the flag when dropped.
struct Flag<'a>(&'a AtomicBool);

impl Drop for Flag<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The write gate, released when this is dropped.
struct Owned<'a>(&'a UserLock);

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        self.0.release(USER);
    }
}

/// Runs a checkpoint. Returns whether it is complete: no reader was in the way.
fn run(connection: &Connection, mode: &str) -> Result<bool> {
    let sql = format!("PRAGMA wal_checkpoint({mode})");
    Ok(connection.query_row(&sql, [], |row| row.get::<_, i64>(0))? == 0)
}
