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
    pub(crate) columns: Option<Arc<[Column]>>,
    pub(crate) describe_on_execute: bool,
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
    /// Returns how many bytes of rows it keeps.
    pub(crate) fn bytes(&self) -> usize {
        if let State::Suspended(rows, _) = self { rows.capacity() } else { 0 }
    }
}
