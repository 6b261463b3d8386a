//! Statements before and after the pass.

use super::super::tokens::tokens;
use super::*;

fn one(source: &str) -> String {
    rewrite(source, &tokens(source).unwrap(), &Edits::default())
}

#[test]
fn casts_take_the_whole_operand_before_them() {
    let cases = [
        ("select $1::int + 1", "select int4($1) + 1"),
        ("select nextval('s'::regclass), 1", "select nextval('s'), 1"),
        ("select 1, \"setval\"( $1::pg_catalog.regclass, 5)", "select 1, `setval`( $1, 5)"),
        ("select currval(f(a, 'b')::regclass)", "select currval(f(a, 'b'))"),
        ("select nextval(('s' || 1)::regclass)", "select nextval(('s' || 1))"),
        ("select a.b::text", "select pg_text(a.b)"),
        ("select f(x, (1))::int8", "select int8(f(x, (1)))"),
        ("select (a + b)::double precision", "select float8((a + b))"),
        ("select x::int::text", "select pg_text(int4(x))"),
        ("select 1 where a in (1)::int", "select 1 where a in int4((1))"),
        ("select '1'::pg_catalog.int4", "select int4('1')"),
        ("select 't'::bool", "select pg_bool('t')"),
        ("select $1::varchar(20)[] , 2", "select pg_text($1) , 2"),
        ("select cast(a as timestamp with time zone)", "select pg_timestamptz(a)"),
        ("select cast (f(a) as numeric(10, 2)) + 1", "select numeric(f(a), 10, 2) + 1"),
        ("select cast(cast('1' as int) as text)", "select pg_text(int4('1'))"),
        ("select '{1,2}'::int[][]", "select pg_text('{1,2}')"),
        ("select x::numeric(1,2,3,4,5)", "select x::numeric(1,2,3,4,5)"),
        ("select true::text", "select 'true'"),
        ("select x::varchar(3), cast(false as char)", "select varchar(x, 3), bpchar(false, 1)"),
        ("select false::varchar, y::varchar", "select CAST('false' AS text), CAST(y AS text)"),
        ("select 1.50::text, cast(1.50 as text)", "select pg_text('1.50'), pg_text('1.50')"),
        ("select a || 1.50, 1.50", "select a || '1.50', 1.50"),
        ("select date '2020-02-29', bool 't'", "select pg_date('2020-02-29'), pg_bool('t')"),
        ("select int '5', text 'a', a::uuid", "select int4('5'), 'a', pg_uuid(a)"),
        (
            "create view v as select a::int, b::bool",
            "create view v as select CAST(a AS int), pg_bool(b)",
        ),
        (
            "create table t(a int check (cast(a as int) > 0))",
            "create table t(a int check (cast(a AS int) > 0))",
        ),
        (
            "select case when a then 1 else case b when 2 then 3 end end::int, c",
            "select int4(case when a then 1 else case b when 2 then 3 end end), c",
        ),
        ("select ':: x'", "select ':: x'"),
    ];
    for (from, to) in cases {
        assert_eq!(one(from), to);
    }
}

#[test]
fn times_are_spelled_as_calls() {
    let cases = [
        (
            "select time '10:30'::text, interval '1 day' x, timestamp(0) with time zone 'now'",
            "select pg_text(pg_time('10:30')), pg_interval('1 day') x, \
             pg_timestamptz('now', 0)",
        ),
        (
            "select interval '1' day, interval '1 day 02:03' hour, x::time(0), x::interval",
            "select pg_interval('1 day'), interval_trunc('hour', pg_interval('1 day 02:03')), \
             pg_time(x, 0), pg_interval(x)",
        ),
        (
            "select current_timestamp, current_date, localtime, current_timestamp(3)",
            "select now(), pg_date(now()), pg_time(now()), pg_timestamptz(now(), 3)",
        ),
        (
            "create view v as select interval '1 day', current_date, date '2026-01-01'",
            "create view v as select pg_interval('1 day'), current_date, pg_date('2026-01-01')",
        ),
        (
            "create table t as select date '2026-01-01', x::timestamp, current_date, y::int",
            "create table t as select pg_date('2026-01-01'), pg_timestamp(x), pg_date(now()), \
             CAST(y AS int)",
        ),
        (
            "select make_interval(1, days => 10 + a)",
            "select make_interval(1, 0, 0, 10 + a, 0, 0, 0)",
        ),
    ];
    for (from, to) in cases {
        assert_eq!(one(from), to);
    }
}

#[test]
fn catalogue_spellings_become_sqlite_ones() {
    let from = "select 1 from pg_catalog.pg_class c \
                where c.relname OPERATOR(pg_catalog.~) '^(t)$' \
                COLLATE pg_catalog.default and pg_catalog.f(c.oid)";
    let to = "select 1 from pg_class c where c.relname  REGEXP  '^(t)$' and f(c.oid)";
    assert_eq!(one(from), to);
    assert_eq!(one("select current_user, E'a\\n'"), "select current_user(), 'a\n'");
    assert_eq!(one("select ~1, a ~ 'x'"), "select ~1, a  REGEXP  'x'");
    assert_eq!(
        one("select extract(year from (a))::int, extract(b)"),
        "select int4(extract('year', (a))), extract(b)"
    );
}

#[test]
fn tokens_that_were_marked_become_what_they_mean() {
    let marked = |source: &str, at: usize, kind| {
        let mut list = tokens(source).unwrap();
        list[at].kind = kind;
        rewrite(source, &list, &Edits::default())
    };
    let cases = [
        ("select '+5', 1", 1, TokenKind::Digits, "select 5, 1"),
        ("select 1-'-5'", 3, TokenKind::Digits, "select 1-(-5)"),
        (
            "select f(a)::text || 'x'",
            5,
            TokenKind::TruthCast,
            "select (CASE pg_bool(f(a)) WHEN 1 THEN 'true' WHEN 0 THEN 'false' END) || 'x'",
        ),
        (
            "select cast(a = b as text)",
            6,
            TokenKind::TruthCast,
            "select (CASE pg_bool(a = b) WHEN 1 THEN 'true' WHEN 0 THEN 'false' END)",
        ),
        (
            "select cast(a as varchar(2)), b",
            4,
            TokenKind::TruthCast,
            "select varchar((CASE pg_bool(a) WHEN 1 THEN 'true' WHEN 0 THEN 'false' END), 2), b",
        ),
        (
            "select a::char",
            2,
            TokenKind::TruthCast,
            "select bpchar((CASE pg_bool(a) WHEN 1 THEN 'true' WHEN 0 THEN 'false' END), 1)",
        ),
    ];
    for (source, at, kind, expected) in cases {
        assert_eq!(marked(source, at, kind), expected);
    }
}

#[test]
fn a_name_in_double_quotes_is_never_a_text() {
    let cases = [
        ("select \"a\".\"b`c\" from t", "select `a`.`b``c` from t"),
        ("delete from \"a\"\"b\"", "delete from `a\"b`"),
        ("create view v as select \"a\"", "create view v as select \"a\""),
    ];
    for (from, to) in cases {
        assert_eq!(one(from), to);
    }
}

#[test]
fn a_default_in_quotes_of_a_boolean_column_is_a_truth_value() {
    let cases = [
        ("create table t(a boolean default 't')", "create table t(a boolean DEFAULT TRUE)"),
        (
            "create table t(a bool not null default 'no', b text default 't')",
            "create table t(a bool not null DEFAULT FALSE, b text default 't')",
        ),
    ];
    for (from, to) in cases {
        assert_eq!(one(from), to);
    }
}

#[test]
fn work_stays_bounded_when_forms_are_nested() {
    let nested = format!("select {}1{}", "array(select ".repeat(3000), ")".repeat(3000));
    assert!(one(&nested).len() < nested.len() * 20);
    let casts = format!("select 1{}", "::regclass".repeat(3000));
    assert!(one(&casts).len() < 1 << 20);
}
