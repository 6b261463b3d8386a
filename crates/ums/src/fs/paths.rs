//! What is done with paths: std's functions, each on a file helper.

use std::fs::{self, DirEntry, Metadata, Permissions};
use std::io;
use std::path::{Path, PathBuf};

use super::disk;
use crate::io::outside;
use crate::record::reason::WaitReason;

const REASON: WaitReason = WaitReason::ASYNC_IO_COMPLETION;

/// The functions of std that take one path.
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

/// The functions of std that take two paths.
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
    /// The whole contents of a file.
    read -> Vec<u8>;
    /// The whole contents of a file, which must be UTF-8.
    read_to_string -> String;
    /// Makes a folder.
    create_dir -> ();
    /// Makes a folder, and those above it that are missing.
    create_dir_all -> ();
    /// Removes an empty folder.
    remove_dir -> ();
    /// Removes a folder and everything in it.
    remove_dir_all -> ();
    /// What the system knows of the file that the path leads to.
    metadata -> Metadata;
    /// What the system knows of the file or link of this name.
    symlink_metadata -> Metadata;
    /// The absolute path without links.
    canonicalize -> PathBuf;
    /// Where a link points to.
    read_link -> PathBuf;
}

with_two_paths! {
    /// Copies a file and its permissions; gives the number of bytes.
    copy -> u64;
    /// Gives a file a second name.
    hard_link -> ();
}

/// Removes a file's name; the file goes with its last name and descriptor.
///
/// # Errors
/// As [`std::fs::remove_file`].
pub fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    outside(REASON, || disk::remove(path, || fs::remove_file(path)))
}

/// Gives a file another name, in the place of whatever had it.
///
/// # Errors
/// As [`std::fs::rename`].
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    let (from, to) = (from.as_ref(), to.as_ref());
    outside(REASON, || disk::rename(from, to, || fs::rename(from, to)))
}

/// Makes a link at `link` that leads to `original`.
///
/// # Errors
/// As [`std::os::unix::fs::symlink`].
pub fn symlink(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    let (original, link) = (original.as_ref(), link.as_ref());
    outside(REASON, || std::os::unix::fs::symlink(original, link))
}

/// Makes a file with these contents, or replaces the contents of one.
///
/// # Errors
/// As [`std::fs::write`].
pub fn write(path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> io::Result<()> {
    let (path, contents) = (path.as_ref(), contents.as_ref());
    outside(REASON, || disk::overwrite(path, || fs::write(path, contents)))
}

/// Sets who may do what with a file.
///
/// # Errors
/// As [`std::fs::set_permissions`].
pub fn set_permissions(path: impl AsRef<Path>, permissions: Permissions) -> io::Result<()> {
    let path = path.as_ref();
    outside(REASON, || fs::set_permissions(path, permissions))
}

/// Whether the path leads to something; false also when that cannot be told.
pub fn exists(path: impl AsRef<Path>) -> bool {
    try_exists(path).unwrap_or(false)
}

/// Whether the path leads to something.
///
/// # Errors
/// As [`std::fs::exists`].
pub fn try_exists(path: impl AsRef<Path>) -> io::Result<bool> {
    let path = path.as_ref();
    outside(REASON, || fs::exists(path))
}

/// Waits until the names in a folder are on the disk. A file that was made, renamed or removed is
/// not sure to be so after a crash before this.
///
/// # Errors
/// The system's.
pub fn sync_dir(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    let sync = || fs::File::open(path)?.sync_all();
    outside(WaitReason::WRITELOG, || disk::sync_folder(path, sync))
}

/// The entries of a folder, which is read as a whole at once.
///
/// # Errors
/// As [`std::fs::read_dir`].
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
