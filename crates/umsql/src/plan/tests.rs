//! Tests of the analysis: what it says of statements over a few tables.

use rusqlite::Connection;

use super::analysis::analyse;
use crate::dialect::tokens::tokens;
use crate::dialect::{Edits, ResultTypes, translate};
use crate::error::Result;
use crate::wire::types;

fn database() -> Connection {
    let db = Connection::open_in_memory().unwrap();
    db.execute_batch(
        "create table t(n int primary key, b bigint, p numeric(8,2), f float8, s text, v varchar(9),
           flag bool, d date);
         create table u(n int, word text, Odd text);
         create view w as select n, n + 1 as m, s from t;",
    )
    .unwrap();
    db
}

fn analysed(source: &str) -> Result<ResultTypes> {
    analyse(&mut tokens(source).unwrap(), &[], &database())
}

/// Returns the types of a statement's results, with the scales of numerics.
fn described(source: &str) -> String {
    let of = |column: &Option<crate::dialect::ResultType>| match column {
        None => "?".to_owned(),
        Some(typed) => match typed.scale {
            Some(scale) => format!("{} {scale}", types::name(typed.oid)),
            None => types::name(typed.oid).to_owned(),
        },
    };
    let columns = analysed(source).unwrap().columns;
    columns.iter().map(of).collect::<Vec<_>>().join(", ")
}

fn check(cases: &[(&str, &str)]) {
    for (source, expected) in cases {
        assert_eq!(described(source), *expected, "{source}");
    }
}

const LONG: &str = "a number of more than 15 digits is not supported";

fn refused(cases: &[(&str, &str, &str)]) {
    for (source, code, message) in cases {
        let error = analysed(source).expect_err(source);
        assert_eq!((error.code, &*error.message), (*code, *message), "{source}");
    }
}

fn allowed(cases: &[&str]) {
    for source in cases {
        if let Err(error) = analysed(source) {
            panic!("{source}: {error:?}");
        }
    }
}

fn translated(source: &str) -> String {
    let mut tokens = tokens(source).unwrap();
    analyse(&mut tokens, &[], &database()).unwrap();
    translate::sql(&tokens, source, &Edits::default()).unwrap().texts.remove(0)
}

#[test]
fn expressions_have_the_types_and_scales_that_postgresql_gives_them() {
    let cases = [
        ("1", "integer"),
        ("3000000000", "bigint"),
        ("-2147483648", "integer"),
        ("-2147483649", "bigint"),
        ("1.50", "numeric 2"),
        ("1e3", "numeric"),
        ("p", "numeric 2"),
        ("p * 1.5", "numeric 3"),
        ("p + 1.555", "numeric 3"),
        ("p - n", "numeric 2"),
        ("p / 2", "numeric"),
        ("-p", "numeric 2"),
        ("p + f", "double precision"),
        ("f::real + 1", "double precision"),
        ("n + b", "bigint"),
        ("sum(n)", "bigint"),
        ("sum(b)", "numeric 0"),
        ("sum(p)", "numeric 2"),
        ("avg(n)", "numeric 16"),
        ("avg(f)", "double precision"),
        ("round(p, 1)", "numeric 1"),
        ("round(f)", "double precision"),
        ("coalesce(p, 0.00)", "numeric 2"),
        ("coalesce(p, 0)", "numeric"),
        ("coalesce(s, 'x')", "text"),
        ("coalesce(null, 'x')", "text"),
        ("nullif(null, 1)", "integer"),
        ("nullif(1, 1.0)", "numeric"),
        ("nullif(p, 0)", "numeric 2"),
        ("nullif(v, 'x')", "text"),
        ("case when n = 1 then 1 else b end", "bigint"),
        ("case n when 1 then (case when true then 'x' end) else 'y' end", "text"),
        ("case when n = 1 then '5' else n end", "integer"),
        ("n > 1", "boolean"),
        ("s || 'x'", "text"),
        ("unknown(n)", "?"),
        ("lag(p) over (order by n, b)", "numeric 2"),
        ("sum(n) over w", "bigint"),
        ("max(p) filter (where n > 1)", "numeric 2"),
        ("min(v)", "text"),
    ];
    for (text, expected) in cases {
        assert_eq!(described(&format!("select {text} from t")), expected, "{text}");
    }
}

#[test]
fn casts_and_operators_have_the_types_that_postgresql_gives_them() {
    let cases = [
        ("n << 2", "integer"),
        ("sign(p)", "numeric 0"),
        ("n::numeric(10, 2)", "numeric 2"),
        ("n::numeric(10)", "numeric 0"),
        ("cast(n as numeric)", "numeric 0"),
        ("'1.50'::numeric * 2", "numeric 2"),
        ("d + 1", "date"),
        ("d - d", "integer"),
        ("d + interval '1 day' - interval '1:00'", "timestamp without time zone"),
        ("- interval '1' day * 2", "interval"),
        ("n ^ 2", "double precision"),
        ("make_interval(1, days => n)", "interval"),
        ("mod(b, n)", "bigint"),
        ("n::varchar(3)", "character varying"),
        ("numeric '5' + bigint '5'", "numeric 0"),
        ("d at time zone 'utc'", "?"),
        ("extract(epoch from d)", "numeric 0"),
        ("(1, 2)", "?"),
        ("- n ^ 2 is not null and s like 'x' escape '!'", "boolean"),
    ];
    for (text, expected) in cases {
        assert_eq!(described(&format!("select {text} from t")), expected, "{text}");
    }
}

#[test]
fn the_columns_of_what_is_in_from_have_types() {
    check(&[
        ("select x + 1 from (select 1 as x) as s", "integer"),
        ("select * from (values (1, 'a'), (2, null)) as v (id, letter)", "integer, text"),
        ("select x from (values (1), (2.5)) v (x)", "numeric"),
        ("select avg(n) from generate_series(1, 4) as n", "numeric 16"),
        ("select g from generate_series(1, 3000000000) as s (g)", "bigint"),
        (
            "select * from t natural join u",
            "integer, bigint, numeric 2, double precision, text, \
          character varying, boolean, date, text, text",
        ),
        ("select u.* from t join u using (n)", "integer, text, text"),
        ("select * from w", "integer, integer, text"),
        ("select c from u as x (a, b, c)", "text"),
        ("with p (a) as (select 1), q as (select a + 1 as b from p) select b from q", "integer"),
        (
            "with recursive r (i) as (select 1 union all select i + 1 from r where i < 5) \
             select max(i), count(*) from r",
            "integer, bigint",
        ),
        ("select (with x as (select 7 as a) select a from x)", "integer"),
        (
            "select (select max(u.n) from u where u.n = t.n), exists (select 1) from t",
            "integer, boolean",
        ),
        ("select relname, relkind, oid from pg_class", "name, \"char\", oid"),
        ("select table_name from information_schema.tables", "name"),
    ]);
}

#[test]
fn a_set_operation_has_types_that_fit_all_of_its_queries() {
    check(&[
        ("select 1 union select 2.5", "numeric"),
        ("select n from t union select b from t", "bigint"),
        ("select null union select 1", "integer"),
        ("select n from t union all (select null) order by 1", "integer"),
        ("values (1, 'a'), (2, 'b')", "integer, text"),
    ]);
    assert!(analysed("select 1 union select 2").unwrap().of_set);
}

#[test]
fn results_of_changes_have_types() {
    check(&[
        ("insert into t (n, p) values (1, 2) returning p * 2, n", "numeric 2, integer"),
        (
            "insert into u select n + 1 from t on conflict do nothing returning *",
            "integer, text, text",
        ),
        ("update t as x set n = 1 from u where u.n = x.n returning x.n + 1, word", "integer, text"),
        ("delete from t where n = 1 returning t.p", "numeric 2"),
    ]);
}

#[test]
fn operators_and_functions_between_other_types_do_not_exist() {
    refused(&[
        ("select s = n from t", "42883", "operator does not exist: text = integer"),
        ("select 1 = true", "42883", "operator does not exist: integer = boolean"),
        ("select n in (1, s) from t", "42883", "operator does not exist: integer = text"),
        ("select n between 1 and s from t", "42883", "operator does not exist: integer <= text"),
        ("delete from t where s = 5", "42883", "operator does not exist: text = integer"),
        (
            "select * from t join u on t.n = word",
            "42883",
            "operator does not exist: integer = text",
        ),
        ("select s + 1 from t", "42883", "operator does not exist: text + integer"),
        ("select - s from t", "42883", "operator does not exist: - text"),
        ("select 1 || 2", "42883", "operator does not exist: integer || integer"),
        ("select s like 5 from t", "42883", "operator does not exist: text ~~ integer"),
        ("select case '1' when 1 then 2 end", "42883", "operator does not exist: text = integer"),
        (
            "select n from t where n = any (select word from u)",
            "42883",
            "operator does not exist: integer = text",
        ),
        ("select 'a' + 'b'", "42725", "operator is not unique: unknown + unknown"),
        ("select upper(5)", "42883", "function upper(integer) does not exist"),
        ("select sum(s) from t", "42883", "function sum(text) does not exist"),
        ("select max(flag) from t", "42883", "function max(boolean) does not exist"),
        (
            "select count()",
            "42809",
            "count(*) must be used to call a parameterless aggregate function",
        ),
        ("select 1::notype", "42704", "type \"notype\" does not exist"),
    ]);
    allowed(&[
        "select n = p, n = f, s = v, d = now(), flag = (n > 1) from t",
        "select n = $1, $1 || $2, length(s), length($1), substring(s, 'a.') from t",
        "select max(n, 2), 1::interval, x'00' = s, json_extract(s, '$') = 1 from t",
        "select n || ' x', not flag, s similar to 'a' from t",
    ]);
}

#[test]
fn a_literal_in_quotes_is_a_value_of_the_type_beside_it() {
    refused(&[
        ("select 'a' + 1", "22P02", "invalid input syntax for type integer: \"a\""),
        ("select 'abc' = 5", "22P02", "invalid input syntax for type integer: \"abc\""),
        (
            "select n from t where n = '1.5'",
            "22P02",
            "invalid input syntax for type integer: \"1.5\"",
        ),
        (
            "select n from t where n in (1, '99999999999')",
            "22003",
            "value \"99999999999\" is out of range for type integer",
        ),
        (
            "select n from t where p > 'much'",
            "22P02",
            "invalid input syntax for type numeric: \"much\"",
        ),
        (
            "with recursive r (i) as (select 1 union all select i + 1 from r where i < 'x') \
             select i from r",
            "22P02",
            "invalid input syntax for type integer: \"x\"",
        ),
        ("select coalesce(1, 'a')", "22P02", "invalid input syntax for type integer: \"a\""),
        ("select substr('abc', 'x')", "22P02", "invalid input syntax for type integer: \"x\""),
        ("select abs('x')", "22P02", "invalid input syntax for type double precision: \"x\""),
        (
            "select case when 'a' then 1 end",
            "22P02",
            "invalid input syntax for type boolean: \"a\"",
        ),
    ]);
    let cases = [
        ("select case 1 when '1' then 2 end", "select case 1 when 1 then 2 end"),
        ("select 5 - ' -7 '", "select 5 - (-7)"),
        ("select 1.5 + '+1.50'", "select 1.5 + 1.50"),
        ("select n from t where 't' and n = '007'", "select n from t where TRUE and n = 007"),
        ("select 1.5 = 'NaN'", "select 1.5 = 'NaN'"),
        (
            "select flag::text, cast(1 = 1 as varchar) from t",
            "select (CASE pg_bool(flag) WHEN 1 THEN 'true' WHEN 0 THEN 'false' END), \
             (CASE pg_bool(1 = 1) WHEN 1 THEN 'true' WHEN 0 THEN 'false' END) from t",
        ),
        ("select s from t where s = '5'", "select s from t where s = '5'"),
    ];
    for (source, expected) in cases {
        assert_eq!(translated(source), expected, "{source}");
    }
}

#[test]
fn a_query_that_makes_a_table_is_checked_and_stays_as_it_is() {
    refused(&[
        (
            "create table x as select s = n from t",
            "42883",
            "operator does not exist: text = integer",
        ),
        (
            "create temp table x as select n from t where n",
            "42804",
            "argument of WHERE must be type boolean, not type integer",
        ),
    ]);
    for same in [
        "create table x as select (select n from t), n = '5' from t",
        "create view x as select (select n from t), n = '5', s = n from t",
        "create table x(n int default 5, m int as (n + 1))",
    ] {
        assert_eq!(translated(same), same);
    }
}

#[test]
fn conditions_are_truth_values_and_branches_match() {
    refused(&[
        (
            "select n from t where n",
            "42804",
            "argument of WHERE must be type boolean, not type integer",
        ),
        (
            "select n from t where flag and s",
            "42804",
            "argument of AND must be type boolean, not type text",
        ),
        ("select not n from t", "42804", "argument of NOT must be type boolean, not type integer"),
        (
            "select case when 1 then 'x' end",
            "42804",
            "argument of CASE/WHEN must be type boolean, not type integer",
        ),
        (
            "select * from t join u on t.n",
            "42804",
            "argument of JOIN/ON must be type boolean, not type integer",
        ),
        (
            "select case when true then 1 else 'a'::text end",
            "42804",
            "CASE types integer and text cannot be matched",
        ),
        (
            "select coalesce(n, now()) from t",
            "42804",
            "COALESCE types integer and timestamp with time zone cannot be matched",
        ),
        (
            "select n from t union select s from t",
            "42804",
            "UNION types integer and text cannot be matched",
        ),
    ]);
}

#[test]
fn what_is_not_grouped_is_refused() {
    let free = "column \"t.s\" must appear in the GROUP BY clause or be used in an aggregate \
                function";
    refused(&[
        ("select s, count(*) from t", "42803", free),
        ("select b, s from t group by b", "42803", free),
        ("select b from t group by b having s = 'x'", "42803", free),
        ("select b, sum(n) from t group by 1 order by s", "42803", free),
        (
            "select sum(n) as x from t group by b having x > 1",
            "42703",
            "column \"x\" does not exist",
        ),
        ("select n as x from t where x > 1", "42703", "column \"x\" does not exist"),
    ]);
    allowed(&[
        "select n, s from t group by n",
        "select s as x, count(*) from t group by x having count(*) > 1 order by x, count(*)",
        "select s || 'x', count(*) from t group by 1",
        "select s || 'x', count(*) from t group by s || 'x'",
        "select t.s, max(u.n) from t join u on u.n = t.n group by t.s order by max(u.n)",
        "select s, sum(n) over (partition by s) from t",
        "select (select count(*) from u where u.word = t.s), s from t",
        "select count(*) filter (where s = 'x') from t",
        "select n as x from t order by x",
        "select n as x from t group by x, n having n > 1",
    ]);
}

#[test]
fn distinct_orders_by_results_and_limits_are_not_negative() {
    refused(&[
        (
            "select distinct s from t order by n",
            "42P10",
            "for SELECT DISTINCT, ORDER BY expressions must appear in select list",
        ),
        ("select n from t limit -1", "2201W", "LIMIT must not be negative"),
        ("select n from t limit 1 offset -1", "2201X", "OFFSET must not be negative"),
        ("select n from t join u", "42601", "syntax error at end of input"),
        ("select n from t cross join u on true", "42601", "syntax error at or near \"on\""),
        ("select \"N\" from t", "42703", "column \"N\" does not exist"),
    ]);
    refused(&[
        (
            "select 1 from t where 'a' || flag = 'at'",
            "0A000",
            "|| of a truth value is not supported",
        ),
        ("select 3.14159265358979323846", "0A000", LONG),
        ("select p from t where p = -12345678901234567890.5", "0A000", LONG),
        ("select coalesce(p, 12345678901234567890) from t", "0A000", LONG),
        ("select array(select flag from t)", "0A000", "an array of truth values is not supported"),
        ("select concat('a', 1 = 1)", "0A000", "concat of a truth value is not supported"),
        (
            "select * from (select s, n from t) as x join u using (n)",
            "0A000",
            "* is not supported here: USING would change the order of the columns",
        ),
        ("select 'a' 'b'", "42601", "syntax error at or near \"'b'\""),
    ]);
    allowed(&[
        "select distinct s, n as x from t order by t.s desc, x, 1",
        "select distinct * from t order by n",
        "select distinct upper(s) from t order by upper(s) nulls first",
        "select \"n\", \"odd\", \"ODD\" from t, u",
        "select coalesce(f, 3.14159265358979323846), f * -3.14159265358979323846 from t",
        "select sqrt(3.14159265358979323846), 3.14159265358979323846::float8 from t where f < \
         3.14159265358979323846",
        "select -9223372036854775808, 12345678901234567890::text",
    ]);
}

#[test]
fn a_query_that_stands_for_a_value_returns_one_row() {
    let one = "SELECT iif(count(*) > 1, ums_several_rows(), min(v8)) FROM (WITH ums_v(v8) AS (";
    let end = ") SELECT v8 FROM ums_v LIMIT 2)";
    assert_eq!(
        translated("select (select s from t), n from t"),
        format!("select ({one}select s from t{end}), n from t")
    );
    for same in [
        "select (select max(s) from t)",
        "select (select s from t limit 1)",
        "select (select 1), (values (1))",
        "select n in (select n from u), exists (select n from u) from t",
        "select * from (select n from t) as x",
    ] {
        assert_eq!(translated(same), same);
    }
}

#[test]
fn what_is_nested_deeply_or_long_is_not_analysed() {
    for depth in [60, 5000] {
        let nested = format!("select {}1 = true{}", "(".repeat(depth), ")".repeat(depth));
        assert_eq!(described(&nested), "");
        let queries = format!("select {}1{}", "(select ".repeat(depth), ")".repeat(depth));
        assert_eq!(described(&queries), "");
    }
    let long = format!("select 1{} = true", " + 1".repeat(60_000));
    assert_eq!(described(&long), "");
    let stars = format!("select {} from u", vec!["*"; 9000].join(", "));
    assert_eq!(described(&stars), "");
}
