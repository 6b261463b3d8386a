//! Mutations that a command puts in, one after the other: `cargo run -p xtask -- mutants [WORD]`.
//!
//! `docs/mutations.txt` is a list of small mistakes. Each is put into a copy of the repository, the
//! tests that it names are run, and they must fail. With a word, only the entries that contain it
//! are run. An entry looks like this, and an empty line ends it:
//!
//! ```text
//! B1 a preferred scheduler may be 30 per cent more loaded
//! in crates/ums/src/os/limits.rs
//! -pub const HINT_SLACK_PERCENT: usize = 20;
//! +pub const HINT_SLACK_PERCENT: usize = 30;
//! run -p ums --test users hinted_a_request_goes_to_the_preferred_scheduler
//! ```
//!
//! The lines that begin with `-` must be in the file exactly once; tidy checks that, so the list
//! stays true as the code changes. A mutation that does not compile counts as an error of the list.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use crate::source::{Finding, Repository};

const LIST: &str = "docs/mutations.txt";

/// One mistake.
struct Mutation<'a> {
    /// The line of the list at which it begins.
    line: usize,
    /// The behaviour, and the mistake in words.
    title: &'a str,
    file: &'a str,
    before: String,
    after: String,
    /// The arguments of `cargo test`.
    tests: Vec<&'a str>,
}

/// Reads the list. Lines that begin with `#` are comments.
fn read(text: &str) -> Vec<Mutation<'_>> {
    let lines: Vec<(usize, &str)> = text.lines().enumerate().collect();
    let blocks = lines.split(|(_, line)| line.is_empty());
    let blocks = blocks
        .map(|block| block.iter().filter(|(_, line)| !line.starts_with('#')).collect::<Vec<_>>());
    blocks
        .filter(|block| !block.is_empty())
        .map(|block| {
            let of = |start: &'static str| {
                block.iter().filter_map(move |(_, line)| line.strip_prefix(start))
            };
            let join = |start| of(start).map(|line| format!("{line}\n")).collect::<String>();
            Mutation {
                line: block[0].0 + 1,
                title: block[0].1,
                file: of("in ").next().unwrap_or_default(),
                before: join("-"),
                after: join("+"),
                tests: of("run ").next().unwrap_or_default().split_whitespace().collect(),
            }
        })
        .collect()
}

/// Returns the entries that do not fit the sources.
pub fn check(repository: &Repository) -> Vec<Finding> {
    let Some(list) = repository.file(LIST) else { return Vec::new() };
    let mut findings = Vec::new();
    for mutation in read(&list.text) {
        let mut find = |message: String| findings.push(list.finding(mutation.line, message));
        let Some(file) = repository.file(mutation.file) else {
            find(format!("there is no file `{}`: correct the line `in`.", mutation.file));
            continue;
        };
        let count = file.text.matches(&mutation.before).count();
        if mutation.before.is_empty() || count != 1 {
            let file = &file.path;
            find(format!(
                "its lines with `-` are {count} times in {file}: they must be there once."
            ));
        }
        if mutation.tests.is_empty() {
            find("it names no tests: add a line `run`, with arguments of `cargo test`.".into());
        }
    }
    findings
}

/// Runs the entries that contain this word. The copy of the repository, and what is built in it,
/// stay below `target/mutants`.
///
/// # Errors
/// A sentence that says how many mutations no test has noticed, or what went wrong.
pub fn run(root: &Path, word: &str) -> Result<(), String> {
    let text = std::fs::read_to_string(root.join(LIST)).map_err(|e| format!("{LIST}: {e}"))?;
    let all = read(&text);
    let chosen: Vec<_> =
        all.iter().filter(|m| m.title.contains(word) || m.file.contains(word)).collect();
    let copy = copy(root)?;
    // A test that fails anyway notices nothing.
    let mut tests: Vec<_> = chosen.iter().map(|mutation| &mutation.tests).collect();
    tests.sort();
    tests.dedup();
    for tests in tests {
        let ran = cargo(&copy, tests, false)?;
        let text = String::from_utf8_lossy(&ran.stdout);
        if !ran.status.success() || passed(&text) == 0 {
            return Err(format!("without a mutation, no test passes: {}\n{text}", tests.join(" ")));
        }
    }
    let mut survived = Vec::new();
    for (n, mutation) in chosen.iter().enumerate() {
        let began = Instant::now();
        let outcome = try_one(&copy, mutation)?;
        let (seconds, title) = (began.elapsed().as_secs(), mutation.title);
        say!("{} of {}: {outcome}, {seconds} s: {title}", n + 1, chosen.len());
        if !outcome.starts_with("noticed") {
            survived.push(title);
        }
    }
    say!("{} mutations, {} noticed", chosen.len(), chosen.len() - survived.len());
    if survived.is_empty() { Ok(()) } else { Err(format!("not noticed:\n{}", survived.join("\n"))) }
}

/// Makes a copy of the files that git knows, as they are now.
fn copy(root: &Path) -> Result<PathBuf, String> {
    let copy = root.join("target/mutants/tree");
    std::fs::create_dir_all(&copy).map_err(|e| e.to_string())?;
    let listed = output(Command::new("git").arg("-C").arg(root).args([
        "ls-files",
        "-co",
        "--exclude-standard",
    ]))?;
    let listed = String::from_utf8_lossy(&listed.stdout);
    let names: Vec<_> = listed.lines().collect();
    remove_others(&copy, &copy, &names)?;
    for name in names {
        let (from, to) = (root.join(name), copy.join(name));
        let Ok(text) = std::fs::read(&from) else { continue };
        // Unchanged files keep their times, so that they are not compiled again.
        if std::fs::read(&to).is_ok_and(|there| there == text) {
            continue;
        }
        let folder = to.parent().expect("a file has a folder");
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&to, text))
            .map_err(|e| format!("{}: {e}", to.display()))?;
    }
    Ok(copy)
}

/// Puts one mutation in, runs its tests, and takes it out again.
fn try_one(copy: &Path, mutation: &Mutation<'_>) -> Result<&'static str, String> {
    let path = copy.join(mutation.file);
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    if text.matches(&mutation.before).count() != 1 {
        return Err(format!("{LIST}:{}: does not fit {}", mutation.line, mutation.file));
    }
    let write = |text: &str| std::fs::write(&path, text).map_err(|e| e.to_string());
    write(&text.replace(&mutation.before, &mutation.after))?;
    let built = cargo(copy, &mutation.tests, true);
    let ran = built.and_then(|built| match built.status.success() {
        true => cargo(copy, &mutation.tests, false),
        false => Err(format!(
            "{LIST}:{}: does not compile:\n{}",
            mutation.line,
            String::from_utf8_lossy(&built.stderr)
        )),
    });
    write(&text)?;
    let ran = ran?;
    Ok(match ran.status.code() {
        Some(0) => "NOT noticed",
        Some(TIMED_OUT) => "noticed, as it did not end",
        _ => "noticed",
    })
}

/// How long the tests of one mutation may take, in seconds.
const SECONDS: &str = "300";
/// The exit code of `timeout`.
const TIMED_OUT: i32 = 124;

/// Returns how many tests passed.
fn passed(said: &str) -> usize {
    let results = said.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    results.filter_map(|line| line.split(' ').next()?.parse::<usize>().ok()).sum()
}

/// Removes the files of the copy that are not in the repository any more.
fn remove_others(copy: &Path, folder: &Path, names: &[&str]) -> Result<(), String> {
    for entry in std::fs::read_dir(folder).map_err(|e| e.to_string())?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            remove_others(copy, &path, names)?;
        } else if !path.strip_prefix(copy).is_ok_and(|at| names.iter().any(|n| Path::new(n) == at))
        {
            std::fs::remove_file(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        }
    }
    Ok(())
}

fn cargo(copy: &Path, tests: &[&str], only_build: bool) -> Result<Output, String> {
    let mut command = Command::new("timeout");
    command.args([SECONDS, env!("CARGO"), "test", "-q"]).args(tests).current_dir(copy);
    command.env("CARGO_TARGET_DIR", copy.with_file_name("build"));
    if only_build {
        command.arg("--no-run");
    }
    output(&mut command)
}

fn output(command: &mut Command) -> Result<Output, String> {
    command.output().map_err(|e| format!("{command:?}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# A comment.
U1 a title
in a.rs
-    let x = 1;
+    let x = 2;
run -p ums --lib x

U2 another
in b.rs
-y
run -p ums
";

    #[test]
    fn the_list_is_read_and_compared_with_the_sources() {
        let read = read(TEXT);
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].line, read[0].title), (2, "U1 a title"));
        assert_eq!((&*read[0].before, &*read[0].after), ("    let x = 1;\n", "    let x = 2;\n"));
        assert_eq!(read[0].tests, ["-p", "ums", "--lib", "x"]);
        let of = |text: &str| {
            let files = [(LIST, TEXT), ("a.rs", text), ("b.rs", "y\n")];
            let files = files.map(|(path, text)| crate::source::File::new(path, text));
            check(&Repository { files: files.into(), others: Vec::new() })
        };
        assert!(of("    let x = 1;\n").is_empty());
        assert_eq!(of("    let x = 3;\n").len(), 1);
        assert_eq!(of("    let x = 1;\n    let x = 1;\n").len(), 1);
    }
}
