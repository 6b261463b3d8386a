//! Reads a statement's tokens from the front: keywords, names, and the end.
//!
//! It recognises no statement itself; `statement` and `translate` do that, each with a [`Reader`].

use super::tokens::Token;
use crate::error::{Result, SqlError};

/// Reads a statement's tokens from the front.
pub(crate) struct Reader<'t, 'a> {
    pub(crate) rest: &'t [Token<'a>],
}

impl<'t, 'a> Reader<'t, 'a> {
    pub(crate) fn new(tokens: &'t [Token<'a>]) -> Reader<'t, 'a> {
        Reader { rest: tokens }
    }

    /// Consumes these keywords if all of them come next. Returns whether they did.
    pub(crate) fn take(&mut self, words: &[&str]) -> bool {
        let there = self.rest.len() >= words.len()
            && words.iter().zip(self.rest).all(|(word, token)| token.is(word) || token.sign(word));
        if there {
            self.rest = &self.rest[words.len()..];
        }
        there
    }

    pub(crate) fn next(&mut self) -> Result<&'t Token<'a>> {
        let (first, rest) = self
            .rest
            .split_first()
            .ok_or_else(|| SqlError::syntax("syntax error at end of input"))?;
        self.rest = rest;
        Ok(first)
    }

    pub(crate) fn name(&mut self) -> Result<String> {
        let token = self.next()?;
        if token.is_name() { Ok(token.name()) } else { Err(near(token)) }
    }

    /// Reads a name of an object that is not SQLite's.
    pub(crate) fn folded_name(&mut self) -> Result<String> {
        let token = self.next()?;
        if token.is_name() { Ok(token.folded()) } else { Err(near(token)) }
    }

    /// Reads a table's name, skipping its schema if one is given.
    pub(crate) fn table(&mut self) -> Result<String> {
        let name = self.name()?;
        if self.take(&["."]) { self.name() } else { Ok(name) }
    }

    pub(crate) fn end(&self) -> Result<()> {
        self.rest.first().map_or(Ok(()), |token| Err(near(token)))
    }
}

pub(crate) fn near(token: &Token<'_>) -> SqlError {
    let error = SqlError::syntax(format!("syntax error at or near \"{}\"", token.text));
    SqlError { offset: None, ..error }
}
