//! Measures the structure of `ums`: rooms, floors, arrows between rooms, and names at its root.
//!
//! A *room* is a folder or file at the top level of the crate's sources. An *arrow* leads from a
//! room to a room whose names it uses. The *floor* of a room is one above the highest floor of the
//! rooms that it uses.

use std::collections::{BTreeMap, BTreeSet};

use crate::imports::{Arrow, Crate};
use crate::source::{Finding, Repository, words};

const SRC: &str = "crates/ums/src/";
const ROOMS_MAX: usize = 20;
const FLOORS_MAX: usize = 10;
/// With the attributes `main` and `test`, and the modules `thread` and `process`, which users of
/// std look for.
const NAMES_MAX: usize = 38;

/// The measured numbers.
#[derive(Debug, Default, PartialEq, Eq)]
struct Structure {
    rooms: usize,
    floors: usize,
    arrows: usize,
    names: usize,
}

/// Returns findings for numbers that exceed their limits.
pub fn check(repository: &Repository) -> Vec<Finding> {
    let Some(found) = measure(repository) else { return Vec::new() };
    let limits = [
        (found.rooms, ROOMS_MAX, "rooms at the top level"),
        (found.floors, FLOORS_MAX, "floors"),
        (found.names, NAMES_MAX, "public names at the root"),
    ];
    let over = limits.into_iter().filter(|(is, most, _)| is > most);
    over.map(|(is, most, what)| Finding {
        path: format!("{SRC}lib.rs"),
        line: 1,
        message: format!("{is} {what}, more than {most}: move something into a room or module."),
    })
    .collect()
}

/// Returns one line with the numbers.
pub fn summary(repository: &Repository) -> String {
    let Structure { rooms, floors, arrows, names } = measure(repository).unwrap_or_default();
    format!("ums: {rooms} rooms on {floors} floors, {arrows} arrows, {names} names at the root")
}

fn measure(repository: &Repository) -> Option<Structure> {
    let root = format!("{SRC}lib.rs");
    let tree = Crate::read(repository, &root)?;
    let all = tree.arrows();
    let arrows = between_rooms(&all);
    let rooms: BTreeSet<&str> = repository.rust().filter_map(|file| room(&file.path)).collect();
    let floors = rooms.iter().map(|room| floor(room, &arrows, 0)).max().unwrap_or(0);
    let count = arrows.values().map(BTreeSet::len).sum();
    let names = root_names(&repository.file(&root)?.code);
    Some(Structure { rooms: rooms.len(), floors, arrows: count, names })
}

/// Returns the room of a file. Returns None for the root and for other crates.
fn room(path: &str) -> Option<&str> {
    let inside = path.strip_prefix(SRC)?;
    let room = inside.split('/').next()?.trim_end_matches(".rs");
    (room != "lib").then_some(room)
}

fn between_rooms(arrows: &[Arrow]) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut between: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for arrow in arrows {
        if let (Some(from), Some(to)) = (room(&arrow.from), room(&arrow.to))
            && from != to
        {
            between.entry(from).or_default().insert(to);
        }
    }
    between
}

fn floor(room: &str, arrows: &BTreeMap<&str, BTreeSet<&str>>, depth: usize) -> usize {
    // Rooms that use each other have no floor, so the depth is limited. Another check finds them.
    let below = arrows.get(room).filter(|_| depth < 64).into_iter().flatten();
    1 + below.map(|to| floor(to, arrows, depth + 1)).max().unwrap_or(0)
}

/// Returns the number of names at the root: public modules and re-exports that the documentation
/// shows.
fn root_names(code: &str) -> usize {
    let mut count = 0;
    for at in words(code, "pub") {
        let before = &code[..at];
        let depth = before.matches('{').count() - before.matches('}').count();
        let attributes = before.rsplit([';', '}']).next().unwrap_or_default();
        let is_shown = !attributes.contains("doc(hidden)") && !attributes.contains("cfg(feature");
        if depth > 0 || !is_shown {
            continue;
        }
        let item = code[at + 3..].trim_start();
        if item.starts_with("mod ") {
            count += 1;
        } else if let Some(path) = item.strip_prefix("use ") {
            let path = path.split(';').next().unwrap_or_default();
            let list = path.rsplit('{').next().unwrap_or_default().trim_end_matches('}');
            count += list.split(',').filter(|name| !name.trim().is_empty()).count();
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_floors_arrows_and_names_are_counted() {
        let lib = "mod low;\n#[doc(hidden)]\npub mod middle;\npub mod high;\npub use low::{A, B};\n\
                   pub mod face {\n    pub use crate::low::C;\n}\npub use high::D;\n";
        let repository = Repository::of(&[
            ("crates/ums/src/lib.rs", lib),
            ("crates/ums/src/low.rs", "pub struct A;\npub struct B;\npub struct C;\n"),
            ("crates/ums/src/middle/mod.rs", "mod part;\nuse crate::low::A;\n"),
            ("crates/ums/src/middle/part.rs", "use crate::low::B;\npub struct P;\n"),
            (
                "crates/ums/src/high.rs",
                "use crate::middle::part::P;\nuse crate::low::A;\npub struct D;\n",
            ),
        ]);
        let found = measure(&repository).expect("there is a root");
        assert_eq!(found, Structure { rooms: 3, floors: 3, arrows: 3, names: 5 });
        assert_eq!(check(&repository), []);
    }

    #[test]
    fn too_many_names_are_found() {
        let names: Vec<String> = (0..=NAMES_MAX).map(|n| format!("N{n}")).collect();
        let lib = format!("mod a;\npub use a::{{{}}};\n", names.join(", "));
        let found = check(&Repository::of(&[("crates/ums/src/lib.rs", &lib)]));
        let too_many = format!("{} public names", NAMES_MAX + 1);
        assert!(found[0].message.starts_with(&too_many), "{found:?}");
    }
}
