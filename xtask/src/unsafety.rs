//! Checks that unsafe code states why it is sound.
//!
//! Every `unsafe` block and `unsafe impl` needs a `SAFETY:` comment right above it that begins with
//! the name of an invariant. The invariants, at most twenty, are defined in bold under "Named
//! invariants" in ARCHITECTURE.md, and nowhere else. The header of a file with unsafe code, or of a
//! module above it, must say why the code is unsafe. It may name the invariant that it keeps, and
//! how, in bold or in quotes after the word "invariant"; or it uses the word "unsafe".

use crate::source::{File, Finding, Repository, line_of, words};

/// The most invariants, because a reader has to know all of them.
const INVARIANTS_MAX: usize = 20;

/// Returns the findings over all Rust files.
pub fn check(repository: &Repository) -> Vec<Finding> {
    let page = repository.file("ARCHITECTURE.md").map_or("", |file| file.text.as_str());
    let section = page.split("## Named invariants").nth(1).unwrap_or_default();
    let shared = declared(section.split("\n## ").next().unwrap_or_default());
    let mut findings: Vec<Finding> =
        repository.rust().flat_map(|file| check_file(repository, file, &shared)).collect();
    if let Some(page) = repository.file("ARCHITECTURE.md").filter(|_| shared.len() > INVARIANTS_MAX)
    {
        let message = format!(
            "{} named invariants, which is more than {INVARIANTS_MAX}: merge two of them.",
            shared.len()
        );
        findings.push(page.finding(1, message));
    }
    findings
}

fn check_file(repository: &Repository, file: &File, shared: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(first) = words(&file.code, "unsafe").find(|&at| !is_attribute(&file.code, at)) else {
        return findings;
    };
    let header = file.header();
    let mut known = declared(&header);
    known.extend(above(repository, file));
    let says_why = ["nvariant", "unsafe ", "Unsafe "].iter().any(|word| header.contains(word));
    if known.is_empty() && !says_why {
        findings.push(file.finding(
            line_of(&file.code, first),
            "unsafe code, but no header says why it is here nor names its invariant. Add \
             `* **Name**: what holds and which code ensures it.` to the `//!` lines.",
        ));
    }
    for at in words(&file.code, "unsafe").filter(|&at| needs_comment(&file.code, at)) {
        let line = line_of(&file.code, at);
        match safety_comment(file, line) {
            None => findings.push(file.finding(
                line,
                "unsafe without `// SAFETY: <Invariant>: ...` right above it. Say by which named \
                 invariant it is sound.",
            )),
            Some(comment) if !cites(&comment, shared) => findings.push(file.finding(
                line,
                format!(
                    "`SAFETY: {}` begins with no invariant of ARCHITECTURE.md. Cite one of: {}.",
                    comment.chars().take(40).collect::<String>(),
                    shared.join(", ")
                ),
            )),
            Some(_) => {}
        }
    }
    findings
}

/// Returns the invariants declared in the headers of the modules above this file.
fn above(repository: &Repository, file: &File) -> Vec<String> {
    let mut names = Vec::new();
    let mut folder = file.path.as_str();
    while let Some((parent, _)) = folder.rsplit_once('/') {
        folder = parent;
        for path in [format!("{folder}/mod.rs"), format!("{folder}/lib.rs"), format!("{folder}.rs")]
        {
            if let Some(module) = repository.file(&path) {
                names.extend(declared(&module.header()));
            }
        }
    }
    names
}

/// Returns the names that this text declares: in a list item `* **Name**`, in bold anywhere, or
/// emphasised or quoted after the word "invariant".
fn declared(text: &str) -> Vec<String> {
    let joined = text.replace("\n//!", " ").replace("\n//", " ");
    let joined = joined.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut names: Vec<String> = joined
        .split("**")
        .skip(1)
        .step_by(2)
        .map(|name| name.trim_end_matches(':').into())
        .collect();
    for line in text.lines() {
        let line = line.trim_start_matches(['/', '!', ' ']);
        names.extend(line.strip_prefix("* *").and_then(|rest| until(rest, '*')));
    }
    for (at, word) in joined.match_indices("nvariant") {
        let rest = joined[at + word.len()..].trim_start_matches(['s', ':', ' ']);
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '*' | '`'));
        names.extend(quote.and_then(|quote| until(&rest[1..], quote)));
    }
    let is_name = |name: &String| {
        (1..=40).contains(&name.len()) && name.starts_with(|c: char| c.is_uppercase())
    };
    names.retain(is_name);
    names.sort();
    names.dedup();
    names
}

/// Returns the text before this character, if there is one.
fn until(text: &str, end: char) -> Option<String> {
    text.split_once(end).map(|(name, _)| name.to_owned())
}

/// Returns whether this word is in an attribute such as `#[unsafe(no_mangle)]`.
fn is_attribute(code: &str, at: usize) -> bool {
    code[at + "unsafe".len()..].starts_with('(')
}

/// Returns whether this word needs a comment. Blocks and impls do; functions and traits have a `#
/// Safety` section instead.
fn needs_comment(code: &str, at: usize) -> bool {
    let rest = code[at + "unsafe".len()..].trim_start();
    rest.starts_with('{') || words(rest, "impl").next() == Some(0)
}

/// Returns the text of the SAFETY comment above this line, without the word `SAFETY`.
fn safety_comment(file: &File, line: usize) -> Option<String> {
    let text: Vec<&str> = file.text.lines().collect();
    let code: Vec<&str> = file.code.lines().collect();
    let comment_of = |n: usize| text[n].split_once("//").map_or("", |(_, rest)| rest).trim();
    let mut at = line - 1;
    if let Some((_, said)) = text[at].split_once("SAFETY:") {
        return Some(said.trim().to_owned());
    }
    let mut below = String::new();
    while at > 0 {
        at -= 1;
        let bare = code[at].trim();
        if bare.is_empty() {
            let comment = comment_of(at);
            if comment.is_empty() && !text[at].trim_start().starts_with("//") {
                return None;
            }
            if let Some((_, said)) = comment.split_once("SAFETY:") {
                return Some(format!("{} {below}", said.trim()).trim().to_owned());
            }
            below = format!("{comment} {below}");
        } else if bare.ends_with([';', '{', '}']) && !bare.starts_with('#') {
            return None;
        }
    }
    None
}

/// Returns whether the comment contains a known name before its first colon. The word "contract" in
/// small letters counts as the name Contract.
fn cites(comment: &str, known: &[String]) -> bool {
    let cited = comment.split(':').next().unwrap_or(comment);
    let stands = |name: &str| words(cited, name).next().is_some();
    known.iter().any(|name| stands(name) || (name == "Contract" && stands("contract")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: (&str, &str) = ("ARCHITECTURE.md", "## Named invariants\n* **Link**: pinned.\n");

    fn of(text: &str) -> Vec<Finding> {
        check(&Repository::of(&[PAGE, ("crates/ums/src/os/a.rs", text)]))
    }

    #[test]
    fn a_cited_invariant_is_fine() {
        let text = "//! A room.\n//! Named invariant \"Link\": it lives.\n\
                    #![allow(unsafe_code)]\n\
                    // SAFETY: Link: borrowed.\nunsafe impl Send for A {}\n\
                    fn f() {\n    // SAFETY: Link: it is linked,\n    // and pinned.\n    let a =\n\
                    unsafe { g() };\n}\n";
        assert_eq!(of(text), []);
    }

    #[test]
    fn a_missing_or_nameless_comment_is_found() {
        let text = "//! * **Home**: at home.\nfn f() {\n    // Fine.\n    let a = 1;\n    \
                    unsafe { g() }\n}\nfn h() {\n    // SAFETY: trust me.\n    unsafe { g() }\n}\n";
        let found = of(text);
        assert_eq!(found.iter().map(|f| f.line).collect::<Vec<_>>(), [5, 9]);
        assert!(found[1].message.ends_with("one of: Link."), "{}", found[1]);
    }

    #[test]
    fn a_header_must_say_why() {
        let text = "//! A file.\n/// # Safety\n/// No.\npub unsafe fn f() {}\n";
        assert_eq!(of(text).len(), 1);
        let text = "//! A file with unsafe functions, because.\npub unsafe fn f() {}\n";
        assert_eq!(of(text), []);
    }

    #[test]
    fn invariants_are_declared_in_several_ways() {
        let text = "//! * *One*: a.\n//! Named: **Two\n//! Words**, *not*.\n//! Invariants used: \
                    x\n#![allow(unsafe_code)] // Named invariant \"Three\": c.";
        assert_eq!(declared(text), ["One", "Three", "Two Words"]);
    }

    #[test]
    fn a_contract_is_an_invariant_too() {
        let page = (
            "ARCHITECTURE.md",
            "## Named invariants\n* **Contract**: it is kept.\n\n## More\n**Not Me**",
        );
        let of = |said: &str| {
            let text = format!("//! Unsafe calls.\n// SAFETY: {said}\nunsafe impl A for B {{}}\n");
            check(&Repository::of(&[page, ("a.rs", &text)])).len()
        };
        assert_eq!(of("by this function's contract."), 0);
        assert_eq!(of("Not Me: no."), 1);
    }

    #[test]
    fn a_header_defines_no_invariant_but_a_module_above_says_why() {
        let of = |cited: &str| {
            let text = format!("// SAFETY: {cited}: yes.\nunsafe impl S for A {{}}\n");
            check(&Repository::of(&[
                PAGE,
                ("crates/ums/src/os/mod.rs", "//! **Own One**: stays.\nmod a;\n"),
                ("crates/ums/src/os/a.rs", &text),
            ]))
        };
        assert_eq!(of("Link"), []);
        assert_eq!(of("Own One").len(), 1);
    }

    #[test]
    fn too_many_invariants_are_found() {
        let page = |n: u8| {
            let names = (0..n).map(|n| format!("* **I{}**: holds.\n", char::from(b'a' + n)));
            let text = format!("## Named invariants\n{}", names.collect::<String>());
            check(&Repository::of(&[("ARCHITECTURE.md", &text)])).len()
        };
        assert_eq!((page(20), page(21)), (0, 1));
    }

    #[test]
    fn the_word_in_comments_strings_and_attributes_is_no_unsafe_code() {
        let text = "//! A.\n#![allow(unsafe_code)]\n// unsafe { }\n#[unsafe(no_mangle)]\n\
                    fn f() { g(\"unsafe {\") }\n";
        assert_eq!(of(text), []);
    }
}
