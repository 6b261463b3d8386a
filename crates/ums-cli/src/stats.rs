//! `ums stats`: prints the statistics views of a process that uses ums, once or repeatedly, as text
//! or JSON.
//!
//! ```text
//! ums stats                       schedulers, waits and the monitor's reports of the only process
//! ums stats 4711 workers          one view
//! ums stats --json --watch 1      a line of JSON with all views, each second
//! ```
//!
//! A table is printed with one line for each row. If that is too wide and there are few rows, it is
//! printed with one line for each column. This command does not compute rates; `ums top` does.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::asking;

/// The views that are shown as text by default.
const USUAL: &str = "ums_schedulers ums_wait_stats ums_monitor";
/// The widest table that is printed with a row on each line, in characters.
const WIDE: usize = 160;
/// The most rows that are printed with a column on each line.
const UPRIGHT_ROWS_MAX: usize = 12;

/// Options of `ums stats`.
#[derive(clap::Args)]
pub struct StatsArgs {
    /// The process's number or its socket, and a view: workers, or ums_workers. Default: the only
    /// process, and the usual views; with --json, all views.
    #[arg(value_name = "PID|SOCKET] [VIEW", num_args = 0..=2)]
    what: Vec<String>,

    /// Repeat every SECONDS, until the process ends.
    #[arg(long, value_name = "SECONDS")]
    watch: Option<f64>,

    /// Print one line of JSON: {"pid":...,"tables":{"ums_users":[{...}]}}.
    #[arg(long)]
    json: bool,

    /// List the views and their columns, with their meaning.
    #[arg(long, conflicts_with_all = ["watch"])]
    list: bool,
}

/// Runs the command.
pub fn run(args: &StatsArgs) -> ExitCode {
    match stats(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("ums stats: {sentence}");
            ExitCode::FAILURE
        }
    }
}

fn stats(args: &StatsArgs) -> Result<(), String> {
    let (target, view) = sort_out(&args.what)?;
    let path = asking::find(target)?;
    let question = match (view, args.json) {
        _ if args.list => "?".to_owned(),
        (Some(view), _) if view.starts_with("ums_") => view.to_owned(),
        (Some(view), _) => format!("ums_{view}"),
        (None, true) => "*".to_owned(),
        (None, false) => USUAL.to_owned(),
    };
    let pause = match args.watch {
        Some(seconds) if seconds.is_finite() && (0.01..=1e6).contains(&seconds) => {
            Some(Duration::from_secs_f64(seconds))
        }
        Some(_) => return Err("--watch takes seconds, 0.01 at least".into()),
        None => None,
    };
    while print(args, &path, &question)? {
        let Some(pause) = pause else { break };
        std::thread::sleep(pause);
    }
    Ok(())
}

/// Decides which argument is the process and which the view: a view is neither a number nor a path.
fn sort_out(what: &[String]) -> Result<(Option<&str>, Option<&str>), String> {
    let is_view = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_lowercase())
            && text.chars().all(|c| c.is_ascii_lowercase() || c == '_')
    };
    match what {
        [] => Ok((None, None)),
        [one] if is_view(one) => Ok((None, Some(one))),
        [one] => Ok((Some(one), None)),
        [target, view] if is_view(view) => Ok((Some(target), Some(view))),
        [_, view, ..] => Err(format!("\"{view}\" is no view: ums stats --list names them")),
    }
}

/// Prints one answer. Returns false if the reader has closed the pipe.
fn print(args: &StatsArgs, path: &Path, question: &str) -> Result<bool, String> {
    let answer = asking::ask(path, question)?;
    let text = match (args.json, args.list) {
        (true, _) => Value::Object(answer).to_string() + "\n",
        (false, true) => views(&answer),
        (false, false) => tables(&answer),
    };
    // `println` would panic if the reader has closed the pipe.
    let mut out = std::io::stdout().lock();
    Ok(out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok())
}

fn tables(answer: &Map<String, Value>) -> String {
    let empty = Map::new();
    let tables = answer.get("tables").and_then(Value::as_object).unwrap_or(&empty);
    let table = |(name, rows): (&String, &Value)| {
        let rows: Vec<_> =
            rows.as_array().into_iter().flatten().filter_map(Value::as_object).collect();
        format!("{}\n{}\n", asking::printable(name), table(&rows))
    };
    tables.iter().map(table).collect()
}

/// Formats rows as text: a line for each row, or, if that is too wide, a line for each column.
fn table(rows: &[&Map<String, Value>]) -> String {
    let Some(first) = rows.first() else { return "  (no rows)\n".into() };
    let heads: Vec<String> = first.keys().map(|head| asking::printable(head)).collect();
    let mut lines = vec![heads];
    lines.extend(rows.iter().map(|row| row.values().map(cell).collect()));
    let flat = columns(&lines);
    let wide = flat.lines().map(|line| line.chars().count()).max().unwrap_or(0) > WIDE;
    if !wide || rows.len() > UPRIGHT_ROWS_MAX {
        return flat;
    }
    let upright: Vec<Vec<String>> = (0..first.len())
        .map(|at| lines.iter().map(|line| line.get(at).cloned().unwrap_or_default()).collect())
        .collect();
    aligned(&upright, |_| false)
}

/// Aligns lines of cells in columns; numbers are right-aligned.
fn columns(lines: &[Vec<String>]) -> String {
    aligned(lines, |text| text.parse::<i64>().is_ok())
}

fn aligned(lines: &[Vec<String>], is_right: fn(&str) -> bool) -> String {
    let count = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| lines.iter().filter_map(|l| l.get(at)).map(|c| c.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|at| width(at).unwrap_or(0)).collect();
    let line = |cells: &Vec<String>| {
        let cells = cells.iter().zip(&widths).map(|(cell, &width)| match is_right(cell) {
            true => format!("{cell:>width$}"),
            false => format!("{cell:width$}"),
        });
        format!("  {}", cells.collect::<Vec<_>>().join("  ")).trim_end().to_owned() + "\n"
    };
    lines.iter().map(line).collect()
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => asking::printable(text),
        other => other.to_string(),
    }
}

fn views(answer: &Map<String, Value>) -> String {
    let text = |value: &Value, key: &str| asking::printable(value[key].as_str().unwrap_or(""));
    let mut out = String::new();
    for view in answer.get("views").and_then(Value::as_array).into_iter().flatten() {
        out += &format!("{}: {}\n", text(view, "name"), text(view, "help"));
        let column =
            |column: &Value| vec![text(column, "name"), text(column, "kind"), text(column, "help")];
        let lines = view["columns"].as_array().into_iter().flatten().map(column);
        out += &columns(&lines.collect::<Vec<_>>());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(what: &[&str]) -> Vec<String> {
        what.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn a_process_and_a_view_are_distinguished() {
        let of = |what: &[&str]| {
            let what = texts(what);
            sort_out(&what).map(|(a, b)| (a.map(str::to_owned), b.map(str::to_owned)))
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(of(&[]), Ok((None, None)));
        assert_eq!(of(&["workers"]), Ok((None, some("workers"))));
        assert_eq!(of(&["12"]), Ok((some("12"), None)));
        assert_eq!(of(&["/tmp/x"]), Ok((some("/tmp/x"), None)));
        assert_eq!(of(&["12", "ums_users"]), Ok((some("12"), some("ums_users"))));
        assert!(of(&["12", "13"]).unwrap_err().contains("no view"));
    }

    #[test]
    fn a_table_is_aligned_and_a_wide_one_stands_upright() {
        let row = |text: &str| match serde_json::from_str(text).unwrap() {
            Value::Object(row) => row,
            other => panic!("{other}"),
        };
        let rows =
            [row(r#"{"id":7,"name":"a","of":null}"#), row(r#"{"id":10,"name":"bc\u001b","of":3}"#)];
        let text = table(&rows.iter().collect::<Vec<_>>());
        assert_eq!(text, "  id  name  of\n   7  a     -\n  10  bc?    3\n");
        let wide = row(&format!(r#"{{"id":7,"{}":1,"{}":2}}"#, "x".repeat(90), "y".repeat(90)));
        let text = table(&[&wide]);
        assert_eq!(text.lines().count(), 3, "{text}");
        assert!(text.starts_with("  id "), "{text}");
        assert_eq!(table(&[]), "  (no rows)\n");
    }
}
