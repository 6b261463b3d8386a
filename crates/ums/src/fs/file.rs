//! An open file: how it is opened, looked at and closed. Its reads and writes are in `at.rs`.
//!
//! ```text
//!   File  --has a-->  adoption   the drivers may rely on what the number means
//!                     std        owns the descriptor
//!                     manner     where its operations are done
//! ```
//!
//! Invariants
//! * *Adopted*: the descriptor is adopted for as long as its `File` lives, and the adoption is
//!   taken back before it is closed or given away.
//! * *Given Away*: what is closed here was given up by its owner.

#![allow(unsafe_code)] // Named invariant "Given Away", stated above.

use std::fs::{Metadata, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatxFlags};

use super::disk;
use super::options::OpenOptions;
use crate::io::{outside, wait_out};
use crate::os::clock::{self, NEVER};
use crate::os::driver::Op;
use crate::os::linux::owned::{self, Kind};
use crate::record::reason::WaitReason;

/// An open file. See the module's text for where each operation is done.
///
/// `Read`, `Write` and `Seek` are there for `File` and `&File`, as in std; the positioned
/// operations (`read_at`, `write_at` and their kin) need no exclusive use and do not move the
/// position.
pub struct File {
    // Dropped first (Adopted).
    adoption: Adoption,
    pub(super) std: std::fs::File,
    pub(super) manner: Manner,
    pub(super) deadline: AtomicU64,
    pub(super) cancellable: bool,
    pub(super) reasons: Reasons,
    /// The file system cannot say what is in the cache.
    pub(super) no_cache_question: AtomicBool,
}

/// The right of drivers to rely on a descriptor number.
struct Adoption(RawFd);

impl Drop for Adoption {
    fn drop(&mut self) {
        owned::release(self.0);
    }
}

/// What waits of a file are called.
#[derive(Clone, Copy)]
pub(super) struct Reasons {
    pub read: WaitReason,
    pub write: WaitReason,
    pub sync: WaitReason,
}

/// Where the operations of a file are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Through the page cache. With `slow_writes` (O_SYNC, O_DSYNC), a write waits for the disk.
    Cached { slow_writes: bool },
    /// Past the page cache: addresses must be multiples of `memory`, the rest of `offset`.
    Direct { memory: usize, offset: usize },
    /// A pipe, a terminal or another device: readiness is waited for.
    Stream,
}

impl Manner {
    /// Asks the system; two or three calls that touch no disk.
    pub fn of(file: &std::fs::File) -> io::Result<Manner> {
        let kind = file.metadata()?.file_type();
        let flags = rustix::fs::fcntl_getfl(file)?;
        if kind.is_fifo() || kind.is_socket() || kind.is_char_device() {
            rustix::fs::fcntl_setfl(file, flags | OFlags::NONBLOCK)?;
            return Ok(Manner::Stream);
        }
        if flags.contains(OFlags::DIRECT) {
            let (memory, offset) = direct_alignment(file);
            return Ok(Manner::Direct { memory, offset });
        }
        Ok(Manner::Cached { slow_writes: flags.intersects(OFlags::SYNC | OFlags::DSYNC) })
    }

    fn kind(self) -> Kind {
        if self == Manner::Stream { Kind::Other } else { Kind::File }
    }
}

/// What direct I/O on this file must be aligned to (Linux 6.1). Where the system does not say, the
/// least that any disk asks for: the system refuses what is not enough.
fn direct_alignment(file: &std::fs::File) -> (usize, usize) {
    let asked = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    match asked {
        Ok(x) if x.stx_dio_mem_align > 0 && x.stx_dio_offset_align > 0 => {
            (x.stx_dio_mem_align as usize, x.stx_dio_offset_align as usize)
        }
        _ => (512, 512),
    }
}

impl File {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().read(true).open(path)
    }

    /// Opens a file for writing, empty: made where there is none.
    ///
    /// # Errors
    /// The system's.
    pub fn create(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).open(path)
    }

    /// Makes a file, for reading and writing.
    ///
    /// # Errors
    /// The system's; `AlreadyExists` where there is one.
    pub fn create_new(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create_new(true).open(path)
    }

    /// Options for opening a file.
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }

    pub(super) fn of(std: std::fs::File, manner: Manner) -> File {
        let fd = std.as_raw_fd();
        owned::adopt(fd, manner.kind());
        let (read, write, sync) =
            (WaitReason::IO_COMPLETION, WaitReason::IO_COMPLETION, WaitReason::WRITELOG);
        File {
            adoption: Adoption(fd),
            std,
            manner,
            deadline: AtomicU64::new(NEVER),
            cancellable: true,
            reasons: Reasons { read, write, sync },
            no_cache_question: AtomicBool::new(false),
        }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.adoption.0
    }

    /// Whether reads may fail because the work request was cancelled, or because of the deadline.
    /// Default yes. For a component that cannot go on without its file, as when it rolls back what
    /// a cancelled request has done: no.
    pub fn set_cancellable(&mut self, yes: bool) {
        self.cancellable = yes;
    }

    /// No read, and no write to a pipe, waits beyond this instant, but fails with `TimedOut`; None,
    /// the default, is no limit.
    pub fn set_deadline(&self, at: Option<Instant>) {
        let at = at.map(|at| clock::after(at.saturating_duration_since(Instant::now())));
        self.deadline.store(at.unwrap_or(NEVER), Ordering::Relaxed);
    }

    /// What waits for this file are called in views and statistics. By default reads and writes are
    /// `IO_COMPLETION` and syncs are `WRITELOG`.
    pub fn set_wait_reasons(&mut self, read: WaitReason, write: WaitReason, sync: WaitReason) {
        self.reasons = Reasons { read, write, sync };
    }

    /// Waits until contents and metadata are on the disk: `fsync(2)`, on the I/O list.
    ///
    /// # Errors
    /// The system's. After one, what was written since the last success may be lost, and another
    /// sync that succeeds does not mean that it is there.
    pub fn sync_all(&self) -> io::Result<()> {
        self.sync(false)
    }

    /// Waits until the contents, and what is needed to find them, are on the disk: `fdatasync(2)`,
    /// on the I/O list.
    ///
    /// # Errors
    /// As for [`File::sync_all`].
    pub fn sync_data(&self) -> io::Result<()> {
        self.sync(true)
    }

    fn sync(&self, data_only: bool) -> io::Result<()> {
        loop {
            let op = Op::Fsync { fd: self.fd(), data_only };
            // SAFETY: Given Away: nothing is; the descriptor is borrowed, and there is no buffer.
            match unsafe { wait_out(op, self.reasons.sync) } {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(drop),
            }
        }
    }

    /// Sets the length: cuts the end off, or adds zeros that take no room on the disk.
    ///
    /// # Errors
    /// The system's.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        let set_len = || disk::resize(self.fd(), || self.std.set_len(len));
        outside(WaitReason::ASYNC_IO_COMPLETION, set_len)
    }

    /// Makes room on the disk for these bytes, so that writing them cannot run out of it, and
    /// extends the file to their end: `fallocate(2)`.
    ///
    /// # Errors
    /// The system's; `Unsupported` where the file system cannot.
    pub fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        outside(WaitReason::ASYNC_IO_COMPLETION, || {
            Ok(rustix::fs::fallocate(&self.std, FallocateFlags::empty(), offset, len)?)
        })
    }

    /// What the system knows of the file.
    ///
    /// # Errors
    /// The system's.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.std.metadata()
    }

    /// Sets who may do what with the file.
    ///
    /// # Errors
    /// The system's.
    pub fn set_permissions(&self, permissions: Permissions) -> io::Result<()> {
        outside(WaitReason::ASYNC_IO_COMPLETION, || self.std.set_permissions(permissions))
    }

    /// A second descriptor of the same open file: both share the position. It has the deadline and
    /// the reasons of the first, and from then on its own.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn try_clone(&self) -> io::Result<File> {
        let deadline = AtomicU64::new(self.deadline.load(Ordering::Relaxed));
        let again = File::of(self.std.try_clone()?, self.manner);
        let (cancellable, reasons) = (self.cancellable, self.reasons);
        Ok(File { deadline, cancellable, reasons, ..again })
    }

    /// Closes the file, and says what the system says: some file systems report only now that
    /// something could not be written. Dropping a file closes it too, on the spot, and says
    /// nothing.
    ///
    /// # Errors
    /// The system's. The file is closed all the same.
    pub fn close(self) -> io::Result<()> {
        let fd = OwnedFd::from(self.into_std());
        outside(WaitReason::ASYNC_IO_COMPLETION, move || {
            // SAFETY: Given Away: `fd` was ours, and its number is used no more.
            match unsafe { libc::close(fd.into_raw_fd()) } {
                // After EINTR it is closed too, on Linux.
                0 => Ok(()),
                _ => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                    error => Err(error),
                },
            }
        })
    }

    /// Gives the descriptor away. That of a pipe or device is put into blocking mode, as std's
    /// callers expect.
    pub fn into_std(self) -> std::fs::File {
        let File { adoption, std, manner, .. } = self;
        drop(adoption);
        if manner == Manner::Stream
            && let Ok(flags) = rustix::fs::fcntl_getfl(&std)
        {
            // What cannot be set was not set before either.
            let _ = rustix::fs::fcntl_setfl(&std, flags - OFlags::NONBLOCK);
        }
        std
    }
}

/// Puts a pipe or device, and with it every clone of it, into non-blocking mode.
impl From<std::fs::File> for File {
    fn from(std: std::fs::File) -> File {
        let manner = Manner::of(&std).expect("an open file can be asked what it is");
        File::of(std, manner)
    }
}

impl From<File> for std::fs::File {
    fn from(file: File) -> std::fs::File {
        file.into_std()
    }
}

impl From<OwnedFd> for File {
    fn from(fd: OwnedFd) -> File {
        std::fs::File::from(fd).into()
    }
}

impl From<File> for OwnedFd {
    fn from(file: File) -> OwnedFd {
        file.into_std().into()
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.std.as_fd()
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.fd()
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&self.std, f)
    }
}
