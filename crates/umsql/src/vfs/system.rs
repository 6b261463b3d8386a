//! The file system's callbacks: opening, deleting and looking for files, time and randomness.
//!
//! Each callback is an entry of the `sqlite3_vfs` table; their invariants are in `vfs`.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::ffi;

use super::callback::{failed, guarded, last_os_error};
use super::disk::{How, Opened};
use super::file::{self, Kind, OpenFile, Slot};
use super::filesystem::Vfs;
use crate::host;

/// The longest path that we accept, in bytes.
const PATH_MAX: c_int = 4096;
/// Midnight of 1970-01-01 as SQLite counts time: milliseconds since noon of -4713-11-24.
const EPOCH_MS: i64 = 24_405_875 * 8_640_000;

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
    // SAFETY: Vfs Forever: the table is leaked.
    let done = unsafe { ffi::sqlite3_vfs_register(table, 0) };
    assert_eq!(done, ffi::SQLITE_OK, "SQLite takes a file system at any time");
}

fn vfs_of(vfs: *mut ffi::sqlite3_vfs) -> &'static Vfs {
    // SAFETY: Vfs Forever: SQLite passes the table that we registered.
    unsafe { &*(*vfs).pAppData.cast::<Vfs>() }
}

fn path_of(name: *const c_char) -> PathBuf {
    // SAFETY: Borrowed Argument: a name ends with a zero byte.
    let name = unsafe { CStr::from_ptr(name) };
    PathBuf::from(OsStr::from_bytes(name.to_bytes()))
}

unsafe extern "C" fn open(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    flags_out: *mut c_int,
) -> c_int {
    // With no methods set, SQLite does not close a file whose opening failed. SAFETY: File Slot:
    // the base is the slot's first field.
    unsafe { (*file).pMethods = std::ptr::null() };
    guarded(|| {
        let vfs = vfs_of(vfs);
        let path = (!name.is_null()).then(|| path_of(name));
        let opened = match open_file(vfs, path, flags) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return ffi::SQLITE_BUSY,
            Err(error) => return failed(&error, ffi::SQLITE_CANTOPEN),
        };
        let mut given = flags;
        if opened.read_only() {
            given &= !(ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_CREATE);
            given |= ffi::SQLITE_OPEN_READONLY;
        }
        // SAFETY: Borrowed Argument: the flags may be written if they are asked for. File Slot:
        // SQLite opens a file once, in a block of the size that we registered.
        unsafe {
            if !flags_out.is_null() {
                *flags_out = given;
            }
            file::place(file, opened);
        }
        ffi::SQLITE_OK
    })
}

fn open_file(vfs: &'static Vfs, path: Option<PathBuf>, flags: c_int) -> io::Result<OpenFile> {
    let has = |flag: c_int| flags & flag != 0;
    let how = How {
        create: has(ffi::SQLITE_OPEN_CREATE),
        new: has(ffi::SQLITE_OPEN_EXCLUSIVE),
        read_only: has(ffi::SQLITE_OPEN_READONLY),
        log: has(ffi::SQLITE_OPEN_WAL),
        direct: has(ffi::SQLITE_OPEN_MAIN_DB),
    };
    let named = path.is_some();
    let path = path.unwrap_or_else(temporary_path);
    let (kind, opened) = if has(ffi::SQLITE_OPEN_MAIN_DB) && named {
        let seat = vfs.databases.open(&vfs.disk, &path, how)?;
        let main = Arc::clone(&seat.database.main);
        (Kind::Main(seat), main)
    } else if has(ffi::SQLITE_OPEN_WAL) {
        let database = vfs.databases.find(&without_suffix(&path)).ok_or(io::ErrorKind::NotFound)?;
        let log = database.open_log(&vfs.disk, &path, how)?;
        (Kind::Log(database), log)
    } else {
        let opened = Opened::open(&vfs.disk, &path, how)?;
        (Kind::Other, Arc::new(opened))
    };
    if has(ffi::SQLITE_OPEN_DELETEONCLOSE) {
        vfs.disk.delete(&path)?;
    }
    Ok(OpenFile::new(kind, opened))
}

/// Returns the path of the database whose log this is.
fn without_suffix(log: &Path) -> PathBuf {
    let name = log.as_os_str().as_bytes();
    PathBuf::from(OsStr::from_bytes(name.strip_suffix(b"-wal").unwrap_or(name)))
}

fn temporary_path() -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("ums-temporary-{}-{number}", std::process::id()))
}

unsafe extern "C" fn delete(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    sync_dir: c_int,
) -> c_int {
    guarded(|| {
        let (vfs, path) = (vfs_of(vfs), path_of(name));
        if path.as_os_str().as_bytes().ends_with(b"-wal")
            && let Some(database) = vfs.databases.find(&without_suffix(&path))
        {
            database.forget_log();
        }
        match vfs.disk.delete(&path) {
            Ok(()) => (),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return ffi::SQLITE_IOERR_DELETE_NOENT;
            }
            Err(error) => return failed(&error, ffi::SQLITE_IOERR_DELETE),
        }
        if sync_dir & 1 != 0
            && let Err(error) = vfs.disk.sync_dir(path.parent().unwrap_or(Path::new("/")))
        {
            return failed(&error, ffi::SQLITE_IOERR_DIR_FSYNC);
        }
        ffi::SQLITE_OK
    })
}

unsafe extern "C" fn access(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    flags: c_int,
    result: *mut c_int,
) -> c_int {
    guarded(|| {
        let size = match vfs_of(vfs).disk.size_of(&path_of(name)) {
            Ok(size) => size,
            Err(error) => return failed(&error, ffi::SQLITE_IOERR_ACCESS),
        };
        // An empty journal or log counts as none, as in SQLite's own file system.
        let there = match flags {
            ffi::SQLITE_ACCESS_EXISTS => size.is_some_and(|size| size > 0),
            _ => size.is_some(),
        };
        // SAFETY: Borrowed Argument: the result is SQLite's local.
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
    guarded(|| {
        let path = match vfs_of(vfs).disk.full_path(&path_of(name)) {
            Ok(path) => path,
            Err(error) => return failed(&error, ffi::SQLITE_CANTOPEN),
        };
        let bytes = path.as_os_str().as_bytes();
        if bytes.len() >= len as usize {
            return ffi::SQLITE_CANTOPEN;
        }
        // SAFETY: Borrowed Argument: `out` has room for `len` bytes, and these and a zero are not
        // more.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), out, bytes.len());
            *out.add(bytes.len()) = 0;
        }
        ffi::SQLITE_OK
    })
}

unsafe extern "C" fn no_library(_: *mut ffi::sqlite3_vfs, _: *const c_char) -> *mut c_void {
    std::ptr::null_mut()
}

unsafe extern "C" fn no_library_error(_: *mut ffi::sqlite3_vfs, len: c_int, out: *mut c_char) {
    if len > 0 {
        // SAFETY: Borrowed Argument: `out` has room for `len` bytes.
        unsafe { *out = 0 };
    }
}

unsafe extern "C" fn no_symbol(
    _: *mut ffi::sqlite3_vfs,
    _: *mut c_void,
    _: *const c_char,
) -> Option<unsafe extern "C" fn(*mut ffi::sqlite3_vfs, *mut c_void, *const c_char)> {
    None
}

unsafe extern "C" fn no_close(_: *mut ffi::sqlite3_vfs, _: *mut c_void) {}

unsafe extern "C" fn randomness(_: *mut ffi::sqlite3_vfs, len: c_int, out: *mut c_char) -> c_int {
    guarded(|| {
        // SAFETY: Borrowed Argument: `out` has room for `len` bytes.
        let out = unsafe { std::slice::from_raw_parts_mut(out.cast::<u8>(), len as usize) };
        out.fill(0);
        match getrandom::fill(out) {
            Ok(()) => len,
            Err(_) => 0,
        }
    })
}

unsafe extern "C" fn sleep(_: *mut ffi::sqlite3_vfs, microseconds: c_int) -> c_int {
    guarded(|| {
        let time = Duration::from_micros(microseconds.max(0) as u64);
        // SQLite checks its condition again afterwards, even if the sleep ended early.
        let _ = host::sleep(time);
        microseconds
    })
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    EPOCH_MS + since.as_millis() as i64
}

unsafe extern "C" fn current_time_ms(_: *mut ffi::sqlite3_vfs, out: *mut i64) -> c_int {
    // SAFETY: Borrowed Argument: the result is SQLite's local.
    unsafe { *out = now_ms() };
    ffi::SQLITE_OK
}

unsafe extern "C" fn current_time(_: *mut ffi::sqlite3_vfs, out: *mut f64) -> c_int {
    // SAFETY: Borrowed Argument: the result is SQLite's local.
    unsafe { *out = now_ms() as f64 / 86_400_000.0 };
    ffi::SQLITE_OK
}

unsafe extern "C" fn last_error(_: *mut ffi::sqlite3_vfs, _: c_int, _: *mut c_char) -> c_int {
    last_os_error()
}
