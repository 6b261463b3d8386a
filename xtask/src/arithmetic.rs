//! Checks arithmetic with numbers from callers.
//!
//! In a `pub fn` with a parameter of an integer type, `+`, `-`, `*`, `<<` and a cast that can lose
//! bits, whose operand is that parameter, must be a `checked_`, `saturating_` or `wrapping_`
//! function, or have a comment on the line or on the one above that says why it cannot overflow:
//!
//! ```text
//!   // Bounded: `has_free` has compared it with the permits.
//! ```
//!
//! It looks at the parameter itself, not at what is computed from it, and not at types of time,
//! which the lint `clippy::arithmetic_side_effects` finds. A variable in the function with the
//! name of the parameter counts as the parameter.

use crate::source::{File, Finding, Repository, body_end, line_of, without_tests, words};

const MARK: &str = "// Bounded: ";
const INTEGERS: [(&str, u32); 12] = [
    ("u8", 8),
    ("u16", 16),
    ("u32", 32),
    ("u64", 64),
    ("u128", 128),
    ("usize", 64),
    ("i8", 8),
    ("i16", 16),
    ("i32", 32),
    ("i64", 64),
    ("i128", 128),
    ("isize", 64),
];

/// Returns the findings over the sources of all crates.
pub fn check(repository: &Repository) -> Vec<Finding> {
    repository.rust().filter(|file| is_looked_at(&file.path)).flat_map(check_file).collect()
}

fn is_looked_at(path: &str) -> bool {
    let is_test = ["tests.rs", "loom.rs", "fuzz.rs"].iter().any(|end| path.ends_with(end));
    let of_tests = ["/tests/", "/testing/", "/os/sim/"].iter().any(|part| path.contains(part));
    path.starts_with("crates/") && path.contains("/src/") && !is_test && !of_tests
}

fn check_file(file: &File) -> Vec<Finding> {
    let code = without_tests(&file.code);
    let mut findings = Vec::new();
    for at in words(&code, "fn") {
        if !is_public(&code[..at]) {
            continue;
        }
        let Some((open, close)) = parameters(&code, at) else { continue };
        let Some(end) = body_end(&code, close) else { continue };
        for (name, kind) in integers(&code[open + 1..close]) {
            for found in words(&code[close..end], name).map(|found| close + found) {
                let after = &code[found + name.len()..end];
                let Some(what) = operator(&code[close..found], after, kind) else { continue };
                let line = line_of(&code, found);
                if !is_explained(file, line) {
                    findings.push(file.finding(line, message(name, what)));
                }
            }
        }
    }
    findings
}

fn message(name: &str, what: &str) -> String {
    format!(
        "`{what}` with the caller's `{name}` can overflow: use a checked_, saturating_ or \
         wrapping_ function, or say in `{MARK}...` on the line above why it cannot."
    )
}

/// Returns whether this text, which ends before `fn`, ends with `pub` and words between the two.
fn is_public(before: &str) -> bool {
    let between = ["const", "unsafe", "async", "extern"];
    before.split_whitespace().rev().find(|word| !between.contains(word)) == Some("pub")
}

/// Returns the positions of the parentheses around the parameters of the function at this position.
fn parameters(code: &str, at: usize) -> Option<(usize, usize)> {
    let (mut depth, mut open, mut before) = (0, None, ' ');
    for (n, c) in code[at..].char_indices() {
        match c {
            '(' if depth == 0 => (depth, open) = (1, Some(at + n)),
            '(' | '[' | '<' => depth += 1,
            '>' if before == '-' || before == '=' => {}
            ')' | ']' | '>' => depth -= 1,
            _ => {}
        }
        if depth == 0
            && let Some(open) = open
        {
            return Some((open, at + n));
        }
        before = c;
    }
    None
}

/// Returns the parameters of integer types, with their types.
fn integers(parameters: &str) -> impl Iterator<Item = (&str, &str)> {
    parameters.split(',').filter_map(|parameter| {
        let (name, kind) = parameter.split_once(':')?;
        let (name, kind) = (name.trim().trim_start_matches("mut "), kind.trim());
        let is_integer = INTEGERS.iter().any(|(integer, _)| *integer == kind);
        is_integer.then_some((name, kind))
    })
}

/// Returns the operator whose operand is the word between these texts, if it is one of those that
/// can overflow. The word has this type.
fn operator<'a>(before: &str, after: &'a str, kind: &str) -> Option<&'a str> {
    let before = before.trim_end();
    // A field, a function or a macro of the same name, or a pattern.
    if before.ends_with('.') && !before.ends_with("..") {
        return None;
    }
    for operator in ["+", "-", "*", "<<"] {
        let assigns = before.strip_suffix('=').is_some_and(|before| before.ends_with(operator));
        if before.ends_with(operator) || assigns {
            return Some(match operator {
                "+" => "+",
                "-" => "-",
                "*" => "*",
                _ => "<<",
            });
        }
    }
    let next = after.trim_start();
    if let Some(operator) = ["+", "-", "*", "<<"].into_iter().find(|o| next.starts_with(o)) {
        return Some(operator);
    }
    let to = next.strip_prefix("as ")?;
    let to = &to[..to.find(|c: char| !c.is_alphanumeric()).unwrap_or(to.len())];
    loses(kind, to).then(|| &next[..3 + to.len()])
}

/// Returns whether a cast between these types changes some numbers.
fn loses(from: &str, to: &str) -> bool {
    let bits = |kind| INTEGERS.iter().find(|(name, _)| *name == kind).map(|(_, bits)| *bits);
    let (Some(has), Some(gets)) = (bits(from), bits(to)) else { return false };
    match (from.starts_with('i'), to.starts_with('i')) {
        (true, false) => true,
        (false, true) => gets <= has,
        _ => gets < has,
    }
}

fn is_explained(file: &File, line: usize) -> bool {
    let above = line.saturating_sub(2);
    let mut lines = file.text.lines().skip(above).take(line - above);
    lines.any(|text| text.contains(MARK))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        let repository = Repository::of(&[("crates/a/src/b.rs", text)]);
        check(&repository).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn each_operator_is_found_on_either_side() {
        for wrong in ["n + 1", "1 + n", "n - 1", "-n", "n * 2", "2 * n", "n << 3", "1 << n"] {
            let text = format!("pub fn f(a: &str, n: u64) -> u64 {{\n    {wrong}\n}}\n");
            assert_eq!(lines(&text), [2], "{wrong}");
        }
        assert_eq!(lines("pub const fn f(mut n: u8, m: u8) {\n n += 1;\n n *= m;\n}\n"), [2, 3, 3]);
    }

    #[test]
    fn casts_that_lose_bits_are_found() {
        for (kind, to, is_found) in [
            ("u64", "u32", true),
            ("u64", "i64", true),
            ("i32", "u64", true),
            ("u32", "u64", false),
            ("u32", "i64", false),
            ("usize", "u64", false),
        ] {
            let text = format!("pub unsafe fn f(n: {kind}) {{\n g(n as {to});\n}}\n");
            assert_eq!(!lines(&text).is_empty(), is_found, "{kind} as {to}");
        }
    }

    #[test]
    fn what_is_checked_explained_or_private_is_fine() {
        for right in [
            "pub fn f(n: u64) -> u64 { n.saturating_add(1) }",
            "pub fn f(n: u64) -> u64 {\n    // Bounded: it is less than ten.\n    n + 1\n}",
            "pub fn f(n: u64) -> u64 {\n    n + 1 // Bounded: it is less than ten.\n}",
            "pub(crate) fn f(n: u64) -> u64 { n + 1 }",
            "fn f(n: u64) -> u64 { n + 1 }",
            "pub fn f(n: u64) -> bool { n > 1 && g(self.n + 1, 1..n, &n, \"n + 1\") }",
            "pub fn f(n: f64, m: Other) { n + m }",
            "#[cfg(test)]\nmod tests {\n    pub fn f(n: u64) -> u64 { n + 1 }\n}",
        ] {
            assert_eq!(lines(right), [], "{right}");
        }
    }

    #[test]
    fn tests_and_tools_are_not_looked_at() {
        let text = "pub fn f(n: u64) -> u64 { n + 1 }\n";
        for path in ["crates/a/tests/b.rs", "crates/a/src/b/tests.rs", "xtask/src/a.rs"] {
            assert_eq!(check(&Repository::of(&[(path, text)])), [], "{path}");
        }
    }
}
