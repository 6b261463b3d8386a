//! A file system for SQLite: its name, its disk and its open databases.

use std::ffi::CString;
use std::fmt;
use std::sync::Arc;

use super::database::Databases;
use super::disk::Disk;
use super::pages::PoolCounts;

/// A registered file system.
pub(crate) struct Vfs {
    pub(super) name: CString,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) databases: Databases,
}

impl Vfs {
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
