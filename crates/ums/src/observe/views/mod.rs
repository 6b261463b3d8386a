//! Views: tables about schedulers, workers, requests and waits, read without stopping any of them.
//!
//! ```text
//!   counters, waiters, queues      written by their owners with plain stores
//!        |  read                   (snapshot.rs) no scheduler is stopped, asked or woken
//!        v
//!   Snapshot: rows as structs      the Rust API
//!        |  describe               (columns.rs)  one place that names columns and what they mean
//!        v
//!   Table: columns and cells ----> SQL, JSON and Prometheus text (text.rs)
//! ```
//!
//! A [`View`] names one table; [`Node::view`](crate::Node::view) reads only that table. Some values
//! of a reading may be slightly older than others, but no value is a mixture of an old and a new
//! one. Anything that costs more than loads is done only for the view that shows it: the used depth
//! of a stack, for example, takes a system call for each worker.
//!
//! The views keep no history: readers compute rates themselves.

// A file uses only files that are declared above it.
mod table;
mod rows;
mod columns;
mod snapshot;
mod read;
#[cfg(feature = "metrics")]
mod text;

pub use rows::{
    PendingIoRow, RequestRow, RequestSoFar, SchedulerRow, Snapshot, SwitchRow, UserRow, WaitRow,
    WaitsOf, WorkerRow,
};
pub use table::{Cell, Column, ColumnKind, Table, View};

pub(crate) use snapshot::worker as worker_row;
