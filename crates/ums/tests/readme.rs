//! The README's first program is the example `first`, and prints what the README says. Its echo
//! server is the example `echo` without the arguments.
//!
//! Cargo builds examples for `cargo test` of the whole package.

use std::process::Command;

const README: &str = include_str!("../../../README.md");
const EXAMPLE: &str = include_str!("../examples/first.rs");
const ECHO: &str = include_str!("../examples/echo.rs");

/// The text of the README's first block of this kind.
fn block(kind: &str) -> &'static str {
    let open = format!("```{kind}\n");
    let (_, behind) = README.split_once(&open).expect("the README has this block");
    behind.split_once("```").expect("the block ends").0
}

#[test]
fn the_program_of_the_readme_is_the_example() {
    let (_, program) = EXAMPLE.split_once("\n\n").expect("a header, and the program");
    assert_eq!(block("rust"), program);
}

#[test]
fn the_program_of_the_readme_prints_what_the_readme_says() {
    let exe = std::env::current_exe().unwrap();
    let program = exe.parent().and_then(|deps| deps.parent()).unwrap().join("examples/first");
    assert!(program.exists(), "build it first: cargo build -p ums --example first");
    let output = Command::new("timeout").arg("60").arg(&program).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "it ended with {}: {errors}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stdout), block("text"));
    assert_eq!(errors, "");
}

#[test]
fn the_echo_server_of_the_readme_is_the_example() {
    let server = README.split("```rust\n").nth(2).expect("the README has a second program");
    let server = server.split("```").next().unwrap();
    let lines: Vec<_> = server.lines().filter(|line| line.starts_with("        ")).collect();
    assert!(lines.len() > 3, "{server}");
    for line in lines.iter().filter(|line| !line.contains("bind(")) {
        assert!(ECHO.contains(line), "examples/echo.rs lacks: {line}");
    }
}
