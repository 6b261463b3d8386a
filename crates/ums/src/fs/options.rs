//! Opening a file: the options for it, and the constructors of [`File`].

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::file::File;
use super::manner::Manner;
use crate::io::outside;
use crate::os::sim::files as disk;
use crate::record::reason::WaitReason;

/// Options for opening a file: std's, and direct I/O.
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
    /// Creates options that allow nothing yet.
    #[allow(clippy::new_without_default)] // As in std.
    pub fn new() -> OpenOptions {
        OpenOptions { std: std::fs::OpenOptions::new(), flags: 0, direct: false }
    }

    /// Sets whether the file may be read.
    pub fn read(&mut self, yes: bool) -> &mut Self {
        self.std.read(yes);
        self
    }

    /// Sets whether the file may be written.
    pub fn write(&mut self, yes: bool) -> &mut Self {
        self.std.write(yes);
        self
    }

    /// Sets whether writes always go to the end of the file.
    pub fn append(&mut self, yes: bool) -> &mut Self {
        self.std.append(yes);
        self
    }

    /// Sets whether an existing file is emptied.
    pub fn truncate(&mut self, yes: bool) -> &mut Self {
        self.std.truncate(yes);
        self
    }

    /// Sets whether the file is created if there is none.
    pub fn create(&mut self, yes: bool) -> &mut Self {
        self.std.create(yes);
        self
    }

    /// Sets whether the file is created, and opening fails if there is one.
    pub fn create_new(&mut self, yes: bool) -> &mut Self {
        self.std.create_new(yes);
        self
    }

    /// Sets the permissions of a file that is created. The default is 0o666, less the process's
    /// mask.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.std.mode(mode);
        self
    }

    /// Sets further flags for `open(2)`.
    pub fn custom_flags(&mut self, flags: i32) -> &mut Self {
        self.flags = flags;
        self
    }

    /// Sets direct I/O (`O_DIRECT`): reads and writes go between the buffer and the disk, past the
    /// page cache. Buffers, offsets and lengths must be aligned: see
    /// [`DirectBuffer`](super::DirectBuffer).
    pub fn direct(&mut self, yes: bool) -> &mut Self {
        self.direct = yes;
        self
    }

    /// Opens the file, on a helper thread.
    ///
    /// # Errors
    /// The system's error; `InvalidInput` for direct I/O on a file system that has none.
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

    /// Replaces the system's error by one that names direct I/O, where that is the cause.
    fn explain(&self, error: io::Error) -> io::Error {
        if self.direct && error.raw_os_error() == Some(libc::EINVAL) {
            let text = "the file system has no direct I/O (O_DIRECT) for this file";
            return io::Error::new(io::ErrorKind::InvalidInput, text);
        }
        error
    }
}

impl File {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().read(true).open(path)
    }

    /// Opens a file for writing: empties it, or creates it if there is none.
    ///
    /// # Errors
    /// The system's error.
    pub fn create(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).open(path)
    }

    /// Creates a file, for reading and writing.
    ///
    /// # Errors
    /// The system's error; `AlreadyExists` if there is one.
    pub fn create_new(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create_new(true).open(path)
    }

    /// Returns options for opening a file.
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }
}
