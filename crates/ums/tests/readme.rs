//! What the README and the book say is what the examples contain, and what is tested.
//!
//! * The README's first program is the example `first`, and prints what the README says. Its echo
//!   server is the example `echo` without the arguments.
//! * In the book, the folder `docs`, a block of code below `<!-- from PATH -->` is a part of that
//!   file, but for its indentation. A line `// ...` stands for lines that are left out.
//! * Every other block of Rust in the chapters for users is a test: its page is included by
//!   `testing/book.rs`, or by `book.rs` of the crate `ums-compat`.
//!
//! Cargo builds examples for `cargo test` of the whole package.

use std::path::Path;
use std::process::Command;

const README: &str = include_str!("../../../README.md");
const EXAMPLE: &str = include_str!("../examples/first.rs");
const ECHO: &str = include_str!("../examples/echo.rs");
const CONTENTS: &str = include_str!("../../../docs/SUMMARY.md");
const TESTED: [&str; 2] =
    [include_str!("../src/testing/book.rs"), include_str!("../../compat/src/book.rs")];

/// A fenced block of a page.
struct Block {
    /// The line above the fence.
    above: String,
    /// What the fence says: `rust`, `rust,ignore`, `text`.
    kind: String,
    text: String,
    /// The page, and the line of the fence.
    place: String,
}

impl Block {
    /// Returns the path of the file that the block is quoted from.
    fn source(&self) -> Option<&str> {
        self.above.strip_prefix("<!-- from ")?.strip_suffix(" -->")
    }

    /// Returns the parts of the quoted text between the lines `// ...`.
    fn parts(&self) -> Vec<String> {
        let lines: Vec<&str> = self.text.lines().map(str::trim).collect();
        lines.split(|line| *line == "// ...").map(|lines| lines.join("\n")).collect()
    }
}

fn blocks(page: &str, text: &str) -> Vec<Block> {
    let (mut blocks, mut above, mut open) = (Vec::new(), "", None);
    for (n, line) in text.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (open.take(), fence) {
            (None, Some(kind)) => {
                let (above, kind) = (above.to_owned(), kind.to_owned());
                open = Some(Block {
                    above,
                    kind,
                    text: String::new(),
                    place: format!("{page}:{}", n + 1),
                });
            }
            (Some(block), Some(_)) => blocks.push(block),
            (Some(mut block), None) => {
                block.text += &format!("{line}\n");
                open = Some(block);
            }
            (None, None) => {}
        }
        above = line;
    }
    blocks
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns the names of the chapters for users, which the contents list first.
fn chapters() -> impl Iterator<Item = &'static str> {
    let (_, chapters) = CONTENTS.split_once("# The book\n").expect("a part for users");
    let (chapters, _) = chapters.split_once("\n# ").expect("another part follows");
    chapters.split("](").skip(1).map(|rest| rest.split(')').next().expect("a link ends"))
}

/// Returns the blocks of all chapters for users.
fn all_blocks() -> Vec<Block> {
    let of_page = |page: &str| {
        let text = std::fs::read_to_string(root().join("docs").join(page));
        blocks(page, &text.unwrap_or_else(|error| panic!("{page}: {error}")))
    };
    let all: Vec<_> = chapters().flat_map(of_page).collect();
    assert!(all.len() > 50, "{} blocks were found", all.len());
    all
}

#[test]
fn what_the_book_quotes_is_in_the_examples() {
    for block in all_blocks() {
        let Some(path) = block.source() else { continue };
        let file = std::fs::read_to_string(root().join(path));
        let file = file.unwrap_or_else(|error| panic!("{}: {path}: {error}", block.place));
        let file: Vec<&str> = file.lines().map(str::trim).collect();
        let file = file.join("\n");
        let mut rest = file.as_str();
        for part in block.parts() {
            let found = rest.split_once(part.as_str());
            assert!(found.is_some(), "{}: {path} lacks, in this order:\n{part}", block.place);
            rest = found.expect("as just asserted").1;
        }
    }
}

#[test]
fn every_program_of_the_book_is_a_test_or_quoted_from_one() {
    for block in all_blocks() {
        let Some(attributes) = block.kind.strip_prefix("rust") else {
            assert!(!block.kind.is_empty(), "{}: say what it is, such as `text`", block.place);
            continue;
        };
        if attributes.contains("ignore") {
            let is_known = block.source().is_some() || block.above == "<!-- for tokio -->";
            assert!(is_known, "{}: name the file that it is quoted from", block.place);
        } else {
            let page = block.place.split(':').next().expect("a page");
            let include = format!("/docs/{page}\")]");
            let is_tested = TESTED.iter().any(|list| list.contains(&include));
            assert!(is_tested, "{}: add the page to testing/book.rs", block.place);
        }
    }
}

/// The text of the README's first block of this kind.
fn block(kind: &str) -> String {
    let block = blocks("README.md", README).into_iter().find(|block| block.kind == kind);
    block.expect("the README has this block").text
}

#[test]
fn the_program_of_the_readme_is_the_example() {
    let (_, program) = EXAMPLE.split_once("\n\n").expect("a header, and the program");
    assert_eq!(block("rust"), program);
}

#[test]
fn the_program_of_the_readme_prints_what_the_readme_says() {
    let exe = std::env::current_exe().unwrap();
    let program = exe.parent().and_then(|deps| deps.parent()).unwrap().join("examples/first");
    assert!(program.exists(), "build it first: cargo build -p ums --example first");
    let output = Command::new("timeout").arg("60").arg(&program).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "it ended with {}: {errors}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stdout), block("text"));
    assert_eq!(errors, "");
}

#[test]
fn the_echo_server_of_the_readme_is_the_example() {
    let mut programs = blocks("README.md", README).into_iter().filter(|block| block.kind == "rust");
    let server = programs.nth(1).expect("the README has a second program").text;
    let lines: Vec<_> = server.lines().filter(|line| line.starts_with("        ")).collect();
    assert!(lines.len() > 3, "{server}");
    for line in lines.iter().filter(|line| !line.contains("bind(")) {
        assert!(ECHO.contains(line), "examples/echo.rs lacks: {line}");
    }
}
