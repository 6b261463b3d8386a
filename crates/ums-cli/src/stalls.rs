//! `ums stalls`: the stalls of a process's schedulers, as backtraces with their times, or as a
//! flame graph.
//!
//! The process's monitor merges the backtraces of stalls. This command requests the sums, and
//! writes them in the format that flame graph programs read (one line for each backtrace, with its
//! milliseconds), or draws the graph itself.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use inferno::flamegraph;

use crate::asking;

/// Options of `ums stalls`.
#[derive(clap::Args)]
pub struct StallsArgs {
    /// The process's number or its socket. Default: the only process; if there are several, they
    /// are listed.
    #[arg(value_name = "PID|SOCKET")]
    process: Option<String>,

    /// Write a file: a flame graph if its name ends in .svg, otherwise the stacks as text. Default:
    /// the stacks on standard output.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &StallsArgs) -> ExitCode {
    match stalls(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("ums stalls: {sentence}");
            ExitCode::FAILURE
        }
    }
}

fn stalls(args: &StallsArgs) -> Result<(), String> {
    let path = asking::find(args.process.as_deref())?;
    let answer = asking::ask(&path, "ums_stalls")?;
    let rows = answer["tables"]["ums_stalls"].as_array().cloned().unwrap_or_default();
    let line = |row: &serde_json::Value| {
        let stack = asking::printable(row["stack"].as_str().unwrap_or("?"));
        format!("{stack} {}\n", row["total_ms"].as_u64().unwrap_or(0))
    };
    let text: String = rows.iter().map(line).collect();
    if text.is_empty() {
        return Err("no stall has been recorded, or the process has no monitor".into());
    }
    match &args.out {
        None => print!("{text}"),
        Some(file) => write(file, &text).map_err(|e| format!("{}: {e}", file.display()))?,
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<(), Box<dyn std::error::Error>> {
    if file.extension().is_none_or(|end| end != "svg") {
        return Ok(std::fs::write(file, text)?);
    }
    Ok(std::fs::write(file, draw(text)?)?)
}

/// Draws the backtraces as a flame graph.
fn draw(text: &str) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut options = flamegraph::Options::default();
    options.title = "Where schedulers stalled".into();
    options.count_name = "ms".into();
    let mut picture = Vec::new();
    flamegraph::from_lines(&mut options, text.lines(), &mut picture)?;
    Ok(picture)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_become_a_picture_with_their_functions_and_times_b42() {
        let picture = draw("app::main;app::parse 1834\napp::main;app::sort 20\n").unwrap();
        let picture = String::from_utf8(picture).unwrap();
        assert!(picture.starts_with("<?xml") && picture.contains("Where schedulers stalled"));
        assert!(picture.contains("app::parse (1,834 ms"), "{picture}");
        assert!(picture.contains("app::main (1,854 ms"), "{picture}");
    }
}
