//! `unnest` and `generate_subscripts` in a select list, which return a row for each element of an
//! array.
//!
//! ```text
//!   select a, unnest(b) as x from t where c
//!     ──▶ select a, ums_u5.value as x from t , json_each(ums_elements(b)) AS ums_u5 where c
//! ```
//!
//! Several of them in one list go in step: those after the first take the element at the same
//! place.

use super::edits::Edits;
use super::tokens::{Token, TokenKind, closing};

/// Returns what is written into a query whose select lists have such functions. What is not
/// understood stays as it is, and is refused as an unknown function.
pub(crate) fn unnested(tokens: &[Token<'_>]) -> Edits {
    let mut edits = Edits::default();
    if !tokens.iter().any(|token| token.is("unnest") || token.is("generate_subscripts")) {
        return edits;
    }
    // What is replaced, and what is added to FROM, by the token at which it stands.
    let mut all: Vec<(usize, Written)> = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if token.is("select")
            && let Some(found) = of_query(tokens, at)
        {
            all.extend(found);
        }
    }
    all.sort_by_key(|(at, _)| *at);
    for (at, written) in all {
        match written {
            Written::Instead(text) => edits.instead(&tokens[at], text),
            Written::After(text) => edits.after(&tokens[at], text),
        }
    }
    edits
}

enum Written {
    Instead(String),
    After(String),
}

/// Returns what is written into the query whose SELECT is at `select`.
fn of_query(tokens: &[Token<'_>], select: usize) -> Option<Vec<(usize, Written)>> {
    let end = end_of_query(tokens, select);
    const CLAUSES: [&str; 7] = ["where", "group", "having", "order", "limit", "offset", "window"];
    let clause = first_of(tokens, select + 1, end, &CLAUSES).unwrap_or(end);
    let from = first_of(tokens, select + 1, clause, &["from"]);
    let list_end = from.unwrap_or(clause);
    let from_end = first_of(tokens, list_end, end, &CLAUSES).unwrap_or(end);
    let calls = calls(tokens, select + 1, list_end);
    let (first, _, _) = *calls.first()?;
    let alias = format!("ums_u{first}");
    let mut written = Vec::new();
    let mut array = String::new();
    for (index, (name, start, close)) in calls.into_iter().enumerate() {
        let text = argument(&tokens[name + 2..close])?;
        let value = match (tokens[name].is("unnest"), index) {
            (true, 0) => {
                array.clone_from(&text);
                format!("{alias}.value")
            }
            (true, _) => format!("json_extract(ums_elements({text}), '$[' || {alias}.key || ']')"),
            // The elements of an array are counted from 1.
            (false, _) if text == array => format!("({alias}.key + 1)"),
            (false, _) => return None,
        };
        written.push((start, Written::Instead(value)));
        written.extend((start + 1..=close).map(|at| (at, Written::Instead(String::new()))));
    }
    let joins = if from.is_some() { " ," } else { " FROM" };
    let text = format!("{joins} json_each(ums_elements({array})) AS {alias}");
    written.push((from_end - 1, Written::After(text)));
    Some(written)
}

/// Returns the calls in a select list, in no parentheses: the name, where the call begins with its
/// schema, and its parenthesis at the end.
fn calls(tokens: &[Token<'_>], start: usize, end: usize) -> Vec<(usize, usize, usize)> {
    let (mut found, mut at) = (Vec::new(), start);
    while at < end {
        if tokens[at].sign("(") {
            at += closing(&tokens[at..]).map_or(end, |len| len + 1);
            continue;
        }
        let is_call = tokens.get(at + 1).is_some_and(|open| open.sign("("));
        let Some(len) = tokens.get(at + 1..).filter(|_| is_call).and_then(closing) else {
            at += 1;
            continue;
        };
        let close = at + 1 + len;
        if tokens[at].is("unnest") || tokens[at].is("generate_subscripts") {
            let has_schema = at >= 2 && tokens[at - 1].sign(".");
            found.push((at, if has_schema { at - 2 } else { at }, close));
        }
        at = close + 1;
    }
    found
}

/// Returns the text of the array: a name, a parameter or a literal, perhaps with a cast.
fn argument(tokens: &[Token<'_>]) -> Option<String> {
    let first = tokens.split(|token| token.sign(",")).next()?;
    let cast = first.iter().position(|token| token.sign("::")).unwrap_or(first.len());
    let first = match first {
        [schema, dot, rest @ ..] if schema.is("pg_catalog") && dot.sign(".") => rest,
        other => &other[..cast],
    };
    let is_simple = |token: &Token<'_>| {
        token.is_name()
            || token.sign(".")
            || matches!(token.kind, TokenKind::Param | TokenKind::Text)
    };
    let text: String = first.iter().map(|token| token.text).collect();
    (!first.is_empty() && first.iter().all(is_simple)).then_some(text)
}

/// Returns the place after the query that begins at `select`.
fn end_of_query(tokens: &[Token<'_>], select: usize) -> usize {
    let mut depth = 0usize;
    let ends = |token: &Token<'_>| ["union", "except", "intersect"].iter().any(|w| token.is(w));
    let end = tokens[select..].iter().position(|token| {
        match token.text {
            "(" => depth += 1,
            ")" if depth == 0 => return true,
            ")" => depth -= 1,
            _ => (),
        }
        depth == 0 && ends(token)
    });
    end.map_or(tokens.len(), |end| select + end)
}

/// Returns the first place of one of the words, in no parentheses.
fn first_of(tokens: &[Token<'_>], start: usize, end: usize, words: &[&str]) -> Option<usize> {
    let mut depth = 0usize;
    (start..end).find(|at| {
        match tokens[*at].text {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            _ => (),
        }
        depth == 0 && words.iter().any(|word| tokens[*at].is(word))
    })
}

#[cfg(test)]
mod tests {
    use super::super::rewrite::rewrite;
    use super::super::tokens::tokens;
    use super::*;

    #[test]
    fn functions_of_sets_become_a_join() {
        for (from, to) in [
            (
                "select a, unnest(b) as x from t where c",
                "select a, ums_u3.value as x from t , json_each(ums_elements(b)) AS ums_u3 where c",
            ),
            (
                "select pg_catalog.unnest(i.k) k, unnest(i.c), generate_subscripts(i.k, 1) from i",
                "select ums_u3.value k, json_extract(ums_elements(i.c), '$[' || ums_u3.key || \
                 ']'), (ums_u3.key + 1) from i , json_each(ums_elements(i.k)) AS ums_u3",
            ),
            (
                "select (select unnest($1::int[]) limit 1)",
                "select (select ums_u3.value FROM json_each(ums_elements($1)) AS ums_u3 limit 1)",
            ),
        ] {
            let list = tokens(from).unwrap();
            let text = rewrite(from, &list, &unnested(&list));
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(words, to);
        }
    }
}
