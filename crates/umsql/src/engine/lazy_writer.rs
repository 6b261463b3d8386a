//! The lazy writer: runs checkpoints on a hidden scheduler, off the commit path.
//!
//! A *checkpoint* copies pages from the log into the database, so that the log can begin again.
//! SQLite would do that in the commit that finds the log too long; here the commit only requests
//! it, and a worker of the hidden scheduler `lazy writer` does it on a connection of its own. The
//! worker is started when there is something to do, so an idle server has none.
//!
//! ```text
//!   the log has grown by 1,000 pages   PASSIVE: copies the pages that no reader needs in the log
//!   and is 8,000 pages long            RESTART: owns the write gate and waits for readers of the
//!                                      log, so that the next writer begins the log again
//!   and is 64,000 pages long           TRUNCATE: also gives the file's space back
//! ```
//!
//! So only readers that keep an old snapshot open can make the log longer. The lazy writer also
//! syncs the log shortly after commits that did not wait for it (`synchronous_commit=off`).
//!
//! What it does not do: durability does not depend on it; a checkpoint syncs by itself what it
//! needs.

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
/// From this length on, the log should begin again.
const LONG: u64 = 8_000 * FRAME;
/// From this length on, the log's file should also be truncated.
const TOO_LONG: u64 = 64_000 * FRAME;
/// The user number with which the lazy writer owns the write gate; no connection has it.
const USER: u64 = u64::MAX;
/// How long it waits for the gate before it leaves the rest to the next checkpoint.
const GATE_PATIENCE: Duration = Duration::from_secs(2);
/// How long it waits, and writers with it, for transactions that still read from the log.
pub(super) const READERS_PATIENCE: Duration = Duration::from_millis(100);
/// How long a commit with `synchronous_commit=off` may stay unsynced.
const SYNC_SOON: Duration = Duration::from_millis(200);
const SCHEDULER: &str = "lazy writer";

/// The state of the lazy writer between two runs.
#[derive(Debug)]
pub(super) struct LazyWriter {
    /// The database in our file system; `None` if its files are on SQLite's own.
    database: Option<Arc<Database>>,
    gate: Arc<UserLock>,
    checkpoints: AtomicBool,
    syncs: AtomicBool,
    /// Open at least as long as the engine. So no other connection is the last to close, which
    /// would delete the log while commits wait for it.
    connection: ParkingMutex<Connection>,
}

impl LazyWriter {
    pub(super) fn new(
        connection: Connection,
        database: Option<Arc<Database>>,
        gate: Arc<UserLock>,
    ) -> LazyWriter {
        LazyWriter {
            database,
            gate,
            checkpoints: AtomicBool::new(false),
            syncs: AtomicBool::new(false),
            connection: ParkingMutex::new(connection),
        }
    }

    /// Starts a checkpoint if one is due and none runs.
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
            // The sleep ends early if the server stops.
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
            // The log remembers a failure and reports it to the next commit.
            let _ = database.sync_log();
        }
    }

    fn checkpoint(&self) {
        let _running = Flag(&self.checkpoints);
        let Some(database) = &self.database else { return };
        let connection = self.connection.lock();
        // An error here also occurs in a later commit, which reports it.
        let _ = run(&connection, "PASSIVE");
        let end = database.log.end();
        if end >= LONG && self.gate.acquire(USER, Some(GATE_PATIENCE)).is_ok() {
            let _owned = Owned(&self.gate);
            let _ = run(&connection, if end >= TOO_LONG { "TRUNCATE" } else { "RESTART" });
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

fn run(connection: &Connection, mode: &str) -> Result<()> {
    Ok(connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |_| Ok(()))?)
}
