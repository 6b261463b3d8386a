//! Statements that call `nextval`, `setval` and their like.
//!
//! ```text
//!   gate ─▶ read all sequences ─▶ the statement ─▶ write those that it has changed ─▶ commit
//! ```
//!
//! All of it is one transaction, so that a number is not given twice, and a rollback takes the
//! numbers back.

use crate::dialect::{LockPatience, Sql};
use crate::engine::{Lease, columns, read_numbers, sequences, write_numbers};
use crate::error::Failure;
use crate::run::Ran;
use crate::sequences::OpenSequences;
use crate::session::Session;

impl Session {
    /// Opens the sequences for a statement. `takes` says whether it may change them.
    pub(crate) fn open_sequences(
        &mut self,
        lease: &Lease,
        sql: &Sql,
        takes: Option<LockPatience>,
    ) -> std::result::Result<(), Failure> {
        let may_change = takes.is_some();
        if let Some(patience) = takes {
            self.own_gate_to_read(lease, patience)?;
        }
        let mut all = sequences(lease)?;
        if may_change {
            read_numbers(lease, &mut all)?;
        }
        let asks = |text: &String| text.to_ascii_lowercase().contains("pg_get_serial_sequence");
        let columns = if sql.texts.iter().any(asks) { columns(lease)? } else { Vec::new() };
        let open = OpenSequences { all, may_change, columns };
        self.config.sequences.get_or_insert_default().open = Some(open);
        Ok(())
    }

    /// Closes the sequences, if the statement has opened them, and writes what it has changed
    /// unless it has failed.
    pub(crate) fn close_sequences(
        &mut self,
        lease: &Lease,
        outcome: std::result::Result<Ran, Failure>,
    ) -> std::result::Result<Ran, Failure> {
        let open = self.config.sequences.as_mut().and_then(|all| all.open.take());
        let ran = outcome?;
        if let Some(open) = open.filter(|open| open.may_change) {
            write_numbers(lease, &open.all)?;
        }
        Ok(ran)
    }
}
