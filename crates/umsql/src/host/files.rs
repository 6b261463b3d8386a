//! Files for the engine's own file system: a wait for the disk parks the worker.
//!
//! This file knows nothing of SQLite: `vfs` decides what each database file is used for.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use ums::WaitReason;
use ums::fs::{self, DirectBuffer, OpenOptions};
use ums::stats::WaitClass;

use super::For;

/// Positions and lengths of direct reads must be multiples of this.
const ALIGN: u64 = 4096;

/// How a file is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct How {
    /// Whether to create the file if it does not exist.
    pub(crate) create: bool,
    /// Whether to fail if the file exists.
    pub(crate) new: bool,
    /// Whether to open the file for reading only.
    pub(crate) read_only: bool,
    /// Whether the file is the log. The wait reason of its syncs depends on it.
    pub(crate) log: bool,
    /// Whether to read whole pages past the kernel's page cache (`O_DIRECT`), if the file system
    /// supports that.
    pub(crate) direct: bool,
}

/// An open file. A wait for the disk parks the worker. The wait cannot be cancelled, because SQLite
/// could not distinguish the cancellation from a disk error.
#[derive(Debug)]
pub(crate) struct File {
    file: fs::File,
    /// The same file, opened for direct reads.
    direct: Option<fs::File>,
}

impl File {
    pub(crate) fn open(path: &Path, how: How) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(!how.read_only).mode(0o600);
        options.create(how.create && !how.read_only).create_new(how.new && !how.read_only);
        let file = named(options.open(path)?, how);
        let mut options = OpenOptions::new();
        // A file system without direct I/O refuses this; then all reads use the page cache.
        let direct = how.direct.then(|| options.read(true).direct(true).open(path).ok()).flatten();
        Ok(File { file, direct: direct.map(|file| named(file, how)) })
    }

    /// Reads until `buf` is full or the file ends, and returns the number of bytes. Data in the
    /// page cache costs one system call and no wait.
    pub(crate) fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let whole_pages = at.is_multiple_of(ALIGN) && (buf.len() as u64).is_multiple_of(ALIGN);
        let Some(direct) = self.direct.as_ref().filter(|_| whole_pages) else {
            return self.file.read_full_at(buf, at);
        };
        let mut pages = DirectBuffer::new(buf.len());
        let read = direct.read_full_at(&mut pages, at)?;
        buf[..read].copy_from_slice(&pages[..read]);
        Ok(read)
    }

    /// Writes all of `buf` into the page cache.
    pub(crate) fn write_at(&self, buf: &[u8], at: u64) -> io::Result<()> {
        self.file.write_all_at(buf, at)
    }

    pub(crate) fn truncate(&self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }

    /// Makes all writes durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    pub(crate) fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Returns the number of the file's names (links). It is 0 if the file was deleted.
    pub(crate) fn links(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.nlink())
    }

    /// Returns whether whole pages are read past the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// Locks these bytes exclusively, against other processes and against other openings of the
    /// same file. The lock lasts until the file is closed. Returns false if another opening has a
    /// lock on them.
    pub(crate) fn lock_bytes(&self, start: i64, len: i64) -> io::Result<bool> {
        let lock = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: start,
            l_len: len,
            l_pid: 0,
        };
        match fcntl(&self.file, FcntlArg::F_OFD_SETLK(&lock)) {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

fn named(mut file: fs::File, how: How) -> fs::File {
    let read = WaitReason::register("PAGEIOLATCH_SH", WaitClass::Resource);
    let write = WaitReason::register("PAGEIOLATCH_EX", WaitClass::Resource);
    let sync = if how.log { For::LogWrite.reason() } else { WaitReason::IO_COMPLETION };
    file.set_wait_reasons(read, write, sync);
    file.set_cancellable(false);
    file
}

/// Removes a file's name.
pub(crate) fn delete(path: &Path) -> io::Result<()> {
    fs::remove_file(path)
}

/// Makes the names in a folder durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    fs::sync_dir(dir)
}

/// Returns the path without symbolic links.
pub(crate) fn full_path(path: &Path) -> io::Result<PathBuf> {
    fs::canonicalize(path)
}

/// Returns the size of the file of that name; `None` if there is none.
pub(crate) fn size_of(path: &Path) -> io::Result<Option<u64>> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata.len())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
