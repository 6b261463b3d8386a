//! Opening files: the constructors of [`File`], and [`OpenOptions::open`].

use std::io;
use std::path::Path;

use super::file::File;
use super::options::OpenOptions;

impl OpenOptions {
    /// Opens the file.
    ///
    /// # Errors
    /// The system's error; `InvalidInput` for direct I/O on a file system that has none.
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let (file, manner) = self.open_std(path.as_ref())?;
        Ok(File::of(file, manner))
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
