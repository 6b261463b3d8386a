//! How a function of SQL that may take long lets others run, and notices that its statement was
//! cancelled.

use rusqlite::{Error, Result, ffi};

use crate::error::CANCELLED;
use crate::host;
use crate::memory::{self, Room};

/// How many steps a function makes between two looks: a tenth of a millisecond.
pub(super) const STEPS: u32 = 16 << 10;

/// Counts bytes in the statement's memory.
pub(super) fn room(bytes: usize) -> Result<Room> {
    Room::take(bytes).ok_or_else(no_memory)
}

/// The error for memory that a statement does not get.
pub(super) fn no_memory() -> Error {
    Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_NOMEM), None)
}

/// Returns an error of a function, with this text.
pub(super) fn failed(message: &str) -> Error {
    Error::UserFunctionError(message.into())
}

/// Counts the steps of a long computation.
#[derive(Debug, Default)]
pub(super) struct Steps(u32);

impl Steps {
    /// Looks every [`STEPS`] steps. Fails if the statement has been cancelled.
    #[inline]
    pub(super) fn step(&mut self) -> Result<()> {
        self.steps(1)
    }

    /// Counts several steps at once.
    #[inline]
    pub(super) fn steps(&mut self, count: u32) -> Result<()> {
        self.0 += count;
        if self.0 < STEPS {
            return Ok(());
        }
        self.0 = 0;
        look()
    }

    /// Counts the steps in which bytes are copied or searched.
    pub(super) fn bytes(&mut self, count: usize) -> Result<()> {
        self.steps(1 + (count / BYTES_IN_A_STEP) as u32)
    }
}

/// How many bytes are copied or searched in the time of a step.
const BYTES_IN_A_STEP: usize = 4;

/// Lets others run if the statement has used its slice. Fails if the statement has been cancelled.
pub(super) fn look() -> Result<()> {
    #[cfg(test)]
    LOOKS.set(LOOKS.get() + 1);
    host::yield_if_due();
    if host::cancelled() { Err(failed(CANCELLED)) } else { Ok(()) }
}

/// Runs `f` outside the scheduler, for the account of the statement.
pub(super) fn outside<R: Send>(reason: &'static str, f: impl FnOnce() -> R + Send) -> R {
    let account = memory::present();
    host::go_preemptive(reason, move || memory::outside(account, f))
}

#[cfg(test)]
std::thread_local! {
    /// How often functions have looked, for tests.
    pub(super) static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
