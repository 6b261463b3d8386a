//! The settings of a session: each is obeyed, or refused with its reason.

use postgres::{Client, NoTls};

mod common;
use common::{TestServer, one, run};

/// Returns the SQLSTATE with which the statements fail, with a `?` if there is a hint; "" if they
/// do not fail.
fn code(client: &mut Client, sql: &str) -> String {
    let Err(error) = client.batch_execute(sql) else { return String::new() };
    let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error}"));
    format!("{}{}", error.code().code(), if error.hint().is_some() { "?" } else { "" })
}

#[test]
fn a_name_that_is_not_known_is_refused() {
    let server = TestServer::start();
    let mut client = server.client();
    for (sql, expected) in [
        ("set nonexist = 1", "42704"),
        ("set local nonexist = 1", "42704"),
        ("show nonexist", "42704"),
        ("show app.nothing", "42704"),
        ("reset nonexist", "42704"),
        ("select current_setting('nonexist')", "42704"),
        ("select set_config('nonexist', '1', false)", "42704"),
        ("set work_mem '1GB'", "42601"),
        ("set work_mem =", "42601"),
        ("set app. = 1", "42601"),
        ("set constraints all deferred", "0A000?"),
        ("show all", "0A000?"),
    ] {
        assert_eq!(code(&mut client, sql), expected, "{sql}");
    }
    assert_eq!(one(&mut client, "select current_setting('nonexist', true)"), "NULL");
}

#[test]
fn a_value_is_obeyed_or_refused() {
    let server = TestServer::start();
    let mut client = server.client();
    for (sql, expected) in [
        ("set timezone = 'UTC'", ""),
        ("set time zone 'Etc/UTC'", ""),
        ("set time zone 0", ""),
        ("set timezone = 'Europe/Berlin'", "0A000?"),
        ("set time zone '+02'", "0A000?"),
        ("set client_encoding to 'utf-8'", ""),
        ("set names 'UTF8'", ""),
        ("set names 'latin1'", "0A000?"),
        ("set datestyle = 'ISO, DMY'", ""),
        ("set datestyle = 'German'", "0A000?"),
        ("set search_path = public, other", ""),
        ("set search_path to ''", ""),
        ("set search_path = tenant", "0A000?"),
        ("set standard_conforming_strings = off", "0A000?"),
        ("set role none", ""),
        ("set role other", "0A000?"),
        ("set session authorization other", "0A000?"),
        ("set server_version = '16.0'", "55P02"),
        ("set synchronous_commit = perhaps", "22023"),
        ("set default_transaction_read_only = perhaps", "22023"),
        ("set default_transaction_isolation = 'chaos'", "22023"),
        ("set transaction_isolation = 'chaos'", "22023"),
        ("set statement_timeout = soon", "22023?"),
        ("set work_mem = '1GB'", ""),
        ("set session enable_seqscan to off", ""),
        ("select set_config('timezone', 'Europe/Berlin', false)", "0A000?"),
    ] {
        assert_eq!(code(&mut client, sql), expected, "{sql}");
    }
    assert_eq!(one(&mut client, "show work_mem"), "1GB");
    assert_eq!(one(&mut client, "show time zone"), "0");
    run(&mut client, "set work_mem to default; reset timezone");
    assert_eq!(one(&mut client, "show work_mem"), "4MB");
    assert_eq!(one(&mut client, "select current_setting('TimeZone')"), "UTC");
}

#[test]
fn a_session_can_be_read_only() {
    let server = TestServer::start();
    let (mut client, mut other) = (server.client(), server.client());
    run(&mut client, "create table t(n int); set default_transaction_read_only = on");
    assert_eq!(one(&mut client, "show transaction_read_only"), "on");
    for sql in ["insert into t values (1)", "create table u(n int)", "begin; delete from t"] {
        assert_eq!(code(&mut client, sql), "25006", "{sql}");
        run(&mut client, "rollback");
    }
    assert_eq!(code(&mut client, "begin immediate"), "25006");
    assert_eq!(code(&mut client, "copy t from stdin"), "25006");
    run(&mut client, "begin read write; insert into t values (1); commit");
    run(&mut client, "begin; set transaction read write; insert into t values (2); commit");
    run(&mut client, "begin; set local transaction_read_only to off; insert into t values (3)");
    assert_eq!(one(&mut client, "show transaction_read_only"), "off");
    run(&mut client, "commit; set session characteristics as transaction read write");
    assert_eq!(one(&mut client, "show default_transaction_read_only"), "off");
    run(&mut client, "insert into t values (4)");
    assert_eq!(one(&mut other, "select sum(n) from t"), "10");
    run(&mut client, "begin; set transaction_read_only = on");
    assert_eq!(code(&mut client, "insert into t values (5)"), "25006");
    run(&mut client, "rollback; insert into t values (5)");
}

#[test]
fn names_with_a_dot_belong_to_the_client() {
    let server = TestServer::start();
    let (mut client, mut other) = (server.client(), server.client());
    run(&mut client, "set app.user = 'ann'; set \"App\".\"Role\" to reader");
    assert_eq!(one(&mut client, "show app.user"), "ann");
    assert_eq!(one(&mut client, "select current_setting('app.role')"), "reader");
    assert_eq!(code(&mut other, "show app.user"), "42704");
    // In a view and a trigger, as those that use it.
    run(
        &mut client,
        "create table t(n int, by text); create table log(by text);
         create trigger g after insert on t begin
             insert into log values (current_setting('app.user', true)); end;
         create view mine as select * from t where by = current_setting('app.user', true);
         insert into t values (1, 'ann'), (2, 'bob')",
    );
    assert_eq!(one(&mut client, "select n from mine"), "1");
    run(&mut other, "set app.user = 'bob'");
    assert_eq!(one(&mut other, "select n from mine"), "2");
    let mut copy = client.copy_in("copy t from stdin").unwrap();
    std::io::Write::write_all(&mut copy, b"3\tann\n").unwrap();
    copy.finish().unwrap();
    assert_eq!(one(&mut client, "select count(by) from log where by = 'ann'"), "3");
    // As in PostgreSQL, it stays known when its value ends.
    run(&mut client, "begin; set local app.new = 'x'; commit; reset app.user");
    assert_eq!(one(&mut client, "show app.new"), "");
    assert_eq!(one(&mut client, "show app.user"), "");
    run(&mut client, "set app.user = 'eve'; discard all");
    assert_eq!(one(&mut client, "select current_setting('app.user')"), "");
}

#[test]
fn what_is_set_in_a_transaction_ends_as_the_transaction_does() {
    let server = TestServer::start();
    let mut client = server.client();
    let user = "select current_setting('app.user')";
    run(&mut client, "set app.user = 'a'; set lock_timeout = 1");
    run(&mut client, "begin; set local app.user = 'b'; set local lock_timeout = 2");
    assert_eq!(one(&mut client, user), "b");
    assert_eq!(one(&mut client, "show lock_timeout"), "2ms");
    run(&mut client, "commit");
    assert_eq!(one(&mut client, user), "a");
    assert_eq!(one(&mut client, "show lock_timeout"), "1ms");
    run(&mut client, "begin; set app.user = 'c'; set lock_timeout = 3; rollback");
    assert_eq!(one(&mut client, user), "a");
    assert_eq!(one(&mut client, "show lock_timeout"), "1ms");
    run(&mut client, "begin; set app.user = 'c'; set local app.user = 'd'; commit");
    assert_eq!(one(&mut client, user), "c");
    run(&mut client, "begin; select set_config('app.user', 'e', true)");
    assert_eq!(one(&mut client, user), "e");
    assert_eq!(code(&mut client, "select missing"), "42703");
    run(&mut client, "rollback");
    assert_eq!(one(&mut client, user), "c");
    assert_eq!(one(&mut client, "select set_config('app.user', 'f', false)"), "f");
    let described = client.query_one("select set_config('app.user', 'g', false)", &[]).unwrap();
    assert_eq!(described.get::<_, &str>(0), "g");
    assert_eq!(one(&mut client, user), "g");
    run(&mut client, "begin; reset all; rollback");
    assert_eq!(one(&mut client, user), "g");
    // Outside a transaction it is a warning.
    run(&mut client, "set local app.user = 'h'");
    assert_eq!(one(&mut client, user), "g");
    let late = "begin; select set_config('transaction_isolation', 'serializable', true)";
    assert_eq!(code(&mut client, late), "25001");
}

#[test]
fn the_first_packet_sets_what_the_session_begins_with() {
    let server = TestServer::start();
    let mut config = server.config();
    config
        .options("-c app.user=ann -c default_transaction_isolation=serializable --lock-timeout=7");
    config.application_name("tests");
    let mut client = config.connect(NoTls).unwrap();
    assert_eq!(one(&mut client, "show app.user"), "ann");
    run(&mut client, "set app.user = 'bob'; set lock_timeout = 8; set application_name = x");
    run(&mut client, "reset all");
    assert_eq!(one(&mut client, "show app.user"), "ann");
    assert_eq!(one(&mut client, "show lock_timeout"), "7ms");
    assert_eq!(one(&mut client, "show application_name"), "tests");
    assert_eq!(one(&mut client, "show transaction_isolation"), "serializable");
    let mut wrong = server.config();
    wrong.options("-c nonexist=1");
    let error = wrong.connect(NoTls).err().unwrap();
    assert_eq!(error.code().unwrap().code(), "42704");
}
