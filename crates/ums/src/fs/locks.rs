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
use crate::record::reason::WaitReason;

/// The shortest and the longest interval between two attempts.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(20);

impl File {
    /// Locks the file for this open file alone; waits until it is free. The lock ends with
    /// [`unlock`](File::unlock), or when the file and all its clones are closed. It is advisory: a
    /// program that does not lock the file is not kept out.
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
    /// assert!(matches!(two.try_lock(), Err(std::fs::TryLockError::WouldBlock)));
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

    /// Locks the file for this open file alone, if it is free.
    ///
    /// # Errors
    /// `TryLockError::WouldBlock` if it is not free; the system's error.
    pub fn try_lock(&self) -> Result<(), TryLockError> {
        self.std.try_lock()
    }

    /// Locks the file together with others, if nothing else has locked it for itself.
    ///
    /// # Errors
    /// As [`try_lock`](File::try_lock).
    pub fn try_lock_shared(&self) -> Result<(), TryLockError> {
        self.std.try_lock_shared()
    }

    /// Ends the lock of this open file.
    ///
    /// # Errors
    /// The system's error.
    pub fn unlock(&self) -> io::Result<()> {
        self.std.unlock()
    }

    fn patiently(&self, attempt: fn(&File) -> Result<(), TryLockError>) -> io::Result<()> {
        let mut pause = PAUSE_MIN;
        loop {
            checkpoint_for(WaitReason::FILE_LOCK)?;
            match attempt(self) {
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error),
                Ok(()) => return Ok(()),
            }
            sleep_as(WaitReason::FILE_LOCK, pause).map_err(|e| e.during(WaitReason::FILE_LOCK))?;
            pause = pause.saturating_mul(2).min(PAUSE_MAX);
        }
    }
}
