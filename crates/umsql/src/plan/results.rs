//! The names and types of a statement's result columns, as far as they are known without a value.
//!
//! A table's column has its declared type. For an expression there are rules for casts, operators
//! and the common functions. The rules look at tokens only, so some types remain unknown.

use rusqlite::{Connection, Statement as Prepared};

use super::names::{Names, number, type_at};
use crate::dialect::tokens::{Token, TokenKind, tokens};
use crate::dialect::{Sql, entitle};
use crate::wire::types;

/// What is known of a column without a value.
pub(crate) struct Known {
    pub(crate) name: String,
    pub(crate) oid: Option<u32>,
    pub(crate) modifier: i32,
}

impl Known {
    fn of(column: &rusqlite::Column<'_>) -> Known {
        let declared = column.decl_type();
        Known {
            name: column.name().to_owned(),
            oid: declared.map(types::by_name),
            modifier: declared.map_or(-1, types::modifier),
        }
    }
}

/// Returns the columns of a prepared statement: their names, and their types where those are known
/// without a value.
pub(crate) fn columns(
    prepared: &Prepared<'_>,
    (sql, text): (&Sql, &str),
    parameters: &[u32],
    db: &Connection,
) -> Vec<Known> {
    let mut columns: Vec<_> = prepared.columns().map(|column| Known::of(&column)).collect();
    if columns.iter().any(|column| column.oid.is_none())
        && let Ok(tokens) = tokens(text)
    {
        let names = Names::new(db, &tokens);
        let items = result_items(&tokens);
        let known = items.len() == columns.len();
        for (index, column) in columns.iter_mut().enumerate() {
            if column.oid.is_none() {
                column.oid = match items.get(index).filter(|_| known) {
                    Some(item) => expression(without_alias(item), parameters, &names),
                    None => names.column(&column.name),
                };
            }
        }
    }
    entitle(&sql.titles, columns.iter_mut().map(|column| &mut column.name).collect());
    columns
}

/// Returns the items between SELECT and FROM, or after RETURNING. Returns none if one of them is a
/// star.
fn result_items<'t, 'a>(tokens: &'t [Token<'a>]) -> Vec<&'t [Token<'a>]> {
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

fn without_alias<'t, 'a>(item: &'t [Token<'a>]) -> &'t [Token<'a>] {
    match item {
        [rest @ .., r#as, name] if r#as.is("as") && name.is_name() => rest,
        [rest @ .., last, name]
            if name.is_name()
                && !name.is("end")
                && (last.sign(")")
                    || last.is_name()
                    || matches!(last.kind, TokenKind::Number | TokenKind::Text)) =>
        {
            // `a b` names an item; `NOT b` does not.
            if last.is("not") || last.is("is") || last.is("null") {
                item
            } else {
                &item[..rest.len() + 1]
            }
        }
        _ => item,
    }
}

/// Returns the type of an expression if a simple rule determines it.
fn expression(item: &[Token<'_>], parameters: &[u32], names: &Names<'_>) -> Option<u32> {
    if item.is_empty() || item[0].is("select") {
        return None;
    }
    let mut depth = 0usize;
    let mut operands = Vec::new();
    let mut start = 0;
    for (index, token) in item.iter().enumerate() {
        match token.text {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            // An operator inside CASE does not determine the type of the whole expression.
            _ if token.is("case") => depth += 1,
            _ if token.is("end") => depth = depth.saturating_sub(1),
            _ if depth > 0 => (),
            "=" | "<" | ">" | "<=" | ">=" | "<>" | "!=" | "==" => return Some(types::BOOL),
            "||" => return Some(types::TEXT),
            "+" | "-" | "*" | "/" | "%" => {
                if index > start {
                    operands.push(&item[start..index]);
                }
                start = index + 1;
            }
            _ if ["and", "or", "not", "is", "in", "like", "between", "exists", "regexp"]
                .iter()
                .any(|word| token.is(word)) =>
            {
                return Some(types::BOOL);
            }
            _ => (),
        }
    }
    operands.push(&item[start..]);
    let mut kinds = operands.iter().map(|tokens| operand(tokens, parameters, names));
    if operands.len() == 1 {
        return kinds.next()?;
    }
    // Arithmetic has the widest type of its operands.
    let rank = |oid: u32| match oid {
        types::INT2 => Some(0),
        types::INT4 => Some(1),
        types::INT8 => Some(2),
        types::NUMERIC => Some(3),
        types::FLOAT4 => Some(4),
        types::FLOAT8 => Some(5),
        _ => None,
    };
    kinds.try_fold(types::INT2, |widest, kind| {
        let kind = kind?;
        if rank(kind)? > rank(widest)? { Some(kind) } else { Some(widest) }
    })
}

/// Returns the type of one operand: a literal, a column, a parameter, a cast, or a call.
fn operand(tokens: &[Token<'_>], parameters: &[u32], names: &Names<'_>) -> Option<u32> {
    match tokens {
        [one] if one.kind == TokenKind::Param => {
            parameters.get(number(one)?.checked_sub(1)?).copied()
        }
        [one] if one.is("true") || one.is("false") => Some(types::BOOL),
        [one] if one.is("current_timestamp") => Some(types::TIMESTAMPTZ),
        [one] if one.is("current_date") => Some(types::DATE),
        [one] if one.is("null") => Some(types::TEXT),
        [one] => names.operand(one),
        [.., dot, last] if dot.sign(".") => names.column(&last.name()),
        [cast, open, inner @ .., close] if cast.is("cast") && open.sign("(") && close.sign(")") => {
            let r#as = inner.iter().rposition(|token| token.is("as"))?;
            type_at(&inner[r#as + 1..])
        }
        [open, inner @ .., close] if open.sign("(") && close.sign(")") => {
            expression(inner, parameters, names)
        }
        [function, open, inner @ .., _] if open.sign("(") => {
            let inner = inner.split(|token| token.sign(",")).next().unwrap_or(inner);
            call(&function.text.to_ascii_lowercase(), || expression(inner, parameters, names))
        }
        _ => None,
    }
}

fn call(function: &str, first: impl Fn() -> Option<u32>) -> Option<u32> {
    match function {
        "count" | "row_number" | "rank" | "dense_rank" | "ntile" | "random" | "changes" => {
            Some(types::INT8)
        }
        "length" | "instr" | "unicode" | "sign" | "preemptive_sleep" => Some(types::INT4),
        "avg" | "total" | "julianday" | "sqrt" | "ln" | "exp" | "power" => Some(types::FLOAT8),
        "lower" | "upper" | "substr" | "substring" | "trim" | "replace" | "hex" | "quote"
        | "typeof" | "group_concat" | "string_agg" | "printf" | "format" | "version"
        | "current_database" | "current_user" | "current_schema" | "strftime" | "time" => {
            Some(types::TEXT)
        }
        "date" => Some(types::DATE),
        "datetime" => Some(types::TIMESTAMP),
        "now" | "clock_timestamp" | "statement_timestamp" | "transaction_timestamp" => {
            Some(types::TIMESTAMPTZ)
        }
        "int2" => Some(types::INT2),
        "int4" => Some(types::INT4),
        "int8" => Some(types::INT8),
        "float4" => Some(types::FLOAT4),
        "float8" => Some(types::FLOAT8),
        "numeric" => Some(types::NUMERIC),
        "bytea" => Some(types::BYTEA),
        "pg_date" => Some(types::DATE),
        "pg_timestamp" => Some(types::TIMESTAMP),
        "pg_timestamptz" => Some(types::TIMESTAMPTZ),
        "pg_bool" | "pg_is_in_recovery" | "pg_table_is_visible" => Some(types::BOOL),
        "pg_sleep" | "pg_advisory_unlock_all" => Some(types::VOID),
        "max" | "min" | "coalesce" | "ifnull" | "nullif" | "abs" | "lag" | "lead" => first(),
        "sum" => first().map(|oid| match oid {
            types::INT2 | types::INT4 => types::INT8,
            other => other,
        }),
        _ => None,
    }
}
