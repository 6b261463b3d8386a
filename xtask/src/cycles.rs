//! Checks that no two files use each other's names, directly or through other files.

use std::collections::BTreeSet;

use crate::imports::{Arrow, Crate, knots};
use crate::source::{Finding, Repository};

/// The root files of the crates.
pub const ROOTS: [&str; 8] = [
    "crates/fiber/src/lib.rs",
    "crates/context/src/lib.rs",
    "crates/macros/src/lib.rs",
    "crates/ums/src/lib.rs",
    "crates/ums-capi/src/lib.rs",
    "crates/umsql/src/lib.rs",
    "crates/ums-cli/src/main.rs",
    "xtask/src/main.rs",
];

/// Returns a finding for each circle.
pub fn check(repository: &Repository) -> Vec<Finding> {
    let crates = ROOTS.iter().filter_map(|root| Crate::read(repository, root));
    let arrows: Vec<Arrow> = crates.flat_map(|one| one.arrows()).collect();
    knots(&arrows).iter().map(|knot| finding(knot, &arrows)).collect()
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
}
