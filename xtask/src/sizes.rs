//! Small files, small functions, and a ratchet for what is longer.
//!
//! The limits are far above what the house wants, so a finding always means "split it". What was
//! too long when the limit came stands in `xtask/long.txt`, one `path lines` or `path::function
//! lines` to a line. That list may only shrink: an entry that is larger than it needs to be is a
//! finding too.

use std::collections::BTreeMap;

use crate::source::{File, Finding, House, body_end, is_word, line_of, words};

const FILE_LINES_MAX: usize = 700;
const FUNCTION_LINES_MAX: usize = 80;
const ALLOWED: &str = "xtask/long.txt";

/// Findings over all Rust files.
pub fn check(house: &House) -> Vec<Finding> {
    let mut allowed = house.file(ALLOWED).map(allowances).unwrap_or_default();
    let mut findings = Vec::new();
    for file in house.rust() {
        let lines = file.text.lines().count();
        let mut long = vec![(file.path.clone(), 1, lines, FILE_LINES_MAX)];
        long.extend(functions(&file.code).into_iter().map(|(name, line, lines)| {
            (format!("{}::{name}", file.path), line, lines, FUNCTION_LINES_MAX)
        }));
        for (name, line, lines, max) in long.into_iter().filter(|(_, _, lines, max)| lines > max) {
            match allowed.remove(&name) {
                Some((_, most)) if lines == most => {}
                Some((at, most)) if lines < most => findings.push(Finding {
                    path: ALLOWED.to_owned(),
                    line: at,
                    message: format!("`{name}` has shrunk from {most} to {lines} lines: write {lines} here."),
                }),
                _ => findings.push(file.finding(
                    line,
                    format!("`{name}` has {lines} lines, more than {max}: split it where its purpose changes."),
                )),
            }
        }
    }
    let unused = |(name, (line, _)): (String, (usize, usize))| Finding {
        path: ALLOWED.to_owned(),
        line,
        message: format!("`{name}` is no longer too long: remove this line."),
    };
    findings.extend(allowed.into_iter().map(unused));
    findings
}

fn allowances(file: &File) -> BTreeMap<String, (usize, usize)> {
    let entry = |(n, line): (usize, &str)| {
        let (name, lines) = line.trim().rsplit_once(' ')?;
        (!name.starts_with('#')).then_some((name.to_owned(), (n + 1, lines.parse().ok()?)))
    };
    file.text.lines().enumerate().filter_map(entry).collect()
}

/// Name, first line and number of lines of each function with a body.
fn functions(code: &str) -> Vec<(String, usize, usize)> {
    let function = |at: usize| {
        let rest = code[at + 2..].trim_start();
        let name: String = rest.chars().take_while(|&c| is_word(c)).collect();
        let end = body_end(code, at).filter(|_| !name.is_empty())?;
        let (first, last) = (line_of(code, at), line_of(code, end));
        Some((name, first, last - first + 1))
    };
    words(code, "fn").filter_map(function).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long_function(lines: usize) -> String {
        format!("//! A.\nfn f(a: [u8; 2]) {{\n{}}}\nfn g();\n", "    g();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_up_to_the_limit_is_fine() {
        assert_eq!(check(&House::of(&[("a.rs", &long_function(80))])), []);
    }

    #[test]
    fn a_longer_function_is_found_unless_it_is_listed() {
        let text = long_function(81);
        let found = check(&House::of(&[("a.rs", &text)]));
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("`a.rs::f` has 81 lines"), "{}", found[0]);
        assert_eq!(check(&House::of(&[("a.rs", &text), (ALLOWED, "a.rs::f 81\n")])), []);
    }

    #[test]
    fn the_list_may_only_shrink() {
        let text = long_function(81);
        let found = check(&House::of(&[("a.rs", &text), (ALLOWED, "# Why.\na.rs::f 90\n")]));
        assert!(found[0].message.contains("write 81"), "{found:?}");
        let found = check(&House::of(&[("a.rs", &text), (ALLOWED, "a.rs::f 81\nb.rs 800\n")]));
        assert!(found[0].message.contains("remove this line"), "{found:?}");
        let found = check(&House::of(&[("a.rs", &long_function(90)), (ALLOWED, "a.rs::f 81\n")]));
        assert!(found[0].message.contains("split it"), "{found:?}");
    }

    #[test]
    fn a_long_file_is_found() {
        let text = format!("//! A.\n{}", "// b\n".repeat(700));
        assert_eq!(check(&House::of(&[("a.rs", &text)])).len(), 1);
    }
}
