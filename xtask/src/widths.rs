//! Checks that lines of Rust are at most 100 columns wide.
//!
//! Files that had wider lines when the limit was set are listed in `xtask/wide.txt`, with the
//! number of these lines; see [`ratchet`](crate::ratchet).

use crate::ratchet::Ratchet;
use crate::source::{Finding, Repository};

const COLUMNS_MAX: usize = 100;
const ALLOWED: &str = "xtask/wide.txt";

/// Returns the findings over all Rust files.
pub fn check(repository: &Repository) -> Vec<Finding> {
    let mut allowed = Ratchet::read(repository, ALLOWED, "lines");
    let mut findings = Vec::new();
    for file in repository.rust() {
        let widths = file.text.lines().map(|line| line.chars().count());
        let wide: Vec<(usize, usize)> =
            widths.enumerate().filter(|(_, columns)| *columns > COLUMNS_MAX).collect();
        let Some((first, columns)) = wide.first() else { continue };
        let new = file.finding(
            first + 1,
            format!(
                "{columns} columns; {} lines of this file have more than {COLUMNS_MAX}: wrap them.",
                wide.len()
            ),
        );
        findings.extend(allowed.judge(&file.path, wide.len(), new));
    }
    findings.extend(allowed.unused());
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a file with lines of these widths.
    fn text(widths: &[usize]) -> String {
        widths.iter().map(|columns| format!("//! {}\n", "é".repeat(columns - 4))).collect()
    }

    #[test]
    fn a_line_up_to_the_limit_is_fine() {
        assert_eq!(check(&Repository::of(&[("a.rs", &text(&[100, 5]))])), []);
        assert_eq!(check(&Repository::of(&[("a.md", &text(&[300]))])), []);
    }

    #[test]
    fn a_wider_line_is_found_unless_its_file_is_listed() {
        let text = text(&[5, 101, 102]);
        let found = check(&Repository::of(&[("a.rs", &text)]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 2);
        assert!(found[0].message.contains("101 columns; 2 lines"), "{}", found[0]);
        assert_eq!(check(&Repository::of(&[("a.rs", &text), (ALLOWED, "a.rs 2\n")])), []);
    }

    #[test]
    fn the_list_may_only_shrink() {
        let text = text(&[101, 102]);
        let found =
            check(&Repository::of(&[("a.rs", &text), (ALLOWED, "# Why.\na.rs 3\nb.rs 1\n")]));
        let lines: Vec<usize> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [2, 3], "{found:?}");
        assert!(found[0].message.contains("write 2"), "{found:?}");
        let found = check(&Repository::of(&[("a.rs", &text), (ALLOWED, "a.rs 1\n")]));
        assert!(found[0].message.contains("wrap them"), "{found:?}");
    }
}
