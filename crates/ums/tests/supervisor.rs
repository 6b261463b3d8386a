//! Runs the example `supervisor` as a process.
//!
//! Cargo builds examples for `cargo test` of the whole package.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use ums::process::{Child, PipeReader};

struct Supervisor {
    child: Child,
    lines: std::io::Lines<BufReader<PipeReader>>,
    seen: Vec<String>,
}

impl Supervisor {
    fn start(commands: &[&str]) -> Supervisor {
        let exe = std::env::current_exe().unwrap();
        let folder = exe.parent().and_then(|deps| deps.parent()).unwrap();
        let mut program = Command::new(folder.join("examples/supervisor"));
        let mut child = Child::spawn(program.args(commands).stdout(Stdio::piped())).unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Supervisor { child: child.kill_on_drop(), lines, seen: Vec::new() }
    }

    /// Reads until this line has come so many times.
    fn wait_for(&mut self, line: &str, times: usize) {
        while self.seen.iter().filter(|seen| *seen == line).count() < times {
            let next = self.lines.next().expect("it goes on").unwrap();
            self.seen.push(next);
        }
    }
}

#[test]
fn processes_are_started_again_and_asked_to_end() {
    let waits = "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.02; done";
    let mut supervisor = Supervisor::start(&["echo run; exit 3", waits]);
    supervisor.wait_for("1: run", 3);
    supervisor.wait_for("1: exit status: 3", 2);
    supervisor.wait_for("2: up", 1);
    supervisor.child.signal(15).unwrap();
    supervisor.wait_for("2: bye", 1);
    supervisor.wait_for("ended", 1);
    assert!(supervisor.child.wait().unwrap().success());
    let ended = |line: &String| line.starts_with("2: exit status: 5 (");
    assert!(supervisor.seen.iter().any(ended), "{:?}", supervisor.seen);
}

/// The shell ends at once, and leaves a process behind that holds its pipes. What is written need
/// not be text.
#[test]
fn the_children_of_a_process_end_with_it() {
    let mut supervisor = Supervisor::start(&[r"sleep 1000 & printf 'up \377\n'; wait"]);
    supervisor.wait_for("1: up \u{fffd}", 1);
    supervisor.child.signal(15).unwrap();
    supervisor.wait_for("ended", 1);
    assert!(supervisor.child.wait().unwrap().success());
}

/// The shell ends by itself, and leaves a process behind that holds its pipes.
#[test]
fn a_process_is_started_again_although_its_children_have_not_ended() {
    let mut supervisor = Supervisor::start(&["sleep 1000 & echo up"]);
    supervisor.wait_for("1: up", 3);
    supervisor.child.signal(15).unwrap();
    supervisor.wait_for("ended", 1);
    assert!(supervisor.child.wait().unwrap().success());
}

#[test]
fn without_commands_it_says_how_it_is_used() {
    let exe = std::env::current_exe().unwrap();
    let folder = exe.parent().and_then(|deps| deps.parent()).unwrap();
    let said = ums::process::output(&mut Command::new(folder.join("examples/supervisor"))).unwrap();
    assert_eq!(said.status.code(), Some(1));
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(said.contains("usage: supervisor COMMAND.."), "{said}");
}
