//! Functions on paths: std's functions, each run by a helper thread while the caller waits.

use std::fs::{self, DirEntry, Metadata, Permissions};
use std::io;
use std::path::{Path, PathBuf};

use crate::io::outside;
use crate::os::sim::files as disk;
use crate::record::reason::WaitReason;

const REASON: WaitReason = WaitReason::ASYNC_IO_COMPLETION;

/// Defines the functions that take one path.
macro_rules! with_a_path {
    ($($(#[$doc:meta])* $name:ident -> $result:ty;)*) => { $(
        $(#[$doc])*
        ///
        /// # Errors
        #[doc = concat!("As [`std::fs::", stringify!($name), "`].")]
        pub fn $name(path: impl AsRef<Path>) -> io::Result<$result> {
            let path = path.as_ref();
            outside(REASON, || fs::$name(path))
        }
    )* };
}

/// Defines the functions that take two paths.
macro_rules! with_two_paths {
    ($($(#[$doc:meta])* $name:ident -> $result:ty;)*) => { $(
        $(#[$doc])*
        ///
        /// # Errors
        #[doc = concat!("As [`std::fs::", stringify!($name), "`].")]
        pub fn $name(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<$result> {
            let (from, to) = (from.as_ref(), to.as_ref());
            outside(REASON, || fs::$name(from, to))
        }
    )* };
}

with_a_path! {
    /// Reads the whole contents of a file.
    read -> Vec<u8>;
    /// Reads the whole contents of a file, which must be UTF-8.
    read_to_string -> String;
    /// Creates a folder.
    create_dir -> ();
    /// Creates a folder, and the missing folders above it.
    create_dir_all -> ();
    /// Removes an empty folder.
    remove_dir -> ();
    /// Removes a folder and everything in it.
    remove_dir_all -> ();
    /// Returns the metadata of the file that the path leads to, following links.
    metadata -> Metadata;
    /// Returns the metadata of the file or link of this name, without following a link.
    symlink_metadata -> Metadata;
    /// Returns the absolute path without links.
    canonicalize -> PathBuf;
    /// Returns the target of a link.
    read_link -> PathBuf;
}

with_two_paths! {
    /// Copies a file and its permissions; returns the number of bytes.
    copy -> u64;
    /// Creates a second name (a hard link) for a file.
    hard_link -> ();
}

/// Removes a file's name; the file is deleted with its last name and descriptor.
///
/// # Errors
/// Like [`std::fs::remove_file`].
pub fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    outside(REASON, || disk::remove(path, || fs::remove_file(path)))
}

/// Renames a file; replaces a file that has the new name.
///
/// # Errors
/// Like [`std::fs::rename`].
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    let (from, to) = (from.as_ref(), to.as_ref());
    outside(REASON, || disk::rename(from, to, || fs::rename(from, to)))
}

/// Creates a symbolic link at `link` that points to `original`.
///
/// # Errors
/// Like [`std::os::unix::fs::symlink`].
pub fn symlink(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    let (original, link) = (original.as_ref(), link.as_ref());
    outside(REASON, || std::os::unix::fs::symlink(original, link))
}

/// Creates a file with these contents, or replaces the contents of an existing one.
///
/// # Errors
/// Like [`std::fs::write`].
pub fn write(path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> io::Result<()> {
    let (path, contents) = (path.as_ref(), contents.as_ref());
    outside(REASON, || disk::overwrite(path, || fs::write(path, contents)))
}

/// Sets the permissions of a file.
///
/// # Errors
/// Like [`std::fs::set_permissions`].
pub fn set_permissions(path: impl AsRef<Path>, permissions: Permissions) -> io::Result<()> {
    let path = path.as_ref();
    outside(REASON, || fs::set_permissions(path, permissions))
}

/// Returns whether the path exists; also false if the system cannot tell.
pub fn exists(path: impl AsRef<Path>) -> bool {
    try_exists(path).unwrap_or(false)
}

/// Returns whether the path exists.
///
/// # Errors
/// Like [`std::fs::exists`].
pub fn try_exists(path: impl AsRef<Path>) -> io::Result<bool> {
    let path = path.as_ref();
    outside(REASON, || fs::exists(path))
}

/// Waits until the names in a folder are on the disk. Before this, the creation, renaming or
/// removal of a file may be lost in a crash.
///
/// # Errors
/// The system's error.
pub fn sync_dir(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    let sync = || fs::File::open(path)?.sync_all();
    outside(WaitReason::WRITELOG, || disk::sync_folder(path, sync))
}

/// Returns the entries of a folder; the whole folder is read by this call.
///
/// # Errors
/// Like [`std::fs::read_dir`].
pub fn read_dir(path: impl AsRef<Path>) -> io::Result<ReadDir> {
    let path = path.as_ref();
    let all = outside(REASON, || Ok(fs::read_dir(path)?.collect::<Vec<_>>()))?;
    Ok(ReadDir(all.into_iter()))
}

/// The entries of a folder; see [`read_dir`].
#[derive(Debug)]
pub struct ReadDir(std::vec::IntoIter<io::Result<DirEntry>>);

impl Iterator for ReadDir {
    type Item = io::Result<DirEntry>;

    fn next(&mut self) -> Option<io::Result<DirEntry>> {
        self.0.next()
    }
}
