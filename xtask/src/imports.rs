//! Finds which file uses names of which other file: imports are followed to the file that defines
//! the name.
//!
//! ```text
//!   lib.rs --mod--> modules --use, paths--> names --through re-exports--> the defining file
//! ```
//!
//! A [`Crate`] is the tree of its modules. An *arrow* from one file to another means that code of
//! the first names something that the second defines. A re-export makes no arrow, because it uses
//! nothing. If a file uses a name through a re-export, the arrow leads to the file with the
//! definition. Tests are left out.
//!
//! It does not know types, so a method call makes no arrow. It does not know macros either.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Repository, is_word, line_of, without_tests};

/// One use of another file's names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrow {
    /// The file that uses the name.
    pub from: String,
    /// The file that defines it.
    pub to: String,
    /// The name.
    pub name: String,
    /// The line of the use.
    pub line: usize,
}

/// A module: a file, or a `mod x { .. }` inside one.
#[derive(Debug, Default)]
struct Module {
    file: String,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// Names that stand for other paths in this module.
    aliases: BTreeMap<String, Alias>,
    globs: Vec<Vec<String>>,
    /// Names that are defined here.
    items: BTreeSet<String>,
    /// Paths in its code, with their lines.
    paths: Vec<(usize, Vec<String>)>,
}

#[derive(Clone, Debug)]
struct Alias {
    path: Vec<String>,
    line: usize,
    /// Whether it is a re-export, which is visible outside the module.
    open: bool,
}

/// What a path refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Module(usize),
    /// An item of this module.
    Item(usize, String),
}

/// The modules of one crate; the first is its root.
pub struct Crate {
    modules: Vec<Module>,
}

/// The keywords after which an item's name follows.
const ITEMS: [&str; 9] =
    ["fn", "struct", "enum", "trait", "type", "const", "static", "union", "macro_rules"];

impl Crate {
    /// Reads the modules from this root file. Returns `None` if the file does not exist.
    pub fn read(repository: &Repository, root: &str) -> Option<Crate> {
        repository.file(root)?;
        let mut read = Crate { modules: Vec::new() };
        read.add_file(repository, root, None);
        Some(read)
    }

    fn add_file(&mut self, repository: &Repository, path: &str, parent: Option<usize>) -> usize {
        let at = self.add(path, parent);
        let file = repository.file(path).expect("the caller has found it");
        let code = without_tests(&file.code);
        let tokens = tokens(&code);
        let mut reader =
            Reader { repository, text: &file.text, code: &code, tokens: &tokens, next: 0 };
        reader.module(self, at);
        at
    }

    fn add(&mut self, file: &str, parent: Option<usize>) -> usize {
        self.modules.push(Module { file: file.to_owned(), parent, ..Module::default() });
        self.modules.len() - 1
    }

    /// Returns the arrows between different files, sorted.
    pub fn arrows(&self) -> Vec<Arrow> {
        let mut arrows = BTreeSet::new();
        for (at, module) in self.modules.iter().enumerate() {
            let mut add = |line: usize, path: &[String]| {
                if let Some(Target::Item(owner, name)) = self.resolve(at, path, 0) {
                    let to = self.modules[owner].file.clone();
                    if to != module.file {
                        arrows.insert(Arrow { from: module.file.clone(), to, name, line });
                    }
                }
            };
            for (line, path) in &module.paths {
                add(*line, path);
            }
            for alias in module.aliases.values().filter(|alias| !alias.open) {
                add(alias.line, &alias.path);
            }
        }
        arrows.into_iter().collect()
    }

    /// Returns what a path in this module refers to.
    fn resolve(&self, from: usize, path: &[String], depth: usize) -> Option<Target> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => Target::Module(0),
            "self" => Target::Module(from),
            "super" => Target::Module(self.modules[from].parent?),
            name => self.known(from, name, depth)?,
        };
        rest.iter().try_fold(start, |target, segment| match target {
            Target::Module(at) if segment == "super" => self.modules[at].parent.map(Target::Module),
            Target::Module(at) => {
                Some(self.known(at, segment, depth).unwrap_or(Target::Item(at, segment.clone())))
            }
            item => Some(item),
        })
    }

    /// Returns what a name means in this module, if it is a module, an import or an item of it.
    fn known(&self, at: usize, name: &str, depth: usize) -> Option<Target> {
        let module = &self.modules[at];
        if module.items.contains(name) {
            return Some(Target::Item(at, name.to_owned()));
        }
        if let Some(child) = module.children.get(name) {
            return Some(Target::Module(*child));
        }
        // Limits the depth, because imports may refer to each other in a circle.
        if depth > 16 {
            return None;
        }
        if let Some(alias) = module.aliases.get(name) {
            // The name may be that of another crate.
            let own = alias.path.first().is_some_and(|first| first == name);
            return if own { None } else { self.resolve(at, &alias.path, depth + 1) };
        }
        module.globs.iter().find_map(|glob| match self.resolve(at, glob, depth + 1)? {
            Target::Module(to) if to != at => self.known(to, name, depth + 1),
            _ => None,
        })
    }
}

/// Cuts the code into words, `::` and single characters, with their positions.
fn tokens(code: &str) -> Vec<(usize, &str)> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(c) = code[at..].chars().next() {
        let rest = &code[at..];
        let len = if is_word(c) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            c.len_utf8()
        };
        if !c.is_whitespace() {
            tokens.push((at, &rest[..len]));
        }
        at += len;
    }
    tokens
}

struct Reader<'a> {
    repository: &'a Repository,
    text: &'a str,
    code: &'a str,
    tokens: &'a [(usize, &'a str)],
    next: usize,
}

impl Reader<'_> {
    fn word(&self, ahead: usize) -> &str {
        self.tokens.get(self.next + ahead).map_or("", |token| token.1)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.next).map_or(0, |token| line_of(self.code, token.0))
    }

    /// Reads a module to its closing brace, or to the end of the file.
    fn module(&mut self, tree: &mut Crate, at: usize) {
        let mut depth = 0;
        while self.next < self.tokens.len() {
            let before = if self.next == 0 { "" } else { self.tokens[self.next - 1].1 };
            match self.word(0) {
                "{" => depth += 1,
                "}" if depth == 0 => return,
                "}" => depth -= 1,
                "mod" if self.word(2) == ";" => self.file_of(tree, at),
                "mod" if self.word(2) == "{" => {
                    let file = tree.modules[at].file.clone();
                    let child = tree.add(&file, Some(at));
                    tree.modules[at].children.insert(self.word(1).to_owned(), child);
                    self.next += 3;
                    self.module(tree, child);
                }
                "use" => self.uses(tree, at, before == "pub" || before == ")"),
                word if ITEMS.contains(&word) => {
                    let name = self.word(if word == "macro_rules" { 2 } else { 1 }).to_owned();
                    // An item inside a block is visible only there.
                    if depth == 0 {
                        tree.modules[at].items.insert(name);
                    }
                }
                "::" | "." | "'" => {}
                word if word.starts_with(|c: char| c.is_alphabetic() || c == '_')
                    && !matches!(before, "." | "::" | "fn" | "'" | "in") =>
                {
                    self.path(tree, at);
                }
                _ => {}
            }
            self.next += 1;
        }
    }

    /// Reads a path, or a single word that may be an imported name. Stops at its last word.
    fn path(&mut self, tree: &mut Crate, at: usize) {
        let line = self.line();
        let mut path = vec![self.word(0).to_owned()];
        while self.word(1) == "::" && self.word(2).starts_with(|c: char| is_word(c)) {
            path.push(self.word(2).to_owned());
            self.next += 2;
        }
        if self.word(1) != "!" {
            tree.modules[at].paths.push((line, path));
        }
    }

    /// Handles `mod x;`: adds the module's file, unless it is a test's.
    fn file_of(&mut self, tree: &mut Crate, at: usize) {
        let name = self.word(1).to_owned();
        let own = tree.modules[at].file.clone();
        let (folder, stem) = own.rsplit_once('/').unwrap_or(("", &own));
        let stem = stem.trim_end_matches(".rs");
        let below = if matches!(stem, "lib" | "main" | "mod") {
            folder.to_owned()
        } else {
            format!("{folder}/{stem}")
        };
        let mut places = vec![format!("{below}/{name}.rs"), format!("{below}/{name}/mod.rs")];
        // A `#[path = ".."]` may stand right above. Its text is blanked in `code`, so it is read
        // from `text`.
        let above = self.text[..self.tokens[self.next].0].rsplit(';').next().unwrap_or_default();
        if let Some((_, rest)) = above.rsplit_once("#[path = \"") {
            places.insert(0, format!("{folder}/{}", rest.split('"').next().unwrap_or_default()));
        }
        let found = places.into_iter().find(|path| self.repository.file(path).is_some());
        if let Some(path) = found.filter(|path| !is_test(path)) {
            let child = tree.add_file(self.repository, &path, Some(at));
            tree.modules[at].children.insert(name, child);
        }
        self.next += 2;
    }

    /// Reads an import such as `use a::{b, c as d, e::*};`.
    fn uses(&mut self, tree: &mut Crate, at: usize, open: bool) {
        let line = self.line();
        self.next += 1;
        let module = &mut tree.modules[at];
        self.tree(module, &mut Vec::new(), line, open);
    }

    /// Reads one branch of a `use`. Stops at the `,`, `}` or `;` after it.
    fn tree(&mut self, module: &mut Module, stem: &mut Vec<String>, line: usize, open: bool) {
        let length = stem.len();
        let mut name = None;
        loop {
            match self.word(0) {
                "" | "," | "}" | ";" => break,
                "{" => {
                    while !matches!(self.word(0), "}" | "") {
                        self.next += 1;
                        self.tree(module, stem, line, open);
                    }
                    self.next += 1;
                    stem.truncate(length);
                    return;
                }
                "*" => {
                    module.globs.push(stem.clone());
                    stem.truncate(length);
                    name = None;
                    self.next += 1;
                    break;
                }
                "as" => {
                    name = Some(self.word(1).to_owned());
                    self.next += 1;
                }
                "::" => {}
                // `a::{self}` means `a`.
                "self" if !stem.is_empty() => name = stem.last().cloned(),
                word => {
                    stem.push(word.to_owned());
                    name = Some(word.to_owned());
                }
            }
            self.next += 1;
        }
        if let Some(name) = name {
            // `_` imports a trait without a name, so a unique name is made up for it.
            let name = if name == "_" { format!("_{}", module.aliases.len()) } else { name };
            module.aliases.insert(name, Alias { path: stem.clone(), line, open });
        }
        stem.truncate(length);
    }
}

/// Returns whether this file holds tests or models only.
pub fn is_test(path: &str) -> bool {
    path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "loom.rs"))
        || path.ends_with("_loom.rs")
}

/// Returns the groups of files that reach each other through arrows. Each group has more than one
/// file.
pub fn knots(arrows: &[Arrow]) -> Vec<Vec<String>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for arrow in arrows {
        next.entry(&arrow.from).or_default().insert(&arrow.to);
    }
    let reach = |from: &str| {
        let (mut seen, mut stack) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(at) = stack.pop() {
            for to in next.get(at.as_str()).into_iter().flatten() {
                if seen.insert((*to).to_owned()) {
                    stack.push((*to).to_owned());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<String>> =
        next.keys().map(|from| (*from, reach(from))).collect();
    let mut knots: Vec<Vec<String>> = Vec::new();
    for (from, far) in &reached {
        if !far.contains(*from) || knots.iter().any(|knot| knot.iter().any(|file| file == from)) {
            continue;
        }
        let back = |to: &&String| reached.get(to.as_str()).is_some_and(|far| far.contains(*from));
        knots.push(far.iter().filter(back).cloned().collect());
    }
    knots
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrows(files: &[(&str, &str)]) -> Vec<(String, String, String)> {
        let tree = Crate::read(&Repository::of(files), "src/lib.rs").expect("there is a root");
        tree.arrows().into_iter().map(|a| (a.from, a.to, a.name)).collect()
    }

    fn arrow(from: &str, to: &str, name: &str) -> (String, String, String) {
        (format!("src/{from}"), format!("src/{to}"), name.to_owned())
    }

    #[test]
    fn a_name_is_followed_through_a_re_export_to_its_definition() {
        let found = arrows(&[
            ("src/lib.rs", "mod a;\nmod b;\npub use a::A;\n"),
            ("src/a.rs", "mod deep;\npub(crate) use deep::{A, B as C};\n"),
            ("src/a/deep.rs", "pub struct A;\npub struct B;\n"),
            ("src/b.rs", "use crate::a::C;\nfn f(x: crate::A) {}\n"),
        ]);
        assert_eq!(found, [arrow("b.rs", "a/deep.rs", "A"), arrow("b.rs", "a/deep.rs", "B")]);
    }

    #[test]
    fn a_module_that_is_imported_counts_where_it_is_used() {
        let found = arrows(&[
            ("src/lib.rs", "mod a;\nmod b;\n"),
            ("src/a/mod.rs", "pub mod clock;\npub use clock::now;\n"),
            ("src/a/clock.rs", "pub fn now() {}\nfn f() { super::g() }\n"),
            ("src/b.rs", "use crate::a::{self, clock};\nfn f() { clock::now(); a::now() }\n"),
        ]);
        let expected = [arrow("a/clock.rs", "a/mod.rs", "g"), arrow("b.rs", "a/clock.rs", "now")];
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected.into());
    }

    #[test]
    fn tests_and_visibilities_make_no_arrows() {
        let found = arrows(&[
            ("src/lib.rs", "mod a;\nmod b;\n"),
            ("src/a.rs", "pub struct A;\n#[cfg(test)]\nmod tests { use crate::b::B; }\n"),
            ("src/b.rs", "pub(in crate::a) struct B;\n"),
        ]);
        assert_eq!(found, []);
    }

    #[test]
    fn a_circle_of_files_is_a_knot() {
        let tree = Crate::read(
            &Repository::of(&[
                ("src/lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\n"),
                ("src/a.rs", "use crate::b::B;\npub struct A;\n"),
                ("src/b.rs", "pub struct B(crate::c::C);\n"),
                ("src/c.rs", "pub struct C;\nfn f() { super::a::A }\n"),
                ("src/d.rs", "use super::a::A;\n"),
            ]),
            "src/lib.rs",
        );
        let knots = knots(&tree.expect("there is a root").arrows());
        assert_eq!(knots, [["src/a.rs", "src/b.rs", "src/c.rs"]]);
    }
}
