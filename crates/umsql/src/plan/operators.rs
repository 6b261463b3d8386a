//! Rewrites the operators of dates, times, points in time and intervals, which SQLite would apply
//! to the numbers with which their texts begin.
//!
//! ```text
//!   d + 1                  ──▶  date_pli(d, 1)
//!   d + d                  ──▶  42883
//!   took < '2 hours'       ──▶  took COLLATE ums_interval < '02:00:00'
//!   d = '5 Jan 2026'       ──▶  d = '2026-01-05'
//!   sum(took)              ──▶  interval_sum(took)
//! ```
//!
//! The statement has been translated, so casts are calls. A pass over its tokens (`walk`) knows the
//! types of the tables' columns and of what has a name in a select list. The names of derived
//! tables come after their use, so the pass is repeated with them.
//!
//! Statements that have nothing to do with times are left alone after one look at their tables.
//! What becomes a part of the schema stays as it is, except a view.
//!
//! `operator_rules` says which operators there are, `applied` changes the text.

use std::collections::HashMap;

use rusqlite::Connection;

use super::expression::fixed;
use super::names::{Names, TypedNames};
use super::operator_rules::UNSURE;
use super::walk::{KnownNames, Walk};
use crate::dialect::Sql;
use crate::dialect::tokens::{Token, TokenKind, is_table_of_query, tokens};
use crate::error::{Result, SqlError};
use crate::wire::canonical::is_temporal;
use crate::wire::types;

/// How often the pass is made, so that names of queries within queries are known.
const PASSES: usize = 3;
/// The most aliases of one table.
const ALIASES_MAX: usize = 16;
/// The most views of a statement whose columns are looked up.
const VIEWS_MAX: usize = 16;

/// Rewrites the operators of times in `sql`, whose parameters have these types.
///
/// # Errors
/// 42883 for an operator that PostgreSQL does not have, 22007 or 22008 for a literal that is no
/// value of the type beside it, 0A000 if a name may mean columns of several types.
pub(crate) fn rewrite_operators(sql: &mut Sql, parameters: &[u32], db: &Connection) -> Result<()> {
    let [text] = &sql.texts[..] else { return Ok(()) };
    let tokens = tokens(text)?;
    if !is_rewritten(&tokens) {
        return Ok(());
    }
    let names = Names::new(db, &tokens);
    let mut tables = names.tables();
    if !sql.catalog {
        let views = views(&tokens, &tables);
        tables.extend(views.into_iter().map(|view| (view, names.typed_names(view))));
    }
    if !has_operators(&tokens, &tables, parameters) {
        return Ok(());
    }
    let columns = meanings(&tokens, &tables);
    let mut names = HashMap::new();
    for pass in 1.. {
        let known = KnownNames { columns: &columns, parameters, names: &names };
        let mut walk = Walk::new(&tokens, known);
        walk.statement()?;
        let Walk { found, error, edits, .. } = walk;
        if pass < PASSES && found != names {
            names = found;
            continue;
        }
        if let Some((token, error)) = error {
            return Err(SqlError { offset: sql.place(tokens[token].at), ..error });
        }
        if let Some(first) = edits.first() {
            let same = sql.verbatim.start + tokens[first].at;
            sql.verbatim.end = sql.verbatim.end.min(same);
            sql.texts[0] = edits.apply(text, &tokens);
        }
        break;
    }
    Ok(())
}

/// Returns whether an operator or a function of the statement may have to be another one, because
/// of the columns of its tables.
fn has_operators(tokens: &[Token<'_>], tables: &[(&str, TypedNames)], parameters: &[u32]) -> bool {
    let all = || tables.iter().flat_map(|(_, columns)| columns).filter_map(|(_, oid)| *oid);
    let has_times = all().chain(parameters.iter().copied()).any(is_temporal);
    let has_numerics = || {
        let is_numeric = |token: &Token<'_>| {
            (token.kind == TokenKind::Number && token.text.contains('.')) || token.is("numeric")
        };
        let computes = |token: &Token<'_>| {
            ["+", "-", "*", "/"].iter().any(|sign| token.sign(sign)) || token.is("pg_div")
        };
        tokens.iter().any(computes)
            && (all().any(|oid| oid == types::NUMERIC) || tokens.iter().any(is_numeric))
    };
    let has_doubles = || {
        const CALLS: [&str; 5] = ["round", "int2", "int4", "int8", "pg_text"];
        let computes = |token: &Token<'_>| {
            ["+", "-", "*"].iter().any(|sign| token.sign(sign))
                || CALLS.iter().any(|call| token.is(call))
        };
        let is_double = |oid| matches!(oid, types::FLOAT4 | types::FLOAT8);
        tokens.iter().any(computes)
            && (all().any(is_double)
                || tokens.iter().any(|token| fixed(token.text).is_some_and(is_double)))
    };
    let has_calls = || tokens.iter().any(|token| call_of_time(token.text).is_some());
    has_times || has_calls() || has_numerics() || has_doubles()
}

/// Returns whether the statement is one whose operators are rewritten.
pub(super) fn is_rewritten(tokens: &[Token<'_>]) -> bool {
    const VERBS: [&str; 8] =
        ["select", "insert", "update", "delete", "with", "values", "replace", "("];
    let is_view = || tokens.iter().take(4).any(|token| token.is("view"));
    tokens.first().is_some_and(|token| match token.is("create") {
        true => is_view() || is_table_of_query(tokens),
        false => VERBS.iter().any(|word| token.is(word) || token.sign(word)),
    })
}

/// Returns the names after FROM and JOIN that are no tables: they may be views.
fn views<'t>(tokens: &[Token<'t>], tables: &[(&str, TypedNames)]) -> Vec<&'t str> {
    let mut found = Vec::new();
    for pair in tokens.windows(2) {
        let name = pair[1].text;
        if (pair[0].is("from") || pair[0].is("join"))
            && pair[1].kind == TokenKind::Word
            && found.len() < VIEWS_MAX
            && !found.contains(&name)
            && !tables.iter().any(|(table, _)| table.eq_ignore_ascii_case(name))
        {
            found.push(name);
        }
    }
    found
}

/// Returns the types of the columns by their names, and by those with the name of a table, or its
/// alias, and a dot. A name that tables declare differently has none, or [`UNSURE`] if one of its
/// types is a time.
fn meanings(tokens: &[Token<'_>], tables: &[(&str, TypedNames)]) -> HashMap<String, Option<u32>> {
    let mut found: HashMap<String, Option<u32>> = HashMap::new();
    let mut put = |name: String, oid: Option<u32>| {
        let known = found.entry(name).or_insert(oid);
        if *known != oid {
            let is_time = [*known, oid].into_iter().flatten().any(is_temporal);
            *known = (is_time || *known == Some(UNSURE)).then_some(UNSURE);
        }
    };
    let mut aliases: HashMap<String, Vec<String>> = HashMap::new();
    for (at, token) in tokens.iter().enumerate().filter(|(_, token)| token.is_name()) {
        let is_as = tokens.get(at + 1).is_some_and(|token| token.is("as"));
        let alias = tokens.get(at + 1 + usize::from(is_as)).filter(|token| token.is_name());
        let name = token.name();
        if let Some(alias) = alias
            && tables.iter().any(|(table, _)| *table == name)
        {
            let known = aliases.entry(name).or_default();
            let alias = alias.name().to_ascii_lowercase();
            if known.len() < ALIASES_MAX && !known.contains(&alias) {
                known.push(alias);
            }
        }
    }
    for (table, columns) in tables {
        let mut prefixes = aliases.remove(*table).unwrap_or_default();
        prefixes.push(table.to_ascii_lowercase());
        for (name, oid) in columns {
            put(name.clone(), *oid);
            prefixes.iter().for_each(|prefix| put(format!("{prefix}.{name}"), *oid));
        }
    }
    found
}

/// Returns the type of a call that returns a time, whatever its arguments are.
fn call_of_time(function: &str) -> Option<u32> {
    fixed(&function.to_ascii_lowercase()).filter(|oid| is_temporal(*oid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::statement::recognise;
    use crate::dialect::{Edits, Statement};

    const TABLES: &str = "create table day(id int, d date, n smallint, b bigint);
        create table log(id int, at timestamp, zoned timestamptz, note text);
        create table task(id int, took interval);
        create table shift(begins time, d timestamp);
        create view seen as select zoned as z, at, id + 1 as n from log;";

    fn of(statement: &str, parameters: &[u32]) -> std::result::Result<String, &'static str> {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch(TABLES).unwrap();
        let recognised =
            recognise(&tokens(statement).unwrap(), statement, &Edits::default()).unwrap();
        let Statement::Sql(mut sql) = recognised else { panic!("{statement}") };
        // Where NULL comes in an order is not of interest here.
        sql.texts[0] = sql.texts[0].replace(" NULLS LAST", "").replace(" NULLS FIRST", "");
        rewrite_operators(&mut sql, parameters, &db).map_err(|error| error.code)?;
        assert!(sql.texts[0].is_char_boundary(sql.verbatim.len().min(sql.texts[0].len())));
        let same = statement[sql.verbatim.clone()].to_owned();
        assert!(sql.texts[0].starts_with(&same), "{same}");
        Ok(sql.texts.remove(0))
    }

    fn assert_texts<const N: usize>(cases: [(&str, &str); N]) {
        for (from, to) in cases {
            assert_eq!(of(from, &[]).as_deref(), Ok(to), "{from}");
        }
    }

    #[test]
    fn operators_of_times_become_calls() {
        assert_texts([
            ("select d + 1 from day", "select date_pli(d , 1) from day"),
            ("select d+n-1 from day", "select date_mii(date_pli(d,n),1) from day"),
            ("select 1 + d from day", "select integer_pl_date(1 , d) from day"),
            ("select max(d) - min(d) x from day", "select date_mi(max(d) , min(d)) x from day"),
            (
                "select day.d - date '2024-01-01' from day where d + 1 > d or id = 1 + 2",
                "select date_mi(day.d , pg_date('2024-01-01')) from day \
                 where date_pli(d , 1) > d or id = 1 + 2",
            ),
            (
                "select at - lag(at) over (order by at) from log",
                "select timestamp_mi(at , lag(at) over (order by at)) from log",
            ),
            (
                "select (d + interval '1 day')::date + 1 from day",
                "select date_pli(pg_date((date_pl_interval(d , pg_interval('1 day')))) , 1) \
                 from day",
            ),
            (
                "select took * 2 + took / 4, -took from task",
                "select interval_pl(interval_mul(took , 2) , interval_div(took , 4)), \
                 interval_um(took) from task",
            ),
            (
                "update log set at = at + '1 day', id = id + 1 where id = 1 returning at - at",
                "update log set at = timestamp_pl_interval(at , '1 day'), id = id + 1 where id = 1 \
                 returning timestamp_mi(at , at)",
            ),
            (
                "insert into day (d) values (current_date + 1)",
                "insert into day (d) values (date_pli(pg_date(now()) , 1))",
            ),
        ]);
        let with = of("select $1 + $2", &[types::DATE, types::INT4]);
        assert_eq!(with.as_deref(), Ok("select date_pli($1 , $2)"));
    }

    #[test]
    fn names_and_calls_have_the_types_of_what_they_mean() {
        assert_texts([
            (
                "select case when id > 1 then d else d + 1 end - 1 from day",
                "select date_mii(case when id > 1 then d else date_pli(d , 1) end , 1) from day",
            ),
            (
                "select x + 1 from (select max(d) as x from day) as t",
                "select date_pli(x , 1) from (select max(d) as x from day) as t",
            ),
            (
                "with w as (select d + 1 as e from day) select (select max(e) from w) - 1",
                "with w as (select date_pli(d , 1) as e from day) \
                 select date_mii((select max(e) from w) , 1)",
            ),
            (
                "select d - 1 as d from day where d - 1 < '5 Jan 2026'",
                "select date_mii(d , 1) as d from day where date_mii(d , 1) < '2026-01-05'",
            ),
            (
                "select some(x) + interval '1 day', d - x from day, other",
                "select ums_plus(some(x) , pg_interval('1 day')), ums_minus(d , x) from day, other",
            ),
            ("select z - at from seen s", "select timestamptz_mi(z , at) from seen s"),
            (
                "create table t as select d + 1 as x from day",
                "create table t as select date_pli(d , 1) as x from day",
            ),
            (
                "create view v as select d + 1 from day",
                "create view v as select date_pli(d , 1) from day",
            ),
            (
                "select extract(day from took) from task",
                "select extract_interval('day', took) from task",
            ),
            (
                "select date_trunc('hour', begins) from shift",
                "select interval_trunc('hour', begins) from shift",
            ),
            (
                "select sum(took), avg(took) over () from task",
                "select interval_sum(took), interval_avg(took) over () from task",
            ),
            (
                "select zoned::date, zoned::text from log",
                "select pg_date(pg_timestamptz(zoned)), pg_text(pg_timestamptz(zoned)) \
                 from log",
            ),
        ]);
        let zone = of("select zoned at time zone 'UTC', at from log", &[]).unwrap();
        assert_eq!(zone.replace(' ', ""), "selectpg_timestamp(pg_timestamptz(zoned)),atfromlog");
    }

    #[test]
    fn the_columns_of_queries_have_types() {
        assert_texts([
            (
                "with recursive w(e) as (values (date '2026-01-01') union all select e + 1 from w) \
                 select e - 1 from w",
                "with recursive w(e) as (values (pg_date('2026-01-01')) union all \
                 select date_pli(e , 1) from w) select date_mii(e , 1) from w",
            ),
            (
                "with recursive days(day) as (select date '2026-01-30' union all \
                 select day + 1 from days where day < date '2026-02-02') select day from days",
                "with recursive days(day) as (select pg_date('2026-01-30') union all \
                 select date_pli(day , 1) from days where day < pg_date('2026-02-02')) \
                 select day from days",
            ),
            (
                "with recursive w as (select current_date as e union all select e + 1 from w) \
                 select 1 from w",
                "with recursive w as (select pg_date(now()) as e union all \
                 select date_pli(e , 1) from w) select 1 from w",
            ),
            (
                "select a - b from (values (2, date '2026-01-01')) as t(b, a)",
                "select date_mii(a , b) from (WITH ums_t(b, a) AS \
                 (values (2, pg_date('2026-01-01'))) SELECT * FROM ums_t) AS t",
            ),
        ]);
    }

    #[test]
    fn comparisons_of_times_are_those_of_their_values() {
        for (from, to) in [
            (
                "select 1 from day where d = '5 Jan 2026'",
                "select 1 from day where d = '2026-01-05'",
            ),
            (
                "select 1 from day where d in ('5 Jan 2026', '2026-01-06') and id in (1, 2)",
                "select 1 from day where d in ('2026-01-05', '2026-01-06') and id in (1, 2)",
            ),
            (
                "select 1 from log where zoned not between '1.2.26 12:00+02' and now() and id = 1",
                "select 1 from log where zoned not between '2026-01-02 10:00:00+00' and now() \
                 and id = 1",
            ),
            (
                "select a.d < b.d from day a, shift as b",
                "select pg_timestamp(a.d) < b.d from day a, shift as b",
            ),
            ("select at < zoned from log", "select pg_timestamptz(at) < zoned from log"),
            ("select at < now() from log", "select at < pg_timestamp(now()) from log"),
            ("select d = at from day, log", "select pg_timestamp(d) = at from day, log"),
            (
                "select 1 from shift where begins = '08:00'",
                "select 1 from shift where begins = '08:00:00'",
            ),
        ] {
            assert_eq!(of(from, &[]).as_deref(), Ok(to), "{from}");
        }
    }

    #[test]
    fn intervals_are_compared_by_a_collation() {
        for (from, to) in [
            (
                "select took > '2 hours' or took is null from task order by took desc, id",
                "select took # > '02:00:00' or took is null from task \
                     order by took # desc, id",
            ),
            (
                "select took * 2 as double, max(took) from task group by took \
                 order by double, 2, 3",
                "select interval_mul(took , 2) as double, max(took #) from task \
                     group by took # \
                     order by double #, 2 #, 3",
            ),
            (
                "select distinct took from task where took in ('1 day') \
                 or took in (select took from task)",
                "select distinct took # from task where took # in ('1 day') \
                     or took # in (select took from task)",
            ),
            (
                "select took between '1 day' and interval '2 days' from task",
                "select took # between '1 day' and pg_interval('2 days') from task",
            ),
            (
                "select took is distinct from '24:00' from task",
                "select took # is distinct from '24:00:00' from task",
            ),
            (
                "update task set took = '1 day' where id = 1",
                "update task set took = '1 day' where id = 1",
            ),
        ] {
            let to = to.replace('#', "COLLATE ums_interval");
            assert_eq!(of(from, &[]), Ok(to), "{from}");
        }
    }

    #[test]
    fn what_postgresql_refuses_is_refused() {
        for (statement, code) in [
            ("select d + d from day", "42883"),
            ("select d + b from day", "42883"),
            ("select d * 2 from day", "42883"),
            ("select at + 1 from log", "42883"),
            ("select d + note from day, log", "42883"),
            ("select d + 1 from day, shift", "0A000"),
            ("select s.d + 1 from day, shift s", "42883"),
            ("select at + note from log", "42883"),
            ("select -at from log", "42883"),
            ("select at = 5 from log", "42883"),
            ("select d from day where d > true", "42883"),
            ("select sum(d) from day", "42883"),
            ("select d + '1' from day", "42725"),
            ("select at - 'x' from log", "22007"),
            ("select 1 from day where d = '29.2.2024'", "22008"),
            ("select took * 'x' from task", "22P02"),
            ("select least(took, '1 day') from task", "0A000"),
            ("select greatest(d, current_date) * 2 from day", "42883"),
            ("select at at time zone 'Europe/Paris' from log", "0A000"),
            ("select at at time zone note from log", "0A000"),
            ("select x * 2 from (select d as x from day union select 1 as x) as t", "0A000"),
        ] {
            assert_eq!(of(statement, &[]), Err(code), "{statement}");
        }
    }

    #[test]
    fn other_statements_keep_their_text() {
        for statement in [
            "select id + 1, note || 'x' from log where id in (1, 2) order by 1",
            "select count(*), min(d) from day group by id having min(d) > max(d)",
            "create table t(a date default '2026-01-01', check (a + 1 > 2))",
            "select id, d from day where d is not null and not id = 5 limit 1 offset 2",
            "insert into day (d) values ('5 Jan 2026')",
            "select d from day join log on day.id = log.id and note like 'x%' window w as ()",
        ] {
            assert_eq!(of(statement, &[]).as_deref(), Ok(statement));
        }
    }

    #[test]
    fn a_long_or_deep_statement_is_no_more_work() {
        let long =
            format!("select 1 from day where d = '2026-01-01'{}", " and d + 1 > d".repeat(20_000));
        assert_eq!(of(&long, &[]).unwrap().matches("date_pli(").count(), 20_000);
        let minus = format!("select {}d from day", "- ".repeat(100_000));
        assert_eq!(of(&minus, &[]), Err("42883"));
        let deep = format!("select {}d{} from day", "(".repeat(5000), ")".repeat(5000));
        assert_eq!(of(&deep, &[]), Err("54001"));
        let names = format!("select d {} from day", ", d + 1 as x".repeat(20_000));
        assert_eq!(of(&names, &[]).unwrap().matches("date_pli(").count(), 20_000);
    }

    proptest::proptest! {
        #[test]
        fn any_tokens_are_read(words in proptest::collection::vec(0..WORDS.len(), 1..40)) {
            let text: Vec<&str> = words.iter().map(|word| WORDS[*word]).collect();
            let text = format!("select {}", text.join(" "));
            let db = Connection::open_in_memory().unwrap();
            db.execute_batch(TABLES).unwrap();
            let recognised = recognise(&tokens(&text).unwrap(), &text, &Edits::default());
            if let Ok(Statement::Sql(mut sql)) = recognised {
                let _ = rewrite_operators(&mut sql, &[], &db);
            }
        }
    }

    const WORDS: [&str; 48] = [
        "d",
        "at",
        "took",
        "begins",
        "x",
        "day",
        "log",
        "from",
        "where",
        "and",
        "or",
        "not",
        "in",
        "between",
        "is",
        "null",
        "case",
        "when",
        "then",
        "else",
        "end",
        "(",
        ")",
        ",",
        "+",
        "-",
        "*",
        "=",
        "<",
        "'1 day'",
        "1",
        "as",
        "order",
        "by",
        "over",
        "select",
        "distinct",
        "max(",
        "now()",
        "with",
        "set",
        "collate",
        "cast(",
        ".",
        "nulls",
        "isnull",
        "pg_date(",
        "date '2026-01-01'",
    ];
}
