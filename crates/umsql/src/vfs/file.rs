//! The callbacks of an open file: pages, locks and the log's shared memory.
//!
//! Each callback is an entry of the `sqlite3_io_methods` table. Their invariants are in `vfs`, and
//! one more is here. **Private Opcode**: only [`seat`] sends our own file control, with a pointer
//! to its own local.
//!
//! All connections to a database share one open file, because every read and write states its
//! position; an [`OpenFile`] has the state of one connection.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use rusqlite::{Connection, ffi};

use super::callback::{failed, guarded};
use super::database::{Database, Seat};
use super::disk::Opened;
use super::locks::{Level, SLOTS};
use super::log::Trouble;

/// Our own file control: "ums" and a one.
const OPCODE_SEAT: c_int = 0x756d_7301;
/// The sector size reported to SQLite. SQLite pads journals to it if a torn write could damage
/// neighbouring bytes.
const SECTOR: c_int = 4096;

/// The size of the header before each page in the log; below, that of the log's own header.
const FRAME_HEADER: usize = 24;
const LOG_HEADER: u64 = 32;

/// The contents of SQLite's block for an open file.
#[repr(C)]
pub(super) struct Slot {
    base: ffi::sqlite3_file,
    file: *mut OpenFile,
}

/// What a file is used for.
pub(super) enum Kind {
    /// A database.
    Main(Seat),
    /// A write-ahead log.
    Log(Arc<Database>),
    /// A journal, or a temporary file.
    Other,
}

/// One connection's opening of a file.
pub(super) struct OpenFile {
    kind: Kind,
    opened: Arc<Opened>,
    /// This connection has mapped the log's shared memory.
    maps: Cell<bool>,
    /// Settings of the file that SQLite reads and writes by file controls.
    keeps_log: Cell<bool>,
    power_safe: Cell<bool>,
    /// A header of a frame in the log, with its position, that has not been written yet: SQLite
    /// writes the page next, and one call then writes both. Any other operation on the file writes
    /// it first.
    header: Cell<Option<(u64, [u8; FRAME_HEADER])>>,
}

impl OpenFile {
    pub(super) fn new(kind: Kind, opened: Arc<Opened>) -> OpenFile {
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
            Kind::Main(seat) => Some(&seat.database),
            Kind::Log(database) => Some(database),
            Kind::Other => None,
        }
    }

    fn seat(&self) -> Option<&Seat> {
        match &self.kind {
            Kind::Main(seat) => Some(seat),
            _ => None,
        }
    }

    /// Returns whether the database takes no more writes.
    fn is_in_trouble(&self) -> bool {
        self.database().is_some_and(|database| database.log.trouble().is_some())
    }

    fn read(&self, buf: &mut [u8], at: u64) -> c_int {
        if let Err(error) = self.write_header() {
            return failed(&error, ffi::SQLITE_IOERR_READ);
        }
        match self.opened.read_at(buf, at) {
            Ok(read) if read == buf.len() => ffi::SQLITE_OK,
            Ok(read) => {
                // SQLite relies on the rest being zero.
                buf[read..].fill(0);
                ffi::SQLITE_IOERR_SHORT_READ
            }
            Err(error) => failed(&error, ffi::SQLITE_IOERR_READ),
        }
    }

    fn write(&self, buf: &[u8], at: u64) -> c_int {
        if self.is_in_trouble() {
            return ffi::SQLITE_IOERR_WRITE;
        }
        match self.write_with_header(buf, at) {
            Ok(()) => ffi::SQLITE_OK,
            Err(error) => failed(&error, ffi::SQLITE_IOERR_WRITE),
        }
    }

    fn write_with_header(&self, buf: &[u8], at: u64) -> io::Result<()> {
        let is_log = matches!(self.kind, Kind::Log(_));
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

    /// Writes the pending header without its page.
    fn write_header(&self) -> io::Result<()> {
        match self.header.take() {
            Some((start, header)) if !self.is_in_trouble() => self.write_at(&header, start),
            _ => Ok(()),
        }
    }

    fn write_at(&self, buf: &[u8], at: u64) -> io::Result<()> {
        self.opened.write_at(buf, at)?;
        if let Kind::Log(database) = &self.kind {
            database.log.wrote(at, buf.len());
        }
        Ok(())
    }

    fn truncate(&self, size: u64) -> c_int {
        if self.is_in_trouble() {
            return ffi::SQLITE_IOERR_TRUNCATE;
        }
        if let Err(error) = self.write_header().and_then(|()| self.opened.truncate(size)) {
            return failed(&error, ffi::SQLITE_IOERR_TRUNCATE);
        }
        if let Kind::Log(database) = &self.kind {
            database.log.truncated(size);
        }
        ffi::SQLITE_OK
    }

    /// Syncs the file. After a failed sync of a database or its log, every later one fails too (see
    /// `log`).
    fn sync(&self) -> c_int {
        let synced = match &self.kind {
            Kind::Log(database) => match self.write_header() {
                Ok(()) => database.log.sync(|| self.opened.sync()).map_err(|_| None),
                Err(error) => Err(Some(error)),
            },
            Kind::Main(seat) if self.is_in_trouble() => {
                debug_assert!(seat.database.log.trouble().is_some());
                Err(None)
            }
            Kind::Main(seat) => self.opened.sync().map_err(|error| {
                seat.database.log.fail(Trouble::SyncFailed(error.to_string()));
                Some(error)
            }),
            Kind::Other => self.opened.sync().map_err(Some),
        };
        match synced {
            Ok(()) => ffi::SQLITE_OK,
            Err(Some(error)) => failed(&error, ffi::SQLITE_IOERR_FSYNC),
            Err(None) => ffi::SQLITE_IOERR_FSYNC,
        }
    }

    fn lock(&self, level: Level) -> c_int {
        let granted = self.seat().is_none_or(|s| s.database.locks.lock_file(s.member, level));
        if granted { ffi::SQLITE_OK } else { ffi::SQLITE_BUSY }
    }

    fn unlock(&self, level: Level) -> c_int {
        if let Some(seat) = self.seat() {
            seat.database.locks.unlock_file(seat.member, level);
        }
        ffi::SQLITE_OK
    }

    fn lock_slots(&self, mask: u8, flags: c_int) -> c_int {
        let Some(Seat { database, member }) = self.seat() else { return ffi::SQLITE_IOERR_SHMLOCK };
        if flags & ffi::SQLITE_SHM_UNLOCK != 0 {
            database.locks.unlock_slots(*member, mask);
            return ffi::SQLITE_OK;
        }
        let exclusive = flags & ffi::SQLITE_SHM_EXCLUSIVE != 0;
        let granted = database.locks.lock_slots(*member, mask, exclusive);
        if granted { ffi::SQLITE_OK } else { ffi::SQLITE_BUSY }
    }

    fn map(&self, number: usize, size: usize, extend: bool) -> Option<*mut c_void> {
        let shm = &self.seat()?.database.shm;
        if !self.maps.replace(true) {
            shm.join();
        }
        Some(shm.region(number, size, extend))
    }

    fn unmap(&self) {
        if let Some(seat) = self.seat()
            && self.maps.replace(false)
        {
            seat.database.shm.leave();
        }
    }

    /// Returns whether the file has been deleted.
    fn has_moved(&self) -> bool {
        self.opened.file.links().is_ok_and(|links| links == 0)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        // A failure does no harm: a frame without its page is not valid.
        let _ = self.write_header();
        self.unmap();
        if let Some(seat) = self.seat() {
            seat.database.locks.leave(seat.member);
        }
    }
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(is_reserved),
    xFileControl: Some(control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

/// Puts an open file into SQLite's block.
///
/// # Safety
/// File Slot: `file` is the block of a file that is being opened.
pub(super) unsafe fn place(file: *mut ffi::sqlite3_file, opened: OpenFile) {
    let slot = file.cast::<Slot>();
    // SAFETY: File Slot: the block has the size of a slot.
    unsafe {
        (*slot).file = Box::into_raw(Box::new(opened));
        (*slot).base.pMethods = &raw const METHODS;
    }
}

/// Returns the seat of a connection; `None` if its main database is not on one of our file systems.
pub(super) fn seat(connection: &Connection) -> Option<Seat> {
    let mut seat: Option<Seat> = None;
    // SAFETY: Private Opcode: the argument is our local. The connection is open and borrowed for
    // the call.
    let done = unsafe {
        let argument = (&raw mut seat).cast::<c_void>();
        ffi::sqlite3_file_control(connection.handle(), c"main".as_ptr(), OPCODE_SEAT, argument)
    };
    seat.filter(|_| done == ffi::SQLITE_OK)
}

fn with(file: *mut ffi::sqlite3_file, body: impl FnOnce(&OpenFile) -> c_int) -> c_int {
    // SAFETY: File Slot: SQLite calls methods of an open file only, and the box is there while it
    // is open.
    let file = unsafe { &*(*file.cast::<Slot>()).file };
    guarded(|| body(file))
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    guarded(|| {
        let slot = file.cast::<Slot>();
        // SAFETY: File Slot: the box was placed at opening and is taken out here, once.
        unsafe {
            (*slot).base.pMethods = std::ptr::null();
            drop(Box::from_raw(std::mem::replace(&mut (*slot).file, std::ptr::null_mut())));
        }
        ffi::SQLITE_OK
    })
}

unsafe extern "C" fn read(
    file: *mut ffi::sqlite3_file,
    buf: *mut c_void,
    len: c_int,
    at: i64,
) -> c_int {
    // SAFETY: Borrowed Argument: the buffer has `len` bytes.
    let buf = unsafe { std::slice::from_raw_parts_mut(buf.cast::<u8>(), len as usize) };
    with(file, |file| file.read(buf, at as u64))
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    buf: *const c_void,
    len: c_int,
    at: i64,
) -> c_int {
    // SAFETY: Borrowed Argument: the buffer has `len` bytes.
    let buf = unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len as usize) };
    with(file, |file| file.write(buf, at as u64))
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: i64) -> c_int {
    with(file, |file| file.truncate(size as u64))
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    with(file, OpenFile::sync)
}

unsafe extern "C" fn size(file: *mut ffi::sqlite3_file, out: *mut i64) -> c_int {
    with(file, |file| match file.write_header().and_then(|()| file.opened.size()) {
        Ok(size) => {
            // SAFETY: Borrowed Argument: the result is SQLite's local.
            unsafe { *out = size as i64 };
            ffi::SQLITE_OK
        }
        Err(error) => failed(&error, ffi::SQLITE_IOERR_FSTAT),
    })
}

fn level(number: c_int) -> Level {
    match number {
        ffi::SQLITE_LOCK_NONE => Level::None,
        ffi::SQLITE_LOCK_SHARED => Level::Shared,
        ffi::SQLITE_LOCK_RESERVED => Level::Reserved,
        ffi::SQLITE_LOCK_PENDING => Level::Pending,
        _ => Level::Exclusive,
    }
}

unsafe extern "C" fn lock(file: *mut ffi::sqlite3_file, number: c_int) -> c_int {
    with(file, |file| file.lock(level(number)))
}

unsafe extern "C" fn unlock(file: *mut ffi::sqlite3_file, number: c_int) -> c_int {
    with(file, |file| file.unlock(level(number)))
}

unsafe extern "C" fn is_reserved(file: *mut ffi::sqlite3_file, out: *mut c_int) -> c_int {
    with(file, |file| {
        let reserved = file.seat().is_some_and(|seat| seat.database.locks.is_reserved());
        // SAFETY: Borrowed Argument: the result is SQLite's local.
        unsafe { *out = c_int::from(reserved) };
        ffi::SQLITE_OK
    })
}

unsafe extern "C" fn control(
    file: *mut ffi::sqlite3_file,
    opcode: c_int,
    argument: *mut c_void,
) -> c_int {
    // A negative number reads the setting, and any other number sets it.
    let setting = |kept: &Cell<bool>| {
        // SAFETY: Borrowed Argument: these opcodes come with a number.
        let number = unsafe { &mut *argument.cast::<c_int>() };
        if *number < 0 {
            *number = c_int::from(kept.get());
        } else {
            kept.set(*number != 0);
        }
    };
    with(file, |file| {
        match opcode {
            ffi::SQLITE_FCNTL_PERSIST_WAL => setting(&file.keeps_log),
            ffi::SQLITE_FCNTL_POWERSAFE_OVERWRITE => setting(&file.power_safe),
            // SAFETY: Borrowed Argument: this opcode comes with a number.
            ffi::SQLITE_FCNTL_HAS_MOVED => unsafe {
                *argument.cast::<c_int>() = c_int::from(file.has_moved());
            },
            // SAFETY: Borrowed Argument: this opcode comes with a number.
            ffi::SQLITE_FCNTL_LOCKSTATE => unsafe {
                let level = file.seat().map_or(Level::None, |s| s.database.locks.level(s.member));
                *argument.cast::<c_int>() = level as c_int;
            },
            // SAFETY: Borrowed Argument: this opcode comes with a place for a text that SQLite
            // frees.
            ffi::SQLITE_FCNTL_VFSNAME => unsafe {
                let name = ffi::sqlite3_mprintf(c"ums".as_ptr());
                *argument.cast::<*mut c_char>() = name;
            },
            // SAFETY: Private Opcode: the argument is the caller's local.
            OPCODE_SEAT => unsafe { *argument.cast::<Option<Seat>>() = file.seat().cloned() },
            _ => return ffi::SQLITE_NOTFOUND,
        }
        ffi::SQLITE_OK
    })
}

unsafe extern "C" fn sector_size(_: *mut ffi::sqlite3_file) -> c_int {
    SECTOR
}

/// Reports power-safe overwrite: a write that a power loss tears damages no bytes outside it.
/// Today's disks promise that, and SQLite's own file system assumes it, too. Nothing else is
/// claimed: a page of 4 KiB may be torn, and appends and writes may reach the disk in any order.
unsafe extern "C" fn characteristics(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: File Slot: SQLite calls methods of an open file only.
    let file = unsafe { &*(*file.cast::<Slot>()).file };
    if file.power_safe.get() { ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE } else { 0 }
}

unsafe extern "C" fn shm_map(
    file: *mut ffi::sqlite3_file,
    number: c_int,
    size: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    with(file, |file| match file.map(number as usize, size as usize, extend != 0) {
        Some(region) => {
            // SAFETY: Borrowed Argument: the result is SQLite's local.
            unsafe { *out = region };
            ffi::SQLITE_OK
        }
        None => ffi::SQLITE_IOERR_SHMMAP,
    })
}

unsafe extern "C" fn shm_lock(
    file: *mut ffi::sqlite3_file,
    first: c_int,
    count: c_int,
    flags: c_int,
) -> c_int {
    with(file, |file| {
        debug_assert!((first + count) as usize <= SLOTS);
        let mask = ((1_u32 << count) - 1) << first;
        file.lock_slots(mask as u8, flags)
    })
}

unsafe extern "C" fn shm_barrier(_: *mut ffi::sqlite3_file) {
    fence(Ordering::SeqCst);
}

unsafe extern "C" fn shm_unmap(file: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    with(file, |file| {
        file.unmap();
        ffi::SQLITE_OK
    })
}
