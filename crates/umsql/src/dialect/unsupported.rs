//! Forms of PostgreSQL that this server does not have. They are refused by name, because SQLite
//! would refuse them as an error of syntax, which they are not.

use super::tokens::Token;
use crate::error::{Result, SqlError};

/// Tokens that follow each other, and what they begin.
const FORMS: [(&[&str], &str); 22] = [
    (&["array", "["], "an array"),
    (&["distinct", "on", "("], "DISTINCT ON"),
    (&["grouping", "sets"], "GROUPING SETS"),
    (&["group", "by", "(", ")"], "an empty grouping set"),
    (&["within", "group"], "an ordered-set aggregate (WITHIN GROUP)"),
    (&["with", "ordinality"], "WITH ORDINALITY"),
    (&["with", "ties"], "FETCH .. WITH TIES"),
    (&["where", "current", "of"], "WHERE CURRENT OF"),
    (&["intersect", "all"], "INTERSECT ALL"),
    (&["except", "all"], "EXCEPT ALL"),
    (&["between", "symmetric"], "BETWEEN SYMMETRIC"),
    (&["on", "conflict", "on", "constraint"], "ON CONFLICT ON CONSTRAINT"),
    (&[",", "lateral"], "LATERAL"),
    (&["join", "lateral"], "LATERAL"),
    (&["overriding", "user"], "OVERRIDING USER VALUE"),
    (&["nextval", "("], "a sequence"),
    (&["overlaps"], "OVERLAPS"),
    (&["range", "between", "'"], "RANGE with an offset that is no number"),
    (&["time", "with", "time", "zone", "'"], "a time with a time zone"),
    (&[")", "."], "a field of a row"),
    (&["|", "/"], "the operator |/"),
    (&["u", "&", "'"], "a literal with Unicode escapes"),
];

/// Words with which a statement begins, and what it is.
const STATEMENTS: [(&[&str], &str); 5] = [
    (&["comment", "on"], "COMMENT"),
    (&["merge", "into"], "MERGE"),
    (&["drop", "sequence"], "a sequence"),
    (&["alter", "sequence"], "a sequence"),
    (&["create", "table", "*", "as", "execute"], "CREATE TABLE AS EXECUTE"),
];

/// Refuses a statement that contains one of these forms.
///
/// # Errors
/// A sentence that names the form.
pub(super) fn refuse(tokens: &[Token<'_>]) -> Result<()> {
    // For each parenthesis that is open, whether a UNION or EXCEPT is in it.
    let mut combined = vec![false];
    let mut has_union = false;
    for at in 0..tokens.len() {
        let token = &tokens[at];
        if token.sign("(") {
            combined.push(false);
        } else if token.sign(")") && combined.len() > 1 {
            combined.pop();
        } else if token.is("union") || token.is("except") {
            combined.last_mut().into_iter().for_each(|is| *is = true);
        } else if token.is("intersect") && combined.last() == Some(&true) {
            // SQLite combines from left to right; in PostgreSQL, INTERSECT comes first.
            return Err(unsupported(
                "INTERSECT after UNION or EXCEPT, without parentheses,",
                token,
            ));
        }
        let is_list = is_list(tokens, at);
        let found = FORMS.iter().find(|(words, _)| begins(&tokens[at..], words));
        // Of `unnest`, `forms` translates it.
        let is_unnest = tokens[..at].iter().rev().take(40).any(|token| token.is("unnest"));
        let found = found.filter(|(words, _)| match words {
            ["with", "ordinality"] => !is_unnest,
            // Another program that reads the schema has no sequences.
            ["nextval", ..] => tokens[0].is("create") || tokens[0].is("alter"),
            _ => !is_list || words[0] != "array",
        });
        if let Some((_, what)) = found {
            return Err(unsupported(what, &tokens[at]));
        }
        if changes_in_with(&tokens[at..]) {
            return Err(unsupported("a WITH query that changes rows", &tokens[at + 2]));
        }
        if is_quantified(&tokens[at..]) {
            let (sign, word) = (token.text, tokens[at + 1].text.to_ascii_uppercase());
            return Err(unsupported(&format!("{sign} {word} (..)"), token));
        }
        // The first part of a UNION says what the others are.
        has_union |= token.is("union");
        if !has_union && shows_regclass(tokens, at) {
            let error = unsupported("the name of an object as a value of regclass", token);
            return Err(error.hint("Cast it to oid, or write the name as a text."));
        }
        if aliases_using(&tokens[at..]) {
            return Err(unsupported("an alias of USING", token));
        }
    }
    if let [only] = tokens
        && only.is("select")
    {
        return Err(unsupported("a SELECT without columns", only));
    }
    let statement = STATEMENTS.iter().find(|(words, _)| begins(tokens, words));
    statement.map_or(Ok(()), |(_, what)| Err(unsupported(what, &tokens[0])))
}

/// Refuses FOR UPDATE at the end of a query whose rows are not those of a table.
///
/// # Errors
/// A sentence that names the reason.
pub(super) fn refuse_lock(tokens: &[Token<'_>]) -> Result<()> {
    const CLAUSES: [&str; 6] = ["distinct", "group", "having", "union", "intersect", "except"];
    const AGGREGATES: [&str; 6] = ["count", "sum", "avg", "min", "max", "string_agg"];
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            _ if depth > 0 => (),
            _ => {
                let is_call = tokens.get(at + 1).is_some_and(|next| next.sign("("));
                let why = if CLAUSES.iter().any(|word| token.is(word)) {
                    token.text.to_ascii_uppercase()
                } else if is_call && AGGREGATES.iter().any(|word| token.is(word)) {
                    "aggregate functions".to_owned()
                } else {
                    continue;
                };
                let message = format!("FOR UPDATE is not allowed with {why}");
                return Err(SqlError::unsupported(message));
            }
        }
    }
    Ok(())
}

/// Returns whether these tokens begin with these words; a star is any token, and an apostrophe any
/// literal in quotes.
fn begins(tokens: &[Token<'_>], words: &[&str]) -> bool {
    let is_one = |(word, token): (&&str, &Token<'_>)| match *word {
        "*" => true,
        "'" => token.text.starts_with('\''),
        word => token.is(word) || token.sign(word),
    };
    tokens.len() >= words.len() && words.iter().zip(tokens).all(is_one)
}

/// Returns whether this token begins the list of ANY and ALL, which is not an array for SQLite
/// (`spellings`).
fn is_list(tokens: &[Token<'_>], at: usize) -> bool {
    let is_before = |back: usize| {
        let word = at.checked_sub(back).map(|at| &tokens[at]);
        word.is_some_and(|word| ["any", "some", "all"].iter().any(|w| word.is(w)))
    };
    is_before(2) || is_before(3) && tokens[at - 1].sign("(") && keeps_texts(&tokens[at..])
}

/// Returns whether the array in parentheses that begins here has no cast, or one to texts, which
/// `spellings` leaves out.
fn keeps_texts(array: &[Token<'_>]) -> bool {
    let mut depth = 0usize;
    let close = array.iter().position(|token| {
        match token.text {
            "[" => depth += 1,
            "]" => depth = depth.saturating_sub(1),
            _ => return false,
        }
        depth == 0
    });
    match close.map(|close| &array[close + 1..]) {
        Some([end, cast, name, more, ..]) if end.sign(")") && cast.sign("::") => {
            let is_varying = name.is("character") && more.is("varying");
            is_varying || ["text", "varchar"].iter().any(|word| name.is(word)) && more.sign("[")
        }
        _ => true,
    }
}

/// Returns whether a part of WITH begins here that changes rows.
fn changes_in_with(tokens: &[Token<'_>]) -> bool {
    let [r#as, open, verb, ..] = tokens else { return false };
    let changes = ["insert", "update", "delete"].iter().any(|word| verb.is(word));
    r#as.is("as") && open.sign("(") && changes
}

/// Returns whether a comparison with ANY or ALL begins here that does not mean IN or NOT IN, which
/// `spellings` translates.
fn is_quantified(tokens: &[Token<'_>]) -> bool {
    let [sign, word, open, ..] = tokens else { return false };
    let (any, all) = (word.is("any") || word.is("some"), word.is("all"));
    let is_translated = match sign.text {
        "=" => any,
        "<>" | "!=" => all,
        "<" | ">" | "<=" | ">=" => false,
        _ => true,
    };
    open.sign("(") && (any || all) && !is_translated
}

/// Returns whether a cast to regclass begins here whose value is a result or a text: PostgreSQL
/// shows the name of the object, whose number this server has.
fn shows_regclass(tokens: &[Token<'_>], at: usize) -> bool {
    let [sign, name, ..] = &tokens[at..] else { return false };
    if !sign.sign("::") || !name.is("regclass") || at < 2 {
        return false;
    }
    let is_text = tokens.get(at + 2).is_some_and(|next| next.sign("::"))
        && tokens.get(at + 3).is_some_and(|next| next.is("text"));
    let begins = tokens[at - 2].is("select") || tokens[at - 2].sign(",");
    let ends =
        tokens.get(at + 2).is_none_or(|next| next.sign(",") || next.is("from") || next.is("as"));
    is_text || (begins && ends)
}

/// Returns whether `USING (a, b) AS x` begins here.
fn aliases_using(tokens: &[Token<'_>]) -> bool {
    let [using, list @ ..] = tokens else { return false };
    let names = || list.iter().take_while(|token| !token.sign(")")).count();
    using.is("using")
        && list.first().is_some_and(|token| token.sign("("))
        && list.get(names() + 1).is_some_and(|token| token.is("as"))
}

fn unsupported(what: &str, at: &Token<'_>) -> SqlError {
    let error = SqlError::unsupported(format!("{what} is not supported"));
    SqlError { offset: Some(at.at), ..error }
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    #[test]
    fn forms_that_the_server_does_not_have_are_refused_by_name() {
        let refused = [
            "select array[1, 2]",
            "select distinct on (a) a, b from t",
            "select * from t, lateral (select 1) s",
            "with gone as (delete from t returning a) select * from gone",
            "merge into t using s on true when matched then do nothing",
            "delete from t where current of c",
            "select a from t where b > all (select c from t)",
            "select 2 = all (array[2, 2])",
            "select (t).a from t",
            "select * from a join b using (c) as d",
            "select",
            "select 't'::regclass",
            "select oid, 't'::regclass::text from pg_class",
            "select 1 union select 2 intersect select 3",
            "select sum(a) over (order by d range between '1 day' preceding and d) from t",
        ];
        for source in refused {
            let error = refuse(&tokens(source).unwrap()).unwrap_err();
            assert_eq!(error.code, "0A000", "{source}");
        }
        for source in ["select count(*) from t", "select distinct a from t"] {
            assert_eq!(refuse_lock(&tokens(source).unwrap()).unwrap_err().code, "0A000");
        }
        assert!(refuse_lock(&tokens("select (select max(a) from s) from t").unwrap()).is_ok());
        let fine = [
            "select distinct a from t where a = any(array[1, 2])",
            "select 'array[1]', \"lateral\" from t, s",
            "with a as (select 1) delete from t",
            "select 1 union (select 2 intersect select 3)",
            "delete from t",
            "select 1 from pg_class where oid = 't'::regclass",
            "select a = any (select 1), a <> all (select 1) from t join s using (a)",
            "",
        ];
        for source in fine {
            assert!(refuse(&tokens(source).unwrap()).is_ok(), "{source}");
        }
    }
}
