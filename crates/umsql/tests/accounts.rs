//! Logging in, and what a reader may do, with thread and fiber workers.
//!
//! Unsafe because fiber workers are chosen: only this crate and SQLite run on them, and these keep
//! no thread-scoped state across a wait.
#![allow(unsafe_code)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use postgres::error::SqlState;
use postgres::{Client, NoTls};
use ums::Node;
use umsql::{Accounts, Role};

mod common;
use common::TestServer;
use umsql::listen::Patience;

/// Runs a test on a server with an owner and a reader, once with each kind of workers.
fn with_accounts(test: impl Fn(&TestServer)) {
    with_patience(Patience::default(), test);
}

fn with_patience(patience: Patience, test: impl Fn(&TestServer)) {
    for fibers in [false, true] {
        let builder = Node::builder().schedulers(2).max_workers(32).stack_size(1 << 20);
        // SAFETY: Contract: see the header.
        let builder = if fibers { unsafe { builder.fiber_workers() } } else { builder };
        let server = TestServer::patient(builder.build().unwrap(), patience, |settings| {
            let mut accounts = Accounts::new();
            accounts.add("ann", Role::Owner, "of Ann").unwrap();
            accounts.add("bob", Role::Reader, "of Bob").unwrap();
            settings.accounts = Some(accounts);
        });
        test(&server);
    }
}

fn connect(server: &TestServer, name: &str, password: &str) -> Result<Client, postgres::Error> {
    server.config().user(name).password(password).connect(NoTls)
}

fn code<T>(result: Result<T, postgres::Error>) -> SqlState {
    match result {
        Ok(_) => panic!("it was accepted"),
        Err(error) => error.code().unwrap_or_else(|| panic!("no SQLSTATE: {error}")).clone(),
    }
}

#[test]
fn only_the_password_of_the_account_opens_it() {
    with_accounts(|server| {
        assert!(connect(server, "ann", "of Ann").is_ok());
        for (name, password) in [("ann", "of Bob"), ("bob", "of Ann"), ("ann", "x")] {
            assert_eq!(code(connect(server, name, password)), SqlState::INVALID_PASSWORD, "{name}");
        }
    });
}

/// Logs in by hand with a proof that is wrong. Returns the server's messages without their nonces.
fn wrong_login(server: &TestServer, name: &str) -> Vec<String> {
    let (mut stream, mut answers) = begin_wrong_login(server, name);
    answers.push(message(&mut stream).replace(name, "NAME"));
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty(), "the connection ends after the error");
    answers
}

/// The same, without waiting for the answer to the proof.
fn begin_wrong_login(server: &TestServer, name: &str) -> (TcpStream, Vec<String>) {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let packet = [b"\0\x03\0\0user\0", name.as_bytes(), b"\0\0"].concat();
    stream.write_all(&(packet.len() as u32 + 4).to_be_bytes()).unwrap();
    stream.write_all(&packet).unwrap();
    let first = b"n,,n=,r=abc";
    let body = [b"SCRAM-SHA-256\0", &(first.len() as u32).to_be_bytes()[..], first].concat();
    let mut answers = vec![message(&mut stream)];
    send(&mut stream, &body);
    let answer = message(&mut stream);
    let nonce = answer.split_once("r=").unwrap().1.split(',').next().unwrap().to_owned();
    answers.push(answer.replace(&nonce, ""));
    let proof = format!("c=biws,r={nonce},p={}=", "A".repeat(43));
    send(&mut stream, proof.as_bytes());
    (stream, answers)
}

#[test]
fn a_wrong_password_is_answered_after_a_pause_in_which_others_are_served() {
    let hour = Duration::from_secs(3600);
    with_patience(Patience { refusal: hour, ..Patience::default() }, |server| {
        let (mut guess, _) = begin_wrong_login(server, "ann");
        // What the client sends meanwhile changes nothing.
        guess.write_all(b"more").unwrap();
        // More requests than there are schedulers: the proof has been examined before the last.
        for _ in 0..20 {
            let mut ann = connect(server, "ann", "of Ann").unwrap();
            ann.batch_execute("select 1").unwrap();
        }
        guess.set_nonblocking(true).unwrap();
        let answer = guess.read(&mut [0; 1]).unwrap_err();
        assert_eq!(answer.kind(), std::io::ErrorKind::WouldBlock, "an answer before the pause");
    });
    let none = Patience { refusal: Duration::ZERO, ..Patience::default() };
    with_patience(none, |server| {
        assert!(wrong_login(server, "ann")[2].contains("28P01"));
    });
    // The time for the login is over before the pause is.
    let login = Duration::from_secs(3);
    with_patience(Patience { refusal: hour, login, ..Patience::default() }, |server| {
        assert!(wrong_login(server, "ann")[2].contains("28P01"));
    });
}

fn send(stream: &mut TcpStream, body: &[u8]) {
    let len = (body.len() as u32 + 4).to_be_bytes();
    stream.write_all(&[b"p", &len[..], body].concat()).unwrap();
}

fn message(stream: &mut TcpStream) -> String {
    let mut header = [0; 5];
    stream.read_exact(&mut header).unwrap();
    let mut body = vec![0; u32::from_be_bytes(header[1..].try_into().unwrap()) as usize - 4];
    stream.read_exact(&mut body).unwrap();
    format!("{}{}", header[0] as char, String::from_utf8_lossy(&body))
}

#[test]
fn a_login_does_not_tell_whether_a_name_has_an_account() {
    with_accounts(|server| {
        let (known, unknown) = (wrong_login(server, "ann"), wrong_login(server, "eve"));
        assert_eq!(unknown, wrong_login(server, "eve"), "the salt stays the same");
        let shape =
            |answers: &[String]| -> Vec<usize> { answers.iter().map(String::len).collect() };
        assert_eq!(shape(&known), shape(&unknown));
        assert_ne!(known[1], unknown[1], "each name has a salt of its own");
        assert_eq!(known[2], unknown[2]);
        assert!(known[2].contains("28P01"), "{}", known[2]);
    });
}

/// What a reader may not do.
const REFUSED: [&str; 29] = [
    "delete from t where x = 8",
    "insert into t values (8)",
    "create table u(x int)",
    "create temp table u(x int)",
    "drop table t",
    "copy t from stdin",
    "vacuum",
    "analyze",
    "reindex",
    "pragma user_version = 7",
    "pragma optimize",
    "select * from pragma_optimize",
    "pragma wal_checkpoint",
    "pragma incremental_vacuum(1)",
    "attach ':memory:' as a",
    "insert into w(w) values ('optimize')",
    "with x as (select 1) insert into t select * from x",
    "explain query plan select * from ums_users; delete from t",
    "kill 1",
    "dbcc sqlperf(waitstats, clear)",
    "select busy_loop(1)",
    "select preemptive_sleep(1)",
    "select count(*) from ums_users",
    "select * from \"UMS_Requests\"",
    "select * from 'ums_workers'",
    "with a as (select * from main.ums_reports) select * from a",
    "select * from spy",
    "select (select count(*) from ums_ring)",
    "select * from pg_stat_ssl",
];

/// Checks that a reader's statement is refused: as a query, prepared, and in a transaction.
fn check_refused(reader: &mut Client, sql: &str) {
    let refused = SqlState::INSUFFICIENT_PRIVILEGE;
    assert_eq!(code(reader.batch_execute(sql)), refused, "{sql}");
    if !sql.contains(';') && !sql.starts_with("copy") {
        assert_eq!(code(reader.query(sql, &[])), refused, "prepared: {sql}");
    }
    // VACUUM is refused to all in a transaction, with another error.
    if !sql.contains(';') && sql != "vacuum" {
        reader.batch_execute("begin").unwrap();
        assert_eq!(code(reader.batch_execute(sql)), refused, "in a transaction: {sql}");
        reader.batch_execute("rollback").unwrap();
    }
}

#[test]
fn a_reader_reads_and_does_nothing_else() {
    with_accounts(|server| {
        let mut owner = connect(server, "ann", "of Ann").unwrap();
        owner
            .batch_execute(
                "create table t(x int); insert into t values (7); create virtual table w using \
                 fts5(a); insert into w values ('word'); create virtual table r using \
                 rtree(id, low, high); insert into r values (1, 2, 3); create view v as select x \
                 from t; create view spy as select * from ums_users",
            )
            .unwrap();
        let backup = server.dir.join("copy");
        // The owner's plans and prepared statements do not help a reader.
        owner.query("select count(*) from ums_users", &[]).unwrap();
        owner.query("delete from t where x = 8", &[]).unwrap();

        let mut reader = connect(server, "bob", "of Bob").unwrap();
        let files = [
            format!("attach '{}' as a", server.dir.join("other").display()),
            format!("backup to '{}'", backup.display()),
        ];
        for sql in REFUSED.into_iter().chain(files.iter().map(String::as_str)) {
            check_refused(&mut reader, sql);
        }
        assert!(!backup.exists());
        for (sql, rows) in [
            ("select x from v", 1),
            ("select a from w where w match 'word'", 1),
            ("select id from r where low < 5", 1),
            ("select * from ums_schedulers where name = '0'", 1),
            ("select relname from pg_class where relname = 't'", 1),
            ("select * from pragma_table_info('t')", 1),
            ("select 1 where pg_sleep(0) is not null", 1),
        ] {
            assert_eq!(reader.query(sql, &[]).unwrap().len(), rows, "{sql}");
        }
        reader.batch_execute("set timezone = 'UTC'; show timezone; begin; commit").unwrap();
        // The connection that the reader has used is an owner's again.
        drop(reader);
        for _ in 0..4 {
            owner.query("select count(*) from ums_users", &[]).unwrap();
            owner.batch_execute("insert into t values (8)").unwrap();
            owner.batch_execute("pragma wal_checkpoint").unwrap();
        }
        assert_eq!(owner.query("select x from t", &[]).unwrap().len(), 5);
    });
}

#[test]
fn a_reader_changes_no_sequence() {
    with_accounts(|server| {
        let mut ann = connect(server, "ann", "of Ann").unwrap();
        let mut bob = connect(server, "bob", "of Bob").unwrap();
        let next = "select nextval('t_id_seq')";
        ann.batch_execute("create table t (id serial primary key)").unwrap();
        // A view hides what it calls.
        ann.batch_execute("create view v as select \"setval\"('t_id_seq', 60) as x").unwrap();
        for (change, refused) in [
            ("select \"setval\"('t_id_seq', 70), pg_get_serial_sequence('t', 'id')", "42501"),
            ("select pg_get_serial_sequence('t', 'id'), x from v", "42501"),
            (next, "42501"),
        ] {
            assert_eq!(code(bob.batch_execute(change)).code(), refused, "{change}");
        }
        let hidden = "begin read only; select \"nextval\"('t_id_seq'), lastval()";
        assert_eq!(code(ann.batch_execute(hidden)).code(), "25006");
        ann.batch_execute("rollback").unwrap();
        assert_eq!(ann.query_one(next, &[]).unwrap().get::<_, i64>(0), 1);
    });
}
