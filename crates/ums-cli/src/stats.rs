//! `ums stats`: prints the statistics views of a process that uses ums, once or repeatedly, as text
//! or JSON.
//!
//! ```text
//! ums stats                       schedulers, waits and the monitor's reports of the only process
//! ums stats 4711 workers          one view
//! ums stats --json --watch 1      a line of JSON with all views, each second
//! ```
//!
//! If several processes serve statistics, it lists them. Tables fit the terminal (`tables.rs`). It
//! does not compute rates; `ums top` does.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::words::width;
use crate::{asking, tables};

/// The views that are shown as text by default.
const USUAL: &str = "ums_schedulers ums_wait_stats ums_monitor";

/// Options of `ums stats`.
#[derive(clap::Args)]
pub struct StatsArgs {
    /// The process's number or its socket. Default: the only process; if there are several, they
    /// are listed.
    #[arg(value_name = "PID|SOCKET")]
    process: Option<String>,

    /// One view, such as workers; it can stand alone. Default: schedulers, waits and the monitor's
    /// reports; with --json, all views. --list names them.
    #[arg(value_name = "VIEW")]
    view: Option<String>,

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
    let what: Vec<_> = args.process.iter().chain(&args.view).cloned().collect();
    let (target, view) = sort_out(&what)?;
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
    let more = |text: String| match text.starts_with("there is no view") {
        true => text + ": ums stats --list names them",
        false => text,
    };
    let answer = asking::ask(path, question).map_err(more)?;
    let text = match (args.json, args.list) {
        (true, _) => Value::Object(answer).to_string() + "\n",
        (false, true) => views(&answer, width()),
        (false, false) => asking::title(&answer) + "\n" + &tables(&answer, width()),
    };
    // `println` would panic if the reader has closed the pipe.
    let mut out = std::io::stdout().lock();
    Ok(out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok())
}

fn tables(answer: &Map<String, Value>, width: usize) -> String {
    let empty = Map::new();
    let tables = answer.get("tables").and_then(Value::as_object).unwrap_or(&empty);
    let one = |(name, rows): (&String, &Value)| {
        let rows: Vec<_> =
            rows.as_array().into_iter().flatten().filter_map(Value::as_object).collect();
        format!("\n{}\n{}", asking::printable(name), table(&rows, width))
    };
    tables.iter().map(one).collect()
}

fn table(rows: &[&Map<String, Value>], width: usize) -> String {
    let Some(first) = rows.first() else { return "  (no rows)\n".into() };
    let heads: Vec<String> = first.keys().map(|head| asking::printable(head)).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.values().map(cell).collect()).collect();
    tables::table(&heads, &rows, width)
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => asking::printable(text),
        other => other.to_string(),
    }
}

fn views(answer: &Map<String, Value>, width: usize) -> String {
    let text = |value: &Value, key: &str| asking::printable(value[key].as_str().unwrap_or(""));
    let mut out = String::new();
    for view in answer.get("views").and_then(Value::as_array).into_iter().flatten() {
        let about = vec![text(view, "name") + ": " + &text(view, "help")];
        out += &format!("\n{}", tables::columns(&[about], width));
        let column =
            |column: &Value| vec![text(column, "name"), text(column, "kind"), text(column, "help")];
        let lines = view["columns"].as_array().into_iter().flatten().map(column);
        let indented = lines.map(|cells| [vec![String::new()], cells].concat());
        out += &tables::columns(&indented.collect::<Vec<_>>(), width);
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
    fn the_statistics_of_a_process_fit_a_terminal_and_begin_with_what_it_is() {
        let path = std::env::temp_dir().join(format!("ums-stats-{}", std::process::id()));
        let at = ums::stats::StatsSocket::At(path.clone());
        let node = ums::Node::builder().schedulers(2).build().unwrap();
        node.serve_stats(at).unwrap();
        node.describe("port 127.0.0.1:5433, database /srv/ums.db");
        node.run(ums::yield_now);
        let all = asking::ask(&path, "*").unwrap();
        let title = asking::title(&all);
        assert!(title.ends_with(": port 127.0.0.1:5433, database /srv/ums.db"), "{title}");
        let listed = views(&asking::ask(&path, "?").unwrap(), 80);
        let text = tables(&all, 80) + &listed;
        let long = text.lines().find(|line| line.chars().count() > 80);
        assert_eq!(long, None, "{text}");
        assert!(text.contains("\nums_schedulers\n  scheduler_id "), "{text}");
        assert_eq!(table(&[], 80), "  (no rows)\n");
    }
}
