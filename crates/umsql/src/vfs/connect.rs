//! Registers a file system with SQLite, and opens connections whose files are on it.

use std::ffi::CString;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, ffi};

use super::database::{Databases, Seat};
use super::disk::{Disk, SystemDisk};
use super::filesystem::Vfs;
use super::{busy, entry, mutex};
use ums::lock::Lock;

/// How long a connection waits for a lock.
pub(crate) const PATIENCE: Duration = busy::TIMEOUT;

impl Vfs {
    /// Returns the file system on the real disk, named `ums`; or `ums-direct`, which reads
    /// databases past the kernel's page cache.
    pub(crate) fn system(direct: bool) -> &'static Vfs {
        static SYSTEM: [OnceLock<&'static Vfs>; 2] = [const { OnceLock::new() }; 2];
        let name = if direct { "ums-direct" } else { "ums" };
        SYSTEM[usize::from(direct)]
            .get_or_init(|| Vfs::register(name, Arc::new(SystemDisk { direct })))
    }

    /// Registers a file system under this name, for the rest of the process's life.
    pub(crate) fn register(name: &str, disk: Arc<dyn Disk>) -> &'static Vfs {
        mutex::install(entry::install_mutexes);
        let name = CString::new(name).expect("a file system's name has no zero byte");
        let (databases, temporary) = (Databases::default(), Lock::default());
        let vfs = Box::leak(Box::new(Vfs { name, disk, databases, temporary }));
        entry::register(vfs);
        vfs
    }

    /// Opens a connection whose files are on this file system, and which waits at most `patience`
    /// for a lock.
    pub(crate) fn connect(
        &'static self,
        path: &Path,
        patience: Duration,
    ) -> rusqlite::Result<(Connection, Seat)> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection =
            Connection::open_with_flags_and_vfs(path, flags, self.name.as_c_str())?;
        let seat = entry::seat(&connection).ok_or_else(|| {
            rusqlite::Error::SqliteFailure(
                ffi::Error::new(ffi::SQLITE_CANTOPEN),
                Some("the database has no file".into()),
            )
        })?;
        busy::install(&mut connection, seat.clone(), patience)?;
        Ok((connection, seat))
    }
}
