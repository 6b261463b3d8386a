//! The defences of a server, each an option: against peers that do not log in, do not read, make it
//! keep much, or connect too often. Each test fails without its defence.
//!
//! One session type serves all tests. The bytes that the client sends are commands:
//!
//! | byte | what the session does |
//! |---|---|
//! | `e` | answers `e` |
//! | `a` | establishes the connection: answers `a`, or `n` if it may not |
//! | `p` | parks, and is never resumed |
//! | `r` | reads the next byte in the same request, and ends |
//! | `R` | reads byte after byte in the same request |
//! | `w` | writes without end, in parts that begin by themselves |
//! | `W` | writes one part without end |
//! | `l` | writes a GiB by one call |
//! | `k` | keeps a KiB: answers `k`, or `c` or `s`, for the limit that has refused it |
//! | `d` | keeps nothing any more: answers `d` |
//! | `g` | passes the gate, and answers `g` |
//!
//! Its last word is `bye`, if it is called for the last time.

#![allow(unsafe_code)] // For the harness.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use common::*;
use ums::Node;
use ums::serve::{Connection, KeptMemory, Listener, MemoryRefused, Next};
use ums::serve::{ServeOptions, Server, Session, Why};
use ums::testing::scheduler;

struct Defended {
    gate: Gate,
    kept: Vec<KeptMemory>,
}

impl Session for Defended {
    fn request(&mut self, conn: &mut Connection<'_>, why: Why) -> Next {
        if why == Why::Stopping {
            assert!(conn.is_closing());
            let _ = conn.try_write(b"bye");
            return Next::Close;
        }
        let mut byte = [0];
        match conn.try_read(&mut byte) {
            Ok(1) => self.obey(conn, byte[0]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Next::Wait,
            _ => Next::Close,
        }
    }
}

impl Defended {
    fn obey(&mut self, conn: &mut Connection<'_>, byte: u8) -> Next {
        let answer = match byte {
            b'p' => return Next::Park,
            b'r' => {
                let _ = conn.read(&mut [0]);
                return Next::Close;
            }
            b'R' => {
                while conn.read(&mut [0]).is_ok() {}
                return Next::Close;
            }
            b'w' | b'W' => {
                if byte == b'W' {
                    conn.begin_part();
                }
                while conn.write_all(&[b'.'; 100_000]).is_ok() {}
                return Next::Close;
            }
            b'l' => {
                // Memory that was never touched takes none when it is read.
                let _ = conn.write_all(&vec![0; 1 << 30]);
                return Next::Close;
            }
            b'a' if !conn.establish() => b'n',
            b'k' => match conn.keep_memory(1 << 10) {
                Ok(kept) => (self.kept.push(kept), b'k').1,
                Err(MemoryRefused::Connection) => b'c',
                Err(MemoryRefused::Server) => b's',
            },
            b'd' => (self.kept.clear(), b'd').1,
            b'g' => (self.gate.pass(), b'g').1,
            other => other,
        };
        if conn.write_all(&[answer]).is_ok() { Next::Again } else { Next::Close }
    }
}

fn serve_on(node: &Node, listener: impl Into<Listener>, gate: &Gate, o: ServeOptions) -> Server {
    let gate = gate.clone();
    let make = move |_: &ums::User, _| -> Box<dyn Session> {
        Box::new(Defended { gate: gate.clone(), kept: Vec::new() })
    };
    node.serve(listener, o, make).unwrap()
}

fn serve(node: &Node, options: ServeOptions) -> Server {
    serve_on(node, TcpListener::bind("127.0.0.1:0").unwrap(), &Gate::shut(), options)
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.local_addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Connects from an address of this computer.
fn connect_from(ip: [u8; 4], server: &Server) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &std::net::SocketAddr::from((ip, 0))).unwrap();
    connect(&socket, &server.local_addr().unwrap()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[track_caller]
fn ask(mut client: impl Read + Write, question: u8) -> Option<u8> {
    let mut answer = [0];
    let sent = client.write_all(&[question]);
    match client.read(&mut answer) {
        Err(e) if matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
            panic!("the server neither answers {:?} nor closes", question as char)
        }
        Ok(1) if sent.is_ok() => Some(answer[0]),
        _ => None,
    }
}

/// Returns all that is sent until the connection is closed, or reset.
#[track_caller]
fn rest(client: &mut TcpStream) -> String {
    let mut rest = Vec::new();
    match client.read_to_end(&mut rest) {
        Err(e) if matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
            panic!("the server does not close the connection")
        }
        _ => String::from_utf8_lossy(&rest).into_owned(),
    }
}

#[test]
fn a_client_that_does_not_log_in_in_time_loses_its_connection() {
    both_kinds(|node, _, _| {
        let limit = ServeOptions { login_limit: Some(ms(300)), ..Default::default() };
        let server = serve(node, limit);
        let mut established = None;
        eventually("a client logs in in time", || {
            let client = connect(&server);
            established = (ask(&client, b'a') == Some(b'a')).then_some(client);
            established.is_some()
        });
        // One that sends nothing, one that sends a little, one whose session is parked, and one
        // whose request waits for input.
        let mut late: Vec<_> = [&b""[..], b"e", b"p", b"r"]
            .map(|sends| {
                let mut client = connect(&server);
                client.write_all(sends).unwrap();
                client
            })
            .into();
        let words: Vec<_> = late.iter_mut().map(rest).collect();
        assert!(words[..3].iter().all(|words| words.ends_with("bye")), "{words:?}");
        assert!(["", "bye"].contains(&&*words[3]), "{words:?}");
        eventually("they have left", || server.counters().open == 1);
        assert!(server.counters().login_limit_ended >= 4);
        assert_eq!(ask(established.as_ref().unwrap(), b'e'), Some(b'e'), "the other has logged in");
        assert!(server.stop_and_wait(PATIENCE));
    });
}

#[test]
fn a_server_that_stops_leaves_no_time_of_logins_behind() {
    both_kinds(|node, _, _| {
        let hour = Some(Duration::from_secs(3600));
        let server = serve(node, ServeOptions { login_limit: hour, ..Default::default() });
        let (mut silent, client) = (connect(&server), connect(&server));
        assert_eq!(ask(&client, b'a'), Some(b'a'));
        assert!(server.stop_and_wait(PATIENCE));
        assert_eq!(rest(&mut silent), "bye");
        assert_eq!(server.counters().login_limit_ended, 0);
        let address = server.local_addr().unwrap();
        drop(server);
        eventually("the port is free", || TcpListener::bind(address).is_ok());
    });
}

#[test]
fn a_client_that_sends_all_the_time_does_not_prolong_its_login() {
    both_kinds(|node, _, _| {
        let limit = ServeOptions { login_limit: Some(ms(100)), ..Default::default() };
        let server = serve(node, limit);
        let mut busy = connect(&server);
        busy.set_write_timeout(Some(PATIENCE)).unwrap();
        let began = std::time::Instant::now();
        while busy.write_all(&[b'R'; 4096]).is_ok() {
            assert!(began.elapsed() < PATIENCE, "its request never ends");
        }
        eventually("it has left", || server.counters().open == 0);
        assert_eq!(server.counters().login_limit_ended, 1);
    });
}

/// If the server is not stopped, the alarm of the logins is still set when the schedulers end.
#[test]
fn a_node_ends_while_a_server_still_waits_for_logins() {
    each_end(
        |b| b,
        |node, _, _| {
            let hour = Some(Duration::from_secs(3600));
            let server = serve(&node, ServeOptions { login_limit: hour, ..Default::default() });
            let mut parked = connect(&server);
            assert_eq!(ask(&parked, b'e'), Some(b'e'));
            parked.write_all(b"p").unwrap();
            eventually("it was read", || server.counters().received_ahead == 0);
            assert_eq!(node.shutdown(PATIENCE), ums::node::ShutdownReport::default());
            drop(server);
            rest(&mut parked);
        },
    );
}

#[test]
fn a_peer_that_does_not_read_loses_its_connection() {
    both_kinds(|node, _, _| {
        let server = serve(node, ServeOptions { write_limit: Some(ms(50)), ..Default::default() });
        let mut silent = connect(&server);
        silent.write_all(b"w").unwrap();
        eventually("it is ended", || server.counters().write_limit_ended == 1);
        // A part has one limit, although its peer reads all the time.
        let mut reading = connect(&server);
        reading.write_all(b"W").unwrap();
        rest(&mut reading);
        eventually("so is this one", || server.counters().write_limit_ended == 2);
        eventually("both have left", || server.counters().open == 0);
        assert_eq!(ask(connect(&server), b'e'), Some(b'e'));
        // Otherwise the shutdown may find the connection before its end has arrived.
        eventually("the last one has left", || server.counters().open == 0);
    });
}

#[test]
fn workers_are_left_by_peers_that_do_not_read() {
    for kind in kinds() {
        for n in COUNTS {
            let four = |b: ums::Builder| b.schedulers(n).max_workers(4 * n);
            one_kind(kind, four, |node| {
                let options =
                    ServeOptions { write_limit: None, reserved_workers: 2, ..Default::default() };
                let server = serve(node, options.clone());
                // A second server takes workers of the same node.
                let second = serve(node, options);
                let slow: Vec<_> = (0..8 * n)
                    .map(|i| {
                        let mut slow = connect(if i % 2 == 0 { &server } else { &second });
                        slow.write_all(b"w").unwrap();
                        slow
                    })
                    .collect();
                for _ in 0..20 {
                    let client = connect(&server);
                    assert_eq!(ask(&client, b'e'), Some(b'e'), "no worker is left");
                }
                let ended = || [&server, &second].map(|s| s.counters().slow_readers_ended);
                let left = 2; // Four workers of a scheduler less the reserve.
                eventually("as many are waited for as may be", || {
                    ended().iter().sum::<u64>() as usize == slow.len() - left
                });
                drop(slow);
                eventually("all have left", || server.counters().open == 0);
            });
        }
    }
}

#[test]
fn a_peer_that_reads_steadily_stays_when_those_that_do_not_read_lose_their_connections() {
    let four = |b: ums::Builder| b.schedulers(1).max_workers(4);
    kinds().into_iter().for_each(|kind| one_kind(kind, four, spares_the_steady_one));
}

fn spares_the_steady_one(node: &Node) {
    /// More than the buffers of a connection hold, so that the server has written meanwhile.
    const PROGRESS: usize = 16 << 20;
    let options = ServeOptions { write_limit: None, reserved_workers: 2, ..Default::default() };
    let server = serve(node, options);
    let mut steady = connect(&server);
    steady.write_all(b"l").unwrap();
    let read = Arc::new(AtomicUsize::new(0));
    let (so_far, stop) = (Arc::clone(&read), steady.try_clone().unwrap());
    // It reads more slowly than the server can write, so there is seldom room for more.
    let reader = std::thread::spawn(move || {
        let mut part = vec![0; 256 << 10];
        while steady.read_exact(&mut part).is_ok() {
            so_far.fetch_add(part.len(), SeqCst);
            std::thread::sleep(ms(2));
        }
    });
    let goes_on = || {
        let began = read.load(SeqCst);
        eventually("the steady one goes on", || read.load(SeqCst) > began + PROGRESS);
    };
    let mut slow = Vec::new();
    for ended in 0..6 {
        goes_on();
        let mut client = connect(&server);
        client.write_all(b"w").unwrap();
        slow.push(client);
        // Two may be waited for: the steady one, and the last of the others.
        eventually("the one before it has made room", || {
            server.counters().slow_readers_ended == ended
        });
    }
    goes_on();
    stop.shutdown(std::net::Shutdown::Both).unwrap();
    reader.join().unwrap();
    drop(slow);
    eventually("all have left", || server.counters().open == 0);
}

#[test]
fn what_connections_keep_has_limits_and_is_given_back() {
    both_kinds(|node, _, _| {
        let gate = Gate::shut();
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let limits = ServeOptions {
            max_memory: 6 << 10,
            max_connection_memory: 4 << 10,
            ..Default::default()
        };
        let server = serve_on(node, listen(), &gate, limits.clone());
        let other = serve_on(node, listen(), &gate, limits);
        let (one, two) = (connect(&server), connect(&server));
        assert!((0..3).all(|_| ask(&one, b'k') == Some(b'k')));
        eventually("only that is kept", || server.counters().kept_memory == 3 << 10);
        // The command itself is received ahead, but the session has read it.
        assert_eq!(ask(&one, b'k'), Some(b'k'));
        assert_eq!(ask(&one, b'k'), Some(b'c'), "the limit of the connection");
        assert_eq!((ask(&two, b'k'), ask(&two, b'k')), (Some(b'k'), Some(b'k')));
        assert_eq!(ask(&two, b'k'), Some(b's'), "the limit of the server");
        assert_eq!(server.counters().memory_refused, 2);
        // Another server in this process has a budget of its own.
        let there = connect(&other);
        assert!((0..4).all(|_| ask(&there, b'k') == Some(b'k')));
        assert_eq!(other.counters().memory_refused, 0);
        assert_eq!(ask(&one, b'd'), Some(b'd'));
        assert_eq!(ask(&two, b'k'), Some(b'k'));
        drop((one, two, there));
        eventually("all is given back", || server.counters().kept_memory == 0);
        gate.open();
    });
}

#[test]
fn what_is_received_ahead_counts_as_memory() {
    both_kinds(|node, _, _| {
        let gate = Gate::shut();
        let limits = ServeOptions { max_memory: 2000, ..Default::default() };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = serve_on(node, listener, &gate, limits);
        let (mut ahead, other) = (connect(&server), connect(&server));
        assert_eq!((ask(&other, b'k'), ask(&other, b'd')), (Some(b'k'), Some(b'd')));
        assert_eq!(ask(&ahead, b'e'), Some(b'e'));
        let loads = || (0..node.scheduler_count()).map(|s| scheduler(node, s).load);
        eventually("the sessions wait for input", || loads().sum::<usize>() == 0);
        let mut sent = [b'e'; 1500];
        sent[0] = b'g';
        ahead.write_all(&sent).unwrap();
        eventually("it was received", || server.counters().kept_memory == 1500);
        eventually("one byte was read", || server.counters().received_ahead == 1499);
        assert_eq!(ask(&other, b'k'), Some(b's'));
        gate.open();
        ahead.read_exact(&mut sent).unwrap();
        eventually("it was read", || server.counters().kept_memory == 0);
        assert_eq!(ask(&other, b'k'), Some(b'k'));
        // Their last requests would be cancelled if the node were shut down meanwhile.
        drop((ahead, other));
        eventually("they have left", || server.counters().open == 0);
    });
}

#[test]
fn one_address_has_only_so_many_connections() {
    both_kinds(|node, _, _| {
        let two = ServeOptions { max_per_address: 2, ..Default::default() };
        let server = serve(node, two.clone());
        let open = [connect(&server), connect(&server)];
        assert!(open.iter().all(|client| ask(client, b'e') == Some(b'e')));
        assert_eq!(ask(connect(&server), b'e'), None);
        assert_eq!(ask(connect_from([127, 0, 0, 2], &server), b'e'), Some(b'e'));
        assert_eq!((server.counters().refused_per_address, server.counters().refused), (1, 0));
        drop(open);
        eventually("they have left", || server.counters().open == 0);
        assert_eq!(ask(connect(&server), b'e'), Some(b'e'));
        // A Unix-domain socket has no addresses.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let local = serve_on(node, UnixListener::bind(&path).unwrap(), &Gate::shut(), two);
        let clients: Vec<_> = (0..4).map(|_| UnixStream::connect(&path).unwrap()).collect();
        assert!(clients.iter().all(|client| ask(client, b'e') == Some(b'e')));
        drop((clients, local));
    });
}

/// Connects again and again until a connection is refused, and then until one is served.
fn is_slowed_down(mut is_served: impl FnMut() -> bool) {
    eventually("one comes too soon", || !is_served());
    eventually("a later one is served", is_served);
}

#[test]
fn connections_come_only_so_fast_from_one_address_and_in_all() {
    both_kinds(|node, _, _| {
        let slow = ServeOptions { max_rate_per_address: 5, ..Default::default() };
        let server = serve(node, slow);
        is_slowed_down(|| ask(connect(&server), b'e').is_some());
        let counters = server.counters();
        assert!(counters.refused_rate_per_address > 0 && counters.refused_rate == 0);
        let slow = ServeOptions { max_rate: 5, ..Default::default() };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let local = serve_on(node, UnixListener::bind(&path).unwrap(), &Gate::shut(), slow);
        is_slowed_down(|| ask(UnixStream::connect(&path).unwrap(), b'e').is_some());
        let counters = local.counters();
        assert!(counters.refused_rate > 0 && counters.refused_rate_per_address == 0);
    });
}
