//! Whether a text is JSON (RFC 8259), as PostgreSQL's `json` requires. SQLite's `json_valid` is a
//! function of SQL, which a COPY could not call.

use rusqlite::Result;

use super::steps::{Steps, failed};

/// The deepest nesting of arrays and objects. It bounds the memory that the check takes.
const DEPTH_MAX: usize = 1 << 16;

/// Returns whether the text is one JSON value, with space around it.
pub(super) fn is_json(text: &[u8]) -> Result<bool> {
    let mut check = Check { rest: text, steps: Steps::default(), open: Vec::new() };
    Ok(str::from_utf8(text).is_ok() && check.document()?)
}

struct Check<'a> {
    rest: &'a [u8],
    steps: Steps,
    /// The closing brackets that are missing.
    open: Vec<u8>,
}

impl Check<'_> {
    fn document(&mut self) -> Result<bool> {
        loop {
            if !self.value()? {
                return Ok(false);
            }
            // After a value: its brackets end, or another value follows.
            loop {
                self.space()?;
                match self.open.last().copied() {
                    None => return Ok(self.rest.is_empty()),
                    Some(close) if self.takes(close) => drop(self.open.pop()),
                    Some(_) if !self.takes(b',') => return Ok(false),
                    Some(b'}') if !self.key()? => return Ok(false),
                    Some(_) => break,
                }
            }
        }
    }

    /// Reads a value; of an array or object what is before its first value. An empty one is a
    /// value.
    fn value(&mut self) -> Result<bool> {
        loop {
            self.space()?;
            let close = match self.rest.first() {
                Some(b'[') => b']',
                Some(b'{') => b'}',
                Some(b'"') => return self.string(),
                Some(b'-' | b'0'..=b'9') => return self.number(),
                _ => {
                    let words: [&[u8]; 3] = [b"true", b"false", b"null"];
                    return Ok(words.iter().any(|word| self.takes_all(word)));
                }
            };
            self.rest = &self.rest[1..];
            self.space()?;
            if self.takes(close) {
                return Ok(true);
            }
            if self.open.len() == DEPTH_MAX {
                return Err(failed("the JSON value is nested too deeply"));
            }
            self.open.push(close);
            if close == b'}' && !self.key()? {
                return Ok(false);
            }
        }
    }

    /// Reads `"key":`.
    fn key(&mut self) -> Result<bool> {
        self.space()?;
        if self.rest.first() != Some(&b'"') || !self.string()? {
            return Ok(false);
        }
        self.space()?;
        Ok(self.takes(b':'))
    }

    fn string(&mut self) -> Result<bool> {
        self.rest = &self.rest[1..];
        loop {
            self.steps.step()?;
            match self.rest {
                [b'"', rest @ ..] => {
                    self.rest = rest;
                    return Ok(true);
                }
                [b'\\', b'u', rest @ ..] => match rest.split_at_checked(4) {
                    Some((digits, rest)) if digits.iter().all(u8::is_ascii_hexdigit) => {
                        self.rest = rest;
                    }
                    _ => return Ok(false),
                },
                [b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', rest @ ..]
                | [b' '..=b'!' | b'#'..=b'[' | b']'..=0xff, rest @ ..] => self.rest = rest,
                _ => return Ok(false),
            }
        }
    }

    fn number(&mut self) -> Result<bool> {
        self.takes(b'-');
        let whole = self.takes(b'0') || self.digits()?;
        let fraction = !self.takes(b'.') || self.digits()?;
        let exponent = !(self.takes(b'e') || self.takes(b'E')) || {
            let _ = self.takes(b'+') || self.takes(b'-');
            self.digits()?
        };
        Ok(whole && fraction && exponent)
    }

    /// Reads digits. Returns false if there are none.
    fn digits(&mut self) -> Result<bool> {
        let before = self.rest.len();
        while let [b'0'..=b'9', rest @ ..] = self.rest {
            self.steps.step()?;
            self.rest = rest;
        }
        Ok(self.rest.len() < before)
    }

    fn space(&mut self) -> Result<()> {
        self.steps.step()?;
        while let [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] = self.rest {
            self.steps.step()?;
            self.rest = rest;
        }
        Ok(())
    }

    fn takes(&mut self, byte: u8) -> bool {
        self.takes_all(&[byte])
    }

    fn takes_all(&mut self, bytes: &[u8]) -> bool {
        let rest = self.rest.strip_prefix(bytes);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_told_from_other_texts() {
        let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
        for text in [
            "1",
            " -0.5e+10 ",
            "null",
            "\"a\\\"\\u00e4\\n ä\"",
            "[]",
            "{ }",
            "[1, [2, {}], {\"a\": [true, false]}]",
            "{\"a\": 1, \"b\": {\"c\": \"}\"}}",
            &deep,
        ] {
            assert!(is_json(text.as_bytes()).unwrap(), "{text}");
        }
        for text in [
            "",
            "{a: 1}",
            "[1,]",
            "[1",
            "1]",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{,}",
            "01",
            "1.",
            "-",
            "1e",
            "nul",
            "'a'",
            "\"a",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\n\"",
            "[1}",
            "1 2",
        ] {
            assert!(!is_json(text.as_bytes()).unwrap(), "{text}");
        }
        assert!(!is_json(b"\"\xff\"").unwrap());
        assert!(is_json("[".repeat(DEPTH_MAX + 2).as_bytes()).is_err());
    }
}
