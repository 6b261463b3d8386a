//! Limits the length of files and of functions.

use crate::source::{Finding, Repository, body_end, is_word, line_of, words};

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 60;

/// Returns the findings over all Rust files.
pub fn check(repository: &Repository) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in repository.rust() {
        let lines = file.text.lines().count();
        let mut long = vec![(file.path.clone(), 1, lines, FILE_LINES_MAX)];
        long.extend(functions(&file.code).into_iter().map(|(name, line, lines)| {
            (format!("{}::{name}", file.path), line, lines, FUNCTION_LINES_MAX)
        }));
        for (name, line, lines, max) in long.into_iter().filter(|(_, _, lines, max)| lines > max) {
            findings.push(file.finding(
                line,
                format!(
                    "`{name}` has {lines} lines, more than {max}: split it where its purpose \
                     changes."
                ),
            ));
        }
    }
    findings
}

/// Returns the name, first line and number of lines of each function with a body.
fn functions(code: &str) -> Vec<(String, usize, usize)> {
    let function = |at: usize| {
        let rest = code[at + 2..].trim_start();
        let name: String = rest.chars().take_while(|&c| is_word(c)).collect();
        let end = body_end(code, at).filter(|_| !name.is_empty())?;
        let (first, last) = (line_of(code, at), line_of(code, end));
        Some((name, first, last - first + 1))
    };
    words(code, "fn").filter_map(function).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long_function(lines: usize) -> String {
        format!("//! A.\nfn f(a: [u8; 2]) {{\n{}}}\nfn g();\n", "    g();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_up_to_the_limit_is_fine() {
        assert_eq!(check(&Repository::of(&[("a.rs", &long_function(60))])), []);
    }

    #[test]
    fn a_longer_function_is_found() {
        let text = long_function(61);
        let found = check(&Repository::of(&[("a.rs", &text)]));
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("`a.rs::f` has 61 lines"), "{}", found[0]);
    }

    #[test]
    fn a_long_file_is_found() {
        let text = format!("//! A.\n{}", "// b\n".repeat(600));
        assert_eq!(check(&Repository::of(&[("a.rs", &text)])).len(), 1);
    }
}
