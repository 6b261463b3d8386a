//! Repeats tests that depend on time while other threads take the processors:
//! `cargo run -p xtask -- starve [TIMES] [WORD]`.
//!
//! A test depends on time if its own code contains one of the words in `TIMED`. Such a test may
//! pass on a quiet computer and fail on a busy one, although the library is right. This command
//! runs each of them `TIMES` times (200 if no number is given), several at once (but see `ALONE`),
//! beside one computing thread for each processor. With a word, it runs only those whose name or
//! program contains it. It prints the end of what a failed run has printed.
//!
//! A run of more than five minutes counts as failed. It does not run tests of simulated worlds,
//! where time passes as the world says, and tests whose functions for time are elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::source::{Repository, words};

/// Words of code that waits for a time to pass, or measures one.
const TIMED: [&str; 9] =
    ["spin", "sleep", "elapsed", "ms", "Nap", "SHORT", "LONG", "from_millis", "from_micros"];
/// How long one run may take, in seconds, for `timeout`.
const SECONDS: &str = "300";
/// How many tests run at once on each processor. Most of them wait most of the time.
const AT_ONCE: usize = 4;
const TIMES: usize = 200;
/// Tests in which a worker must get a good part of a processor, or else the monitor does not accuse
/// it. They run at the end, one at a time, beside the computing threads.
const ALONE: [&str; 3] = [
    "a_worker_that_computes_is_found_once_and_by_name_b31_b33_b34",
    "a_worker_that_works_in_the_kernel_is_told_apart_b34",
    "a_request_that_does_not_yield_for_too_long_is_cancelled_at_its_next_yield_and_no_other_is_b41",
];

/// One test of one program.
struct Timed {
    program: PathBuf,
    folder: PathBuf,
    name: String,
}

/// Runs them.
///
/// # Errors
/// A sentence with the tests that failed, or what went wrong.
pub fn run(root: &Path, args: &[&str]) -> Result<(), String> {
    let times = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(TIMES);
    let word = args.iter().find(|arg| arg.parse::<usize>().is_err()).unwrap_or(&"");
    let tests = timed_tests(root, word)?;
    let is_alone = |test: &Timed| ALONE.contains(&test.name.as_str());
    let (alone, tests): (Vec<_>, Vec<_>) = tests.into_iter().partition(is_alone);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let failed = Mutex::new(BTreeMap::<String, usize>::new());
    let is_over = AtomicBool::new(false);
    say!("{} tests depend on time; each runs {times} times", tests.len() + alone.len());
    std::thread::scope(|scope| {
        // Also if a runner panics.
        let _end = SetWhenDropped(&is_over);
        for _ in 0..processors {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop()
                }
            });
        }
        for (tests, at_once) in [(&tests, AT_ONCE * processors), (&alone, 1)] {
            let (total, next) = (tests.len() * times, AtomicUsize::new(0));
            std::thread::scope(|scope| {
                for _ in 0..at_once {
                    scope.spawn(|| run_some(tests, total, &next, &failed));
                }
            });
        }
    });
    let total = (tests.len() + alone.len()) * times;
    let failed = failed.into_inner().expect("no runner has panicked");
    say!("{total} runs, {} failed", failed.values().sum::<usize>());
    let sentence = |(name, count): (&String, &usize)| format!("{name} failed {count} times");
    let failed: Vec<_> = failed.iter().map(sentence).collect();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// Ends the computing threads.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn run_some(
    tests: &[Timed],
    total: usize,
    next: &AtomicUsize,
    failed: &Mutex<BTreeMap<String, usize>>,
) {
    loop {
        let at = next.fetch_add(1, Ordering::Relaxed);
        if at >= total {
            return;
        }
        if at > 0 && at.is_multiple_of(1000) {
            say!("{at} of {total} runs");
        }
        // All once, then all again, so that different ones run at the same time.
        let test = &tests[at % tests.len()];
        let mut command = Command::new("timeout");
        command.args(["-k", "10", SECONDS]).arg(&test.program).args(["--exact", &test.name]);
        command.env("RUST_BACKTRACE", "0"); // Frames would fill what is printed of a failure.
        let ran = command.current_dir(&test.folder).stdin(Stdio::null()).output();
        let why = match ran {
            Ok(Output { status, .. }) if status.success() => continue,
            Ok(Output { status, stdout, stderr }) => {
                let said = [stdout, stderr].concat();
                let said = String::from_utf8_lossy(&said).into_owned();
                let first = said.lines().count().saturating_sub(20);
                let end: Vec<_> = said.lines().skip(first).collect();
                format!("{status}\n{}", end.join("\n"))
            }
            Err(error) => error.to_string(),
        };
        let program = test.program.file_name().unwrap_or_default().display();
        say!("{} of {program} failed: {why}", test.name);
        *failed.lock().expect("no runner panics").entry(test.name.clone()).or_default() += 1;
    }
}

/// Builds the tests, and returns those that depend on time and whose name or program has this word.
fn timed_tests(root: &Path, word: &str) -> Result<Vec<Timed>, String> {
    let mut build = Command::new(env!("CARGO"));
    let built = build.args(["test", "--workspace", "--no-run"]).current_dir(root).output();
    let built = built.map_err(|error| format!("cargo: {error}"))?;
    let said = String::from_utf8_lossy(&built.stderr);
    if !built.status.success() {
        return Err(format!("the tests do not compile:\n{said}"));
    }
    let known = names(&Repository::read(root));
    let mut found = Vec::new();
    for program in said.lines().filter_map(program) {
        let program = root.join(program);
        let listed = Command::new(&program).args(["--list", "--format", "terse"]).output();
        let listed = listed.map_err(|error| format!("{}: {error}", program.display()))?;
        for line in String::from_utf8_lossy(&listed.stdout).lines() {
            let Some(name) = line.strip_suffix(": test") else { continue };
            let last = name.rsplit("::").next().unwrap_or(name);
            if let Some(folder) = known.get(last)
                && format!("{} {name}", program.display()).contains(word)
            {
                let (program, name) = (program.clone(), name.to_owned());
                found.push(Timed { program, folder: root.join(folder), name });
            }
        }
    }
    Ok(found)
}

/// Returns the path in a line such as `  Executable tests/a.rs (target/debug/deps/a-0123)`.
fn program(line: &str) -> Option<&str> {
    let (_, path) = line.trim().strip_prefix("Executable ")?.rsplit_once('(')?;
    path.strip_suffix(')')
}

/// Returns the names of the tests that depend on time, and the folders of their packages.
fn names(repository: &Repository) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for file in repository.files.iter().filter(|file| file.is_rust()) {
        let folder: Vec<_> = file.path.split('/').take(2).collect();
        if folder[0] != "crates" || file.path.contains("/tests/sim/") {
            continue;
        }
        for (name, body) in tests(&file.code) {
            if TIMED.iter().any(|word| words(body, word).next().is_some()) {
                names.insert(name.to_owned(), folder.join("/"));
            }
        }
    }
    names
}

/// Returns the name and the body of each test of a file.
fn tests(code: &str) -> Vec<(&str, &str)> {
    let starts: BTreeSet<_> = code.match_indices("#[test]").map(|(at, _)| at).collect();
    let parts = starts.iter().filter_map(|at| {
        let rest = &code[*at..];
        let (_, rest) = rest.split_once("fn ")?;
        let (name, rest) = rest.split_once('(')?;
        let open = rest.find('{')?;
        let mut depth = 0usize;
        let end = rest[open..].char_indices().find(|(_, c)| {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        Some((name, &rest[open..open + end?.0]))
    });
    parts.collect()
}

#[cfg(test)]
mod checks {
    use super::*;

    #[test]
    fn tests_that_depend_on_time_are_found_with_their_programs() {
        let text = "//! A.\n#[test]\nfn a() { if x { y() } spin(1) }\n#[test]\nfn b() { c() }\n";
        let files = [crate::source::File::new("crates/ums/tests/a.rs", text)];
        let repository = Repository { files: files.into(), others: Vec::new() };
        let expected = BTreeMap::from([("a".to_owned(), "crates/ums".to_owned())]);
        assert_eq!(names(&repository), expected);
        let line = "  Executable tests/a.rs (target/debug/deps/a-0123)";
        assert_eq!(program(line), Some("target/debug/deps/a-0123"));
        assert_eq!(program("   Compiling ums v0.1.0 (a)"), None);
    }
}
