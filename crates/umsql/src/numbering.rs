//! Statements that call `nextval`, `setval` and their like.
//!
//! ```text
//!   gate ─▶ read all sequences ─▶ the statement ─▶ write those that it has changed ─▶ commit
//! ```
//!
//! All of it is one transaction, so that a number is not given twice, and a rollback takes the
//! numbers back.

use crate::dialect::{LockPatience, Sql};
use crate::engine::{check_keys, read_numbers, sequences, write_numbers};
use crate::error::Failure;
use crate::host::Conn;
use crate::run::{Call, Ran};
use crate::session::Session;

impl Session {
    /// Executes a statement that uses sequences. `takes` says whether it may change them.
    pub(crate) fn execute_numbering(
        &mut self,
        conn: &mut dyn Conn,
        sql: &Sql,
        takes: Option<LockPatience>,
        call: Call<'_>,
    ) -> std::result::Result<Ran, Failure> {
        self.several |= takes.is_some();
        self.begin_several();
        let outcome = self.with_lease(|me, lease| {
            me.begin_statement(lease)?;
            if let Some(patience) = takes {
                me.own_gate_to_read(lease, patience)?;
            }
            let mut all = sequences(lease)?;
            if takes.is_some() {
                read_numbers(lease, &mut all)?;
            }
            me.config.sequences.get_or_insert_default().open = Some(all);
            let outcome = me.run_texts(conn, lease, sql, call);
            let open = me.config.sequences.as_mut().and_then(|all| all.open.take());
            let ran = outcome?;
            write_numbers(lease, &open.unwrap_or_default())?;
            if me.config.mode.checks_keys {
                check_keys(lease, None)?;
            }
            Ok(ran)
        });
        self.release_gate_outside();
        outcome
    }
}
