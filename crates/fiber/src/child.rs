//! Runs one test of the test binary in a child process, for tests that end their process.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

const MARK: &str = "FIBER_TEST_CHILD";
/// The exit code of a child whose test has returned. It is not 0, because the test harness returns
/// 0 if it finds no test of that name.
const DONE: i32 = 42;

/// How a child ended: its exit code or the signal that killed it, and what it wrote to stderr.
pub(crate) struct Death {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) words: String,
}

/// Runs `deed` in a child process, and asserts that it returns there. `name` is as in [`dies`].
pub(crate) fn succeeds(name: &str, deed: impl FnOnce()) {
    let death = dies(name, deed);
    assert_eq!(death.code, Some(DONE), "{}", death.words);
}

/// Runs `deed` in a child process, and returns how the child ended. `name` is the full path of the
/// calling test. In the parent this starts the test binary again, with that test only; in the child
/// the same call runs `deed`, and exits with [`DONE`] when `deed` returns.
pub(crate) fn dies(name: &str, deed: impl FnOnce()) -> Death {
    if std::env::var(MARK).is_ok_and(|marked| marked == name) {
        deed();
        std::process::exit(DONE);
    }
    let me = std::env::current_exe().expect("the path of the test binary");
    let child = Command::new(me)
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(MARK, name)
        .stdin(Stdio::null())
        .output()
        .expect("a child process");
    let words = String::from_utf8_lossy(&child.stderr).into_owned();
    Death { code: child.status.code(), signal: child.status.signal(), words }
}
