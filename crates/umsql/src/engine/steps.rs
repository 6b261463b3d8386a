//! How a function of SQL that may take long lets others run, and notices that its statement was
//! cancelled.

use rusqlite::{Error, Result, ffi};

use crate::error::CANCELLED;
use crate::host;
use crate::memory::Room;

/// How many steps a function makes between two looks at the quantum: about a millisecond.
pub(super) const STEPS: u32 = 100_000;
/// Up to this many bytes a text is examined at once: in about a millisecond.
const BYTES_AT_ONCE: usize = 256 << 10;

/// Counts a result in the statement's memory until SQLite has its own copy.
pub(super) fn room(bytes: usize) -> Result<Room> {
    let none = || Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_NOMEM), None);
    Room::take(bytes).ok_or_else(none)
}

/// Returns an error of a function, with this text.
pub(super) fn failed(message: &str) -> Error {
    Error::UserFunctionError(message.into())
}

/// Counts the steps of a long computation.
#[derive(Default)]
pub(super) struct Steps(u32);

impl Steps {
    /// Looks at the quantum every [`STEPS`] steps. Fails if the statement has been cancelled.
    #[inline]
    pub(super) fn step(&mut self) -> Result<()> {
        self.0 += 1;
        if self.0 < STEPS {
            return Ok(());
        }
        self.0 = 0;
        look()
    }
}

/// Looks at the quantum. Fails if the statement has been cancelled.
pub(super) fn look() -> Result<()> {
    host::yield_if_due();
    if host::cancelled() { Err(failed(CANCELLED)) } else { Ok(()) }
}

/// Runs `f`, which takes time in proportion to `len` bytes: outside the scheduler if they are many.
pub(super) fn outside_if_long<R: Send>(len: usize, f: impl FnOnce() -> R + Send) -> R {
    if len <= BYTES_AT_ONCE { f() } else { host::go_preemptive("PREEMPTIVE_TEXT", f) }
}
