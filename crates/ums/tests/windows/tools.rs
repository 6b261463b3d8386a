//! `gdb` and `perf` see each worker as an ordinary thread, with its name, its stack and its
//! functions.
//!
//! Each tool is skipped, by name, if it is missing or the kernel refuses it.
//!
//! Unsafe because threads are named. Named invariant **Own Memory**: the name is a literal.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use ums::windows::{self, CompletionList, WorkerContext};

use crate::harness::{Rounds, alone, eventually};

fn name_this_thread(name: &std::ffi::CStr) {
    // SAFETY: Own Memory.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

#[inline(never)]
fn blocked_in_a_read(pipe: &mut std::io::PipeReader) -> usize {
    std::hint::black_box(pipe.read(&mut [0]).unwrap())
}

#[inline(never)]
fn computing_all_the_time(stop: &AtomicBool) -> u64 {
    let mut n = 0_u64;
    while !stop.load(SeqCst) {
        n = std::hint::black_box(n.wrapping_add(1));
    }
    n
}

/// The child process of the tests below. It prints the numbers of its workers' threads, and ends
/// when its input ends.
#[test]
fn workers_for_tools() {
    if std::env::var_os("UMS_TOOLS_CHILD").is_none() {
        return;
    }
    alone(|| {
        let list = CompletionList::new().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (mut pipe, mut feed) = std::io::pipe().unwrap();
        let reads = move || {
            name_this_thread(c"reading-worker");
            assert_eq!(blocked_in_a_read(&mut pipe), 1);
        };
        let mine = stop.clone();
        let computes = move || {
            name_this_thread(c"busy-worker");
            computing_all_the_time(&mine);
            windows::thread_yield(0).unwrap();
        };
        let reader = WorkerContext::spawn(&list, reads).unwrap();
        let busy = WorkerContext::spawn(&list, computes).unwrap();
        println!("threads {} {}", reader.thread_id(), busy.thread_id());
        std::thread::spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            feed.write_all(b"x").unwrap();
            stop.store(true, SeqCst);
        });
        Rounds::run(&list);
    });
}

struct Run {
    child: Child,
    reader: u32,
    busy: u32,
}

impl Run {
    fn start() -> Run {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tools::workers_for_tools", "--nocapture"])
            .env("UMS_TOOLS_CHILD", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let said = lines.find(|line| line.contains("threads ")).expect("it says its threads");
        let numbers: Vec<u32> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
        // Reads the rest of the output, so that the child's writes do not block.
        std::thread::spawn(move || lines.count());
        let run = Run { reader: numbers[0], busy: numbers[1], child };
        let comm = format!("/proc/{}/task/{}/comm", run.child.id(), run.busy);
        eventually("the busy worker runs", || {
            std::fs::read_to_string(&comm).is_ok_and(|name| name.starts_with("busy-worker"))
        });
        run
    }

    /// Checks that the child was not disturbed by the tool: it ends normally.
    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// Returns what a tool prints. Returns None if the tool is missing.
fn said_by(tool: &str, args: &[&str]) -> Option<String> {
    let output = match Command::new(tool).args(args).stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) => {
            ums::testing::skipped(tool, error);
            return None;
        }
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() || text.contains("ptrace: ") {
        let errors = String::from_utf8_lossy(&output.stderr);
        ums::testing::skipped("attaching", format_args!("{tool}: {text}{errors}"));
        return None;
    }
    Some(text)
}

#[test]
fn gdb_sees_each_worker_as_a_thread_with_its_name_and_stack() {
    let run = Run::start();
    let pid = run.child.id().to_string();
    let (list, stacks) = ("info threads", "thread apply all bt 24");
    let args = ["-nx", "-batch", "-p", &pid, "-ex", list, "-ex", stacks];
    if let Some(said) = said_by("gdb", &args) {
        for worker in [run.reader, run.busy] {
            assert!(said.contains(&format!("LWP {worker})")), "no thread {worker}:\n{said}");
        }
        for name in ["reading-worker", "busy-worker", "computing_all_the_time"] {
            assert!(said.contains(name), "no {name}:\n{said}");
        }
        // The worker is blocked, or it has not reached its gate yet. In both cases its own function
        // is on its stack.
        assert!(said.contains("blocked_in_a_read"), "{said}");
    }
    run.end();
}

#[test]
fn perf_samples_a_worker_as_a_thread_of_its_own() {
    let run = Run::start();
    std::thread::sleep(Duration::from_millis(20));
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("perf.data");
    let (data, thread) = (data.to_str().unwrap(), run.busy.to_string());
    // `cpu-clock` works even where the hardware's counters are not available.
    let record =
        ["record", "-q", "-e", "cpu-clock", "-g", "-t", &thread, "-o", data, "--", "sleep", "0.3"];
    if said_by("perf", &record).is_some() {
        let report = ["report", "-i", data, "--stdio", "--no-children", "-g", "none"];
        let said = said_by("perf", &report).unwrap_or_default();
        assert!(said.contains("computing_all_the_time"), "{said}");
        assert!(said.contains("busy-worker"), "{said}");
    }
    run.end();
}
