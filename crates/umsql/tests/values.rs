//! What a table stores of the values of clients: each is of its column's type, or is refused.
#![allow(missing_docs)]

use std::io::Write;

use postgres::Client;
use postgres::error::SqlState;

mod common;
use common::{TestServer, one, rows, run};

fn code<T>(result: Result<T, postgres::Error>) -> SqlState {
    match result {
        Ok(_) => panic!("the statement succeeded"),
        Err(error) => error.code().unwrap_or_else(|| panic!("no SQLSTATE: {error}")).clone(),
    }
}

const TABLE: &str = "create table t(id int primary key, s smallint, p numeric(5,2), v varchar(3),
    c char(4), d date, z timestamptz, k boolean, r real, j json)";

fn shown(client: &mut Client, sql: &str) -> Vec<String> {
    let text = |value: Option<String>| value.unwrap_or_else(|| "NULL".into());
    rows(client, sql)
        .into_iter()
        .map(|row| row.into_iter().map(text).collect())
        .map(|row: Vec<String>| row.join("|"))
        .collect()
}

#[test]
fn parameters_and_lines_are_converted_as_literals_are() {
    let server = TestServer::start();
    let mut client = server.client();
    run(&mut client, TABLE);
    run(
        &mut client,
        "insert into t values (1, '7', 1.005, 'ab    ', 'x', '2026-01-05 10:00',
             '2026-01-05 10:00+02', 't', 0.1, '{}')",
    );
    let insert = "insert into t (id, s, v, c, k) values ($1, $2, $3, $4, $5)";
    client.execute(insert, &[&2i32, &7i16, &"ab    ", &"x   ", &true]).unwrap();
    let mut copy = client.copy_in("copy t from stdin").unwrap();
    let line = "3\t7\t1.005\tab    \tx \t2026-01-05 10:00\t2026-01-05 10:00+02\tyes\t0.1\t{}\n";
    copy.write_all(line.as_bytes()).unwrap();
    assert_eq!(copy.finish().unwrap(), 1);
    run(&mut client, "insert into t select 4, s, p, v, c, d, z, k, r, j from t where id = 1");
    run(&mut client, "update t set p = p * 1.5, c = c || ' ' where id = 4");
    let stored = "7|1.01|ab |x   |2026-01-05|2026-01-05 08:00:00+00|t|0.1|{}";
    let expected = [
        format!("1|{stored}"),
        "2|7|NULL|ab |x   |NULL|NULL|t|NULL|NULL".into(),
        format!("3|{stored}"),
        format!("4|{}", stored.replace("1.01", "1.52")),
    ];
    assert_eq!(shown(&mut client, "select * from t order by id"), expected);
}

#[test]
fn a_time_is_found_by_the_value_with_which_it_was_stored() {
    let server = TestServer::start();
    let mut client = server.client();
    run(&mut client, "create table t(n int, d date, m timestamp, z timestamptz)");
    run(&mut client, "prepare put (timestamptz) as insert into t values (2, $1, $1, $1)");
    run(
        &mut client,
        "insert into t values (1, '2026-01-05', '2026-01-05', '2026-01-05T02:00:00+02:00');
         execute put ('2026-01-05')",
    );
    for condition in [
        "d = '2026-01-05'",
        "m = '2026-01-05'",
        "z = '2026-01-05'",
        "z = '2026-01-05 03:00+03'",
        "m between '2026-01-05' and '2026-01-05'",
        "z in ('2026-01-04', '2026-01-05')",
        "z >= '2026-01-05' and z < '2026-01-05 00:00:00.5'",
    ] {
        let found = shown(&mut client, &format!("select n from t where {condition} order by n"));
        assert_eq!(found, ["1", "2"], "{condition}");
    }
    run(&mut client, "prepare get (timestamptz) as select count(*) from t where z = $1");
    assert_eq!(one(&mut client, "execute get ('2026-01-05T01:00:00+01:00')"), "2");
}

#[test]
fn what_is_no_value_of_the_column_is_refused_and_not_stored() {
    let server = TestServer::start();
    let mut client = server.client();
    run(&mut client, TABLE);
    run(&mut client, "insert into t (id) values (0)");
    let out_of_range = SqlState::NUMERIC_VALUE_OUT_OF_RANGE;
    let refused = [
        ("s", "32768", out_of_range.clone()),
        ("s", "s + 30000 + 30000", out_of_range.clone()),
        ("p", "999.995", out_of_range),
        ("v", "'abcd'", SqlState::STRING_DATA_RIGHT_TRUNCATION),
        ("d", "'soon'", SqlState::INVALID_DATETIME_FORMAT),
        ("d", "'2026-02-30'", SqlState::DATETIME_FIELD_OVERFLOW),
        ("k", "1", SqlState::DATATYPE_MISMATCH),
        ("j", "'{a: 1}'", SqlState::INVALID_TEXT_REPRESENTATION),
    ];
    run(&mut client, "update t set s = 1");
    for (column, value, expected) in refused {
        let update = format!("update t set {column} = {value}");
        assert_eq!(code(client.batch_execute(&update)), expected, "{update}");
        assert_eq!(code(client.execute(&update, &[])), expected, "{update}");
        if column != "s" || value == "32768" {
            let insert = format!("insert into t (id, {column}) values (1, null), (2, {value})");
            assert_eq!(code(client.batch_execute(&insert)), expected, "{insert}");
            let mut copy = client.copy_in(&format!("copy t (id, {column}) from stdin")).unwrap();
            copy.write_all(format!("3\t{}\n", value.trim_matches('\'')).as_bytes()).unwrap();
            // In a COPY 1 is a text, which is a truth value.
            match column {
                "k" => assert_eq!(copy.finish().unwrap(), 1),
                _ => assert_eq!(code(copy.finish()), expected, "{column}"),
            }
        }
    }
    let not_null = SqlState::NOT_NULL_VIOLATION;
    assert_eq!(code(client.batch_execute("insert into t (id) values (null)")), not_null);
    assert_eq!(code(client.batch_execute("update t set id = null")), not_null);
    assert_eq!(code(client.execute("insert into t (s) values ($1)", &[&7i16])), not_null);
    assert_eq!(shown(&mut client, "select id, s from t order by id"), ["0|1", "3|NULL"]);
}

#[test]
fn a_prepared_statement_knows_the_columns_of_a_table_that_was_made_anew() {
    let server = TestServer::start();
    let mut client = server.client();
    run(&mut client, "create table t(v varchar(3))");
    let insert = client.prepare("insert into t values ($1)").unwrap();
    run(&mut client, "prepare put (text) as insert into t values ($1)");
    assert_eq!(code(client.execute(&insert, &[&"abcd"])), SqlState::STRING_DATA_RIGHT_TRUNCATION);
    run(&mut client, "drop table t; create table t(v varchar(5))");
    client.execute(&insert, &[&"abcd"]).unwrap();
    run(&mut client, "execute put ('abcde')");
    assert_eq!(shown(&mut client, "select v from t order by v"), ["abcd", "abcde"]);
    run(&mut client, "drop table t; deallocate put");
    assert_eq!(code(client.execute(&insert, &[&"a"])), SqlState::UNDEFINED_TABLE);
}

#[test]
fn a_table_of_another_session_s_transaction_is_known_when_that_has_committed() {
    let server = TestServer::start();
    let (mut maker, mut client) = (server.client(), server.client());
    run(&mut maker, "begin; create table t(n int)");
    run(&mut client, "select count(*) from sqlite_schema");
    // The connection that has created the table is kept, so the client has another one.
    run(&mut maker, "commit; begin isolation level repeatable read; select * from t");
    let refused = client.batch_execute("insert into t (n) values ('abc')");
    assert_eq!(code(refused), SqlState::INVALID_TEXT_REPRESENTATION);
    run(&mut maker, "commit; begin; drop table t; create table t(n text)");
    assert_eq!(one(&mut client, "select count(*) from t"), "0");
    run(&mut maker, "commit; begin isolation level repeatable read; select * from t");
    run(&mut client, "insert into t (n) values ('abc')");
}

#[test]
fn values_that_were_stored_earlier_stay_as_they_are() {
    let mut server = TestServer::start();
    let file = server.dir.join("db");
    run(&mut server.client(), "create table other(x int)");
    server.stop();
    let db = rusqlite::Connection::open(&file).unwrap();
    db.execute_batch(
        "create table t(id int primary key, v varchar(3));
         insert into t values (null, 'long'), (1, 'longer'), (2, 'x  ')",
    )
    .unwrap();
    drop(db);
    let server = TestServer::with(|settings| settings.database = file);
    let mut client = server.client();
    assert_eq!(shown(&mut client, "select v from t order by id"), ["longer", "x  ", "long"]);
    run(&mut client, "update t set id = 3 where id is null");
    assert_eq!(one(&mut client, "select v from t where id = 3"), "long");
    let not_null = SqlState::NOT_NULL_VIOLATION;
    assert_eq!(code(client.batch_execute("insert into t values (null, 'x')")), not_null);
}
