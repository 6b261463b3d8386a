//! Checks that numbered rules which sources cite are defined.
//!
//! `rule 7` is one of the numbered "Rules that keep it sound" in ARCHITECTURE.md. `R7` is a row `|
//! R7 | ..` of a table in docs/design/races.md, the races of the block watch. Names of tests may
//! end with such numbers in small letters; these are not checked.

use crate::source::{Finding, Repository, is_word};

const RULES: &str = "ARCHITECTURE.md";
const RACES: &str = "docs/design/races.md";

/// Returns the findings over all Rust files.
pub fn check(repository: &Repository) -> Vec<Finding> {
    let text = |path: &str| repository.file(path).map_or("", |file| file.text.as_str());
    let section = text(RULES).split("## Rules that keep it sound").nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let has_rule = |n: u32| section.lines().any(|line| line.starts_with(&format!("{n}. ")));
    let has_race = |n: u32| text(RACES).lines().any(|line| line.starts_with(&format!("| R{n} |")));
    let mut findings = Vec::new();
    for file in repository.rust().filter(|file| file.path.starts_with("crates/")) {
        for (n, line) in file.text.lines().enumerate() {
            let Some(comment) = line.find("//").map(|at| &line[at..]) else { continue };
            for rule in rules(comment).filter(|rule| !has_rule(*rule)) {
                findings.push(file.finding(n + 1, format!("there is no rule {rule} in {RULES}.")));
            }
            for race in races(comment).filter(|race| !has_race(*race)) {
                findings.push(file.finding(n + 1, format!("there is no race R{race} in {RACES}.")));
            }
        }
    }
    findings
}

/// Returns the numbers that follow the word `rule` or `rules`.
fn rules(comment: &str) -> impl Iterator<Item = u32> {
    let words: Vec<&str> = comment.split(|c: char| !is_word(c)).collect();
    let after = |pair: &[&str]| match pair[0] {
        "rule" | "rules" => pair[1].parse().ok(),
        _ => None,
    };
    words.windows(2).filter_map(after).collect::<Vec<_>>().into_iter()
}

/// Returns the numbers of the words `R1` to `R99`.
fn races(comment: &str) -> impl Iterator<Item = u32> {
    let number = |word: &str| word.strip_prefix('R').filter(|n| n.len() <= 2)?.parse().ok();
    comment.split(|c: char| !is_word(c)).filter_map(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rules_and_races_that_are_defined_may_be_cited() {
        let page =
            "# A\n\n## Rules that keep it sound\n\n1. One.\n2. Two.\n\n## Next\n\n3. Three.\n";
        let races = "| race | what |\n|---|---|\n| R4 | a race |\n";
        let text =
            "//! By rule 1, and by rules 2 and 3 (R4).\n// rule 3\nfn rule_9() {} // R5, RAM\n";
        let files = [(RULES, page), (RACES, races), ("crates/a/src/b.rs", text)];
        let lines: Vec<_> = check(&Repository::of(&files)).iter().map(|f| f.line).collect();
        assert_eq!(lines, [2, 3]);
    }
}
