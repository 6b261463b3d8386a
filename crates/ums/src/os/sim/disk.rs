//! The disk of a world: what was written and not synced may be lost.
//!
//! The files are real. Of each file that is written to by an operation, the disk keeps what it held at its last sync: its
//! *lasting* image. When the power comes back, every sector of 512 bytes that is another now is as it lasts, or, in half
//! of the cases, as it lasts or as it was written, each by a throw of the dice. So a write may be torn, and a later
//! one may survive an earlier one.
//!
//! What it does not do: names last as soon as they are made, and what is written past the operations (by `std`, by
//! truncating) is taken for part of the next one.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use super::Dice;
use crate::os::driver::Op;

const SECTOR: usize = 512;

struct Known {
    file: File,
    lasting: Vec<u8>,
}

/// See the module's text.
#[derive(Default)]
pub struct Disk {
    /// By device and number.
    files: BTreeMap<(u64, u64), Known>,
    /// There is no power.
    pub off: bool,
}

fn content(file: &File) -> io::Result<Vec<u8>> {
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

/// The file behind a descriptor, opened once more. None: it is no file of a disk.
fn behind(fd: RawFd) -> Option<(File, (u64, u64))> {
    let path = format!("/proc/self/fd/{fd}");
    let about = std::fs::metadata(&path).ok().filter(|about| about.is_file())?;
    let file = File::options().read(true).write(true).open(path).ok()?;
    Some((file, (about.dev(), about.ino())))
}

/// Whether the operation is on a disk.
pub fn is_on_a_disk(op: &Op) -> bool {
    let moves =
        matches!(op, Op::Read { .. } | Op::Write { .. } | Op::Readv { .. } | Op::Writev { .. });
    (moves || matches!(op, Op::Fsync { .. })) && behind(op.fd()).is_some()
}

impl Disk {
    /// The operation is about to be carried out. Err: there is no power.
    pub fn before(&mut self, op: &Op) -> Result<(), i32> {
        if self.off && is_on_a_disk(op) {
            return Err(-libc::EIO);
        }
        if let Op::Write { fd, .. } | Op::Writev { fd, .. } = op
            && let Some((file, number)) = behind(*fd)
            && !self.files.contains_key(&number)
            && let Ok(lasting) = content(&file)
        {
            self.files.insert(number, Known { file, lasting });
        }
        Ok(())
    }

    /// The operation has been carried out, with this result.
    pub fn after(&mut self, op: &Op, result: i32) {
        if let Op::Fsync { fd, .. } = op
            && result == 0
            && let Some((_, number)) = behind(*fd)
        {
            // All of it lasts; the next write looks again.
            self.files.remove(&number);
        }
    }

    /// The power is back: what did not last is gone, or a part of it.
    pub fn power_on(&mut self, dice: &mut Dice) -> io::Result<()> {
        self.off = false;
        for Known { file, lasting } in std::mem::take(&mut self.files).into_values() {
            let written = content(&file)?;
            let survives = dice.below(2) == 0;
            let mut image = lasting.clone();
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
        Ok(())
    }
}
