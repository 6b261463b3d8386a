//! A supervisor of child processes: starts them, prints what they write, and starts them again.
//!
//! `cargo run -p ums --example supervisor -- COMMAND [COMMAND..]`
//!
//! Each command is a line for `sh`. A process that ends is started again, after a pause that
//! doubles up to ten seconds as long as it ends within ten seconds. The children that it leaves
//! behind are killed before. SIGTERM and Ctrl-C ask the processes and their own children to end,
//! and kill those that have not ended within five seconds. A second signal ends the supervisor at
//! once.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ums::process::{Child, PipeReader, Signals};
use ums::sync::Select;

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
const GRACE: Duration = Duration::from_secs(5);

#[ums::main]
fn main() -> io::Result<()> {
    let commands: Vec<String> = std::env::args().skip(1).collect();
    if commands.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "usage: supervisor COMMAND.."));
    }
    let signals = Signals::termination()?;
    let tasks: Vec<_> = (1..)
        .zip(commands)
        .map(|(number, command)| ums::spawn(move || supervise(number, &command)))
        .collect();
    let signal = signals.wait()?;
    println!("ending: signal {signal}");
    tasks.iter().for_each(|task| task.cancel());
    for task in tasks {
        let _ = task.join();
    }
    println!("ended");
    Ok(())
}

/// Runs one command again and again, until the task is cancelled.
fn supervise(number: usize, command: &str) {
    let mut pause = PAUSE_MIN;
    while !ums::is_cancelled() {
        let begun = Instant::now();
        match run(number, command) {
            Ok(how) => println!("{number}: {how}"),
            Err(error) => println!("{number}: {error}"),
        }
        pause = if begun.elapsed() < PAUSE_MAX { (pause * 2).min(PAUSE_MAX) } else { PAUSE_MIN };
        let _ = ums::sleep(pause); // ends early if the task is cancelled
    }
}

/// Runs a process to its end and returns how it ended. If the task is cancelled, asks the process
/// to end.
fn run(number: usize, command: &str) -> io::Result<String> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).process_group(0); // with its children
    let mut child = Child::spawn(shell.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    println!("{number}: process {} has begun", child.id());
    let pipes = [child.stdout.take(), child.stderr.take()];
    ums::scope(|s| {
        for pipe in pipes.into_iter().flatten() {
            s.spawn(move || pass_on(number, pipe));
        }
        let ended = Select::new().on(child.ended(), |ended| ended).wait();
        // The waits of a cancelled task fail; these must not.
        let status = ums::shield(|| end(&mut child, ended.is_err()))?;
        Ok(ended.map_or_else(|cancelled| format!("{status} ({cancelled})"), |_| status.to_string()))
    })
}

/// Prints each line that a process writes, until it and its own children have closed the pipe. The
/// last lines count, so a cancellation does not end this.
fn pass_on(number: usize, pipe: PipeReader) {
    ums::shield(|| {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            println!("{number}: {}", String::from_utf8_lossy(&line));
        }
    });
}

/// Kills what is left of a process and its children, which are its process group. If the process
/// still runs, asks the group to end, and waits for that, before.
fn end(child: &mut Child, runs: bool) -> io::Result<ExitStatus> {
    let mut leader = Ok(());
    if runs {
        let _ = child.signal_group(15); // SIGTERM
        leader = Select::new().on(child.ended(), |ended| ended).on(GRACE, |()| Ok(())).wait()?;
    }
    let _ = child.signal_group(9); // SIGKILL, also to its children, which hold the pipes
    leader?;
    child.wait()
}
