//! Runs the examples of the Windows layer, and checks what they print.
//!
//! Cargo builds examples for `cargo test` of the whole package. If only this test was requested, an
//! example may be missing. It is skipped then, and its name is printed.

use std::process::Command;

/// Returns the lines that an example prints. Returns None if the example was not built.
fn said_by(example: &str) -> Option<Vec<String>> {
    let exe = std::env::current_exe().unwrap();
    let path = exe.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(example);
    if !path.exists() {
        ums::testing::skipped("example", format_args!("{example} was not built"));
        return None;
    }
    let output = Command::new("timeout").arg("60").arg(&path).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example} ended with {}: {errors}", output.status);
    Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
}

fn count(said: &[String], what: &str) -> usize {
    said.iter().filter(|line| line.contains(what)).count()
}

#[test]
fn round_robin_gives_each_worker_its_turns_in_order() {
    let Some(said) = said_by("windows_round_robin") else { return };
    assert_eq!(said.len(), 9, "{said:?}");
    assert_eq!(said[..3], ["anna: round 1", "boris: round 1", "clara: round 1"]);
    for name in ["anna", "boris", "clara"] {
        let own: Vec<_> = said.iter().filter(|line| line.starts_with(name)).collect();
        assert_eq!(own, [1, 2, 3].map(|round| format!("{name}: round {round}")).each_ref());
    }
}

#[test]
fn priority_serves_the_important_worker_every_time() {
    let Some(said) = said_by("windows_priority") else { return };
    assert_eq!(said, ["important: got 0", "important: got 1", "important: got 2"]);
}

#[test]
fn many_schedulers_share_one_list_and_lose_nothing() {
    let Some(said) = said_by("windows_many_schedulers") else { return };
    assert_eq!(said.last().unwrap(), "sum 5050");
    assert!(count(&said, "executed") >= 1, "{said:?}");
}

#[test]
fn a_worker_that_blocks_in_read_lets_the_other_compute() {
    let Some(said) = said_by("windows_pipe") else { return };
    assert_eq!(said.len(), 2, "{said:?}");
    assert_eq!(said[0], "read gave Ok(1); the other has computed meanwhile: true");
    // The scheduler is called once for the read, if the block is noticed, and twice for the ends of
    // the workers.
    assert!(said[1].starts_with("the scheduler was called "), "{said:?}");
}

#[test]
fn delegated_lines_are_printed_by_another_thread() {
    let Some(said) = said_by("windows_delegate") else { return };
    assert!(count(&said, "yields for the 1. time") == 2, "{said:?}");
}
