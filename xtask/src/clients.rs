//! Long runs with real clients: `cargo run -p xtask -- chaos` breaks things around a server and a
//! node, and `cargo run -p xtask -- soak` watches servers under load for hours.
//!
//! Both build the release binary, and hand their arguments to a program of `tests/clients`, which
//! knows the options (`--help`) and prints the report.

use std::path::Path;
use std::process::Command;

/// Builds `ums`, and runs this program of `tests/clients` with it.
pub fn run(root: &Path, program: &str, args: &[&str]) -> Result<(), String> {
    // Its target folder is that of this program, whose path is target/PROFILE/xtask.
    let me = std::env::current_exe().map_err(|error| format!("where xtask is: {error}"))?;
    let target = me.ancestors().nth(2).ok_or("xtask is in no target folder")?;
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut build = Command::new(cargo);
    build.current_dir(root).args(["build", "--release", "--locked", "-p", "ums-cli"]);
    end(build.arg("--target-dir").arg(target), "the build of ums")?;
    let mut run = Command::new("python3");
    run.arg(root.join("tests/clients").join(program)).args(args);
    run.env("UMS_BIN", target.join("release/ums")).env("PYTHONDONTWRITEBYTECODE", "1");
    end(&mut run, program)
}

fn end(command: &mut Command, what: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{what} failed: {status}")),
        Err(error) => Err(format!("{what} cannot be run: {error}")),
    }
}
