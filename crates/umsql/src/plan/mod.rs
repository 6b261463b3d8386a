//! A prepared statement: the recognised statement, and the types of its parameters and columns.
//!
//! In SQLite only values have types, but a client needs the type of a parameter before it sends it
//! and of a column before it reads it. They are found in this order: the client's declaration, a
//! cast, the declaration of a column beside it, rules for operators and functions, and last (for
//! columns) the first value.
//!
//! What it does not do: execute.

mod names;
mod parameters;
mod prepared;
mod results;

pub(crate) use prepared::{Plan, sample, settle};
pub(crate) use results::columns;
