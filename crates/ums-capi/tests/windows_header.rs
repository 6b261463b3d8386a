//! The Windows headers and the sources agree: they have the same functions, with the same number of
//! parameters, and the result and each parameter have the same width on both sides.
//!
//! The headers are written by hand, because programs for Windows expect their exact text. This test
//! finds the functions in the sources by searching the text. If it cannot read a declaration, it
//! fails.

use std::collections::BTreeMap;
use std::path::Path;

/// The sizes in bytes of the result and of each parameter.
type Shape = Vec<usize>;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the parameters in this list. Commas inside other brackets do not separate parameters.
fn split(list: &str) -> Vec<String> {
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for c in list.chars() {
        match c {
            ',' if depth == 0 => parts.push(String::new()),
            c => {
                depth += i32::from(matches!(c, '(' | '<' | '['))
                    - i32::from(matches!(c, ')' | '>' | ']'));
                parts.last_mut().expect("there is one").push(c);
            }
        }
    }
    let parts = parts.into_iter().map(|part| part.trim().to_owned());
    parts.filter(|part| !part.is_empty() && part != "void").collect()
}

/// Returns the text up to the parenthesis that closes the one in front of it, and the text after
/// that.
fn inside(text: &str) -> (&str, &str) {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if depth == 0 {
            return (&text[..at], &text[at + 1..]);
        }
    }
    panic!("a parenthesis is not closed: {text:.60}")
}

fn c_width(declared: &str) -> usize {
    let words: Vec<_> = declared.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let has = |name: &&str| words.contains(name);
    if declared.contains('*') {
        return 8;
    }
    let eight = ["HANDLE", "SIZE_T", "DWORD_PTR", "ULONG_PTR", "ULONGLONG", "KAFFINITY"];
    let four = ["DWORD", "BOOL", "LONG", "ULONG", "UINT", "int", "UMS_THREAD_INFO_CLASS"];
    if four.iter().any(has) {
        4
    } else if has(&"USHORT") {
        2
    } else if has(&"BOOLEAN") {
        1
    } else if has(&"VOID") {
        0
    } else if eight.iter().any(has)
        || words.iter().any(|w| w.starts_with('P') || w.starts_with("LP"))
    {
        8
    } else {
        panic!("how wide is `{declared}`?")
    }
}

fn rust_width(declared: &str) -> usize {
    let kind = declared.rsplit(": ").next().expect("something").trim();
    match kind {
        "u32" | "i32" | "BOOL" => 4,
        "u16" => 2,
        "u8" => 1,
        "!" | "" => 0,
        "usize" | "u64" | "HANDLE" | "ThreadStart" | "InitOnceCallback" | "FlsCallback" => 8,
        "Argument" | "Value" | "Block" | "ContextPointer" | "ListPointer" | "Attributes<'_>" => 8,
        "Count<'a>" => 4,
        "Place<'a>" | "Shared<'_>" => 8,
        kind if kind.starts_with(['*', '&']) => 8,
        kind if ["Out<", "In<", "Array<"].iter().any(|pointer| kind.starts_with(pointer)) => 8,
        other => panic!("how wide is `{other}`?"),
    }
}

fn declared() -> BTreeMap<String, Shape> {
    let header = read("include/windows/winbase.h");
    let mut found = BTreeMap::new();
    for piece in header.split("WINBASEAPI ").skip(1) {
        let (result, rest) = piece.split_once(" WINAPI ").expect("the calling convention");
        let (name, rest) = rest.split_once('(').expect("parameters");
        let mut shape = vec![c_width(result)];
        shape.extend(split(inside(rest).0).iter().map(|p| c_width(p)));
        assert!(found.insert(name.to_owned(), shape).is_none(), "{name} is declared twice");
    }
    found
}

fn defined() -> BTreeMap<String, Shape> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/win32");
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the sources") {
        let text = std::fs::read_to_string(entry.expect("an entry").path()).expect("text");
        for piece in text.split("#[unsafe(no_mangle)]").skip(1) {
            let (_, rest) = piece.split_once(" fn ").expect("a function");
            let (name, rest) = rest.split_once('(').expect("parameters");
            let name = name.trim_end_matches("<'a>");
            let (list, rest) = inside(rest);
            let result = rest.split('{').next().expect("a body").trim();
            let mut shape = vec![rust_width(result.trim_start_matches("-> "))];
            shape.extend(split(list).iter().map(|p| rust_width(p)));
            found.insert(name.to_owned(), shape);
        }
    }
    found
}

#[test]
fn every_function_of_the_headers_is_in_the_library_in_the_same_shape() {
    let (declared, defined) = (declared(), defined());
    assert!(declared.len() > 80, "the header was read: {} functions", declared.len());
    for (name, shape) in &declared {
        let ours = defined.get(name);
        assert_eq!(ours, Some(shape), "{name}: result and parameters, in bytes (right: header)");
    }
    for name in defined.keys() {
        assert!(declared.contains_key(name), "{name} is in no header");
    }
}
