//! The parts of an INSERT in its tokens: the rows of VALUES, and where a clause begins.

use crate::dialect::tokens::{Token, closing, items};
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
