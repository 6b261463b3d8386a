//! DECLARE, FETCH and CLOSE. A cursor is a portal: both have their names in one list, as in
//! PostgreSQL, and both end with their transaction.
//!
//! The rows of a cursor are computed when it is declared, and kept encoded, so that the cursor sees
//! what there was then. There is a limit of their size ([`crate::run`]).

use std::sync::Arc;

use crate::dialect::{Cursor, Declare, Fetch};
use crate::error::{Failure, Result, SqlError};
use crate::host::Conn;
use crate::portal::{Portal, State};
use crate::run::{Call, Ran};
use crate::session::{Session, Tx};
use crate::wire::message::format_of;
use crate::wire::types::Column;

impl Session {
    /// Carries out a statement about a cursor.
    pub(crate) fn cursor(
        &mut self,
        conn: &mut dyn Conn,
        cursor: &Cursor,
        call: &Call<'_>,
    ) -> std::result::Result<Ran, Failure> {
        let tag = match cursor {
            Cursor::Declare(declare) => {
                self.declare(conn, declare)?;
                "DECLARE CURSOR"
            }
            Cursor::Fetch(fetch) => {
                let count = self.fetch(conn, fetch, call)?;
                let tag = if fetch.moves { "MOVE" } else { "FETCH" };
                return Ok(Ran::Complete(format!("{tag} {count}")));
            }
            Cursor::Close(None) => {
                self.portals.clear();
                "CLOSE CURSOR ALL"
            }
            Cursor::Close(Some(name)) => {
                let at = self.cursor_named(name)?;
                self.portals.swap_remove(at);
                "CLOSE CURSOR"
            }
        };
        Ok(Ran::Complete(tag.into()))
    }

    fn cursor_named(&self, name: &str) -> Result<usize> {
        let at = self.portals.iter().position(|(known, _)| **known == *name);
        at.ok_or_else(|| SqlError::new("34000", format!("cursor \"{name}\" does not exist")))
    }

    fn declare(
        &mut self,
        conn: &mut dyn Conn,
        declare: &Declare,
    ) -> std::result::Result<(), Failure> {
        let name = &declare.name;
        if self.tx != Tx::Block {
            let message = "DECLARE CURSOR can only be used in transaction blocks";
            return Err(SqlError::new("25P01", message).into());
        }
        if self.cursor_named(name).is_ok() {
            return Err(SqlError::new("42P03", format!("cursor \"{name}\" already exists")).into());
        }
        let size = declare.text.len() + name.len();
        self.check_room(self.portals.iter().map(|p| p.1.size), size, "open portals")?;
        let plan = self.plan_within(&declare.text, &[], declare.at)?;
        if !plan.types.is_empty() {
            let message = "a parameter in the query of a cursor is not supported";
            return Err(SqlError::unsupported(message).into());
        }
        let Some(statement) = &plan.statement else {
            return Err(SqlError::syntax("syntax error at end of input").into());
        };
        let columns = self.columns_of(&plan, &[], &[], false)?.flatten();
        let call = Call { keeps: true, columns: columns.clone(), ..Call::default() };
        let state = match self.execute(conn, statement, call)? {
            Ran::Complete(_) => State::Done,
            Ran::Suspended(rows) => State::Suspended(rows, 0),
        };
        let portal = Portal {
            plan: Arc::clone(&plan),
            parameters: Vec::new(),
            formats: Vec::new(),
            columns,
            describe_on_execute: false,
            savepoints: self.savepoints.len(),
            state,
            size,
        };
        self.portals.push((name.as_str().into(), portal));
        Ok(())
    }

    /// Sends rows of a cursor, and returns how many.
    fn fetch(
        &mut self,
        conn: &mut dyn Conn,
        fetch: &Fetch,
        call: &Call<'_>,
    ) -> std::result::Result<usize, Failure> {
        let at = self.cursor_named(&fetch.name)?;
        let portal = &mut self.portals[at].1;
        let columns = portal.columns.clone().unwrap_or_default();
        if fetch.moves {
            return Ok(portal.state.skip_rows(fetch.limit));
        }
        if (0..columns.len()).any(|index| format_of(call.formats, index) != columns[index].format) {
            let message = "the rows of a cursor are sent as text";
            return Err(SqlError::unsupported(message).into());
        }
        let state = std::mem::replace(&mut portal.state, State::Done);
        if call.describe {
            self.out.row_description(&columns);
        }
        let State::Suspended(rows, start) = state else { return Ok(0) };
        let (state, sent) = self.send_rows(conn, rows, start, fetch.limit)?;
        self.portals[at].1.state = state;
        Ok(sent)
    }

    /// Returns the columns of the rows that FETCH sends.
    pub(crate) fn cursor_columns(&self, cursor: &Cursor) -> Result<Option<Vec<Column>>> {
        let Cursor::Fetch(fetch @ Fetch { moves: false, .. }) = cursor else { return Ok(None) };
        let at = self.cursor_named(&fetch.name)?;
        Ok(self.portals[at].1.columns.clone())
    }
}
