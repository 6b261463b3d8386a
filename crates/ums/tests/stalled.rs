//! A worker that keeps its scheduler is reported in one line on stderr, without any option of
//! the builder. The monitor's thread costs an idle process no processor time.
//!
//! A report has the line of the function, so this program needs debug information.

#![allow(unsafe_code)] // For the harness.

mod common;

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use common::*;
use ums::monitor::Condition;
use ums::{Builder, WorkerKind};

static ENOUGH: AtomicBool = AtomicBool::new(false);
/// Longer than a worker may run without yielding before it is reported, plus the time until the
/// monitor notices it.
const LONG: Duration = ms(2500);
/// How long the worker sleeps that is held up: so long that it still sleeps when the worker that
/// keeps the scheduler begins, even if this thread gets no processor for a while between the two.
const HELD_UP: Duration = ms(500);

const FIRST_LINE: u32 = line!();

#[inline(never)]
fn guilty_of_spinning() {
    while !ENOUGH.load(SeqCst) {
        std::hint::spin_loop();
    }
}

#[inline(never)]
fn guilty_of_sleeping() {
    while !ENOUGH.load(SeqCst) {
        std::thread::sleep(ms(3000));
    }
}

const LAST_LINE: u32 = line!();

fn kind_and_act(errand: &str) -> (WorkerKind, &str) {
    let (kind, act) = errand.split_once(' ').expect("a kind and an act");
    (kind_named(kind), act)
}

/// Starts a thread that ends this process when stdin is closed: the parent has then read what it
/// waits for, or has waited long enough.
fn end_with_stdin() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ENOUGH.store(true, SeqCst);
    });
    std::thread::spawn(|| {
        std::thread::sleep(PATIENCE);
        ENOUGH.store(true, SeqCst);
    });
}

/// The program in the child process: one worker keeps its scheduler until stdin is closed, and
/// another waits there.
fn program(errand: &str) {
    let (kind, act) = kind_and_act(errand);
    end_with_stdin();
    let node = build(kind, |b| b.schedulers(1));
    // Whenever the guilty worker begins, this one waits or is ready.
    let other = start(&node, 0, || {
        while !ENOUGH.load(SeqCst) {
            ums::sleep(ms(10)).unwrap();
        }
    });
    let run = if act == "spins" { guilty_of_spinning } else { guilty_of_sleeping };
    on(&node, 0, run);
    other.join().unwrap();
    assert_eq!(on(&node, 0, || "goes on"), "goes on");
}

/// Runs the program until it prints a message, and ends it. Returns its whole output on stderr.
fn sentences(test: &str, errand: &str) -> Vec<String> {
    let mut child = child(test, errand)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _watch = Watchdog::start(errand.to_owned());
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut said: Vec<String> = Vec::new();
    for line in lines.by_ref().map_while(Result::ok) {
        let is_it = line.starts_with("ums: ");
        said.push(line);
        if is_it {
            break;
        }
    }
    drop(child.stdin.take());
    said.extend(lines.map_while(Result::ok));
    assert!(child.wait().unwrap().success(), "{said:#?}");
    said
}

/// Checks that exactly one message was printed, with these words, and that it names the guilty
/// function and its line.
#[track_caller]
fn one_sentence(said: &[String], words: &[&str], function: &str) {
    let [sentence] = said else { panic!("one sentence: {said:#?}") };
    for word in ["ums: scheduler '0' is held up: its ", "has not yielded for", "ums::go_preemptive"]
    {
        assert!(sentence.contains(word), "'{word}' is not in {sentence}");
    }
    for word in words {
        assert!(sentence.contains(word), "'{word}' is not in {sentence}");
    }
    let place = sentence.split_once(&format!("in stalled::{function} (stalled.rs:"));
    let place = place.and_then(|(_, rest)| rest.split_once(')'));
    let line = place.and_then(|(line, _)| line.parse::<u32>().ok());
    let is_right = line.is_some_and(|line| (FIRST_LINE..LAST_LINE).contains(&line));
    assert!(is_right, "{function} in a line after {FIRST_LINE}: {sentence}");
}

fn name(kind: WorkerKind) -> &'static str {
    match kind {
        WorkerKind::Thread => "thread worker",
        WorkerKind::Fiber => "fiber worker",
        WorkerKind::OwnContext => "own-context worker",
    }
}

#[test]
fn a_worker_that_computes_and_does_not_yield_is_named_in_one_sentence_b31() {
    if let Some(errand) = child_errand() {
        return program(&errand);
    }
    let _turn = turn();
    for kind in kinds() {
        let test = "a_worker_that_computes_and_does_not_yield_is_named_in_one_sentence_b31";
        let said = sentences(test, &format!("{kind:?} spins"));
        let words = [name(kind), "and computes", "ums::yield_now()"];
        one_sentence(&said, &words, "guilty_of_spinning");
    }
}

#[test]
fn a_fiber_that_blocks_its_thread_is_named_in_one_sentence_b31() {
    if let Some(errand) = child_errand() {
        return program(&errand);
    }
    let _turn = turn();
    for kind in kinds().into_iter().filter(|kind| *kind != WorkerKind::Thread) {
        let test = "a_fiber_that_blocks_its_thread_is_named_in_one_sentence_b31";
        let said = sentences(test, &format!("{kind:?} sleeps"));
        let words = [name(kind), "blocked in the system call clock_nanosleep"];
        one_sentence(&said, &words, "guilty_of_sleeping");
    }
}

fn monitor_thread() -> Option<u32> {
    monitor_threads().first().copied()
}

fn expected_monitor() -> u32 {
    eventually("the monitor has its name", || monitor_thread().is_some());
    monitor_thread().expect("it is there")
}

/// The programs for which no message is printed.
fn silent(errand: &str) {
    let (kind, act) = kind_and_act(errand);
    let node = build(kind, |b: Builder| b.schedulers(1).warnings(act != "unwarned"));
    if act != "unwarned" {
        expected_monitor();
    }
    let other = (act != "alone").then(|| start(&node, 0, || ums::sleep(HELD_UP)));
    let blocks = act == "blocks";
    on(&node, 0, move || if blocks { std::thread::sleep(LONG) } else { spin(LONG) });
    other.map(|other| other.join().unwrap());
    assert_eq!(monitor_thread().is_some(), act != "unwarned", "a monitor's thread");
}

#[test]
fn without_warnings_or_harm_no_sentence_is_printed_b31() {
    if let Some(errand) = child_errand() {
        return silent(&errand);
    }
    let _turn = turn();
    let test = "without_warnings_or_harm_no_sentence_is_printed_b31";
    for kind in kinds() {
        let mut acts = vec!["unwarned", "alone"];
        // The worker loses its scheduler, which continues with another worker, so there is nothing
        // to report.
        if kind == WorkerKind::Thread && ums::probe::taking_over_is_refused().is_none() {
            acts.push("blocks");
        }
        for act in acts {
            let output = run_child(test, &format!("{kind:?} {act}"));
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.is_empty(), "{kind:?} {act}: {said}");
        }
    }
}

/// All workers stay occupied, although each of their waits ends.
fn pool_of_two() {
    end_with_stdin();
    let node = build(WorkerKind::Thread, |b| b.schedulers(1).max_workers(2));
    let stay = || {
        while !ENOUGH.load(SeqCst) {
            ums::sleep(ms(1)).unwrap();
        }
    };
    let tasks = [(); 2].map(|()| start(&node, 0, stay));
    assert_eq!(on(&node, 0, || "begun"), "begun");
    tasks.into_iter().for_each(|task| task.join().unwrap());
}

#[test]
fn requests_that_get_no_worker_are_reported_in_one_sentence_b37() {
    if child_errand().is_some() {
        return pool_of_two();
    }
    let _turn = turn();
    let test = "requests_that_get_no_worker_are_reported_in_one_sentence_b37";
    let said = sentences(test, "Thread stay");
    let [sentence] = &said[..] else { panic!("one sentence: {said:#?}") };
    for word in [
        "ums: scheduler '0' has begun none of its queued requests (1) for",
        "none of its workers (2) has ended its request",
        "raise it",
    ] {
        assert!(sentence.contains(word), "'{word}' is not in {sentence}");
    }
}

/// A standstill at the hard limit of workers. The scheduler reports it itself, without the monitor.
fn standstill() {
    let node = build(WorkerKind::Thread, |b| b.schedulers(1).max_workers(2));
    let gate = Gate::shut();
    let wait = || {
        let gate = gate.clone();
        start(&node, 0, move || gate.pass())
    };
    let tasks = [(); 3].map(|()| wait());
    // Longer than a request may wait before it is reported.
    std::thread::sleep(2 * LONG);
    let counts = node.monitor_counts();
    let found = counts.iter().find(|count| count.condition == Condition::NoWorkers).unwrap();
    assert_eq!((found.reports, found.suppressed), (0, 0));
    gate.open();
    tasks.into_iter().for_each(|task| task.join().unwrap());
}

#[test]
fn a_standstill_that_its_scheduler_reported_is_not_reported_by_the_monitor_again() {
    if child_errand().is_some() {
        return standstill();
    }
    let _turn = turn();
    let test = "a_standstill_that_its_scheduler_reported_is_not_reported_by_the_monitor_again";
    let output = run_child(test, "Thread stand");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("stands still") && said.lines().count() == 1, "{said}");
}

/// The monitor of an idle process sleeps, and a scheduler that wakes often does not wake the
/// monitor each time.
fn idle() {
    let node = build(WorkerKind::Thread, |b| b.schedulers(2));
    assert_eq!(on(&node, 0, || 7), 7);
    eventually("the monitor sleeps", || {
        let before = switches_of_the_monitor();
        std::thread::sleep(ms(1000));
        switches_of_the_monitor() == before
    });
    let before = switches_of_the_monitor();
    std::thread::sleep(ms(3000));
    let while_idle = switches_of_the_monitor() - before;
    assert!(while_idle <= 2, "{while_idle} switches while all is idle");
    let before = switches_of_the_monitor();
    on(&node, 0, || (0..300).for_each(|_| ums::sleep(ms(5)).unwrap()));
    let wakes = switches_of_the_monitor() - before;
    assert!(wakes >= 2, "it woke {wakes} times, and should look while there is something to see");
    assert!(wakes <= 100, "it woke {wakes} times while a scheduler did 300 times");
}

#[test]
fn the_monitor_of_an_idle_node_does_not_wake_b39() {
    if child_errand().is_some() {
        return idle();
    }
    let _turn = turn();
    let output = run_child("the_monitor_of_an_idle_node_does_not_wake_b39", "Thread idle");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// Builds and drops many nodes.
fn many_nodes() {
    let numbers: HashSet<u32> = (0..100)
        .map(|n| {
            let node = build(WorkerKind::Thread, |b| b.schedulers(1));
            assert_eq!(on(&node, 0, move || n), n);
            expected_monitor()
        })
        .collect();
    assert!(numbers.len() <= 10, "{} threads for 100 nodes", numbers.len());
    eventually("the monitor's thread ends", || monitor_thread().is_none());
}

#[test]
fn nodes_that_come_and_go_share_the_monitors_thread_and_leave_none() {
    if child_errand().is_some() {
        return many_nodes();
    }
    let _turn = turn();
    let test = "nodes_that_come_and_go_share_the_monitors_thread_and_leave_none";
    let output = run_child(test, "Thread nodes");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
