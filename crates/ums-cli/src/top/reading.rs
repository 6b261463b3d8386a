//! A reading: one answer of a process, as rows by view.

use serde_json::{Map, Value};

use crate::asking::printable;

/// The statistics of a process at one moment.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The name of its program.
    pub program: String,
    /// The process number.
    pub pid: i64,
    /// The time of the reading, on the process's own clock.
    pub now_us: i64,
    views: Map<String, Value>,
}

impl Reading {
    /// Makes a reading of the answer to `*`.
    pub fn of(mut answer: Map<String, Value>) -> Reading {
        let views = match answer.remove("tables") {
            Some(Value::Object(views)) => views,
            _ => Map::new(),
        };
        let head = Row(&answer);
        let (program, pid, now_us) =
            (head.text("program"), head.number("pid"), head.number("now_us"));
        Reading { program, pid, now_us, views }
    }

    /// Returns the rows of a view; none if the view is empty or the process does not have it.
    pub fn rows<'a>(&'a self, view: &str) -> impl Iterator<Item = Row<'a>> {
        let rows = self.views.get(view).and_then(Value::as_array).into_iter().flatten();
        rows.filter_map(Value::as_object).map(Row)
    }
}

/// One row. A missing column, as of a process with another version, is empty.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a>(&'a Map<String, Value>);

impl Row<'_> {
    /// Returns the number in this column, or 0.
    pub fn number(&self, column: &str) -> i64 {
        self.some(column).unwrap_or(0)
    }

    /// Returns the number in this column, if there is one.
    pub fn some(&self, column: &str) -> Option<i64> {
        self.0.get(column).and_then(Value::as_i64)
    }

    /// Returns the text in this column, without control characters.
    pub fn text(&self, column: &str) -> String {
        printable(self.0.get(column).and_then(Value::as_str).unwrap_or(""))
    }
}
