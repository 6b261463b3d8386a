//! PostgreSQL's dialect, as far as clients need it: cut the text into tokens, see which statement
//! it is, and rewrite what SQLite spells differently. Strings and comments are tokens, so nothing
//! inside them is ever taken for SQL.
//!
//! What it does not do: parse. SQLite is the parser; here only shapes are recognised.

pub(crate) mod tokens;

mod rewrite;
pub(crate) mod translate;

pub(crate) mod statement;

pub(crate) use statement::{Copy, Statement};
