//! Sheets: the lists of the screen, as columns of sortable cells. They draw nothing.

use std::cmp::Ordering;

use super::model::{Model, count_text, span_text, worker_id};

/// The lists, in the order of their keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tab {
    Workers,
    Requests,
    Users,
    Waits,
    Io,
    Monitor,
    Reports,
}

impl Tab {
    pub const ALL: [Tab; 7] =
        [Tab::Workers, Tab::Requests, Tab::Users, Tab::Waits, Tab::Io, Tab::Monitor, Tab::Reports];

    pub fn name(self) -> &'static str {
        match self {
            Tab::Workers => "workers",
            Tab::Requests => "requests",
            Tab::Users => "users",
            Tab::Waits => "waits",
            Tab::Io => "I/O",
            Tab::Monitor => "monitor",
            Tab::Reports => "reports",
        }
    }

    /// Returns the column by which the list is sorted at first, and whether the largest values come
    /// first.
    pub fn first_sort(self) -> (usize, bool) {
        match self {
            Tab::Workers => (4, true),
            Tab::Requests => (7, true),
            Tab::Users => (3, true),
            Tab::Waits => (3, true),
            Tab::Io => (4, true),
            Tab::Monitor => (1, true),
            Tab::Reports => (0, false),
        }
    }
}

/// A cell: its text and its sort key.
#[derive(Clone, Debug)]
pub enum Cell {
    Text(String),
    Count(i64),
    Rate(Option<f64>),
    Us(i64),
    /// There is no number, for example because a request has no worker.
    None,
}

impl Cell {
    pub fn text(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Count(n) => n.to_string(),
            Cell::Rate(rate) => rate.map_or("-".into(), count_text),
            Cell::Us(us) => span_text(*us),
            Cell::None => String::new(),
        }
    }

    pub fn is_number(&self) -> bool {
        !matches!(self, Cell::Text(_))
    }

    fn weight(&self) -> f64 {
        match self {
            Cell::Text(_) | Cell::None => f64::NEG_INFINITY,
            Cell::Count(n) | Cell::Us(n) => *n as f64,
            Cell::Rate(rate) => rate.unwrap_or(f64::NEG_INFINITY),
        }
    }

    fn order(&self, other: &Cell) -> Ordering {
        match (self, other) {
            (Cell::Text(a), Cell::Text(b)) => a.cmp(b),
            (a, b) => a.weight().total_cmp(&b.weight()),
        }
    }
}

fn nonzero(n: i64) -> Cell {
    if n == 0 { Cell::None } else { Cell::Count(n) }
}

/// A line of a sheet.
#[derive(Clone, Debug)]
pub struct Line {
    pub cells: Vec<Cell>,
    /// The worker that Enter shows.
    pub worker: Option<(i64, i64)>,
}

/// A list: the heads of its columns with their widths, the most important column first, and its
/// lines.
#[derive(Clone, Debug)]
pub struct Sheet {
    pub heads: &'static [(&'static str, u16)],
    pub lines: Vec<Line>,
}

/// Returns the list of a tab, sorted.
pub fn sheet(model: &Model, tab: Tab, (by, down): (usize, bool), show_idle: bool) -> Sheet {
    let (heads, mut lines): (&'static [_], _) = match tab {
        Tab::Workers => (WORKERS, workers(model, show_idle)),
        Tab::Requests => (REQUESTS, requests(model)),
        Tab::Users => (USERS, users(model)),
        Tab::Waits => (WAITS, waits(model)),
        Tab::Io => (IO, io(model)),
        Tab::Monitor => (MONITOR, findings(model)),
        Tab::Reports => (REPORTS, reports(model)),
    };
    lines.sort_by(|a, b| {
        let order = a.cells[by].order(&b.cells[by]);
        if down { order.reverse() } else { order }
    });
    Sheet { heads, lines }
}

const WORKERS: &[(&str, u16)] = &[
    ("sched", 6),
    ("worker", 7),
    ("state", 10),
    ("wait reason", 20),
    ("waited", 8),
    ("user", 6),
    ("request", 8),
    ("done", 7),
    ("switches", 9),
    ("thread", 8),
];

fn workers(model: &Model, show_idle: bool) -> Vec<Line> {
    let rows = model.now.rows("ums_workers");
    let rows = rows.filter(|row| show_idle || row.text("state") != "IDLE");
    let line = |row: super::reading::Row<'_>| {
        let waits = matches!(row.text("state").as_str(), "WAITING" | "PREEMPTIVE");
        let age = Cell::Us(row.number("wait_duration_ms") * 1000);
        let cells = vec![
            Cell::Count(row.number("scheduler_id")),
            Cell::Count(row.number("worker_id")),
            Cell::Text(row.text("state")),
            Cell::Text(row.text("wait_type")),
            if waits { age } else { Cell::None },
            nonzero(row.number("user_id")),
            nonzero(row.number("request_id")),
            Cell::Count(row.number("tasks_processed_count")),
            Cell::Count(row.number("context_switch_count")),
            nonzero(row.number("os_thread_id")),
        ];
        Line { cells, worker: Some(worker_id(&row)) }
    };
    rows.map(line).collect()
}

const REQUESTS: &[(&str, u16)] = &[
    ("request", 8),
    ("user", 6),
    ("sched", 6),
    ("worker", 7),
    ("state", 10),
    ("wait reason", 16),
    ("queued", 8),
    ("elapsed", 8),
    ("waits", 7),
    ("wait time", 10),
];

fn requests(model: &Model) -> Vec<Line> {
    let line = |row: super::reading::Row<'_>| {
        let worker = row.some("worker_id");
        let queued = row.number("queueing_time_microseconds");
        let cells = vec![
            Cell::Count(row.number("request_id")),
            nonzero(row.number("user_id")),
            Cell::Count(row.number("scheduler_id")),
            worker.map_or(Cell::None, Cell::Count),
            Cell::Text(row.text("task_state")),
            Cell::Text(row.text("wait_type")),
            Cell::Us(queued),
            Cell::Us(row.number("elapsed_us")),
            Cell::Count(row.number("waits_count")),
            Cell::Us(row.number("wait_time_us")),
        ];
        Line { cells, worker: worker.map(|_| worker_id(&row)) }
    };
    model.now.rows("ums_requests").map(line).collect()
}

const USERS: &[(&str, u16)] = &[
    ("user", 6),
    ("sched", 6),
    ("state", 7),
    ("requests", 9),
    ("queue avg", 10),
    ("queue max", 10),
    ("run avg", 9),
    ("wait avg", 9),
    ("waits", 8),
];

fn users(model: &Model) -> Vec<Line> {
    let line = |row: super::reading::Row<'_>| {
        let done = row.number("requests_done");
        let average = |column| Cell::Us(row.number(column) / done.max(1));
        let state = match (row.number("is_holding"), row.number("is_busy")) {
            (1, _) => "HOLDING",
            (_, 1) => "BUSY",
            _ => "IDLE",
        };
        let cells = vec![
            Cell::Count(row.number("user_id")),
            Cell::Count(row.number("scheduler_id")),
            Cell::Text(state.into()),
            Cell::Count(done),
            average("queueing_time_us"),
            Cell::Us(row.number("max_queueing_time_us")),
            average("elapsed_us"),
            average("wait_time_us"),
            Cell::Count(row.number("waits_count")),
        ];
        Line { cells, worker: None }
    };
    model.now.rows("ums_users").map(line).collect()
}

const WAITS: &[(&str, u16)] = &[
    ("wait reason", 22),
    ("waiting", 8),
    ("waits/s", 8),
    ("time/s", 8),
    ("signal/s", 9),
    ("average", 8),
    ("longest", 8),
    ("waits", 10),
    ("class", 8),
];

fn waits(model: &Model) -> Vec<Line> {
    let line = |wait: super::model::Wait| {
        let us = |rate: Option<f64>| rate.map_or(Cell::None, |rate| Cell::Us(rate as i64));
        let cells = vec![
            Cell::Text(wait.name),
            Cell::Count(wait.waiting),
            Cell::Rate(wait.rate),
            us(wait.us_rate),
            us(wait.signal_us_rate),
            Cell::Us(wait.us / wait.count.max(1)),
            Cell::Us(wait.max_us),
            Cell::Count(wait.count),
            Cell::Text(wait.class),
        ];
        Line { cells, worker: None }
    };
    model.waits().into_iter().map(line).collect()
}

const IO: &[(&str, u16)] =
    &[("sched", 6), ("operation", 14), ("descriptor", 11), ("offset", 14), ("pending", 8)];

fn io(model: &Model) -> Vec<Line> {
    let line = |row: super::reading::Row<'_>| {
        let some = |column| row.some(column).map_or(Cell::None, Cell::Count);
        let cells = vec![
            Cell::Count(row.number("scheduler_id")),
            Cell::Text(row.text("io_type")),
            some("io_handle"),
            some("io_offset"),
            Cell::Us(row.number("io_pending_us")),
        ];
        Line { cells, worker: None }
    };
    model.now.rows("ums_pending_io").map(line).collect()
}

const MONITOR: &[(&str, u16)] =
    &[("condition", 16), ("reports", 8), ("suppressed", 11), ("new", 5)];

fn findings(model: &Model) -> Vec<Line> {
    let line = |found: super::model::Finding| {
        let cells = vec![
            Cell::Text(found.condition),
            Cell::Count(found.reports),
            Cell::Count(found.suppressed),
            nonzero(found.new),
        ];
        Line { cells, worker: None }
    };
    model.findings().into_iter().map(line).collect()
}

const REPORTS: &[(&str, u16)] = &[
    ("ago", 8),
    ("condition", 15),
    ("sched", 6),
    ("worker", 7),
    ("lasted", 8),
    ("in", 28),
    ("because", 60),
    ("user", 6),
    ("request", 8),
];

fn reports(model: &Model) -> Vec<Line> {
    let line = |row: super::reading::Row<'_>| {
        let worker = row.some("worker_id");
        let cells = vec![
            Cell::Us(row.number("age_ms") * 1000),
            Cell::Text(row.text("condition")),
            Cell::Count(row.number("scheduler_id")),
            worker.map_or(Cell::None, Cell::Count),
            Cell::Us(row.number("lasted_ms") * 1000),
            Cell::Text(last_names(&row.text("function"))),
            Cell::Text(row.text("diagnosis")),
            nonzero(row.number("user_id")),
            nonzero(row.number("request_id")),
        ];
        Line { cells, worker: worker.map(|_| worker_id(&row)) }
    };
    model.now.rows("ums_reports").map(line).collect()
}

/// Returns the last two parts of a path.
fn last_names(function: &str) -> String {
    let mut names: Vec<_> = function.rsplit("::").take(2).collect();
    names.reverse();
    names.join("::")
}
