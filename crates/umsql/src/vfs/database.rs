//! A database file as this process knows it: one file, one lock table, one shared memory and one
//! log for all connections that have it open.
//!
//! While a database is open this process holds an exclusive lock on the bytes that SQLite locks, so
//! every other process, the `sqlite3` shell too, is told "database is locked"; within the process
//! the lock table decides. The file's format stays SQLite's, and after the last connection is
//! closed anybody opens it.
//!
//! What it does not do: it knows no SQL and calls no SQLite.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::disk::{Disk, How, Opened};
use super::locks::{Locks, Member};
use super::log::{Log, Trouble};
use super::pages::{Pool, PoolCounts};
use super::shm::Shm;
use crate::host;

/// How often opening looks again when the file is locked: its last user here may be about to close
/// it.
const LOOKS: u32 = 10;

/// One database file.
pub(crate) struct Database {
    pub(crate) main: Arc<Opened>,
    pub(crate) locks: Locks,
    pub(crate) shm: Shm,
    pub(crate) log: Log,
    /// The log's file, once a connection has opened it.
    log_file: Mutex<Option<Arc<Opened>>>,
    members: AtomicU64,
}

/// One connection's place at a database.
#[derive(Debug, Clone)]
pub(crate) struct Seat {
    pub(crate) database: Arc<Database>,
    pub(crate) member: Member,
}

/// The databases that are open, by their full path.
#[derive(Default)]
pub(crate) struct Databases {
    /// Held while a file is opened, which may wait, so it is a lock that parks.
    open: host::ParkingMutex<HashMap<PathBuf, Weak<Database>>>,
    /// Pages of all of them.
    pool: Arc<Pool>,
}

impl Databases {
    /// A seat at the database of that full path.
    ///
    /// # Errors
    /// `WouldBlock` when another process has it open; anything else from the disk.
    pub(crate) fn open(&self, disk: &Arc<dyn Disk>, path: &Path, how: How) -> io::Result<Seat> {
        let mut open = self.open.lock();
        let known = open.get(path).and_then(Weak::upgrade);
        let database = match known {
            Some(database) => database,
            None => {
                let database = Arc::new(Database::open(disk, &self.pool, path, how)?);
                open.retain(|_, database| database.strong_count() > 0);
                open.insert(path.to_owned(), Arc::downgrade(&database));
                database
            }
        };
        let member = database.members.fetch_add(1, Ordering::Relaxed);
        Ok(Seat { database, member })
    }

    pub(crate) fn pool_counts(&self) -> PoolCounts {
        self.pool.counts()
    }

    /// The open database of that full path.
    pub(crate) fn find(&self, path: &Path) -> Option<Arc<Database>> {
        self.open.lock().get(path).and_then(Weak::upgrade)
    }
}

impl Database {
    fn open(disk: &Arc<dyn Disk>, pool: &Arc<Pool>, path: &Path, how: How) -> io::Result<Database> {
        let mut looks = 0;
        let main = loop {
            let main = Opened::open(disk, path, how)?;
            // A lock needs the right to write; without it nobody here writes either.
            if main.read_only || main.file.lock_out()? {
                break main;
            }
            looks += 1;
            if looks == LOOKS {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let _ = host::sleep(Duration::from_millis(2));
        };
        Ok(Database {
            main: Arc::new(main.owned(Some(pool))?),
            locks: Locks::default(),
            shm: Shm::default(),
            log: Log::default(),
            log_file: Mutex::default(),
            members: AtomicU64::new(1),
        })
    }

    fn log_file(&self) -> Option<Arc<Opened>> {
        self.log_file.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The log's file, opened by the first who asks and shared by all others.
    pub(crate) fn open_log(
        &self,
        disk: &Arc<dyn Disk>,
        path: &Path,
        how: How,
    ) -> io::Result<Arc<Opened>> {
        if let Some(known) = self.log_file() {
            return Ok(known);
        }
        let opened = Arc::new(Opened::open(disk, path, how)?.owned(None)?);
        let mut file = self.log_file.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(file.get_or_insert(opened)))
    }

    /// Notes that the log's file was removed.
    pub(crate) fn forget_log(&self) {
        *self.log_file.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Waits until what was written up to `position` is on the disk, and can be found there; see
    /// [`Log::wait_durable`].
    pub(crate) fn wait_durable(&self, position: u64) -> Result<(), Trouble> {
        self.log.wait_durable(position, || self.sync_log_file())?;
        self.check_names()
    }

    /// Syncs what is written now.
    pub(crate) fn sync_log(&self) -> Result<(), Trouble> {
        self.log.sync(|| self.sync_log_file())?;
        self.check_names()
    }

    fn sync_log_file(&self) -> io::Result<()> {
        // SQLite removes the log when all of it is in the database, durably.
        self.log_file().map_or(Ok(()), |file| file.sync())
    }

    /// A file without a name takes what we write, and is gone when the server stops. It is looked
    /// at after each wait and not in the sync, which may have been a checkpoint's.
    fn check_names(&self) -> Result<(), Trouble> {
        let has_name = |file: &Opened| file.file.links().map_or(true, |links| links > 0);
        let log = self.log_file();
        let log_is_gone = log.is_some_and(|log| !has_name(&log) && self.is_log_file(&log));
        if log_is_gone || !has_name(&self.main) {
            self.log.fail(Trouble::Deleted);
            return Err(Trouble::Deleted);
        }
        Ok(())
    }

    /// Whether that is the log still: SQLite may have removed it meanwhile.
    fn is_log_file(&self, file: &Arc<Opened>) -> bool {
        self.log_file().is_some_and(|now| Arc::ptr_eq(&now, file))
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("path", &self.main.path).finish_non_exhaustive()
    }
}
