//! The simulated disk of a world: data that was written and not synced may be lost when the power
//! fails.
//!
//! The files are real. For each file that is written to or truncated, the disk keeps the content at
//! the last sync: the *lasting* image. When the power returns, every sector of 512 bytes that
//! differs from the lasting image is reset to it. In half of the cases, however, each such sector
//! is chosen at random: it is reset, or keeps what was written. The length is treated in the same
//! way. So a write may be torn, and a later write may survive when an earlier one does not.
//!
//! A change of a name lasts when its folder is synced. Of the names that were created, changed and
//! removed since then, the first ones survive, as with a journal: none of them, or in half of the
//! cases a random number.
//!
//! A write that bypasses `ums::fs` is not noticed by itself; it counts as part of the next
//! operation on the file. New folders, links and copies last immediately.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::plan::Dice;
use crate::os::driver::Op;

const SECTOR: usize = 512;

pub(super) struct Known {
    pub(super) file: File,
    pub(super) lasting: Vec<u8>,
}

/// What was done to a name. A file that lost its name is kept open here.
pub(super) enum Name {
    Made(PathBuf),
    Removed(PathBuf, File),
    Changed { from: PathBuf, to: PathBuf, instead_of: Option<File> },
}

/// A change of a name that may not last.
pub(super) struct Recent {
    name: Name,
    /// The folders that must be synced before the change lasts.
    folders: Vec<PathBuf>,
}

impl Recent {
    pub(super) fn new(name: Name) -> Recent {
        let paths = match &name {
            Name::Made(path) | Name::Removed(path, _) => vec![path],
            Name::Changed { from, to, .. } => vec![from, to],
        };
        let folders =
            paths.into_iter().filter_map(|path| Some(path.parent()?.to_owned())).collect();
        Recent { name, folders }
    }

    /// Reverts the change, because it has not lasted.
    fn undo(self) -> io::Result<()> {
        match self.name {
            Name::Made(path) => std::fs::remove_file(path),
            Name::Removed(path, file) => std::fs::write(path, content(&file)?),
            Name::Changed { from, to, instead_of } => {
                std::fs::rename(&to, from)?;
                instead_of.map_or(Ok(()), |file| std::fs::write(to, content(&file)?))
            }
        }
    }
}

/// The disk of a world; see the top of this file.
#[derive(Default)]
pub struct Disk {
    /// The files with changes that were not synced, by device and inode number.
    pub(super) files: BTreeMap<(u64, u64), Known>,
    /// The changes of names that may not last, in the order in which they happened.
    pub(super) names: Vec<Recent>,
    /// Whether the power is off.
    pub off: bool,
}

pub(super) fn content(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], filled as u64)? {
            0 => break,
            n => filled += n,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Opens the file of this name, if there is one.
pub(super) fn file_at(path: &Path) -> Option<File> {
    std::fs::symlink_metadata(path).ok().filter(|about| about.is_file())?;
    File::options().read(true).write(true).open(path).ok()
}

/// Opens the file behind a descriptor once more. Returns `None` if it is no regular file.
fn behind(fd: RawFd) -> Option<(File, (u64, u64))> {
    let path = format!("/proc/self/fd/{fd}");
    let about = std::fs::metadata(&path).ok().filter(|about| about.is_file())?;
    let file = File::options().read(true).write(true).open(path).ok()?;
    Some((file, (about.dev(), about.ino())))
}

/// Returns true if the operation is on a regular file.
pub fn is_on_a_disk(op: &Op) -> bool {
    let moves =
        matches!(op, Op::Read { .. } | Op::Write { .. } | Op::Readv { .. } | Op::Writev { .. });
    (moves || matches!(op, Op::Fsync { .. })) && behind(op.fd()).is_some()
}

impl Disk {
    /// Prepares an operation. Returns an error if the power is off.
    pub fn before(&mut self, op: &Op) -> Result<(), i32> {
        if self.off && is_on_a_disk(op) {
            return Err(-libc::EIO);
        }
        if let Op::Write { fd, .. } | Op::Writev { fd, .. } = op {
            self.keep(*fd);
        }
        Ok(())
    }

    /// Keeps the present content of the file behind this descriptor, because the file is about to
    /// be changed.
    pub(super) fn keep(&mut self, fd: RawFd) {
        if let Some((file, number)) = behind(fd)
            && !self.files.contains_key(&number)
            && let Ok(lasting) = content(&file)
        {
            self.files.insert(number, Known { file, lasting });
        }
    }

    pub(super) fn synced(&mut self, folder: &Path) {
        self.names.retain_mut(|recent| {
            recent.folders.retain(|other| other != folder);
            !recent.folders.is_empty()
        });
    }

    /// Records the result of an operation.
    pub fn after(&mut self, op: &Op, result: i32) {
        let Op::Fsync { fd, .. } = op else { return };
        if result != 0 {
            return;
        }
        match behind(*fd) {
            // The whole file lasts now. The next write keeps its content again.
            Some((_, number)) => drop(self.files.remove(&number)),
            None => {
                let folder = std::fs::read_link(format!("/proc/self/fd/{fd}"));
                folder.iter().for_each(|folder| self.synced(folder));
            }
        }
    }

    /// Ends the loss of power. What did not last is lost, or only a part of it.
    pub fn power_on(&mut self, dice: &mut Dice) -> io::Result<()> {
        self.off = false;
        for Known { file, lasting } in std::mem::take(&mut self.files).into_values() {
            let written = content(&file)?;
            let survives = dice.below(2) == 0;
            let mut image = lasting.clone();
            if survives && written.len() < lasting.len() && dice.below(2) == 0 {
                image.truncate(written.len());
            }
            for from in (0..written.len()).step_by(SECTOR) {
                let to = (from + SECTOR).min(written.len());
                let same = lasting.get(from..to) == Some(&written[from..to]);
                if !same && survives && dice.below(2) == 0 {
                    image.resize(image.len().max(to), 0);
                    image[from..to].copy_from_slice(&written[from..to]);
                }
            }
            file.set_len(image.len() as u64)?;
            file.write_all_at(&image, 0)?;
        }
        let count = self.names.len() as u64;
        let survive = if dice.below(2) == 0 { 0 } else { dice.below(count + 1) };
        self.names.drain(survive as usize..).rev().try_for_each(Recent::undo)?;
        self.names.clear();
        Ok(())
    }
}
