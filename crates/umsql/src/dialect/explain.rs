//! EXPLAIN: what stands before the statement that is explained.

use super::reader::near;
use super::tokens::{Token, closing, items};
use super::translate::Sql;
use crate::error::{Result, SqlError};

/// A statement that is explained.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Explain {
    /// Whether it is carried out, too.
    pub(crate) analyzes: bool,
    pub(crate) sql: Sql,
}

/// Returns where the explained statement begins, and whether it is carried out. Returns `None` if
/// this is no EXPLAIN.
///
/// # Errors
/// 0A000 for a format that is not supported, 42601 for an unknown option.
pub(crate) fn read(tokens: &[Token<'_>]) -> Result<Option<(usize, bool)>> {
    let is = |at: usize, word: &str| tokens.get(at).is_some_and(|token| token.is(word));
    if !is(0, "explain") {
        return Ok(None);
    }
    let mut analyzes = false;
    if tokens.get(1).is_some_and(|token| token.sign("("))
        && !["select", "values", "with"].iter().any(|word| is(2, word))
        && let Some(close) = closing(&tokens[1..])
    {
        for option in items(&tokens[2..=close]) {
            if let [name, value @ ..] = option {
                let on = value.first().is_none_or(|value| is_on(value));
                match name.text.to_ascii_lowercase().as_str() {
                    "analyze" => analyzes = on,
                    "format" if value.first().is_some_and(|format| format.is("text")) => (),
                    "format" => {
                        let message = "EXPLAIN with another FORMAT than TEXT is not supported";
                        return Err(SqlError::unsupported(message));
                    }
                    "verbose" | "costs" | "settings" | "buffers" | "wal" | "timing" | "summary" => {
                    }
                    _ => {
                        let message = format!("unrecognized EXPLAIN option \"{}\"", name.text);
                        return Err(SqlError {
                            offset: Some(name.at),
                            ..SqlError::syntax(message)
                        });
                    }
                }
            }
        }
        return Ok(Some((close + 2, analyzes)));
    }
    let mut at = 1;
    for word in ["analyze", "verbose"] {
        if is(at, word) {
            analyzes |= word == "analyze";
            at += 1;
        }
    }
    // SQLite's own spelling.
    if is(at, "query") && is(at + 1, "plan") {
        at += 2;
    }
    Ok(Some((at, analyzes)))
}

fn is_on(value: &Token<'_>) -> bool {
    !["off", "false"].iter().any(|word| value.is(word)) && value.text != "0"
}

/// Returns an error unless the statement is one that can be explained.
///
/// # Errors
/// 0A000 for one that PostgreSQL explains, 42601 for another.
pub(crate) fn check(first: &Token<'_>) -> Result<()> {
    const VERBS: [&str; 7] = ["select", "insert", "update", "delete", "values", "with", "("];
    if ["execute", "create", "declare"].iter().any(|verb| first.is(verb)) {
        let verb = first.text.to_ascii_uppercase();
        return Err(SqlError::unsupported(format!("EXPLAIN {verb} is not supported")));
    }
    match VERBS.iter().any(|verb| first.is(verb) || first.sign(verb)) {
        true => Ok(()),
        false => Err(near(first)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    #[test]
    fn options_come_before_the_statement() {
        let of = |source: &str| read(&tokens(source).unwrap()).map_err(|error| error.code);
        for (source, expected) in [
            ("explain select 1", Some((1, false))),
            ("explain analyze verbose select 1", Some((3, true))),
            ("explain (analyze, costs off, format text) select 1", Some((10, true))),
            ("explain (analyze off) select 1", Some((5, false))),
            ("explain (select 1)", Some((1, false))),
            ("explain query plan select 1", Some((3, false))),
            ("select 1", None),
        ] {
            assert_eq!(of(source), Ok(expected), "{source}");
        }
        assert_eq!(of("explain (format json) select 1"), Err("0A000"));
        assert_eq!(of("explain (speed) select 1"), Err("42601"));
        assert!(check(&tokens("pragma x").unwrap()[0]).is_err());
    }
}
