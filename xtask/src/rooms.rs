//! Checks that unsafe code is only in the files that ARCHITECTURE.md lists.
//!
//! The section "Rooms of unsafe code" of ARCHITECTURE.md has a table of files, and of folders
//! (whose names end with a slash), each with the reason. Unsafe code of the crates in that table,
//! outside tests and examples, may be only there. Everything in the table must contain such code.
//! In a row, a name without a slash is in the same folder as the file before it.

use std::fmt;

use crate::source::{File, Finding, Repository, line_of, without_tests, words};

/// The most files with unsafe code, outside tests and examples.
const FILES_MAX: usize = 68;

/// The most of them with unsafe blocks. The others only declare what is unsafe.
const WITH_BLOCKS_MAX: usize = 63;

/// The words with which a file says that it allows unsafe code for the names it exports.
const EXPORTED: &str = "// Exported names.";

const PAGE: &str = "ARCHITECTURE.md";

/// Returns the findings over all crates.
pub fn check(repository: &Repository) -> Vec<Finding> {
    let Some(page) = repository.file(PAGE) else { return Vec::new() };
    let rooms = rooms(page);
    let holds =
        |room: &str, path: &str| path == room || (room.ends_with('/') && path.starts_with(room));
    let crate_of = |path: &str| path.split('/').nth(1).map(str::to_owned);
    let listed = |file: &File| rooms.iter().any(|(_, room)| crate_of(room) == crate_of(&file.path));
    let unsafe_files: Vec<_> = with_unsafe(repository).filter(|(file, _)| listed(file)).collect();
    let mut findings: Vec<Finding> = unsafe_files
        .iter()
        .filter(|(file, _)| !rooms.iter().any(|(_, room)| holds(room, &file.path)))
        .map(|(file, figures)| {
            let message = "unsafe code outside the rooms named for it. Use the safe function of \
                           one of them, or add this file to \"Rooms of unsafe code\" in \
                           ARCHITECTURE.md with the reason.";
            file.finding(figures.first, message)
        })
        .collect();
    for (line, room) in &rooms {
        if !unsafe_files.iter().any(|(file, _)| holds(room, &file.path)) {
            let message = format!("`{room}` has no unsafe code: remove it from the list.");
            findings.push(page.finding(*line, message));
        }
    }
    findings.extend(allowing(repository, |path| rooms.iter().any(|(_, room)| holds(room, path))));
    let with_blocks = unsafe_files.iter().filter(|(_, figures)| figures.blocks > 0).count();
    for (files, what, most) in
        [(unsafe_files.len(), "code", FILES_MAX), (with_blocks, "blocks", WITH_BLOCKS_MAX)]
    {
        if files > most {
            let message = format!(
                "{files} files have unsafe {what}, which is more than {most}: move it behind a \
                 safe, sound function of a file that has some."
            );
            findings.push(page.finding(1, message));
        }
    }
    findings
}

/// Finds files that allow unsafe code as a whole and are not in the table. For the compiler, an
/// attribute such as `unsafe(no_mangle)` is unsafe code, so a file with exported names may allow it
/// if the line says so.
fn allowing(repository: &Repository, in_a_room: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in repository.rust().filter(|file| file.path.starts_with("crates/")) {
        if is_test(&file.path) || in_a_room(&file.path) {
            continue;
        }
        let code = without_tests(&file.code);
        for (n, line) in code.lines().enumerate() {
            let whole = line.trim_start().starts_with("#![") && line.contains("allow(unsafe_code)");
            let says_why = file.text.lines().nth(n).is_some_and(|line| line.contains(EXPORTED));
            if whole && !says_why {
                findings.push(file.finding(
                    n + 1,
                    format!(
                        "allows unsafe code in the whole file, which is in no room of \
                         ARCHITECTURE.md. Remove that, or end the line with `{EXPORTED}`."
                    ),
                ));
            }
        }
    }
    findings
}

/// Returns the figures in one line.
pub fn summary(repository: &Repository) -> String {
    let mut all = Figures::default();
    let (mut files, mut with_blocks) = (0, 0);
    for (_, figures) in with_unsafe(repository) {
        files += 1;
        with_blocks += u32::from(figures.blocks > 0);
        all.blocks += figures.blocks;
        all.functions += figures.functions;
        all.impls += figures.impls;
    }
    format!("unsafe code outside tests: {files} files ({with_blocks} with blocks), {all}")
}

/// The amount of unsafe code in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Figures {
    blocks: usize,
    functions: usize,
    impls: usize,
    /// The first line with unsafe code.
    first: usize,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { blocks, functions, impls, .. } = self;
        let sum = blocks + functions + impls;
        write!(f, "{blocks} blocks + {functions} functions + {impls} impls = {sum}")
    }
}

impl Figures {
    fn of(code: &str) -> Option<Figures> {
        let mut figures = Figures::default();
        for at in words(code, "unsafe") {
            let rest = code[at + "unsafe".len()..].trim_start();
            let is = |word: &str| words(rest, word).next() == Some(0);
            // After `extern` there may be the calling convention, a literal that is blanked here.
            // The type of a function has no name.
            let named =
                |rest: &str| rest.trim_start().starts_with(|c: char| c.is_alphabetic() || c == '_');
            let function = rest.find("fn").filter(|at| {
                let before = rest[..*at].trim();
                (before.is_empty() || before.starts_with("extern")) && !before.contains([';', '{'])
            });
            if rest.starts_with('{') {
                figures.blocks += 1;
            } else if is("impl") {
                figures.impls += 1;
            } else if function.is_some_and(|at| named(&rest[at + "fn".len()..])) {
                figures.functions += 1;
            } else {
                continue;
            }
            if figures.first == 0 {
                figures.first = line_of(code, at);
            }
        }
        (figures.first > 0).then_some(figures)
    }
}

/// Returns the files of crates with unsafe code outside tests and examples.
fn with_unsafe(repository: &Repository) -> impl Iterator<Item = (&File, Figures)> {
    repository
        .rust()
        .filter(|file| file.path.starts_with("crates/") && !is_test(&file.path))
        .filter_map(|file| Some((file, Figures::of(&without_tests(&file.code))?)))
}

fn is_test(path: &str) -> bool {
    let folders = ["/tests/", "/examples/", "/benches/"];
    let files = ["tests.rs", "loom.rs"];
    folders.iter().any(|folder| path.contains(folder))
        || files.iter().any(|end| path.ends_with(end))
}

/// Returns the entries of the table, each with its line.
fn rooms(page: &File) -> Vec<(usize, String)> {
    let lines = page.text.lines().enumerate();
    let after = lines.skip_while(|(_, line)| *line != "## Rooms of unsafe code").skip(1);
    let section = after.take_while(|(_, line)| !line.starts_with("## "));
    section.flat_map(|(at, line)| row(line).into_iter().map(move |path| (at + 1, path))).collect()
}

/// Returns the paths in a row of the table.
fn row(line: &str) -> Vec<String> {
    let Some(cell) = line.strip_prefix("| `").and_then(|rest| rest.split('|').next()) else {
        return Vec::new();
    };
    let mut folder = String::new();
    let mut paths = Vec::new();
    for name in cell.split('`').step_by(2) {
        let path =
            if name.contains('/') { format!("crates/{name}") } else { folder.clone() + name };
        folder = path.rsplit_once('/').map_or_else(String::new, |(folder, _)| format!("{folder}/"));
        paths.push(path);
    }
    paths.retain(|path| !path.ends_with(' '));
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "## Rooms of unsafe code\n\n| file | why |\n|---|---|\n| `a/src/raw.rs`, \
                        `two.rs` | `f` is why. |\n| `b/src/room/` | Why. |\n\n## More\n| \
                        `c/src/lib.rs` | No. |\n";
    const BLOCK: &str = "fn f() {\n    unsafe { g() }\n}\n";

    fn of(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let files = [&[(PAGE, LIST)], files].concat();
        let found = check(&Repository::of(&files));
        found.into_iter().map(|finding| (finding.path, finding.line)).collect()
    }

    #[test]
    fn unsafe_code_stands_in_its_rooms_only() {
        let rooms = [
            ("crates/a/src/raw.rs", BLOCK),
            ("crates/a/src/two.rs", BLOCK),
            ("crates/b/src/room/deep/x.rs", BLOCK),
        ];
        assert_eq!(of(&rooms), []);
        let fine = [("crates/a/tests/t.rs", BLOCK), ("crates/a/src/x/tests.rs", BLOCK)];
        assert_eq!(of(&[&rooms[..], &fine].concat()), []);
        let not_listed = [("crates/c/src/lib.rs", BLOCK)];
        assert_eq!(of(&[&rooms[..], &not_listed].concat()), []);
        let outside = [("crates/b/src/lib.rs", BLOCK)];
        let found = of(&[&rooms[..], &outside].concat());
        assert_eq!(found, [("crates/b/src/lib.rs".into(), 2)]);
    }

    #[test]
    fn a_room_without_unsafe_code_is_found() {
        let one = [("crates/a/src/raw.rs", BLOCK), ("crates/b/src/room/x.rs", "fn f() {}\n")];
        assert_eq!(of(&one), [(PAGE.into(), 5), (PAGE.into(), 6)]);
    }

    #[test]
    fn a_file_that_allows_unsafe_code_is_in_a_room_or_exports_names() {
        let rooms = [
            ("crates/a/src/raw.rs", "#![allow(unsafe_code)]\nfn f() { unsafe { g() } }\n"),
            ("crates/a/src/two.rs", BLOCK),
            ("crates/b/src/room/x.rs", BLOCK),
        ];
        let exports = "//! E.\n#![allow(unsafe_code)] // Exported names.\n";
        let tested = "//! T.\n#[cfg(test)]\nmod tests {\n    #![allow(unsafe_code)]\n}\n";
        let fine = [("crates/c/src/e.rs", exports), ("crates/c/src/t.rs", tested)];
        assert_eq!(of(&[&rooms[..], &fine].concat()), []);
        let wrong = [("crates/c/src/w.rs", "//! W.\n#![allow(unsafe_code)]\n")];
        assert_eq!(of(&[&rooms[..], &wrong].concat()), [("crates/c/src/w.rs".into(), 2)]);
    }

    #[test]
    fn too_many_files_are_found() {
        const DECLARES: &str = "//! Its unsafe function is called elsewhere.\nunsafe fn f() {}\n";
        let paths: Vec<_> = (0..=FILES_MAX).map(|n| format!("crates/b/src/room/x{n}.rs")).collect();
        let mut files: Vec<_> = paths.iter().map(|path| (path.as_str(), BLOCK)).collect();
        files[0].0 = "crates/a/src/raw.rs";
        files[1].0 = "crates/a/src/two.rs";
        assert_eq!(of(&files[..WITH_BLOCKS_MAX]), []);
        assert_eq!(of(&files[..=WITH_BLOCKS_MAX]), [(PAGE.into(), 1)]);
        files[WITH_BLOCKS_MAX..].iter_mut().for_each(|file| file.1 = DECLARES);
        assert_eq!(of(&files[..FILES_MAX]), []);
        assert_eq!(of(&files), [(PAGE.into(), 1)]);
    }

    #[test]
    fn the_figures_count_what_is_unsafe_and_no_test_attribute_or_type() {
        let text = "#[unsafe(no_mangle)]\npub unsafe extern \"C\" fn a() {}\nunsafe fn b() {}\n\
                    type F = unsafe fn(u8);\nunsafe impl S for T {}\nunsafe trait S {}\n\
                    fn f() { unsafe { b() } }\n#[cfg(test)]\nmod tests {\n    unsafe fn t() \
                    {}\n}\n";
        let repository = Repository::of(&[("crates/a/src/lib.rs", text)]);
        assert_eq!(
            summary(&repository),
            "unsafe code outside tests: 1 files (1 with blocks), 1 blocks + 2 functions + 1 impls \
             = 4"
        );
    }
}
