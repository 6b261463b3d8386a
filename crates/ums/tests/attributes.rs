//! `#[ums::main]` and `#[ums::test]`.

use std::process::{Command, ExitCode, Output};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

mod common;

use common::child_errand;

#[ums::test]
fn a_test_runs_on_a_worker() {
    assert!(ums::worker::is_worker());
    assert_eq!(ums::spawn(|| 2 + 2).join().unwrap(), 4);
}

#[ums::test(unsafe(fiber_workers), schedulers = 1 + 1)]
fn options_are_calls_of_the_builder() -> std::io::Result<()> {
    let node = ums::Node::current().unwrap();
    assert_eq!(node.scheduler_count(), 2);
    assert_eq!(node.worker_kind(), ums::WorkerKind::Fiber);
    Ok(())
}

#[ums::test(unsafe(fiber_workers))]
#[should_panic(expected = "on purpose")]
fn a_panic_is_that_of_the_test() {
    panic!("on purpose");
}

#[cfg(feature = "sim")]
static RUNS: AtomicU32 = AtomicU32::new(0);

#[cfg(feature = "sim")]
#[ums::test(sim, seeds = 7, schedulers = 2, max_workers = 8)]
fn a_simulated_hour_takes_no_time() {
    assert!(ums::sim::is_here());
    ums::sleep(std::time::Duration::from_secs(3600)).unwrap();
    RUNS.fetch_add(1, SeqCst);
}

#[ums::main(schedulers = 1)]
fn fails() -> Result<(), Box<dyn std::error::Error>> {
    assert!(ums::worker::is_worker());
    Err("on purpose")?;
    Ok(())
}

#[ums::main(schedulers = 0)]
fn cannot_be_built() {}

#[ums::main]
fn returns_nothing() {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    ums::spawn(|| SEEN.fetch_add(1, SeqCst)).join().unwrap();
    assert_eq!(SEEN.load(SeqCst), 1);
}

#[ums::main(schedulers = 1)]
fn leaves_a_task() {
    drop(ums::spawn(|| ums::sleep(std::time::Duration::from_secs(5))));
}

fn failing_test(errand: &str) -> Output {
    let mut command: Command = common::child("what_a_main_function_returns_is_reported", errand);
    command.env("RUST_BACKTRACE", "0").output().unwrap()
}

#[test]
fn what_a_main_function_returns_is_reported() {
    let run = match child_errand().as_deref() {
        Some("fails") => fails(),
        Some("cannot be built") => cannot_be_built(),
        Some("leaves a task") => return assert_eq!(leaves_a_task(), ExitCode::SUCCESS),
        _ => {
            assert_eq!(returns_nothing(), ExitCode::SUCCESS);
            let said = |errand| String::from_utf8(failing_test(errand).stderr).unwrap();
            assert!(said("fails").contains("Error: \"on purpose\""), "{}", said("fails"));
            let refused = said("cannot be built");
            let sentence =
                "ums: the node of #[ums::main] cannot be built: 0 schedulers: there must be";
            assert!(refused.contains(sentence), "{refused}");
            let left = said("leaves a task");
            let sentence = "ums: `main` has returned, and a task still runs (it waits for SLEEP).";
            assert!(left.contains(sentence), "{left}");
            return;
        }
    };
    assert_eq!(run, ExitCode::FAILURE);
}
