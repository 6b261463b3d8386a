//! What a client may take: memory, temporary files, the log, and workers that wait for it.
//!
//! Unsafe code, to choose fibers. **Contract**: the workers run SQL only, which does not depend on
//! the thread.
#![allow(unsafe_code)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use ums::Node;

mod common;
use common::{SLOW_LIMITS, TestServer, has_sent_rows};
use umsql::listen::Patience;

/// Runs `test` with thread workers on one scheduler, and with fibers on two.
fn in_kinds(test: impl Fn(Node)) {
    let builder = || Node::builder().max_workers(16).stack_size(1 << 20);
    test(builder().schedulers(1).build().unwrap());
    // SAFETY: Contract: see the header.
    test(unsafe { builder().schedulers(2).fiber_workers() }.build().unwrap());
}

fn code(result: Result<impl Sized, postgres::Error>) -> String {
    match result {
        Ok(_) => String::new(),
        Err(error) => error.code().map_or_else(|| error.to_string(), |code| code.code().to_owned()),
    }
}

fn number(client: &mut postgres::Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).unwrap().get(0)
}

#[test]
fn a_client_that_takes_too_much_is_refused_and_others_go_on() {
    in_kinds(|node| {
        let server = TestServer::on(node, |settings| settings.limits.client = 20 << 20);
        let (mut greedy, mut other) = (server.client(), server.client());
        greedy.batch_execute("attach ':memory:' as m").unwrap();
        let large = "create table m.t as with recursive c(i) as
            (select 1 union all select i + 1 from c limit 10000) select randomblob(4000) from c";
        assert_eq!(code(greedy.batch_execute(large)), "53200");
        assert_eq!(number(&mut greedy, "select 1::bigint"), 1);
        assert_eq!(number(&mut other, "select 2::bigint"), 2);
        let taken = "select max(statement_bytes) from ums_memory where user_id > 0";
        assert!(number(&mut other, taken) < 20 << 20);
        let refused = "select sum(refusals)::bigint from ums_memory where user_id > 0";
        assert!(number(&mut other, refused) > 0);
        // 30 values of 1 MiB are one row.
        let wide = vec!["x"; 30].join(", ");
        let wide = format!("select {wide} from (select hex(zeroblob(500000)) as x)");
        assert_eq!(code(other.simple_query(&wide)), "53200");
        assert_eq!(number(&mut other, "select 3::bigint"), 3);
    });
}

#[test]
fn two_servers_in_one_process_share_no_budget_of_memory() {
    let limits = |settings: &mut umsql::Settings| {
        settings.limits.server = 24 << 20;
        settings.limits.client = 20 << 20;
    };
    in_kinds(|node| {
        let (one, two) = (TestServer::on(node, limits), TestServer::with(limits));
        // Each of these takes more than half of a budget, and keeps it.
        let keeps = "attach ':memory:' as m; create table m.t as with recursive c(i) as
            (select 1 union all select i + 1 from c limit 3500) select randomblob(4000) from c";
        let mut clients = [one.client(), two.client()];
        for client in &mut clients {
            assert_eq!(code(client.batch_execute(keeps)), "");
        }
        let refusals = "select sum(refusals)::bigint from ums_memory";
        assert_eq!(clients.each_mut().map(|client| number(client, refusals)), [0, 0]);
        // A second client of one server finds too little left.
        assert_eq!(code(one.client().batch_execute(keeps)), "53200");
        assert_eq!(number(&mut clients[1], refusals), 0);
    });
}

#[test]
fn sorts_and_temporary_tables_are_in_files_up_to_a_limit() {
    in_kinds(|node| {
        let server = TestServer::on(node, |settings| {
            settings.limits.client = 20 << 20;
            settings.limits.temporary = 100 << 20;
        });
        let mut client = server.client();
        let rows = |count: usize| {
            format!(
                "with recursive c(i) as (select 1 union all select i + 1 from c limit {count})
                 select i, randomblob(4000) as x from c"
            )
        };
        let sorted = format!(
            "select count(*) from (select * from ({}) order by x limit 10000)",
            rows(10_000)
        );
        assert_eq!(number(&mut client, &sorted), 10_000);
        client.batch_execute(&format!("create temp table t as {}", rows(10_000))).unwrap();
        let taken = "select sum(temporary_file_bytes)::bigint from ums_memory where user_id > 0";
        assert!(number(&mut client, taken) > 20 << 20);
        let more = format!("insert into t {}", rows(30_000));
        assert_eq!(code(client.batch_execute(&more)), "53100");
        assert_eq!(number(&mut client, "select count(*) from t"), 10_000);
        drop(client);
    });
}

#[test]
fn a_long_format_counts_and_is_made_outside_the_scheduler() {
    in_kinds(|node| {
        let server = TestServer::on(node, |settings| settings.limits.client = 14 << 20);
        let mut client = server.client();
        let outside = "select coalesce(sum(completed_waits), 0)::bigint
            from ums_wait_stats where wait_type = 'PREEMPTIVE_TEXT'";
        client.batch_execute("select printf('%-9d', 1)").unwrap();
        assert_eq!(number(&mut client, outside), 0);
        client.batch_execute("select length(printf('%9000d', 1))").unwrap();
        assert_eq!(number(&mut client, outside), 1);
        // SQLite has the text more than once. The copy that becomes the result is too much.
        let long = "select length(printf('%4000000d', 1))";
        assert_eq!(code(client.batch_execute(long)), "53200");
        client.batch_execute("select length(printf('%3000000d', 1))").unwrap();
    });
}

#[test]
fn a_value_has_a_limit_with_a_hint() {
    let server = TestServer::with(|settings| settings.limits.value = 1 << 20);
    let mut client = server.client();
    let error = client.batch_execute("select length(hex(zeroblob(600000)))").unwrap_err();
    let error = error.as_db_error().unwrap();
    assert_eq!((error.code().code(), error.hint().is_some()), ("54000", true));
    client.batch_execute("select length(hex(zeroblob(500000)))").unwrap();
}

#[test]
fn a_message_that_takes_too_much_is_skipped() {
    in_kinds(|node| {
        let server = TestServer::on(node, |settings| settings.limits.client = 20 << 20);
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let startup = b"\0\0\0\x11\0\x03\0\0user\0me\0\0";
        stream.write_all(startup).unwrap();
        let mut header = b"Q".to_vec();
        header.extend((60_u32 << 20).to_be_bytes());
        stream.write_all(&header).unwrap();
        stream.write_all(&vec![b' '; (60 << 20) - 4]).unwrap();
        stream.write_all(b"Q\0\0\0\x0dselect 7\0X\0\0\0\x04").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.contains("53200") && answer.contains("SELECT 1\0"), "{answer}");
        assert_eq!(number(&mut server.client(), "select 1::bigint"), 1);
    });
}

#[test]
fn suspended_portals_count_together() {
    in_kinds(|node| {
        let server = TestServer::on(node, |settings| settings.limits.client = 40 << 20);
        let mut client = server.client();
        let sql = "with recursive c(i) as (select 1 union all select i + 1 from c limit 10)
            select hex(zeroblob(500000)) from c";
        let mut transaction = client.transaction().unwrap();
        let open: Vec<_> = (0..8)
            .map_while(|_| {
                let portal = transaction.bind(sql, &[]).ok()?;
                match transaction.query_portal(&portal, 1) {
                    Ok(_) => Some(Ok(portal)),
                    Err(error) => Some(Err(code(Err::<(), _>(error)))),
                }
            })
            .collect();
        assert!(open.iter().any(|open| open.as_ref().is_err_and(|code| code == "53200")));
        drop(open);
        transaction.rollback().unwrap();
        assert_eq!(number(&mut client, "select 1::bigint"), 1);
    });
}

#[test]
fn a_reader_loses_its_snapshot_before_the_log_grows_without_bound() {
    in_kinds(|node| {
        let server = TestServer::on(node, |settings| settings.limits.log = 8 << 20);
        let (mut reader, mut writer) = (server.client(), server.client());
        writer.batch_execute("create table t(x)").unwrap();
        let rows = "with recursive c(i) as (select 1 union all select i + 1 from c limit 6)
            insert into t select randomblob(1000000) from c";
        writer.batch_execute(rows).unwrap();
        reader.batch_execute("begin isolation level repeatable read").unwrap();
        assert_eq!(number(&mut reader, "select count(*) from t"), 6);
        let wal = server.dir.join("db-wal");
        let longest = (0..100)
            .map(|_| {
                writer.batch_execute("insert into t values (randomblob(1000000))").unwrap();
                std::fs::metadata(&wal).unwrap().len()
            })
            .max();
        assert!(longest.unwrap() < 64 << 20, "{longest:?}");
        // More than the reader's connection has in its cache.
        let all = "select sum(instr(x, x'0102030405060708')) from t";
        assert_eq!(code(reader.query(all, &[])), "72000");
        reader.batch_execute("rollback").unwrap();
        assert_eq!(number(&mut reader, "select count(*) from t"), 106);
        assert_eq!(
            reader.query_one("pragma integrity_check", &[]).unwrap().get::<_, String>(0),
            "ok"
        );
    });
}

/// Returns a client that has asked for this many rows of 2 MB and does not read them.
fn slow_reader(address: SocketAddr, rows: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(b"\0\0\0\x11\0\x03\0\0user\0me\0\0").unwrap();
    // The beginning of the welcome.
    stream.read_exact(&mut [0; 1]).unwrap();
    let sql = format!(
        "with recursive c(i) as (select 1 union all select i + 1 from c limit {rows})
        select hex(zeroblob(1000000)) from c"
    );
    send_query(&mut stream, &sql);
    stream
}

#[test]
fn workers_stay_for_clients_that_read() {
    in_kinds(|node| {
        // A worker that waits for a client to read would wait forever.
        let patience = Patience { answer: None, transfer: None, ..Patience::default() };
        let server = TestServer::patient(node, patience, |_| ());
        let slow: Vec<_> = (0..24).map(|_| slow_reader(server.address, 1000)).collect();
        let (config, (done, is_done)) = (server.config(), std::sync::mpsc::channel());
        let readers = std::thread::spawn(move || {
            for round in 0..20 {
                let mut reader = config.connect(postgres::NoTls).unwrap();
                assert_eq!(number(&mut reader, &format!("select {round}::bigint")), round);
            }
            done.send(()).unwrap();
        });
        let served = is_done.recv_timeout(Duration::from_secs(60));
        // If no worker was left, one becomes free for each of these connections.
        drop(slow);
        readers.join().unwrap();
        assert_eq!(served, Ok(()), "a client that reads is not served");
    });
}

#[test]
fn the_administrator_is_none_of_the_clients_that_share_workers() {
    in_kinds(|node| {
        let patience = Patience { answer: None, transfer: None, ..Patience::default() };
        let server = TestServer::patient(node, patience, |_| ());
        let (address, _port) = server.administrate(patience);
        let mut client = server.client();
        let mut wait_until = |sql: &str| {
            while number(&mut client, sql) == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let mut administrator = slow_reader(address, 20);
        wait_until(
            "select count(*)::bigint from ums_waiting_tasks where wait_type = 'NETWORK_WRITE'",
        );
        // More than may be waited for, so some lose their connections.
        let _slow: Vec<_> = (0..24).map(|_| slow_reader(server.address, 1000)).collect();
        wait_until("select (count(*) <= 16)::bigint from ums_users");
        administrator.write_all(b"X\0\0\0\x04").unwrap();
        let mut all = Vec::new();
        administrator.read_to_end(&mut all).unwrap();
        assert!(all.ends_with(b"Z\0\0\0\x05I"), "the answer ends after {} bytes", all.len());
    });
}

/// Connects without a library, and returns what is not read by itself.
fn raw(server: &TestServer) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(b"\0\0\0\x11\0\x03\0\0user\0me\0\0").unwrap();
    assert!(read_until_ready(&mut stream).is_empty());
    stream
}

fn send_query(stream: &mut TcpStream, sql: &str) {
    let len = (sql.len() as u32 + 5).to_be_bytes();
    stream.write_all(&[b"Q", &len[..], sql.as_bytes(), b"\0"].concat()).unwrap();
}

/// Reads up to the next ReadyForQuery, and returns the SQLSTATEs of the errors before it.
fn read_until_ready(stream: &mut TcpStream) -> Vec<String> {
    let mut errors = Vec::new();
    loop {
        let mut header = [0; 5];
        stream.read_exact(&mut header).unwrap();
        let len = u32::from_be_bytes(header[1..].try_into().unwrap());
        let mut body = vec![0; len as usize - 4];
        stream.read_exact(&mut body).unwrap();
        match header[0] {
            b'Z' => return errors,
            b'E' => {
                let code = body.split(|byte| *byte == 0).find(|field| field.starts_with(b"C"));
                errors.push(String::from_utf8_lossy(&code.unwrap()[1..]).into_owned());
            }
            _ => {}
        }
    }
}

#[test]
fn a_client_that_reads_slowly_gets_the_error_of_a_timeout_and_stays() {
    in_kinds(|node| {
        let server = TestServer::on(node, |_| ());
        let (mut slow, mut other) = (raw(&server), server.client());
        other.batch_execute("create table t(x)").unwrap();
        // The rows are more than the sockets hold. The transaction owns the gate.
        let rows = "begin; insert into t with recursive c(i) as
            (select 1 union all select i + 1 from c limit 20)
            select hex(zeroblob(500000)) from c returning x";
        let get_rows = |limit| {
            send_query(&mut slow, &format!("rollback; set statement_timeout = {limit}"));
            assert!(read_until_ready(&mut slow).is_empty());
            send_query(&mut slow, rows);
            has_sent_rows(&slow, limit) || !read_until_ready(&mut slow).contains(&"57014".into())
        };
        assert!(SLOW_LIMITS.into_iter().any(get_rows));
        // The time ends the statement and its transaction, although the client does not read.
        other.batch_execute("insert into t values ('other')").unwrap();
        assert_eq!(read_until_ready(&mut slow), ["57014"]);
        send_query(&mut slow, "rollback; select count(*) from t");
        assert!(read_until_ready(&mut slow).is_empty());
        assert_eq!(number(&mut other, "select count(*) from t"), 1);
    });
}

#[test]
fn a_statement_that_comes_before_its_session_was_ended_is_carried_out() {
    let node = Node::builder().schedulers(1).max_workers(8).build().unwrap();
    let server = TestServer::on(node, |_| ());
    let (mut idle, mut busy) = (server.client(), [(); 8].map(|()| raw(&server)));
    idle.batch_execute("set idle_in_transaction_session_timeout = 800; begin").unwrap();
    // No worker is free when the time is over.
    busy.iter_mut().for_each(|stream| send_query(stream, "select pg_sleep(2)"));
    std::thread::sleep(Duration::from_millis(1300));
    assert_eq!(number(&mut idle, "select 1::bigint"), 1);
    drop(busy);
}

#[test]
fn a_transaction_longer_than_the_log_may_be_is_rolled_back() {
    in_kinds(|node| {
        let server = TestServer::on(node, |settings| settings.limits.log = 8 << 20);
        let (mut greedy, mut other) = (server.client(), server.client());
        other.batch_execute("create table t(x); create table u(x)").unwrap();
        let rows = |count: usize| {
            format!(
                "insert into t with recursive c(i) as
                 (select 1 union all select i + 1 from c limit {count})
                 select randomblob(1000000) from c"
            )
        };
        greedy.batch_execute(&rows(5)).unwrap();
        for sql in [rows(20), format!("begin; {}; {}", rows(7), rows(7))] {
            let error = greedy.batch_execute(&sql).unwrap_err();
            let error = error.as_db_error().unwrap();
            assert_eq!((error.code().code(), error.hint().is_some()), ("54000", true), "{sql}");
            other.batch_execute("insert into u values (1)").unwrap();
            greedy.batch_execute("rollback").unwrap();
            assert_eq!(number(&mut greedy, "select count(*) from t"), 5);
        }
        let longest = std::fs::metadata(server.dir.join("db-wal")).unwrap().len();
        assert!(longest < 24 << 20, "{longest}");
        greedy.batch_execute(&rows(5)).unwrap();
        assert_eq!(
            number(
                &mut other,
                "select ((select count(*) from t) + (select count(*) from u))::bigint"
            ),
            12
        );
        assert_eq!(
            other.query_one("pragma integrity_check", &[]).unwrap().get::<_, String>(0),
            "ok"
        );
    });
}
