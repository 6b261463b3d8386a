//! A statement that is ready to be bound to parameters, and the types of its columns once they are
//! known.

use std::sync::OnceLock;

use rusqlite::Connection;
use rusqlite::types::Value;

use super::analysis::analyse;
use super::literals::{has_literals, read_literals};
use super::names::Names;
use super::parameters::parameter_types;
use super::results::KnownColumn;
use crate::dialect::tokens::{Token, statements, tokens};
use crate::dialect::{ResultTypes, Sql, Statement, statement};
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
    /// The length of its text, used as an estimate of the memory that the plan takes.
    pub(crate) size: usize,
}

impl Plan {
    /// Makes the plan for `text`. `declared` has the types that the client declared, and zero for
    /// each type that it did not declare.
    pub(crate) fn new(text: &str, declared: &[u32], db: &Connection) -> Result<Plan> {
        let mut list = tokens(text)?;
        let all = statements(&list);
        let [range] = &all[..] else {
            if all.is_empty() {
                return Ok(Plan {
                    statement: None,
                    types: declared.into(),
                    described: OnceLock::new(),
                    size: text.len(),
                });
            }
            return Err(SqlError::syntax(
                "cannot insert multiple commands into a prepared statement",
            ));
        };
        let tokens = &mut list[range.clone()];
        if has_literals(tokens) {
            read_literals(tokens, db)?;
        }
        let types = parameter_types(tokens, declared, &Names::new(db, tokens))?;
        let results = analyse(tokens, &types, db)?;
        let statement = with_types(statement::recognise(tokens, text)?, results);
        let (described, size) = (OnceLock::new(), text.len());
        Ok(Plan { statement: Some(statement), types, described, size })
    }
}

/// Recognises a statement of the query `text` that is executed at once.
pub(crate) fn recognise(
    tokens: &mut [Token<'_>],
    text: &str,
    db: &Connection,
) -> Result<Statement> {
    if has_literals(tokens) {
        read_literals(tokens, db)?;
    }
    let results = analyse(tokens, &[], db)?;
    Ok(with_types(statement::recognise(tokens, text)?, results))
}

fn with_types(statement: Statement, types: ResultTypes) -> Statement {
    match statement {
        Statement::Sql(sql) => Statement::Sql(Sql { types, ..sql }),
        other => other,
    }
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
