//! Checks that links between files of the repository have targets.
//!
//! Only Markdown links `[text](path)` with a relative path are checked. Links in fenced blocks and
//! links to the network are not.

use std::path::{Component, Path, PathBuf};

use crate::source::{File, Finding, Repository};

/// Returns the findings over all Markdown files.
pub fn check(repository: &Repository) -> Vec<Finding> {
    let pages = repository.files.iter().filter(|file| file.path.ends_with(".md"));
    pages.flat_map(|page| check_page(repository, page)).collect()
}

fn check_page(repository: &Repository, page: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, target) in targets(&page.text) {
        let path = target.split('#').next().unwrap_or(target);
        if path.is_empty() || target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let folder = Path::new(&page.path).parent().unwrap_or(Path::new(""));
        let path = resolve(&folder.join(path));
        let below = format!("{path}/");
        let leads_to = |file: &String| *file == path || file.starts_with(&below);
        let mut files = repository.files.iter().map(|file| &file.path);
        if !files.any(leads_to) && !repository.others.iter().any(leads_to) {
            let message = format!("the link to `{target}` leads nowhere: correct it or remove it.");
            findings.push(page.finding(line, message));
        }
    }
    findings
}

fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        if !fenced {
            let ends = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            found.extend(ends.map(|target| (n + 1, target)));
        }
    }
    found
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
            "[a](../src/a.rs#top) [b](../src) [c](https://x.y/z) [d](#here)\n```\n[e](gone)\n```\n";
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
}
