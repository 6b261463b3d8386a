//! Determines the types of a statement's parameters from the tokens beside them.

use super::names::{Names, number, type_at};
use super::operator_rules::{Beside, beside as beside_time};
use crate::dialect::tokens::{Token, TokenKind};
use crate::error::{Result, SqlError};
use crate::wire::arrays::array_of;
use crate::wire::types;

/// The most parameters a statement can have on the wire.
const PARAMETERS_MAX: usize = 65_535;

/// Returns the type of each parameter: the declared one, otherwise the one that its position
/// implies, otherwise text.
pub(super) fn parameter_types(
    tokens: &[Token<'_>],
    declared: &[u32],
    names: &Names<'_>,
) -> Result<Box<[u32]>> {
    let count = tokens.iter().filter_map(number).max().unwrap_or(0).max(declared.len());
    if count > PARAMETERS_MAX
        || tokens.iter().any(|t| t.kind == TokenKind::Param && number(t) == Some(0))
    {
        return Err(SqlError::new("42P02", "there is no such parameter"));
    }
    let mut found = vec![0; count];
    found[..declared.len()].copy_from_slice(declared);
    found.iter_mut().filter(|oid| **oid == types::UNKNOWN).for_each(|oid| *oid = types::TEXT);
    if found.contains(&0) {
        implied(tokens, names, TokenKind::Param, |index, implied| {
            if let Some(number) = number(&tokens[index])
                && found[number - 1] == 0
            {
                found[number - 1] = implied().unwrap_or(0);
            }
        });
    }
    // What has no type by now is a text. Only `IS NULL` says nothing at all of a type.
    for (index, token) in tokens.iter().enumerate() {
        if let Some(number) = number(token)
            && found[number - 1] == 0
            && !tokens.get(index + 1).is_some_and(|next| next.is("is"))
        {
            found[number - 1] = types::TEXT;
        }
    }
    if let Some(index) = found.iter().position(|oid| *oid == 0) {
        let message = format!("could not determine data type of parameter ${}", index + 1);
        return Err(SqlError::new("42P18", message));
    }
    Ok(found.into())
}

/// Calls `each` for every token of this kind, with its index and a function that returns the type
/// which its position implies.
pub(super) fn implied(
    tokens: &[Token<'_>],
    names: &Names<'_>,
    kind: TokenKind,
    mut each: impl FnMut(usize, &dyn Fn() -> Option<u32>),
) {
    let inserted = inserted_columns(tokens, names, kind);
    // The parenthesis that opened the current list, if the list has only literals and parameters so
    // far.
    let mut list = None;
    for (index, token) in tokens.iter().enumerate() {
        if token.sign("(") {
            list = Some(index);
        } else if !(token.sign(",")
            || matches!(token.kind, TokenKind::Number | TokenKind::Param | TokenKind::Text))
        {
            list = None;
        }
        if token.kind == kind {
            each(index, &|| {
                let here = inserted.binary_search_by_key(&index, |(at, _)| *at);
                let here = here.ok().map(|at| inserted[at].1);
                here.or_else(|| beside(tokens, index, list, names))
            });
        }
    }
}

/// Returns the type that a parameter's neighbours imply. `list` is the parenthesis that opens its
/// list.
fn beside(tokens: &[Token<'_>], at: usize, list: Option<usize>, names: &Names<'_>) -> Option<u32> {
    let back = |steps: usize| at.checked_sub(steps).and_then(|index| tokens.get(index));
    let after = |steps: usize| tokens.get(at + steps);
    if after(1).is_some_and(|token| token.sign("::"))
        || after(1).is_some_and(|token| token.is("as"))
    {
        let cast = after(1)?.sign("::") || back(2).is_some_and(|token| token.is("cast"));
        return cast.then(|| type_at(&tokens[at + 2..])).flatten();
    }
    let before = back(1)?;
    if before.is("limit") || before.is("offset") {
        return Some(types::INT8);
    }
    if before.is("between") {
        return names.operand(back(2)?);
    }
    if before.is("and") && back(3).is_some_and(|token| token.is("between")) {
        return names.operand(back(4)?);
    }
    if before.sign("(")
        && back(2).is_some_and(|word| ["any", "some", "all"].iter().any(|w| word.is(w)))
        && is_operator(back(3)?)
    {
        return array_of(names.operand(back(4)?)?);
    }
    if is_operator(before) {
        return open_operand(before.text, names.operand(back(2)?)?);
    }
    if before.is("when") && back(2)?.is("case") && after(1).is_some_and(|then| then.is("then")) {
        return Some(types::BOOL);
    }
    if before.sign(",") && back(3)?.sign("(") && back(4)?.is("coalesce") {
        return names.operand(back(2)?);
    }
    if let Some(sign) = after(1).filter(|sign| is_operator(sign)) {
        // The type of a qualified name is that of its last part.
        let mut index = at + 2;
        while tokens.get(index + 1).is_some_and(|token| token.sign(".")) {
            index += 2;
        }
        return open_operand(sign.text, names.operand(tokens.get(index)?)?);
    }
    // A parameter in a list: `x IN ($1, 2)` or `f($1)`.
    let open = list.filter(|open| *open > 0)?;
    match tokens[open - 1].text.to_ascii_lowercase().as_str() {
        "in" => {
            let not = usize::from(open >= 2 && tokens[open - 2].is("not"));
            names.operand(tokens.get(open.checked_sub(2 + not)?)?)
        }
        "pg_sleep" | "abs" => Some(types::FLOAT8),
        "preemptive_sleep" | "generate_series" => Some(types::INT4),
        _ => None,
    }
}

/// Returns the type of a parameter beside an operand of the type `oid`.
fn open_operand(sign: &str, oid: u32) -> Option<u32> {
    Some(match beside_time(sign, oid) {
        Beside::Type(open) => open,
        Beside::Several | Beside::None => oid,
    })
}

fn is_operator(token: &Token<'_>) -> bool {
    const SIGNS: [&str; 13] =
        ["=", "<", ">", "<=", ">=", "<>", "!=", "+", "-", "*", "/", "%", "=="];
    SIGNS.iter().any(|sign| token.sign(sign)) || token.is("like") || token.is("ilike")
}

/// Returns, for `INSERT INTO t (a, b) VALUES ($1, $2), ..`, the tokens of this kind that are a
/// whole value, each with the type of its column.
fn inserted_columns(tokens: &[Token<'_>], names: &Names<'_>, kind: TokenKind) -> Vec<(usize, u32)> {
    let mut found = Vec::new();
    let into = tokens.iter().position(|token| token.is("into"));
    let values = tokens.iter().position(|token| token.is("values"));
    let (Some(into), Some(values)) = (into, values) else { return found };
    if !tokens[0].is("insert") || values < into + 2 {
        return found;
    }
    let Some(open) = tokens[into..values].iter().position(|token| token.sign("(")) else {
        return match tokens[into + 1..values].iter().rfind(|token| token.is_name()) {
            Some(table) => place(tokens, values, &names.columns_of(&table.name()), kind),
            None => found,
        };
    };
    let listed = tokens[into + open..values].iter().filter(|token| token.is_name());
    let columns: Vec<u32> =
        listed.map(|t| names.column(&t.name()).unwrap_or(types::TEXT)).collect();
    found.extend(place(tokens, values, &columns, kind));
    found
}

fn place(
    tokens: &[Token<'_>],
    values: usize,
    columns: &[u32],
    kind: TokenKind,
) -> Vec<(usize, u32)> {
    let (mut depth, mut column) = (0usize, 0);
    let mut found = Vec::new();
    for (index, token) in tokens.iter().enumerate().skip(values) {
        match token.text {
            "(" => {
                depth += 1;
                column = if depth == 1 { 0 } else { column };
            }
            ")" => depth = depth.saturating_sub(1),
            "," if depth == 1 => column += 1,
            _ if depth == 1 && token.kind == kind => {
                let alone = |side: Option<&Token<'_>>| side.is_some_and(|t| "(,)".contains(t.text));
                if alone(tokens.get(index - 1)) && alone(tokens.get(index + 1)) {
                    found.extend(columns.get(column).map(|oid| (index, *oid)));
                }
            }
            _ => (),
        }
    }
    found
}
