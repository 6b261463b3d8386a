//! The effects of a stall other than a report: an option cancels the request, backtraces are merged
//! into a profile, and no thread waits for a stderr that no process reads (B38, B41, B42).
//!
//! As in `monitor`, each test provokes a condition until it is reported.

#![allow(unsafe_code)] // For the harness.

mod common;

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use common::watching::*;
use common::*;
use ums::monitor::{Condition, Options, StallStack};
use ums::{Builder, Node, WorkerKind};

/// Returns monitor options that look for stalls of 60 ms and nothing else, whatever the cause.
fn stalls() -> Options {
    nothing().stall(ms(60)).starved(ms(60))
}

/// Runs the body on one scheduler with the monitor watching, with each kind of worker.
fn both_watched(options: impl Fn() -> Options, body: impl Fn(&Node, &Told)) {
    for kind in kinds() {
        let told = Told::default();
        let build = |b: Builder| watched(b.schedulers(1), options(), &told);
        one_kind(kind, build, |node| body(node, &told));
    }
}

#[inline(never)]
fn guilty_computation(stop: &AtomicBool) -> u64 {
    let mut n = 0u64;
    while !stop.load(SeqCst) {
        n = std::hint::black_box(n.wrapping_mul(31).wrapping_add(1));
    }
    n
}

/// Computes until one more stall has been reported.
fn stall_once(node: &Node, told: &Told) {
    let before = told.len();
    let stop = Arc::new(AtomicBool::new(false));
    let s = stop.clone();
    let request = start(node, 0, move || guilty_computation(&s));
    eventually("it is reported", || told.len() > before);
    stop.store(true, SeqCst);
    request.join().unwrap();
}

#[test]
fn a_request_that_does_not_yield_for_too_long_is_cancelled_at_its_next_yield_and_no_other_is_b41() {
    both_watched(
        || stalls().cancel_after(ms(80)).per_minute(1000),
        |node, told| {
            let cancelled = || told.all().iter().filter(|r| r.cancelled).count();
            let request = start(node, 0, || {
                loop {
                    // Each round takes longer than a stall may, even if the thread gets only part
                    // of a processor.
                    spin(ms(250));
                    if let Err(error) = ums::checkpoint() {
                        return error;
                    }
                }
            });
            assert_eq!(request.join().unwrap(), ums::WaitError::Cancelled);
            eventually("that is reported", || cancelled() > 0);
            let report = told.all().into_iter().find(|r| r.cancelled).expect("it was reported");
            assert!(report.to_string().contains("; the request was cancelled"), "{report}");
            // The cancellation does not affect the next request of the same worker.
            on(node, 0, || {
                ums::sleep(ms(1)).expect("it was not cancelled");
                ums::checkpoint().expect("it was not cancelled");
            });
            assert_eq!(cancelled(), 1, "{:#?}", told.all());
        },
    );
}

#[test]
fn stalls_of_the_same_function_are_one_line_of_the_profile_b42() {
    both_watched(stalls, |node, told| {
        let of_function = |all: &[StallStack]| {
            all.iter()
                .filter(|stack| stack.stack.contains("guilty_computation"))
                .fold((Duration::ZERO, 0), |(t, n), stack| (t + stack.total, n + stack.stalls))
        };
        // On a busy computer, a worker may not get the processor in time to say where it is.
        for _ in 0..20 {
            stall_once(node, told);
            if of_function(&node.stalls()).1 == 3 {
                break;
            }
        }
        let all = node.stalls();
        let (times, stalls) = of_function(&all);
        assert_eq!(stalls, 3, "{all:#?}");
        assert!(times >= 3 * ms(60), "{all:#?}");
        // The outermost function is printed first.
        let in_order = |stack: &str| {
            let outer = stack.find("{closure");
            outer.zip(stack.find(";stalls::guilty_computation")).is_some_and(|(a, b)| a < b)
        };
        assert!(all.iter().any(|stack| in_order(&stack.stack)), "{all:#?}");
        let past = node.last_reports();
        let numbers: Vec<_> = past.iter().map(|p| p.number).collect();
        assert_eq!(numbers, (0..told.len() as u64).collect::<Vec<_>>());
        assert!(past.iter().all(|p| p.report.condition == Condition::Stall));
    });
}

#[test]
fn a_stderr_that_is_not_read_does_not_hold_up_reports_b38() {
    let me = "a_stderr_that_is_not_read_does_not_hold_up_reports_b38";
    if child_errand().is_some() {
        let told = Told::default();
        let options = stalls().stall(ms(10)).starved(ms(10)).stderr(true).per_minute(1000);
        let node = build(WorkerKind::Thread, |b| watched(b.schedulers(1), options, &told));
        let unwritten = || node.monitor_counts().iter().map(|c| c.unwritten).sum::<u64>();
        let mut rounds = 0;
        while unwritten() == 0 {
            stall_once(&node, &told);
            rounds += 1;
        }
        // The writer keeps some reports until they are read, and counts the rest.
        assert!(rounds > 16, "{rounds}");
        println!("as expected");
        std::process::exit(0);
    }
    let _turn = turn();
    // The pipe is full and is never read, so a write of the child would block.
    let (_nobody, pipe) = rustix::pipe::pipe().unwrap();
    rustix::io::ioctl_fionbio(&pipe, true).unwrap();
    while rustix::io::write(&pipe, b".").is_ok() {}
    rustix::io::ioctl_fionbio(&pipe, false).unwrap();
    let output = child(me, "go").stdout(Stdio::piped()).stderr(pipe).spawn().unwrap();
    let output = output.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("as expected"), "{output:?}");
}
