//! What `umsql`'s file of errors needs from its host. There, cancelled waits; here none.

use std::io;

/// A statement was cancelled.
pub struct Interrupted;

/// Why a wait ended without what it waited for.
#[allow(dead_code)]
pub enum WaitError {
    /// It was cancelled.
    Cancelled,
}

impl WaitError {
    /// Returns what is in an error of a wait.
    pub fn of(_: &io::Error) -> Option<WaitError> {
        None
    }
}
