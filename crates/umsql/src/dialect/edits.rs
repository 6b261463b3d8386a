//! Texts that are written into a statement beside its tokens, while it is rewritten.
//!
//! ```text
//!   values ( 'abc'   )        Before 'abc': "ums_assign("    After 'abc': ", 1043, 7)"
//!   values ( default )        Instead of default: "(1.50)"
//! ```
//!
//! `plan/assignments.rs` makes those of statements that store values, `keys` those of CREATE TABLE.
//!
//! Invariant: the edits are in the order of the tokens; those of one token are in the order Before,
//! Instead, After.

use std::borrow::Cow;

use super::tokens::Token;
use crate::error::{Result, SqlError};

/// The most edits of a statement.
const EDITS_MAX: usize = 1 << 18;

/// The edits of one statement.
#[derive(Debug, Default)]
pub(crate) struct Edits(Vec<Edit>);

/// A text, and where it is written.
#[derive(Debug)]
pub(super) struct Edit {
    /// The offset of the token.
    pub(super) at: usize,
    pub(super) place: Place,
    pub(super) text: Cow<'static, str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Before,
    Instead,
    After,
}

impl Edits {
    /// Writes a text before a token.
    pub(crate) fn before(&mut self, token: &Token<'_>, text: impl Into<Cow<'static, str>>) {
        self.add(token, Place::Before, text.into());
    }

    /// Writes a text in place of a token.
    pub(crate) fn instead(&mut self, token: &Token<'_>, text: impl Into<Cow<'static, str>>) {
        self.add(token, Place::Instead, text.into());
    }

    /// Writes a text after a token.
    pub(crate) fn after(&mut self, token: &Token<'_>, text: impl Into<Cow<'static, str>>) {
        self.add(token, Place::After, text.into());
    }

    /// Returns these edits and others of the same statement.
    pub(crate) fn and(mut self, others: Edits) -> Edits {
        self.0.extend(others.0);
        self.0.sort_by_key(|edit| (edit.at, edit.place));
        self
    }

    /// Returns an error if there are so many that they take too much memory.
    ///
    /// # Errors
    /// 54001.
    pub(crate) fn check(&self) -> Result<()> {
        let message = "the statement has too many values that must be converted";
        let refused = || SqlError::new("54001", message).hint("Send fewer rows in a statement.");
        if self.0.len() < EDITS_MAX { Ok(()) } else { Err(refused()) }
    }

    fn add(&mut self, token: &Token<'_>, place: Place, text: Cow<'static, str>) {
        debug_assert!(self.0.last().is_none_or(|last| last.at <= token.at));
        self.0.push(Edit { at: token.at, place, text });
    }

    /// Returns the edits, in order.
    pub(super) fn list(&self) -> &[Edit] {
        &self.0
    }
}
