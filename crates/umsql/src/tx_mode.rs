//! What holds for a transaction: its isolation level, whether it may write, and whether SQLite's
//! transaction has been opened for it.
//!
//! `transaction` opens and ends transactions; this file has their state.

use crate::dialect::{Characteristics, Isolation};
use crate::error::{Result, SqlError};

/// The user's transaction, apart from where it stands (`Tx`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct TxMode {
    pub(crate) isolation: Isolation,
    pub(crate) read_only: bool,
    /// Whether a statement has been executed in it. From then on its isolation level stays.
    pub(crate) queried: bool,
    /// Whether the engine's transaction has been opened, and not ended by the session.
    pub(crate) open: bool,
    /// Whether a statement of it has changed the schema.
    pub(crate) altered: bool,
    /// Whether each statement is checked for foreign keys that are deferred: after SET CONSTRAINTS
    /// .. IMMEDIATE.
    pub(crate) checks_keys: bool,
}

impl Default for TxMode {
    fn default() -> TxMode {
        let isolation = Isolation::ReadCommitted;
        TxMode {
            isolation,
            read_only: false,
            queried: false,
            open: false,
            altered: false,
            checks_keys: false,
        }
    }
}

impl TxMode {
    /// Changes what the client has named.
    pub(crate) fn change(&mut self, to: Characteristics) -> Result<()> {
        let late = |what| {
            let message = format!("{what} must be set before any query");
            Err(SqlError::new("25001", message))
        };
        let isolation = to.isolation.unwrap_or(self.isolation);
        if self.queried && isolation != self.isolation {
            return late("the isolation level of a transaction");
        }
        let read_only = to.read_only.unwrap_or(self.read_only);
        if self.queried && self.read_only && !read_only {
            return late("transaction read-write mode");
        }
        (self.isolation, self.read_only) = (isolation, read_only);
        Ok(())
    }
}
