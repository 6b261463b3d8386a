//! PREPARE and EXECUTE: what a client has written. `crate::prepare` carries it out.

use super::reader::{Reader, near};
use super::tokens::{Token, closing, items};
use crate::error::{Result, SqlError};

/// `PREPARE name (types) AS statement`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Prepare {
    pub(crate) name: String,
    /// The names of the parameters' types.
    pub(crate) types: Vec<String>,
    pub(crate) text: String,
    /// Where the text is in the client's query.
    pub(crate) at: usize,
}

/// `EXECUTE name (arguments)`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Execute {
    pub(crate) name: String,
    /// The expressions in the parentheses.
    pub(crate) arguments: Option<String>,
}

/// The statements that can be prepared.
const VERBS: [&str; 7] = ["select", "insert", "update", "delete", "values", "with", "table"];

impl Prepare {
    /// Reads what follows PREPARE in the query `source`.
    pub(super) fn read(mut r: Reader<'_, '_>, source: &str) -> Result<Prepare> {
        if r.take(&["transaction"]) {
            return Err(SqlError::unsupported("two-phase commit is not supported"));
        }
        let name = r.folded_name()?;
        let types = list(&mut r)?.unwrap_or_default();
        let types = types.iter().map(|tokens| text_of(tokens, source).to_owned()).collect();
        if !r.take(&["as"]) {
            return Err(near(r.next()?));
        }
        let Some(first) = r.rest.first() else { return Err(r.next().unwrap_err()) };
        if !VERBS.iter().any(|verb| first.is(verb)) {
            return Err(near(first));
        }
        let (at, text) = (first.at, text_of(r.rest, source).to_owned());
        Ok(Prepare { name, types, text, at })
    }
}

impl Execute {
    /// Reads what follows EXECUTE in the query `source`.
    pub(super) fn read(mut r: Reader<'_, '_>, source: &str) -> Result<Execute> {
        let name = r.folded_name()?;
        let all = r.rest;
        let arguments = list(&mut r)?;
        r.end()?;
        let inner = arguments.and_then(|_| all.get(1..all.len() - 1));
        let arguments = inner.filter(|inner| !inner.is_empty()).map(|i| text_of(i, source).into());
        Ok(Execute { name, arguments })
    }
}

/// Reads the items of a list in parentheses, if there is one.
fn list<'t, 'a>(r: &mut Reader<'t, 'a>) -> Result<Option<Vec<&'t [Token<'a>]>>> {
    let Some(open) = r.rest.first().filter(|token| token.sign("(")) else { return Ok(None) };
    let close = closing(r.rest).ok_or_else(|| near(open))?;
    let inner = &r.rest[1..close];
    r.rest = &r.rest[close + 1..];
    let items = items(inner);
    match items.iter().any(|item| item.is_empty()) && !inner.is_empty() {
        true => Err(near(&inner[0])),
        false => Ok(Some(items)),
    }
}

/// Returns the part of the query that these tokens are.
pub(super) fn text_of<'s>(tokens: &[Token<'_>], source: &'s str) -> &'s str {
    match tokens {
        [first, .., last] => &source[first.at..last.end()],
        [one] => &source[one.at..one.end()],
        [] => "",
    }
}

#[cfg(test)]
mod tests {
    use super::super::edits::Edits;
    use super::super::statement::{Statement, recognise};
    use super::super::tokens::tokens;
    use super::*;

    fn read(source: &str) -> Result<Statement> {
        recognise(&tokens(source).unwrap(), source, &Edits::default())
    }

    #[test]
    fn the_parts_of_prepare_and_execute_are_found() {
        let source = "prepare Q (int, numeric(5, 2), double precision) as select $1 -- end";
        let Ok(Statement::Prepare(found)) = read(source) else { panic!("{:?}", read(source)) };
        assert_eq!((&*found.name, &*found.text, found.at), ("q", "select $1", 52));
        assert_eq!(found.types, ["int", "numeric(5, 2)", "double precision"]);
        let arguments = |source| match read(source) {
            Ok(Statement::Execute(found)) => found.arguments,
            other => panic!("{other:?}"),
        };
        assert_eq!(arguments("execute q"), None);
        assert_eq!(arguments("execute q ( )"), None);
        assert_eq!(arguments("execute q (1, f(2, 3))").unwrap(), "1, f(2, 3)");
    }

    #[test]
    fn what_cannot_be_prepared_is_a_syntax_error() {
        for source in [
            "prepare",
            "prepare q",
            "prepare q as",
            "prepare q as begin",
            "prepare q (int,) as select 1",
            "prepare q (int as select 1",
            "execute",
            "execute q (1",
            "execute q (1) 2",
            "execute q (,)",
        ] {
            assert_eq!(read(source).unwrap_err().code, "42601", "{source}");
        }
        assert_eq!(read("prepare transaction 'a'").unwrap_err().code, "0A000");
    }
}
