//! The names and types of a statement's result columns, as far as they are known without a value.
//!
//! A table's column has its declared type. `expression` has the rules for everything else.

use rusqlite::{Connection, Statement as Prepared};

use super::expression::expression;
use super::names::Names;
use crate::dialect::tokens::{Token, TokenKind, tokens};
use crate::dialect::{Sql, entitle};
use crate::wire::types;

/// What is known of a column without a value.
pub(crate) struct KnownColumn {
    pub(crate) name: String,
    pub(crate) oid: Option<u32>,
    pub(crate) modifier: i32,
    pub(crate) scale: Option<u16>,
}

impl KnownColumn {
    fn of(column: &rusqlite::Column<'_>) -> KnownColumn {
        let declared = column.decl_type();
        let oid = declared.map(types::by_name);
        // Most declarations have no numbers, and this runs for each execution of a statement that
        // was not described.
        let modifier = match declared.filter(|declared| declared.contains('(')) {
            Some(declared) => types::modifier(declared),
            None => -1,
        };
        let scale = types::scale(modifier).filter(|_| oid == Some(types::NUMERIC));
        KnownColumn { name: column.name().to_owned(), oid, modifier, scale }
    }
}

/// Returns the columns of a prepared statement: their names, and their types where those are known
/// without a value.
pub(crate) fn columns(
    prepared: &Prepared<'_>,
    (sql, text): (&Sql, &str),
    parameters: &[u32],
    db: &Connection,
) -> Vec<KnownColumn> {
    let mut columns: Vec<_> = prepared.columns().map(|column| KnownColumn::of(&column)).collect();
    if columns.iter().any(|column| column.oid.is_none())
        && let Ok(tokens) = tokens(text)
    {
        let names = Names::new(db, &tokens);
        let items = result_items(&tokens);
        let known = items.len() == columns.len();
        for (index, column) in columns.iter_mut().enumerate() {
            if column.oid.is_none() {
                let Some(item) = items.get(index).filter(|_| known) else {
                    column.oid = names.column(&column.name);
                    continue;
                };
                let typed = expression(without_alias(item), parameters, &names);
                (column.oid, column.scale) = (typed.map(|t| t.oid), typed.and_then(|t| t.scale));
            }
        }
    }
    entitle(&sql.titles, columns.iter_mut().map(|column| &mut column.name).collect());
    columns
}

/// Returns the items between SELECT and FROM, or after RETURNING. Returns none if one of them is a
/// star.
pub(super) fn result_items<'t, 'a>(tokens: &'t [Token<'a>]) -> Vec<&'t [Token<'a>]> {
    let mut depth = 0usize;
    let mut items = Vec::new();
    let mut start = None;
    for (index, token) in tokens.iter().enumerate() {
        match token.text {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            _ if depth > 0 => (),
            _ if start.is_none() && (token.is("select") || token.is("returning")) => {
                let skip = tokens.get(index + 1).is_some_and(|t| t.is("distinct") || t.is("all"));
                start = Some(index + 1 + usize::from(skip));
            }
            "," => {
                if let Some(from) = start {
                    items.push(&tokens[from.min(index)..index]);
                    start = Some(index + 1);
                }
            }
            _ if ends_items(token) => {
                if let Some(from) = start {
                    items.push(&tokens[from.min(index)..index]);
                    return star_free(items);
                }
            }
            _ => (),
        }
    }
    items.extend(start.filter(|from| *from < tokens.len()).map(|from| &tokens[from..]));
    star_free(items)
}

fn ends_items(token: &Token<'_>) -> bool {
    const WORDS: [&str; 9] =
        ["from", "where", "group", "having", "order", "limit", "union", "except", "intersect"];
    WORDS.iter().any(|word| token.is(word))
}

fn star_free<'t, 'a>(items: Vec<&'t [Token<'a>]>) -> Vec<&'t [Token<'a>]> {
    let star = |item: &&[Token<'_>]| match item {
        [.., last] => last.sign("*"),
        [] => true,
    };
    if items.iter().any(star) { Vec::new() } else { items }
}

pub(super) fn without_alias<'t, 'a>(item: &'t [Token<'a>]) -> &'t [Token<'a>] {
    match item {
        [rest @ .., r#as, name] if r#as.is("as") && name.is_name() => rest,
        [rest @ .., last, name]
            if name.is_name()
                && !name.is("end")
                && (last.sign(")")
                    || last.is_name()
                    || matches!(last.kind, TokenKind::Number | TokenKind::Text)) =>
        {
            // `a b` names an item; `NOT b` and `a COLLATE b` do not.
            if ["not", "is", "null", "collate"].iter().any(|word| last.is(word)) {
                item
            } else {
                &item[..rest.len() + 1]
            }
        }
        _ => item,
    }
}
