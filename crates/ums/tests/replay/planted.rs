//! Ten planted bugs are found, each in a process of its own (a build with debug assertions).
//!
//! ```text
//! cargo test -p ums --features sim --test replay ten_planted_bugs -- --nocapture
//! ```
//!
//! It prints for each bug the seed that found it, the time it took and the failure: the table in
//! docs/reliability.md.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::{alone, mixed};

/// No bug takes longer to be found. A run whose memory is damaged may hang, and is ended then.
const LONGEST: Duration = Duration::from_secs(120);

/// Runs in the child processes: the mixed story with a planted bug.
#[test]
fn the_mixed_story_has_a_bug() {
    if std::env::var_os("UMS_PLANTED").is_none() {
        return;
    }
    let command = "(a bug is planted)".to_owned();
    let check = ums::sim::Check { seeds: 0..1000, faults: mixed::FAULTS, command };
    ums::sim::check(&check, mixed::day);
}

/// Runs the mixed story with a bug in a process of its own. Returns None if the process hung and
/// was killed.
fn told(bug: &str, seed: Option<u64>) -> Option<Output> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "planted::the_mixed_story_has_a_bug", "--nocapture"]);
    command.env("UMS_PLANTED", bug).envs(seed.map(|seed| ("UMS_SEED", seed.to_string())));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    let mut out = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = std::io::Read::read_to_end(&mut out, &mut text);
        text
    });
    let mut hung = false;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if began.elapsed() > LONGEST => {
                hung = true;
                child.kill().unwrap();
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let stderr = reader.join().unwrap();
    (!hung).then_some(Output { status, stdout: Vec::new(), stderr })
}

/// Returns the first seed that kills its process, and how.
fn first_that_ends_it(bug: &str) -> String {
    for seed in 0..100 {
        match told(bug, Some(seed)) {
            Some(output) if output.status.success() => {}
            Some(output) => return format!("seed {seed}: {}", output.status),
            None => return format!("seed {seed}: it hangs"),
        }
    }
    "it ends its process, with no seed alone".into()
}

/// Returns how a bug was found; None if it was not.
fn found(bug: &str) -> Option<String> {
    let Some(output) = told(bug, None) else { return Some(first_that_ends_it(bug)) };
    if output.status.success() {
        return None;
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let line =
        text.lines().find(|line| line.starts_with("seed ") && line.contains(" fails after "));
    match line {
        Some(line) => Some(line.chars().take(160).collect()),
        None if output.status.signal().is_some() => Some(first_that_ends_it(bug)),
        None => panic!("{bug}: {text}"),
    }
}

#[test]
fn ten_planted_bugs_are_found() {
    let _alone = alone();
    let mut missed = Vec::new();
    for (bug, _) in ums::testing::planted::ALL {
        let began = Instant::now();
        match found(bug) {
            Some(how) => println!("| {bug} | {how} | {:.1} s |", began.elapsed().as_secs_f64()),
            None => missed.push(*bug),
        }
    }
    assert!(missed.is_empty(), "no story found {missed:?}");
}
