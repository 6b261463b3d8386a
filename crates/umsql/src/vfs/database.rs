//! An open database file: one file, one lock table, one shared memory and one log for all
//! connections of this process.
//!
//! While a database is open, this process holds an exclusive lock on the bytes that SQLite locks,
//! so in every other process, such as the `sqlite3` shell, opening it fails with "database is
//! locked". Within the process the lock table decides. The file's format is SQLite's, so once the
//! last connection is closed any program with SQLite can open it.
//!
//! This file calls no function of SQLite.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::disk::{Disk, How, Opened};
use super::locks::{Locks, Member};
use super::log::{Log, Trouble};
use super::pages::{Pool, PoolCounts};
use super::shm::Shm;
use crate::host;
use ums::lock::Lock;

/// How many times opening a locked file is tried. The lock may belong to a connection of this
/// process that is just closing the file.
const LOOKS: u32 = 10;

/// One database file.
pub(crate) struct Database {
    pub(crate) main: Arc<Opened>,
    pub(crate) locks: Locks,
    pub(crate) shm: Shm,
    pub(crate) log: Log,
    /// The log's file, once a connection has opened it.
    log_file: Lock<Option<Arc<Opened>>>,
    members: AtomicU64,
}

/// One connection's handle on a database.
#[derive(Debug, Clone)]
pub(crate) struct Seat {
    pub(crate) database: Arc<Database>,
    pub(crate) member: Member,
}

/// The open databases, by their full path.
#[derive(Default)]
pub(crate) struct Databases {
    /// A lock that parks the worker, because opening a file under it may wait.
    open: host::ParkingMutex<HashMap<PathBuf, Weak<Database>>>,
    /// The cached pages of all open databases.
    pool: Arc<Pool>,
}

impl Databases {
    /// Opens the database with this full path, unless it is open already, and returns a seat.
    ///
    /// # Errors
    /// `WouldBlock` if another process has it open; any error of the disk.
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

    /// Returns the open database with this full path.
    pub(crate) fn find(&self, path: &Path) -> Option<Arc<Database>> {
        self.open.lock().get(path).and_then(Weak::upgrade)
    }
}

impl Database {
    fn open(disk: &Arc<dyn Disk>, pool: &Arc<Pool>, path: &Path, how: How) -> io::Result<Database> {
        let mut looks = 0;
        let main = loop {
            let main = Opened::open(disk, path, how)?;
            // Locking requires write permission. Without it this process does not write, so it
            // needs no lock.
            if main.read_only || main.file.lock_out()? {
                break main;
            }
            looks += 1;
            if looks == LOOKS {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            host::pause(Duration::from_millis(2));
        };
        Ok(Database {
            main: Arc::new(main.owned(Some(pool))?),
            locks: Locks::default(),
            shm: Shm::default(),
            log: Log::default(),
            log_file: Lock::default(),
            members: AtomicU64::new(1),
        })
    }

    fn log_file(&self) -> Option<Arc<Opened>> {
        self.log_file.lock().clone()
    }

    /// Returns the log's file; the first call opens it, and all connections share it.
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
        let mut file = self.log_file.lock();
        Ok(Arc::clone(file.get_or_insert(opened)))
    }

    /// Records that the log's file was removed.
    pub(crate) fn forget_log(&self) {
        *self.log_file.lock() = None;
    }

    /// Waits until the log up to `position` is on the disk, in a file that still has a name; see
    /// [`Log::wait_durable`].
    pub(crate) fn wait_durable(&self, position: u64) -> Result<(), Trouble> {
        self.log.wait_durable(position, || self.sync_log_file())?;
        self.check_names()
    }

    /// Syncs everything written so far.
    pub(crate) fn sync_log(&self) -> Result<(), Trouble> {
        self.log.sync(|| self.sync_log_file())?;
        self.check_names()
    }

    fn sync_log_file(&self) -> io::Result<()> {
        // SQLite removes the log only after all of it is durable in the database.
        self.log_file().map_or(Ok(()), |file| file.sync())
    }

    /// Returns an error if the database or its log was deleted: a deleted file accepts writes, and
    /// disappears when the server stops. The check is made after each wait for durability, because
    /// such a wait may need no sync of its own: a checkpoint may have synced the log before.
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

    /// Returns whether `file` is still the log's file. SQLite may have removed the log meanwhile.
    fn is_log_file(&self, file: &Arc<Opened>) -> bool {
        self.log_file().is_some_and(|now| Arc::ptr_eq(&now, file))
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("path", &self.main.path).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::super::disk::DiskFile;
    use super::*;

    /// A disk with one empty file, which another process has locked until this is true.
    #[derive(Clone)]
    struct Locked(Arc<AtomicBool>);

    impl Disk for Locked {
        fn open(&self, _: &Path, _: How) -> io::Result<Box<dyn DiskFile>> {
            Ok(Box::new(self.clone()))
        }

        fn delete(&self, _: &Path) -> io::Result<()> {
            Ok(())
        }

        fn sync_dir(&self, _: &Path) -> io::Result<()> {
            Ok(())
        }

        fn size_of(&self, _: &Path) -> io::Result<Option<u64>> {
            Ok(Some(0))
        }

        fn full_path(&self, path: &Path) -> io::Result<PathBuf> {
            Ok(path.to_owned())
        }
    }

    impl DiskFile for Locked {
        fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
            Ok(0)
        }

        fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
            Ok(())
        }

        fn truncate(&self, _: u64) -> io::Result<()> {
            Ok(())
        }

        fn sync(&self) -> io::Result<()> {
            Ok(())
        }

        fn size(&self) -> io::Result<u64> {
            Ok(0)
        }

        fn links(&self) -> io::Result<u64> {
            Ok(1)
        }

        fn is_direct(&self) -> bool {
            false
        }

        fn lock_out(&self) -> io::Result<bool> {
            Ok(self.0.load(Ordering::Relaxed))
        }
    }

    #[test]
    fn a_cancelled_request_waits_for_a_file_that_is_just_being_closed() {
        let node = ums::Node::builder().schedulers(1).build().unwrap();
        let user = node.user();
        let id = user.id();
        let request = move || {
            let free = Arc::new(AtomicBool::new(false));
            let disk: Arc<dyn Disk> = Arc::new(Locked(Arc::clone(&free)));
            let closes = ums::spawn(move || free.store(true, Ordering::Relaxed));
            assert!(host::cancel_request(id) && host::cancelled());
            let opened = Databases::default().open(&disk, Path::new("/db"), How::default());
            drop(closes);
            opened.map(|_| ()).map_err(|error| error.kind())
        };
        assert_eq!(user.enqueue(request).unwrap().join().unwrap(), Ok(()));
    }
}
