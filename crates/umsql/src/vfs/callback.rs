//! Two things that every callback from SQLite needs: catching panics, and translating errors of the
//! system to SQLite's codes.

use std::ffi::c_int;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, Ordering};

use rusqlite::ffi;

/// The last error of the system, for SQLite's messages.
static LAST_ERROR: AtomicI32 = AtomicI32::new(0);

/// Runs a callback's body. Returns `failed` if it panics, because no panic may cross SQLite.
pub(crate) fn guarded<R>(failed: R, body: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(failed)
}

/// Returns SQLite's code for a failed operation: `code`, unless there is a more specific one.
pub(super) fn failed(error: &io::Error, code: c_int) -> c_int {
    LAST_ERROR.store(error.raw_os_error().unwrap_or(0), Ordering::Relaxed);
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            ffi::SQLITE_FULL
        }
        _ => code,
    }
}

/// Returns the system's number of the last error that [`failed`] translated.
pub(super) fn last_os_error() -> c_int {
    LAST_ERROR.load(Ordering::Relaxed)
}
