//! Plans: a plan is a recognised statement with the types of its parameters and columns.
//!
//! In SQLite only values have types. A client, however, needs the type of a parameter before it
//! sends the value, and the type of a column before it reads a row. The types are found in this
//! order: the client's declaration, a cast, the declaration of a column beside the parameter, rules
//! for operators and functions ([`analysis`]), and last (for columns) the first value.
//!
//! A literal in quotes has the type that a parameter in its place would have. [`literals`] uses
//! that where it matters: a boolean is a number in SQLite. What PostgreSQL refuses because of its
//! types is refused ([`refusals`]).
//!
//! Plans are not executed here.

mod analysis;
mod calls;
mod expression;
mod from;
mod groups;
mod literals;
mod names;
mod operand;
mod parameters;
mod parts;
mod prepared;
mod query;
mod refusals;
mod results;
mod scope;
#[cfg(test)]
mod tests;

pub(crate) use analysis::is_analysed;
pub(crate) use prepared::{Plan, recognise, sample, settle};
pub(crate) use results::columns;
