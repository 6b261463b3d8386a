//! Checks that lines of Rust are at most 100 columns wide.

use crate::source::{Finding, Repository};

const COLUMNS_MAX: usize = 100;

/// Returns the findings over all Rust files.
pub fn check(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in repository.rust() {
        let widths = file.text.lines().map(|line| line.chars().count());
        let wide: Vec<(usize, usize)> =
            widths.enumerate().filter(|(_, columns)| *columns > COLUMNS_MAX).collect();
        let Some((first, columns)) = wide.first() else { continue };
        findings.push(file.finding(
            first + 1,
            format!(
                "{columns} columns; {} lines of this file have more than {COLUMNS_MAX}: wrap them.",
                wide.len()
            ),
        ));
    }
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
    fn a_wider_line_is_found() {
        let text = text(&[5, 101, 102]);
        let found = check(&Repository::of(&[("a.rs", &text)]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 2);
        assert!(found[0].message.contains("101 columns; 2 lines"), "{}", found[0]);
    }
}
