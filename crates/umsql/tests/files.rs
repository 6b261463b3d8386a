//! The server's files: commits that share syncs, checkpoints outside the commit path, and the files
//! that remain after a stop.
//!
//! Unsafe because fiber workers are chosen: only this crate and SQLite run on them, and these keep
//! no thread-scoped state across a wait.
#![allow(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use postgres::Client;
use ums::Node;
use umsql::{Files, Server, Settings};

mod common;
use common::TestServer;

fn server(fibers: bool, files: Files) -> TestServer {
    let builder = Node::builder().schedulers(2).max_workers(64).stack_size(1 << 20);
    // SAFETY: Contract: see the header.
    let builder = if fibers { unsafe { builder.fiber_workers() } } else { builder };
    TestServer::on(builder.build().unwrap(), |settings| settings.files = files)
}

fn number(client: &mut Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).unwrap().get(0)
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn size(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |file| file.len())
}

fn log_of(server: &TestServer) -> PathBuf {
    server.dir.join("db-wal")
}

#[test]
fn concurrent_commits_are_all_durable_and_counted_in_batches() {
    const CLIENTS: i64 = 12;
    const EACH: i64 = 25;
    for fibers in [false, true] {
        let server = server(fibers, Files::Ums);
        let mut client = server.client();
        client.batch_execute("create table t(client_number bigint, n bigint)").unwrap();
        std::thread::scope(|s| {
            for client_number in 0..CLIENTS {
                let mut client = server.client();
                s.spawn(move || {
                    for n in 0..EACH {
                        client
                            .execute("insert into t values ($1, $2)", &[&client_number, &n])
                            .unwrap();
                    }
                });
            }
        });
        assert_eq!(number(&mut client, "select count(*) from t"), CLIENTS * EACH);
        let row = client.query_one("select * from ums_group_commit", &[]).unwrap();
        let column = |index: usize| row.get::<_, i64>(index);
        let (syncs, commits) = (column(0), column(1));
        assert_eq!(commits, CLIENTS * EACH + 1, "the table, and each row");
        assert!(syncs <= commits, "{syncs} syncs for {commits} commits");
        assert_eq!((4..row.len()).map(column).sum::<i64>(), syncs, "each sync had a batch");
        let waits = "select completed_waits from ums_wait_stats where wait_type = 'WRITELOG'";
        assert!(number(&mut client, waits) > 0);
    }
}

#[test]
fn a_commit_need_not_wait_when_its_session_says_so() {
    let server = server(false, Files::Ums);
    let mut client = server.client();
    client.batch_execute("create table t(x int)").unwrap();
    client.batch_execute("set synchronous_commit = off").unwrap();
    let waited = "select commits from ums_group_commit";
    let before = number(&mut client, waited);
    client.execute("insert into t values (1)", &[]).unwrap();
    assert_eq!(number(&mut client, waited), before);
    assert_eq!(number(&mut client, "select commits_not_waited from ums_group_commit"), 1);
}

#[test]
fn the_lazy_writer_checkpoints_so_that_the_log_stays_short() {
    for fibers in [false, true] {
        let server = server(fibers, Files::Ums);
        let mut client = server.client();
        client.batch_execute("create table t(x int, filler blob)").unwrap();
        // Writes 96 MiB through a log that is reset at 32 MiB.
        for n in 0..96_i32 {
            let sql = "insert into t values ($1, zeroblob(1000000))";
            client.execute(sql, &[&n]).unwrap();
            client.execute("delete from t where x < $1", &[&n]).unwrap();
        }
        assert!(size(&log_of(&server)) < 80 << 20, "{} bytes of log", size(&log_of(&server)));
        until("no page came into the database", || size(&server.dir.join("db")) > 500_000);
        assert_eq!(
            client.query_one("pragma integrity_check", &[]).unwrap().get::<_, &str>(0),
            "ok"
        );
    }
}

#[test]
fn nothing_but_the_database_is_left_after_the_stop_and_sqlite_opens_it() {
    for files in [Files::Ums, Files::UmsDirect, Files::Host] {
        let dir = std::env::temp_dir().join(format!("umsql-left-{}-{files:?}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut server = TestServer::with(|settings| {
            settings.files = files;
            settings.database = dir.join("kept");
        });
        let mut client = server.client();
        client.batch_execute("create table t(x int); insert into t values (42)").unwrap();
        assert_eq!(number(&mut client, "select count(*) from t"), 1);
        assert!(size(&dir.join("kept-wal")) > 0);
        drop(client);
        server.stop();
        let left: Vec<_> =
            std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["kept"], "{files:?}");
        let stock = rusqlite::Connection::open(dir.join("kept")).unwrap();
        let found: i64 = stock.query_row("select x from t", [], |row| row.get(0)).unwrap();
        assert_eq!(found, 42);
        drop(stock);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn a_file_that_is_open_elsewhere_is_refused_with_what_to_do() {
    let dir = std::env::temp_dir().join(format!("umsql-used-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let server = Server::open(Settings::new(dir.join("db"))).unwrap();
    // Under another name the same file is a different database for this process, as it is for any
    // other process.
    std::fs::hard_link(dir.join("db"), dir.join("same")).unwrap();
    let error = Server::open(Settings::new(dir.join("same"))).unwrap_err();
    assert_eq!(error.code, "55006");
    assert!(error.message.contains("stop that one"), "{error}");
    drop(server);
    assert!(Server::open(Settings::new(dir.join("same"))).is_ok());
    std::fs::remove_dir_all(&dir).unwrap();
}

/// The files were written by an earlier development version (commit 2265ca8), whose process was
/// killed: nearly everything is in the log.
#[test]
fn a_database_of_an_earlier_version_opens_with_all_that_was_committed() {
    let old = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/databases/2026-11-23.db");
    for (fibers, files) in [(false, Files::Ums), (true, Files::Ums), (true, Files::Host)] {
        let builder = Node::builder().schedulers(2).max_workers(64).stack_size(1 << 20);
        // SAFETY: Contract: see the header.
        let builder = if fibers { unsafe { builder.fiber_workers() } } else { builder };
        let server = TestServer::on(builder.build().unwrap(), |settings| {
            settings.files = files;
            std::fs::copy(&old, &settings.database).unwrap();
            let log = old.with_extension("db-wal");
            std::fs::copy(log, settings.database.with_file_name("db-wal")).unwrap();
        });
        let mut client = server.client();
        assert_eq!(number(&mut client, "select count(*) from accounts"), 101);
        assert_eq!(number(&mut client, "select count(*) from rich"), 34);
        let row = client.query_one("select name, balance::text from accounts where id = 7", &[]);
        let row = row.unwrap();
        assert_eq!((row.get(0), row.get(1)), ("name 7", "10.5"));
        // What was committed last before the end, and the trigger still fires.
        let by_name = "select count(*) from accounts where name = 'in the log'";
        assert_eq!(number(&mut client, by_name), 1);
        client.execute("insert into accounts(id, name) values (1001, 'new')", &[]).unwrap();
        assert_eq!(number(&mut client, "select count(*) from log"), 2);
        let checked: String = client.query_one("pragma integrity_check", &[]).unwrap().get(0);
        assert_eq!(checked, "ok");
    }
}
