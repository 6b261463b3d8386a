//! `ums bench`: measures the machine.

use std::process::ExitCode;

/// Runs a bench.
pub fn run(_args: &[String]) -> ExitCode {
    ExitCode::FAILURE
}
