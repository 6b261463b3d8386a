//! The names of a table's columns in RETURNING: SQLite does not know the alias of the table there.
//!
//! ```text
//!   update job as j set .. returning j.id   ──▶   returning id
//! ```

use super::edits::Edits;
use super::tokens::Token;
use crate::error::{Result, SqlError};

/// Removes the name, or alias, of the table that the statement changes from its RETURNING.
///
/// # Errors
/// 0A000 if a column of another table is named.
pub(crate) fn unqualified(tokens: &[Token<'_>]) -> Result<Edits> {
    let mut edits = Edits::default();
    let is_query = |token: &Token<'_>| token.is("select");
    let place = tokens.iter().rposition(|token| token.is("returning"));
    let Some(returned) = place.map(|at| &tokens[at + 1..]).filter(|_| changes(tokens)) else {
        return Ok(edits);
    };
    let Some(names) = target(tokens) else { return Ok(edits) };
    if let Some(query) = returned.iter().position(is_query) {
        let is_table =
            |token: &Token<'_>| token.is_name() && token.name().eq_ignore_ascii_case(&names[0]);
        let reads = returned[query..]
            .windows(2)
            .any(|two| (two[0].is("from") || two[0].is("join")) && is_table(&two[1]));
        if reads {
            // It would see the changed rows; PostgreSQL's sees those before.
            let message = "a query of the changed table in RETURNING is not supported";
            let error = SqlError::unsupported(message);
            return Err(SqlError { offset: Some(returned[query].at), ..error });
        }
        return Ok(edits);
    }
    for three in returned.windows(3) {
        let [name, dot, column] = three else { continue };
        let is_column = column.is_name() || column.sign("*");
        if !name.is_name() || !dot.sign(".") || !is_column {
            continue;
        }
        let name_is = |other: &String| name.name().eq_ignore_ascii_case(other);
        if names.iter().any(name_is) {
            edits.instead(name, "");
            edits.instead(dot, "");
        } else {
            let message = "RETURNING a column of another table is not supported";
            let error = SqlError::unsupported(message);
            return Err(SqlError { offset: Some(name.at), ..error });
        }
    }
    Ok(edits)
}

fn changes(tokens: &[Token<'_>]) -> bool {
    ["insert", "update", "delete"].iter().any(|word| tokens[0].is(word))
}

/// Returns the name of the table that is changed, and its alias.
pub(super) fn target(tokens: &[Token<'_>]) -> Option<Vec<String>> {
    let mut rest = match tokens {
        [first, second, rest @ ..] if !first.is("update") => {
            (second.is("into") || second.is("from")).then_some(rest)?
        }
        [_, rest @ ..] => rest,
        [] => return None,
    };
    if rest.first()?.is("only") {
        rest = &rest[1..];
    }
    if rest.get(1)?.sign(".") {
        rest = rest.get(2..)?;
    }
    let mut names = vec![rest.first()?.name()];
    let alias = match rest.get(1)? {
        word if word.is("as") => rest.get(2),
        word => Some(word).filter(|word| word.is_name() && !is_clause(word)),
    };
    names.extend(alias.map(Token::name));
    Some(names)
}

fn is_clause(token: &Token<'_>) -> bool {
    const WORDS: [&str; 9] =
        ["set", "where", "returning", "values", "select", "default", "with", "overriding", "using"];
    WORDS.iter().any(|word| token.is(word))
}

#[cfg(test)]
mod tests {
    use super::super::rewrite::rewrite;
    use super::super::tokens::tokens;
    use super::*;

    fn text(source: &str) -> std::result::Result<String, &'static str> {
        let list = tokens(source).unwrap();
        let edits = unqualified(&list).map_err(|error| error.code)?;
        Ok(rewrite(source, &list, &edits))
    }

    #[test]
    fn the_columns_of_the_changed_table_lose_its_name() {
        for (from, to) in [
            ("update job j set a = 1 returning j.id, j.b || '!'", "returning id, b || '!'"),
            ("delete from item as i returning i.*", "returning *"),
            ("insert into t values (1) returning t.a", "returning a"),
            ("update public.t set a = 1 returning T.a", "returning a"),
            ("insert into t as x (a) values (1) returning x.a", "returning a"),
            ("delete from t returning (select t.a)", "returning (select t.a)"),
        ] {
            assert!(text(from).unwrap().ends_with(to), "{}", text(from).unwrap());
        }
        let query = "insert into t values (1) returning (select count(*) from t)";
        assert_eq!(text(query), Err("0A000"));
        let other = "update t set a = v.b from v where true returning t.a, v.b";
        assert_eq!(text(other), Err("0A000"));
    }
}
