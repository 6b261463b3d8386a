//! Checks that the name of a type means one type.
//!
//! Within a crate, a name that is visible outside its own file (`pub`, `pub(crate)`, `pub(super)`,
//! `pub(in ..)`) names one struct, enum, union, trait or type alias. A name that a re-export gives
//! (`pub use a::B as C`) counts, too. Two definitions may share a name if no build has both, by the
//! `cfg` of the definitions or of the modules around them; those of tests do not count.
//!
//! What it does not do: it does not look at private types, at types in the bodies of functions, at
//! types whose names a macro's definition makes, nor at tests, benchmarks and examples in folders
//! of their own, which are other crates.

use crate::conditions::{Condition, can_hold};
use crate::source::{File, Finding, Repository, is_word, line_of};

/// Kinds of types, as words before the name.
const KINDS: [&str; 5] = ["struct", "enum", "union", "trait", "type"];

/// The types of this file have the names of std's types, in whose place they are used.
const LIKE_STD: &str = "crates/ums/src/thread.rs";

/// A type's name and where it is defined.
#[derive(Debug)]
struct Definition<'a> {
    name: String,
    file: &'a File,
    line: usize,
    /// What holds in each build that has it.
    conditions: Vec<Condition>,
}

/// Returns the findings over all crates.
pub fn check(repository: &Repository) -> Vec<Finding> {
    let is_root = |file: &&File| {
        file.path.ends_with("src/lib.rs")
            || file.path.ends_with("src/main.rs")
            || file.path.contains("/src/bin/")
    };
    repository.rust().filter(is_root).flat_map(|root| check_crate(repository, root)).collect()
}

fn check_crate(repository: &Repository, root: &File) -> Vec<Finding> {
    let mut definitions: Vec<Definition<'_>> = Vec::new();
    Reader::new(repository, root).module(&mut definitions, &[]);
    let mut findings = Vec::new();
    for (n, one) in definitions.iter().enumerate() {
        let shares = |other: &&Definition<'_>| {
            let together: Vec<_> = one.conditions.iter().chain(&other.conditions).collect();
            let is_like_std = one.file.path == LIKE_STD || other.file.path == LIKE_STD;
            other.name == one.name && !is_like_std && can_hold(&together)
        };
        if let Some(other) = definitions[..n].iter().find(shares) {
            let message = format!(
                "`{}` is also the name of the type at {}:{}. Rename one of them so that the name \
                 says what the type is, or make them one type; two may share a name only if no \
                 build has both, by `cfg`.",
                one.name, other.file.path, other.line
            );
            findings.push(one.file.finding(one.line, message));
        }
    }
    findings
}

/// What is known of the item that is being read.
#[derive(Default)]
struct Item {
    conditions: Vec<Condition>,
    /// The text of its `#[path = ".."]`.
    path: Option<String>,
    is_visible: bool,
}

/// Reads the definitions in one file and in the files of its modules.
struct Reader<'a> {
    repository: &'a Repository,
    file: &'a File,
    /// Words and single characters, with their positions.
    tokens: Vec<(usize, &'a str)>,
    next: usize,
    /// How many modules inside the file are open here.
    depth: usize,
}

impl<'a> Reader<'a> {
    fn new(repository: &'a Repository, file: &'a File) -> Reader<'a> {
        Reader { repository, file, tokens: tokens(&file.code), next: 0, depth: 0 }
    }

    fn word(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.next + ahead).map_or("", |token| token.1)
    }

    /// Reads a module, to its closing brace or to the end of the file.
    fn module(&mut self, into: &mut Vec<Definition<'a>>, outer: &[Condition]) {
        let mut around = outer.to_vec();
        let mut item = Item::default();
        while self.next < self.tokens.len() {
            match self.word(0) {
                "#" => {
                    let is_inner = self.word(1) == "!";
                    let attribute = self.attribute();
                    let conditions = if is_inner { &mut around } else { &mut item.conditions };
                    conditions.extend(Condition::of_attribute(&attribute));
                    item.path = item.path.or_else(|| path_of(&attribute));
                }
                // Braces of a macro's call may have definitions in them.
                "{" if self.tokens[self.next - 1].1 == "!" => {
                    self.next += 1;
                    self.module(into, &[&around[..], &item.conditions].concat());
                    item = Item::default();
                }
                "{" => {
                    self.skip_braces();
                    item = Item::default();
                }
                "}" => return,
                ";" => item = Item::default(),
                "pub" => item.is_visible = self.visibility(),
                word => {
                    let conditions = [&around[..], &item.conditions].concat();
                    self.item(into, word, &item, &conditions);
                    item.is_visible &= word == "unsafe";
                }
            }
            self.next += 1;
        }
    }

    /// Reads the beginning of an item at its keyword, and all of a module or an import.
    fn item(
        &mut self,
        into: &mut Vec<Definition<'a>>,
        keyword: &str,
        item: &Item,
        conditions: &[Condition],
    ) {
        match keyword {
            "mod" if self.word(2) == "{" => {
                self.next += 3;
                self.depth += 1;
                self.module(into, conditions);
                self.depth -= 1;
            }
            "mod" if self.word(2) == ";" => {
                if let Some(file) = self.file_of(item.path.as_deref()) {
                    Reader::new(self.repository, file).module(into, conditions);
                }
            }
            "use" => {
                while !matches!(self.word(1), ";" | "") {
                    self.next += 1;
                    if self.word(0) == "as" && item.is_visible {
                        self.define(into, conditions);
                    }
                }
            }
            word if KINDS.contains(&word) && item.is_visible => self.define(into, conditions),
            _ => {}
        }
    }

    /// Adds the definition of the next word, if it is the name of a type.
    fn define(&self, into: &mut Vec<Definition<'a>>, conditions: &[Condition]) {
        let name = self.word(1).to_owned();
        if name.starts_with(char::is_uppercase) {
            let line = line_of(&self.file.code, self.tokens[self.next].0);
            into.push(Definition { name, file: self.file, line, conditions: conditions.to_vec() });
        }
    }

    /// Reads a `pub` with what it has in parentheses, and returns whether the item is visible in
    /// other files.
    fn visibility(&mut self) -> bool {
        if self.word(1) != "(" {
            return true;
        }
        let is_own = self.word(2) == "self" || (self.word(2) == "super" && self.depth > 0);
        while !matches!(self.word(0), ")" | "") {
            self.next += 1;
        }
        !is_own
    }

    /// Reads an attribute and returns what is between its brackets.
    fn attribute(&mut self) -> String {
        while self.word(0) != "[" && self.next < self.tokens.len() {
            self.next += 1;
        }
        let start = self.next;
        let mut open = 0;
        for (n, (_, word)) in self.tokens[start..].iter().enumerate() {
            open += i32::from(*word == "[") - i32::from(*word == "]");
            if open == 0 {
                self.next = start + n;
                break;
            }
        }
        // Literals are blank in the code; the text has as many characters.
        let chars = |at: usize| self.file.code[..self.tokens[at].0].chars().count();
        let (from, to) = (chars(start) + 1, chars(self.next));
        self.file.text.chars().skip(from).take(to - from).collect()
    }

    /// Stops at the brace that closes the one here.
    fn skip_braces(&mut self) {
        let mut open = 0;
        while self.next < self.tokens.len() {
            open += i32::from(self.word(0) == "{") - i32::from(self.word(0) == "}");
            if open == 0 {
                return;
            }
            self.next += 1;
        }
    }

    /// Returns the file of the `mod x;` here.
    fn file_of(&self, path: Option<&str>) -> Option<&'a File> {
        let (folder, name) = self.file.path.rsplit_once('/').unwrap_or(("", &self.file.path));
        let below = match name {
            "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
            name => format!("{folder}/{}", name.trim_end_matches(".rs")),
        };
        let name = self.word(1);
        let places = match path {
            Some(path) => vec![format!("{folder}/{path}")],
            None => vec![format!("{below}/{name}.rs"), format!("{below}/{name}/mod.rs")],
        };
        places.iter().find_map(|place| self.repository.file(place))
    }
}

/// Returns the path of `path = ".."`.
fn path_of(attribute: &str) -> Option<String> {
    let value = attribute.strip_prefix("path")?.trim_start().strip_prefix('=')?;
    Some(value.trim().trim_matches('"').to_owned())
}

/// Cuts the code into words and single characters, with their positions.
fn tokens(code: &str) -> Vec<(usize, &str)> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(c) = code[at..].chars().next() {
        let rest = &code[at..];
        let word = if is_word(c) { rest.find(|c| !is_word(c)).unwrap_or(rest.len()) } else { 0 };
        let len = word.max(c.len_utf8());
        if !c.is_whitespace() {
            tokens.push((at, &rest[..len]));
        }
        at += len;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let found = check(&Repository::of(files));
        found.into_iter().map(|finding| (finding.path, finding.line)).collect()
    }

    fn in_one_file(text: &str) -> Vec<usize> {
        of(&[("crates/a/src/lib.rs", text)]).into_iter().map(|(_, line)| line).collect()
    }

    #[test]
    fn a_second_type_of_a_name_is_found_in_another_file() {
        let files = [
            ("crates/a/src/lib.rs", "mod b;\nmod c;\npub struct Node;\n"),
            ("crates/a/src/b.rs", "//! B.\nmod deep;\n"),
            ("crates/a/src/b/deep.rs", "pub(in crate::b) type Node = u8;\nstruct Slot;\n"),
            ("crates/a/src/c/mod.rs", "pub(super) unsafe trait Node {}\npub struct Slot;\n"),
            ("crates/b/src/lib.rs", "pub struct Node;\n"),
        ];
        let found = check(&Repository::of(&files));
        let places: Vec<_> = found.iter().map(|f| (f.path.as_str(), f.line)).collect();
        assert_eq!(places, [("crates/a/src/c/mod.rs", 1), ("crates/a/src/lib.rs", 3)]);
        let expected = "`Node` is also the name of the type at crates/a/src/b/deep.rs:1. Rename";
        assert!(found[0].message.starts_with(expected), "{}", found[0]);
    }

    #[test]
    fn each_kind_of_type_and_of_visibility_counts() {
        let first = "mod a {\n    pub union X { a: u8 }\n}\n";
        for second in [
            "pub struct X<T>(pub T);",
            "pub(crate) enum X {}",
            "#[derive(Debug)]\npub(super) unsafe trait X {}",
            "pub type X = u8;",
            "pub use a::{b, B as X};",
            "table! { pub struct X {} }",
        ] {
            let line = 3 + second.lines().count();
            assert_eq!(in_one_file(&format!("{first}{second}\n")), [line], "{second}");
        }
    }

    #[test]
    fn types_that_no_other_file_sees_do_not_count() {
        let text = "pub struct X;\nmod a {\n    struct X;\n    pub(super) struct X;\n    \
                    pub(self) struct X;\n}\nfn f() {\n    pub struct X;\n}\n\
                    trait T { type X; }\nuse a::B as X;\nmacro_rules! m { () => { pub struct X; \
                    } }\npub fn g(x: X) -> X { x }\n";
        assert_eq!(in_one_file(text), []);
    }

    #[test]
    fn alternatives_by_cfg_may_share_a_name() {
        let files = |other: &'static str| {
            let lib = ("crates/a/src/lib.rs", other);
            let one = ("crates/a/src/one.rs", "pub struct X;\n");
            of(&[lib, one, ("crates/a/src/two.rs", "pub struct X;\n")])
        };
        let modules = "#[cfg(feature = \"sim\")]\nmod one;\n#[cfg(not(feature = \"sim\"))]\nmod \
                       two;\n";
        assert_eq!(files(modules), []);
        let modules = "#[cfg(feature = \"sim\")]\nmod one;\n#[cfg(not(feature = \"so\"))]\nmod \
                       two;\n";
        assert_eq!(files(modules).len(), 1);
        assert_eq!(files("#[cfg(unix)]\nuse a::b;\nmod one;\nmod two;\n").len(), 1);
        let items = "#[cfg(a)]\npub struct X;\n#[cfg(not(a))]\npub enum X {}\n";
        assert_eq!(in_one_file(items), []);
        let inner =
            "mod a {\n    #![cfg(a)]\n    pub struct X;\n}\n#[cfg(not(a))]\npub struct X;\n";
        assert_eq!(in_one_file(inner), []);
        let third = "mod c {\n    pub struct X;\n}\n";
        assert_eq!(in_one_file(&format!("{items}{third}")), [6]);
    }

    #[test]
    fn tests_do_not_count() {
        let text = "pub struct X;\n#[cfg(test)]\nmod tests {\n    pub struct X;\n}\n\
                    #[cfg(all(test, loom))]\npub struct X;\n";
        assert_eq!(in_one_file(text), []);
    }

    #[test]
    fn a_module_may_say_its_path() {
        let files = [
            ("crates/a/src/lib.rs", "#[path = \"other.rs\"]\nmod b;\npub struct X;\n"),
            ("crates/a/src/other.rs", "pub struct X;\n"),
        ];
        assert_eq!(of(&files), [("crates/a/src/lib.rs".to_owned(), 3)]);
    }
}
