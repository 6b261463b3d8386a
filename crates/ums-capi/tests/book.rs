//! The programs that stand in the book's page about C, docs/c-api.md. What it quotes from examples
//! is tested in `examples.rs`.

mod common;

use common::{Recipe, Workshop};

const PAGE: &str = include_str!("../../../docs/c-api.md");

#[test]
fn the_programs_in_the_page_compile_without_warnings_and_run() {
    let blocks = PAGE.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next());
    let programs: Vec<_> = blocks.filter(|block| block.contains("int main(")).collect();
    assert!(!programs.is_empty(), "the page has a program");
    let (workshop, folder) = (Workshop::new(), tempfile::tempdir().unwrap());
    for (number, text) in programs.into_iter().enumerate() {
        let source = folder.path().join(format!("{number}.c"));
        std::fs::write(&source, text).unwrap();
        let source = source.to_str().unwrap();
        let recipe = Recipe { source, include: "", by: "cc", is_static: false };
        let said = workshop.run(&workshop.make(recipe).expect("C"), &[]);
        // What it prints, the program says in a comment.
        assert!(text.contains(&format!("/* {} */", said.trim())), "{said}");
    }
}
