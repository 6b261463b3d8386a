//! The types that every table consists of, and the names of the tables.

/// The name of a table about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum View {
    /// `ums_schedulers`
    Schedulers,
    /// `ums_workers`
    Workers,
    /// `ums_requests`: queued and running requests.
    Requests,
    /// `ums_waiting_tasks`: workers that wait, what they wait for, and what blocks them.
    WaitingTasks,
    /// `ums_wait_stats`: wait times by reason.
    WaitStats,
    /// `ums_wait_histogram`: waits by reason and length.
    WaitHistogram,
    /// `ums_request_waits`: waits of running requests, by reason.
    RequestWaits,
    /// `ums_users`
    Users,
    /// `ums_user_waits`: waits of finished requests, by user and reason.
    UserWaits,
    /// `ums_context_switches`: context switches by scheduler and cause.
    ContextSwitches,
    /// `ums_pending_io`: I/O requests that are outstanding.
    PendingIo,
    /// `ums_ring`: the last events of the schedulers, if they are recorded.
    Ring,
    /// `ums_monitor`: what the monitor has found, by condition.
    #[cfg(feature = "monitor")]
    Monitor,
    /// `ums_reports`: the monitor's last reports.
    #[cfg(feature = "monitor")]
    Reports,
    /// `ums_stalls`: where workers kept their scheduler too long, by backtrace.
    #[cfg(feature = "monitor")]
    Stalls,
    /// `ums_spinlocks`: contention of the locks that are held for a few instructions, for the whole
    /// process.
    Spinlocks,
    /// `ums_deadlocks`: the process's last deadlocks, with their waiters.
    Deadlocks,
}

/// How many views there are. Three show what the monitor has found.
const VIEWS: usize = if cfg!(feature = "monitor") { 17 } else { 14 };

impl View {
    /// All views.
    pub const ALL: [View; VIEWS] = [
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
        #[cfg(feature = "monitor")]
        View::Monitor,
        #[cfg(feature = "monitor")]
        View::Reports,
        #[cfg(feature = "monitor")]
        View::Stalls,
        View::Spinlocks,
        View::Deadlocks,
    ];
}

/// One cell of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// No value (NULL).
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

/// The kind of values in a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnKind {
    /// Text.
    Text,
    /// A number that identifies something.
    Id,
    /// A number that can rise and fall.
    Gauge,
    /// A number that only grows, until it is reset.
    Counter,
}

/// A column of a table, with its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The column's name, in the form of SQL; the unit comes last.
    pub name: &'static str,
    /// The kind of the column's values.
    pub kind: ColumnKind,
    /// The column's meaning, in a sentence.
    pub help: &'static str,
}

impl Column {
    /// Returns whether the column's cells are whole numbers.
    pub fn is_number(&self) -> bool {
        self.kind != ColumnKind::Text
    }
}

/// A table, with the meaning of its columns.
#[derive(Clone, Debug)]
pub struct Table {
    /// The table's name, in the form of SQL.
    pub name: &'static str,
    /// The meaning of the table's rows, in a sentence.
    pub help: &'static str,
    /// How many of the first columns identify a row over time; 0 if rows come and go, as workers
    /// do.
    pub keys: usize,
    /// The table's columns.
    pub columns: &'static [Column],
    /// The table's rows, each as long as `columns`.
    pub rows: Vec<Vec<Cell>>,
}
