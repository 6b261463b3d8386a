//! The disk that the engine's file system uses: an interface that tests can replace.
//!
//! [`SystemDisk`] is the real disk. Tests use a disk in memory that can lose unsynced writes.
//!
//! A file's name, created or removed, is durable only after [`Disk::sync_dir`] on its folder. A
//! write is durable only after [`DiskFile::sync`]. [`Opened::sync`] makes both durable.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::pages::{Pages, Pool};
use crate::host::files;
pub(crate) use crate::host::files::How;

/// The bytes of a database file that SQLite locks: PENDING, RESERVED and SHARED. Their start and
/// length.
const LOCK_BYTES: (i64, i64) = (0x4000_0000, 512);

/// A file system.
pub(crate) trait Disk: Send + Sync {
    /// Opens a file.
    fn open(&self, path: &Path, how: How) -> io::Result<Box<dyn DiskFile>>;
    /// Removes a name.
    fn delete(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a folder durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Returns the size of the file of that name, or `None` if there is none.
    fn size_of(&self, path: &Path) -> io::Result<Option<u64>>;
    /// Returns the canonical path of a file.
    fn full_path(&self, path: &Path) -> io::Result<PathBuf>;
}

/// An open file.
pub(crate) trait DiskFile: Send + Sync {
    /// Reads until `buf` is full or the file ends, and returns the number of bytes.
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize>;
    /// Writes all of `buf`.
    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<()>;
    /// Sets the size.
    fn truncate(&self, size: u64) -> io::Result<()>;
    /// Makes all writes durable.
    fn sync(&self) -> io::Result<()>;
    /// Returns the size.
    fn size(&self) -> io::Result<u64>;
    /// Returns the number of the file's names (links).
    fn links(&self) -> io::Result<u64>;
    /// Returns whether whole pages are read past the kernel's page cache.
    fn is_direct(&self) -> bool;
    /// Locks other processes out until the file is closed. Returns false if another process has the
    /// lock.
    fn lock_out(&self) -> io::Result<bool>;
}

/// The computer's disk.
pub(crate) struct SystemDisk {
    /// Whether databases are read past the kernel's page cache.
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

    /// Follows symbolic links, so that each database has only one name, which its locks and its log
    /// use.
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

    fn is_direct(&self) -> bool {
        files::File::is_direct(self)
    }

    fn lock_out(&self) -> io::Result<bool> {
        self.lock_bytes(LOCK_BYTES.0, LOCK_BYTES.1)
    }
}

/// An open file and its name, which may not be durable yet.
///
/// If nothing else writes to the file ([`Opened::owned`]), its size and pages are cached.
pub(crate) struct Opened {
    pub(crate) file: Box<dyn DiskFile>,
    pub(crate) path: PathBuf,
    pub(crate) read_only: bool,
    disk: Arc<dyn Disk>,
    name_is_new: AtomicBool,
    known: Option<Known>,
}

/// The cached size and pages of a file that is written only through one [`Opened`].
struct Known {
    /// The cached pages, if reads go past the kernel's page cache.
    pages: Option<Pages>,
    size: AtomicU64,
    /// Whether a failed write may have been carried out in part. Then the size must be read from
    /// the disk.
    size_is_open: AtomicBool,
}

impl Opened {
    /// Opens the file. If it may not be written, opens it for reading only.
    pub(crate) fn open(disk: &Arc<dyn Disk>, path: &Path, how: How) -> io::Result<Opened> {
        let mut read_only = how.read_only;
        let file = match disk.open(path, how) {
            Err(error) if is_read_only(&error) && !read_only && !how.new => {
                read_only = true;
                let how = How { read_only, create: false, ..how };
                // If opening for reading fails too, the caller gets the first error.
                disk.open(path, how).map_err(|_| error)?
            }
            other => other?,
        };
        let (disk, path) = (Arc::clone(disk), path.to_owned());
        // Even if the file exists, its creator may have crashed before the name was durable.
        let name_is_new = AtomicBool::new(how.create);
        Ok(Opened { file, path, read_only, disk, name_is_new, known: None })
    }

    /// Declares that from now on the file is changed only through this `Opened`, so that its pages
    /// may be kept in `pool`. This has no effect on a file that is open for reading only, because
    /// another process may write to it.
    pub(crate) fn owned(mut self, pool: Option<&Arc<Pool>>) -> io::Result<Opened> {
        if !self.read_only {
            self.known = Some(Known {
                pages: pool.filter(|_| self.file.is_direct()).map(Pages::new),
                size: AtomicU64::new(self.file.size()?),
                size_is_open: AtomicBool::new(false),
            });
        }
        Ok(self)
    }

    fn pages(&self) -> Option<&Pages> {
        self.known.as_ref()?.pages.as_ref()
    }

    /// Reads until `buf` is full or the file ends, and returns the number of bytes.
    pub(crate) fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let Some(pages) = self.pages() else { return self.file.read_at(buf, at) };
        let miss = match pages.read(buf, at) {
            Ok(()) => return Ok(buf.len()),
            Err(miss) => miss,
        };
        let read = self.file.read_at(buf, at)?;
        if let Some(miss) = miss
            && read == buf.len()
        {
            pages.keep(miss, buf);
        }
        Ok(read)
    }

    /// Writes all of `buf`.
    pub(crate) fn write_at(&self, buf: &[u8], at: u64) -> io::Result<()> {
        let write = || self.file.write_at(buf, at);
        let written = match self.pages() {
            Some(pages) => pages.write(buf.len(), at, write),
            None => write(),
        };
        let end = at + buf.len() as u64;
        self.note(&written, |size| {
            size.fetch_max(end, Ordering::AcqRel);
        });
        written
    }

    /// Sets the size.
    pub(crate) fn truncate(&self, size: u64) -> io::Result<()> {
        // The pages are dropped before and after the change, as for a write of many pages.
        self.pages().into_iter().for_each(Pages::forget);
        let done = self.file.truncate(size);
        self.pages().into_iter().for_each(Pages::forget);
        self.note(&done, |known| known.store(size, Ordering::Release));
        done
    }

    fn note(&self, done: &io::Result<()>, size: impl FnOnce(&AtomicU64)) {
        match (&self.known, done) {
            (Some(known), Ok(())) => size(&known.size),
            (Some(known), Err(_)) => known.size_is_open.store(true, Ordering::Release),
            (None, _) => (),
        }
    }

    /// Returns the size.
    pub(crate) fn size(&self) -> io::Result<u64> {
        match &self.known {
            Some(known) if !known.size_is_open.load(Ordering::Acquire) => {
                Ok(known.size.load(Ordering::Acquire))
            }
            _ => self.file.size(),
        }
    }

    /// Makes all writes durable, and the name too if it is new.
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

#[cfg(test)]
mod tests {
    use super::super::lossy::{Faults, LossyDisk};
    use super::*;

    fn opened(disk: &LossyDisk) -> Opened {
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let how = How { create: true, ..How::default() };
        Opened::open(&disk, Path::new("/a"), how).unwrap().owned(Some(&Arc::default())).unwrap()
    }

    #[test]
    fn the_size_of_an_owned_file_is_remembered_and_is_the_disks() {
        let disk = LossyDisk::default();
        let file = opened(&disk);
        let is_right = |size: u64| {
            assert_eq!((file.size().unwrap(), file.file.size().unwrap()), (size, size));
        };
        is_right(0);
        file.write_at(&[1; 10], 4096).unwrap();
        is_right(4106);
        file.write_at(&[1; 10], 0).unwrap();
        is_right(4106);
        file.truncate(5000).unwrap();
        is_right(5000);
        assert_eq!(opened(&disk).size().unwrap(), 5000, "as it was found");
        // The file on the disk is extended directly, and the cached size does not change.
        file.file.write_at(&[1], 9999).unwrap();
        assert_eq!(file.size().unwrap(), 5000);
        // A write that fails may have been carried out in part.
        disk.set_faults(Faults { room: Some(0), ..Faults::default() });
        file.write_at(&[1; 10], 20_000).unwrap_err();
        is_right(10_000);
    }

    #[test]
    fn a_file_on_the_computers_disk_has_as_many_names_as_it_was_given_and_not_lost() {
        let folder = std::env::temp_dir().join(format!("ums-links-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [path, other] = ["a", "b"].map(|name| folder.join(name));
        let disk: Arc<dyn Disk> = Arc::new(SystemDisk { direct: false });
        let how = How { create: true, ..How::default() };
        let file = Opened::open(&disk, &path, how).unwrap();
        assert_eq!(disk.full_path(&folder.join("new")).unwrap().file_name(), Some("new".as_ref()));
        disk.full_path(&path.join("below a file")).unwrap_err();
        std::fs::hard_link(&path, &other).unwrap();
        assert_eq!(file.file.links().unwrap(), 2);
        disk.delete(&path).unwrap();
        assert_eq!(file.file.links().unwrap(), 1);
        disk.delete(&other).unwrap();
        assert_eq!(file.file.links().unwrap(), 0, "it is deleted, although it is open");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_page_is_read_from_the_disk_once_and_again_when_it_was_written_or_cut() {
        let file = opened(&LossyDisk::default());
        let read = || {
            let mut page = vec![0; 4096];
            let read = file.read_at(&mut page, 0).unwrap();
            (read, page[0])
        };
        file.write_at(&[1; 4096], 0).unwrap();
        assert_eq!(read(), (4096, 1));
        // The pool does not see this write.
        file.file.write_at(&[2; 4096], 0).unwrap();
        assert_eq!(read(), (4096, 1));
        file.write_at(&[3; 4096], 0).unwrap();
        assert_eq!(read(), (4096, 3));
        file.truncate(100).unwrap();
        assert_eq!(read().0, 100);
        assert_eq!(read().0, 100, "half a page is not kept");
    }

    #[test]
    fn a_file_that_is_open_for_reading_only_may_be_another_processs() {
        let disk = LossyDisk::default();
        drop(opened(&disk));
        let dyn_disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let how = How { read_only: true, ..How::default() };
        let file = Opened::open(&dyn_disk, Path::new("/a"), how).unwrap();
        let file = Opened { read_only: true, ..file }.owned(Some(&Arc::default())).unwrap();
        assert!(file.known.is_none());
    }
}
