//! Clients that send without a pause, over TLS, and send nothing that is worth a worker.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use ums::{Node, User};

use crate::engine::Files;
use crate::fuzz::records::{self, Records};
use crate::host::{self, Conn};
use crate::server::{Server, Settings};
use crate::session::{Flow, Session};
use crate::tls::Tls;
use crate::vfs::testing::{LossyDisk, lossy};

/// A test has failed if the server reads so much in one request.
const ENOUGH: usize = 4 << 20;
const SSL_REQUEST: &[u8] = b"\0\0\0\x08\x04\xd2\x16\x2f";
const BEGIN: &[u8] = b"\0\0\0\x10\0\x03\0\0user\0u\0\0";

type More = Box<dyn FnMut(&mut Records) -> Vec<u8> + Send>;

/// A client that always has more to send.
#[derive(Default)]
struct Client {
    input: VecDeque<u8>,
    output: Vec<u8>,
    more: Option<(Records, More)>,
    /// How many bytes the server has read.
    read: usize,
}

impl Conn for Client {
    fn user(&self) -> u64 {
        1
    }

    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if let Some((records, more)) = &mut self.more
            && self.read < ENOUGH
        {
            while self.input.len() < buf.len() {
                self.input.extend(more(records));
            }
        }
        let read = io::Read::read(&mut self.input, buf)?;
        self.read += read;
        if read == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(read) }
    }

    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_read(buf)
    }

    fn resume(&self) -> Box<dyn FnOnce() + Send> {
        Box::new(|| unreachable!("nothing is deferred"))
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.extend(bytes);
        Ok(())
    }
}

/// A server with one worker, and an encrypted session on it.
struct Test {
    _node: Node,
    user: User,
    session: Session,
    client: Client,
}

impl Test {
    /// Returns a session that has shaken hands, and the client's records.
    fn begin() -> (Test, Records) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let (pem, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let mut settings = Settings::new(Path::new("/db"));
        settings.files = Files::On(lossy(&LossyDisk::default()));
        settings.tls = Some(Arc::new(Tls::new(pem.as_bytes(), key.as_bytes()).unwrap()));
        let server = Server::open(settings).unwrap();
        let node = Node::builder().schedulers(1).max_workers(1).build().unwrap();
        let user = node.user();
        let session = server.session(user.id());
        let mut test = Test { _node: node, user, session, client: Client::default() };
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let answer;
        (test, answer) = test.send(SSL_REQUEST);
        assert_eq!(answer, b"S");
        let mut shaken = Some(test);
        let records = records::handshake(roots, |bytes| {
            let (test, answer) = shaken.take().unwrap().send(bytes);
            shaken = Some(test);
            answer
        });
        (shaken.unwrap(), records)
    }

    /// Carries out one request. Returns what the session needs then.
    fn request(self) -> (Test, Flow) {
        let Test { _node, user, mut session, mut client } = self;
        client.read = 0;
        let request = move || {
            let flow = session.on_readable(&mut client);
            (session, client, flow)
        };
        let (session, client, flow) = user.enqueue(request).unwrap().join().unwrap();
        // The only worker is free.
        user.enqueue(|| ()).unwrap().join().unwrap();
        (Test { _node, user, session, client }, flow)
    }

    /// Passes bytes to the session, and returns the answer, which may be encrypted.
    fn send(mut self, bytes: &[u8]) -> (Test, Vec<u8>) {
        self.client.input.extend(bytes);
        let mut flow = Flow::More;
        while flow == Flow::More {
            (self, flow) = self.request();
        }
        assert_eq!(flow, Flow::Idle);
        let answer = std::mem::take(&mut self.client.output);
        (self, answer)
    }

    /// Lets the client send without a pause.
    fn flood(
        mut self,
        records: Records,
        more: impl FnMut(&mut Records) -> Vec<u8> + Send + 'static,
    ) -> Test {
        self.client.more = Some((records, Box::new(more)));
        self
    }
}

/// A change of keys and an empty record: rustls bounds how many of one kind follow each other.
fn nothing(records: &mut Records) -> Vec<u8> {
    [records.change_keys(), records.data(b"")].concat()
}

fn copy(records: &mut Records) -> Vec<u8> {
    let sql = b"create table t(x); copy t from stdin\0";
    let len = (sql.len() as u32 + 4).to_be_bytes();
    records.data(&[&b"Q"[..], &len, sql].concat())
}

#[test]
fn what_contains_no_data_ends_the_connection() {
    // Before the login, after it, and in a COPY, which reads while it has a worker.
    for step in 0..3 {
        let (mut test, mut records) = Test::begin();
        if step > 0 {
            (test, _) = test.send(&records.data(BEGIN));
            assert!(test.session.is_logged_in());
        }
        if step == 2 {
            test.client.input.extend(copy(&mut records));
        }
        let (test, flow) = test.flood(records, nothing).request();
        assert_eq!(flow, Flow::Close, "step {step}");
        assert!(test.client.read < 64 << 10, "step {step}: {} bytes", test.client.read);
    }
}

#[test]
fn changes_of_keys_among_data_do_not_end_the_connection() {
    let (test, mut records) = Test::begin();
    let (mut test, _) = test.send(&records.data(BEGIN));
    // More bytes than may be without data, and with data in between.
    for _ in 0..1000 {
        let bytes = [nothing(&mut records), records.data(b"Q\0\0\0\x0eselect 1;\0")].concat();
        let answer;
        (test, answer) = test.send(&bytes);
        assert!(!answer.is_empty());
    }
}

#[test]
fn a_client_that_sends_small_parts_without_a_pause_gives_its_worker_back() {
    let (test, records) = Test::begin();
    // A first message of 10 KiB, of which each byte comes after 25 KiB of nothing.
    let mut message = [&[0, 0, 0x27, 0, 0, 3, 0, 0][..], &[b'x'; 9000]].concat().into_iter();
    let drip = move |records: &mut Records| {
        let nothing = (0..500).flat_map(|_| nothing(records)).collect::<Vec<u8>>();
        let byte = message.next().unwrap();
        [nothing, records.data(&[byte])].concat()
    };
    let (test, flow) = test.flood(records, drip).request();
    assert_eq!(flow, Flow::Idle, "the limit of the login's time is looked at");
    assert!(test.client.read < ENOUGH);
    assert!(!test.session.is_logged_in());
}

#[test]
fn a_copy_that_gets_small_parts_without_a_pause_is_cancelled() {
    let (test, mut records) = Test::begin();
    let (mut test, _) = test.send(&records.data(BEGIN));
    test.client.input.extend(copy(&mut records));
    let user = test.user.id();
    let mut parts = 0;
    // One message, byte by byte.
    let drip = move |records: &mut Records| {
        parts += 1;
        if parts == 1000 {
            assert!(host::cancel_request(user));
        }
        records.data(if parts == 1 { b"d\0\x10\0\0" } else { b"7" })
    };
    let (test, flow) = test.flood(records, drip).request();
    assert_eq!(flow, Flow::Idle);
    assert!(test.client.read < 64 << 10, "{} bytes", test.client.read);
}
