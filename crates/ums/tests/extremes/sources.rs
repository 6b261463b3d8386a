//! What the sources have: the public functions and options that take a size, a count or a time, by
//! name. The sources are read as text, which is enough for the style in which they are written.
//!
//! ```text
//!   Semaphore::add_permits      a function of a type
//!   timeouts!::set_deadline     a function that a macro writes for several types
//!   sync::bounded               a function of a room
//!   ServeOptions::max_new       a public field of a type that has `Options` in its name
//! ```
//!
//! A type, or a function without a type, is public if lib.rs or the `mod.rs` of a public module
//! declares or exports it. Modules and items with `#[doc(hidden)]` are not public.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The types of sizes, counts and times.
const TYPES: [&str; 15] = [
    "usize",
    "u128",
    "u64",
    "u32",
    "u16",
    "u8",
    "isize",
    "i128",
    "i64",
    "i32",
    "i16",
    "i8",
    "Duration",
    "Instant",
    "SystemTime",
];

/// Files that are not part of the interface, by parts of their path.
const NOT_LOOKED_AT: [&str; 5] = ["tests", "loom", "/testing/", "/os/sim", "/windows/raw.rs"];

/// Functions of the library itself that have the name of a public one.
const INTERNAL: [&str; 1] = ["os::sleep"];

/// Returns the names.
pub fn read() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut public = BTreeSet::new();
    exports(&root.join("lib.rs"), &root, &mut public);
    let mut found = BTreeSet::new();
    for path in files(&root, &root) {
        let text = std::fs::read_to_string(&path).unwrap();
        let below = path.strip_prefix(&root).unwrap();
        let room = below.components().next().unwrap().as_os_str().to_string_lossy();
        let room = room.trim_end_matches(".rs").to_owned();
        functions(&text, &room, &public, &mut found);
        fields(&text, &public, &mut found);
    }
    found
}

fn files(folder: &Path, root: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = format!("/{}", path.strip_prefix(root).unwrap().to_string_lossy());
        if path.is_dir() {
            all.extend(files(&path, root));
        } else if text.ends_with(".rs") && !NOT_LOOKED_AT.iter().any(|part| text.contains(part)) {
            all.push(path);
        }
    }
    all
}

/// Collects the names that a module exports or declares, and those of its public modules.
fn exports(file: &Path, folder: &Path, public: &mut BTreeSet<String>) {
    let text = std::fs::read_to_string(file).unwrap();
    let (mut hidden, mut at) = (false, 0);
    for line in text.lines() {
        let (from, start) = (at, line.trim_start());
        at += line.len() + 1;
        if start.starts_with("//") && !start.contains("#[doc(hidden)]") {
            continue;
        }
        if let Some(rest) = start.strip_prefix("pub use ").filter(|_| !hidden) {
            // `a::b::{C, D as E}` exports C and D, `a::b` exports b.
            let all = text[from..].split("pub use ").nth(1).unwrap_or(rest);
            let all = all.split(';').next().unwrap();
            let names =
                all.rsplit("::").next().filter(|_| !all.contains('{')).unwrap_or_else(|| {
                    all.split('{').nth(1).unwrap().trim_end().trim_end_matches('}')
                });
            let names = names.split(',').filter_map(|name| name.split_whitespace().next());
            public.extend(names.map(str::to_owned));
        }
        for item in ["pub struct ", "pub enum ", "pub fn "] {
            if let Some(rest) = line.strip_prefix(item).filter(|_| !hidden) {
                public.insert(word(rest).to_owned());
            }
        }
        if let Some(name) = line.strip_prefix("pub mod ").filter(|_| !hidden)
            && let Some(name) = name.strip_suffix(';')
        {
            let (module, single) = (folder.join(name), folder.join(format!("{name}.rs")));
            if single.exists() {
                exports(&single, &module, public);
            } else {
                exports(&module.join("mod.rs"), &module, public);
            }
        }
        hidden = start.starts_with("#[doc(hidden)]") || (hidden && start.starts_with("#["));
    }
}

/// Returns the word with which the text begins.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// Collects the functions that take a size or a time.
fn functions(text: &str, room: &str, public: &BTreeSet<String>, found: &mut BTreeSet<String>) {
    let (mut owner, mut macro_name, mut hidden, mut at) = (String::new(), String::new(), false, 0);
    for line in text.lines() {
        let (from, start) = (at, line.trim_start());
        at += line.len() + 1;
        if line.starts_with("mod ") && line.ends_with("tests {") {
            return; // They are at the end.
        }
        if let Some(rest) = line.strip_prefix("macro_rules! ") {
            macro_name = format!("{}!", word(rest));
        }
        if line == "}" {
            (owner, macro_name) = (String::new(), String::new());
        }
        if start.starts_with("impl") && (line == start || !macro_name.is_empty()) {
            owner = owner_of(start, &macro_name);
        }
        if let Some(after) = start.strip_prefix("pub ").filter(|_| !hidden) {
            let after = after.trim_start_matches("const ").trim_start_matches("unsafe ");
            if let Some(name) = after.strip_prefix("fn ").map(word) {
                let of = if owner.is_empty() { room } else { &owner };
                let known = if owner.is_empty() { name } else { &owner };
                let is_public = public.contains(known) || owner.ends_with('!');
                let full = format!("{of}::{name}");
                if is_public && takes_a_number(&text[from..]) && !INTERNAL.contains(&&*full) {
                    found.insert(full);
                }
            }
        }
        hidden = start.starts_with("#[doc(hidden)]") || (hidden && start.starts_with("#["));
    }
}

/// Returns the type of an `impl` block without a trait, or the macro that writes it.
fn owner_of(line: &str, macro_name: &str) -> String {
    let mut rest = line.strip_prefix("impl").unwrap();
    if rest.starts_with('<') {
        let mut depth = 0;
        let end = rest.char_indices().position(|(n, c)| {
            depth += i32::from(c == '<') - i32::from(c == '>' && !rest[..n].ends_with('-'));
            depth == 0
        });
        rest = &rest[end.map_or(rest.len(), |end| end + 1)..];
    }
    let rest = rest.trim_start();
    let is_trait = rest.contains(" for ");
    match rest.strip_prefix('$') {
        _ if is_trait => "(trait)".to_owned(),
        Some(_) => macro_name.to_owned(),
        None => word(rest).to_owned(),
    }
}

/// Returns whether a parameter of the function at the start of the text is a size or a time. Bytes
/// in a slice or vector, and what a closure takes, are none.
fn takes_a_number(text: &str) -> bool {
    let name = text.find("fn ").unwrap();
    let open = name + text[name..].find(['(', '<']).unwrap();
    let mut depth = 0;
    let mut parameters = String::new();
    let mut inside_parentheses = false;
    let mut before = ' ';
    for c in text[open..].chars() {
        match c {
            '(' | '[' | '<' => depth += 1,
            ')' | ']' => depth -= 1,
            '>' if before != '-' && before != '=' => depth -= 1,
            _ => {}
        }
        inside_parentheses |= c == '(' && depth == 1;
        if inside_parentheses {
            parameters.push(c);
            if depth == 0 {
                break;
            }
        }
        before = c;
    }
    parameters.split(':').skip(1).any(|after| {
        // It begins with the type, and goes on to the name of the next parameter.
        is_number(after.trim_start())
    })
}

/// Returns whether the text begins with the type of a size or a time, or an `Option` of one.
fn is_number(text: &str) -> bool {
    let kind = word(text.strip_prefix("Option<").unwrap_or(text));
    TYPES.contains(&kind) || kind.starts_with("NonZero")
}

/// Collects the public fields of options.
fn fields(text: &str, public: &BTreeSet<String>, found: &mut BTreeSet<String>) {
    let mut of = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("pub struct ") {
            let name = word(rest);
            of = (name.contains("Options") && public.contains(name)).then_some(name);
        }
        if line == "}" {
            of = None;
        }
        let field = line.strip_prefix("    pub ").and_then(|rest| rest.split_once(": "));
        if let (Some(of), Some((name, kind))) = (of, field)
            && is_number(kind)
        {
            found.insert(format!("{of}::{name}"));
        }
    }
}
