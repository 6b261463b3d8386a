//! File systems for tests, on a disk in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Vfs;
pub(crate) use super::lossy::{Faults, LossyDisk};

/// Returns a new file system on this disk.
pub(crate) fn lossy(disk: &LossyDisk) -> &'static Vfs {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Vfs::register(&format!("lossy-{number}"), Arc::new(disk.clone()))
}
