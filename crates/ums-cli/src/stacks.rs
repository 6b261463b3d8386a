//! `ums stacks`: the backtrace of every worker of a process.
//!
//! ```text
//! ums stacks                      of the only process
//! ums stacks 4711                 of process 4711
//! ums stacks 4711 0/3             of worker 3 of scheduler 0, including functions of ums itself
//! ums stacks --json               a line of JSON, with all functions
//! ```
//!
//! The process resolves the functions' names itself, on the thread that answers. None of its
//! schedulers is stopped.

use std::io::Write;
use std::process::ExitCode;

use serde_json::{Map, Value};

use crate::asking::{self, printable};
use crate::words::counted;

/// Options of `ums stacks`.
#[derive(clap::Args)]
pub struct StacksArgs {
    /// The process's number or its socket. Default: the only process; if there are several, they
    /// are listed.
    #[arg(value_name = "PID|SOCKET")]
    process: Option<String>,

    /// One worker, with all functions: 0/3 is worker 3 of scheduler 0. It can stand alone. Default:
    /// all workers that are not idle.
    #[arg(value_name = "WORKER")]
    worker: Option<String>,

    /// Show all functions, including those of ums itself.
    #[arg(long)]
    full: bool,

    /// Print one line of JSON: {"pid":...,"stacks":[{"scheduler_id":...,"frames":[...]}]}.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &StacksArgs) -> ExitCode {
    match stacks(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("ums stacks: {sentence}");
            ExitCode::FAILURE
        }
    }
}

fn stacks(args: &StacksArgs) -> Result<(), String> {
    let what: Vec<_> = args.process.iter().chain(&args.worker).cloned().collect();
    let (target, worker) = sort_out(&what)?;
    let path = asking::find(target)?;
    let question = match worker {
        Some((scheduler, worker)) => format!("stack {scheduler} {worker}"),
        None => "stacks".to_owned(),
    };
    let answer = asking::ask_patiently(&path, &question)?;
    let text = match args.json {
        true => Value::Object(answer).to_string() + "\n",
        false => text(&answer, args.full || worker.is_some()),
    };
    // `println` would panic if the reader has closed the pipe.
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    Ok(())
}

type Named = (u32, u32);

/// Decides which argument is the process and which the worker.
fn sort_out(what: &[String]) -> Result<(Option<&str>, Option<Named>), String> {
    let worker = |text: &str| {
        let (scheduler, worker) = text.split_once('/')?;
        Some((scheduler.parse().ok()?, worker.parse().ok()?))
    };
    match what {
        [] => Ok((None, None)),
        [one] => match worker(one) {
            Some(named) => Ok((None, Some(named))),
            None => Ok((Some(one), None)),
        },
        [target, named, ..] => match worker(named) {
            Some(named) => Ok((Some(target), Some(named))),
            None => Err(format!("\"{named}\" is no worker: 0/3 is worker 3 of scheduler 0")),
        },
    }
}

fn text(answer: &Map<String, Value>, full: bool) -> String {
    let empty = Vec::new();
    let stacks = answer.get("stacks").and_then(Value::as_array).unwrap_or(&empty);
    let busy = counted(stacks.len(), "worker");
    let mut out = format!("{}\n{busy} not idle\n", asking::title(answer));
    for stack in stacks {
        out += "\n";
        let lines = stack["text"].as_str().unwrap_or("").lines();
        let shown = if full { 1 } else { usize::MAX };
        lines.take(shown).for_each(|line| out += &(printable(line) + "\n"));
        if full {
            let frames = stack["frames"].as_array().into_iter().flatten();
            frames.for_each(|frame| out += &frame_line(frame));
        }
    }
    out
}

fn frame_line(frame: &Value) -> String {
    let name = printable(frame["name"].as_str().unwrap_or("?"));
    match frame["place"].as_str() {
        Some(place) => format!("    at {name} ({})\n", printable(place)),
        None => format!("    at {name}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_and_a_worker_are_distinguished() {
        let of = |what: &[&str]| {
            let what: Vec<_> = what.iter().map(|text| (*text).to_owned()).collect();
            sort_out(&what).map(|(a, b)| (a.map(str::to_owned), b))
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(of(&[]), Ok((None, None)));
        assert_eq!(of(&["12"]), Ok((some("12"), None)));
        assert_eq!(of(&["0/3"]), Ok((None, Some((0, 3)))));
        assert_eq!(of(&["/tmp/3"]), Ok((some("/tmp/3"), None)));
        assert_eq!(of(&["12", "1/2"]), Ok((some("12"), Some((1, 2)))));
        assert!(of(&["12", "3"]).unwrap_err().contains("no worker"));
    }

    #[test]
    fn stacks_of_a_real_node_are_printed_as_text() {
        #[inline(never)]
        fn waits_for_the_ferry() {
            let slept = ums::sleep(std::time::Duration::from_secs(600));
            // Without this the call may be a tail call, and this function would not appear in the
            // backtrace.
            std::hint::black_box(&slept);
        }
        let path = std::env::temp_dir().join(format!("ums-stacks-{}", std::process::id()));
        let at = ums::stats::StatsSocket::At(path.clone());
        let node = ums::Node::builder().schedulers(1).build().unwrap();
        node.serve_stats(at).unwrap();
        let task = node.spawn(waits_for_the_ferry).unwrap();
        while node.view(ums::stats::View::WaitingTasks).rows.is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let answer = asking::ask_patiently(&path, "stacks").unwrap();
        let short = text(&answer, false);
        assert!(
            short.contains("\n1 worker not idle\n\nworker 1 of scheduler 0, thread "),
            "{short}"
        );
        // This program is called as the library, so its functions are taken for the library's;
        // tests/clients/stacks.py looks at those of another program.
        assert!(!short.contains("worker_main") && !short.contains("at ums::"), "{short}");
        let full = text(&answer, true);
        assert!(full.contains("worker_main") && full.contains("waits_for_the_ferry"), "{full}");
        task.cancel();
    }
}
