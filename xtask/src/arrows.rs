//! Checks that imports have one direction: between crates, and between the modules of `ums`.
//!
//! Crates: `fiber, context <- ums <- umsql <- ums-cli`; a crate depends only on those to its left.
//! Modules: the `mod` lines of `crates/ums/src/lib.rs` are in dependency order, and a file names
//! `crate::x` only if `x` is above its own top-level module. Tests may use anything.

use crate::source::{File, Finding, Repository, is_word, line_of, without_tests, words};

const LIB: &str = "crates/ums/src/lib.rs";
const SRC: &str = "crates/ums/src/";

/// What each crate may depend on.
const CRATES: [(&str, &[&str]); 7] = [
    ("fiber", &[]),
    ("context", &[]),
    ("ums", &["fiber", "context"]),
    ("ums-capi", &["fiber", "ums"]),
    ("umsql", &["fiber", "ums"]),
    ("ums-cli", &["fiber", "context", "ums", "umsql"]),
    ("xtask", &[]),
];

/// Returns the findings about crates and modules.
pub fn check(repository: &Repository) -> Vec<Finding> {
    let mut findings = crates(repository);
    findings.extend(modules(repository));
    findings
}

fn crates(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, allowed) in CRATES {
        let folder = if name == "xtask" { String::new() } else { "crates/".to_owned() };
        let Some(manifest) = repository.file(&format!("{folder}{name}/Cargo.toml")) else {
            continue;
        };
        for (line, dependency) in dependencies(&manifest.text) {
            let ours = CRATES.iter().any(|(other, _)| *other == dependency);
            if ours && !allowed.contains(&dependency) {
                let message = format!(
                    "`{name}` must not depend on `{dependency}`: the arrows are fiber <- ums <- \
                     umsql <- ums-cli. Move what both need into the lower crate."
                );
                findings.push(manifest.finding(line, message));
            }
        }
    }
    findings
}

/// Returns the names in the dependency tables of a manifest, with their lines.
fn dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let mut inside = false;
    let mut found = Vec::new();
    for (n, line) in manifest.lines().enumerate() {
        if let Some(table) = line.strip_prefix('[') {
            let table = table.trim_end_matches(']');
            inside = table.ends_with("dependencies");
            if let Some((_, name)) = table.split_once("dependencies.") {
                found.push((n + 1, name));
            }
        } else if inside && let Some((name, _)) = line.split_once('=') {
            let name = name.split('.').next().unwrap_or(name);
            found.push((n + 1, name.trim()));
        }
    }
    found
}

fn modules(repository: &Repository) -> Vec<Finding> {
    let Some(lib) = repository.file(LIB) else { return Vec::new() };
    let order = mod_lines(&without_tests(&lib.code));
    let declared = mod_lines(&lib.code);
    let place = |name: &str| order.iter().position(|other| other == name);
    let mut findings = Vec::new();
    for file in repository.rust().filter(|file| file.path != LIB) {
        let Some(own) = top_module(file) else { continue };
        if !declared.iter().any(|name| name == own) {
            let message =
                format!("no `mod {own};` in lib.rs: add it where it belongs, or remove the file.");
            findings.push(file.finding(1, message));
        }
        let Some(own_place) = place(own) else { continue };
        for (line, used) in uses(&without_tests(&file.code)) {
            let message = match place(&used) {
                Some(used_place) if used_place <= own_place => continue,
                Some(_) => format!(
                    "`{own}` uses `crate::{used}`, which is below it in lib.rs. Let it return a \
                     value for `{used}` to act on, move the shared part up, or reorder the `mod` \
                     lines."
                ),
                None => format!("`crate::{used}` is no module: name the module that defines it."),
            };
            findings.push(file.finding(line, message));
        }
    }
    findings
}

/// Returns the names on the `mod` lines of a file, in order.
fn mod_lines(code: &str) -> Vec<String> {
    let name = |line: &str| {
        let at = words(line, "mod").next()?;
        let rest = line[at + 3..].trim();
        rest.strip_suffix(';').or(rest.strip_suffix('{')).map(|name| name.trim().to_owned())
    };
    code.lines().filter_map(name).collect()
}

/// Returns the top-level module of `ums` to which this file belongs. Returns None for tests and
/// other crates.
fn top_module(file: &File) -> Option<&str> {
    let inside = file.path.strip_prefix(SRC)?;
    if inside.split('/').any(|part| part == "tests" || part == "tests.rs" || part == "loom.rs") {
        return None;
    }
    inside.split('/').next().map(|part| part.trim_end_matches(".rs"))
}

/// Returns the names after `crate::` in this code, with their lines. Macros are left out, because
/// they belong to no module.
fn uses(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for at in words(code, "crate") {
        let Some(rest) = code[at + 5..].strip_prefix("::") else { continue };
        // `pub(in crate::x)` states a visibility and uses nothing.
        if code[..at].trim_end().ends_with("in") {
            continue;
        }
        let line = line_of(code, at);
        if let Some(group) = rest.strip_prefix('{') {
            found.extend(group_heads(group).into_iter().map(|head| (line, head)));
        } else {
            let head: String = rest.chars().take_while(|&c| is_word(c)).collect();
            if !head.is_empty() && !rest[head.len()..].starts_with('!') {
                found.push((line, head));
            }
        }
    }
    found
}

/// Returns the first word of each part in a group such as `a::b, c::{d, e}, f}`.
fn group_heads(group: &str) -> Vec<String> {
    let (mut depth, mut heads, mut fresh) = (0, Vec::new(), true);
    let mut rest = group;
    while let Some(c) = rest.chars().next() {
        if fresh && is_word(c) {
            let head: String = rest.chars().take_while(|&c| is_word(c)).collect();
            rest = &rest[head.len()..];
            heads.push(head);
            fresh = false;
            continue;
        }
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            _ => {}
        }
        rest = &rest[c.len_utf8()..];
    }
    heads
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: (&str, &str) =
        (LIB, "//! L.\nmod error;\npub mod os;\npub(crate) mod inbox;\n#[cfg(test)]\nmod late;\n");

    fn of(path: &str, text: &str) -> Vec<Finding> {
        modules(&Repository::of(&[ORDER, (path, text)]))
    }

    #[test]
    fn a_use_of_what_stands_above_is_fine() {
        assert_eq!(of("crates/ums/src/inbox.rs", "use crate::{error::{A, os}, os};"), []);
        assert_eq!(of("crates/ums/src/os/linux/a.rs", "use crate::os::b; crate::say!();"), []);
    }

    #[test]
    fn a_use_of_what_stands_below_is_found() {
        let found =
            of("crates/ums/src/os/linux/a.rs", "// crate::inbox\nuse crate::{error, inbox::D};");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 2);
        assert!(found[0].message.contains("`os` uses `crate::inbox`"), "{}", found[0]);
        assert_eq!(of("crates/ums/src/error.rs", "fn f() { crate::os::g() }").len(), 1);
    }

    #[test]
    fn a_use_through_the_root_hides_the_arrow() {
        assert_eq!(of("crates/ums/src/os.rs", "use crate::Inbox;").len(), 1);
    }

    #[test]
    fn a_file_without_its_mod_line_is_found() {
        assert_eq!(of("crates/ums/src/lost.rs", "fn f() {}").len(), 1);
        assert_eq!(of("crates/ums/src/late.rs", "use crate::inbox;"), []);
    }

    #[test]
    fn tests_may_look_anywhere() {
        let text = "fn f() {}\n#[cfg(test)]\nmod tests { use crate::inbox; }";
        assert_eq!(of("crates/ums/src/error.rs", text), []);
        assert_eq!(of("crates/ums/src/os/tests.rs", "use crate::inbox;"), []);
    }

    #[test]
    fn crates_depend_downwards() {
        let repository = Repository::of(&[
            ("crates/fiber/Cargo.toml", "[dependencies]\nlibc = \"1\"\n[dev-dependencies.ums]\n"),
            ("crates/umsql/Cargo.toml", "[dependencies]\nums = { path = \"../ums\" }\n"),
            ("crates/ums/Cargo.toml", "[dev-dependencies]\numsql.workspace = true\n"),
        ]);
        let found: Vec<_> = crates(&repository).into_iter().map(|f| (f.path, f.line)).collect();
        assert_eq!(
            found,
            [("crates/fiber/Cargo.toml".to_owned(), 3), ("crates/ums/Cargo.toml".to_owned(), 2)]
        );
    }
}
