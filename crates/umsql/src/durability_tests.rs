//! No commit is acknowledged before it is on the disk: sessions run on a simulated disk whose syncs
//! the tests observe.
//!
//! The test's connection sees every byte that a session sends. Whenever a session sends something,
//! everything written to the log must be durable, unless the transaction is still open.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::engine::Files;
use crate::host::Conn;
use crate::server::{Server, Settings};
use crate::session::{Flow, Session};
use crate::vfs::testing::{Faults, LossyDisk, lossy};

/// A client that has sent all of its input, and the output that it received.
struct Client {
    server: Arc<Server>,
    input: VecDeque<u8>,
    output: Vec<u8>,
    /// Whether the log must be durable whenever output is sent.
    watches: bool,
}

impl Conn for Client {
    fn user(&self) -> u64 {
        1
    }

    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = buf.len().min(self.input.len());
        if len == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        for (byte, read) in buf.iter_mut().zip(self.input.drain(..len)) {
            *byte = read;
        }
        Ok(len)
    }

    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_read(buf)
    }

    fn resume(&self) -> Box<dyn FnOnce() + Send> {
        Box::new(|| ())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.watches {
            assert!(
                self.server.engine.log_is_durable(),
                "sent before the log is durable: {bytes:?}"
            );
        }
        self.output.extend(bytes);
        Ok(())
    }
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let len = (body.len() as u32 + 4).to_be_bytes();
    [&[tag][..], &len, body].concat()
}

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', &[sql.as_bytes(), b"\0"].concat())
}

/// Returns the messages Parse, Bind and Execute for this statement.
fn execute(sql: &str) -> Vec<u8> {
    let parse = message(b'P', &[b"\0", sql.as_bytes(), b"\0\0\0"].concat());
    let bind = message(b'B', b"\0\0\0\0\0\0\0\0");
    [parse, bind, message(b'E', b"\0\0\0\0\0")].concat()
}

fn sync() -> Vec<u8> {
    message(b'S', b"")
}

fn startup() -> Vec<u8> {
    let body = b"\0\x03\0\0user\0u\0\0";
    [&(body.len() as u32 + 4).to_be_bytes()[..], body].concat()
}

/// Returns a server on a disk of its own, and a client that has logged in.
fn client(disk: &LossyDisk) -> (Session, Client) {
    client_with(disk, 64 << 20)
}

/// Like [`client`], with a limit on the length of messages.
fn client_with(disk: &LossyDisk, max_message: usize) -> (Session, Client) {
    let mut settings = Settings::new(Path::new("/db"));
    settings.max_message = max_message;
    settings.files = Files::On(lossy(disk));
    let server = Server::open(settings).unwrap();
    let (input, output) = (VecDeque::from(startup()), Vec::new());
    let mut client = Client { server: Arc::clone(&server), input, output, watches: false };
    let mut session = server.session(1);
    assert_eq!(session.on_readable(&mut client), Flow::Idle);
    assert!(session.is_logged_in());
    (session, client)
}

/// Passes these messages to the session, and returns the tags of its answers.
fn send(session: &mut Session, client: &mut Client, bytes: Vec<u8>) -> (String, Flow) {
    client.input.extend(bytes);
    client.output.clear();
    let mut flow = Flow::More;
    while flow == Flow::More {
        flow = session.on_readable(client);
    }
    let (mut tags, mut rest) = (String::new(), &client.output[..]);
    while let [tag, a, b, c, d, ..] = *rest {
        tags.push(tag.into());
        rest = &rest[1 + u32::from_be_bytes([a, b, c, d]) as usize..];
    }
    (tags, flow)
}

#[test]
fn every_way_to_commit_waits_for_the_disk_before_its_acknowledgement() {
    let (mut session, mut client) = client(&LossyDisk::default());
    let copy = |rows: &str| {
        let data = message(b'd', rows.as_bytes());
        [query("copy t from stdin"), data, message(b'c', b"")].concat()
    };
    client.watches = true;
    let ways = [
        (query("create table t(x int)"), "CZ"),
        (query("insert into t values (1)"), "CZ"),
        (query("insert into t values (2); insert into t values (3)"), "CCZ"),
        (query("insert into t values (4) returning x"), "TDCZ"),
        ([execute("insert into t values (5)"), sync()].concat(), "12CZ"),
        (copy("6\n7\n"), "GCZ"),
        (query("create index t_x on t(x)"), "CZ"),
        (query("pragma optimize"), "TCZ"),
        (query("begin; insert into t values (8); commit; select count(*) from t"), "CCCTDCZ"),
    ];
    for (bytes, tags) in ways {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert_eq!(send(&mut session, &mut client, bytes), (tags.into(), Flow::Idle), "{text}");
    }
    let pipeline: Vec<u8> = (10..60)
        .flat_map(|n| [execute(&format!("insert into t values ({n})")), sync()].concat())
        .collect();
    assert_eq!(send(&mut session, &mut client, pipeline).0, "12CZ".repeat(50));
    // The output after the commit is so long that it is sent in pieces. The first piece contains
    // the acknowledgement.
    let much = "begin; insert into t values (9); commit;
                select x, hex(zeroblob(2000)) from t limit 40; select 1";
    assert!(send(&mut session, &mut client, query(much)).0.starts_with("CCCTD"));
    // In an open transaction nothing is acknowledged, so nothing must be durable.
    client.watches = false;
    send(&mut session, &mut client, query("begin"));
    send(&mut session, &mut client, query("insert into t values (100)"));
    client.watches = true;
    assert_eq!(send(&mut session, &mut client, query("commit")).0, "CZ");
    let counts = client.server.engine.group_commit_counts();
    assert_eq!((counts.commits, counts.not_waited), (61, 0));
}

#[test]
fn a_commit_whose_sync_fails_is_not_acknowledged_and_nothing_is_written_after_it() {
    let disk = LossyDisk::default();
    let (mut session, mut client) = client(&disk);
    send(&mut session, &mut client, query("create table t(x int)"));
    disk.set_faults(Faults { sync_fails: true, ..Faults::default() });
    let (tags, flow) = send(&mut session, &mut client, query("insert into t values (1)"));
    assert_eq!((&*tags, flow), ("E", Flow::Close));
    let said = String::from_utf8_lossy(&client.output).into_owned();
    assert!(said.contains("FATAL") && said.contains("58030"), "{said}");

    disk.set_faults(Faults::default());
    let mut other = client.server.session(2);
    send(&mut other, &mut client, startup());
    let (tags, flow) = send(&mut other, &mut client, query("insert into t values (2)"));
    assert_eq!((&*tags, flow), ("EZ", Flow::Idle));
    assert!(String::from_utf8_lossy(&client.output).contains("58030"));
    assert_eq!(send(&mut other, &mut client, query("select count(*) from t")).0, "TDCZ");
}

#[test]
fn a_session_may_choose_not_to_wait() {
    let (mut session, mut client) = client(&LossyDisk::default());
    send(&mut session, &mut client, query("create table t(x int)"));
    send(&mut session, &mut client, query("set synchronous_commit = off"));
    let before = client.server.engine.group_commit_counts();
    assert_eq!(send(&mut session, &mut client, query("insert into t values (1)")).0, "CZ");
    let after = client.server.engine.group_commit_counts();
    assert_eq!((after.commits, after.not_waited), (before.commits, before.not_waited + 1));
    // The lazy writer syncs the log for this commit. Without schedulers it does so immediately.
    assert!(client.server.engine.log_is_durable());
}

#[test]
fn a_client_cannot_change_how_the_log_is_kept() {
    let (mut session, mut client) = client(&LossyDisk::default());
    send(&mut session, &mut client, query("create table t(x int)"));
    for setting in [
        "pragma journal_mode=delete",
        "pragma main.journal_mode = memory",
        "PRAGMA \"Synchronous\"(off)",
        "explain pragma synchronous=0",
        "pragma locking_mode=exclusive",
        "pragma wal_autocheckpoint=1",
    ] {
        assert_eq!(send(&mut session, &mut client, query(setting)).0, "EZ", "{setting}");
        let said = String::from_utf8_lossy(&client.output).into_owned();
        let code = if setting.starts_with("explain") { "42601" } else { "42501" };
        assert!(said.contains(code), "{setting}: {said}");
        let parsed = [execute(setting), sync()].concat();
        assert_eq!(send(&mut session, &mut client, parsed).0, "EZ", "{setting}");
    }
    for question in ["pragma journal_mode", "pragma synchronous", "pragma wal_checkpoint"] {
        assert_eq!(send(&mut session, &mut client, query(question)).0, "TDCZ", "{question}");
    }
    client.watches = true;
    assert_eq!(send(&mut session, &mut client, query("insert into t values (1)")).0, "CZ");
}

#[test]
fn a_statement_that_is_several_for_sqlite_happens_as_a_whole_or_not_at_all() {
    let (mut session, mut client) = client(&LossyDisk::default());
    send(&mut session, &mut client, query("create table t(x int); create table u(x int)"));
    send(&mut session, &mut client, query("insert into t values (1); insert into u values (1)"));
    let commits = |client: &Client| client.server.engine.group_commit_counts().commits;
    client.watches = true;
    for bytes in [query("truncate t, nowhere"), [execute("truncate t, nowhere"), sync()].concat()] {
        assert!(send(&mut session, &mut client, bytes).0.ends_with("EZ"));
        assert_eq!(send(&mut session, &mut client, query("select x from t")).0, "TDCZ");
    }
    let before = commits(&client);
    assert_eq!(send(&mut session, &mut client, query("truncate t, u")).0, "CZ");
    assert_eq!(send(&mut session, &mut client, query("drop table t, u")).0, "CZ");
    assert_eq!(commits(&client), before + 2);
}

/// SQLite applies a PRAGMA while it prepares the statement.
#[test]
fn a_setting_that_is_prepared_only_does_not_reach_other_sessions() {
    let (mut session, mut client) = client(&LossyDisk::default());
    send(&mut session, &mut client, query("create table t(x int primary key)"));
    let text = "pragma foreign_keys=off";
    let parse = message(b'P', &[b"\0", text.as_bytes(), b"\0\0\0"].concat());
    assert_eq!(send(&mut session, &mut client, [parse, sync()].concat()).0, "1Z");
    drop(session);

    let mut other = client.server.session(2);
    send(&mut other, &mut client, startup());
    send(&mut other, &mut client, query("pragma foreign_keys"));
    let one = client.output.windows(7).any(|w| w == b"\0\x01\0\0\0\x011");
    assert!(one, "foreign keys are on: {:?}", client.output);
}

#[test]
fn a_line_of_copy_data_that_never_ends_is_refused() {
    let (mut session, mut client) = client_with(&LossyDisk::default(), 64 << 10);
    send(&mut session, &mut client, query("create table t(x text)"));
    let piece = message(b'd', &[b'x'; 60 << 10]);
    let data = [query("copy t from stdin"), piece.repeat(3), message(b'c', b"")].concat();
    assert_eq!(send(&mut session, &mut client, data).0, "GEZ");
    assert!(String::from_utf8_lossy(&client.output).contains("54000"));
    assert_eq!(send(&mut session, &mut client, query("select count(*) from t")).0, "TDCZ");
}

#[test]
fn what_a_session_keeps_is_bounded() {
    let (mut session, mut client) = client_with(&LossyDisk::default(), 64 << 10);
    let long = "x".repeat(20 << 10);
    let parse = |name: char| {
        let text = format!("{name}\0select '{long}'\0\0\0");
        [message(b'P', text.as_bytes()), sync()].concat()
    };
    let answers = |session: &mut _, client: &mut _, name| send(session, client, parse(name)).0;
    for name in ['a', 'b', 'c'] {
        assert_eq!(answers(&mut session, &mut client, name), "1Z");
    }
    assert_eq!(answers(&mut session, &mut client, 'd'), "EZ", "a fourth one is too much");
    assert!(String::from_utf8_lossy(&client.output).contains("53400"));
    assert_eq!(send(&mut session, &mut client, query("deallocate a")).0, "CZ");
    assert_eq!(answers(&mut session, &mut client, 'd'), "1Z");

    assert_eq!(send(&mut session, &mut client, query("begin")).0, "CZ");
    let bind = |name: char| {
        let mut body = format!("{name}\0b\0").into_bytes();
        body.extend([0; 6]);
        [message(b'B', &body), message(b'H', b"")].concat()
    };
    let many: Vec<u8> = (0..64).flat_map(|i| bind(char::from(b'0' + i))).collect();
    assert_eq!(send(&mut session, &mut client, many).0, "2".repeat(64), "small ones are not");

    for i in 0..3 {
        let set = format!("set x.y{i} to '{long}'");
        assert_eq!(send(&mut session, &mut client, query(&set)).0, "CZ");
    }
    let set = format!("set x.z to '{long}'");
    assert_eq!(send(&mut session, &mut client, query(&set)).0, "EZ");
}

/// A SELECT does not acquire the write gate, so it must not write.
#[test]
fn a_query_that_would_write_is_refused() {
    let (mut session, mut client) = client(&LossyDisk::default());
    send(&mut session, &mut client, query("create virtual table f using fts4(x)"));
    send(&mut session, &mut client, query("insert into f values ('a')"));
    assert_eq!(send(&mut session, &mut client, query("select optimize(f) from f")).0, "EZ");
    let said = String::from_utf8_lossy(&client.output).into_owned();
    assert!(said.contains("42883"), "{said}");
    let insert = "insert into f(f) values ('optimize')";
    assert_eq!(send(&mut session, &mut client, query(insert)).0, "CZ");
}
