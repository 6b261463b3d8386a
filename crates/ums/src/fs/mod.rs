//! Files with the interface of `std::fs`, for workers and plain threads.
//!
//! While a worker waits for a disk, its scheduler runs other workers; a plain thread blocks. A file
//! may be used by both, and moved between them.
//!
//! ```
//! use ums::fs::File;
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("greeting");
//! let node = ums::Node::builder().schedulers(1).build()?;
//! node.run(move || {
//!     let file = File::create_new(&path)?;
//!     file.write_all_at(b"hello", 0)?;
//!     file.sync_data()?; // parks; others run
//!     file.close()?;
//!     assert_eq!(ums::fs::read(&path)?, b"hello");
//!     ums::fs::remove_file(&path)
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where each operation is done
//!
//! ```text
//!   read                 on the spot when all of it is in the page cache, else on the I/O list
//!   write                on the spot (a copy into the page cache), or on the I/O list when the
//!                        file was opened with O_DIRECT, O_SYNC or O_DSYNC
//!   sync_all, sync_data  on the I/O list
//!   open, set_len, allocate, close, paths     by a helper thread: they have no asynchronous form
//!   seek, metadata of an open file            on the spot: they touch no disk
//! ```
//!
//! Reads of cached pages do not go through the ring, because each would cost two switches and a
//! completion instead of a copy. The ring's operations for growing files and for directories are
//! not used, because the kernel hands them to threads of its own. Buffers of the caller are not
//! registered with the ring: that saves a tenth of the processor time of fio's reads, and no
//! elapsed time.
//!
//! # Where it differs from std
//!
//! * When the work request is cancelled, a read that waits, or is about to begin, fails with an
//!   error whose source is [`WaitError::Cancelled`](crate::WaitError::Cancelled), unless
//!   [`File::set_cancellable`] forbids it. Operations that change a file are not cancelled, so that
//!   the caller knows what happened. A read that the device has begun ends with its real result.
//! * A read may stop where the cached part ends, before the end of the file. `read_exact_at` and
//!   `read_full_at` continue.
//! * Pipes and devices that are opened as files are put into non-blocking mode; a worker waits for
//!   them like for a socket.
//! * [`File::close`] reports the error that the system returns from `close(2)`.
//!
//! Not offered: memory maps, watching for changes.

mod at;
mod direct;
mod file;
mod locks;
mod manner;
mod options;
mod paths;

pub use direct::DirectBuffer;
pub use file::File;
pub use options::OpenOptions;
pub use paths::{
    ReadDir, canonicalize, copy, create_dir, create_dir_all, exists, hard_link, metadata, read,
    read_dir, read_link, read_to_string, remove_dir, remove_dir_all, remove_file, rename,
    set_permissions, symlink, symlink_metadata, sync_dir, try_exists, write,
};
