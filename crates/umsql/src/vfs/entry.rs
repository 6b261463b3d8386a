//! The functions that SQLite calls: of a file system, of an open file, of a mutex; those of memory
//! are in `blocks`.
//!
//! Unsafe code, because SQLite passes pointers to its own memory. Each function here converts them
//! to values and borrows, and calls the safe code in `system`, `file` or `mutex`. SQLite
//! guarantees:
//!
//! * The buffers, names and results that it passes to a callback are valid for the call, and have
//!   the stated sizes.
//! * For each open file it provides a block of `szOsFile` bytes, aligned for pointers, at a fixed
//!   address from xOpen to xClose. This module puts a [`Slot`] there: its base first, then a
//!   pointer to the box of the open file. The base has methods only while the box exists. SQLite
//!   calls the methods of one file one at a time, because only one worker at a time uses a
//!   connection.
//! * It passes only mutexes that `mutex_alloc` returned, and it frees each boxed mutex once, when
//!   no thread uses it.
//!
//! No panic crosses SQLite: each callback that could panic is [`guarded`], and returns a failure
//! instead. The exceptions are the functions of a mutex, of which SQLite expects no failure: there
//! a panic ends the process.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

use rusqlite::{Connection, ffi};

use super::callback::{failed, guarded, last_os_error};
use super::database::Seat;
use super::file::{OpenFile, level};
use super::filesystem::Vfs;
use super::mutex::{self, Mutex};
use super::system;

/// The longest path that is accepted, in bytes.
const PATH_MAX: c_int = 4096;
/// A file control of this crate, which only [`seat`] sends. Its number is "ums" followed by the
/// byte 1.
const OPCODE_SEAT: c_int = 0x756d_7301;
/// The sector size reported to SQLite. SQLite pads journals to it if a torn write could damage
/// neighbouring bytes.
const SECTOR: c_int = 4096;

/// Returns how SQLite spells a number in a text: 1.0, 1.0e+17, Inf.
pub(crate) fn spelled(real: f64) -> String {
    let mut text = [0_u8; 64];
    let (len, start) = (text.len() as c_int, text.as_mut_ptr().cast());
    // SAFETY: Own Memory: SQLite writes at most `len` bytes, the last of which is a zero. The
    // format takes one number.
    unsafe { ffi::sqlite3_snprintf(len, start, c"%!.17g".as_ptr(), real) };
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    String::from_utf8_lossy(&text[..end]).into_owned()
}

/// The size of a block that a connection keeps for itself, in bytes: SQLite's default.
const LOOKASIDE: c_int = 1200;

/// Gives a connection so many small blocks of memory of its own. Nothing happens if it uses some of
/// those that it has.
pub(crate) fn set_lookaside(connection: &Connection, blocks: c_int) {
    // SAFETY: Own Memory: the connection is open, and SQLite allocates the blocks itself, because
    // the pointer is null. The option takes these three arguments.
    unsafe {
        let memory = std::ptr::null_mut::<c_void>();
        let option = ffi::SQLITE_DBCONFIG_LOOKASIDE;
        ffi::sqlite3_db_config(connection.handle(), option, memory, LOOKASIDE, blocks);
    }
}

/// Registers the file system with SQLite; it is never unregistered.
pub(super) fn register(vfs: &'static Vfs) {
    let table = Box::leak(Box::new(ffi::sqlite3_vfs {
        iVersion: 2,
        szOsFile: size_of::<Slot>() as c_int,
        mxPathname: PATH_MAX,
        pNext: std::ptr::null_mut(),
        zName: vfs.name.as_ptr(),
        pAppData: std::ptr::from_ref(vfs).cast_mut().cast(),
        xOpen: Some(open),
        xDelete: Some(delete),
        xAccess: Some(access),
        xFullPathname: Some(full_path),
        xDlOpen: Some(no_library),
        xDlError: Some(no_library_error),
        xDlSym: Some(no_symbol),
        xDlClose: Some(no_close),
        xRandomness: Some(randomness),
        xSleep: Some(sleep),
        xCurrentTime: Some(current_time),
        xGetLastError: Some(last_error),
        xCurrentTimeInt64: Some(current_time_ms),
        xSetSystemCall: None,
        xGetSystemCall: None,
        xNextSystemCall: None,
    }));
    // SAFETY: Loaded: the table is leaked, and so is the file system behind it.
    let done = unsafe { ffi::sqlite3_vfs_register(table, 0) };
    assert_eq!(done, ffi::SQLITE_OK, "SQLite takes a file system at any time");
}

unsafe extern "C" fn open(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    flags_out: *mut c_int,
) -> c_int {
    // If no methods are set, SQLite does not close a file whose opening failed. SAFETY: C Caller:
    // the base is the block's first field.
    unsafe { (*file).pMethods = std::ptr::null() };
    guarded(ffi::SQLITE_IOERR, || {
        // SAFETY: C Caller: the table of `register`; a name that ends with a zero byte, or NULL.
        let (vfs, path) =
            unsafe { (vfs_of(vfs), (!name.is_null()).then(|| path_of(name).to_owned())) };
        // SAFETY: C Caller: SQLite passes the name of a log from the memory in which the name of
        // its database is, and it opens a log while the same connection has the database open.
        let seat = || unsafe {
            let main = ffi::sqlite3_database_file_object(name).cast::<Slot>();
            (*(*main).file).seat().cloned()
        };
        let seat = (flags & ffi::SQLITE_OPEN_WAL != 0).then(seat).flatten();
        let opened = match system::open_file(vfs, path, flags, seat) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return ffi::SQLITE_BUSY,
            Err(error) => return failed(&error, ffi::SQLITE_CANTOPEN),
        };
        let mut given = flags;
        if opened.read_only() {
            given &= !(ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_CREATE);
            given |= ffi::SQLITE_OPEN_READONLY;
        }
        let slot = file.cast::<Slot>();
        // SAFETY: C Caller: the flags may be written if the pointer is not null. SQLite opens a
        // file once, in a block of the size that was registered.
        unsafe {
            if !flags_out.is_null() {
                *flags_out = given;
            }
            (*slot).file = Box::into_raw(Box::new(opened));
            (*slot).base.pMethods = &raw const METHODS;
        }
        ffi::SQLITE_OK
    })
}

unsafe extern "C" fn delete(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    sync_dir: c_int,
) -> c_int {
    // SAFETY: C Caller: the table of `register`, and a name that ends with a zero byte.
    let (vfs, path) = unsafe { (vfs_of(vfs), path_of(name)) };
    guarded(ffi::SQLITE_IOERR, || system::delete(vfs, path, sync_dir & 1 != 0))
}

unsafe extern "C" fn access(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    flags: c_int,
    result: *mut c_int,
) -> c_int {
    guarded(ffi::SQLITE_IOERR, || {
        // SAFETY: C Caller: the table of `register`, and a name that ends with a zero byte.
        let (vfs, path) = unsafe { (vfs_of(vfs), path_of(name)) };
        let size = match vfs.disk.size_of(path) {
            Ok(size) => size,
            Err(error) => return failed(&error, ffi::SQLITE_IOERR_ACCESS),
        };
        // An empty journal or log counts as missing, as in SQLite's own file system.
        let there = match flags {
            ffi::SQLITE_ACCESS_EXISTS => size.is_some_and(|size| size > 0),
            _ => size.is_some(),
        };
        // SAFETY: C Caller: the result is a local variable of SQLite.
        unsafe { *result = c_int::from(there) };
        ffi::SQLITE_OK
    })
}

unsafe extern "C" fn full_path(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    len: c_int,
    out: *mut c_char,
) -> c_int {
    guarded(ffi::SQLITE_IOERR, || {
        // SAFETY: C Caller: the table of `register`, and a name that ends with a zero byte.
        let (vfs, path) = unsafe { (vfs_of(vfs), path_of(name)) };
        let path = match vfs.disk.full_path(path) {
            Ok(path) => path,
            Err(error) => return failed(&error, ffi::SQLITE_CANTOPEN),
        };
        let bytes = path.as_os_str().as_bytes();
        if bytes.len() >= len as usize {
            return ffi::SQLITE_CANTOPEN;
        }
        // SAFETY: C Caller: `out` has room for `len` bytes, and the path and its zero byte are not
        // longer.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), out, bytes.len());
            *out.add(bytes.len()) = 0;
        }
        ffi::SQLITE_OK
    })
}

extern "C" fn no_library(_: *mut ffi::sqlite3_vfs, _: *const c_char) -> *mut c_void {
    std::ptr::null_mut()
}

unsafe extern "C" fn no_library_error(_: *mut ffi::sqlite3_vfs, len: c_int, out: *mut c_char) {
    if len > 0 {
        // SAFETY: C Caller: `out` has room for `len` bytes.
        unsafe { *out = 0 };
    }
}

extern "C" fn no_symbol(
    _: *mut ffi::sqlite3_vfs,
    _: *mut c_void,
    _: *const c_char,
) -> Option<unsafe extern "C" fn(*mut ffi::sqlite3_vfs, *mut c_void, *const c_char)> {
    None
}

extern "C" fn no_close(_: *mut ffi::sqlite3_vfs, _: *mut c_void) {}

unsafe extern "C" fn randomness(_: *mut ffi::sqlite3_vfs, len: c_int, out: *mut c_char) -> c_int {
    // SAFETY: C Caller: `out` has room for `len` bytes.
    let out = unsafe { std::slice::from_raw_parts_mut(out.cast::<u8>(), len as usize) };
    guarded(ffi::SQLITE_IOERR, || system::randomness(out))
}

extern "C" fn sleep(_: *mut ffi::sqlite3_vfs, microseconds: c_int) -> c_int {
    guarded(ffi::SQLITE_IOERR, || system::sleep(microseconds))
}

unsafe extern "C" fn current_time_ms(_: *mut ffi::sqlite3_vfs, out: *mut i64) -> c_int {
    guarded(ffi::SQLITE_IOERR, || {
        // SAFETY: C Caller: the result is a local variable of SQLite.
        unsafe { *out = system::now_ms() };
        ffi::SQLITE_OK
    })
}

unsafe extern "C" fn current_time(_: *mut ffi::sqlite3_vfs, out: *mut f64) -> c_int {
    guarded(ffi::SQLITE_IOERR, || {
        // SAFETY: C Caller: the result is a local variable of SQLite.
        unsafe { *out = system::now_ms() as f64 / 86_400_000.0 };
        ffi::SQLITE_OK
    })
}

extern "C" fn last_error(_: *mut ffi::sqlite3_vfs, _: c_int, _: *mut c_char) -> c_int {
    last_os_error()
}

/// # Safety
/// `vfs` must be the table that [`register`] made.
unsafe fn vfs_of(vfs: *mut ffi::sqlite3_vfs) -> &'static Vfs {
    // SAFETY: Contract. Loaded: the file system behind it is never freed.
    unsafe { &*(*vfs).pAppData.cast::<Vfs>() }
}

/// # Safety
/// `name` must end with a zero byte, and must be valid as long as the result is used.
unsafe fn path_of<'a>(name: *const c_char) -> &'a Path {
    // SAFETY: Contract.
    let name = unsafe { CStr::from_ptr(name) };
    Path::new(OsStr::from_bytes(name.to_bytes()))
}

/// The contents of SQLite's block for an open file.
#[repr(C)]
struct Slot {
    base: ffi::sqlite3_file,
    file: *mut OpenFile,
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

/// Defines callbacks of an open file: they convert the block to a reference to the open file, and a
/// panic to an error.
macro_rules! of_file {
    ($($name:ident($file:ident $(, $arg:ident: $kind:ty)*) $body:block)*) => {
        $(
            unsafe extern "C" fn $name(file: *mut ffi::sqlite3_file $(, $arg: $kind)*) -> c_int {
                // SAFETY: C Caller: SQLite calls methods only while the file is open, and the box
                // exists during that time.
                let $file: &OpenFile = unsafe { &*(*file.cast::<Slot>()).file };
                guarded(ffi::SQLITE_IOERR, || $body)
            }
        )*
    };
}

of_file! {
    read(file, buf: *mut c_void, len: c_int, at: i64) {
        // SAFETY: C Caller: the buffer has `len` bytes.
        let buf = unsafe { std::slice::from_raw_parts_mut(buf.cast::<u8>(), len as usize) };
        file.read(buf, at as u64)
    }
    write(file, buf: *const c_void, len: c_int, at: i64) {
        // SAFETY: C Caller: the buffer has `len` bytes.
        let buf = unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), len as usize) };
        file.write(buf, at as u64)
    }
    truncate(file, size: i64) { file.truncate(size as u64) }
    sync(file, _flags: c_int) { file.sync() }
    size(file, out: *mut i64) {
        match file.size() {
            Ok(size) => {
                // SAFETY: C Caller: the result is a local variable of SQLite.
                unsafe { *out = size as i64 };
                ffi::SQLITE_OK
            }
            Err(error) => failed(&error, ffi::SQLITE_IOERR_FSTAT),
        }
    }
    lock(file, number: c_int) { file.lock(level(number)) }
    unlock(file, number: c_int) { file.unlock(level(number)) }
    is_reserved(file, out: *mut c_int) {
        // SAFETY: C Caller: the result is a local variable of SQLite.
        unsafe { *out = c_int::from(file.is_reserved()) };
        ffi::SQLITE_OK
    }
    control(file, opcode: c_int, argument: *mut c_void) {
        // A negative number reads the setting, and any other number sets it.
        let setting = |kept: &Cell<bool>| {
            // SAFETY: C Caller: the argument of these opcodes is a number.
            let number = unsafe { &mut *argument.cast::<c_int>() };
            if *number < 0 {
                *number = c_int::from(kept.get());
            } else {
                kept.set(*number != 0);
            }
        };
        match opcode {
            ffi::SQLITE_FCNTL_PERSIST_WAL => setting(&file.keeps_log),
            ffi::SQLITE_FCNTL_POWERSAFE_OVERWRITE => setting(&file.power_safe),
            // SAFETY: C Caller: the argument of this opcode is a number.
            ffi::SQLITE_FCNTL_HAS_MOVED => unsafe {
                *argument.cast::<c_int>() = c_int::from(file.has_moved());
            },
            // SAFETY: C Caller: the argument of this opcode is a number.
            ffi::SQLITE_FCNTL_LOCKSTATE => unsafe {
                *argument.cast::<c_int>() = file.level() as c_int;
            },
            // SAFETY: C Caller: the argument of this opcode is a place for a text, which SQLite
            // frees.
            ffi::SQLITE_FCNTL_VFSNAME => unsafe {
                *argument.cast::<*mut c_char>() = ffi::sqlite3_mprintf(c"ums".as_ptr());
            },
            // SAFETY: C Caller: only `seat` sends this opcode, with a pointer to its own local.
            OPCODE_SEAT => unsafe { *argument.cast::<Option<Seat>>() = file.seat().cloned() },
            _ => return ffi::SQLITE_NOTFOUND,
        }
        ffi::SQLITE_OK
    }
    characteristics(file) { file.characteristics() }
    shm_map(file, number: c_int, size: c_int, extend: c_int, out: *mut *mut c_void) {
        match file.map(number as usize, size as usize, extend != 0) {
            Some(region) => {
                // SAFETY: C Caller: the result is a local variable of SQLite.
                unsafe { *out = region };
                ffi::SQLITE_OK
            }
            None => ffi::SQLITE_IOERR_SHMMAP,
        }
    }
    shm_lock(file, first: c_int, count: c_int, flags: c_int) {
        file.lock_slots(first as u32, count as u32, flags)
    }
    shm_unmap(file, _delete: c_int) {
        file.unmap();
        ffi::SQLITE_OK
    }
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    guarded(ffi::SQLITE_IOERR, || {
        let slot = file.cast::<Slot>();
        // SAFETY: C Caller: the box was stored when the file was opened, and is taken out here,
        // once.
        unsafe {
            (*slot).base.pMethods = std::ptr::null();
            drop(Box::from_raw(std::mem::replace(&mut (*slot).file, std::ptr::null_mut())));
        }
        ffi::SQLITE_OK
    })
}

extern "C" fn sector_size(_: *mut ffi::sqlite3_file) -> c_int {
    SECTOR
}

extern "C" fn shm_barrier(_: *mut ffi::sqlite3_file) {
    fence(Ordering::SeqCst);
}

/// Returns the seat of a connection. Returns `None` if its main database is not on a file system of
/// this crate.
pub(super) fn seat(connection: &Connection) -> Option<Seat> {
    let mut seat: Option<Seat> = None;
    // SAFETY: Plain Call: the argument is a local of this function. The connection is open, and is
    // borrowed for the call.
    let done = unsafe {
        let argument = (&raw mut seat).cast::<c_void>();
        ffi::sqlite3_file_control(connection.handle(), c"main".as_ptr(), OPCODE_SEAT, argument)
    };
    seat.filter(|_| done == ffi::SQLITE_OK)
}

static MUTEXES: ffi::sqlite3_mutex_methods = ffi::sqlite3_mutex_methods {
    xMutexInit: Some(mutexes_ready),
    xMutexEnd: Some(mutexes_ready),
    xMutexAlloc: Some(mutex_alloc),
    xMutexFree: Some(mutex_free),
    xMutexEnter: Some(mutex_enter),
    xMutexTry: Some(mutex_try),
    xMutexLeave: Some(mutex_leave),
    xMutexHeld: Some(mutex_held),
    xMutexNotheld: Some(mutex_not_held),
};

/// Registers this crate's mutexes and memory with SQLite, and switches off its memory statistics,
/// because they lock a mutex at every allocation. Returns false if SQLite is already in use.
pub(super) fn install_mutexes() -> bool {
    // SAFETY: Loaded: SQLite copies the tables, whose functions do what it requires of them. It
    // refuses all calls if it is already in use.
    let done = unsafe {
        ffi::sqlite3_config(ffi::SQLITE_CONFIG_MEMSTATUS, 0 as c_int);
        ffi::sqlite3_config(ffi::SQLITE_CONFIG_MALLOC, &blocks::MEMORY);
        ffi::sqlite3_config(ffi::SQLITE_CONFIG_MUTEX, &raw const MUTEXES)
    };
    done == ffi::SQLITE_OK
}

extern "C" fn mutexes_ready() -> c_int {
    ffi::SQLITE_OK
}

extern "C" fn mutex_alloc(kind: c_int) -> *mut ffi::sqlite3_mutex {
    let mutex: *const Mutex = match kind {
        0 | 1 => Box::into_raw(Box::new(Mutex::new(kind == 1))),
        number => mutex::of_number(number).map_or(std::ptr::null(), std::ptr::from_ref),
    };
    mutex.cast_mut().cast()
}

unsafe extern "C" fn mutex_free(mutex: *mut ffi::sqlite3_mutex) {
    // SAFETY: C Caller: SQLite frees only what `mutex_alloc` boxed, once.
    drop(unsafe { Box::from_raw(mutex.cast::<Mutex>()) });
}

/// Defines functions of a mutex. `none` is what each returns for a null pointer.
macro_rules! of_mutex {
    ($($name:ident -> $result:ty: $none:expr, $body:expr;)*) => {
        $(
            unsafe extern "C" fn $name(mutex: *mut ffi::sqlite3_mutex) -> $result {
                // SAFETY: C Caller: SQLite passes only pointers that `mutex_alloc` returned and
                // that it has not freed.
                let mutex = unsafe { mutex.cast::<Mutex>().as_ref() };
                mutex.map_or($none, $body)
            }
        )*
    };
}

of_mutex! {
    mutex_enter -> (): (), Mutex::enter;
    mutex_try -> c_int: ffi::SQLITE_OK, |mutex| {
        if mutex.try_enter() { ffi::SQLITE_OK } else { ffi::SQLITE_BUSY }
    };
    mutex_leave -> (): (), Mutex::leave;
    mutex_held -> c_int: 1, |mutex| c_int::from(mutex.is_mine());
    mutex_not_held -> c_int: 1, |mutex| c_int::from(!mutex.is_mine());
}

mod blocks;
#[cfg(test)]
mod tests;
