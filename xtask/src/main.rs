//! Checks of the house, `cargo run -p xtask -- tidy`, the installation of its C interface,
//! `cargo run -p xtask -- install-c --prefix DIR`, and runs under sanitizers,
//! `cargo run -p xtask -- sanitize address|thread|valgrind`.
//!
//! A check reads the sources and returns findings, each with a place and a sentence that says what
//! to do instead. Nothing here changes a file, and nothing here depends on the other crates, so it
//! can judge them. `cargo test --workspace` runs the same checks as a test.
//!
//! What it does not do: it does not parse Rust. It blanks comments and literals and looks at words
//! and braces; that is enough for the few questions asked, and is wrong in ways that show.

mod source;

mod arrows;
mod behaviours;
mod cycles;
mod habits;
mod imports;
mod install;
mod links;
mod sanitize;
mod sizes;
mod structure;
mod unsafety;

use std::path::Path;
use std::process::ExitCode;

use source::{Finding, House};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["tidy"] => tidy(),
        ["install-c", "--prefix", prefix] => done(install::install(root(), Path::new(prefix))),
        ["sanitize", tool] => done(sanitize::run(root(), tool)),
        _ => {
            eprintln!("usage: cargo run -p xtask -- tidy | install-c --prefix DIR | sanitize TOOL");
            ExitCode::from(2)
        }
    }
}

fn done(result: Result<(), String>) -> ExitCode {
    if let Err(sentence) = result {
        eprintln!("{sentence}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn tidy() -> ExitCode {
    let house = House::read(root());
    let findings = check(&house);
    for finding in &findings {
        println!("{finding}");
    }
    println!("{}", behaviours::summary(&house));
    println!("{}", structure::summary(&house));
    println!("{} files read, {} findings", house.files.len(), findings.len());
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Every check over the whole house.
fn check(house: &House) -> Vec<Finding> {
    let checks: [fn(&House) -> Vec<Finding>; 8] = [
        arrows::check,
        cycles::check,
        unsafety::check,
        habits::check,
        sizes::check,
        structure::check,
        behaviours::check,
        links::check,
    ];
    checks.iter().flat_map(|check| check(house)).collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask stands inside the workspace")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_house_is_tidy() {
        let findings = super::check(&super::House::read(super::root()));
        let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "{} findings:\n{}", lines.len(), lines.join("\n"));
    }
}
