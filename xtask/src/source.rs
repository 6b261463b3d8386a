//! The files of the repository, as text and as code without comments.
//!
//! A [`Repository`] has every text file of the repository. A Rust file has two views with the same
//! lines: `text`, as written, and `code`, in which comments and the contents of literals are
//! replaced by blanks. So a word in `code` is a word of the program, and its line number is right.
//!
//! It checks nothing.

use std::fmt;
use std::fs;
use std::path::Path;

/// One defect to correct.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// Path from the root.
    pub path: String,
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong and what to do instead.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// A file of the repository.
#[derive(Debug)]
pub struct File {
    /// Path from the root, with `/`.
    pub path: String,
    /// The text as written.
    pub text: String,
    /// For a Rust file: the same lines, with comments and literals blanked. Empty for other files.
    pub code: String,
}

impl File {
    /// Returns a file with this path and text.
    pub fn new(path: &str, text: &str) -> File {
        let code = if path.ends_with(".rs") { blank(text) } else { String::new() };
        File { path: path.to_owned(), text: text.to_owned(), code }
    }

    /// Returns whether this is a Rust source.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Returns the header: everything above the first line of code that is not an attribute, and
    /// the `//!` lines of modules inside the file, which have headers of their own.
    pub fn header(&self) -> String {
        let is_item = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
        let end = self.code.lines().position(is_item).unwrap_or(self.code.lines().count());
        let belongs = |(n, line): &(usize, &str)| {
            let line = line.trim_start();
            *n < end || line.starts_with("//!") || line.starts_with("#![allow(unsafe_code)]")
        };
        let lines =
            self.text.lines().enumerate().filter(belongs).map(|(_, line)| line.trim_start());
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Returns a finding in this file.
    pub fn finding(&self, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, message: message.into() }
    }
}

/// Every file of the repository.
#[derive(Debug, Default)]
pub struct Repository {
    /// The text files, sorted by path.
    pub files: Vec<File>,
    /// The paths of other files, such as pictures.
    pub others: Vec<String>,
}

impl Repository {
    /// Reads the files below this folder. What is built (`target`, `book`) is skipped, and hidden
    /// folders are, except `.ci`.
    pub fn read(root: &Path) -> Repository {
        let mut repository = Repository::default();
        visit(root, root, &mut repository);
        repository.files.sort_by(|a, b| a.path.cmp(&b.path));
        repository
    }

    /// Returns a repository made of these paths and texts.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Repository {
        let files = files.iter().map(|(path, text)| File::new(path, text)).collect();
        Repository { files, others: Vec::new() }
    }

    /// Returns the file with this path.
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Returns the Rust files.
    pub fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.is_rust())
    }
}

fn visit(root: &Path, folder: &Path, repository: &mut Repository) {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries {
        let path = entry.expect("a folder entry can be read").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            let hidden = name.starts_with('.') && name != ".ci";
            if !hidden && !["target", "book", "__pycache__"].contains(&name.as_str()) {
                visit(root, &path, repository);
            }
        // In a linked work tree `.git` is a file that contains a path.
        } else if name != ".git" {
            let below = path.strip_prefix(root).expect("it is below the root").to_string_lossy();
            // A file that is not UTF-8 is not text; only its path is recorded.
            match fs::read_to_string(&path) {
                Ok(text) => repository.files.push(File::new(&below, &text)),
                Err(_) => repository.others.push(below.into_owned()),
            }
        }
    }
}

/// Returns the text with comments and the contents of string and character literals replaced by
/// blanks.
pub fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = match literal_end(&chars, at) {
            Some(end) => end,
            None => {
                out.push(chars[at]);
                at += 1;
                continue;
            }
        };
        out.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
        at = end;
    }
    out
}

/// Returns where the comment or literal that begins here ends. Returns None if none begins here.
fn literal_end(chars: &[char], at: usize) -> Option<usize> {
    let next = |ahead: usize| chars.get(at + ahead).copied().unwrap_or('\0');
    match chars[at] {
        '/' if next(1) == '/' => Some(line_end(chars, at)),
        '/' if next(1) == '*' => Some(block_end(chars, at)),
        '"' => Some(quoted_end(chars, at, '"')),
        'r' if !follows_word(chars, at) || chars[at - 1] == 'b' || chars[at - 1] == 'c' => {
            raw_end(chars, at)
        }
        // A lifetime has no closing quote after its first letter.
        '\'' if next(1) == '\\' || next(2) == '\'' => Some(quoted_end(chars, at, '\'')),
        _ => None,
    }
}

fn follows_word(chars: &[char], at: usize) -> bool {
    at > 0 && is_word(chars[at - 1])
}

fn line_end(chars: &[char], at: usize) -> usize {
    chars[at..].iter().position(|&c| c == '\n').map_or(chars.len(), |n| at + n)
}

fn block_end(chars: &[char], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn quoted_end(chars: &[char], start: usize, quote: char) -> usize {
    let mut at = start + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            c if c == quote => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

fn raw_end(chars: &[char], start: usize) -> Option<usize> {
    let hashes = chars[start + 1..].iter().take_while(|&&c| c == '#').count();
    let open = start + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let closes = |at: usize| {
        chars[at] == '"'
            && at + hashes < chars.len()
            && chars[at + 1..=at + hashes].iter().all(|&c| c == '#')
    };
    let close = (open + 1..chars.len()).find(|&at| closes(at));
    Some(close.map_or(chars.len(), |at| at + hashes + 1))
}

/// Returns whether this character can be part of a Rust word.
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the byte positions of this whole word in the text.
pub fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = text[..at].chars().next_back().is_some_and(is_word);
        let after = text[at + word.len()..].chars().next().is_some_and(is_word);
        !before && !after
    })
}

/// Returns the line, from 1, of this byte position.
pub fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Returns the byte position after the brace that closes the first `{` at or after `from`. Returns
/// `None` if a `;` at depth 0 comes first.
pub fn body_end(code: &str, from: usize) -> Option<usize> {
    let (mut depth, mut brackets) = (0i32, 0i32);
    for (n, c) in code[from..].char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets -= 1,
            '{' => depth += 1,
            '}' if depth <= 1 => return (depth == 1).then_some(from + n + 1),
            '}' => depth -= 1,
            ';' if depth == 0 && brackets == 0 => return None,
            _ => {}
        }
    }
    None
}

/// Returns the code with modules under `#[cfg(test)]` blanked.
pub fn without_tests(code: &str) -> String {
    let mut out = code.to_owned();
    for attribute in ["#[cfg(test)]", "#[cfg(all(test"] {
        let starts: Vec<usize> = out.match_indices(attribute).map(|(at, _)| at).collect();
        for start in starts.into_iter().rev() {
            let end = body_end(&out, start)
                .unwrap_or_else(|| out[start..].find(';').map_or(out.len(), |n| start + n + 1));
            let blanks: String =
                out[start..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
            out.replace_range(start..end, &blanks);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_lines_stay() {
        let text = "let a = \"unsafe // {\"; // unsafe\n/* { /* } */ unsafe */ let c = '{';\n\
                    let r = r#\"un\"safe\"#; let l: &'a str = b\"\\\"\";";
        let code = blank(text);
        assert_eq!(code.lines().count(), text.lines().count());
        assert!(!code.contains("unsafe") && !code.contains('{'), "{code}");
        assert!(code.contains("let l: &'a str = b"), "{code}");
    }

    #[test]
    fn words_are_whole() {
        assert_eq!(words("unsafe unsafe_code (unsafe)", "unsafe").collect::<Vec<_>>(), [0, 20]);
    }

    #[test]
    fn a_body_ends_with_its_own_brace() {
        let code = "fn f(a: [u8; 2]) { if a { b } } fn g();";
        assert_eq!(body_end(code, 0), Some(31));
        assert_eq!(body_end(code, 31), None);
    }

    #[test]
    fn test_modules_are_left_out() {
        let code = "use a;\n#[cfg(test)]\nmod tests {\n use crate::late;\n}\nfn f() {}\n\
                    #[cfg(test)]\nmod more;\nfn g() {}";
        let bare = without_tests(code);
        assert!(!bare.contains("late") && !bare.contains("more"), "{bare}");
        assert!(bare.contains("fn f") && bare.contains("fn g"));
        assert_eq!(bare.lines().count(), code.lines().count());
    }

    #[test]
    fn a_header_ends_where_code_begins() {
        let text =
            "//! Prose.\n#![allow(unsafe_code)] // Why.\n\nuse b;\n// c\nmod d {\n    //! D.\n}";
        let file = File::new("a.rs", text);
        assert_eq!(file.header(), "//! Prose.\n#![allow(unsafe_code)] // Why.\n\n//! D.");
    }
}
