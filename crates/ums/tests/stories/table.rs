//! Compares the table in docs/reliability.md, which says which story shows which behaviour, with
//! the stories themselves.

use std::collections::{BTreeMap, BTreeSet};

/// Returns the numbers of behaviours in a line: words that consist of `U` and digits.
pub fn numbers(line: &str) -> Vec<String> {
    let words = line.split(|c: char| !c.is_alphanumeric());
    let is_number = |word: &&str| {
        let digits = word.strip_prefix('U').unwrap_or("");
        !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit())
    };
    words.filter(is_number).map(str::to_owned).collect()
}

/// Returns the table of the page: for each number, the files that it names.
fn table() -> BTreeMap<String, BTreeSet<String>> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reliability.md");
    let text = std::fs::read_to_string(page).expect("the page");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| U")).map(|row| {
        let mut cells = row.split('|').map(str::trim);
        let number = format!("U{}", cells.next().unwrap_or(""));
        let files = cells.next_back().and(cells.next_back()).unwrap_or("");
        (number, files.split(", ").map(|file| file.trim_matches('`').to_owned()).collect())
    });
    rows.collect()
}

#[test]
fn the_table_of_the_behaviours_about_order_says_which_story_tells_them() {
    let mut told: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for script in super::all_scripts() {
        let file = script.place.split(':').next().unwrap_or("").to_owned();
        for number in script.numbers {
            told.entry(number).or_default().insert(file.clone());
        }
    }
    assert!(told.len() >= 30, "{} behaviours are told", told.len());
    assert_eq!(table(), told, "left is the table of docs/reliability.md");
}
