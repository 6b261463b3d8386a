//! The parts of an INSERT in its tokens: the rows of VALUES, the items of a query, and where a
//! clause begins.

use crate::dialect::tokens::{Token, TokenKind, closing, items};
use crate::error::Result;

/// Returns the first token outside parentheses for which `is` returns true.
pub(super) fn level(tokens: &[Token<'_>], is: impl Fn(usize, &Token<'_>) -> bool) -> Option<usize> {
    let mut depth = 0usize;
    tokens.iter().enumerate().position(|(index, token)| {
        match token.text {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            _ => (),
        }
        depth == 0 && is(index, token)
    })
}

/// Returns the first row of VALUES, without its parentheses, and what follows it. Returns `None` if
/// the tokens are more than rows.
pub(super) fn rows<'t, 'a>(source: &'t [Token<'a>]) -> Option<(&'t [Token<'a>], &'t [Token<'a>])> {
    let (values, rows) = source.split_first()?;
    let mut rest = rows;
    while values.is("values") {
        let (_, after) = row(rest)?;
        match after {
            [] => return row(rows),
            [comma, next @ ..] if comma.sign(",") => rest = next,
            _ => return None,
        }
    }
    None
}

/// Returns the items of the row with which the tokens begin, and what follows it.
fn row<'t, 'a>(rest: &'t [Token<'a>]) -> Option<(&'t [Token<'a>], &'t [Token<'a>])> {
    rest.first().filter(|open| open.sign("("))?;
    let close = closing(rest)?;
    Some((&rest[1..close], &rest[close + 1..]))
}

/// Calls `f` with each item of all rows of VALUES, and with the number of its column.
pub(super) fn each_item<'t, 'a: 't>(
    source: &'t [Token<'a>],
    mut f: impl FnMut(usize, &'t [Token<'a>]) -> Result<()>,
) -> Result<()> {
    let mut rest = &source[1..];
    while let Some((items_of, after)) = row(rest) {
        for (column, item) in items(items_of).into_iter().enumerate() {
            f(column, item)?;
        }
        rest = after.get(1..).unwrap_or_default();
    }
    Ok(())
}

pub(super) fn is_default(item: &[Token<'_>]) -> bool {
    matches!(item, [one] if one.is("default"))
}

pub(super) fn begins_query(token: &Token<'_>) -> bool {
    token.sign("(") || ["select", "values", "with"].iter().any(|word| token.is(word))
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
