//! A seed repeats a run exactly, within one process and in another process. Planted bugs are found.
//!
//! These tests start processes. A process that is being started holds copies of all sockets for a
//! moment, so a socket that a story closes may still be open. Therefore these tests are in a
//! program in which no other test runs stories, and they run one at a time.

#[path = "../sim/deeds.rs"]
mod deeds;
#[path = "../sim/mixed.rs"]
mod mixed;
#[cfg(debug_assertions)]
mod planted;

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, MutexGuard};

use ums::lock::Lock;
use ums::sim::{Ended, Faults, Plan, run, run_plan, shrink};

use mixed::two_locks;

fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Lock<()> = Lock::new(());
    ONE_AT_A_TIME.lock()
}

/// The environment variable with the file to which a child process writes its traces.
const WRITE_TO: &str = "UMS_TEST_TRACE";

/// Returns the text of a run.
fn text(ended: &Ended) -> String {
    let Ended { steps, now, hash, trace, failed } = ended;
    format!("{steps} {now} {hash:x} {failed:?}\n{trace}\n")
}

/// Returns the traces of several seeds of the mixed story, and of one seed of a story that fails,
/// with its shortened schedule.
fn traces() -> String {
    let day = (0..4).map(|seed| text(&run(seed, mixed::FAULTS, mixed::day)));
    let fails = |seed: &u64| run(*seed, Faults::default(), two_locks).failed.is_some();
    let seed = (0..50).find(fails).expect("some seed makes them meet");
    let plan = Plan::new(seed, Faults { stall: 50, jump: 10, ..Faults::default() });
    let ended = run_plan(&plan, two_locks);
    let story: Arc<dyn Fn() + Send + Sync> = Arc::new(two_locks);
    let (short, less) = shrink(&plan, &ended, &story);
    format!("{}{}{short:?}\n{}", day.collect::<String>(), text(&ended), text(&less))
}

#[test]
fn a_seed_gives_the_same_trace_twice_and_in_another_process() {
    if let Some(path) = std::env::var_os(WRITE_TO) {
        return std::fs::write(path, traces()).unwrap();
    }
    let _alone = alone();
    let here = traces();
    assert_eq!(here, traces(), "in one process");
    let folder = tempfile::tempdir().unwrap();
    for (nth, noise) in
        ["", "a longer environment moves everything on the stack"].iter().enumerate()
    {
        let path = folder.path().join(nth.to_string());
        child(&path, noise);
        assert_eq!(here, std::fs::read_to_string(path).unwrap(), "in another process");
    }
}

fn child(path: &Path, noise: &str) {
    let name = "a_seed_gives_the_same_trace_twice_and_in_another_process";
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name]).env(WRITE_TO, path).env("NOISE", noise);
    assert!(command.output().unwrap().status.success());
}

#[test]
fn what_is_shrunk_fails_in_the_same_words_with_less() {
    let _alone = alone();
    let faults = Faults { stall: 50, jump: 10, short: 100, ..Faults::default() };
    let fails = |seed: &u64| run(*seed, faults, two_locks).failed.is_some();
    let seed = (0..50).find(fails).expect("some seed makes them meet");
    let plan = Plan::new(seed, faults);
    let ended = run_plan(&plan, two_locks);
    let story: Arc<dyn Fn() + Send + Sync> = Arc::new(two_locks);
    let (short, less) = shrink(&plan, &ended, &story);
    assert_eq!(less.failed.is_some(), ended.failed.is_some());
    assert_eq!(short.faults.short, 0, "it has no I/O");
    assert!(short.wild.end - short.wild.start < ended.steps, "{short:?}");
    assert_eq!(run_plan(&short, two_locks), less, "and can be had again");
}
