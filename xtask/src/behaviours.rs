//! Checks that the table of behaviours is complete, and that the tests it names exist.
//!
//! `docs/behaviours.md` has one row for each promised number, `| U1 | words | tests |`. Each test
//! that it names must be a function somewhere below `crates/`. Instead of tests a row may say
//! `background` (there is nothing to test) or `open` (the test is not written yet; such rows are
//! counted and printed, and are no findings).

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use crate::source::{File, Finding, Repository, is_word, words};

const TABLE: &str = "docs/behaviours.md";

/// The numbers that must have a row.
const PROMISED: [(char, &[RangeInclusive<u32>]); 3] = [
    ('U', &[1..=93]),
    ('G', &[1..=14]),
    ('B', &[1..=5, 9..=9, 12..=12, 14..=22, 26..=40, 43..=47, 49..=51, 55..=55, 57..=57, 59..=59]),
];

struct Row {
    line: usize,
    number: String,
    proof: Proof,
}

enum Proof {
    Tests(Vec<String>),
    Background,
    Open,
}

/// Returns the findings about the table.
pub fn check(repository: &Repository) -> Vec<Finding> {
    let Some(table) = repository.file(TABLE) else {
        return vec![Finding {
            path: TABLE.to_owned(),
            line: 1,
            message: "is missing: one row `| U1 | behaviour | tests |` for each number.".to_owned(),
        }];
    };
    let functions = functions(repository);
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    for row in rows(table) {
        if !seen.insert(row.number.clone()) {
            findings
                .push(table.finding(row.line, format!("{} has two rows: keep one.", row.number)));
        }
        let Proof::Tests(tests) = row.proof else { continue };
        if tests.is_empty() {
            let message = format!("{} names no test: name them, or write `open`.", row.number);
            findings.push(table.finding(row.line, message));
        }
        for test in tests.iter().filter(|test| !functions.contains(test.as_str())) {
            let message = format!(
                "{} names the test `{test}`, but there is no `fn {test}(` below crates/. Correct \
                 the name, or write the test.",
                row.number
            );
            findings.push(table.finding(row.line, message));
        }
    }
    for number in promised().filter(|number| !seen.contains(number)) {
        findings.push(
            table.finding(1, format!("{number} has no row: add `| {number} | ... | ... |`.")),
        );
    }
    findings
}

/// Returns one line with the number of rows that have tests.
pub fn summary(repository: &Repository) -> String {
    let Some(table) = repository.file(TABLE) else { return String::new() };
    let (mut tested, mut background, mut open) = (0, 0, Vec::new());
    for row in rows(table) {
        match row.proof {
            Proof::Tests(_) => tested += 1,
            Proof::Background => background += 1,
            Proof::Open => open.push(row.number),
        }
    }
    let list = if open.is_empty() { String::new() } else { format!(" ({})", open.join(" ")) };
    format!("behaviours: {tested} tested, {background} background, {} open{list}", open.len())
}

fn promised() -> impl Iterator<Item = String> {
    PROMISED.iter().flat_map(|(letter, ranges)| {
        ranges.iter().cloned().flatten().map(move |n| format!("{letter}{n}"))
    })
}

fn rows(table: &File) -> Vec<Row> {
    let row = |(n, line): (usize, &str)| {
        let cells: Vec<&str> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
        let number = cells.first().filter(|cell| is_number(cell))?;
        let proof = match cells.get(2).copied().unwrap_or_default() {
            "background" => Proof::Background,
            "open" => Proof::Open,
            tests => Proof::Tests(names(tests)),
        };
        Some(Row { line: n + 1, number: (*number).to_owned(), proof })
    };
    table.text.lines().enumerate().filter_map(row).collect()
}

fn is_number(cell: &str) -> bool {
    let mut chars = cell.chars();
    matches!(chars.next(), Some('U' | 'G' | 'B'))
        && !chars.as_str().is_empty()
        && chars.all(|c| c.is_ascii_digit())
}

/// Returns the last part of each path in a cell such as `` `a::b`, c ``.
fn names(cell: &str) -> Vec<String> {
    let name = |part: &str| {
        let path = part.trim().trim_matches('`');
        path.rsplit("::").next().unwrap_or(path).to_owned()
    };
    cell.split(',').map(name).filter(|name| !name.is_empty()).collect()
}

/// Returns the names of all functions below `crates/`.
fn functions(repository: &Repository) -> BTreeSet<String> {
    let inside = repository.rust().filter(|file| file.path.starts_with("crates/"));
    let of = |file: &File| {
        let name = |at: usize| {
            let rest = file.code[at + 2..].trim_start();
            rest.chars().take_while(|&c| is_word(c)).collect::<String>()
        };
        words(&file.code, "fn").map(name).collect::<Vec<_>>()
    };
    inside.flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(change: &str) -> String {
        let number = change.split_whitespace().nth(1).unwrap_or_default();
        let others = promised().filter(|n| n != number).map(|n| format!("| {n} | a | open |\n"));
        format!(
            "# T\n\n| number | behaviour | tests |\n|---|---|---|\n{}{change}\n",
            others.collect::<String>()
        )
    }

    fn of(change: &str) -> Vec<String> {
        let source =
            ("crates/ums/src/a.rs", "//! A.\n#[test]\nfn it_holds_u7() {}\n// fn gone() {}");
        let repository = Repository::of(&[(TABLE, &table(change)), source]);
        check(&repository).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn tests_that_exist_are_fine() {
        assert_eq!(of("| U7 | a | `a::tests::it_holds_u7`, it_holds_u7 |"), Vec::<String>::new());
        assert_eq!(of("| U7 | a | background |"), Vec::<String>::new());
    }

    #[test]
    fn tests_that_do_not_exist_are_found() {
        let found = of("| U7 | a | it_holds_u7, gone |");
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("`gone`"), "{found:?}");
        assert!(of("| U7 | a | |")[0].contains("names no test"));
    }

    #[test]
    fn every_promised_number_has_one_row() {
        assert!(of("| U94 | instead | open |").is_empty(), "more rows are fine");
        let gone = table("").replace("| B14 | a | open |\n", "");
        let found = check(&Repository::of(&[(TABLE, &gone)]));
        assert_eq!(found.len(), 1);
        assert!(found[0].message.starts_with("B14 has no row"));
        assert!(of("| U7 | a | open |\n| U7 | a | open |")[0].contains("two rows"));
    }

    #[test]
    fn what_is_promised_is_counted() {
        assert_eq!(promised().count(), 93 + 14 + 42);
        let repository = Repository::of(&[(TABLE, "| U1 | a | open |\n| U2 | a | b |\n")]);
        assert_eq!(summary(&repository), "behaviours: 1 tested, 0 background, 1 open (U1)");
    }
}
