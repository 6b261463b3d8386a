//! PostgreSQL's dialect, as far as clients need it. The module cuts the text into tokens,
//! recognises the statement, and rewrites what SQLite spells differently. A string is one token and
//! a comment is none, so their contents are never treated as SQL.
//!
//! This module does not parse. SQLite is the parser; this module only recognises patterns of
//! tokens.

pub(crate) mod tokens;

pub(crate) mod alter;
mod casts;
mod characteristics;
mod constraints;
mod copy;
mod cursor;
pub(crate) mod definitions;
mod defaults;
mod division;
mod edits;
pub(crate) mod explain;
mod forms;
mod identity;
pub(crate) mod keys;
mod order;
mod prepare;
pub(crate) mod reader;
mod returning;
mod sets;
mod rewrite;
pub(crate) mod sequence;
mod spellings;
mod titles;
pub(crate) mod translate;
mod unsupported;
mod using;
mod values;

pub(crate) mod statement;

pub(crate) use alter::AlterTable;
pub(crate) use characteristics::{Characteristics, Isolation, LockPatience, TableLock};
pub(crate) use constraints::constraints;
pub(crate) use copy::{Copy, CopyOut, Forced};
pub(crate) use cursor::{Cursor, Declare, Fetch};
pub(crate) use edits::Edits;
pub(crate) use explain::Explain;
pub(crate) use prepare::{Execute, Prepare};
pub(crate) use returning::unqualified;
pub(crate) use sets::unnested;
pub(crate) use statement::Statement;
pub(crate) use titles::entitle;
pub(crate) use translate::{Manner, ResultType, ResultTypes, Sql, TakenNumbers};
pub(crate) use using::delete_using;
