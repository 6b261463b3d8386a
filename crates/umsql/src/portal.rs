//! A portal of the extended protocol: what a session keeps of it between its messages.
//!
//! What it does not do: run. `extended` makes portals, runs them and sends their rows.

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
    /// How it was described to the client.
    pub(crate) columns: Option<Vec<Column>>,
    pub(crate) describe_on_execute: bool,
    pub(crate) state: State,
    /// The length of the Bind message, an estimate of the memory that the portal takes.
    pub(crate) size: usize,
}

#[derive(Debug)]
pub(crate) enum State {
    Fresh,
    /// Encoded DataRow messages, of which those before this byte have been sent.
    Suspended(Vec<u8>, usize),
    Done,
}
