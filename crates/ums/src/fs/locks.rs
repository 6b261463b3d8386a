//! Locks of whole files (`flock(2)`), between processes and between open files of one process.
//!
//! The system tells no descriptor when such a lock becomes free. So a caller that must wait tries
//! again at growing intervals, and sleeps in between: its wait can be cancelled and has limits, and
//! occupies no thread.

use std::fs::TryLockError;
use std::io;
use std::time::Duration;

use super::file::File;
use crate::current::{checkpoint_for, sleep_as};

/// The shortest and the longest interval between two attempts.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(20);

impl File {
    /// Locks the file for this open file alone; waits until it is free. The lock ends with
    /// [`unlock`](File::unlock), or when the file and all its clones are closed. It is advisory: a
    /// program that does not lock the file is not kept out. The wait has the reason of the file's
    /// reads.
    ///
    /// # Errors
    /// The system's error; an error whose source is a [`WaitError`](crate::WaitError) if the work
    /// request was cancelled or a time limit has passed: the file is not locked then.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("data");
    /// let (one, two) = (ums::fs::File::create(&path)?, ums::fs::File::open(&path)?);
    /// one.lock()?;
    /// assert!(!two.try_lock()?);
    /// one.unlock()?;
    /// two.lock_shared()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn lock(&self) -> io::Result<()> {
        self.patiently(File::try_lock)
    }

    /// Locks the file together with others that lock it in this way; waits as
    /// [`lock`](File::lock).
    ///
    /// # Errors
    /// As [`lock`](File::lock).
    pub fn lock_shared(&self) -> io::Result<()> {
        self.patiently(File::try_lock_shared)
    }

    /// Locks the file for this open file alone, if it is free. Returns whether it did.
    ///
    /// # Errors
    /// The system's error.
    pub fn try_lock(&self) -> io::Result<bool> {
        tried(self.std.try_lock())
    }

    /// Locks the file together with others, if nothing else has locked it for itself. Returns
    /// whether it did.
    ///
    /// # Errors
    /// The system's error.
    pub fn try_lock_shared(&self) -> io::Result<bool> {
        tried(self.std.try_lock_shared())
    }

    /// Ends the lock of this open file.
    ///
    /// # Errors
    /// The system's error.
    pub fn unlock(&self) -> io::Result<()> {
        self.std.unlock()
    }

    fn patiently(&self, attempt: fn(&File) -> io::Result<bool>) -> io::Result<()> {
        let mut pause = PAUSE_MIN;
        loop {
            checkpoint_for(self.reasons.read)?;
            if attempt(self)? {
                return Ok(());
            }
            sleep_as(self.reasons.read, pause).map_err(|e| e.during(self.reasons.read))?;
            pause = pause.saturating_mul(2).min(PAUSE_MAX);
        }
    }
}

fn tried(attempt: Result<(), TryLockError>) -> io::Result<bool> {
    match attempt {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}
