//! The nouns of the analysis: operands, columns, what is in a FROM clause, and the queries around a
//! place of the statement.

use std::collections::HashSet;
use std::ops::Range;
use std::rc::Rc;

use super::expression::Typed;

/// The most columns of one query.
pub(super) const COLUMNS_MAX: usize = 2000;

/// A column of a query, or of what is in a FROM clause.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    /// Its name in lower case; empty if the query gives it none.
    pub(super) name: String,
    pub(super) typed: Option<Typed>,
}

/// The columns of a query, if they are known.
pub(super) type Columns = Option<Rc<[Outcome]>>;

/// An expression, or a part of one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TypedOperand {
    pub(super) typed: Option<Typed>,
    /// The token of the literal in quotes that it is.
    pub(super) literal: Option<usize>,
    /// The token of the number that it is, if that has more digits than SQLite keeps.
    pub(super) long: Option<usize>,
}

impl TypedOperand {
    pub(super) fn new(oid: u32) -> TypedOperand {
        TypedOperand::of(Some(Typed::new(oid)))
    }

    /// Returns a literal in quotes, which has the type that its neighbours ask for.
    pub(super) fn text(literal: usize) -> TypedOperand {
        TypedOperand { typed: Some(Typed::OPEN), literal: Some(literal), long: None }
    }

    pub(super) fn of(typed: Option<Typed>) -> TypedOperand {
        TypedOperand { typed, literal: None, long: None }
    }
}

/// An item of a select list.
#[derive(Debug)]
pub(super) struct Item {
    /// Its tokens, without its alias.
    pub(super) tokens: Range<usize>,
    /// In lower case.
    pub(super) alias: Option<String>,
    pub(super) is_star: bool,
}

/// What is in a FROM clause.
#[derive(Debug, Clone)]
pub(super) struct Relation {
    /// Its alias, or else its name, in lower case.
    pub(super) name: String,
    pub(super) source: RelationSource,
    /// The columns that it has in common with what is before it, by USING.
    pub(super) merged: Vec<String>,
}

#[derive(Debug, Clone)]
pub(super) enum RelationSource {
    /// A table with this name.
    Table(String),
    /// A view of the catalogue.
    Catalog,
    /// A query, a view, or a function that returns rows.
    Columns(Rc<[Outcome]>),
    Unknown,
}

/// What is in the FROM clause of a query.
#[derive(Debug, Default)]
pub(super) struct NameScope<'s> {
    pub(super) relations: Vec<Relation>,
    pub(super) parent: Option<&'s NameScope<'s>>,
    /// Whether a part of the FROM clause was not understood.
    pub(super) is_open: bool,
    /// How many queries are around it.
    pub(super) level: usize,
}

/// The clause of a query that is being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum QueryClause {
    /// The results, and ORDER BY.
    Results,
    /// HAVING, in which the names of results have no meaning, as in WHERE.
    Having,
    /// Any other condition.
    Condition,
    #[default]
    Other,
}

/// A column that a query names outside an aggregate.
#[derive(Debug)]
pub(super) struct Reference {
    pub(super) tokens: Range<usize>,
    pub(super) relation: usize,
    pub(super) column: String,
}

/// A query while it is read.
#[derive(Debug, Default)]
pub(super) struct QueryLevel {
    pub(super) references: Vec<Reference>,
    pub(super) has_aggregate: bool,
    /// How many aggregates are around this place.
    pub(super) inside: usize,
    pub(super) clause: QueryClause,
    /// Whether its columns are those of the statement.
    pub(super) is_outer: bool,
    /// The names that it gives to its results, in lower case.
    pub(super) aliases: HashSet<String>,
}

impl QueryLevel {
    /// Returns whether the names of results have no meaning here.
    pub(super) fn is_condition(&self) -> bool {
        matches!(self.clause, QueryClause::Having | QueryClause::Condition)
    }
}
