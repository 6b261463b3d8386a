//! Checks small habits: each file begins with prose, no unfinished code is left, no path of one
//! computer is used, and no doc comment cites a behaviour by its number.

use crate::source::{File, Finding, Repository, is_word, line_of, words};

// Written in two parts so that the check does not find this file.
const OPEN_MACROS: [&str; 2] = [concat!("to", "do"), concat!("unimple", "mented")];
const OPEN_WORDS: [&str; 2] = [concat!("FIX", "ME"), concat!("XX", "X")];
const SKIPPED: &str = concat!("#[ig", "nore");
const MACHINE: [&str; 4] = [
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/fa", "rm/"),
    concat!("/tmp/", "brief"),
];

/// Macros that panic if stdout or stderr is closed, and may block until it is read.
const PRINTING: [&str; 5] = ["eprintln", "println", "eprint", "print", "dbg"];
const SILENT: [&str; 6] = [
    "crates/ums/src/",
    "crates/context/src/",
    "crates/fiber/src/",
    "crates/compat/src/",
    "crates/umsql/src/",
    "crates/ums-capi/src/",
];
/// The streams of `std`. A write to one waits while a pipe is full. Only these use them: the first
/// writes only what is taken at once, the next two have threads for it, and the last prints results
/// of tests.
const STREAMS: [&str; 2] = ["stderr()", "stdout()"];
const WRITE_TO_STREAMS: [&str; 4] = [
    "crates/ums/src/os/stderr.rs",
    "crates/ums/src/monitor/writer.rs",
    "crates/ums/src/observe/stacks/on_signal.rs",
    "crates/ums/src/testing/skipped.rs",
];
/// Files that are compiled for tests only, and whose names do not end with `tests.rs`.
const TEST_FILES: [&str; 2] = ["crates/umsql/src/commit_story.rs", "crates/fiber/src/child.rs"];
/// Code that recovers a lock whose holder panicked. Only one type may do that, for all crates that
/// use `ums`.
const RECOVERIES: [&str; 2] = ["PoisonError", "|e| e.into_inner()"];
const RECOVERS: &str = "crates/ums/src/os/lock.rs";
const HAVE_LOCK: [&str; 3] = ["crates/ums/", "crates/umsql/", "crates/ums-capi/"];
/// The features for tests. Only these folders and lib.rs, the list of what is public, may depend on
/// them.
const TEST_FEATURES: [&str; 2] = ["feature = \"sim\"", "fuzzing"];
const KNOW_TEST_FEATURES: [&str; 3] =
    ["crates/ums/src/os/", "crates/ums/src/testing/", "crates/ums/src/lib.rs"];
/// These developers' tools may print their results.
const TOOLS: &str = "crates/ums/src/testing/sim/";

/// Returns the findings over all files.
pub fn check(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &repository.files {
        machine_paths(file, &mut findings);
        if file.is_rust() {
            prose_first(file, &mut findings);
            left_open(file, &mut findings);
            printing(file, &mut findings);
            numbers(file, &mut findings);
            recovery(file, &mut findings);
            test_features(file, &mut findings);
        }
    }
    findings
}

fn prose_first(file: &File, findings: &mut Vec<Finding>) {
    if !file.text.starts_with("//!") {
        findings.push(file.finding(
            1,
            "begin with `//!` prose: what the file is for, its nouns, its invariants, what it does \
             not do.",
        ));
    }
}

fn left_open(file: &File, findings: &mut Vec<Finding>) {
    for name in OPEN_MACROS {
        for at in words(&file.code, name).filter(|at| file.code[at + name.len()..].starts_with('!'))
        {
            findings.push(file.finding(
                line_of(&file.code, at),
                format!(
                    "`{name}!` pretends. Write it, or return an error that names what is missing."
                ),
            ));
        }
    }
    for word in OPEN_WORDS {
        for at in words(&file.text, word) {
            findings.push(file.finding(
                line_of(&file.text, at),
                format!("`{word}`: mend it now, or say in a sentence what is not known."),
            ));
        }
    }
    for (at, _) in file.code.match_indices(SKIPPED) {
        findings.push(file.finding(
            line_of(&file.code, at),
            "a test that never runs proves nothing. Make it pass, make it short, or remove it.",
        ));
    }
}

/// Returns a library's code without its tests. Returns an empty text for other files.
fn library(file: &File) -> &str {
    let path = file.path.as_str();
    let is_test = path.ends_with("tests.rs") || path.contains("/tests/");
    let is_test = is_test || TEST_FILES.contains(&path);
    if is_test || path.starts_with(TOOLS) || !SILENT.iter().any(|at| path.starts_with(at)) {
        return "";
    }
    file.code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default()
}

fn printing(file: &File, findings: &mut Vec<Finding>) {
    let code = library(file);
    for name in PRINTING {
        for at in words(code, name).filter(|at| code[at + name.len()..].starts_with('!')) {
            findings.push(file.finding(
                line_of(code, at),
                format!(
                    "`{name}!` panics if its stream is closed: use `crate::report`, or return an \
                     error."
                ),
            ));
        }
    }
    if WRITE_TO_STREAMS.contains(&file.path.as_str()) {
        return;
    }
    for name in STREAMS {
        for (at, _) in code.match_indices(name) {
            findings.push(file.finding(
                line_of(code, at),
                format!("`{name}`: a write to it waits while a pipe is full. Use `crate::report`."),
            ));
        }
    }
}

/// Finds numbers of behaviours, `U`, `G` or `B` and digits, in doc comments outside tests. A reader
/// of the documentation cannot look them up; they belong to tests and to `docs/behaviours.md`.
fn numbers(file: &File, findings: &mut Vec<Finding>) {
    let path = file.path.as_str();
    let is_test = ["tests.rs", "loom.rs"].iter().any(|end| path.ends_with(end));
    if is_test || path.contains("/tests/") || !path.contains("/src/") || path.starts_with("xtask") {
        return;
    }
    for (n, line) in file.text.lines().enumerate() {
        let line = line.trim_start();
        if !line.starts_with("///") && !line.starts_with("//!") {
            continue;
        }
        let number = |word: &str| {
            word.starts_with(['U', 'G', 'B'])
                && (2..=3).contains(&word.len())
                && word[1..].bytes().all(|byte| byte.is_ascii_digit())
        };
        if let Some(found) = line.split(|c: char| !is_word(c)).find(|word| number(word)) {
            findings.push(file.finding(
                n + 1,
                format!("`{found}` means nothing to a reader of the documentation: leave it out."),
            ));
        }
    }
}

fn recovery(file: &File, findings: &mut Vec<Finding>) {
    if file.path == RECOVERS || !HAVE_LOCK.iter().any(|at| file.path.starts_with(at)) {
        return;
    }
    for (at, line) in file.code.lines().enumerate() {
        if RECOVERIES.iter().any(|recovery| line.contains(recovery)) {
            findings.push(file.finding(
                at + 1,
                "recovers a poisoned lock: use `Lock` of `os/lock.rs`, which has no poison.",
            ));
        }
    }
}

fn test_features(file: &File, findings: &mut Vec<Finding>) {
    let knows = KNOW_TEST_FEATURES.iter().any(|at| file.path.starts_with(at));
    if knows || !file.path.starts_with("crates/ums/src/") {
        return;
    }
    for (at, line) in file.text.lines().enumerate() {
        let condition = line.split_once("cfg(").filter(|(before, _)| !before.contains("//"));
        let asks = |(_, condition): (&str, &str)| {
            TEST_FEATURES.iter().any(|name| condition.contains(name))
        };
        if condition.is_some_and(asks) {
            findings.push(file.finding(
                at + 1,
                "has a second form for a build with a feature of tests. Ask `os::sim` or \
                 `os::planted`, which are constant without it, or move this to `testing`.",
            ));
        }
    }
}

fn machine_paths(file: &File, findings: &mut Vec<Finding>) {
    for path in MACHINE {
        for (at, _) in file.text.match_indices(path) {
            let before = file.text[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/')) {
                continue;
            }
            findings.push(file.finding(
                line_of(&file.text, at),
                format!(
                    "`{path}` is a path of one computer. Take it from an argument, or use a \
                     temporary folder."
                ),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&Repository::of(&[(path, text)])).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_file_begins_with_prose() {
        assert_eq!(lines("a.rs", "//! A.\n"), []);
        assert_eq!(lines("a.rs", "// A.\nfn f() {}\n"), [1]);
    }

    #[test]
    fn what_is_left_open_is_found() {
        let text = format!(
            "//! A.\nfn f() {{ {}!() }}\n// {} later\n{}]\nfn my_{}() {{}}\n",
            OPEN_MACROS[0], OPEN_WORDS[0], SKIPPED, OPEN_MACROS[0]
        );
        assert_eq!(lines("a.rs", &text), [2, 3, 4]);
    }

    #[test]
    fn one_file_recovers_poisoned_locks() {
        let text = "//! A.\nfn f() { a.lock().unwrap_or_else(|e| e.into_inner()); }\n\
                    use std::sync::PoisonError;\nfn g() { cell.into_inner() }\n";
        assert_eq!(lines("crates/ums/src/a.rs", text), [2, 3]);
        assert_eq!(lines("crates/umsql/tests/a.rs", text), [2, 3]);
        assert_eq!(lines(RECOVERS, text), []);
        assert_eq!(lines("crates/fiber/src/a.rs", text), []);
    }

    #[test]
    fn only_os_and_testing_know_whether_a_feature_of_tests_is_on() {
        let text = "//! A.\n#[cfg(feature = \"sim\")]\nfn f() {}\n// cfg(feature = \"sim\")\n\
                    #[cfg(any(test, fuzzing))]\nfn g() {}\n\
                    #[cfg(feature = \"spans\")]\nfn h() {}\n";
        assert_eq!(lines("crates/ums/src/net/tcp.rs", text), [2, 5]);
        assert_eq!(lines("crates/ums/src/os/clock.rs", text), []);
        assert_eq!(lines("crates/umsql/src/a.rs", text), []);
    }

    #[test]
    fn a_library_prints_in_its_tests_only() {
        let text = "//! A.\nfn f() { eprintln!() }\n\
                    #[cfg(test)]\nmod tests {\n fn g() { println!() }\n}\n";
        assert_eq!(lines("crates/ums/src/a.rs", text), [2]);
        assert_eq!(lines("crates/ums/src/a/tests.rs", text), []);
        assert_eq!(lines("crates/ums/src/testing/sim/a.rs", text), []);
        assert_eq!(lines("crates/ums-cli/src/a.rs", text), []);
        assert_eq!(lines("crates/umsql/src/late_tests.rs", text), []);
        let text = "//! A.\nfn f() { let _ = writeln!(std::io::stderr()); }\n";
        assert_eq!(lines("crates/ums-capi/src/a.rs", text), [2]);
        assert_eq!(lines(WRITE_TO_STREAMS[0], text), []);
    }

    #[test]
    fn numbers_of_behaviours_are_found_in_documentation_only() {
        let text = "//! A.\n/// Yields (U47).\n// U48\nfn u49() {}\n/// At most 5 GB, UTF8.\n";
        assert_eq!(lines("crates/a/src/b.rs", text), [2]);
        assert_eq!(lines("crates/a/src/b/tests.rs", text), []);
        assert_eq!(lines("crates/a/tests/b.rs", text), []);
    }

    #[test]
    fn paths_of_a_machine_are_found_in_any_file() {
        let text = format!("see {}a\nsee src{}a\n`{}x`\n", MACHINE[0], MACHINE[0], MACHINE[1]);
        assert_eq!(lines("a.md", &text), [1, 3]);
    }
}
