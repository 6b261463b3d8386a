//! The disk, as far as the engine needs one: the seam below the virtual file system.
//!
//! [`SystemDisk`] is the real one; tests have one that forgets what was not synced.
//!
//! A name that was made or removed lasts only after [`Disk::sync_dir`] on its folder, what was written only
//! after [`DiskFile::sync`]: an [`Opened`] file takes care of both.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::host::files;
pub(crate) use crate::host::files::How;

/// SQLite's PENDING, RESERVED and SHARED bytes of a database file.
const LOCK_BYTES: (i64, i64) = (0x4000_0000, 512);

/// A file system.
pub(crate) trait Disk: Send + Sync {
    /// Opens a file.
    fn open(&self, path: &Path, how: How) -> io::Result<Box<dyn DiskFile>>;
    /// Removes a name.
    fn delete(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a folder last.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// The size of the file of that name, or None when there is none.
    fn size_of(&self, path: &Path) -> io::Result<Option<u64>>;
    /// The path by which a file is known.
    fn full_path(&self, path: &Path) -> io::Result<PathBuf>;
}

/// An open file.
pub(crate) trait DiskFile: Send + Sync {
    /// Reads until `buf` is full or the file ends, and says how much.
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize>;
    /// Writes all of `buf`.
    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<()>;
    /// Sets the size.
    fn truncate(&self, size: u64) -> io::Result<()>;
    /// Makes what was written last.
    fn sync(&self) -> io::Result<()>;
    /// The size.
    fn size(&self) -> io::Result<u64>;
    /// How many names it has.
    fn links(&self) -> io::Result<u64>;
    /// Locks other processes out, until the file is closed. False when another has done so.
    fn lock_out(&self) -> io::Result<bool>;
}

/// The disk of the machine.
pub(crate) struct SystemDisk {
    /// Databases are read past the system's cache.
    pub(crate) direct: bool,
}

impl Disk for SystemDisk {
    fn open(&self, path: &Path, how: How) -> io::Result<Box<dyn DiskFile>> {
        let how = How { direct: how.direct && self.direct, ..how };
        Ok(Box::new(files::File::open(path, how)?))
    }

    fn delete(&self, path: &Path) -> io::Result<()> {
        files::delete(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        files::sync_dir(dir)
    }

    fn size_of(&self, path: &Path) -> io::Result<Option<u64>> {
        files::size_of(path)
    }

    /// Symbolic links are followed, so that a database has one name for its locks and its log.
    fn full_path(&self, path: &Path) -> io::Result<PathBuf> {
        match files::full_path(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            known => return known,
        }
        let absolute = std::path::absolute(path)?;
        Ok(match (absolute.parent().map(files::full_path), absolute.file_name()) {
            (Some(Ok(folder)), Some(name)) => folder.join(name),
            _ => absolute,
        })
    }
}

impl DiskFile for files::File {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        files::File::read_at(self, buf, at)
    }

    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<()> {
        files::File::write_at(self, buf, at)
    }

    fn truncate(&self, size: u64) -> io::Result<()> {
        files::File::truncate(self, size)
    }

    fn sync(&self) -> io::Result<()> {
        files::File::sync(self)
    }

    fn size(&self) -> io::Result<u64> {
        files::File::size(self)
    }

    fn links(&self) -> io::Result<u64> {
        files::File::links(self)
    }

    fn lock_out(&self) -> io::Result<bool> {
        self.lock_bytes(LOCK_BYTES.0, LOCK_BYTES.1)
    }
}

/// An open file with its name, which may have to be made to last yet.
pub(crate) struct Opened {
    pub(crate) file: Box<dyn DiskFile>,
    pub(crate) path: PathBuf,
    pub(crate) read_only: bool,
    disk: Arc<dyn Disk>,
    name_is_new: AtomicBool,
}

impl Opened {
    /// Opens; when the file may not be written, for reading only.
    pub(crate) fn open(disk: &Arc<dyn Disk>, path: &Path, how: How) -> io::Result<Opened> {
        let mut read_only = how.read_only;
        let file = match disk.open(path, how) {
            Err(error) if is_read_only(&error) && !read_only && !how.new => {
                read_only = true;
                let how = How { read_only, create: false, ..how };
                // What keeps us from writing is what the caller is told, not that reading fails too.
                disk.open(path, how).map_err(|_| error)?
            }
            other => other?,
        };
        let (disk, path) = (Arc::clone(disk), path.to_owned());
        // Who made it before us may have been stopped before the name lasted, so being there says nothing.
        let name_is_new = AtomicBool::new(how.create);
        Ok(Opened { file, path, read_only, disk, name_is_new })
    }

    /// Makes what was written last, and the name with it when it is new.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync()?;
        if self.name_is_new.load(Ordering::Acquire) {
            self.disk.sync_dir(self.path.parent().unwrap_or(Path::new("/")))?;
            self.name_is_new.store(false, Ordering::Release);
        }
        Ok(())
    }
}

fn is_read_only(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("path", &self.path).finish_non_exhaustive()
    }
}
