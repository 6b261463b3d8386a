//! The analysis of a statement before it is translated: the types of its results, the literals in
//! quotes that mean a number or a truth value, and what PostgreSQL refuses because of its types.
//!
//! ```text
//!   statement ──▶ query ──▶ from       the columns of what is in FROM      (scope)
//!                       ──▶ operand    each expression, operator by operator
//!                                      ├─ expression   the rules of types
//!                                      └─ refusals     42883, 42804, 22P02
//!                       ──▶ groups     what GROUP BY and DISTINCT allow
//! ```
//!
//! In SQLite values have types, and an operator converts what it gets: `'a' + 1` is 1. So what is
//! certain to be an error in PostgreSQL is refused here, and the rest is left to SQLite.
//!
//! This is no complete parser. An expression that is not understood to its end has no type, and
//! nothing is checked in it. The work is bounded: what is nested too deeply, or mentions too many
//! names, ends the analysis, and the statement is executed without it. Others run between two
//! expressions.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use rusqlite::Connection;

use super::expression::Typed;
use super::names::Names;
use super::parts::{Columns, NameScope, Outcome, QueryLevel, Relation, RelationSource};
use crate::dialect::tokens::{Token, TokenKind, tokens};
use crate::dialect::{ResultType, ResultTypes};
use crate::error::{Result, SqlError};
use crate::wire::types;

/// The deepest nesting of queries and expressions that is analysed.
const DEPTH_MAX: usize = 48;
/// The most tokens of a statement that is analysed, and the most names that are looked up in it.
const TOKENS_MAX: usize = 100_000;
const WORK_MAX: usize = 20_000;
/// How deeply views of views are looked into, and what each counts as names that are looked up.
const VIEWS_MAX: usize = 4;
const VIEW_WORK: usize = 200;
const VIEW_TOKENS_MAX: usize = 2000;

/// What the analysis has found. What was found in a part that proves not to be understood is
/// forgotten.
#[derive(Default)]
pub(super) struct Found {
    pub(super) error: Option<SqlError>,
    /// Tokens that get another kind.
    pub(super) marks: Vec<(usize, TokenKind)>,
}

pub(super) struct Analysis<'t, 'a> {
    pub(super) tokens: &'t [Token<'a>],
    pub(super) db: &'t Connection,
    parameters: &'t [u32],
    pub(super) found: Found,
    /// The common table expressions that are visible, the innermost last.
    pub(super) tables: Vec<(String, Columns)>,
    /// The queries around this place, the innermost last.
    pub(super) levels: Vec<QueryLevel>,
    depth: usize,
    work: usize,
    /// How many views are around this query.
    views: usize,
    /// Whether a limit was exceeded.
    pub(super) lost: bool,
}

/// Returns whether the statement is one that is analysed.
pub(super) fn is_analysed(tokens: &[Token<'_>]) -> bool {
    if creates(tokens) {
        return true;
    }
    const VERBS: [&str; 6] = ["select", "with", "values", "insert", "update", "delete"];
    let verb = tokens.iter().find(|token| !token.sign("("));
    verb.is_some_and(|verb| VERBS.iter().any(|word| verb.is(word)))
}

/// Returns whether the statement creates a table, perhaps from a query. A view is not checked: one
/// of an earlier database can be created again.
fn creates(tokens: &[Token<'_>]) -> bool {
    tokens[0].is("create") && tokens.iter().take(3).any(|token| token.is("table"))
}

/// Returns the types of a statement's results, and marks its literals. `parameters` has the types
/// of its parameters.
///
/// # Errors
/// What PostgreSQL refuses because of its types.
pub(super) fn analyse(
    tokens: &mut [Token<'_>],
    parameters: &[u32],
    db: &Connection,
) -> Result<ResultTypes> {
    if !is_analysed(tokens) || tokens.len() > TOKENS_MAX {
        return Ok(ResultTypes::default());
    }
    let mut analysis = Analysis::new(tokens, parameters, db);
    let creates = creates(analysis.tokens);
    let (columns, of_set) = if creates { analysis.created() } else { analysis.statement() };
    if analysis.lost {
        return Ok(ResultTypes::default());
    }
    let Found { error, marks } = analysis.found;
    if let Some(error) = error {
        return Err(error);
    }
    // The schema's texts must mean the same to SQLite alone.
    for (index, kind) in marks.into_iter().filter(|_| !creates) {
        tokens[index].kind = kind;
    }
    let described = |column: &Outcome| {
        let typed = column.typed?;
        let oid = if typed.is_open() { types::TEXT } else { typed.oid };
        Some(ResultType { oid, scale: typed.scale.filter(|_| oid == types::NUMERIC) })
    };
    let columns = columns.iter().flat_map(|columns| columns.iter().map(described)).collect();
    Ok(ResultTypes { columns, of_set })
}

/// Returns the type of an expression whose names mean columns of `names`. `parameters` has the
/// types of the parameters.
pub(super) fn type_of(
    expression: &[Token<'_>],
    parameters: &[u32],
    names: &Names<'_>,
) -> Option<Typed> {
    let mut analysis = Analysis::new(expression, parameters, names.db());
    analysis.levels.push(QueryLevel::default());
    let scope = NameScope {
        relations: relations(expression, names),
        is_open: true,
        level: 1,
        ..NameScope::default()
    };
    let operand = analysis.expression(&scope, 0..expression.len());
    operand.typed.filter(|_| !analysis.lost)
}

/// Returns the columns that an expression names, once for each qualifier in it.
fn relations(expression: &[Token<'_>], names: &Names<'_>) -> Vec<Relation> {
    let (mut columns, mut qualifiers) = (BTreeMap::new(), BTreeSet::from([String::new()]));
    for (at, token) in expression.iter().enumerate().filter(|(_, token)| token.is_name()) {
        let name = token.name().to_ascii_lowercase();
        if expression.get(at + 1).is_some_and(|next| next.sign(".")) {
            qualifiers.insert(name);
        } else if let Some(typed) = names.typed(&name) {
            columns.insert(name, typed);
        }
    }
    let columns = columns.into_iter().map(|(name, typed)| Outcome { name, typed: Some(typed) });
    let columns: Rc<[Outcome]> = columns.collect();
    let relation = |name| {
        let source = RelationSource::Columns(Rc::clone(&columns));
        Relation { name, source, merged: Vec::new() }
    };
    qualifiers.into_iter().map(relation).collect()
}

impl<'t, 'a> Analysis<'t, 'a> {
    fn new(tokens: &'t [Token<'a>], parameters: &'t [u32], db: &'t Connection) -> Self {
        Analysis {
            tokens,
            db,
            parameters,
            found: Found::default(),
            tables: Vec::new(),
            levels: Vec::new(),
            depth: 0,
            work: 0,
            views: 0,
            lost: false,
        }
    }

    /// Returns the columns of a view. `listed` are those that SQLite lists, some without a type.
    pub(super) fn view(&mut self, name: &str, listed: Columns) -> Columns {
        let listed = listed?;
        self.count(VIEW_WORK)?;
        if self.views == VIEWS_MAX || listed.iter().all(|column| column.typed.is_some()) {
            return Some(listed);
        }
        let text = "SELECT sql FROM sqlite_schema WHERE type = 'view' AND name = ?1 COLLATE NOCASE";
        let query = self.db.prepare_cached(text);
        let source = query.and_then(|mut query| query.query_row([name], |row| row.get(0)));
        let source: String = source.unwrap_or_default();
        let Ok(list) = tokens(&source) else { return Some(listed) };
        let Some(r#as) = list.iter().position(|token| token.is("as")) else { return Some(listed) };
        if list.len() > VIEW_TOKENS_MAX {
            return Some(listed);
        }
        let mut view = Analysis { views: self.views + 1, ..Analysis::new(&list, &[], self.db) };
        view.work = self.work;
        let columns = view.query(None, r#as + 1..list.len()).columns;
        self.work = view.work;
        let Some(columns) = columns.filter(|columns| columns.len() == listed.len()) else {
            return Some(listed);
        };
        let typed = listed.iter().zip(columns.iter()).map(|(listed, column)| Outcome {
            name: listed.name.clone(),
            typed: listed.typed.or(column.typed),
        });
        Some(typed.collect())
    }

    /// Returns the token at `at`, if it is before `end`.
    pub(super) fn token(&self, at: usize, end: usize) -> Option<&'t Token<'a>> {
        self.tokens[..end].get(at)
    }

    pub(super) fn is(&self, at: usize, end: usize, text: &str) -> bool {
        self.token(at, end).is_some_and(|token| token.is(text) || token.sign(text))
    }

    /// Returns the place of the parenthesis, or bracket, that closes the one at `open`.
    pub(super) fn closing(&self, open: usize, end: usize) -> Option<usize> {
        let mut depth = 0usize;
        let place = self.tokens[open..end].iter().position(|token| {
            match token.text {
                "(" | "[" => depth += 1,
                ")" | "]" => depth = depth.saturating_sub(1),
                _ => (),
            }
            depth == 0
        });
        Some(open + place?)
    }

    /// Splits a part of the statement at the commas that are in no parentheses.
    pub(super) fn split(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let items = crate::dialect::tokens::items(&self.tokens[range.clone()]);
        let mut start = range.start;
        let ranges = items.iter().map(|item| {
            let range = start..start + item.len();
            start = range.end + 1;
            range
        });
        ranges.collect()
    }

    /// Counts one level of nesting while `f` runs. Returns `None` if there are too many.
    pub(super) fn deeper<T>(&mut self, f: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth == DEPTH_MAX {
            self.lost = true;
        }
        if self.lost {
            return None;
        }
        self.depth += 1;
        let found = f(self);
        self.depth -= 1;
        found
    }

    /// Counts some work. Returns `None` if it was too much.
    pub(super) fn count(&mut self, work: usize) -> Option<()> {
        self.work += work;
        self.lost |= self.work > WORK_MAX;
        (!self.lost).then_some(())
    }

    /// Forgets what `f` finds if it does not understand all that it reads.
    pub(super) fn wholly<T>(&mut self, f: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let (failed, marks) = (self.found.error.is_some(), self.found.marks.len());
        let found = f(self);
        if found.is_none() {
            self.found.marks.truncate(marks);
            if !failed {
                self.found.error = None;
            }
        }
        found
    }

    /// Returns the type of a parameter. One that is a text may be so because nothing says its type.
    pub(super) fn parameter(&self, number: Option<usize>) -> Option<Typed> {
        let oid = *self.parameters.get(number?.checked_sub(1)?)?;
        Some(if oid == types::TEXT { Typed::OPEN } else { Typed::new(oid) })
    }

    /// Keeps the first error. `at` is the token to which it belongs.
    pub(super) fn refuse(&mut self, at: usize, code: &'static str, message: String) {
        if self.found.error.is_none() {
            let offset = self.tokens.get(at).map(|token| token.at);
            self.found.error = Some(SqlError { offset, ..SqlError::new(code, message) });
        }
    }
}
