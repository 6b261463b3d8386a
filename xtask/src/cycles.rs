//! Checks that no two files use each other's names, directly or through other files.
//!
//! Files that were in a circle when the check was added are listed in `xtask/circles.txt`, one path
//! on a line. That list may only shrink.

use std::collections::BTreeSet;

use crate::imports::{Arrow, Crate, knots};
use crate::source::{Finding, Repository};

/// The root files of the crates.
pub const ROOTS: [&str; 7] = [
    "crates/fiber/src/lib.rs",
    "crates/context/src/lib.rs",
    "crates/ums/src/lib.rs",
    "crates/ums-capi/src/lib.rs",
    "crates/umsql/src/lib.rs",
    "crates/ums-cli/src/main.rs",
    "xtask/src/main.rs",
];

/// Files that are still in a circle.
const ALLOWED: &str = "xtask/circles.txt";

/// Returns a finding for each circle with a file that is not listed, and for each entry of the list
/// that is not needed.
pub fn check(repository: &Repository) -> Vec<Finding> {
    let crates = ROOTS.iter().filter_map(|root| Crate::read(repository, root));
    let arrows: Vec<Arrow> = crates.flat_map(|one| one.arrows()).collect();
    let knots = knots(&arrows);
    let list = repository.file(ALLOWED).map_or("", |file| file.text.as_str());
    let allowed: BTreeSet<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
    let is_new = |knot: &&Vec<String>| knot.iter().any(|file| !allowed.contains(file.as_str()));
    let mut findings: Vec<Finding> =
        knots.iter().filter(is_new).map(|knot| finding(knot, &arrows)).collect();
    for (n, line) in list.lines().enumerate().filter(|(_, line)| allowed.contains(line)) {
        if !knots.iter().flatten().any(|file| file == line) {
            let message = format!("`{line}` is in no circle: remove this line.");
            findings.push(Finding { path: ALLOWED.to_owned(), line: n + 1, message });
        }
    }
    findings
}

fn finding(knot: &[String], arrows: &[Arrow]) -> Finding {
    let inside = |arrow: &&Arrow| knot.contains(&arrow.from) && knot.contains(&arrow.to);
    let inside: Vec<&Arrow> = arrows.iter().filter(inside).collect();
    let ways: BTreeSet<(&str, &str)> = inside.iter().map(|a| (&a.from[..], &a.to[..])).collect();
    let ways = ways.into_iter().map(|(from, to)| {
        let names: BTreeSet<&str> =
            inside.iter().filter(|a| a.from == from && a.to == to).map(|a| &a.name[..]).collect();
        let names: Vec<&str> = names.into_iter().collect();
        format!("\n  {from} -> {to}: {}", names.join(", "))
    });
    let message = format!(
        "{} files use each other in a circle. Move what both need into one below them, or let the \
         lower one return a value that the upper one acts on.{}",
        knot.len(),
        ways.collect::<String>()
    );
    let line = inside.first().map_or(1, |arrow| arrow.line);
    Finding { path: inside.first().map_or(String::new(), |a| a.from.clone()), line, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_circle_is_found_with_the_names_that_tie_it() {
        let repository = Repository::of(&[
            ("crates/fiber/src/lib.rs", "mod a;\nmod b;\n"),
            ("crates/fiber/src/a.rs", "use crate::b::B;\npub struct A;\n"),
            ("crates/fiber/src/b.rs", "use crate::a::A;\npub struct B;\n"),
        ]);
        let found = check(&repository);
        assert_eq!(found.len(), 1);
        let message = &found[0].message;
        assert!(message.contains("src/a.rs -> crates/fiber/src/b.rs: B"), "{message}");
        assert!(message.contains("src/b.rs -> crates/fiber/src/a.rs: A"), "{message}");
    }

    #[test]
    fn the_list_of_files_in_circles_may_only_shrink() {
        let both = "# Why.\ncrates/fiber/src/a.rs\ncrates/fiber/src/b.rs\n";
        let repository = |a: &str, list: &str| {
            Repository::of(&[
                ("crates/fiber/src/lib.rs", "mod a;\nmod b;\n"),
                ("crates/fiber/src/a.rs", a),
                ("crates/fiber/src/b.rs", "use crate::a::A;\npub struct B;\n"),
                (ALLOWED, list),
            ])
        };
        let circle = "use crate::b::B;\npub struct A;\n";
        assert_eq!(check(&repository(circle, both)), []);
        assert_eq!(check(&repository(circle, "crates/fiber/src/a.rs\n")).len(), 1);
        let mended = check(&repository("pub struct A;\n", both));
        let lines: Vec<usize> = mended.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [2, 3]);
    }
}
