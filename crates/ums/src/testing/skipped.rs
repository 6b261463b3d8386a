//! Tests that this system cannot run.
//!
//! A test that passes because the system refuses a mechanism proves nothing, so it says so. If the
//! environment variable `UMS_SKIPPED` names a file, each such test adds a line to it: the
//! mechanism, the test and the reason. `.ci/run` prints how many there are, and fails if the system
//! has the mechanism.

use std::fmt::Display;
use std::io::Write;

/// Says that the calling test is skipped, because this system does not have the mechanism.
pub fn skipped(mechanism: &str, why: impl Display) {
    let _ = writeln!(std::io::stdout(), "skipped, as there is no {mechanism} here: {why}");
    let Some(path) = std::env::var_os("UMS_SKIPPED") else { return };
    let test = std::thread::current().name().unwrap_or("a thread").to_owned();
    let why = why.to_string().replace('\n', " ");
    let line = format!("{mechanism} {test} {why}\n");
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.expect("UMS_SKIPPED names a file that can be written");
}
