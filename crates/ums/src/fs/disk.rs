//! Changes of the names and lengths of files. In a simulated world they are also recorded on its
//! disk.

#[cfg(feature = "sim")]
pub use crate::os::sim::files::{open, overwrite, remove, rename, resize, sync_folder};

#[cfg(not(feature = "sim"))]
pub use plain::{open, overwrite, remove, rename, resize, sync_folder};

#[cfg(not(feature = "sim"))]
mod plain {
    use std::io;
    use std::os::fd::RawFd;
    use std::path::Path;

    #[inline(always)]
    pub fn open<R>(_: &Path, open: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        open()
    }

    #[inline(always)]
    pub fn overwrite(_: &Path, write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        write()
    }

    #[inline(always)]
    pub fn remove(_: &Path, remove: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        remove()
    }

    #[inline(always)]
    pub fn rename(_: &Path, _: &Path, rename: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        rename()
    }

    #[inline(always)]
    pub fn resize(_: RawFd, resize: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        resize()
    }

    #[inline(always)]
    pub fn sync_folder(_: &Path, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        sync()
    }
}
