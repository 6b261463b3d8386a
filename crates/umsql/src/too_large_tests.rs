//! A message for which the client has no memory left is skipped and answered with one error, and
//! the session goes on.

use std::path::Path;

use crate::engine::Files;
use crate::host::memory::MemoryConn;
use crate::server::{Server, Settings};
use crate::session::{Flow, Session};
use crate::vfs::testing::{LossyDisk, lossy};

/// What a client may take in these tests, in bytes.
const MEMORY: usize = 8 << 20;

/// Returns a session that has logged in, and its client.
fn begin() -> (Session, MemoryConn) {
    let mut settings = Settings::new(Path::new("/db"));
    settings.limits.client = MEMORY;
    settings.files = Files::On(lossy(&LossyDisk::default()));
    let mut talk = (Server::open(settings).unwrap().session(1), MemoryConn::of(1));
    send(&mut talk, b"\0\0\0\x10\0\x03\0\0user\0u\0\0");
    assert!(talk.0.is_logged_in());
    assert_eq!(send(&mut talk, &query("create table t(a text)")).0, "CZ");
    talk
}

/// Passes these bytes to the session until it waits for more. Returns the tags of its answers, and
/// the answers as a text.
fn send((session, client): &mut (Session, MemoryConn), bytes: &[u8]) -> (String, String) {
    client.input.extend(bytes);
    client.output.clear();
    loop {
        let flow = session.on_readable(client);
        if flow == Flow::Close || (flow == Flow::Idle && client.input.is_empty()) {
            break;
        }
    }
    let (mut tags, mut rest) = (String::new(), &client.output[..]);
    while let [tag, a, b, c, d, ..] = *rest {
        tags.push(tag.into());
        rest = &rest[1 + u32::from_be_bytes([a, b, c, d]) as usize..];
    }
    (tags, String::from_utf8_lossy(&client.output).into_owned())
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

/// Returns a statement of this many bytes.
fn long(bytes: usize) -> String {
    format!("select {}", "1".repeat(bytes))
}

#[test]
fn a_query_without_memory_is_one_error() {
    let mut talk = begin();
    // The first does not fit when it arrives, the second when its tokens are found.
    for bytes in [3 * MEMORY, MEMORY / 2] {
        let (tags, answer) = send(&mut talk, &[query(&long(bytes)), query("select 1")].concat());
        assert_eq!(tags, "EZTDCZ", "{bytes}: {answer:?}");
        assert!(answer.contains("53200"), "{bytes}: {answer:?}");
    }
}

#[test]
fn what_is_skipped_takes_no_memory_however_it_arrives() {
    let mut talk = begin();
    let all = query(&long(3 * MEMORY));
    for part in all[..all.len() - 1].chunks(99_999) {
        assert_eq!(send(&mut talk, part).0, "", "the answer comes after the message");
    }
    assert!(talk.0.input.capacity() < 100_000, "{}", talk.0.input.capacity());
    assert_eq!(send(&mut talk, &[0]).0, "EZ");
    assert_eq!(send(&mut talk, &query("select 1")).0, "TDCZ");
}

#[test]
fn a_cycle_with_a_message_without_memory_has_no_effect() {
    let mut talk = begin();
    let insert = execute("insert into t values ('a')");
    let sync = message(b'S', b"");
    for bytes in [3 * MEMORY, MEMORY / 2] {
        let all = [&insert, &execute(&long(bytes)), &insert, &sync, &insert, &sync];
        let (tags, answer) = send(&mut talk, &all.map(|part| &part[..]).concat());
        assert_eq!(tags, "12CEZ12CZ", "{bytes}: {answer:?}");
        let (_, answer) =
            send(&mut talk, &query("select 'all ' || count(*) from t; delete from t"));
        assert!(answer.contains("all 1"), "{bytes}: {answer:?}");
    }
}

#[test]
fn a_transaction_with_a_message_without_memory_has_failed() {
    let mut talk = begin();
    assert_eq!(send(&mut talk, &query("begin; insert into t values ('a')")).0, "CCZ");
    let (tags, answer) = send(&mut talk, &query(&long(3 * MEMORY)));
    assert_eq!((&tags[..], answer.ends_with("Z\0\0\0\x05E")), ("EZ", true), "{answer:?}");
    assert_eq!(send(&mut talk, &query("select 1")).0, "EZ");
    assert_eq!(send(&mut talk, &query("rollback; select 1")).0, "CTDCZ");
}

#[test]
fn a_copy_with_data_without_memory_is_one_error() {
    let mut talk = begin();
    for bytes in [3 * MEMORY, 5 * MEMORY / 8] {
        let data = message(b'd', &vec![b'x'; bytes]);
        let (end, more) = (message(b'c', b""), message(b'd', b"a\n"));
        let begin = query("copy t from stdin");
        let all = [begin, more.clone(), data, more, end, query("select count(*) from t")].concat();
        let (tags, answer) = send(&mut talk, &all);
        assert_eq!(tags, "GEZTDCZ", "{bytes}: {answer:?}");
        assert!(answer.contains("53200"), "{bytes}: {answer:?}");
    }
    // It is skipped before the COPY begins, which must not go on without it.
    let data = message(b'd', &vec![b'x'; 3 * MEMORY]);
    let all = [execute("copy t from stdin"), data, message(b'c', b""), message(b'S', b"")].concat();
    let (tags, answer) = send(&mut talk, &all);
    assert_eq!(tags, "12GEZ", "{answer:?}");
    let (_, answer) = send(&mut talk, &query("select 'all ' || count(*) from t"));
    assert!(answer.contains("all 0"), "{answer:?}");
}
