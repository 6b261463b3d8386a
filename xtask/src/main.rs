//! Tools for the repository: checks, `cargo run -p xtask -- tidy`; the installation of the C
//! interface, `install-c --prefix DIR`; tests under sanitizers, `sanitize address|thread|valgrind`;
//! mistakes that tests must notice, `mutants`; tests that depend on time on a busy computer,
//! `starve`; long runs with real clients, `chaos` and `soak`; and what must hold before a release,
//! `release-check`.
//!
//! A check reads the sources and returns findings. A finding is a place and a message that says
//! what to do instead. No check changes a file, and none depends on the crates that it checks.
//! `cargo test --workspace` runs the same checks as a test.
//!
//! It does not parse Rust. It blanks comments and literals and looks at words and braces, which is
//! enough for these checks. Where this goes wrong, the finding shows it.

/// Prints a line. `println` would panic if the reader has closed the pipe.
macro_rules! say {
    ($($word:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($word)*);
    }};
}

mod source;

mod arithmetic;
mod arrows;
mod behaviours;
mod citations;
mod clients;
mod conditions;
mod cycles;
mod habits;
mod imports;
mod install;
mod links;
mod mutants;
mod names;
mod release;
mod rooms;
mod sanitize;
mod sizes;
mod starve;
mod structure;
mod unsafety;
mod widths;

use std::path::Path;
use std::process::ExitCode;

use source::{Finding, Repository};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["tidy"] => tidy(),
        ["install-c", "--prefix", prefix] => {
            done(install::build_and_install(root(), Path::new(prefix)))
        }
        ["install-c", "--built", "--prefix", prefix] => {
            done(install::install(root(), Path::new(prefix)))
        }
        ["mutants", word @ ..] => done(mutants::run(root(), word.first().unwrap_or(&""))),
        ["starve", rest @ ..] => done(starve::run(root(), rest)),
        ["release-check", rest @ ..] => done(release::run(root(), rest)),
        ["sanitize", tool] => done(sanitize::run(root(), tool)),
        ["chaos", rest @ ..] => done(clients::run(root(), "chaos.py", rest)),
        ["soak", rest @ ..] => done(clients::run(root(), "soak.py", rest)),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

const USAGE: &str = "\
usage: cargo run -p xtask -- COMMAND
  tidy                     checks the sources
  install-c --prefix DIR   builds the C interface and installs it; with --built, without building
  mutants [WORD]           puts in mistakes and expects that tests fail
  starve [TIMES] [WORD]    repeats tests that depend on time, beside computing threads
  release-check [--since REV] [CHECK..]
                           features, dependencies, interface, platforms
  sanitize TOOL            tests under address, thread or valgrind
  chaos [--help]           faults for real, with invariants and a report
  soak [--help]            hours under mixed load: memory, descriptors, delays";

fn done(result: Result<(), String>) -> ExitCode {
    if let Err(sentence) = result {
        eprintln!("{sentence}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn tidy() -> ExitCode {
    let repository = Repository::read(root());
    let findings = check(&repository);
    for finding in &findings {
        say!("{finding}");
    }
    say!("{}", behaviours::summary(&repository));
    say!("{}", structure::summary(&repository));
    say!("{}", rooms::summary(&repository));
    say!("{} files read, {} findings", repository.files.len(), findings.len());
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs every check over the whole repository.
fn check(repository: &Repository) -> Vec<Finding> {
    let checks: [fn(&Repository) -> Vec<Finding>; 14] = [
        arithmetic::check,
        arrows::check,
        cycles::check,
        unsafety::check,
        rooms::check,
        habits::check,
        sizes::check,
        structure::check,
        widths::check,
        behaviours::check,
        links::check,
        mutants::check,
        citations::check,
        names::check,
    ];
    checks.iter().flat_map(|check| check(repository)).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is inside the workspace")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_repository_is_tidy() {
        let findings = super::check(&super::Repository::read(super::root()));
        let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "{} findings:\n{}", lines.len(), lines.join("\n"));
    }
}
