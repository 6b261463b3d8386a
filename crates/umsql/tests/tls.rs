//! Encrypted connections, with thread and fiber workers. `tests/clients/tls.py` has psql.
//!
//! Unsafe because fiber workers are chosen: only this crate, rustls and SQLite run on them, and
//! these keep no thread-scoped state across a wait.
#![allow(unsafe_code)]

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use ums::Node;
use umsql::listen::Patience;
use umsql::{Accounts, Role, Settings, Tls, TlsError};

mod common;
use common::{SLOW_LIMITS, TestServer, has_sent_rows};

const SSL_REQUEST: &[u8] = b"\0\0\0\x08\x04\xd2\x16\x2f";
const GSS_REQUEST: &[u8] = b"\0\0\0\x08\x04\xd2\x16\x30";
const BEGIN: &[u8] = b"\0\0\0\x11\0\x03\0\0user\0me\0\0";
const TERMINATE: &[u8] = b"X\0\0\0\x04";

/// A certificate, what the server needs of it, and a client that trusts only it.
struct Certificate {
    tls: Arc<Tls>,
    client: ClientConfig,
}

impl Certificate {
    fn new() -> Certificate {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let (pem, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Certificate { tls: Arc::new(Tls::new(pem.as_bytes(), key.as_bytes()).unwrap()), client }
    }
}

/// Runs a test on a server with a certificate, once with each kind of workers. Each scheduler has
/// two workers.
fn with_tls(change: impl Fn(&mut Settings), test: impl Fn(&TestServer, &Certificate)) {
    let certificate = Certificate::new();
    for fibers in [false, true] {
        let builder = Node::builder().schedulers(2).max_workers(4).stack_size(1 << 20);
        // SAFETY: Contract: see the header.
        let builder = if fibers { unsafe { builder.fiber_workers() } } else { builder };
        // No client is ended because its login takes long.
        let patience = Patience { login: Duration::from_secs(3600), ..Patience::default() };
        let server = TestServer::patient(builder.build().unwrap(), patience, |settings| {
            settings.tls = Some(certificate.tls.clone());
            change(settings);
        });
        test(&server, &certificate);
        let mut client = plain(&server);
        client.write_all(SSL_REQUEST).unwrap();
        assert_eq!(byte(&mut client), b'S', "the server still serves");
    }
}

fn plain(server: &TestServer) -> TcpStream {
    let stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

fn byte(stream: &mut TcpStream) -> u8 {
    let mut byte = [0];
    stream.read_exact(&mut byte).unwrap();
    byte[0]
}

type Encrypted = StreamOwned<ClientConnection, TcpStream>;

fn handshake(stream: TcpStream, config: ClientConfig) -> Encrypted {
    let name = "localhost".try_into().unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream)
}

/// Returns a stream whose handshake has ended.
fn encrypted(server: &TestServer, certificate: &Certificate) -> Encrypted {
    let mut stream = plain(server);
    stream.write_all(SSL_REQUEST).unwrap();
    assert_eq!(byte(&mut stream), b'S');
    let mut stream = handshake(stream, certificate.client.clone());
    stream.conn.complete_io(&mut stream.sock).unwrap();
    stream
}

/// Returns a session that has logged in.
fn session(server: &TestServer, certificate: &Certificate) -> Encrypted {
    let mut stream = encrypted(server, certificate);
    stream.write_all(BEGIN).unwrap();
    answer(&mut stream);
    stream
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    [&[tag][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', format!("{sql}\0").as_bytes())
}

fn one(stream: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut header = [0; 5];
    stream.read_exact(&mut header)?;
    let mut body = vec![0; u32::from_be_bytes(header[1..].try_into().unwrap()) as usize - 4];
    stream.read_exact(&mut body)?;
    Ok((header[0], body))
}

/// Reads up to ReadyForQuery, or to the data of a COPY. Returns the messages' types, a row once,
/// and the length of all.
fn answer(stream: &mut impl Read) -> (String, usize) {
    let (mut tags, mut length) = (String::new(), 0);
    loop {
        let (tag, body) = one(stream).unwrap();
        length += body.len();
        if tag != b'D' || !tags.ends_with('D') {
            tags.push(tag as char);
        }
        if matches!(tag, b'Z' | b'G') {
            return (tags, length);
        }
    }
}

/// Returns the SQLSTATE with which the server ends the connection.
fn refusal(stream: &mut impl Read) -> String {
    let (tag, body) = one(stream).unwrap();
    assert_eq!(tag, b'E', "{}", String::from_utf8_lossy(&body));
    let field = body.split(|byte| *byte == 0).find_map(|field| field.strip_prefix(b"C")).unwrap();
    let end = stream.read(&mut [0]);
    assert!(end.is_ok_and(|read| read == 0), "the connection ends in order");
    String::from_utf8_lossy(field).into_owned()
}

#[test]
fn an_encrypted_session_does_what_a_plain_one_does() {
    with_tls(
        |_| (),
        |server, certificate| {
            let mut session = session(server, certificate);
            let long = query(
                "select generate_series, hex(zeroblob(500)) from generate_series(1, 3000); \
                 select hex(zeroblob(3000000))",
            );
            session.write_all(&long).unwrap();
            let (tags, length) = answer(&mut session);
            assert_eq!(tags, "TDCTDCZ");
            assert!(length > 9_000_000, "{length} bytes");

            session.write_all(&query("create table t(x int); copy t from stdin")).unwrap();
            assert_eq!(answer(&mut session).0, "CG");
            let rows = (0..50_000).map(|row| format!("{row}\n")).collect::<String>();
            rows.as_bytes().chunks(50_000).for_each(|rows| {
                session.write_all(&message(b'd', rows)).unwrap();
            });
            session.write_all(&message(b'c', b"")).unwrap();
            assert_eq!(answer(&mut session).0, "CZ");
            session.write_all(&query("select count(*) from t where x = 49999")).unwrap();
            assert_eq!(answer(&mut session).0, "TDCZ");

            let used = "select 1 from pg_stat_ssl where ssl and version = 'TLSv1.3' and bits > 100";
            session.write_all(&query(used)).unwrap();
            assert_eq!(answer(&mut session).0, "TDCZ");

            session.write_all(TERMINATE).unwrap();
            assert_eq!(session.read(&mut [0]).unwrap(), 0, "the end is announced");
        },
    );
}

#[test]
fn input_that_is_decrypted_already_is_not_waited_for() {
    with_tls(
        |_| (),
        |server, certificate| {
            let mut session = session(server, certificate);
            // The first message fills what the server reads at once, so the second is left.
            let first = query(&format!("select 1 -- {}", "x".repeat((8 << 10) - 18)));
            assert_eq!(first.len(), 8 << 10);
            let both = [first, query("select 2")].concat();
            // One record.
            session.write_all(&both).unwrap();
            assert_eq!(answer(&mut session).0, "TDCZ");
            assert_eq!(answer(&mut session).0, "TDCZ");
        },
    );
}

#[test]
fn a_slow_reader_gets_the_error_of_a_timeout_after_all_that_is_encrypted() {
    with_tls(
        |_| (),
        |server, certificate| {
            let mut slow = session(server, certificate);
            let mut other = session(server, certificate);
            other.write_all(&query("create table t(x)")).unwrap();
            assert_eq!(answer(&mut other).0, "CZ");
            // The rows are more than the sockets hold. The transaction owns the gate.
            let rows = "begin; insert into t select hex(zeroblob(500000)) \
                from generate_series(1, 20) returning x";
            let get_rows = |limit| {
                let set = format!("rollback; set statement_timeout = {limit}");
                slow.write_all(&query(&set)).unwrap();
                assert!(answer(&mut slow).0.ends_with("CCZ"));
                slow.write_all(&query(rows)).unwrap();
                has_sent_rows(&slow.sock, limit) || !answer(&mut slow).0.ends_with("EZ")
            };
            assert!(SLOW_LIMITS.into_iter().any(get_rows));
            // The time ends the statement, although the client does not read.
            other.write_all(&query("insert into t values (1)")).unwrap();
            assert_eq!(answer(&mut other).0, "CZ");
            assert_eq!(answer(&mut slow).0, "CTDEZ");
            slow.write_all(&query("rollback; select 1")).unwrap();
            assert_eq!(answer(&mut slow).0, "CTDCZ");
        },
    );
}

#[test]
fn nothing_that_was_sent_before_the_handshake_counts_after_it() {
    with_tls(
        |_| (),
        |server, certificate| {
            let mut stream = plain(server);
            stream.write_all(&[SSL_REQUEST, BEGIN].concat()).unwrap();
            assert_eq!(refusal(&mut stream), "08P01");

            // Each kind of encryption may be asked for once, and none in an encrypted stream.
            let mut stream = plain(server);
            stream.write_all(GSS_REQUEST).unwrap();
            assert_eq!(byte(&mut stream), b'N');
            stream.write_all(GSS_REQUEST).unwrap();
            assert_eq!(refusal(&mut stream), "08P01");
            for request in [SSL_REQUEST, GSS_REQUEST] {
                let mut stream = encrypted(server, certificate);
                stream.write_all(request).unwrap();
                assert_eq!(refusal(&mut stream), "08P01");
            }
        },
    );
}

#[test]
fn a_client_without_tls_is_refused_if_it_must_have_it() {
    with_tls(
        |settings| settings.tls_only = true,
        |server, certificate| {
            let mut stream = plain(server);
            stream.write_all(BEGIN).unwrap();
            assert_eq!(refusal(&mut stream), "28000");
            session(server, certificate);
        },
    );
}

#[test]
fn a_client_that_begins_with_the_handshake_names_the_protocol() {
    with_tls(
        |_| (),
        |server, certificate| {
            let direct = |protocols: &[&str]| {
                let mut config = certificate.client.clone();
                config.alpn_protocols =
                    protocols.iter().map(|name| name.as_bytes().into()).collect();
                let mut stream = handshake(plain(server), config);
                stream.write_all(BEGIN)?;
                one(&mut stream)
            };
            assert_eq!(direct(&["postgresql"]).unwrap().0, b'R');
            direct(&[]).unwrap_err();
            direct(&["http/1.1"]).unwrap_err();
        },
    );
}

#[test]
fn a_hostile_handshake_ends_only_its_own_connection() {
    with_tls(
        |_| (),
        |server, certificate| {
            let record = |bytes: &[u8]| {
                [&[0x16, 3, 1], &(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
            };
            // A ClientHello that says that it is very long, and goes on in many records.
            let long = [&[1, 0, 0xff, 0][..], &[0; 16_000]].concat();
            let long = [record(&long), record(&[0; 16_000])].concat();
            for garbage in
                [b"\x16\x03\x01\0\x05hello".to_vec(), vec![0; 5000], BEGIN.to_vec(), long]
            {
                let mut stream = plain(server);
                stream.write_all(SSL_REQUEST).unwrap();
                assert_eq!(byte(&mut stream), b'S');
                // The server may end the connection before it has everything.
                let _ = stream.write_all(&garbage);
                let end = stream.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
                assert_ne!(end, Err(io::ErrorKind::WouldBlock), "the server waits for more");
            }
            // More half handshakes than there are workers.
            let silent: Vec<TcpStream> = (0..50)
                .map(|length| {
                    let mut stream = plain(server);
                    stream.write_all(SSL_REQUEST).unwrap();
                    assert_eq!(byte(&mut stream), b'S');
                    stream.write_all(&record(&[1, 0, 2, 0, 3, 3])[..length % 11]).unwrap();
                    stream
                })
                .collect();
            let mut session = session(server, certificate);
            session.write_all(&query("select 1")).unwrap();
            assert_eq!(answer(&mut session).0, "TDCZ");
            drop(silent);
        },
    );
}

#[test]
fn keys_may_change_but_not_without_end() {
    with_tls(
        |_| (),
        |server, certificate| {
            let mut session = session(server, certificate);
            for _ in 0..100 {
                session.conn.refresh_traffic_keys().unwrap();
                session.write_all(&query("select 1")).unwrap();
                assert_eq!(answer(&mut session).0, "TDCZ");
            }
            let flood = (0..100).try_for_each(|_| {
                session.conn.refresh_traffic_keys().unwrap();
                session.flush()
            });
            let end = flood.and_then(|()| one(&mut session).map(drop));
            end.unwrap_err();
        },
    );
}

/// Begins a login over TLS with these flags. Returns the mechanisms that were offered, and the
/// answer.
fn login(stream: &mut Encrypted, mechanism: &str, flag: &str) -> (String, u8) {
    stream.write_all(BEGIN).unwrap();
    let offered = String::from_utf8_lossy(&one(stream).unwrap().1[4..]).into_owned();
    let first = format!("{flag},,n=,r=abc");
    let body = [mechanism.as_bytes(), b"\0", &(first.len() as u32).to_be_bytes(), first.as_bytes()];
    stream.write_all(&message(b'p', &body.concat())).unwrap();
    (offered, one(stream).unwrap().0)
}

#[test]
fn a_login_that_could_be_bound_is_not_weakened() {
    let accounts = |settings: &mut Settings| {
        let mut accounts = Accounts::new();
        accounts.add("me", Role::Owner, "secret").unwrap();
        settings.accounts = Some(accounts);
    };
    with_tls(accounts, |server, certificate| {
        let (plain, plus) = ("SCRAM-SHA-256", "SCRAM-SHA-256-PLUS");
        for (mechanism, flag, answer) in [
            (plus, "p=tls-server-end-point", b'R'),
            (plain, "n", b'R'),
            (plain, "y", b'E'),
            (plain, "p=tls-server-end-point", b'E'),
            (plus, "n", b'E'),
            (plus, "y", b'E'),
            (plus, "p=tls-unique", b'E'),
        ] {
            let mut stream = encrypted(server, certificate);
            let found = login(&mut stream, mechanism, flag);
            assert_eq!(found, (format!("{plus}\0{plain}\0\0"), answer), "{mechanism} {flag}");
        }
    });
}

#[test]
fn files_that_cannot_be_used_are_told_apart() {
    let made = |name: &str| rcgen::generate_simple_self_signed(vec![name.into()]).unwrap();
    let (one, other) = (made("a"), made("b"));
    let (pem, key) = (one.cert.pem(), one.signing_key.serialize_pem());
    let new = |pem: &str, key: &str| Tls::new(pem.as_bytes(), key.as_bytes());
    new(&pem, &key).unwrap();
    assert_eq!(new(&pem, &other.signing_key.serialize_pem()).unwrap_err(), TlsError::Pair);
    let locked = key.replace("PRIVATE", "ENCRYPTED PRIVATE");
    for (pem, key, word) in [
        ("", &*key, "no certificate"),
        (&*key, &key, "no certificate"),
        (&pem, "", "no private key"),
        (&pem, &pem, "no private key"),
        (&pem, &locked, "passphrase"),
        (&pem[..200], &key, "PEM"),
    ] {
        let error = new(pem, key).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}
