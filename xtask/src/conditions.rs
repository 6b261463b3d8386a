//! The conditions of `cfg` attributes, and whether two of them can hold in the same build.
//!
//! A build sets each option, such as `unix` or `feature = "sim"`, or does not; the two sides of
//! `not` are alternatives. Of `target_os` and its like, one value holds. `test` never holds here,
//! because the checks look at the code that is not a test's.
//!
//! What it does not do: it knows no features that need each other.

use std::collections::BTreeSet;

/// The options tried together. The number of tries is two to this power.
const OPTIONS_MAX: usize = 12;

/// Keys of which a build has exactly one value.
const SINGLE: [&str; 5] =
    ["target_os", "target_arch", "target_pointer_width", "target_env", "panic"];

/// A condition, as `cfg` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// An option, without its spaces.
    Option(String),
    /// The opposite of a condition.
    Not(Box<Condition>),
    /// Every one of these.
    All(Vec<Condition>),
    /// At least one of these.
    Any(Vec<Condition>),
}

impl Condition {
    /// Returns the condition of an attribute such as `cfg(unix)`; `None` for another attribute.
    pub fn of_attribute(attribute: &str) -> Option<Condition> {
        let inside = attribute.trim().strip_prefix("cfg")?.trim_start();
        Some(Condition::parse(inside.strip_prefix('(')?.strip_suffix(')')?))
    }

    fn parse(text: &str) -> Condition {
        let text = text.trim();
        let list = |name: &str| {
            let inside = text.strip_prefix(name)?.trim_start();
            let inside = inside.strip_prefix('(')?.strip_suffix(')')?;
            Some(parts(inside).into_iter().map(Condition::parse).collect::<Vec<_>>())
        };
        if let Some(one) = list("not") {
            return Condition::Not(Box::new(Condition::All(one)));
        }
        let all = list("all").map(Condition::All);
        all.or_else(|| list("any").map(Condition::Any))
            .unwrap_or_else(|| Condition::Option(text.split_whitespace().collect()))
    }

    fn options<'a>(&'a self, into: &mut BTreeSet<&'a str>) {
        match self {
            Condition::Option(name) => drop(into.insert(name)),
            Condition::Not(one) => one.options(into),
            Condition::All(some) | Condition::Any(some) => {
                some.iter().for_each(|one| one.options(into));
            }
        }
    }

    fn holds(&self, set: &[&str]) -> bool {
        match self {
            Condition::Option(name) => set.contains(&name.as_str()),
            Condition::Not(one) => !one.holds(set),
            Condition::All(some) => some.iter().all(|one| one.holds(set)),
            Condition::Any(some) => some.iter().any(|one| one.holds(set)),
        }
    }
}

/// Returns whether a build exists, other than that of the tests, in which all of these hold.
pub fn can_hold(conditions: &[&Condition]) -> bool {
    let mut options = BTreeSet::new();
    conditions.iter().for_each(|condition| condition.options(&mut options));
    options.remove("test");
    let options: Vec<&str> = options.into_iter().collect();
    if options.len() > OPTIONS_MAX {
        return true;
    }
    (0..1_usize << options.len()).any(|bits| {
        let is_set = |(n, _): &(usize, &&str)| bits >> n & 1 == 1;
        let set: Vec<&str> =
            options.iter().enumerate().filter(is_set).map(|(_, name)| *name).collect();
        is_possible(&set) && conditions.iter().all(|condition| condition.holds(&set))
    })
}

/// Returns false if a key has two values that exclude each other.
fn is_possible(set: &[&str]) -> bool {
    let values = |key: &str| {
        set.iter().filter(|name| name.split_once('=').is_some_and(|(k, _)| k == key)).count()
    };
    SINGLE.iter().all(|key| values(key) <= 1)
}

/// Splits a list at the commas outside parentheses.
fn parts(list: &str) -> Vec<&str> {
    let mut depth = 0;
    let split = list.split(|c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    split.filter(|part| !part.trim().is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn together(conditions: &[&str]) -> bool {
        let read = |text: &&str| Condition::of_attribute(text).expect("it is a cfg");
        let conditions: Vec<_> = conditions.iter().map(read).collect();
        can_hold(&conditions.iter().collect::<Vec<_>>())
    }

    #[test]
    fn a_condition_excludes_its_opposite() {
        assert!(!together(&["cfg(feature = \"a\")", "cfg(not(feature=\"a\"))"]));
        assert!(!together(&["cfg(all(unix, loom))", "cfg(not(any(loom, miri)))"]));
        assert!(together(&["cfg(any(unix, loom))", "cfg(not(unix))"]));
        assert!(together(&["cfg(feature = \"a\")", "cfg(not(feature = \"b\"))"]));
        assert!(together(&["cfg(feature = \"a\")", "cfg(feature = \"b\")"]));
    }

    #[test]
    fn a_build_has_one_target() {
        assert!(!together(&["cfg(target_arch = \"x86_64\")", "cfg(target_arch = \"aarch64\")"]));
    }

    #[test]
    fn the_tests_are_no_build() {
        assert!(!together(&["cfg(all(test, loom))"]));
        assert!(together(&["cfg(any(test, loom))"]));
        assert!(together(&["cfg(not(test))"]));
    }

    #[test]
    fn other_attributes_are_no_conditions() {
        assert_eq!(Condition::of_attribute("cfg_attr(unix, path = \"a.rs\")"), None);
        assert_eq!(Condition::of_attribute("derive(Debug)"), None);
    }
}
