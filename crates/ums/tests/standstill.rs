//! A process that was stopped accuses no worker: a worker that could not run could not yield (B34).
//!
//! A child process is stopped and continued from outside. Its monitor is stopped as well, and
//! recognises that by its own delay.

#![allow(unsafe_code)] // For the harness.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use common::watching::*;
use common::*;
use rustix::process::{Pid, Signal, kill_process};
use ums::WorkerKind;
use ums::monitor::{Condition, Diagnosis, Thief};

/// Runs a test again in a process of its own. Whenever the process has run for a moment, it is
/// stopped for this span.
fn run_and_stop(test: &str, kind: WorkerKind, span: Duration) {
    let mut command = child(test, &format!("{kind:?}"));
    let mut child = command.stdout(Stdio::piped()).spawn().expect("a test can run itself");
    let mut lines =
        BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    assert!(lines.by_ref().any(|line| line.contains("at work")), "{kind:?}: it did not begin");
    while child.try_wait().unwrap().is_none() {
        stop_for(&child, span);
        std::thread::sleep(ms(150));
    }
    assert!(lines.any(|line| line.contains("as expected")), "{kind:?}: see above");
}

/// Calls `f` with each kind of worker, all at the same time. Most of the time the processes are
/// stopped.
fn each_kind(f: impl Fn(WorkerKind) + Sync) {
    let _turn = turn();
    std::thread::scope(|scope| {
        for kind in kinds() {
            let f = &f;
            scope.spawn(move || f(kind));
        }
    });
}

fn stop_for(child: &Child, span: Duration) {
    let id = Pid::from_child(child);
    // If the child has ended, its number is still valid, because its exit status has not been
    // collected.
    let _ = kill_process(id, Signal::STOP);
    std::thread::sleep(span);
    let _ = kill_process(id, Signal::CONT);
}

#[test]
fn a_worker_of_a_process_that_was_stopped_is_not_accused_b34() {
    let me = "a_worker_of_a_process_that_was_stopped_is_not_accused_b34";
    let Some(errand) = child_errand() else {
        return each_kind(|kind| run_and_stop(me, kind, ms(600)));
    };
    let told = Told::default();
    // The worker yields after 60 ms of its own processor time, and the process is stopped in the
    // middle of that. The monitor looks every 10 ms, so it sees the worker running again before the
    // worker yields.
    let options = nothing().stall(ms(400)).deadlock(ms(40));
    let node = build(kind_named(&errand), |b| watched(b.schedulers(1), options, &told));
    println!("at work");
    on(&node, 0, || {
        let used = || {
            let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
        };
        for _ in 0..12 {
            let began = used();
            while used() - began < ms(60) {
                std::hint::spin_loop();
            }
            ums::yield_now();
        }
    });
    assert_eq!(told.len(), 0, "{:#?}", told.all());
    println!("as expected");
}

#[test]
fn that_the_process_stood_still_is_reported_as_no_workers_fault_b34() {
    let me = "that_the_process_stood_still_is_reported_as_no_workers_fault_b34";
    let Some(errand) = child_errand() else {
        return each_kind(|kind| run_and_stop(me, kind, ms(1500)));
    };
    let told = Told::default();
    // The monitor looks every 50 ms. While the process runs, no stall lasts long enough to be
    // reported, so the only thing to report is that the process stood still.
    let options = nothing().starved(ms(1000)).deadlock(ms(200));
    let node = build(kind_named(&errand), |b| watched(b.schedulers(1), options, &told));
    let stop = Arc::new(AtomicBool::new(false));
    let s = stop.clone();
    let request = start(&node, 0, move || {
        while !s.load(SeqCst) {
            std::hint::spin_loop();
        }
    });
    println!("at work");
    let report = the_only(&told);
    stop.store(true, SeqCst);
    request.join().unwrap();
    assert_eq!(report.condition, Condition::Stall, "{report}");
    assert!(report.diagnosis.exonerates() && report.stood_still * 2 >= report.lasted, "{report}");
    // After the process is continued, other processes may have used the processors of a busy
    // computer as well.
    let thread = report.thread.as_ref().expect("a thread was looked at");
    let interval = report.process.as_ref().expect("as well").interval;
    let others = [Thief::Others, Thief::Hypervisor].map(Diagnosis::Starved);
    let may_be_others = thread.ready * 4 >= interval && others.contains(&report.diagnosis);
    assert!(may_be_others || report.diagnosis == Diagnosis::Starved(Thief::Standstill), "{report}");
    let text = report.to_string();
    assert!(text.contains("not its fault: ") && text.contains("the monitor itself was "), "{text}");
    println!("as expected");
}
