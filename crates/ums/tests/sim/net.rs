//! Stories of the network: ports; connections that are late, break or are half-closed; users behind
//! a listener.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ums::net::{TcpListener, TcpStream, UnixStream};
use ums::serve::{Connection, Next, ServeOptions, Session, Why};
use ums::sim::{Faults, below, now, run};
use ums::sync::Mutex;

use super::{STALLS, check, end, node_with};

/// Echoes what it receives, until the end of the stream.
fn echo(mut stream: TcpStream) {
    let mut buf = [0; 64];
    while let Ok(n @ 1..) = stream.read(&mut buf) {
        if stream.write_all(&buf[..n]).is_err() {
            break;
        }
    }
}

/// A client sends some words and closes its half of the connection. Then it receives all the words,
/// and the end of the stream.
fn talk(address: SocketAddr, number: u8) {
    let mut stream = TcpStream::connect(address).expect("there is a listener");
    assert_eq!(stream.peer_addr().unwrap(), address);
    stream.set_nodelay(true).unwrap();
    let mine = stream.local_addr().unwrap();
    assert_eq!((mine.ip(), mine.port() >= 49_152), (address.ip(), true), "{mine}");
    let words: Vec<u8> = (0..150).map(|at| number.wrapping_mul(7).wrapping_add(at)).collect();
    stream.write_all(&words).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    assert_eq!(heard, words, "what a client heard");
}

#[test]
fn a_port_of_the_world_serves_its_clients_and_is_free_again() {
    let faults = Faults { short: 3000, ..STALLS };
    check("a_port_of_the_world_serves_its_clients_and_is_free_again", faults, || {
        let node = node_with(2, 8);
        let address: SocketAddr = "10.1.2.3:7777".parse().unwrap();
        for _ in 0..2 {
            let listener = node.run(move || TcpListener::bind(address).unwrap());
            assert_eq!(listener.local_addr().unwrap(), address);
            let taken = node.run(move || TcpListener::bind(address).unwrap_err().kind());
            assert_eq!(taken, ErrorKind::AddrInUse);
            let server = node.spawn(move || {
                let served = (0..3).map(|_| {
                    let (stream, peer) = listener.accept().unwrap();
                    assert_eq!(stream.peer_addr().unwrap(), peer);
                    assert_eq!(stream.local_addr().unwrap(), address);
                    ums::spawn(move || echo(stream))
                });
                let served: Vec<_> = served.collect();
                served.into_iter().for_each(|task| task.join().unwrap());
            });
            let clients = (0..3).map(|number| node.spawn(move || talk(address, number)).unwrap());
            let clients: Vec<_> = clients.collect();
            clients.into_iter().for_each(|client| client.join().unwrap());
            server.unwrap().join().unwrap();
        }
        let refused = node.run(move || TcpStream::connect(address).unwrap_err().kind());
        assert_eq!(refused, ErrorKind::ConnectionRefused, "there is no listener any more");
        end(node);
    });
}

#[test]
fn an_answer_that_is_late_is_not_waited_for_longer_than_said() {
    check("an_answer_that_is_late_is_not_waited_for_longer_than_said", STALLS, || {
        let node = node_with(1, 4);
        let (mut here, mut there) = node.run(|| UnixStream::pair().unwrap());
        let late = node.spawn(move || {
            ums::sleep(Duration::from_secs(5)).unwrap();
            there.write_all(b"late").unwrap();
        });
        let waits = node.spawn(move || {
            let began = now();
            here.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            assert_eq!(here.read(&mut [0; 9]).unwrap_err().kind(), ErrorKind::TimedOut);
            assert!((1..5).contains(&((now() - began) / 1_000_000_000)));
            here.set_read_timeout(None).unwrap();
            let mut heard = String::new();
            here.read_to_string(&mut heard).unwrap();
            assert_eq!(heard, "late");
        });
        waits.unwrap().join().unwrap();
        late.unwrap().join().unwrap();
        end(node);
    });
}

#[test]
fn what_is_sent_on_two_connections_arrives_in_any_order() {
    let orders: Arc<[AtomicU64; 2]> = Arc::default();
    for seed in 0..50 {
        let orders = Arc::clone(&orders);
        let story = move || {
            let node = node_with(1, 6);
            let came = Arc::new(Mutex::new(Vec::new()));
            let ends = [0, 1].map(|number| {
                let (here, mut there) = node.run(|| UnixStream::pair().unwrap());
                let came = Arc::clone(&came);
                let read = move || {
                    there.read_exact(&mut [0]).unwrap();
                    came.lock().push(number);
                };
                (here, node.spawn(read).unwrap())
            });
            let [(mut first, one), (mut second, two)] = ends;
            node.run(move || {
                first.write_all(b"!").unwrap();
                second.write_all(b"!").unwrap();
            });
            one.join().unwrap();
            two.join().unwrap();
            let order = came.lock()[0];
            orders[order].fetch_add(1, Ordering::Relaxed);
            end(node);
        };
        assert_eq!(run(seed, Faults::default(), story).failed, None, "seed {seed}");
    }
    let [in_order, overtaken] = [0, 1].map(|at| orders[at].load(Ordering::Relaxed));
    assert!(in_order > 5 && overtaken > 5, "{in_order} in order, {overtaken} overtaken");
}

#[test]
fn the_end_of_what_came_is_never_taken_for_the_end_of_what_was_sent() {
    static WHOLE: AtomicU64 = AtomicU64::new(0);
    static RESET: AtomicU64 = AtomicU64::new(0);
    let faults = Faults { cut: 1000, short: 2000, ..STALLS };
    check("the_end_of_what_came_is_never_taken_for_the_end_of_what_was_sent", faults, || {
        let node = node_with(1 + below(2) as usize, 4);
        let (mut here, mut there) = node.run(|| UnixStream::pair().unwrap());
        let sends = node.spawn(move || {
            let sent = (0..10_u8).try_for_each(|n| {
                ums::sleep(Duration::from_micros(below(300))).unwrap();
                here.write_all(&[n; 100])
            });
            let broken = |e: &std::io::Error| e.kind() == ErrorKind::ConnectionReset;
            assert!(sent.as_ref().err().is_none_or(broken), "{sent:?}");
        });
        let reads = node.spawn(move || {
            let mut heard = Vec::new();
            match there.read_to_end(&mut heard) {
                Ok(1000) => WHOLE.fetch_add(1, Ordering::Relaxed),
                Ok(count) => panic!("an end after {count} bytes"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                    RESET.fetch_add(1, Ordering::Relaxed)
                }
            };
            let expected = (0..10).flat_map(|n| [n; 100]);
            assert!(heard.iter().zip(expected).all(|(heard, sent)| *heard == sent));
        });
        sends.unwrap().join().unwrap();
        reads.unwrap().join().unwrap();
        end(node);
    });
    let (whole, reset) = (WHOLE.load(Ordering::Relaxed), RESET.load(Ordering::Relaxed));
    assert!(whole > 20 && reset > 20, "{whole} were whole, {reset} were reset");
}

#[test]
fn a_reader_that_does_not_read_holds_only_its_sender_up() {
    check("a_reader_that_does_not_read_holds_only_its_sender_up", STALLS, || {
        let node = node_with(1, 4);
        let (mut here, mut there) = node.run(|| UnixStream::pair().unwrap());
        // More than both sockets and the connection between them can hold.
        const MUCH: usize = 2 << 20;
        let sends = node.spawn(move || {
            let began = now();
            here.write_all(&vec![7; MUCH]).unwrap();
            assert!(now() - began >= 1_000_000_000, "there is room for everything");
        });
        let reads = node.spawn(move || {
            ums::sleep(Duration::from_secs(1)).unwrap();
            let mut heard = Vec::new();
            there.read_to_end(&mut heard).unwrap();
            assert!(heard.len() == MUCH && heard.iter().all(|byte| *byte == 7));
        });
        assert_eq!(node.run(|| 7), 7);
        sends.unwrap().join().unwrap();
        reads.unwrap().join().unwrap();
        end(node);
    });
}

/// Sends back what it reads.
struct Echo;

impl Session for Echo {
    fn request(&mut self, conn: &mut Connection<'_>, _: Why) -> Next {
        let mut buf = [0; 40];
        match conn.try_read(&mut buf) {
            Ok(n @ 1..) if conn.write_all(&buf[..n]).is_ok() => Next::Again,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Next::Wait,
            _ => Next::Close,
        }
    }
}

/// A server whose clients, each a user, send something from time to time. There are more clients
/// than workers.
fn a_server_and_its_users() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let node = node_with(2, 1);
    // The clients run on another node, because they would use up the server's workers.
    let theirs = node_with(1, 8);
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let server = node.serve(listener, ServeOptions::default(), |_, _| Box::new(Echo)).unwrap();
    let clients: Vec<_> = (0..6_u8)
        .map(|number| {
            let path = path.clone();
            let client = move || {
                let mut stream = UnixStream::connect(path).unwrap();
                for round in 0..3 {
                    ums::sleep(Duration::from_micros(below(20_000))).unwrap();
                    let (said, mut heard) = ([number * 8 + round; 60], [0xff; 60]);
                    stream.write_all(&said).unwrap();
                    stream.read_exact(&mut heard).unwrap();
                    assert_eq!(heard, said, "the answer to another");
                }
            };
            theirs.spawn(client).unwrap()
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(server.counters().accepted, 6);
    server.stop();
    end(theirs);
    end(node);
}

#[test]
fn users_of_a_server_are_answered_in_the_world_too_u31() {
    let faults = Faults { short: 2000, ..STALLS };
    check("users_of_a_server_are_answered_in_the_world_too_u31", faults, a_server_and_its_users);
}

#[test]
fn a_server_in_the_world_does_the_same_for_the_same_seed() {
    for seed in 0..10 {
        let tell = || run(seed, STALLS, a_server_and_its_users);
        let (first, again) = (tell(), tell());
        assert_eq!(first.failed, None);
        assert_eq!(first.trace, again.trace, "seed {seed}");
    }
}
