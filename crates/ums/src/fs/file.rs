//! An open file: its state, its metadata, syncing and closing. Its constructors are in
//! `options.rs`, its reads and writes in `at.rs`.
//!
//! ```text
//!   File  --has a-->  adoption   the drivers may rely on what the descriptor's number means
//!                     std        owns the descriptor
//!                     manner     where its operations are done
//! ```
//!
//! Rule *Adopted*: a descriptor is *adopted* for as long as its `File` lives: drivers may rely on
//! what the number means. The adoption is taken back before the descriptor is closed or given away.

use std::fs::{Metadata, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use rustix::fs::{FallocateFlags, OFlags};

use super::manner::Manner;
use crate::io::{outside, wait_out};
use crate::os::clock::{self, NEVER};
use crate::os::driver::LiveOp;
use crate::os::linux::{owned, plain};
use crate::os::sim::files as disk;
use crate::record::reason::WaitReason;

/// An open file. The [module's text](crate::fs) says where each operation is done.
///
/// `Read`, `Write` and `Seek` are implemented for `File` and `&File`, as in std; the positioned
/// operations (such as `read_at` and `write_at`) neither use nor move the position, so several
/// callers may use them at once.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data");
/// let file = ums::fs::File::create_new(&path)?;
/// file.write_all_at(b"hello", 0)?;
/// file.sync_all()?;
/// let mut bytes = [0; 5];
/// file.read_exact_at(&mut bytes, 0)?;
/// assert_eq!(&bytes, b"hello");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct File {
    // Dropped first: the adoption ends before the descriptor is closed (rule Adopted).
    adoption: Adoption,
    pub(super) std: std::fs::File,
    pub(super) manner: Manner,
    pub(super) deadline: AtomicU64,
    pub(super) cancellable: bool,
    pub(super) reasons: Reasons,
    /// True once the file system has answered that it cannot tell which pages are in the cache.
    pub(super) no_cache_question: AtomicBool,
}

/// The right of drivers to rely on a descriptor number.
struct Adoption(RawFd);

impl Drop for Adoption {
    fn drop(&mut self) {
        owned::release(self.0);
    }
}

/// The reasons that waits for a file have in views and statistics.
#[derive(Clone, Copy)]
pub(super) struct Reasons {
    pub read: WaitReason,
    pub write: WaitReason,
    pub sync: WaitReason,
}

impl File {
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

    /// Sets whether reads may fail because the work request was cancelled or the deadline has
    /// passed. The default is true. Set it to false for a component that cannot continue without
    /// its file, such as one that rolls back the work of a cancelled request.
    pub fn set_cancellable(&mut self, yes: bool) {
        self.cancellable = yes;
    }

    /// Sets an instant beyond which no read, and no write to a pipe, waits: it fails with
    /// `TimedOut`. `None`, the default, means no limit.
    pub fn set_deadline(&self, at: Option<Instant>) {
        let at = at.map(|at| clock::after(at.saturating_duration_since(Instant::now())));
        self.deadline.store(at.unwrap_or(NEVER), Ordering::Relaxed);
    }

    /// Sets the reasons that waits for this file have in views and statistics. By default they are
    /// `IO_COMPLETION` for reads and writes and `WRITELOG` for syncs.
    pub fn set_wait_reasons(&mut self, read: WaitReason, write: WaitReason, sync: WaitReason) {
        self.reasons = Reasons { read, write, sync };
    }

    /// Waits until contents and metadata are on the disk (`fsync(2)`).
    ///
    /// # Errors
    /// The system's error. After an error, data written since the last success may be lost, and a
    /// later sync that succeeds does not mean that it is on the disk.
    pub fn sync_all(&self) -> io::Result<()> {
        self.sync(false)
    }

    /// Waits until the contents, and the metadata needed to find them, are on the disk
    /// (`fdatasync(2)`).
    ///
    /// # Errors
    /// Like [`File::sync_all`].
    pub fn sync_data(&self) -> io::Result<()> {
        self.sync(true)
    }

    fn sync(&self, data_only: bool) -> io::Result<()> {
        loop {
            match wait_out(LiveOp::fsync(self.fd(), data_only), self.reasons.sync) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map(drop),
            }
        }
    }

    /// Sets the length in bytes: cuts the file off, or adds zeros that take no space on the disk.
    ///
    /// # Errors
    /// The system's error.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        let set_len = || disk::resize(self.fd(), || self.std.set_len(len));
        outside(WaitReason::ASYNC_IO_COMPLETION, set_len)
    }

    /// Reserves disk space for `len` bytes at `offset`, so that writing them cannot run out of
    /// space, and extends the file to their end (`fallocate(2)`).
    ///
    /// # Errors
    /// The system's error; `Unsupported` if the file system cannot.
    pub fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        outside(WaitReason::ASYNC_IO_COMPLETION, || {
            Ok(rustix::fs::fallocate(&self.std, FallocateFlags::empty(), offset, len)?)
        })
    }

    /// Returns the file's metadata.
    ///
    /// # Errors
    /// The system's error.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.std.metadata()
    }

    /// Sets the file's permissions.
    ///
    /// # Errors
    /// The system's error.
    pub fn set_permissions(&self, permissions: Permissions) -> io::Result<()> {
        outside(WaitReason::ASYNC_IO_COMPLETION, || self.std.set_permissions(permissions))
    }

    /// Returns a second descriptor of the same open file; both share the position. It starts with
    /// the deadline and the wait reasons of the first and then has its own.
    ///
    /// # Errors
    /// Fails if the process is out of descriptors.
    pub fn try_clone(&self) -> io::Result<File> {
        let deadline = AtomicU64::new(self.deadline.load(Ordering::Relaxed));
        let again = File::of(self.std.try_clone()?, self.manner);
        let (cancellable, reasons) = (self.cancellable, self.reasons);
        Ok(File { deadline, cancellable, reasons, ..again })
    }

    /// Closes the file and returns the system's error: some file systems report only now that data
    /// could not be written. Dropping a file also closes it, but ignores the error, and does not
    /// let other workers run meanwhile. The system needs long for a large file that has no name any
    /// more, because it frees the file's space.
    ///
    /// # Errors
    /// The system's error. The file is closed even then.
    pub fn close(self) -> io::Result<()> {
        let fd = OwnedFd::from(self.into_std());
        outside(WaitReason::ASYNC_IO_COMPLETION, move || plain::close(fd))
    }

    /// Converts the file to std's type. A pipe or device is put into blocking mode, as std's
    /// callers expect.
    pub fn into_std(self) -> std::fs::File {
        let File { adoption, std, manner, .. } = self;
        drop(adoption);
        if manner == Manner::Stream
            && let Ok(flags) = rustix::fs::fcntl_getfl(&std)
        {
            // If the flags cannot be set now, they could not be set before either.
            let _ = rustix::fs::fcntl_setfl(&std, flags.difference(OFlags::NONBLOCK));
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
