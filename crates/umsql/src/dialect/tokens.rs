//! The tokens of a SQL text: where each begins and ends, and of which kind it is. Space and
//! comments are not tokens.

use std::ops::Range;

use crate::error::{Result, SqlError};
use crate::wire::message::utf8;
use crate::wire::types::nul;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// A keyword or a name without quotes.
    Word,
    /// A name in double quotes.
    Quoted,
    /// `'text'`, with its quotes doubled.
    Text,
    /// `'text'` that means a truth value, because of the column beside it (`plan/literals.rs`).
    Truth,
    /// `'text'` that means a number, because of what is beside it (`plan/refusals.rs`).
    Digits,
    /// The first word of a query in parentheses that stands for a value, and that may return
    /// several rows, which is an error.
    Only,
    /// `::`, or AS, of a cast from a truth value to a text.
    TruthCast,
    /// `E'text'`, with backslashes.
    Escaped,
    /// `$tag$text$tag$`.
    Dollar,
    Number,
    /// `$1`.
    Param,
    /// An operator or punctuation.
    Sign,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Token<'a> {
    pub(crate) kind: TokenKind,
    pub(crate) text: &'a str,
    /// The byte offset at which it begins in the whole text.
    pub(crate) at: usize,
}

impl Token<'_> {
    /// Returns whether this is the keyword `word`, which is given in lower case.
    pub(crate) fn is(&self, word: &str) -> bool {
        matches!(self.kind, TokenKind::Word | TokenKind::Only | TokenKind::TruthCast)
            && self.text.eq_ignore_ascii_case(word)
    }

    pub(crate) fn sign(&self, sign: &str) -> bool {
        matches!(self.kind, TokenKind::Sign | TokenKind::TruthCast) && self.text == sign
    }

    pub(crate) fn end(&self) -> usize {
        self.at + self.text.len()
    }

    pub(crate) fn is_name(&self) -> bool {
        matches!(self.kind, TokenKind::Word | TokenKind::Quoted)
    }

    /// Returns the name that this token spells, as SQLite stores it.
    pub(crate) fn name(&self) -> String {
        match self.kind {
            TokenKind::Quoted => {
                let quote = &self.text[..1];
                self.text[1..self.text.len() - 1].replace(&quote.repeat(2), quote)
            }
            _ => self.text.to_owned(),
        }
    }

    /// Returns the name that this token spells, as PostgreSQL stores it.
    pub(crate) fn folded(&self) -> String {
        match self.kind {
            TokenKind::Quoted => self.name(),
            _ => self.text.to_ascii_lowercase(),
        }
    }

    /// Returns the value of a string literal. For any other token, returns its text.
    pub(crate) fn value(&self) -> String {
        match self.kind {
            TokenKind::Text | TokenKind::Truth | TokenKind::Digits => {
                self.text[1..self.text.len() - 1].replace("''", "'")
            }
            // What cannot be read was refused when the text was cut into tokens.
            TokenKind::Escaped => unescape(self.text).unwrap_or_default(),
            TokenKind::Dollar => {
                let tag = self.text[1..].find('$').map_or(0, |at| at + 2);
                self.text[tag..self.text.len() - tag].to_owned()
            }
            TokenKind::Quoted => self.name(),
            _ => self.text.to_owned(),
        }
    }
}

/// Reads what `E'text'` spells, as PostgreSQL does.
fn unescape(token: &str) -> Result<String> {
    let mut out = Vec::new();
    let mut rest = token[2..token.len() - 1].chars();
    while let Some(char) = rest.next() {
        let plain = match char {
            '\'' => {
                rest.next();
                '\''
            }
            '\\' => match rest.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                Some('b') => '\u{8}',
                Some('f') => '\u{c}',
                Some(octal @ '0'..='7') => {
                    let (high, digits) = (octal as u32 - '0' as u32, take_digits(&mut rest, 8, 2));
                    out.push(digits.iter().fold(high, |byte, digit| byte << 3 | digit) as u8);
                    continue;
                }
                Some('x') if rest.clone().next().is_some_and(|c| c.is_ascii_hexdigit()) => {
                    let digits = take_digits(&mut rest, 16, 2);
                    out.push(digits.iter().fold(0, |byte, digit| byte << 4 | digit) as u8);
                    continue;
                }
                Some(kind @ ('u' | 'U')) => {
                    let count = if kind == 'u' { 4 } else { 8 };
                    let digits = take_digits(&mut rest, 16, count);
                    let code = digits.iter().fold(0_u64, |code, digit| code << 4 | *digit as u64);
                    let char = u32::try_from(code).ok().and_then(char::from_u32);
                    let char = char.filter(|_| digits.len() == count);
                    char.ok_or_else(|| SqlError::new("22025", "invalid Unicode escape"))?
                }
                Some(other) => other,
                None => break,
            },
            other => other,
        };
        out.extend(plain.encode_utf8(&mut [0; 4]).bytes());
    }
    match utf8(&out)? {
        text if text.contains('\0') => Err(nul()),
        text => Ok(text.to_owned()),
    }
}

/// Takes at most `most` digits in this base.
fn take_digits(rest: &mut std::str::Chars<'_>, base: u32, most: usize) -> Vec<u32> {
    let digits: Vec<u32> = rest.clone().map_while(|char| char.to_digit(base)).take(most).collect();
    rest.by_ref().take(digits.len()).for_each(drop);
    digits
}

/// Operators of more than one character, the longest first.
const LONG_SIGNS: [&str; 19] = [
    "!~~*", "!~~", "!~*", "~~*", "->>", "::", "<=", ">=", "<>", "!=", "||", "->", "~*", "!~", "~~",
    "==", "<<", ">>", ":=",
];

/// The most tokens in one query.
const TOKENS_MAX: usize = 2_000_000;

/// Cuts `text` into tokens.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token<'_>>> {
    let mut list = Vec::new();
    let mut at = 0;
    while let Some(start) = skip_space(text, at)? {
        if list.len() == TOKENS_MAX {
            return Err(SqlError::new("54001", "the query has too many words and signs"));
        }
        let (kind, len) = token(&text[start..])?;
        let is_part = |last: &Token<'_>| {
            last.kind == TokenKind::Text && text[last.end()..start].contains('\n')
        };
        if kind == TokenKind::Text && list.last().is_some_and(is_part) {
            let error = SqlError::unsupported("a literal in parts on several lines");
            return Err(SqlError { offset: Some(start), ..error });
        }
        list.push(Token { kind, text: &text[start..start + len], at: start });
        at = start + len;
    }
    Ok(list)
}

/// Returns the offset of the next token.
fn skip_space(text: &str, mut at: usize) -> Result<Option<usize>> {
    loop {
        let rest = &text[at..];
        let Some(first) = rest.chars().next() else { return Ok(None) };
        if first.is_whitespace() {
            at += first.len_utf8();
        } else if rest.starts_with("--") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if rest.starts_with("/*") {
            at += comment(rest)?;
        } else {
            return Ok(Some(at));
        }
    }
}

/// Returns the length of a comment; comments nest in PostgreSQL.
fn comment(text: &str) -> Result<usize> {
    let (mut depth, mut at) = (0usize, 0);
    let bytes = text.as_bytes();
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return Ok(at);
        }
    }
    Err(SqlError::syntax("unterminated /* comment"))
}

fn token(text: &str) -> Result<(TokenKind, usize)> {
    let bytes = text.as_bytes();
    let next = bytes.get(1).copied().unwrap_or(0);
    match bytes[0] {
        b'\'' => Ok((TokenKind::Text, quoted(text, 0, b'\'', false)?)),
        // A translated name may be in SQLite's other quotes.
        quote @ (b'"' | b'`') => Ok((TokenKind::Quoted, quoted(text, 0, quote, false)?)),
        b'e' | b'E' if next == b'\'' => {
            let len = quoted(text, 1, b'\'', true)?;
            unescape(&text[..len])?;
            Ok((TokenKind::Escaped, len))
        }
        b'$' if next.is_ascii_digit() => {
            Ok((TokenKind::Param, 1 + run(&text[1..], |c| c.is_ascii_digit())))
        }
        b'$' => dollar(text),
        b'0'..=b'9' => Ok((TokenKind::Number, number(bytes))),
        b'.' if next.is_ascii_digit() => Ok((TokenKind::Number, number(bytes))),
        _ => {
            let word = run(text, |c| c.is_alphanumeric() || c == '_' || c == '$');
            if word > 0 {
                return Ok((TokenKind::Word, word));
            }
            let long = LONG_SIGNS.iter().find(|sign| text.starts_with(**sign));
            let one = text.chars().next().map_or(1, char::len_utf8);
            Ok((TokenKind::Sign, long.map_or(one, |sign| sign.len())))
        }
    }
}

fn run(text: &str, mut belongs: impl FnMut(char) -> bool) -> usize {
    text.find(|c| !belongs(c)).unwrap_or(text.len())
}

/// Returns the length of a quoted token whose opening quote is at `open`. A doubled quote stands
/// for one quote of the text.
fn quoted(text: &str, open: usize, quote: u8, backslash: bool) -> Result<usize> {
    let bytes = text.as_bytes();
    let mut at = open + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if backslash => at += 2,
            byte if byte == quote && bytes.get(at + 1) == Some(&quote) => at += 2,
            byte if byte == quote => return Ok(at + 1),
            _ => at += 1,
        }
    }
    let what = if quote != b'\'' { "identifier" } else { "string" };
    Err(SqlError::syntax(format!("unterminated quoted {what}")))
}

fn dollar(text: &str) -> Result<(TokenKind, usize)> {
    let tag = run(&text[1..], |c| c.is_alphanumeric() || c == '_') + 2;
    let Some(tag) = text.get(..tag).filter(|tag| tag.ends_with('$')) else {
        return Ok((TokenKind::Sign, 1));
    };
    match text[tag.len()..].find(tag) {
        Some(len) => Ok((TokenKind::Dollar, tag.len() * 2 + len)),
        None => Err(SqlError::syntax("unterminated dollar-quoted string")),
    }
}

fn number(bytes: &[u8]) -> usize {
    if bytes.len() > 2 && bytes[0] == b'0' && matches!(bytes[1], b'x' | b'X') {
        return 2 + bytes[2..].iter().take_while(|b| b.is_ascii_hexdigit()).count();
    }
    let digits = |at: usize| bytes[at..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut len = digits(0);
    if bytes.get(len) == Some(&b'.') {
        len += 1 + digits(len + 1);
    }
    if matches!(bytes.get(len), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(len + 1), Some(b'+' | b'-')));
        let exponent = bytes.get(len + 1 + sign..).map_or(0, |_| digits(len + 1 + sign));
        if exponent > 0 {
            len += 1 + sign + exponent;
        }
    }
    len
}

/// Cuts the tokens into statements at the semicolons, and returns where each is. The body of a
/// trigger contains semicolons, so CREATE TRIGGER ends only after `; END`, which is SQLite's rule.
pub(crate) fn statements(tokens: &[Token<'_>]) -> Vec<Range<usize>> {
    let mut list = Vec::new();
    let mut start = 0;
    for (index, token) in tokens.iter().enumerate() {
        if !token.sign(";") {
            continue;
        }
        let statement = &tokens[start..index];
        let ended = statement.len() >= 2
            && statement[statement.len() - 1].is("end")
            && statement[statement.len() - 2].sign(";");
        if !creates_trigger(statement) || ended {
            if !statement.is_empty() {
                list.push(start..index);
            }
            start = index + 1;
        }
    }
    if start < tokens.len() {
        list.push(start..tokens.len());
    }
    list
}

fn creates_trigger(statement: &[Token<'_>]) -> bool {
    let mut words = statement.iter();
    words.next().is_some_and(|word| word.is("create"))
        && words
            .find(|word| !word.is("temp") && !word.is("temporary"))
            .is_some_and(|w| w.is("trigger"))
}

/// Returns the index of the parenthesis that closes the one at the beginning.
pub(crate) fn closing(tokens: &[Token<'_>]) -> Option<usize> {
    let mut depth = 0usize;
    tokens.iter().position(|token| {
        match token.text {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            _ => (),
        }
        depth == 0
    })
}

/// Splits tokens at the commas that are in no parentheses.
pub(crate) fn items<'t, 'a>(tokens: &'t [Token<'a>]) -> Vec<&'t [Token<'a>]> {
    let mut depth = 0usize;
    let items = tokens.split(|token| {
        match token.text {
            "(" | "[" => depth += 1,
            ")" | "]" => depth = depth.saturating_sub(1),
            _ => (),
        }
        depth == 0 && token.sign(",")
    });
    items.collect()
}

/// Returns whether the statement creates a table of the rows of a query, which does not become a
/// part of the schema.
pub(crate) fn is_table_of_query(tokens: &[Token<'_>]) -> bool {
    let begins = |token: &Token<'_>| {
        ["select", "values", "with", "table"].iter().any(|word| token.is(word)) || token.sign("(")
    };
    let mut depth = 0usize;
    let is_after = |pair: &[Token<'_>]| {
        match pair[0].text {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            _ => (),
        }
        depth == 0 && pair[0].is("as") && begins(&pair[1])
    };
    tokens.first().is_some_and(|token| token.is("create"))
        && tokens.iter().take(3).any(|token| token.is("table"))
        && tokens.windows(2).any(is_after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(sql: &str) -> Vec<&str> {
        tokens(sql).unwrap().iter().map(|token| token.text).collect()
    }

    #[test]
    fn strings_and_comments_hide_what_is_in_them() {
        let sql = "select 'a;''b' /* ; /* nested */ ; */ , \"c;\"\"d\" -- ;\n, $x$;$x$, E'\\';' ;";
        let expected =
            ["select", "'a;''b'", ",", "\"c;\"\"d\"", ",", "$x$;$x$", ",", "E'\\';'", ";"];
        assert_eq!(texts(sql), expected);
        assert_eq!(statements(&tokens(sql).unwrap()).len(), 1);
    }

    #[test]
    fn numbers_parameters_and_operators_are_cut_apart() {
        let expected = ["a", "::", "int", "+", "$12", "*", "1.5e-3", "||", ".5", "!~", "é1"];
        assert_eq!(texts("a::int+$12*1.5e-3||.5!~é1"), expected);
        assert_eq!(texts("1e 1e+"), ["1", "e", "1", "e", "+"]);
    }

    #[test]
    fn values_lose_their_quotes() {
        let value = |sql: &str| tokens(sql).unwrap()[0].value();
        assert_eq!(value("'it''s'"), "it's");
        assert_eq!(value("E'a\\n\\'b'"), "a\n'b");
        assert_eq!(value(r"E'\101\x42\u00e4\U0001F600\x4G\8''\q'"), "ABä😀\u{4}G8'q");
        assert_eq!(value(r"E'\303\xa4'"), "ä");
        for (sql, code) in [
            (r"E'\0'", "22021"),
            (r"E'a\000b'", "22021"),
            (r"E'\x00'", "22021"),
            (r"E'\u0000'", "22021"),
            (r"E'\xff'", "22021"),
            (r"E'\u12'", "22025"),
            (r"E'\ud800'", "22025"),
        ] {
            assert_eq!(tokens(sql).unwrap_err().code, code, "{sql}");
        }
        assert_eq!(value("$q$x$q$"), "x");
        assert_eq!(value("$$$$"), "");
    }

    #[test]
    fn a_trigger_keeps_its_semicolons() {
        let sql = "create trigger x after insert on t begin select 1; \
                   select case 1 when 1 then 2 end; end; select 3";
        assert_eq!(statements(&tokens(sql).unwrap()).len(), 2);
    }

    #[test]
    fn what_is_not_closed_is_an_error() {
        for sql in ["'a", "\"a", "/* a", "$a$ b", "E'\\'", "/*/"] {
            assert_eq!(tokens(sql).unwrap_err().code, "42601", "{sql}");
        }
        assert_eq!(texts("$ $a"), ["$", "$", "a"]);
    }
}
