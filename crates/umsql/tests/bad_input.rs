//! Bad input: whatever bytes arrive, the answer is an error or an orderly close, and the server
//! keeps running.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

mod common;
use common::TestServer;

const WAIT: Duration = Duration::from_secs(20);

/// A connection whose bytes the test writes itself.
struct Raw {
    stream: TcpStream,
}

impl Raw {
    fn open(server: &TestServer) -> Raw {
        let stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        stream.set_write_timeout(Some(WAIT)).unwrap();
        Raw { stream }
    }

    fn logged_in(server: &TestServer) -> Raw {
        let mut raw = Raw::open(server);
        raw.send(&startup(b"user\0me\0\0"));
        assert!(raw.until_ready().is_empty());
        raw
    }

    /// Sends the bytes. The server may already have closed the connection, so errors are ignored.
    fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Returns the SQLSTATEs of all errors up to ReadyForQuery or the end of the stream.
    fn until_ready(&mut self) -> Vec<String> {
        let mut codes = Vec::new();
        while let Some((tag, body)) = self.message() {
            match tag {
                b'E' => codes.push(code_of(&body)),
                b'Z' => break,
                _ => (),
            }
        }
        codes
    }

    fn message(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut header = [0; 5];
        self.stream.read_exact(&mut header).ok()?;
        let len = u32::from_be_bytes(header[1..].try_into().unwrap()) as usize;
        let mut body = vec![0; len.checked_sub(4)?];
        self.stream.read_exact(&mut body).ok()?;
        Some((header[0], body))
    }

    /// Returns everything up to the end of the stream.
    fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest);
        rest
    }
}

fn code_of(body: &[u8]) -> String {
    let fields = body.split(|byte| *byte == 0);
    let mut codes = fields.filter_map(|field| field.strip_prefix(b"C"));
    String::from_utf8_lossy(codes.next().unwrap_or_default()).into_owned()
}

fn startup(parameters: &[u8]) -> Vec<u8> {
    let mut packet = (parameters.len() as u32 + 8).to_be_bytes().to_vec();
    packet.extend(0x0003_0000u32.to_be_bytes());
    packet.extend(parameters);
    packet
}

fn frame(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![tag];
    frame.extend((body.len() as u32 + 4).to_be_bytes());
    frame.extend(body);
    frame
}

fn query(text: &str) -> Vec<u8> {
    frame(b'Q', &[text.as_bytes(), b"\0"].concat())
}

fn parse(text: &[u8], types: &[u32]) -> Vec<u8> {
    let mut body = [b"\0", text, b"\0"].concat();
    body.extend((types.len() as u16).to_be_bytes());
    types.iter().for_each(|oid| body.extend(oid.to_be_bytes()));
    frame(b'P', &body)
}

/// Parse, Bind and Execute with these bodies.
fn query_cycle(parse: &[u8], bind: &[u8]) -> Vec<u8> {
    [frame(b'P', parse), frame(b'B', bind), frame(b'E', b"\0\0\0\0\0")].concat()
}

/// A small random generator. A failure can be repeated from its seed.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}

fn lives(server: &TestServer) {
    let row = server.client().query_one("select 41 + 1", &[]).unwrap();
    assert_eq!(row.get::<_, i32>(0), 42);
}

#[test]
fn bad_first_packets_are_answered_and_closed() {
    let server = TestServer::start();
    let cases: [(&[u8], &str); 7] = [
        (b"GET / HTTP/1.1\r\n\r\n", "08P01"),
        (b"\0\0\0\x04", "08P01"),
        (b"\0\0\0\x09\0\x03\0\0x", "08P01"),
        (b"\0\0\0\x08\0\x02\0\0", "0A000"),
        (b"\0\0\0\x09\0\x03\0\0\0", "28000"),
        (b"\0\0\0\x10\0\x03\0\0user\0\xff\0\0", "22021"),
        (b"\xff\xff\xff\xff\0\x03\0\0", "08P01"),
    ];
    for (packet, code) in cases {
        let mut raw = Raw::open(&server);
        raw.send(packet);
        assert_eq!(raw.until_ready(), [code], "{packet:?}");
        assert!(raw.rest().is_empty());
    }
    // The server refuses a request for encryption with one byte. Then the client sends its startup
    // packet.
    let mut raw = Raw::open(&server);
    raw.send(b"\0\0\0\x08\x04\xd2\x16\x2f");
    let mut answer = [0];
    raw.stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"N");
    raw.send(&startup(b"user\0me\0\0"));
    assert!(raw.until_ready().is_empty());
    lives(&server);
}

/// As psql does it after Ctrl-C: the cancellation has a connection of its own, and the data that is
/// under way arrives nevertheless.
#[test]
fn a_copy_is_cancelled_while_it_waits_for_data_and_the_rest_of_the_data_is_ignored() {
    let server = TestServer::start();
    let mut raw = Raw::open(&server);
    raw.send(&startup(b"user\0me\0\0"));
    let mut key = Vec::new();
    while let Some((tag, body)) = raw.message()
        && tag != b'Z'
    {
        if tag == b'K' {
            key = body;
        }
    }
    raw.send(&query("create table t(n int)"));
    assert!(raw.until_ready().is_empty());

    let text = "copy t from stdin";
    let bind = frame(b'B', b"\0\0\0\0\0\0\0\0");
    let execute = [parse(text.as_bytes(), &[]), bind, frame(b'E', b"\0\0\0\0\0")].concat();
    let sync = frame(b'S', b"");
    let protocols = [(query(text), vec![]), ([&execute[..], &sync].concat(), sync)];
    for (begin, end) in protocols {
        raw.send(&begin);
        while let Some((tag, _)) = raw.message()
            && tag != b'G'
        {}
        let rows = frame(b'd', b"1\n2\n");
        // The second message is cut.
        raw.send(&[&rows[..], &rows[..7]].concat());
        Raw::open(&server).send(&[b"\0\0\0\x10\x04\xd2\x16\x2e", &key[..]].concat());
        let (tag, body) = raw.message().expect("an answer");
        assert_eq!((tag, &*code_of(&body)), (b'E', "57014"));
        raw.send(&[&rows[7..], &rows, &frame(b'c', b""), &end].concat());
        assert!(raw.until_ready().is_empty());
    }
    raw.send(&query("insert into t values (3)"));
    assert!(raw.until_ready().is_empty());
    let row = server.client().query_one("select group_concat(n) from t", &[]).unwrap();
    assert_eq!(row.get::<_, &str>(0), "3");
}

#[test]
fn a_message_that_arrives_byte_by_byte_is_one_request() {
    let server = TestServer::start();
    let mut raw = Raw::open(&server);
    for byte in startup(b"user\0me\0\0").into_iter().chain(query("select 1; select 2")) {
        raw.send(&[byte]);
    }
    assert!(raw.until_ready().is_empty());
    assert!(raw.until_ready().is_empty());
}

#[test]
fn malformed_messages_are_errors_and_the_session_continues() {
    let server = TestServer::start();
    let mut raw = Raw::logged_in(&server);
    let sync = frame(b'S', b"");
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (frame(b'P', b""), "08P01"),
        (frame(b'P', b"a\0select 1\0\0\x09"), "08P01"),
        (frame(b'B', b"\0\0\xff\xff"), "08P01"),
        (frame(b'B', b"\0\0\0\x01\0\x07\0\0\0\0"), "08P01"),
        (frame(b'B', b"\0missing\0\0\0\0\0\0\0"), "26000"),
        (frame(b'D', b"X\0"), "08P01"),
        (frame(b'E', b"\0\0"), "08P01"),
        (frame(b'E', b"missing\0\0\0\0\0"), "34000"),
        (frame(b'C', b""), "08P01"),
        (parse(b"select \xff", &[]), "22021"),
        (parse(b"select $0", &[]), "42P02"),
        (parse(b"select $99999", &[]), "42P02"),
        (parse(b"select 1; select 2", &[]), "42601"),
        (
            [
                parse(b"select $1", &[4_294_967_000]),
                frame(b'B', b"\0\0\0\x01\0\x01\0\x01\0\0\0\x01x\0\0"),
            ]
            .concat(),
            "42883",
        ),
        (
            [parse(b"select $1", &[23]), frame(b'B', b"\0\0\0\x01\0\x01\0\x01\0\0\0\x01x\0\0")]
                .concat(),
            "22P03",
        ),
        ([parse(b"select $1", &[]), frame(b'B', b"\0\0\0\0\0\0\0\0")].concat(), "08P01"),
        // Statements that execute themselves.
        ([frame(b'P', b"a\0execute a\0\0\0"), frame(b'D', b"Sa\0")].concat(), "0A000"),
        (query_cycle(b"b\0execute b\0\0\0", b"\0b\0\0\0\0\0\0\0"), "0A000"),
    ];
    for (message, code) in cases {
        raw.send(&[&message[..], &sync].concat());
        assert_eq!(raw.until_ready(), [code], "{message:?}");
    }
    raw.send(&frame(b'Q', b"select \xc3\x28\0"));
    assert_eq!(raw.until_ready(), ["22021"]);
    raw.send(&frame(b'Q', b"select 1\0select 2\0"));
    assert_eq!(raw.until_ready(), ["08P01"]);
    raw.send(&query("select 1"));
    assert!(raw.until_ready().is_empty());
}

#[test]
fn a_short_message_does_not_swallow_the_next_one() {
    let server = TestServer::start();
    let mut raw = Raw::logged_in(&server);
    raw.send(&[frame(b'P', b"a"), frame(b'S', b""), query("select 1")].concat());
    assert_eq!(raw.until_ready(), ["08P01"]);
    assert!(raw.until_ready().is_empty());
}

#[test]
fn broken_framing_ends_the_connection() {
    let server = TestServer::with(|settings| settings.max_message = 1 << 20);
    let cases: [(&[u8], &str); 4] = [
        (b"Q\0\0\0\x03", "08P01"),
        (b"Q\x7f\xff\xff\xff", "54000"),
        (b"Q\0\x20\0\0", "54000"),
        (b"\0\0\0\0\x04", "08P01"),
    ];
    for (bytes, code) in cases {
        let mut raw = Raw::logged_in(&server);
        raw.send(bytes);
        assert_eq!(raw.until_ready(), [code], "{bytes:?}");
        assert!(raw.rest().is_empty());
    }
    // Before login the limit is much lower.
    let mut raw = Raw::open(&server);
    raw.send(b"\0\x01\0\0\0\x03\0\0");
    assert_eq!(raw.until_ready(), ["08P01"]);
    lives(&server);
}

#[test]
fn large_and_deep_statements_run_or_fail_with_an_error() {
    let server = TestServer::start();
    let mut raw = Raw::logged_in(&server);
    let mut codes = |text: String| {
        raw.send(&query(&text));
        raw.until_ready()
    };
    assert!(codes(format!("select length('{}')", "x".repeat(1 << 20))).is_empty());
    assert!(codes(format!("select 1 {}", " ".repeat(1 << 20))).is_empty());
    assert_eq!(codes(format!("select {}1{}", "(".repeat(20_000), ")".repeat(20_000))).len(), 1);
    assert_eq!(codes(format!("select {}1", "1+".repeat(20_000))), ["54001"]);
    assert_eq!(codes("select 1 union all ".repeat(500) + "select 1"), ["54001"]);
    assert_eq!(codes(format!("select 1{}", "::int".repeat(20_000))).len(), 1);
    assert_eq!(
        codes(format!("select {}1{}", "array(select ".repeat(5000), ")".repeat(5000))).len(),
        1
    );
    assert_eq!(codes("/*".repeat(100_000)), ["42601"]);
    lives(&server);
}

#[test]
fn ten_thousand_parameters_are_bound() {
    let server = TestServer::start();
    let mut client = server.client();
    let list: Vec<String> = (1..=10_000).map(|number| format!("(${number}::int)")).collect();
    let sql = format!("with v(x) as (values {}) select sum(x)::bigint from v", list.join(","));
    let numbers: Vec<i32> = (1..=10_000).collect();
    let parameters: Vec<&(dyn postgres::types::ToSql + Sync)> =
        numbers.iter().map(|number| number as &(dyn postgres::types::ToSql + Sync)).collect();
    let row = client.query_one(&sql, &parameters).unwrap();
    assert_eq!(row.get::<_, i64>(0), 50_005_000);
}

#[test]
fn a_half_closed_client_still_gets_its_answer() {
    let server = TestServer::start();
    let mut raw = Raw::logged_in(&server);
    raw.send(&query("select 7"));
    raw.stream.shutdown(Shutdown::Write).unwrap();
    assert!(raw.rest().windows(8).any(|bytes| bytes == b"SELECT 1"));
}

#[test]
fn copy_ends_in_order_when_the_client_fails_or_goes() {
    let server = TestServer::start();
    let mut raw = Raw::logged_in(&server);
    raw.send(&query("create table t(a int)"));
    assert!(raw.until_ready().is_empty());
    raw.send(
        &[query("copy t from stdin"), frame(b'd', b"1\n"), frame(b'f', b"why not\0")].concat(),
    );
    assert_eq!(raw.until_ready(), ["57014"]);
    raw.send(&[query("copy t from stdin"), frame(b'd', b"x\n1\n"), frame(b'c', b"")].concat());
    assert_eq!(raw.until_ready(), ["22P02"]);
    raw.send(&[query("copy t from stdin"), frame(b'd', b"2\n")].concat());
    drop(raw);
    let mut client = server.client();
    client.batch_execute("insert into t values (3)").unwrap();
    let row = client.query_one("select count(*), sum(a) from t", &[]).unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (1, 3));
}

/// Sends valid conversations in which bytes are changed, removed or doubled. The server must answer
/// or close the connection, and must keep running.
#[test]
fn mutated_conversations_never_stop_the_server() {
    const ROUNDS: usize = 400;
    let server = TestServer::start();
    server.client().batch_execute("create table t(a int, b text)").unwrap();
    let bind = b"\0\0\0\x01\0\x01\0\x01\0\0\0\x04\0\0\0\x07\0\x01\0\x01";
    let whole = [
        startup(b"user\0me\0database\0ums\0\0"),
        query("select * from t where a = 1; insert into t values (1, 'x')"),
        parse(b"select a, b, $1::int + 1 from t where a = $1", &[23]),
        frame(b'D', b"S\0"),
        frame(b'B', bind),
        frame(b'D', b"P\0"),
        frame(b'E', b"\0\0\0\0\x01"),
        frame(b'C', b"P\0"),
        frame(b'S', b""),
        query("copy t from stdin (format csv)"),
        frame(b'd', b"1,\"a\"\n2,b\n"),
        frame(b'c', b""),
        query("begin; savepoint s; select nothing; rollback"),
        query("select * from pg_catalog.pg_class c where c.oid::regclass::text ~ 'x'"),
    ];
    let whole = whole.concat();
    let login = startup(b"user\0me\0database\0ums\0\0").len();
    let mut random = Random(0x5eed_0001);
    for round in 0..ROUNDS {
        let mut bytes = whole.clone();
        for _ in 0..=random.next(4) {
            // Most changes are made after the login, because otherwise little else would be tested.
            let from = if random.next(8) == 0 { 0 } else { login };
            let at = from + random.next(bytes.len() - from);
            match random.next(4) {
                0 => bytes[at] = random.next(256) as u8,
                1 => bytes[at] ^= 1 << random.next(8),
                2 => drop(bytes.drain(at..(at + 1 + random.next(6)).min(bytes.len()))),
                _ => bytes.insert(at, random.next(256) as u8),
            }
        }
        let mut raw = Raw::open(&server);
        raw.send(&bytes);
        let _ = raw.stream.shutdown(Shutdown::Write);
        let answer = raw.rest();
        assert!(!answer.windows(5).any(|code| code == b"XX000"), "round {round}: {bytes:?}");
        if round % 50 == 0 {
            lives(&server);
        }
    }
    lives(&server);
}
