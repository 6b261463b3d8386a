//! Views: what the machine tells about itself, without stopping anybody (U93, B20, B22, B44-B47).
//!
//! ```text
//!   counters, waiters, queues      written by their owners with plain stores
//!        |  read                   (rows.rs)     no scheduler is stopped, asked or woken
//!        v
//!   Snapshot: rows as structs      the Rust API
//!        |  describe               (columns.rs)  one place that names columns and what they mean
//!        v
//!   Table: columns and cells ----> SQL, JSON and Prometheus text (text.rs)
//! ```
//!
//! A [`View`] names one table; [`Node::view`] reads just that one. A reading may see some fields a
//! moment older than others, and never a torn one. Whatever costs more than loads is done only for
//! the view that shows it: how deep a stack was used, for one, takes a system call for each worker.
//!
//! What it does not do: it keeps nothing, so rates are the reader's to compute.

mod columns;
mod rows;
mod text;

pub use rows::{
    PendingIoRow, RequestRow, RequestSoFar, SchedulerRow, Snapshot, SwitchRow, UserRow, WaitRow,
    WaitsOf, WorkerRow,
};

pub(crate) use rows::worker as worker_row;

use crate::node::Node;

/// A table that the machine can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum View {
    /// `ums_schedulers`
    Schedulers,
    /// `ums_workers`
    Workers,
    /// `ums_requests`: queued ones too.
    Requests,
    /// `ums_waiting_tasks`: workers that wait, for what, and who is in the way.
    WaitingTasks,
    /// `ums_wait_stats`: by reason.
    WaitStats,
    /// `ums_wait_histogram`: by reason and length.
    WaitHistogram,
    /// `ums_request_waits`: by running request and reason.
    RequestWaits,
    /// `ums_users`
    Users,
    /// `ums_user_waits`: by user and reason, of requests that have ended.
    UserWaits,
    /// `ums_context_switches`: by scheduler and cause.
    ContextSwitches,
    /// `ums_pending_io`: I/O requests that are outstanding.
    PendingIo,
    /// `ums_ring`: what schedulers did last, where that is recorded.
    Ring,
    /// `ums_monitor`: what the monitor has found, by condition.
    Monitor,
    /// `ums_reports`: its last reports.
    Reports,
    /// `ums_stalls`: where schedulers stood still, by backtrace.
    Stalls,
    /// `ums_spinlocks`: what the process's short locks came to.
    Spinlocks,
    /// `ums_deadlocks`: the process's last deadlocks, by who was in them.
    Deadlocks,
}

impl View {
    /// All of them.
    pub const ALL: [View; 17] = [
        View::Schedulers,
        View::Workers,
        View::Requests,
        View::WaitingTasks,
        View::WaitStats,
        View::WaitHistogram,
        View::RequestWaits,
        View::Users,
        View::UserWaits,
        View::ContextSwitches,
        View::PendingIo,
        View::Ring,
        View::Monitor,
        View::Reports,
        View::Stalls,
        View::Spinlocks,
        View::Deadlocks,
    ];

    /// The table without rows: its name, its columns and what they mean.
    pub fn empty(self) -> Table {
        columns::table(self, &Snapshot::default())
    }
}

impl Node {
    /// Reads one table.
    ///
    /// ```
    /// use ums::Node;
    /// use ums::stats::{Cell, View};
    /// let node = Node::builder().schedulers(2).build()?;
    /// let table = node.view(View::Schedulers);
    /// assert_eq!((table.name, table.rows.len()), ("ums_schedulers", 2));
    /// assert_eq!(table.columns[0].name, "scheduler_id");
    /// assert_eq!(table.rows[1][0], Cell::Int(1));
    /// # Ok::<(), ums::BuildError>(())
    /// ```
    pub fn view(&self, view: View) -> Table {
        columns::table(view, &rows::for_view(&self.inner, view))
    }
}

impl Snapshot {
    /// The snapshot as tables, in the order of [`View::ALL`].
    pub fn tables(&self) -> Vec<Table> {
        View::ALL.iter().map(|view| columns::table(*view, self)).collect()
    }
}

/// One cell of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Nothing.
    Null,
    /// A whole number.
    Int(i64),
    /// Text.
    Text(String),
}

impl From<u64> for Cell {
    fn from(n: u64) -> Cell {
        Cell::Int(i64::try_from(n).unwrap_or(i64::MAX))
    }
}

impl From<usize> for Cell {
    fn from(n: usize) -> Cell {
        (n as u64).into()
    }
}

impl From<u32> for Cell {
    fn from(n: u32) -> Cell {
        u64::from(n).into()
    }
}

impl From<bool> for Cell {
    fn from(yes: bool) -> Cell {
        Cell::Int(yes.into())
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_string())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Cell {
        value.map_or(Cell::Null, T::into)
    }
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Text.
    Text,
    /// A number that names something.
    Id,
    /// A number that rises and falls.
    Gauge,
    /// A number that only grows, until it is reset.
    Counter,
}

/// A column that describes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name, as SQL has it; the unit comes last.
    pub name: &'static str,
    /// What it holds.
    pub kind: ColumnKind,
    /// What that means, in a sentence.
    pub help: &'static str,
}

impl Column {
    /// Whether its cells are whole numbers.
    pub fn is_number(&self) -> bool {
        self.kind != ColumnKind::Text
    }
}

/// A table that describes itself.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its name, as SQL has it.
    pub name: &'static str,
    /// What its rows are, in a sentence.
    pub help: &'static str,
    /// How many of the first columns tell one row from the others over time. 0: rows come and go,
    /// as workers do.
    pub keys: usize,
    /// Its columns.
    pub columns: &'static [Column],
    /// Its rows, each as long as `columns`.
    pub rows: Vec<Vec<Cell>>,
}
