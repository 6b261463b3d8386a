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
//! A statement that stores values gets calls of `ums_assign` where SQLite would store something
//! else than PostgreSQL: `assignments` finds the values, `targets` their columns, and `fit` says
//! whether a value needs a call.
//!
//! The operators of dates, times and intervals become calls of functions, which `operators` finds
//! by the types.
//!
//! Plans are not executed here.

mod analysis;
mod applied;
mod assignments;
mod calls;
mod changes;
mod dependents;
mod expression;
mod fit;
mod frames;
mod from;
mod groups;
mod literals;
mod metadata;
mod names;
mod numbered;
mod operand;
mod operator_rules;
mod operators;
mod parameters;
mod parts;
mod prepared;
mod query;
mod refusals;
mod results;
mod rows;
mod scope;
mod sequences;
mod table_of_query;
mod targets;
#[cfg(test)]
mod tests;
mod walk;
mod wrap;

pub(crate) use metadata::numbered_column;
pub(crate) use operators::rewrite_operators;
pub(crate) use prepared::{Plan, has_types, recognise, sample, settle};
pub(crate) use results::columns;
pub(crate) use targets::{Table, Target};
