//! Transactions from the view of clients: isolation levels, savepoints, and locks.
//!
//! A client that must not wait has a short `lock_timeout`: a wait for the write gate then ends with
//! 55P03.

use postgres::{Client, NoTls};

mod common;
use common::{TestServer, one, run};

/// Returns the SQLSTATE with which the statements fail; "" if they do not.
fn code(client: &mut Client, sql: &str) -> String {
    match client.batch_execute(sql) {
        Ok(()) => String::new(),
        Err(error) => error.code().map_or_else(|| error.to_string(), |code| code.code().to_owned()),
    }
}

/// Returns a server with a table of one row, and two of its clients.
fn begin() -> (TestServer, Client, Client) {
    let server = TestServer::start();
    let (mut first, second) = (server.client(), server.client());
    run(&mut first, "create table t(n int); insert into t values (0)");
    (server, first, second)
}

/// Returns whether the client can write without waiting.
fn can_write(client: &mut Client) -> bool {
    match code(client, "set lock_timeout = '50ms'; begin; update t set n = n; rollback").as_str() {
        "" => true,
        "55P03" => {
            run(client, "rollback");
            false
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_transaction_that_reads_and_then_writes_does_not_fail() {
    let (server, mut first, mut second) = begin();
    assert_eq!(one(&mut first, "begin; select n from t"), "0");
    run(&mut second, "update t set n = 5");
    assert_eq!(one(&mut first, "select n from t"), "5", "the newest for each statement");
    run(&mut first, "update t set n = n + 1");
    assert_eq!(one(&mut first, "select n from t"), "6");
    assert_eq!(one(&mut second, "select n from t"), "5");
    assert!(!can_write(&mut second));
    run(&mut first, "commit");
    assert_eq!(one(&mut second, "select n from t"), "6");
    // The statements of one query are a transaction, too.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = server.client();
                for _ in 0..10 {
                    run(&mut client, "select n from t; update t set n = n + 1");
                    let mut transaction = client.transaction().unwrap();
                    transaction.query_one("select n from t", &[]).unwrap();
                    transaction.execute("update t set n = n + 1", &[]).unwrap();
                    transaction.commit().unwrap();
                }
            });
        }
    });
    assert_eq!(one(&mut second, "select n from t"), "166");
}

#[test]
fn a_repeatable_read_has_one_snapshot_and_writes_only_if_it_is_the_newest() {
    let (_server, mut first, mut second) = begin();
    let serializable = "serializable";
    let levels = [
        ("", "begin isolation level repeatable read", "repeatable read"),
        ("", "start transaction isolation level serializable, read write", serializable),
        ("", "begin; set transaction isolation level repeatable read", "repeatable read"),
        ("", "begin; set transaction_isolation = 'serializable'", serializable),
        (
            "set session characteristics as transaction isolation level serializable",
            "begin",
            serializable,
        ),
        ("set default_transaction_isolation to 'repeatable read'", "begin", "repeatable read"),
    ];
    for (session, begin, level) in levels {
        run(&mut first, session);
        run(&mut first, begin);
        assert_eq!(one(&mut first, "show transaction isolation level"), level, "{begin}");
        assert_eq!(one(&mut first, "show transaction_isolation"), level, "{begin}");
        // The first statement takes the snapshot.
        run(&mut second, "update t set n = 1");
        assert_eq!(one(&mut first, "select n from t"), "1", "{begin}");
        run(&mut second, "update t set n = 2");
        assert_eq!(one(&mut first, "select n from t"), "1", "{begin}");
        assert_eq!(code(&mut first, "update t set n = 3"), "40001", "{begin}");
        run(&mut first, "rollback");
        // Without a read before, it does not fail.
        run(&mut first, &format!("{begin}; update t set n = 3"));
        assert_eq!(one(&mut first, "select n from t"), "3");
        run(&mut first, "commit; reset default_transaction_isolation");
        assert_eq!(one(&mut first, "show transaction_isolation"), "read committed");
    }
}

#[test]
fn the_level_of_a_transaction_is_set_before_its_first_query() {
    let (_server, mut first, _) = begin();
    assert_eq!(one(&mut first, "show default_transaction_isolation"), "read committed");
    run(&mut first, "begin; select n from t");
    let late = "set transaction isolation level repeatable read";
    assert_eq!(code(&mut first, late), "25001");
    run(&mut first, "rollback; begin isolation level read uncommitted");
    assert_eq!(one(&mut first, "show transaction_isolation"), "read uncommitted");
    run(&mut first, "select n from t; set transaction isolation level read uncommitted");
    run(&mut first, "set transaction read only");
    assert_eq!(code(&mut first, "set transaction read write"), "25001");
    run(&mut first, "rollback; begin read only; set transaction read write; update t set n = 1");
    run(&mut first, "rollback");
    assert_eq!(code(&mut first, "begin isolation level chaos"), "42601");
    assert_eq!(code(&mut first, "begin quickly"), "42601");
    // Outside a transaction it is a warning.
    run(&mut first, late);
    assert_eq!(one(&mut first, "show transaction_isolation"), "read committed");
}

#[test]
fn a_transaction_that_only_reads_sees_the_newest_and_cannot_write() {
    let (_server, mut first, mut second) = begin();
    assert_eq!(one(&mut first, "begin read only; select n from t"), "0");
    run(&mut second, "update t set n = 5");
    assert_eq!(one(&mut first, "select n from t"), "5");
    assert_eq!(code(&mut first, "update t set n = 6"), "25006");
    run(&mut first, "rollback; begin isolation level repeatable read, read only");
    assert_eq!(one(&mut first, "select n from t"), "5");
    run(&mut second, "update t set n = 6");
    assert_eq!(one(&mut first, "select n from t"), "5");
    assert_eq!(code(&mut first, "delete from t"), "25006");
    run(&mut first, "rollback; delete from t");
}

#[test]
fn a_transaction_has_one_time_and_each_statement_its_own() {
    let (_server, mut client, _) = begin();
    let began = one(&mut client, "begin; select now()");
    let later = "select statement_timestamp() > now() and clock_timestamp() >= now()";
    assert_eq!(one(&mut client, "select pg_sleep(0.01)"), "");
    assert_eq!(one(&mut client, later), "t");
    assert_eq!(one(&mut client, "select current_timestamp"), began);
    assert_eq!(one(&mut client, "commit; select now() = statement_timestamp()"), "t");
    assert_ne!(one(&mut client, "select now()"), began);
    // The arguments of EXECUTE are those of the same statement.
    run(&mut client, "prepare p(timestamptz) as select $1 = now()");
    for _ in 0..2 {
        assert_eq!(one(&mut client, "execute p(now())"), "t");
    }
}

#[test]
fn savepoints_that_were_set_before_the_first_write_undo_it() {
    let (_server, mut first, mut second) = begin();
    run(&mut first, "begin; savepoint a; select n from t; savepoint b; savepoint \"C d\"");
    run(&mut second, "update t set n = 1");
    run(&mut first, "update t set n = n + 10; rollback to \"C d\"");
    assert_eq!(one(&mut first, "select n from t"), "1");
    run(&mut first, "update t set n = n + 20; release b");
    assert_eq!(code(&mut first, "rollback to b"), "3B001");
    assert_eq!(code(&mut first, "select 1"), "25P02");
    run(&mut first, "rollback to a");
    assert_eq!(one(&mut first, "select n from t"), "1");
    run(&mut first, "update t set n = n + 30; commit");
    assert_eq!(one(&mut second, "select n from t"), "31");
    // An error before the first write.
    run(&mut first, "begin; savepoint a");
    assert_eq!(code(&mut first, "select * from nothere"), "42P01");
    assert_eq!(code(&mut first, "select n from t"), "25P02");
    run(&mut first, "rollback to a; update t set n = 32; release a; commit");
    assert_eq!(one(&mut second, "select n from t"), "32");
    // Released before the first write.
    run(&mut first, "begin; savepoint a; release a; update t set n = 33; rollback");
    assert_eq!(one(&mut second, "select n from t"), "32");
}

#[test]
fn an_open_portal_keeps_the_rows_of_its_statement() {
    let (_server, mut first, mut second) = begin();
    run(&mut first, "insert into t values (1), (2)");
    let mut transaction = first.transaction().unwrap();
    let portal = transaction.bind("select n from t order by n", &[]).unwrap();
    assert_eq!(transaction.query_portal(&portal, 1).unwrap()[0].get::<_, i32>(0), 0);
    run(&mut second, "update t set n = n + 10");
    transaction.execute("update t set n = n + 10", &[]).unwrap();
    let rest = transaction.query_portal(&portal, 10).unwrap();
    assert_eq!(rest.iter().map(|row| row.get(0)).collect::<Vec<i32>>(), [1, 2]);
    transaction.commit().unwrap();
    assert_eq!(one(&mut second, "select sum(n) from t"), "63");
}

#[test]
fn constraints_are_deferred_to_the_end_of_the_transaction() {
    let (_server, mut first, mut second) = begin();
    run(
        &mut first,
        "create table a(id int primary key);
         create table b(a int references a(id) deferrable initially deferred);
         create table c(a int references a(id))",
    );
    run(&mut first, "begin; select count(*) from a; insert into b values (1)");
    assert_eq!(code(&mut first, "commit"), "23503");
    run(&mut first, "begin; select 1; insert into b values (1); insert into a values (1); commit");
    run(&mut first, "begin; select 1; pragma defer_foreign_keys = on; select count(*) from a");
    run(&mut first, "insert into c values (2); select 2; insert into a values (2); commit");
    assert_eq!(one(&mut second, "select count(*) from b, c"), "1");
    run(&mut first, "begin; pragma defer_foreign_keys = on; insert into c values (3)");
    assert_eq!(code(&mut first, "commit"), "23503");
    assert_eq!(code(&mut first, "insert into c values (3)"), "23503", "it ended with its block");
}

#[test]
fn a_schema_that_others_change_between_two_statements_is_no_error() {
    let (_server, mut first, mut second) = begin();
    let mut transaction = first.transaction().unwrap();
    let select = transaction.prepare("select n from t").unwrap();
    transaction.query_one(&select, &[]).unwrap();
    run(&mut second, "create table u(n int); alter table t add column m int default 7");
    assert_eq!(transaction.query_one(&select, &[]).unwrap().get::<_, i32>(0), 0);
    transaction
        .batch_execute("create table v as select m from t; insert into u values (8)")
        .unwrap();
    assert_eq!(code(&mut second, "select * from v"), "42P01");
    transaction.commit().unwrap();
    assert_eq!(one(&mut second, "select m from v"), "7");
    run(&mut first, "begin; drop table u; create table w(n int); rollback");
    assert_eq!(one(&mut second, "select n from u"), "8");
    assert_eq!(code(&mut second, "select * from w"), "42P01");
}

#[test]
fn what_locks_keeps_others_from_writing_until_the_transaction_ends() {
    let (_server, mut first, mut second) = begin();
    let locks = [
        "begin; select n from t for update",
        "begin; select n from t limit 1 for no key update of t",
        "begin; select n from t for share nowait",
        "begin; select n from t for key share",
        "begin; with c as (select n from t) select * from c for update",
        "begin immediate",
        "begin exclusive transaction",
        "begin isolation level serializable; select n from t for update",
        "begin; lock table t",
        "begin; lock t in access exclusive mode nowait",
        "begin; lock table t in access share mode",
        "begin; savepoint a; lock t; rollback to a",
    ];
    for lock in locks {
        run(&mut first, lock);
        assert!(!can_write(&mut second), "{lock}");
        assert_eq!(one(&mut second, "select n from t"), "0", "{lock}: others read");
        run(&mut first, "update t set n = 1; rollback");
        assert!(can_write(&mut second), "{lock}");
    }
    // In the extended protocol.
    let mut transaction = first.transaction().unwrap();
    let n: i32 = transaction.query_one("select n from t for update", &[]).unwrap().get(0);
    assert!(!can_write(&mut second));
    transaction.execute("update t set n = $1", &[&(n + 1)]).unwrap();
    transaction.commit().unwrap();
    // Without a transaction, the lock ends with its statement, and EXPLAIN does not lock.
    assert_eq!(one(&mut first, "select n from t for update"), "1");
    assert!(can_write(&mut second));
    run(&mut first, "begin; explain select n from t for update");
    assert!(can_write(&mut second));
    run(&mut first, "rollback; begin isolation level repeatable read; lock t in access share mode");
    run(&mut second, "drop table t");
    assert_eq!(one(&mut first, "select n from t"), "1", "its snapshot has the table");
}

#[test]
fn a_lock_that_cannot_be_had_is_refused_with_its_reason() {
    let (_server, mut first, mut second) = begin();
    run(&mut first, "begin; update t set n = 1");
    assert_eq!(code(&mut second, "select n from t for update nowait"), "55P03");
    assert_eq!(code(&mut second, "begin; lock t nowait"), "55P03");
    run(&mut second, "rollback; set lock_timeout = '50ms'");
    for waits in ["select n from t for update", "begin immediate", "begin; lock table t"] {
        assert_eq!(code(&mut second, waits), "55P03", "{waits}");
        run(&mut second, "rollback");
    }
    run(&mut first, "rollback");
    let skips = "select n from t for update skip locked";
    let error = second.batch_execute(skips).unwrap_err();
    let error = error.as_db_error().unwrap();
    assert_eq!((error.code().code(), error.hint().is_some()), ("0A000", true));
    for (sql, expected) in [
        ("lock table t", "25P01"),
        ("begin; lock table nothere", "42P01"),
        ("begin; lock table t in some mode", "42601"),
        ("begin read only; select n from t for update", "25006"),
        ("begin read only; lock table t", "25006"),
        ("select n from t for update limit 1", "42601"),
    ] {
        assert_eq!(code(&mut second, sql), expected, "{sql}");
        run(&mut second, "rollback");
    }
    assert!(can_write(&mut first));
    // A lock on what has changed since it was read.
    for lock in ["select n from t for update", "lock table t"] {
        run(&mut second, "begin isolation level repeatable read; select n from t");
        run(&mut first, "update t set n = n + 1");
        assert_eq!(code(&mut second, lock), "40001", "{lock}");
        run(&mut second, "rollback");
        assert!(can_write(&mut first));
    }
}

#[test]
fn a_wait_for_a_lock_can_be_cancelled() {
    let (_server, mut first, mut second) = begin();
    run(&mut first, "begin immediate");
    for waits in ["begin immediate", "select n from t for update", "begin; lock table t"] {
        let token = second.cancel_token();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| code(&mut second, waits));
            let queue = "select count(*) from ums_waiting_tasks where wait_type = 'LCK_M_X'";
            while one(&mut first, queue) == "0" {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            token.cancel_query(NoTls).unwrap();
            assert_eq!(waiting.join().unwrap(), "57014", "{waits}");
        });
        run(&mut second, "rollback");
    }
    run(&mut first, "commit");
    assert!(can_write(&mut second));
}
