//! A file system for SQLite: its name, its disk and its open databases.

use std::ffi::CString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ums::lock::Lock;

use super::database::Databases;
use super::disk::Disk;
use super::pages::PoolCounts;

/// A registered file system.
pub(crate) struct Vfs {
    pub(super) name: CString,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) databases: Databases,
    /// The folder of temporary files; `None` is the system's.
    pub(super) temporary: Lock<Option<PathBuf>>,
}

impl Vfs {
    /// Sets the folder in which new temporary files are. They have no name there after they have
    /// been created.
    pub(crate) fn keep_temporary_files_in(&self, folder: &Path) {
        *self.temporary.lock() = Some(folder.to_owned());
    }

    /// Returns the counters of its pool of pages.
    pub(crate) fn pool_counts(&self) -> PoolCounts {
        self.databases.pool_counts()
    }
}

impl fmt::Debug for Vfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vfs({:?})", self.name)
    }
}
