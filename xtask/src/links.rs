//! Checks that links between files of the repository have targets, and that the book is complete.
//!
//! Only Markdown links `[text](path)` with a relative path are checked, with the heading that they
//! name. Links in fenced blocks and links to the network are not. The book's contents,
//! `docs/SUMMARY.md`, must have a link to each page below `docs`. No page of the book has a link to
//! a Markdown file elsewhere: mdBook would make `.html` of its `.md`.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use crate::source::{File, Finding, Repository};

const CONTENTS: &str = "docs/SUMMARY.md";

/// Returns the findings over all Markdown files.
pub fn check(repository: &Repository) -> Vec<Finding> {
    let pages = || repository.files.iter().filter(|file| file.path.ends_with(".md"));
    let mut findings: Vec<_> = pages().flat_map(|page| check_page(repository, page)).collect();
    if let Some(contents) = repository.file(CONTENTS) {
        let listed: Vec<_> = targets(&contents.text).map(|(_, to)| format!("docs/{to}")).collect();
        let missing = pages().filter(|page| {
            page.path.starts_with("docs/") && page.path != CONTENTS && !listed.contains(&page.path)
        });
        findings.extend(missing.map(|page| {
            page.finding(1, format!("{CONTENTS} does not list this page: add a line to it."))
        }));
    }
    findings
}

fn check_page(repository: &Repository, page: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, target) in targets(&page.text) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (path, heading) = target.split_once('#').unwrap_or((target, ""));
        let folder = Path::new(&page.path).parent().unwrap_or(Path::new(""));
        let path = if path.is_empty() { page.path.clone() } else { resolve(&folder.join(path)) };
        let below = format!("{path}/");
        let leads_to = |file: &String| *file == path || file.starts_with(&below);
        let mut files = repository.files.iter().map(|file| &file.path);
        if !files.any(leads_to) && !repository.others.iter().any(leads_to) {
            let message = format!("the link to `{target}` leads nowhere: correct it or remove it.");
            findings.push(page.finding(line, message));
        }
        if page.path.starts_with("docs/") && path.ends_with(".md") && !path.starts_with("docs/") {
            let message = format!(
                "the link to `{target}` is broken in the built book: name the file in the text."
            );
            findings.push(page.finding(line, message));
        }
        let file = repository.file(&path).filter(|_| path.ends_with(".md") && !heading.is_empty());
        if file.is_some_and(|file| !anchors(&file.text).any(|anchor| anchor == heading)) {
            let message = format!("no heading of `{path}` has the anchor `{heading}`: correct it.");
            findings.push(page.finding(line, message));
        }
    }
    findings
}

/// Returns the targets of the links, with the numbers of their lines.
fn targets(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(n, line)| {
        let ends = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        ends.map(move |target| (n, target))
    })
}

/// Returns the names by which links call the headings, as code forges and mdBook make them: small
/// letters, digits, `_` and `-`, with `-` for a blank. A name that was there before gets a number.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let mut seen = HashMap::new();
    prose(text).filter(|(_, line)| line.starts_with('#')).map(move |(_, line)| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = |c: char| c.is_alphanumeric() || "-_".contains(c) || c.is_whitespace();
        let anchor = heading.chars().filter(|c| kept(*c)).collect::<String>().replace(' ', "-");
        let count = seen.entry(anchor.clone()).or_insert(0_usize);
        *count += 1;
        if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
    })
}

/// Returns the lines outside fenced blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().map(|(n, line)| (n + 1, line)).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    })
}

/// Returns the path without `.` and `..`.
fn resolve(path: &Path) -> String {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::Normal(name) => out.push(name),
            _ => {}
        }
    }
    out.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_files_and_folders_are_fine() {
        let page =
            "[a](../src/a.rs#top) [b](../src) [c](https://x.y/z)\n```\n[e](gone)\n# Gone\n```\n";
        assert_eq!(check(&Repository::of(&[("docs/p.md", page), ("src/a.rs", "//! A.")])), []);
    }

    #[test]
    fn a_picture_is_a_place_to_lead_to() {
        let mut repository = Repository::of(&[("docs/p.md", "![a](a.png)")]);
        assert_eq!(check(&repository).len(), 1);
        repository.others.push("docs/a.png".into());
        assert_eq!(check(&repository), []);
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let found =
            check(&Repository::of(&[("docs/p.md", "\n[a](src/a.rs)"), ("src/a.rs", "//! A.")]));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 2);
    }

    #[test]
    fn a_link_to_a_heading_needs_that_heading() {
        let page = "[a](#b-c_d-the-e) [b](q.md#two-1) [c](#gone)\n# B: `c_d`, the *e*\n";
        let other = "# Two\n```text\n# Three\n```\n## Two\n[d](p.md#three) [e](#three)\n";
        let found = check(&Repository::of(&[("docs/p.md", page), ("docs/q.md", other)]));
        let places: Vec<_> = found.iter().map(|f| (f.path.as_str(), f.line)).collect();
        assert_eq!(places, [("docs/p.md", 1), ("docs/q.md", 6), ("docs/q.md", 6)]);
    }

    #[test]
    fn a_page_of_the_book_has_no_link_to_a_markdown_file_elsewhere() {
        let page = "[a](../README.md) [b](design/c.md) [d](../src/d.rs)";
        let design = "[a](../p.md) [b](../../README.md#r)";
        let found = check(&Repository::of(&[
            ("docs/p.md", page),
            ("docs/design/c.md", design),
            ("README.md", "# R\n[p](docs/p.md) [r](README.md)"),
            ("src/d.rs", "//! D."),
        ]));
        let places: Vec<_> = found.iter().map(|f| f.path.as_str()).collect();
        assert_eq!(places, ["docs/p.md", "docs/design/c.md"]);
    }

    #[test]
    fn the_contents_of_the_book_list_each_page() {
        let contents = ("docs/SUMMARY.md", "- [A](a.md)\n");
        let pages = [contents, ("docs/a.md", ""), ("docs/design/b.md", ""), ("README.md", "")];
        let found = check(&Repository::of(&pages));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "docs/design/b.md");
    }
}
