//! How a file is opened.

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::disk;
use super::file::{File, Manner};
use crate::io::outside;
use crate::record::reason::WaitReason;

/// How a file is opened: std's options, and direct I/O.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data");
/// let mut options = ums::fs::OpenOptions::new();
/// let file = options.read(true).write(true).create(true).mode(0o600).open(&path)?;
/// assert_eq!(file.metadata()?.len(), 0);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    std: std::fs::OpenOptions,
    flags: i32,
    direct: bool,
}

impl OpenOptions {
    /// Nothing is allowed yet.
    #[allow(clippy::new_without_default)] // As in std.
    pub fn new() -> OpenOptions {
        OpenOptions { std: std::fs::OpenOptions::new(), flags: 0, direct: false }
    }

    /// Reading.
    pub fn read(&mut self, yes: bool) -> &mut Self {
        self.std.read(yes);
        self
    }

    /// Writing.
    pub fn write(&mut self, yes: bool) -> &mut Self {
        self.std.write(yes);
        self
    }

    /// Writing, always at the end.
    pub fn append(&mut self, yes: bool) -> &mut Self {
        self.std.append(yes);
        self
    }

    /// Emptying the file.
    pub fn truncate(&mut self, yes: bool) -> &mut Self {
        self.std.truncate(yes);
        self
    }

    /// Making the file where there is none.
    pub fn create(&mut self, yes: bool) -> &mut Self {
        self.std.create(yes);
        self
    }

    /// Making the file, and failing where there is one.
    pub fn create_new(&mut self, yes: bool) -> &mut Self {
        self.std.create_new(yes);
        self
    }

    /// Permissions of a file that is made. Default 0o666, less the process's mask.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.std.mode(mode);
        self
    }

    /// More flags for `open(2)`.
    pub fn custom_flags(&mut self, flags: i32) -> &mut Self {
        self.flags = flags;
        self
    }

    /// Direct I/O (`O_DIRECT`): reads and writes go between the buffer and the disk, past the page
    /// cache. Buffers, offsets and lengths must be aligned: see
    /// [`DirectBuffer`](super::DirectBuffer).
    pub fn direct(&mut self, yes: bool) -> &mut Self {
        self.direct = yes;
        self
    }

    /// Opens the file.
    ///
    /// # Errors
    /// The system's; `InvalidInput` for direct I/O on a file system that has none.
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let path = path.as_ref();
        let mut std = self.std.clone();
        std.custom_flags(self.flags | if self.direct { libc::O_DIRECT } else { 0 });
        let opened = outside(WaitReason::ASYNC_IO_COMPLETION, || {
            let file = disk::open(path, || std.open(path))?;
            let manner = Manner::of(&file)?;
            Ok((file, manner))
        });
        let (file, manner) = opened.map_err(|error| self.explain(error))?;
        Ok(File::of(file, manner))
    }

    fn explain(&self, error: io::Error) -> io::Error {
        if self.direct && error.raw_os_error() == Some(libc::EINVAL) {
            let text = "the file system has no direct I/O (O_DIRECT) for this file";
            return io::Error::new(io::ErrorKind::InvalidInput, text);
        }
        error
    }
}
