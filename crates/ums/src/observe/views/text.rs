//! Tables as text: JSON for scripts, and the text format of Prometheus.
//!
//! JSON: `{"ums_schedulers":[{"scheduler_id":0,...},...],...}`. A row is an object; a cell is a
//! number, a string or null.
//!
//! Prometheus (text format 0.0.4): in each table with key columns, each gauge and counter is a
//! metric `<table>_<column>`, and the key columns are its labels. In addition, waits are given as a
//! histogram in seconds, `ums_wait_seconds`, which is the usual form for Prometheus.

use std::fmt::Write;

use super::columns::table;
use super::rows::{Snapshot, WaitRow};
use super::table::{Cell, Column, ColumnKind, Table, View};
use crate::record::wait_stats::wait_bucket_end;

impl Snapshot {
    /// Returns all tables as one JSON object.
    ///
    /// ```
    /// let node = ums::Node::builder().schedulers(1).build()?;
    /// let json = node.snapshot().to_json();
    /// assert!(json.starts_with(r#"{"ums_schedulers":[{"scheduler_id":0,"name":"0","#));
    /// # Ok::<(), ums::BuildError>(())
    /// ```
    pub fn to_json(&self) -> String {
        let tables = self.tables();
        let tables = tables.iter().map(|t| format!("\"{}\":{}", t.name, t.to_json()));
        format!("{{{}}}", tables.collect::<Vec<_>>().join(",\n"))
    }

    /// Returns the metrics in the text format of Prometheus.
    ///
    /// ```
    /// let node = ums::Node::builder().schedulers(1).build()?;
    /// let text = node.snapshot().to_prometheus();
    /// let line = r#"ums_schedulers_current_workers_count{scheduler_id="0",name="0"}"#;
    /// assert!(text.contains(line));
    /// # Ok::<(), ums::BuildError>(())
    /// ```
    pub fn to_prometheus(&self) -> String {
        let mut out = String::new();
        for view in View::ALL.iter().filter(|view| view.empty().keys > 0) {
            table(*view, self).write_metrics(&mut out);
        }
        write_histogram(&self.waits, &mut out);
        out
    }
}

impl Table {
    /// Returns the rows as a JSON array of objects.
    pub fn to_json(&self) -> String {
        let row = |row: &Vec<Cell>| {
            let cells = self.columns.iter().zip(row);
            let cells =
                cells.map(|(column, cell)| format!("\"{}\":{}", column.name, cell.to_json()));
            format!("{{{}}}", cells.collect::<Vec<_>>().join(","))
        };
        format!("[{}]", self.rows.iter().map(row).collect::<Vec<_>>().join(",\n"))
    }

    fn write_metrics(&self, out: &mut String) {
        let measured = self.columns.iter().enumerate().skip(self.keys);
        for (at, column) in measured {
            let kind = match column.kind {
                ColumnKind::Gauge => "gauge",
                ColumnKind::Counter => "counter",
                ColumnKind::Text | ColumnKind::Id => continue,
            };
            let metric = format!("{}_{}", self.name, column.name);
            head(out, &metric, kind, column.help);
            for row in &self.rows {
                if let Cell::Int(n) = row[at] {
                    line(out, &metric, &self.labels(row), n);
                }
            }
        }
    }

    fn labels(&self, row: &[Cell]) -> String {
        let keys = self.columns.iter().zip(row).take(self.keys);
        let label = |(column, cell): (&Column, &Cell)| {
            let value = match cell {
                Cell::Null => String::new(),
                Cell::Int(n) => n.to_string(),
                Cell::Text(text) => label_value(text),
            };
            format!("{}=\"{value}\"", column.name)
        };
        keys.map(label).collect::<Vec<_>>().join(",")
    }
}

fn write_histogram(waits: &[WaitRow], out: &mut String) {
    const METRIC: &str = "ums_wait_seconds";
    head(out, METRIC, "histogram", "Waits that have ended, from the beginning to running again.");
    for wait in waits {
        let reason = format!("wait_type=\"{}\"", label_value(wait.reason.name()));
        let mut below = 0;
        for (at, waits) in wait.buckets.iter().enumerate() {
            below += waits;
            let end = wait_bucket_end(at).map_or("+Inf".to_string(), seconds);
            line(out, "ums_wait_seconds_bucket", &format!("{reason},le=\"{end}\""), below);
        }
        line(out, "ums_wait_seconds_sum", &reason, seconds(wait.total_ns));
        line(out, "ums_wait_seconds_count", &reason, below);
    }
}

fn head(out: &mut String, metric: &str, kind: &str, help: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "# HELP {metric} {help}\n# TYPE {metric} {kind}");
}

fn line(out: &mut String, metric: &str, labels: &str, value: impl std::fmt::Display) {
    let _ = writeln!(out, "{metric}{{{labels}}} {value}");
}

/// Returns nanoseconds as seconds, exactly, without floating point.
fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn label_value(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl Cell {
    pub(crate) fn to_json(&self) -> String {
        match self {
            Cell::Null => "null".to_string(),
            Cell::Int(n) => n.to_string(),
            Cell::Text(text) => {
                let mut out = String::from('"');
                for c in text.chars() {
                    match c {
                        '"' => out.push_str("\\\""),
                        '\\' => out.push_str("\\\\"),
                        c if c < ' ' => {
                            let _ = write!(out, "\\u{:04x}", c as u32);
                        }
                        c => out.push(c),
                    }
                }
                out.push('"');
                out
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[
        Column { name: "name", kind: ColumnKind::Text, help: "Its name." },
        Column { name: "level", kind: ColumnKind::Gauge, help: "How high." },
        Column { name: "peer", kind: ColumnKind::Id, help: "Another." },
    ];

    fn sample() -> Table {
        let row = vec![Cell::from("a \"b\"\\\n"), Cell::Int(-3), Cell::Null];
        Table { name: "ums_t", help: "Things.", keys: 1, columns: COLUMNS, rows: vec![row] }
    }

    #[test]
    fn json_escapes_what_must_be_b47() {
        assert_eq!(sample().to_json(), r#"[{"name":"a \"b\"\\\u000a","level":-3,"peer":null}]"#);
    }

    #[test]
    fn prometheus_gets_labels_and_measures_and_no_more_b47() {
        let mut out = String::new();
        sample().write_metrics(&mut out);
        let expected = "# HELP ums_t_level How high.\n# TYPE ums_t_level gauge\n\
                        ums_t_level{name=\"a \\\"b\\\"\\\\\\n\"} -3\n";
        assert_eq!(out, expected);
    }

    #[test]
    fn seconds_are_exact_b47() {
        let cases =
            [(0, "0"), (1024, "0.000001024"), (2_500_000_000, "2.5"), (1 << 36, "68.719476736")];
        for (ns, text) in cases {
            assert_eq!(seconds(ns), text);
        }
    }
}
