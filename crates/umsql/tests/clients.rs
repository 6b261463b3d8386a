//! The server from the view of a client of the `postgres` crate: both protocols, types,
//! transactions, COPY, cancelling.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use postgres::error::SqlState;
use postgres::{Client, NoTls};

mod common;
use common::{TestServer, one, rows};

fn code<T>(result: Result<T, postgres::Error>) -> SqlState {
    match result {
        Ok(_) => panic!("the statement succeeded"),
        Err(error) => error.code().unwrap_or_else(|| panic!("no SQLSTATE: {error}")).clone(),
    }
}

#[test]
fn results_have_the_types_that_postgresql_gives_them() {
    let server = TestServer::start();
    let mut client = server.client();
    client
        .batch_execute(
            "create table t(i int primary key, s smallint, b bigint, f real, d double precision,
             x text, v varchar(9), y bytea, o bool);
             insert into t values (7, 8, 9000000000, 1.5, 2.5, 'text', 'vc', x'00ff', true)",
        )
        .unwrap();
    let row = client.query_one("select * from t where i = $1", &[&7i32]).unwrap();
    assert_eq!(
        (row.get::<_, i32>(0), row.get::<_, i16>(1), row.get::<_, i64>(2)),
        (7, 8, 9_000_000_000)
    );
    assert_eq!((row.get::<_, f32>(3), row.get::<_, f64>(4)), (1.5, 2.5));
    assert_eq!((row.get::<_, &str>(5), row.get::<_, &str>(6)), ("text", "vc"));
    assert_eq!((row.get::<_, &[u8]>(7), row.get::<_, bool>(8)), (&[0, 255][..], true));

    let sql = "select 1, 'a', count(*), max(b), sum(i), max(i) + 1, $1::int + 1, max(b) > 5,
               max(i)::text, max(length(x)), max(abs(d)) from t";
    let row = client.query_one(sql, &[&41i32]).unwrap();
    assert_eq!((row.get::<_, i32>(0), row.get::<_, &str>(1)), (1, "a"));
    assert_eq!(
        (row.get::<_, i64>(2), row.get::<_, i64>(3), row.get::<_, i64>(4)),
        (1, 9_000_000_000, 7)
    );
    assert_eq!((row.get::<_, i32>(5), row.get::<_, i32>(6), row.get::<_, bool>(7)), (8, 42, true));
    assert_eq!((row.get::<_, &str>(8), row.get::<_, i32>(9), row.get::<_, f64>(10)), ("7", 4, 2.5));
    let row =
        client.query_one("select case when true then 'no rule' end, nullif(1, 1)", &[]).unwrap();
    assert_eq!(row.get::<_, &str>(0), "no rule");
}

#[test]
fn parameters_get_the_types_of_the_columns_they_meet() {
    let server = TestServer::start();
    let mut client = server.client();
    client.batch_execute("create table t(id int primary key, name text, big bigint)").unwrap();
    let names = |sql: &str, client: &mut Client| -> Vec<String> {
        let statement = client.prepare(sql).unwrap();
        statement.params().iter().map(|kind| kind.name().to_owned()).collect()
    };
    let cases: [(&str, &[&str]); 8] = [
        ("insert into t values ($1, $2, $3)", &["int4", "text", "int8"]),
        ("insert into t (big, id) values ($1, $2), ($3, 5)", &["int8", "int4", "int8"]),
        ("select * from t where id = $1 and big between $2 and $3", &["int4", "int8", "int8"]),
        ("select * from t where id in ($2, $1) limit $3", &["int4", "int4", "int8"]),
        ("update t set name = $1, big = big + $2 where $3 < t.id", &["text", "int8", "int4"]),
        ("select $1::float8, cast($2 as bigint), $3", &["float8", "int8", "text"]),
        ("select pg_sleep($1)", &["float8"]),
        ("select '$1', \"name\" from t -- $2", &[]),
    ];
    for (sql, expected) in cases {
        assert_eq!(names(sql, &mut client), expected, "{sql}");
    }
    let inserted = client.execute("insert into t values ($1, $2, $3)", &[&1i32, &"x", &Some(5i64)]);
    assert_eq!(inserted.unwrap(), 1);
    let row =
        client.query_one("insert into t(id) values ($1) returning id, name", &[&2i32]).unwrap();
    assert_eq!((row.get::<_, i32>(0), row.get::<_, Option<&str>>(1)), (2, None));
    // SQLite numbers parameters in the order of their appearance; the client numbers them by their
    // names.
    let row = client.query_one("select $2::int, $1::int", &[&1i32, &2i32]).unwrap();
    assert_eq!((row.get::<_, i32>(0), row.get::<_, i32>(1)), (2, 1));
}

#[test]
fn a_literal_in_quotes_is_a_truth_value_beside_a_boolean_column() {
    let server = TestServer::start();
    let mut client = server.client();
    client
        .batch_execute(
            "create table q(n int, b boolean default 'yes', t text);
             insert into q values (1, 't', 't'), (2, 'true', 'true'), (3, true, 'on');
             insert into q(t, b) values ('f', 'off'); insert into q(n) values (5)",
        )
        .unwrap();
    client.execute("insert into q values (6, 'no', $1)", &[&"x"]).unwrap();
    assert_eq!(one(&mut client, "select count(*) filter (where b) from q"), "4");
    assert_eq!(one(&mut client, "select group_concat(b) from (select b from q group by b)"), "0,1");
    assert_eq!(one(&mut client, "select count(*) from q where b = 'false' and t <> 't'"), "2");
    assert_eq!(one(&mut client, "select count(*) from q where q.b in ('t', 'f')"), "6");
    let both = "select count(*) from q where (n > 1) and (b = 't')";
    assert_eq!(one(&mut client, both), "3");
    assert_eq!(one(&mut client, "select count(*) from q where t in ('t', 'f')"), "2");
    client.batch_execute("update q set b = 'f', t = 'on' where n = 1").unwrap();
    assert_eq!(one(&mut client, "select typeof(b) || t from q where n = 1"), "integeron");
    // Here `b` is a text, whatever the table says.
    for given in [
        "with x as (select t as b from q) select count(*) from x where b = 'on'",
        "with x(b) as (select t from q) select count(*) from x where b = 'on'",
        "select count(*) from (select t from q) as x(b) where b = 'on'",
    ] {
        assert_eq!(one(&mut client, given), "2", "{given}");
    }
    for wrong in ["insert into q values (7, 'maybe', 't')", "update q set b = 'x'"] {
        assert_eq!(code(client.batch_execute(wrong)), SqlState::INVALID_TEXT_REPRESENTATION);
        assert_eq!(code(client.query(wrong, &[])), SqlState::INVALID_TEXT_REPRESENTATION);
    }
}

#[test]
fn a_cast_returns_a_value_of_its_type_or_an_error() {
    let server = TestServer::start();
    let mut client = server.client();
    client.batch_execute("create table c(t text, r float8)").unwrap();
    client.batch_execute("insert into c values ('41', 1.5)").unwrap();
    let row = client.query_one("select t::int + 1, r::int, cast(t as bigint) from c", &[]).unwrap();
    assert_eq!((row.get::<_, i32>(0), row.get::<_, i32>(1), row.get::<_, i64>(2)), (42, 2, 41));
    let row = client.query_one("select t::int, '1'::int, now()::date, 't'::bool from c", &[]);
    let row = row.unwrap();
    let names: Vec<&str> = row.columns().iter().map(|column| column.name()).collect();
    assert_eq!(names, ["t", "int4", "now", "bool"]);
    assert_eq!(one(&mut client, "select now()::date = date 'today'"), "t");
    assert_eq!(
        one(&mut client, "select '2020-02-29 23:00-02'::timestamptz"),
        "2020-03-01 01:00:00+00"
    );
    for (sql, state) in [
        ("select 'a'::int", SqlState::INVALID_TEXT_REPRESENTATION),
        ("select 'a'::float8", SqlState::INVALID_TEXT_REPRESENTATION),
        ("select cast('3000000000' as int)", SqlState::NUMERIC_VALUE_OUT_OF_RANGE),
        ("select 'NaN'::float8", SqlState::FEATURE_NOT_SUPPORTED),
        ("select '2020-13-01'::date", SqlState::DATETIME_FIELD_OVERFLOW),
        ("select 'soon'::timestamp", SqlState::INVALID_DATETIME_FORMAT),
    ] {
        assert_eq!(code(client.batch_execute(sql)), state, "{sql}");
    }
}

#[test]
fn arrays_of_queries_and_casts_have_the_values_of_postgresql() {
    let server = TestServer::start();
    let mut client = server.client();
    let values = "from (values (2, 'a b'), (1, null)) as v(n, s)";
    let sql = format!("select array(select n {values} order by n), array(select s {values})");
    let row = client.query_one(&sql, &[]).unwrap();
    assert_eq!(row.get::<_, Vec<i32>>(0), [1, 2]);
    assert_eq!(row.get::<_, Vec<Option<String>>>(1), [Some("a b".to_owned()), None]);
    let casts = "select (1 = 1)::text || 'abc'::varchar(2) || 'ab  '::char(9) || '|'";
    assert_eq!(one(&mut client, casts), "trueabab|");
    client.batch_execute("create table t(n int)").unwrap();
    assert_eq!(one(&mut client, "select coalesce((select n from t), 7)"), "7");
    client.batch_execute("insert into t values (1), (2)").unwrap();
    let several = client.simple_query("select (select n from t)");
    assert_eq!(code(several.map(drop)), SqlState::CARDINALITY_VIOLATION);
    assert_eq!(one(&mut client, "select (select n from t where n > 1)"), "2");
    client.batch_execute("create table day(d date, took interval)").unwrap();
    client.batch_execute("insert into day values ('2026-01-02', '2 days')").unwrap();
    let times = "select extract(day from (select took from day)) +
                 ((select d from day) - date '2026-01-01')";
    assert_eq!(one(&mut client, times), "3");
    let unknown = client.simple_query("select \"text\" from t");
    assert_eq!(code(unknown.map(drop)), SqlState::UNDEFINED_COLUMN);
}

#[test]
fn a_list_of_values_can_name_its_columns() {
    let server = TestServer::start();
    let mut client = server.client();
    let sql = "select t.b, a from (values (1, 'x'), (2, 'y')) as t(a, b) where a = $1::int";
    let row = client.query_one(sql, &[&2i32]).unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, i32>(1)), ("y", 2));
    let joined =
        "select sum(u.n * t.a) from (values (1), (2)) t(a) join (select 5) as u(n) on true";
    assert_eq!(one(&mut client, joined), "15");
}

#[test]
fn a_failed_transaction_refuses_everything_until_it_ends() {
    let server = TestServer::start();
    let mut client = server.client();
    client.batch_execute("create table t(a int primary key)").unwrap();
    client.batch_execute("begin; insert into t values (1)").unwrap();
    assert_eq!(code(client.batch_execute("insert into t values (1)")), SqlState::UNIQUE_VIOLATION);
    assert_eq!(code(client.batch_execute("select 1")), SqlState::IN_FAILED_SQL_TRANSACTION);
    assert_eq!(code(client.query("select 1", &[])), SqlState::IN_FAILED_SQL_TRANSACTION);
    client.batch_execute("commit").unwrap();
    assert_eq!(one(&mut client, "select count(*) from t"), "0");

    client.batch_execute("begin; insert into t values (1); savepoint s").unwrap();
    assert_eq!(code(client.batch_execute("selec")), SqlState::SYNTAX_ERROR);
    client.batch_execute("rollback to s; insert into t values (2); release s; commit").unwrap();
    assert_eq!(one(&mut client, "select count(*) from t"), "2");
}

#[test]
fn the_statements_of_one_query_are_one_transaction() {
    let server = TestServer::start();
    let mut client = server.client();
    client.batch_execute("create table t(a int unique)").unwrap();
    let failed = client.batch_execute("insert into t values (1); insert into t values (1)");
    assert_eq!(code(failed), SqlState::UNIQUE_VIOLATION);
    assert_eq!(one(&mut client, "select count(*) from t"), "0");
    client.batch_execute("insert into t values (1); begin; insert into t values (2)").unwrap();
    client.batch_execute("rollback").unwrap();
    assert_eq!(one(&mut client, "select count(*) from t"), "0");
}

#[test]
fn writers_pass_one_at_a_time_and_none_is_lost() {
    let server = TestServer::start();
    server.client().batch_execute("create table t(n int); insert into t values (0)").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = server.client();
                for _ in 0..20 {
                    let mut transaction = client.transaction().unwrap();
                    transaction.execute("update t set n = n + $1", &[&1i32]).unwrap();
                    transaction.query_one("select n from t", &[]).unwrap();
                    transaction.commit().unwrap();
                }
            });
        }
    });
    assert_eq!(one(&mut server.client(), "select n from t"), "160");
}

#[test]
fn a_connection_that_goes_away_gives_its_transaction_and_the_gate_back() {
    let server = TestServer::start();
    let mut client = server.client();
    client.batch_execute("create table t(n int)").unwrap();
    client.batch_execute("begin; insert into t values (1)").unwrap();
    drop(client);
    let mut client = server.client();
    client.batch_execute("insert into t values (2)").unwrap();
    assert_eq!(one(&mut client, "select group_concat(n) from t"), "2");
}

#[test]
fn copy_takes_text_and_csv_and_refuses_bad_lines() {
    let server = TestServer::start();
    let mut client = server.client();
    client.batch_execute("create table t(a int primary key, b text)").unwrap();
    let mut copy = client.copy_in("copy t from stdin with (freeze on)").unwrap();
    for n in 0..10_000 {
        writeln!(copy, "{n}\t{}", if n % 2 == 0 { "\\N" } else { "x\\ty" }).unwrap();
    }
    assert_eq!(copy.finish().unwrap(), 10_000);
    assert_eq!(one(&mut client, "select count(b) || max(b) from t"), "5000x\ty");

    let mut copy = client.copy_in("copy t (b, a) from stdin (format csv, header)").unwrap();
    copy.write_all(b"b,a\n\"q,\"\"\",-1\n,-2").unwrap();
    assert_eq!(copy.finish().unwrap(), 2);
    assert_eq!(one(&mut client, "select b from t where a = -1"), "q,\"");

    let mut copy = client.copy_in("copy t from stdin").unwrap();
    copy.write_all(b"20000\tok\n20001\n").unwrap();
    assert_eq!(code(copy.finish()), SqlState::BAD_COPY_FILE_FORMAT);
    assert_eq!(one(&mut client, "select count(*) from t where a >= 20000"), "0");
    assert_eq!(
        code(client.copy_in("copy nothere from stdin").map(|_| ())),
        SqlState::UNDEFINED_TABLE
    );
}

#[test]
fn running_and_waiting_statements_can_be_cancelled() {
    let server = TestServer::start();
    let mut holder = server.client();
    holder.batch_execute("create table t(n int)").unwrap();
    holder.batch_execute("begin; insert into t values (1)").unwrap();
    let statements = [
        "select pg_sleep(60)",
        "waitfor delay '00:01:00'",
        "with recursive c(x) as (select 1 union all select x + 1 from c) select count(*) from c",
        "insert into t values (2)",
    ];
    for statement in statements {
        let mut client = server.client();
        let token = client.cancel_token();
        let begun = Instant::now();
        let canceller = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            token.cancel_query(NoTls).unwrap();
        });
        assert_eq!(code(client.batch_execute(statement)), SqlState::QUERY_CANCELED, "{statement}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{statement}");
        canceller.join().unwrap();
        assert_eq!(one(&mut client, "select 1"), "1");
    }
}

#[test]
fn a_statement_that_was_prepared_in_sql_is_executed_by_both_protocols() {
    let server = TestServer::start();
    let mut client = server.client();
    client.batch_execute("create table e(id int, p numeric(8,2))").unwrap();
    client.batch_execute("prepare put (int, numeric) as insert into e values ($1, $2)").unwrap();
    client.batch_execute("execute put (1, 2.5); execute put (1 + 1, '4')").unwrap();
    client.batch_execute("prepare Take as select id, p from e where id = $1").unwrap();
    assert_eq!(one(&mut client, "execute take (1)"), "1");
    let row = client.query_one("execute take (2)", &[]).unwrap();
    let names: Vec<&str> = row.columns().iter().map(|column| column.name()).collect();
    assert_eq!((names, row.get::<_, i32>(0)), (vec!["id", "p"], 2));
    let refused = [
        ("execute take (1, 2)", SqlState::SYNTAX_ERROR),
        ("execute take ('x')", SqlState::INVALID_TEXT_REPRESENTATION),
        ("execute nope", SqlState::INVALID_SQL_STATEMENT_NAME),
        ("prepare take as select 1", SqlState::DUPLICATE_PSTATEMENT),
        ("deallocate nope", SqlState::INVALID_SQL_STATEMENT_NAME),
    ];
    for (sql, expected) in refused {
        assert_eq!(code(client.batch_execute(sql)), expected, "{sql}");
    }
    client.batch_execute("deallocate take").unwrap();
    let gone = SqlState::INVALID_SQL_STATEMENT_NAME;
    assert_eq!(code(client.batch_execute("execute take (1)")), gone);
}

/// Each client gets one error, which says what ends its statement.
#[test]
fn a_server_that_stops_says_so_to_clients_whose_statements_it_ends() {
    let mut server = TestServer::start();
    server.client().batch_execute("create table t(n int)").unwrap();
    let statements = [
        "begin; insert into t values (1); select pg_sleep(600)",
        "insert into t values (2)",
        "select pg_sleep(600)",
        "begin; savepoint s; select pg_sleep(600)",
        "with recursive c(x) as (select 1 union all select x + 1 from c) select count(*) from c",
    ];
    let begin = |sql: &str| {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(b"\0\0\0\x11\0\x03\0\0user\0me\0\0").unwrap();
        // The message ReadyForQuery ends the login.
        let mut last = [0; 6];
        while last != *b"Z\0\0\0\x05I" {
            last.rotate_left(1);
            stream.read_exact(&mut last[5..]).unwrap();
        }
        let query = [b"Q", &(sql.len() as u32 + 5).to_be_bytes()[..], sql.as_bytes(), b"\0"];
        stream.write_all(&query.concat()).unwrap();
        stream
    };
    let mut observer = server.client();
    let mut begun = 0;
    let streams = statements.map(|sql| {
        let stream = begin(sql);
        begun += 1;
        // The first one has the write gate before the second one asks for it.
        observer.batch_execute("set lock_timeout = '1ms'").unwrap();
        while begun == 1 && observer.batch_execute("insert into t values (3)").is_ok() {}
        stream
    });
    // All of them, and the observer.
    let at_work = "select count(*) from ums_requests where user_id > 0";
    while one(&mut observer, at_work).parse::<usize>().unwrap() <= statements.len() {
        std::thread::sleep(Duration::from_millis(10));
    }
    // The statements have this time, and once they are cancelled they have it again.
    server.stop_after(Duration::from_millis(100), Duration::from_secs(8));
    for (mut stream, sql) in streams.into_iter().zip(statements) {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert_eq!(answer.matches("\0C57P01\0").count(), 1, "{sql}: {answer:?}");
        assert!(!answer.contains("C57014") && !answer.contains("C53300"), "{sql}: {answer:?}");
    }
}

#[test]
fn errors_carry_a_sqlstate_and_a_place() {
    let server = TestServer::start();
    let mut client = server.client();
    client.batch_execute("create table t(a int not null)").unwrap();
    let cases = [
        ("selec 1", SqlState::SYNTAX_ERROR),
        ("select * from nothere", SqlState::UNDEFINED_TABLE),
        ("select nothere from t", SqlState::UNDEFINED_COLUMN),
        ("select nothere(1)", SqlState::UNDEFINED_FUNCTION),
        ("create table t(a int)", SqlState::DUPLICATE_TABLE),
        ("insert into t values (null)", SqlState::NOT_NULL_VIOLATION),
        ("show nothere", SqlState::UNDEFINED_OBJECT),
        ("savepoint s", SqlState::NO_ACTIVE_SQL_TRANSACTION),
        ("begin read only; insert into t values (1)", SqlState::READ_ONLY_SQL_TRANSACTION),
        ("begin; vacuum", SqlState::ACTIVE_SQL_TRANSACTION),
        ("select 'open", SqlState::SYNTAX_ERROR),
        (
            "alter table t add constraint c foreign key (a) references t(a)",
            SqlState::INVALID_FOREIGN_KEY,
        ),
    ];
    for (sql, expected) in cases {
        assert_eq!(code(client.batch_execute(sql)), expected, "{sql}");
        let _ = client.batch_execute("rollback");
    }
    let error = client.simple_query("select 'ö', nothere from t").unwrap_err();
    let position = error.as_db_error().unwrap().position().unwrap();
    assert_eq!(*position, postgres::error::ErrorPosition::Original(13));
}

#[test]
fn a_portal_can_be_read_in_parts() {
    let server = TestServer::start();
    let mut client = server.client();
    let mut transaction = client.transaction().unwrap();
    let portal = transaction.bind("select i from generate_series(1, 25) as i", &[]).unwrap();
    let mut sizes = Vec::new();
    loop {
        let part = transaction.query_portal(&portal, 10).unwrap();
        if part.is_empty() {
            break;
        }
        sizes.push(part.len());
    }
    assert_eq!(sizes, [10, 10, 5]);
}

#[test]
fn prepared_statements_survive_a_change_of_the_schema() {
    let server = TestServer::start();
    let (mut first, mut second) = (server.client(), server.client());
    first.batch_execute("create table t(a int); insert into t values (1)").unwrap();
    let statement = first.prepare("select * from t").unwrap();
    assert_eq!(first.query(&statement, &[]).unwrap()[0].len(), 1);
    second.batch_execute("alter table t add column b text default 'new'").unwrap();
    assert_eq!(code(first.query(&statement, &[]).map(|_| ())), SqlState::FEATURE_NOT_SUPPORTED);
    let row = first.query_one("select * from t", &[]).unwrap();
    assert_eq!((row.get::<_, i32>(0), row.get::<_, &str>(1)), (1, "new"));
}

#[test]
fn temporary_tables_belong_to_their_session() {
    let server = TestServer::start();
    let (mut first, mut second) = (server.client(), server.client());
    first.batch_execute("create temp table mine(a int)").unwrap();
    first.batch_execute("insert into mine values (1)").unwrap();
    assert_eq!(one(&mut first, "select count(*) from mine"), "1");
    assert_eq!(code(second.batch_execute("select * from mine")), SqlState::UNDEFINED_TABLE);
}

#[test]
fn umsstats_has_the_rows_of_the_seed_in_both_protocols() {
    let server = TestServer::start();
    let mut client = server.client();
    let simple = rows(&mut client, "DBCC SQLPERF(umsstats)");
    let names: Vec<&str> = simple.iter().take(8).filter_map(|row| row[0].as_deref()).collect();
    let expected = [
        "Scheduler ID",
        "  num users",
        "  num runnable",
        "  num workers",
        "  idle workers",
        "  work queued",
        "  cntxt switches",
        "  cntxt switches(idle)",
    ];
    assert_eq!(names, expected);
    assert_eq!(simple.len(), 16);
    assert!(
        simple.iter().all(|row| row[1].as_deref().unwrap().split_once('.').unwrap().1.len() == 1)
    );
    assert_eq!(client.query("dbcc sqlperf(umsstats)", &[]).unwrap().len(), 16);
    assert!(!rows(&mut client, "select * from ums_schedulers").is_empty());
    assert!(client.query("select * from ums_waiting_tasks where 1 = 0", &[]).unwrap().is_empty());
    rows(&mut client, "dbcc sqlperf(waitstats)");
}

#[test]
fn a_backup_is_a_whole_database_even_while_others_write() {
    let server = TestServer::start();
    let mut client = server.client();
    client
        .batch_execute(
            "create table t(a text); insert into t select hex(randomblob(400)) \
                        from generate_series(1, 3000)",
        )
        .unwrap();
    let copy = server.dir.join("copy.db");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = server.client();
            for _ in 0..50 {
                writer.batch_execute("insert into t values ('later')").unwrap();
            }
        });
        client.batch_execute(&format!("backup to '{}'", copy.display())).unwrap();
    });
    let copied = rusqlite::Connection::open(copy).unwrap();
    let check: String = copied.query_row("pragma integrity_check", [], |row| row.get(0)).unwrap();
    let count: i64 = copied.query_row("select count(*) from t", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
    assert!((3000..=3050).contains(&count), "{count}");
}

#[test]
fn a_password_is_proved_with_scram() {
    let server = TestServer::with(|settings| {
        let mut accounts = umsql::Accounts::new();
        accounts.add("me", umsql::Role::Owner, "pässword").unwrap();
        settings.accounts = Some(accounts);
    });
    let mut client = server.config().password("pässword").connect(NoTls).unwrap();
    assert_eq!(one(&mut client, "select 1"), "1");
    let refused = server.config().password("wrong").connect(NoTls).map(|_| ());
    assert_eq!(code(refused), SqlState::INVALID_PASSWORD);
    assert!(server.client_without_password().is_err());
}

impl TestServer {
    fn client_without_password(&self) -> Result<Client, postgres::Error> {
        self.config().connect(NoTls)
    }
}

#[test]
fn psql_finds_tables_columns_and_indexes_in_the_catalogue() {
    let server = TestServer::start();
    let mut client = server.client();
    client
        .batch_execute("create table t(a int primary key, b varchar(20) not null default 'x')")
        .unwrap();
    client.batch_execute("create unique index t_b on t(b)").unwrap();
    let list = "SELECT c.relname, c.relhasindex FROM pg_catalog.pg_class c \
                LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                WHERE c.relkind IN ('r','p','') AND n.nspname !~ '^pg_toast' \
                AND c.relname OPERATOR(pg_catalog.~) '^(t)$' COLLATE pg_catalog.default \
                AND pg_catalog.pg_table_is_visible(c.oid) ORDER BY 1";
    assert_eq!(rows(&mut client, list), [[Some("t".to_owned()), Some("t".to_owned())]]);
    let columns = "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod) FROM \
                   pg_catalog.pg_attribute a WHERE a.attrelid = 't'::regclass ORDER BY a.attnum";
    let found = rows(&mut client, columns);
    assert_eq!(found[0][1].as_deref(), Some("integer"));
    assert_eq!(found[1][1].as_deref(), Some("character varying(20)"));
}

/// If waiting writers used all workers, the server could deadlock: the holder of the gate may be
/// waiting for an answer on another connection, as pgbench does.
#[test]
fn many_waiting_writers_leave_workers_for_the_others() {
    let node = ums::Node::builder().schedulers(2).max_workers(4).build().unwrap();
    let server = TestServer::on(node, |_| ());
    let mut holder = server.client();
    holder.batch_execute("create table t(n int)").unwrap();
    holder.batch_execute("begin; insert into t values (0)").unwrap();
    let mut writers: Vec<Client> = (0..12).map(|_| server.client()).collect();
    let mut other = server.client();
    let token = writers[11].cancel_token();
    std::thread::scope(|scope| {
        let inserts: Vec<_> = writers
            .iter_mut()
            .map(|writer| scope.spawn(|| writer.execute("insert into t values ($1)", &[&1i32])))
            .collect();
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(one(&mut other, "select count(*) from t"), "0");
        token.cancel_query(NoTls).unwrap();
        let mut results = inserts.into_iter();
        let last = results.next_back().unwrap().join().unwrap();
        assert_eq!(code(last), SqlState::QUERY_CANCELED);
        holder.batch_execute("insert into t values (0); commit").unwrap();
        results.for_each(|insert| assert_eq!(insert.join().unwrap().unwrap(), 1));
    });
    assert_eq!(one(&mut other, "select count(*) from t"), "13");
}
