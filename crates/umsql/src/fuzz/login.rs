//! The start of a connection as a function of bytes: what a client sends before it has logged in.
//!
//! For all bytes, the server refuses the login, answers in whole messages or records, and reports
//! no internal error. The first byte says what the others are: messages of SCRAM, the input of a
//! connection, or the input of one that is encrypted already, with one byte of its handshake
//! changed perhaps, or in records that no library makes. Handshakes have random keys, so the last
//! two of these are not repeatable in each byte.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};

use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::{Client, answers, records};
use crate::accounts::{Accounts, Role};
use crate::auth::{Binding, Login, Verifier};
use crate::server::{Server, Settings};
use crate::session::{Flow, Session};
use crate::tls::Tls;

const SSL_REQUEST: &[u8] = b"\0\0\0\x08\x04\xd2\x16\x2f";

/// A server with an account and a certificate, and a client that trusts the certificate.
struct Both {
    server: Arc<Server>,
    client: Arc<ClientConfig>,
    roots: RootCertStore,
}

static BOTH: LazyLock<Both> = LazyLock::new(|| {
    let dir = std::env::temp_dir().join(format!("umsql-fuzzing-login-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder for the database");
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).expect("a certificate");
    let (pem, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let mut settings = Settings::new(dir.join("db"));
    let mut accounts = Accounts::new();
    accounts.add("u", Role::Owner, "secret").expect("an account");
    settings.accounts = Some(accounts);
    settings.tls = Some(Arc::new(Tls::new(pem.as_bytes(), key.as_bytes()).expect("a pair")));
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("a root");
    let client = ClientConfig::builder().with_root_certificates(roots.clone());
    let client = Arc::new(client.with_no_client_auth());
    let server = Server::open(settings).expect("a server");
    Both { server, client, roots }
});

static VERIFIER: LazyLock<Verifier> = LazyLock::new(|| Verifier::new("secret"));

/// Lets a client begin that does not know the password.
pub fn login(bytes: &[u8]) {
    let Some((&how, bytes)) = bytes.split_first() else { return };
    match how % 3 {
        0 => scram(how / 3, bytes),
        1 => plain(bytes, usize::from(how / 3).max(1)),
        _ if how / 3 % 2 == 0 => encrypted(bytes),
        _ => in_odd_records(bytes),
    }
}

/// The client's first and last message, with a zero byte between them.
fn scram(binding: u8, bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let (first, last) = text.split_once('\0').unwrap_or((text, ""));
    let binding = match binding % 3 {
        0 => Binding::Impossible,
        1 => Binding::Offered,
        _ => Binding::To(b"hash"),
    };
    if let Ok((login, answer)) = Login::begin(VERIFIER.clone(), first, binding) {
        let nonce = answer.split(',').next().unwrap_or_default();
        // So that the last message can be right but for its proof.
        let last = last.replace("r=NONCE", nonce);
        assert!(!matches!(login.finish(&last), Ok(Some(_))), "a proof without the password");
    }
}

struct Talk {
    session: Session,
    client: Client,
}

impl Talk {
    fn begin(piece: usize) -> Talk {
        let session = BOTH.server.session(1);
        Talk { session, client: Client { input: VecDeque::new(), piece, output: Vec::new() } }
    }

    /// Returns what the server answers to these bytes, and whether it goes on.
    fn send(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        self.client.input.extend(bytes);
        let mut flow = Flow::More;
        while flow == Flow::More || (flow == Flow::Idle && !self.client.input.is_empty()) {
            flow = self.session.on_readable(&mut self.client);
        }
        assert!(!self.session.is_logged_in(), "a login without a password");
        (std::mem::take(&mut self.client.output), flow == Flow::Idle)
    }
}

fn plain(bytes: &[u8], piece: usize) {
    let mut talk = Talk::begin(piece);
    let (said, _) = talk.send(bytes);
    let mut said = &said[..];
    // The answers to requests for encryption have one byte.
    while let Some(rest) = said.strip_prefix(b"N") {
        said = rest;
    }
    match said {
        [b'S', records @ ..] | records @ [0x14..=0x17, ..] => check_records(records),
        messages => drop(answers(messages)),
    }
}

fn check_records(mut bytes: &[u8]) {
    while let [0x14..=0x17, 3, _, high, low, rest @ ..] = bytes {
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        assert!(len <= rest.len(), "a part of a record");
        bytes = &rest[len..];
    }
    assert!(bytes.is_empty(), "no record: {bytes:?}");
}

/// The first three bytes say which byte of the client's handshake is changed: that of which flight,
/// where, and how.
fn encrypted(bytes: &[u8]) {
    let Some((&[flight, at, change], bytes)) = bytes.split_first_chunk() else { return };
    let name = "localhost".try_into().expect("a name");
    let mut tls = ClientConnection::new(BOTH.client.clone(), name).expect("a client");
    let mut talk = Talk::begin(usize::MAX);
    assert_eq!(talk.send(SSL_REQUEST), (b"S".to_vec(), true));
    for sent in 0..4 {
        let mut out = Vec::new();
        tls.write_tls(&mut out).expect("memory");
        if let (true, Some(byte)) = (sent == flight % 4, out.get_mut(usize::from(at))) {
            *byte ^= change;
        }
        let (said, continues) = talk.send(&out);
        check_records(&said);
        if !continues {
            return;
        }
        let _ = tls.read_tls(&mut &said[..]);
        if tls.process_new_packets().is_err() {
            return;
        }
    }
    if tls.is_handshaking() {
        return;
    }
    let _ = std::io::Write::write_all(&mut tls.writer(), bytes);
    let mut out = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut out).expect("memory");
    }
    let (said, _) = talk.send(&out);
    check_records(&said);
    let (mut said, mut messages) = (&said[..], Vec::new());
    while !said.is_empty() && tls.read_tls(&mut said).is_ok() {
        match tls.process_new_packets() {
            // A length that was changed may be complete only now.
            Err(rustls::Error::AlertReceived(_)) => return,
            outcome => drop(outcome.expect("the server's records are right")),
        }
        let _ = std::io::Read::read_to_end(&mut tls.reader(), &mut messages);
    }
    answers(&messages);
}

/// Each byte says what comes next: a change of keys, an empty record, or as many of the following
/// bytes in a record of data or of a handshake.
fn in_odd_records(mut bytes: &[u8]) {
    let mut talk = Talk::begin(usize::MAX);
    assert_eq!(talk.send(SSL_REQUEST), (b"S".to_vec(), true));
    let mut records = records::handshake(BOTH.roots.clone(), |bytes| talk.send(bytes).0);
    let mut out = Vec::new();
    while let Some((&what, rest)) = bytes.split_first() {
        let (now, later) = rest.split_at(rest.len().min(usize::from(what / 4)));
        bytes = if what % 4 < 2 { rest } else { later };
        out.extend(match what % 4 {
            0 => records.change_keys(),
            1 => records.data(b""),
            2 => records.handshake(now),
            _ => records.data(now),
        });
    }
    check_records(&talk.send(&out).0);
}
