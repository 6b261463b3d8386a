//! The definitions of views and indexes in PostgreSQL's form, from the texts of their CREATE
//! statements, for the catalogue.
//!
//! ```text
//!   CREATE VIEW rich AS select id from people      ──▶  select id from public.people
//!   CREATE INDEX i ON people (born desc) where a   ──▶  CREATE INDEX i ON public.people
//!                                                         USING btree (born DESC) WHERE (a)
//! ```
//!
//! The names of tables get their schema if the session's search path has none, as it is while
//! `pg_dump` reads. Functions of this server in a definition stay as they are.

use std::collections::HashSet;

use super::keys::definitions;
use super::tokens::{Token, TokenKind, closing, tokens};

/// Words that end a FROM clause.
const AFTER_FROM: [&str; 10] = [
    "where",
    "group",
    "having",
    "window",
    "order",
    "limit",
    "offset",
    "union",
    "intersect",
    "except",
];

/// Returns the query of a view. `known` says which names are tables or views; they get a schema if
/// `qualifies` is set.
pub(crate) fn view(text: &str, known: impl Fn(&str) -> bool, qualifies: bool) -> Option<String> {
    let list = tokens(text).ok()?;
    let start = list.iter().position(|token| token.is("as"))? + 1;
    let body = &list[start..];
    let first = body.first()?;
    let end = body.iter().rev().find(|token| !token.sign(";"))?.end();
    let mut query = String::new();
    let mut copied = first.at;
    for name in relations(body).filter(|name| qualifies && known(&name.name())) {
        query += &text[copied..name.at];
        query += "public.";
        copied = name.at;
    }
    query += &text[copied..end];
    // `CREATE VIEW v (a, b) AS ..`
    let open = list[..start].iter().position(|token| token.sign("("));
    let Some(open) = open else { return Some(query) };
    let names = &text[list[open].at..list[start - 2].end()];
    Some(format!("WITH ums_v{names} AS ({query}) SELECT * FROM ums_v"))
}

/// Returns the relations without a schema that a view's text names, except those of its WITH
/// clauses.
pub(crate) fn tables_of_view(text: &str) -> Vec<String> {
    let list = tokens(text).unwrap_or_default();
    relations(&list).map(|token| token.name()).collect()
}

/// One open parenthesis.
struct Level {
    /// Whether it encloses a query, or a part of a FROM clause, and no arguments.
    is_query: bool,
    is_from: bool,
}

/// Returns the names without a schema in FROM clauses, except those of WITH clauses.
fn relations<'t, 'a>(list: &'t [Token<'a>]) -> impl Iterator<Item = &'t Token<'a>> {
    let defined = names_of_with(list);
    let mut levels = vec![Level { is_query: true, is_from: false }];
    let mut expects = false;
    list.iter().enumerate().filter_map(move |(at, token)| {
        let next = list.get(at + 1);
        let expected = std::mem::take(&mut expects);
        let level = levels.last_mut()?;
        if token.is("from") || token.is("join") {
            level.is_from = level.is_query;
            expects = level.is_query;
        } else if token.sign(",") {
            expects = level.is_from;
        } else if token.sign("(") {
            let is_query = expected || next.is_some_and(begins_query);
            levels.push(Level { is_query, is_from: expected });
            expects = expected;
        } else if token.sign(")") {
            levels.truncate((levels.len() - 1).max(1));
        } else if AFTER_FROM.iter().any(|word| token.is(word)) {
            level.is_from = false;
        } else if expected && token.is_name() && !begins_query(token) {
            let is_other = next.is_some_and(|next| next.sign(".") || next.sign("("));
            return (!is_other && !defined.contains(&token.name().to_ascii_lowercase()))
                .then_some(token);
        }
        None
    })
}

fn begins_query(token: &Token<'_>) -> bool {
    ["select", "values", "with"].iter().any(|word| token.is(word))
}

/// Returns the names, in lower case, that WITH clauses define.
fn names_of_with(list: &[Token<'_>]) -> HashSet<String> {
    let defines = |three: &&[Token<'_>]| {
        let begins = ["with", "recursive"].iter().any(|word| three[0].is(word));
        let has_query = three[2].is("as") || three[2].sign("(");
        (begins || three[0].sign(",")) && three[1].is_name() && has_query
    };
    // Without this word, a comma is that of a list.
    if !list.iter().any(|token| token.is("with")) {
        return HashSet::new();
    }
    let defined = list.windows(3).filter(defines);
    defined.map(|three| three[1].name().to_ascii_lowercase()).collect()
}

/// Returns the expression from which a column of a table is computed.
pub(crate) fn generated(text: &str, column: &str) -> Option<String> {
    let list = tokens(text).ok()?;
    let items = definitions(&list)?;
    let item = items.iter().find(|item| item[0].name().eq_ignore_ascii_case(column))?;
    let at = item.windows(2).position(|two| two[0].is("as") && two[1].sign("("))?;
    let inner = &item[at + 2..at + 1 + closing(&item[at + 1..])?];
    Some(text[inner.first()?.at..inner.last()?.end()].to_owned())
}

/// Returns the definition of an index.
pub(crate) fn index(text: &str, quote: impl Fn(&str) -> String) -> Option<String> {
    let list = tokens(text).ok()?;
    let on = list.iter().position(|token| token.is("on"))?;
    let [name, table] = [list[on.checked_sub(1)?], *list.get(on + 1)?].map(|n| quote(&n.name()));
    let open = on + list[on..].iter().position(|token| token.sign("("))?;
    let close = open + closing(&list[open..])?;
    let unique = if list[..on].iter().any(|token| token.is("unique")) { "UNIQUE " } else { "" };
    let mut columns = String::new();
    for (at, token) in list[open + 1..close].iter().enumerate() {
        let before = list[open + at];
        if token.is("asc") {
            continue;
        }
        // As many spaces as in the text, at most one.
        if at > 0 && before.end() < token.at {
            columns.push(' ');
        }
        let is_order = ["desc", "nulls", "first", "last"].iter().any(|word| token.is(word));
        match token.kind {
            _ if is_order => columns += &token.text.to_ascii_uppercase(),
            TokenKind::Quoted => columns += &quote(&token.name()),
            _ => columns += token.text,
        }
    }
    let condition = match &list[close + 1..] {
        [r#where, first, .., last] if r#where.is("where") => {
            let condition = &text[first.at..last.end()];
            let is_enclosed = first.sign("(")
                && closing(&list[close + 2..]).is_some_and(|end| close + 3 + end == list.len());
            match is_enclosed {
                true => format!(" WHERE {condition}"),
                false => format!(" WHERE ({condition})"),
            }
        }
        _ => String::new(),
    };
    let head = format!("CREATE {unique}INDEX {name} ON public.{table}");
    Some(format!("{head} USING btree ({columns}){condition}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_a_view_get_their_schema() {
        for (text, expected) in [
            (
                "create view v as select a, t from t, s x where t in (1, t)",
                "select a, t from public.t, public.s x where t in (1, t)",
            ),
            (
                "CREATE VIEW v(a, b) AS select 1, 2 from (t join s using (a)) \
                 union select 1, 2 from v;",
                "WITH ums_v(a, b) AS (select 1, 2 from (public.t join public.s using (a)) \
                 union select 1, 2 from v) SELECT * FROM ums_v",
            ),
            (
                "create view v as with s as (select 1 from t) select * from s, (select * from t) q",
                "with s as (select 1 from public.t) select * from s, (select * from public.t) q",
            ),
            (
                "create view v as select * from main.t, f(t), generate_series(1, 2)",
                "select * from main.t, f(t), generate_series(1, 2)",
            ),
            (
                "create view v as select extract(year from t), count(*) from t group by 1, t",
                "select extract(year from t), count(*) from public.t group by 1, t",
            ),
        ] {
            let known = |name: &str| ["t", "s"].contains(&name);
            assert_eq!(view(text, known, true).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn a_computed_column_is_shown() {
        let text =
            "create table t(a int, b int generated always as ((a + 1) * 2) stored, c as (1))";
        assert_eq!(generated(text, "B").as_deref(), Some("(a + 1) * 2"));
        assert_eq!(generated(text, "c").as_deref(), Some("1"));
        assert_eq!(generated(text, "a"), None);
    }

    #[test]
    fn an_index_is_shown_in_postgresqls_form() {
        for (text, expected) in [
            ("create index i on t(a)", "CREATE INDEX i ON public.t USING btree (a)"),
            (
                "CREATE UNIQUE INDEX if not exists \"I x\" on \"t\" ( a  desc, \
                 lower(\"b\") ASC /* x */) where a > 1",
                "CREATE UNIQUE INDEX \"I x\" ON public.t USING btree (a DESC, lower(b)) \
                 WHERE (a > 1)",
            ),
            (
                "create index i on t (a) where (b is not null)",
                "CREATE INDEX i ON public.t USING btree (a) WHERE (b is not null)",
            ),
        ] {
            let quote = |name: &str| match name.contains(' ') {
                true => format!("\"{name}\""),
                false => name.to_owned(),
            };
            assert_eq!(index(text, quote).as_deref(), Some(expected), "{text}");
        }
    }
}
