//! Runs one test of this binary in a process of its own, for tests that end their process.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

const MARK: &str = "FIBER_TEST_CHILD";
/// The exit code of a child whose test returned. Not 0, which a test harness returns if it found no
/// test of that name.
const DONE: i32 = 42;

/// How a child ended: its exit code or the signal that killed it, and what it wrote to stderr.
pub(crate) struct Death {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) words: String,
}

/// Runs `deed` in a child alone and expects it to return there.
pub(crate) fn succeeds(name: &str, deed: impl FnOnce()) {
    let death = dies(name, deed);
    assert_eq!(death.code, Some(DONE), "{}", death.words);
}

/// In the child: runs `deed` and exits with [`DONE`] when it returns. In the parent: runs the test
/// called `name` (its full path) again as a child, and returns how that ended.
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
