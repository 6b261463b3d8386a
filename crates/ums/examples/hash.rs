//! Prints the SHA-256 of files, as `sha256sum` does, and works on many files at once.
//!
//! `cargo run --release -p ums --example hash -- FILE|FOLDER..`
//!
//! Each file is a task. While one waits for the disk, its scheduler runs another, and all
//! schedulers compute in parallel. The lines are in the order of the arguments, and within a folder
//! in the order of names. A file that cannot be read is reported; then the exit code is 1.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sha2::{Digest, Sha256};
use ums::WaitError;
use ums::fs::{self, File};

/// How many files are open at the same time, at most.
const FILES_MAX: usize = 256;

#[ums::main]
fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if arguments.is_empty() {
        eprintln!("usage: hash FILE|FOLDER..");
        return ExitCode::from(2);
    }
    let mut paths = Vec::new();
    let mut failed = false;
    for path in arguments {
        if let Err(error) = find(&path, &mut paths) {
            eprintln!("{}: {error}", path.display());
            failed = true;
        }
    }
    match print(&paths) {
        Ok(0) if !failed => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Adds the file, or the files of the folder.
fn find(path: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if !fs::metadata(path)?.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let mut entries = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let kind = entry.file_type()?;
        if kind.is_dir() {
            find(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Prints a line for each file. Returns how many could not be read.
fn print(paths: &[PathBuf]) -> io::Result<usize> {
    let ended: Result<_, WaitError> = ums::task_group(|group| {
        group.max_running(FILES_MAX);
        let mut out = io::stdout();
        // Results that came before the next one to print.
        let (mut early, mut next, mut unread) = (BTreeMap::new(), 0, 0);
        for (number, path) in paths.iter().enumerate() {
            group.spawn(move || Ok((number, sha256(path))));
        }
        while let Some((number, result)) = group.next()? {
            early.insert(number, result);
            while let Some(result) = early.remove(&next) {
                let path = paths[next].display();
                match result {
                    // A write fails when the reader of the pipe has ended, as `head` does. Then the
                    // error ends the group.
                    Ok(hash) => match writeln!(out, "{hash}  {path}") {
                        Ok(()) => {}
                        Err(error) => return Ok(Err(error)),
                    },
                    Err(error) => {
                        eprintln!("{path}: {error}");
                        unread += 1;
                    }
                }
                next += 1;
            }
        }
        Ok(Ok(unread))
    });
    ended?
}

fn sha256(path: &Path) -> io::Result<String> {
    let (mut file, mut sha256) = (File::open(path)?, Sha256::new());
    let mut buffer = vec![0; 128 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => sha256.update(&buffer[..n]),
        }
        // Files that are in memory are read without a wait.
        ums::yield_if_due();
    }
    Ok(sha256.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
