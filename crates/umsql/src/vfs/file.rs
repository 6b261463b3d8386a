//! An open file: pages, locks and the log's shared memory. SQLite calls it through `entry`.
//!
//! All connections to a database share one open file, because every read and write states its
//! position. An [`OpenFile`] has the state of one connection.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io;
use std::sync::Arc;

use rusqlite::ffi;

use super::callback::failed;
use super::database::{Database, Seat};
use super::disk::Opened;
use super::locks::{Level, SLOTS};
use super::log::Trouble;
use crate::error::LONG_TRANSACTION;
use crate::memory;

/// The size of the header before each page in the log; below, that of the log's own header.
const FRAME_HEADER: usize = 24;
const LOG_HEADER: u64 = 32;
/// A temporary file that is larger is truncated before it is closed.
const TRUNCATE_FIRST: u64 = 1 << 20;

/// What a file is used for.
pub(super) enum FileRole {
    /// A database.
    Main(Seat),
    /// A write-ahead log.
    Log(Seat),
    /// A journal.
    Other,
    /// A temporary file without a name: what a sort, a temporary table or a result in pieces does
    /// not keep in memory. With the number of the account in which it is counted, and its size.
    Temporary(u32, Cell<u64>),
}

/// One connection's opening of a file.
pub(super) struct OpenFile {
    kind: FileRole,
    opened: Arc<Opened>,
    /// Whether this connection has mapped the log's shared memory.
    maps: Cell<bool>,
    /// Settings of the file that SQLite reads and changes by file controls.
    pub(super) keeps_log: Cell<bool>,
    pub(super) power_safe: Cell<bool>,
    /// The header of a frame in the log, with its position, that has not been written yet. SQLite
    /// writes the frame's page next, and then one call writes both. Any other operation on the file
    /// writes the header first.
    header: Cell<Option<(u64, [u8; FRAME_HEADER])>>,
}

impl OpenFile {
    pub(super) fn new(kind: FileRole, opened: Arc<Opened>) -> OpenFile {
        let (maps, keeps_log, power_safe) = (Cell::new(false), Cell::new(false), Cell::new(true));
        let header = Cell::new(None);
        OpenFile { kind, opened, maps, keeps_log, power_safe, header }
    }

    pub(super) fn read_only(&self) -> bool {
        self.opened.read_only
    }

    /// Returns the database that this file belongs to.
    fn database(&self) -> Option<&Database> {
        match &self.kind {
            FileRole::Main(seat) | FileRole::Log(seat) => Some(&seat.database),
            FileRole::Other | FileRole::Temporary(..) => None,
        }
    }

    /// Returns whether this connection has lost the lock that kept its snapshot.
    fn has_lost_its_snapshot(&self) -> bool {
        match &self.kind {
            FileRole::Main(seat) | FileRole::Log(seat) => {
                seat.database.locks.is_revoked(seat.member)
            }
            FileRole::Other | FileRole::Temporary(..) => false,
        }
    }

    pub(super) fn seat(&self) -> Option<&Seat> {
        match &self.kind {
            FileRole::Main(seat) => Some(seat),
            _ => None,
        }
    }

    /// Returns whether the database accepts no more writes.
    fn is_in_trouble(&self) -> bool {
        self.database().is_some_and(|database| database.log.trouble().is_some())
    }

    pub(super) fn read(&self, buf: &mut [u8], at: u64) -> c_int {
        if let Err(error) = self.write_header() {
            return failed(&error, ffi::SQLITE_IOERR_READ);
        }
        let read = self.opened.read_at(buf, at);
        // If the lock was not lost until here, nothing has overwritten what was read.
        if self.has_lost_its_snapshot() {
            return ffi::SQLITE_ERROR_SNAPSHOT;
        }
        match read {
            Ok(read) if read == buf.len() => ffi::SQLITE_OK,
            Ok(read) => {
                // SQLite relies on zeros in the rest of the buffer.
                buf[read..].fill(0);
                ffi::SQLITE_IOERR_SHORT_READ
            }
            Err(error) => failed(&error, ffi::SQLITE_IOERR_READ),
        }
    }

    pub(super) fn write(&self, buf: &[u8], at: u64) -> c_int {
        if self.is_in_trouble() {
            return ffi::SQLITE_IOERR_WRITE;
        }
        if let FileRole::Log(seat) = &self.kind
            && !seat.database.log.has_room(buf.len())
        {
            return LONG_TRANSACTION;
        }
        match self.write_with_header(buf, at) {
            Ok(()) => ffi::SQLITE_OK,
            Err(error) => failed(&error, ffi::SQLITE_IOERR_WRITE),
        }
    }

    fn write_with_header(&self, buf: &[u8], at: u64) -> io::Result<()> {
        let is_log = matches!(self.kind, FileRole::Log(_));
        match self.header.take() {
            Some((start, header)) if at == start + FRAME_HEADER as u64 => {
                return self.write_at(&[&header, buf].concat(), start);
            }
            Some((start, header)) => self.write_at(&header, start)?,
            None => {}
        }
        match <[u8; FRAME_HEADER]>::try_from(buf) {
            Ok(header) if is_log && at >= LOG_HEADER => self.header.set(Some((at, header))),
            _ => self.write_at(buf, at)?,
        }
        Ok(())
    }

    /// Writes the pending header, whose page has not come.
    fn write_header(&self) -> io::Result<()> {
        match self.header.take() {
            Some((start, header)) if !self.is_in_trouble() => self.write_at(&header, start),
            _ => Ok(()),
        }
    }

    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<()> {
        if let FileRole::Temporary(account, size) = &self.kind {
            let more = (at + buf.len() as u64).saturating_sub(size.get());
            if !memory::grow_temporary(*account, more) {
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
            size.set(size.get() + more);
        }
        self.opened.write_at(buf, at)?;
        if let FileRole::Log(seat) = &self.kind {
            seat.database.log.wrote(at, buf.len());
        }
        Ok(())
    }

    pub(super) fn truncate(&self, size: u64) -> c_int {
        if self.is_in_trouble() {
            return ffi::SQLITE_IOERR_TRUNCATE;
        }
        if let Err(error) = self.write_header().and_then(|()| self.opened.truncate(size)) {
            return failed(&error, ffi::SQLITE_IOERR_TRUNCATE);
        }
        match &self.kind {
            FileRole::Log(seat) => seat.database.log.truncated(size),
            FileRole::Temporary(account, before) if size < before.get() => {
                memory::shrink_temporary(*account, before.replace(size) - size);
            }
            _ => {}
        }
        ffi::SQLITE_OK
    }

    /// Syncs the file. After a sync of a database or its log has failed, every later sync fails too
    /// (see `log`).
    pub(super) fn sync(&self) -> c_int {
        let synced = match &self.kind {
            FileRole::Log(seat) => match self.write_header() {
                Ok(()) => seat.database.log.sync(|| self.opened.sync()).map_err(|_| None),
                Err(error) => Err(Some(error)),
            },
            FileRole::Main(seat) if self.is_in_trouble() => {
                debug_assert!(seat.database.log.trouble().is_some());
                Err(None)
            }
            FileRole::Main(seat) => self.opened.sync().map_err(|error| {
                seat.database.log.fail(Trouble::SyncFailed(error.to_string()));
                Some(error)
            }),
            // Nothing reads a temporary file after a crash.
            FileRole::Temporary(..) => Ok(()),
            FileRole::Other => self.opened.sync().map_err(Some),
        };
        match synced {
            Ok(()) => ffi::SQLITE_OK,
            Err(Some(error)) => failed(&error, ffi::SQLITE_IOERR_FSYNC),
            Err(None) => ffi::SQLITE_IOERR_FSYNC,
        }
    }

    pub(super) fn lock(&self, level: Level) -> c_int {
        let granted = self.seat().is_none_or(|s| s.database.locks.lock_file(s.member, level));
        if granted { ffi::SQLITE_OK } else { ffi::SQLITE_BUSY }
    }

    pub(super) fn unlock(&self, level: Level) -> c_int {
        if let Some(seat) = self.seat() {
            seat.database.locks.unlock_file(seat.member, level);
        }
        ffi::SQLITE_OK
    }

    pub(super) fn lock_slots(&self, first: u32, count: u32, flags: c_int) -> c_int {
        debug_assert!((first + count) as usize <= SLOTS);
        let mask = (((1_u32 << count) - 1) << first) as u8;
        let Some(Seat { database, member }) = self.seat() else { return ffi::SQLITE_IOERR_SHMLOCK };
        if flags & ffi::SQLITE_SHM_UNLOCK != 0 {
            database.locks.unlock_slots(*member, mask);
            return ffi::SQLITE_OK;
        }
        let exclusive = flags & ffi::SQLITE_SHM_EXCLUSIVE != 0;
        let granted = database.locks.lock_slots(*member, mask, exclusive);
        if granted { ffi::SQLITE_OK } else { ffi::SQLITE_BUSY }
    }

    pub(super) fn map(&self, number: usize, size: usize, extend: bool) -> Option<*mut c_void> {
        let shm = &self.seat()?.database.shm;
        if !self.maps.replace(true) {
            shm.join();
        }
        Some(shm.region(number, size, extend))
    }

    pub(super) fn unmap(&self) {
        if let Some(seat) = self.seat()
            && self.maps.replace(false)
        {
            seat.database.shm.leave();
        }
    }

    pub(super) fn size(&self) -> io::Result<u64> {
        self.write_header().and_then(|()| self.opened.size())
    }

    pub(super) fn is_reserved(&self) -> bool {
        self.seat().is_some_and(|seat| seat.database.locks.is_reserved())
    }

    /// Returns the level of this connection's lock.
    pub(super) fn level(&self) -> Level {
        self.seat().map_or(Level::None, |s| s.database.locks.level(s.member))
    }

    /// Reports power-safe overwrite: if a power loss interrupts a write, no bytes outside that
    /// write are damaged. Today's disks guarantee that, and SQLite's own file system assumes it,
    /// too. Nothing else is reported: a page of 4 KiB may be torn, and writes may reach the disk in
    /// any order.
    pub(super) fn characteristics(&self) -> c_int {
        if self.power_safe.get() { ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE } else { 0 }
    }

    /// Returns whether the file has been deleted.
    pub(super) fn has_moved(&self) -> bool {
        self.opened.file.links().is_ok_and(|links| links == 0)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        // A failure is harmless, because a frame without its page is not valid.
        let _ = self.write_header();
        self.unmap();
        match &self.kind {
            FileRole::Main(seat) => seat.database.locks.leave(seat.member),
            FileRole::Temporary(account, size) => {
                // To close the file frees what it has on the disk, and that can take hundreds of
                // milliseconds. `truncate` lets other workers run meanwhile. If it fails, closing
                // the file frees the rest.
                if size.get() > TRUNCATE_FIRST {
                    let _ = self.opened.truncate(0);
                }
                memory::shrink_temporary(*account, size.get());
            }
            _ => {}
        }
    }
}

/// Returns the level with this number of SQLite's.
pub(super) fn level(number: c_int) -> Level {
    match number {
        ffi::SQLITE_LOCK_NONE => Level::None,
        ffi::SQLITE_LOCK_SHARED => Level::Shared,
        ffi::SQLITE_LOCK_RESERVED => Level::Reserved,
        ffi::SQLITE_LOCK_PENDING => Level::Pending,
        _ => Level::Exclusive,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::database::Databases;
    use super::super::disk::{Disk, How};
    use super::super::lossy::LossyDisk;
    use super::*;
    use crate::budget::Budget;
    use crate::memory::{Limits, Taken};

    #[test]
    fn a_file_that_is_closed_keeps_no_lock_from_the_others() {
        let disk: Arc<dyn Disk> = Arc::new(LossyDisk::default());
        let databases = Databases::default();
        let open = || {
            let how = How { create: true, ..How::default() };
            let seat = databases.open(&disk, Path::new("/db"), how).unwrap();
            let main = Arc::clone(&seat.database.main);
            OpenFile::new(FileRole::Main(seat), main)
        };
        let (one, other) = (open(), open());
        let exclusive = ffi::SQLITE_SHM_LOCK | ffi::SQLITE_SHM_EXCLUSIVE;
        let lock = |file: &OpenFile| [file.lock(Level::Reserved), file.lock_slots(0, 1, exclusive)];
        assert_eq!(lock(&one), [ffi::SQLITE_OK; 2]);
        assert_eq!(lock(&other), [ffi::SQLITE_BUSY; 2]);
        drop(one);
        assert_eq!(lock(&other), [ffi::SQLITE_OK; 2]);
    }

    #[test]
    fn power_safe_overwrite_is_reported_until_the_program_turns_it_off() {
        let disk: Arc<dyn Disk> = Arc::new(LossyDisk::default());
        let how = How { create: true, ..How::default() };
        let opened = Opened::open(&disk, Path::new("/journal"), how).unwrap();
        let file = OpenFile::new(FileRole::Other, Arc::new(opened));
        assert_eq!(file.characteristics(), ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE);
        file.power_safe.set(false);
        assert_eq!(file.characteristics(), 0);
    }

    #[test]
    fn what_was_cut_off_a_temporary_file_may_be_taken_by_the_clients_next() {
        let limits = Limits { temporary: 1000, ..Limits::of_memory(1 << 30) };
        let budget = Budget::new(limits.server).unwrap();
        let taken = Taken::new(true, &limits, &budget).unwrap();
        taken.begin(1);
        let account = memory::present();
        taken.end();
        let disk: Arc<dyn Disk> = Arc::new(LossyDisk::default());
        let file = |name: &str| {
            let how = How { create: true, ..How::default() };
            let opened = Arc::new(Opened::open(&disk, Path::new(name), how).unwrap());
            OpenFile::new(FileRole::Temporary(account, Cell::new(0)), opened)
        };
        let (first, second) = (file("/a"), file("/b"));
        assert_eq!(first.write(&[1; 1000], 0), ffi::SQLITE_OK);
        assert_ne!(second.write(&[1; 600], 0), ffi::SQLITE_OK, "beyond the limit");
        assert_eq!(first.truncate(400), ffi::SQLITE_OK);
        assert_eq!(second.write(&[1; 600], 0), ffi::SQLITE_OK);
        assert_eq!(first.truncate(400), ffi::SQLITE_OK);
        assert_ne!(second.write(&[1; 1], 600), ffi::SQLITE_OK, "nothing more was cut off");
    }
}
