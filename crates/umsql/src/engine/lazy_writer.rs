//! The lazy writer: checkpoints off the commit path, on a hidden scheduler.
//!
//! A *checkpoint* copies pages from the log into the database, so that the log can begin again.
//! SQLite would do that in the commit that finds the log long; here a commit only asks for it, and
//! a worker of the hidden scheduler `lazy writer` does it with a connection of its own. It is
//! started when there is something to do, so an idle server has none.
//!
//! ```text
//!   the log has grown by 1,000 pages      PASSIVE: copies what nobody needs to read from the log
//!   and is 8,000 pages long               RESTART: owns the write gate, lets readers of the log finish, so that
//!                                         the next writer begins the log again
//!   and is 64,000 pages long              TRUNCATE: and gives the room back
//! ```
//!
//! So the log is bounded by what readers keep open. It also syncs the log a moment after commits
//! that did not want to wait (`synchronous_commit=off`).
//!
//! What it does not do: it decides nothing about durability; a checkpoint syncs what it needs by
//! itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::Connection;

use super::Engine;
use crate::error::Result;
use crate::host::{self, ParkingMutex};

/// A page in the log: 4 KiB and the frame's header.
const FRAME: u64 = 4096 + 24;
/// A checkpoint is due when the log has grown by so many bytes.
const DUE: u64 = 1_000 * FRAME;
/// Beyond this it is to begin again,
const LONG: u64 = 8_000 * FRAME;
/// and beyond this to give its room back.
const TOO_LONG: u64 = 64_000 * FRAME;
/// As whom it owns the write gate. No user has this number.
const USER: u64 = u64::MAX;
/// How long it waits for the gate before it leaves the rest to the next time.
const GATE_PATIENCE: Duration = Duration::from_secs(2);
/// How long it lets writers wait for those who still read from the log.
pub(super) const READERS_PATIENCE: Duration = Duration::from_millis(100);
/// How long a commit that nobody waits for may stay unsynced.
const SYNC_SOON: Duration = Duration::from_millis(200);
const SCHEDULER: &str = "lazy writer";

/// What the lazy writer keeps between two runs.
#[derive(Debug)]
pub(super) struct LazyWriter {
    checkpoints: AtomicBool,
    syncs: AtomicBool,
    /// Open for as long as the engine is, so that no other connection is the last to close, which
    /// would end the log while commits wait for it.
    connection: ParkingMutex<Connection>,
}

impl LazyWriter {
    pub(super) fn new(connection: Connection) -> LazyWriter {
        let connection = ParkingMutex::new(connection);
        LazyWriter {
            checkpoints: AtomicBool::new(false),
            syncs: AtomicBool::new(false),
            connection,
        }
    }
}

/// Clears a flag however its owner ends.
struct Flag<'a>(&'a AtomicBool);

impl Drop for Flag<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The write gate, given back however its owner ends.
struct Owned<'a>(&'a host::Gate);

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        self.0.release(USER);
    }
}

impl Engine {
    /// Starts a checkpoint if one is due and none runs.
    pub(super) fn checkpoint_if_due(self: &Arc<Engine>) {
        let Some(database) = &self.database else { return };
        if !database.log.has_grown_by(DUE) || self.lazy.checkpoints.swap(true, Ordering::AcqRel) {
            return;
        }
        let engine = Arc::clone(self);
        let begin = move || engine.checkpoint();
        if !host::start_hidden(SCHEDULER, begin) {
            self.checkpoint();
        }
    }

    /// Syncs the log soon, for commits that nobody waits for.
    pub(super) fn sync_soon(self: &Arc<Engine>) {
        if self.lazy.syncs.swap(true, Ordering::AcqRel) {
            return;
        }
        let engine = Arc::clone(self);
        let started = host::start_hidden(SCHEDULER, move || {
            // When the server stops, this ends early.
            let _ = host::sleep(SYNC_SOON);
            engine.sync_now();
        });
        if !started {
            self.sync_now();
        }
    }

    fn sync_now(&self) {
        drop(Flag(&self.lazy.syncs));
        if let Some(database) = &self.database {
            // A failure is remembered by the log, and the next commit is told.
            let _ = database.sync_log();
        }
    }

    fn checkpoint(&self) {
        let _running = Flag(&self.lazy.checkpoints);
        let Some(database) = &self.database else { return };
        let connection = self.lazy.connection.lock();
        // What fails here fails again for those who commit, and they are told.
        let _ = run(&connection, "PASSIVE");
        let end = database.log.end();
        if end >= LONG && self.gate.acquire_for(USER, GATE_PATIENCE) {
            let _owned = Owned(&self.gate);
            let _ = run(&connection, if end >= TOO_LONG { "TRUNCATE" } else { "RESTART" });
        }
    }
}

fn run(connection: &Connection, mode: &str) -> Result<()> {
    Ok(connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |_| Ok(()))?)
}
