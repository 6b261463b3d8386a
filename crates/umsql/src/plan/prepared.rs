//! A statement that is ready to be bound to parameters, and the types of its columns once they are
//! known.

use std::sync::OnceLock;

use rusqlite::Connection;
use rusqlite::types::Value;

use super::analysis::{analyse, is_analysed};
use super::assignments::{assignments, assigns};
use super::dependents::check_dependents;
use super::literals::{has_literals, read_literals};
use super::names::Names;
use super::numbered::{check_always, taken};
use super::operators::{is_rewritten, rewrite_operators};
use super::parameters::parameter_types;
use super::results::KnownColumn;
use super::sequences::sequence_values;
use super::table_of_query::table_of_query;
use crate::dialect::tokens::{Token, statements, tokens};
use crate::dialect::{
    Edits, Explain, Statement, delete_using, explain, statement, unnested, unqualified,
};
use crate::error::{Result, SqlError};
use crate::wire::types::{self, Column};

/// A statement that is ready to be bound to parameters.
#[derive(Debug)]
pub(crate) struct Plan {
    /// `None` if the text is empty.
    pub(crate) statement: Option<Statement>,
    /// The types of its parameters.
    pub(crate) types: Box<[u32]>,
    /// The columns that the first Describe reported. Later executions use the same columns.
    pub(crate) described: OnceLock<Box<[Column]>>,
    /// Whether its columns are all those of a table, by a star.
    pub(crate) has_star: bool,
    /// How many columns it has, and the number of the schema at which they were counted.
    pub(crate) width: OnceLock<(u64, usize)>,
    /// What it is made of, if it stores values: it is made anew when the schema has changed,
    /// because the columns may have other types.
    pub(crate) source: Option<Source>,
    /// The length of its text, used as an estimate of the memory that the plan takes.
    pub(crate) size: usize,
}

/// What a plan is made of.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) text: Box<str>,
    pub(crate) declared: Box<[u32]>,
    /// The number of the schema at which it was made.
    pub(crate) schema: u64,
}

impl Plan {
    /// Makes the plan for `text`. `declared` has the types that the client declared, and zero for
    /// each type that it did not declare. `schema` is the number of the schema.
    pub(crate) fn new(text: &str, declared: &[u32], schema: u64, db: &Connection) -> Result<Plan> {
        let mut list = tokens(text)?;
        let all = statements(&list);
        let [range] = &all[..] else {
            if all.is_empty() {
                return Ok(Plan {
                    statement: None,
                    types: declared.into(),
                    described: OnceLock::new(),
                    has_star: false,
                    width: OnceLock::new(),
                    source: None,
                    size: text.len(),
                });
            }
            return Err(SqlError::syntax(
                "cannot insert multiple commands into a prepared statement",
            ));
        };
        let tokens = &mut list[range.clone()];
        let (statement, types) = typed(tokens, text, declared, db)?;
        let source = || Source { text: text.into(), declared: declared.into(), schema };
        let source = assigns(tokens).then(source);
        let size = if source.is_some() { 2 * text.len() } else { text.len() };
        Ok(Plan {
            statement: Some(statement),
            types,
            described: OnceLock::new(),
            has_star: has_star(tokens),
            width: OnceLock::new(),
            source,
            size,
        })
    }
}

/// Returns whether a star stands for columns.
fn has_star(tokens: &[Token<'_>]) -> bool {
    const BEFORE: [&str; 6] = ["select", ",", ".", "distinct", "all", "returning"];
    tokens.windows(2).any(|two| {
        two[1].sign("*") && BEFORE.iter().any(|word| two[0].is(word) || two[0].sign(word))
    })
}

/// Returns whether the schema matters for this statement: for the types of its results, for what
/// it stores, for its operators, or because it drops a table.
pub(crate) fn has_types(tokens: &[Token<'_>]) -> bool {
    is_analysed(tokens)
        || is_rewritten(tokens)
        || ["table", "drop", "truncate", "explain"].iter().any(|word| tokens[0].is(word))
}

/// Recognises a statement of the query `text` that is executed at once.
///
/// # Errors
/// Those of [`Plan::new`].
pub(crate) fn recognise(
    tokens: &mut [Token<'_>],
    text: &str,
    db: &Connection,
) -> Result<Statement> {
    Ok(typed(tokens, text, &[], db)?.0)
}

/// Recognises a statement of the query `text`, and finds the types of its parameters and results.
/// Its literals get the types of the columns beside them, and what it stores those of its columns.
fn typed(
    tokens: &mut [Token<'_>],
    text: &str,
    declared: &[u32],
    db: &Connection,
) -> Result<(Statement, Box<[u32]>)> {
    if let Some((start, analyzes)) = explain::read(tokens)? {
        let inner = &mut tokens[start..];
        let Some(first) = inner.first() else {
            return Err(SqlError::syntax("syntax error at end of input"));
        };
        explain::check(first)?;
        let (statement, parameters) = typed(inner, text, declared, db)?;
        let Statement::Sql(sql) = statement else {
            return Err(SqlError::unsupported("EXPLAIN of this statement is not supported"));
        };
        return Ok((Statement::Explain(Box::new(Explain { analyzes, sql })), parameters));
    }
    let of_query = |query: &mut [Token<'_>]| typed(query, text, declared, db);
    if let Some(table) = table_of_query(tokens, db, of_query)? {
        return Ok(table);
    }
    let literals = match has_literals(tokens) {
        true => read_literals(tokens, db)?,
        false => Edits::default(),
    };
    let parameters = parameter_types(tokens, declared, &Names::new(db, tokens))?;
    let mut overriding = Edits::default();
    if assigns(tokens) {
        check_always(tokens, &mut overriding, db)?;
    }
    let edits = assignments(tokens, (declared, &parameters), db)?.and(literals).and(overriding);
    let edits = edits.and(unqualified(tokens)?).and(delete_using(tokens)).and(unnested(tokens));
    let sequence = sequence_values(tokens, db);
    let of_sequence = sequence.is_some();
    let edits = edits.and(sequence.unwrap_or_default());
    let results = analyse(tokens, &parameters, db)?;
    let mut statement = statement::recognise(tokens, text, &edits)?;
    if let Statement::Sql(sql) = &mut statement {
        check_dependents(tokens, sql, db)?;
        sql.types = results;
        sql.catalog |= of_sequence;
        sql.taken = if sql.tag == "INSERT 0" { taken(tokens, db) } else { None };
        rewrite_operators(sql, &parameters, db)?;
    }
    Ok((statement, parameters))
}

/// Returns a sample value of this type.
pub(crate) fn sample(oid: u32) -> Value {
    match oid {
        types::INT2 | types::INT4 | types::INT8 | types::OID | types::BOOL => Value::Integer(1),
        types::FLOAT4 | types::FLOAT8 | types::NUMERIC => Value::Real(1.0),
        types::BYTEA => Value::Blob(Vec::new()),
        _ => Value::Text(String::new()),
    }
}

/// Gives every column a type and a format. `value` returns the type of a column's value in the
/// first row, if there is one.
pub(crate) fn settle(
    columns: Vec<KnownColumn>,
    formats: &[u16],
    mut value: impl FnMut(usize) -> Option<u32>,
) -> Vec<Column> {
    let typed = columns.into_iter().enumerate().map(|(index, known)| Column {
        name: known.name,
        oid: known.oid.or_else(|| value(index)).unwrap_or(types::TEXT),
        modifier: known.modifier,
        scale: known.scale,
        format: crate::wire::message::format_of(formats, index),
    });
    typed.collect()
}
