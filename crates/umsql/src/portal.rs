//! A portal of the extended protocol: the state that a session keeps of it between messages.
//!
//! Portals are not run here: `extended` makes portals, runs them and sends their rows.

use std::sync::Arc;

use rusqlite::types::Value;

use crate::plan::Plan;
use crate::wire::types::Column;

/// A statement with its parameters bound.
#[derive(Debug)]
pub(crate) struct Portal {
    pub(crate) plan: Arc<Plan>,
    pub(crate) parameters: Vec<Value>,
    pub(crate) formats: Vec<u16>,
    /// The columns as they were described to the client.
    pub(crate) columns: Option<Vec<Column>>,
    pub(crate) describe_on_execute: bool,
    /// How many savepoints there were when it was made.
    pub(crate) savepoints: usize,
    pub(crate) state: State,
    /// The length of the Bind message, used as an estimate of the memory that the portal takes.
    pub(crate) size: usize,
}

#[derive(Debug)]
pub(crate) enum State {
    Fresh,
    /// Encoded DataRow messages, and how many bytes of them have been sent.
    Suspended(Vec<u8>, usize),
    Done,
}

impl State {
    /// Passes over rows that it keeps, up to the limit (zero means all). Returns how many.
    pub(crate) fn skip_rows(&mut self, limit: usize) -> usize {
        let State::Suspended(rows, at) = self else { return 0 };
        let mut count = 0;
        while *at < rows.len() && (limit == 0 || count < limit) {
            *at = row_end(rows, *at);
            count += 1;
        }
        count
    }

    /// Returns how many bytes of rows it keeps.
    pub(crate) fn bytes(&self) -> usize {
        if let State::Suspended(rows, _) = self { rows.capacity() } else { 0 }
    }
}

/// Returns where the DataRow message ends that begins here.
pub(crate) fn row_end(rows: &[u8], at: usize) -> usize {
    let header = rows[at + 1..at + 5].try_into().expect("a kept row has its header");
    at + 1 + u32::from_be_bytes(header) as usize
}
