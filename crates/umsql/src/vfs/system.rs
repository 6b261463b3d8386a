//! The functions of the file system that take a name (open, delete), and those for time and
//! randomness. SQLite calls them through `entry`.

use std::cell::Cell;
use std::ffi::{OsStr, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::ffi;

use super::callback::failed;
use super::database::Seat;
use super::disk::{How, Opened};
use super::file::{FileRole, OpenFile};
use super::filesystem::Vfs;
use crate::{host, memory};

/// Midnight of 1970-01-01 as SQLite counts time: milliseconds since noon of -4713-11-24.
const EPOCH_MS: i64 = 24_405_875 * 8_640_000;

/// Opens a file as these flags of SQLite say. Without a path, creates a temporary file. For a log
/// `seat` is its connection's handle on the database.
pub(super) fn open_file(
    vfs: &'static Vfs,
    path: Option<PathBuf>,
    flags: c_int,
    seat: Option<Seat>,
) -> io::Result<OpenFile> {
    let has = |flag: c_int| flags & flag != 0;
    let how = How {
        create: has(ffi::SQLITE_OPEN_CREATE),
        new: has(ffi::SQLITE_OPEN_EXCLUSIVE),
        read_only: has(ffi::SQLITE_OPEN_READONLY),
        log: has(ffi::SQLITE_OPEN_WAL),
        direct: has(ffi::SQLITE_OPEN_MAIN_DB),
    };
    let Some(path) = path else { return temporary_file(vfs, how) };
    let (kind, opened) = if has(ffi::SQLITE_OPEN_MAIN_DB) {
        let seat = vfs.databases.open(&vfs.disk, &path, how)?;
        let main = Arc::clone(&seat.database.main);
        (FileRole::Main(seat), main)
    } else if let Some(seat) = seat {
        let log = seat.database.open_log(&vfs.disk, &path, how)?;
        (FileRole::Log(seat), log)
    } else {
        (FileRole::Other, Arc::new(Opened::open(&vfs.disk, &path, how)?))
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

/// Creates a file that has no name any more.
fn temporary_file(vfs: &'static Vfs, how: How) -> io::Result<OpenFile> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("ums-temporary-{}-{number}", std::process::id());
    let create = |folder: PathBuf| -> io::Result<Opened> {
        let path = folder.join(&name);
        let opened = Opened::open(&vfs.disk, &path, how)?;
        vfs.disk.delete(&path)?;
        Ok(opened)
    };
    let folder = vfs.temporary.lock().clone();
    let opened = match folder.map(create) {
        // Another server of this process may have set the folder, which is gone since.
        None => create(std::env::temp_dir()),
        Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => create(std::env::temp_dir()),
        Some(opened) => opened,
    }?;
    let role = FileRole::Temporary(memory::present(), Cell::new(0));
    Ok(OpenFile::new(role, Arc::new(opened)))
}

/// Removes a file's name. With `sync_dir`, the removal is durable on return.
pub(super) fn delete(vfs: &Vfs, path: &Path, sync_dir: bool) -> c_int {
    if path.as_os_str().as_bytes().ends_with(b"-wal")
        && let Some(database) = vfs.databases.find(&without_suffix(path))
    {
        database.forget_log();
    }
    match vfs.disk.delete(path) {
        Ok(()) => (),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return ffi::SQLITE_IOERR_DELETE_NOENT;
        }
        Err(error) => return failed(&error, ffi::SQLITE_IOERR_DELETE),
    }
    if sync_dir && let Err(error) = vfs.disk.sync_dir(path.parent().unwrap_or(Path::new("/"))) {
        return failed(&error, ffi::SQLITE_IOERR_DIR_FSYNC);
    }
    ffi::SQLITE_OK
}

/// Fills `out` with random bytes, and returns their number, or 0 if the system has none.
pub(super) fn randomness(out: &mut [u8]) -> c_int {
    out.fill(0);
    match getrandom::fill(out) {
        Ok(()) => out.len() as c_int,
        Err(_) => 0,
    }
}

/// Waits, and returns for how long.
pub(super) fn sleep(microseconds: c_int) -> c_int {
    let time = Duration::from_micros(microseconds.max(0) as u64);
    // SQLite cannot break off the operation in which it pauses, so a cancellation does not end the
    // pause.
    host::pause(time);
    microseconds
}

/// Returns the time as SQLite counts it.
pub(super) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    EPOCH_MS + since.as_millis() as i64
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::vfs::testing::{LossyDisk, lossy};

    #[test]
    fn a_large_temporary_file_is_empty_before_it_is_closed() {
        let disk = LossyDisk::default();
        let file = open_file(lossy(&disk), None, ffi::SQLITE_OPEN_CREATE, None).unwrap();
        assert_eq!(file.write(&[1; 4096], 2 << 20), ffi::SQLITE_OK);
        assert_eq!(disk.bytes(), (2 << 20) + 4096);
        drop(file);
        assert_eq!(disk.bytes(), 0);
    }

    /// The call that makes it empty would cost more than it saves.
    #[test]
    fn a_small_temporary_file_is_closed_as_it_is() {
        let disk = LossyDisk::default();
        let file = open_file(lossy(&disk), None, ffi::SQLITE_OPEN_CREATE, None).unwrap();
        assert_eq!(file.write(&[1; 4096], 4096), ffi::SQLITE_OK);
        drop(file);
        assert_eq!(disk.bytes(), 8192);
    }

    #[test]
    fn the_time_is_counted_from_noon_on_the_first_julian_day() {
        let unix = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
        // The first second of 1970 was in the middle of the Julian day 2,440,587.
        let epoch = (2 * 2_440_587 + 1) * 43_200_000;
        let before = unix();
        let now = now_ms() - epoch;
        assert!((before..=unix()).contains(&now), "{now}, {before}");
    }

    #[test]
    fn a_pause_in_a_cancelled_request_lets_other_workers_run() {
        let node = ums::Node::builder().schedulers(1).build().unwrap();
        let user = node.user();
        let id = user.id();
        let request = move || {
            let ran = Arc::new(AtomicBool::new(false));
            let other = Arc::clone(&ran);
            let other = ums::spawn(move || other.store(true, Ordering::Relaxed));
            assert!(host::cancel_request(id) && host::cancelled());
            // SQLite waits like this while another connection is busy for a moment.
            (0..1000).take_while(|_| !ran.load(Ordering::Relaxed)).for_each(|_| {
                sleep(1000);
            });
            drop(other);
            ran.load(Ordering::Relaxed)
        };
        assert!(user.enqueue(request).unwrap().join().unwrap());
    }
}
