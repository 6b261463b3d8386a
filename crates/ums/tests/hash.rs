//! Runs the example `hash` beside `sha256sum`.
//!
//! Cargo builds examples for `cargo test` of the whole package.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

fn program() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let program = exe.parent().and_then(|deps| deps.parent()).unwrap().join("examples/hash");
    assert!(program.exists(), "build it first: cargo build -p ums --example hash");
    program
}

#[test]
fn the_files_of_a_folder_have_the_sums_that_sha256sum_says() {
    let folder = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for n in 0..500_usize {
        let inner = folder.path().join(format!("{}", n % 7));
        std::fs::create_dir_all(&inner).unwrap();
        let path = inner.join(format!("{n:03}"));
        std::fs::write(&path, vec![n as u8; n * n % 70_001]).unwrap();
        paths.push(path);
    }
    paths.sort();
    let expected = Command::new("sha256sum").args(&paths).output().unwrap();
    let output = Command::new(program()).arg(folder.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&expected.stdout));
}

#[test]
fn a_file_that_cannot_be_read_is_reported_and_the_others_are_hashed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "abc").unwrap();
    let missing = folder.path().join("missing");
    let output = Command::new(program()).args([&missing, &file]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("missing: No such file"), "{said}");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        printed.starts_with("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  ")
    );
}

#[test]
fn it_ends_when_its_lines_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    for n in 0..5000 {
        std::fs::write(folder.path().join(format!("a_name_that_takes_some_room_{n}")), "").unwrap();
    }
    let mut command = Command::new(program());
    command.arg(folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  "));
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("Broken pipe"));
}
