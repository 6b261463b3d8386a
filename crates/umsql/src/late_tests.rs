//! A timeout that comes when its statement has just ended does not end the next statement of the
//! same unit.
//!
//! The engine's connection of the test has a function that does what the clock does when a time is
//! over. The statement that calls it is too short to notice.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::functions::FunctionFlags;
use ums::{Node, User};

use crate::engine::Files;
use crate::host;
use crate::host::memory::MemoryConn;
use crate::keys::Cause;
use crate::server::{Server, Settings};
use crate::session::{Flow, Session};
use crate::vfs::testing::{LossyDisk, lossy};

/// Passes these bytes to the session, which carries out one unit of them in each request of the
/// user. Returns the answer.
fn send(
    mut talk: (Session, MemoryConn),
    user: &User,
    bytes: &[u8],
) -> ((Session, MemoryConn), String) {
    talk.1.input.extend(bytes);
    loop {
        let request = move || {
            let flow = talk.0.on_readable(&mut talk.1);
            (talk, flow)
        };
        let flow;
        (talk, flow) = user.enqueue(request).unwrap().join().unwrap();
        if flow != Flow::More {
            assert_eq!(flow, Flow::Idle);
            let answer = std::mem::take(&mut talk.1.output);
            return (talk, String::from_utf8_lossy(&answer).into_owned());
        }
    }
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    [&[tag][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', format!("{sql}\0").as_bytes())
}

/// Returns the messages that execute a statement, without a Sync.
fn execute(sql: &str) -> Vec<u8> {
    let parse = message(b'P', format!("\0{sql}\0\0\0").as_bytes());
    let bind = message(b'B', b"\0\0\0\0\0\0\0\0");
    [parse, bind, message(b'E', b"\0\0\0\0\0")].concat()
}

/// Returns a session that has logged in, on a server where `soundex` is the end of the time that
/// `cause` names.
fn begin(cause: Cause) -> (Arc<Server>, Node, User, (Session, MemoryConn)) {
    let mut settings = Settings::new(Path::new("/db"));
    settings.files = Files::On(lossy(&LossyDisk::default()));
    settings.timeouts.statement = Duration::from_secs(3600);
    settings.timeouts.lock = Duration::from_secs(3600);
    let server = Server::open(settings).unwrap();
    let node = Node::builder().schedulers(1).build().unwrap();
    let user = node.user();
    let (keys, id) = (Arc::clone(&server.keys), user.id());
    let over = move |_: &rusqlite::functions::Context<'_>| {
        keys.cancel_because(id, cause, &host::cancel_request);
        Ok(7)
    };
    let lease = server.engine.lease(0).unwrap();
    lease.create_scalar_function("soundex", 1, FunctionFlags::SQLITE_UTF8, over).unwrap();
    drop(lease);
    let client = MemoryConn::of(user.id());
    let talk = (server.session(user.id()), client);
    let (talk, welcome) = send(talk, &user, b"\0\0\0\x10\0\x03\0\0user\0u\0\0");
    assert!(welcome.ends_with("Z\0\0\0\x05I"), "{welcome:?}");
    let (talk, _) = send(talk, &user, &query("create table t(n int)"));
    (server, node, user, talk)
}

#[test]
fn a_late_timeout_does_not_end_the_next_statement_of_a_query() {
    for cause in [Cause::StatementTimeout, Cause::LockTimeout] {
        let (server, _node, user, talk) = begin(cause);
        let long = "with recursive c(i) as (select 1 union all select i + 1 from c limit 20000)
            select count(*) from c";
        let text = format!("insert into t values (soundex('a')); {long}; insert into t values (8)");
        let (talk, answer) = send(talk, &user, &query(&text));
        assert!(!answer.contains("ERROR"), "{cause:?}: {answer:?}");
        assert_eq!(answer.matches("INSERT 0 1\0").count(), 2, "{answer:?}");
        let (talk, answer) = send(talk, &user, &query("select 'all ' || count(*) from t"));
        assert!(answer.contains("all 2"), "one transaction, with all of it: {answer:?}");
        drop(talk);
        assert_eq!(server.engine.gate.owner(), None);
    }
}

#[test]
fn a_late_timeout_does_not_end_the_next_statement_of_a_pipeline() {
    let (_server, _node, user, talk) = begin(Cause::StatementTimeout);
    let long = "with recursive c(i) as (select 1 union all select i + 1 from c limit 20000)
        select 'all ' || count(*) from c, t";
    let first = execute("insert into t values (soundex('a'))");
    let unit = [first, execute(long), message(b'S', b"")].concat();
    let (talk, answer) = send(talk, &user, &unit);
    assert!(answer.contains("INSERT 0 1\0") && answer.contains("all 20000"), "{answer:?}");
    // What ends in time is cancelled, with the reason.
    let cut =
        format!("select count(soundex(i)) from ({})", long.replace("'all ' || count(*)", "i"));
    let (_, answer) = send(talk, &user, &query(&cut));
    assert!(answer.contains("canceling statement due to statement timeout"), "{answer:?}");
}

#[test]
fn nothing_is_carried_out_for_a_client_that_has_gone() {
    let (server, _node, user, (mut session, mut client)) = begin(Cause::ClientGone);
    let text = "insert into t values (soundex('a')); insert into t values (8)";
    client.input.extend(query(text));
    let request = move || {
        let flow = session.on_readable(&mut client);
        (session, flow)
    };
    let (session, flow) = user.enqueue(request).unwrap().join().unwrap();
    assert_eq!(flow, Flow::Close);
    drop(session);
    let client = MemoryConn::of(user.id());
    let talk = (server.session(user.id()), client);
    let (talk, _) = send(talk, &user, b"\0\0\0\x10\0\x03\0\0user\0u\0\0");
    let (_, answer) = send(talk, &user, &query("select 'all ' || count(*) from t"));
    assert!(answer.contains("all 0"), "the transaction is rolled back: {answer:?}");
}
