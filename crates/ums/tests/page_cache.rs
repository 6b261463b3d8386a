//! Runs the example `page_cache`, which checks the pages that its tasks get and what its table says
//! in the end.
//!
//! Cargo builds examples for `cargo test` of the whole package.

use std::process::{Command, Output};

fn run(folder: &std::path::Path) -> Output {
    let exe = std::env::current_exe().unwrap();
    let program = exe.parent().and_then(|deps| deps.parent()).unwrap().join("examples/page_cache");
    assert!(program.exists(), "build it first: cargo build -p ums --example page_cache");
    Command::new("timeout").arg("120").arg(&program).arg(folder).output().unwrap()
}

#[test]
fn every_task_gets_the_pages_that_it_asks_for_and_tasks_share_one_read() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = run(folder.path());
    assert!(output.status.success(), "{output:?}");
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [requests, reads] = numbers[..] else { panic!("{line}") };
    // Some pages are found in their frames, and not all: they are more than the frames.
    assert!((129..requests * 2 / 3).contains(&reads), "{line}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file is removed");
}

#[test]
fn a_folder_that_is_not_there_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(&folder.path().join("gone"));
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("No such file"), "{output:?}");
}
