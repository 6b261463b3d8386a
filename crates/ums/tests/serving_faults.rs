//! Served connections whose sessions panic, the limit of connections, and the end of the node. A
//! fault closes its own connection, and every scheduler continues to accept.

#![allow(unsafe_code)] // For the harness.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use common::*;
use ums::Node;
use ums::User;
use ums::node::{EnqueueError, Placement, ShutdownReport};
use ums::serve::{Connection, Next, Peer, ServeOptions, Server};
use ums::serve::{Session, Why};

/// Answers each byte with itself, and ends at an `x`.
struct Echo {
    /// If true, the destructor panics, and so does the call that answers a refusal.
    faulty: bool,
    alive: Option<Arc<AtomicUsize>>,
}

impl Echo {
    fn boxed(faulty: bool) -> Box<dyn Session> {
        Box::new(Echo { faulty, alive: None })
    }
}

impl Session for Echo {
    fn request(&mut self, conn: &mut Connection<'_>, _: Why) -> Next {
        let mut byte = [0];
        match conn.try_read(&mut byte) {
            Ok(1) if byte[0] != b'x' && conn.write_all(&byte).is_ok() => Next::Again,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Next::Wait,
            _ => Next::Close,
        }
    }

    fn refused(&mut self, _: EnqueueError) -> Vec<u8> {
        assert!(!self.faulty, "on purpose");
        Vec::new()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        if let Some(alive) = &self.alive {
            alive.fetch_sub(1, SeqCst);
        }
        if self.faulty && !std::thread::panicking() {
            panic!("on purpose");
        }
    }
}

fn serve(
    node: &Node,
    most: usize,
    make: impl Fn(&User, Peer) -> Box<dyn Session> + Send + Sync + 'static,
) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = ServeOptions { max_connections: most, ..Default::default() };
    node.serve(listener, options, make).unwrap()
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.local_addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Returns whether the server answers. If it does not, it must have closed the connection.
#[track_caller]
fn is_answered(client: &mut TcpStream, byte: u8) -> bool {
    use std::io::ErrorKind::{TimedOut, WouldBlock};
    let mut answer = [0];
    let sent = client.write_all(&[byte]);
    match client.read(&mut answer) {
        Err(e) if matches!(e.kind(), TimedOut | WouldBlock) => {
            panic!("the server neither answers {:?} nor closes the connection", byte as char)
        }
        read => sent.is_ok() && matches!(read, Ok(1)) && answer[0] == byte,
    }
}

#[test]
fn a_panic_where_a_session_is_made_closes_that_connection_alone() {
    both_kinds(|node, _, _| {
        let made = AtomicUsize::new(0);
        let server = serve(node, 0, move |_, _| {
            assert!(made.fetch_add(1, SeqCst) % 2 == 1, "on purpose");
            Echo::boxed(false)
        });
        for round in 0..8 {
            let [first, second] = [(); 2].map(|()| is_answered(&mut connect(&server), b'a'));
            assert!(!first, "the connection without a session is closed ({round})");
            assert!(second, "the next one is served ({round})");
        }
        eventually("all have left", || server.counters().open == 0);
        assert_eq!(server.counters().panics, 8);
    });
}

#[test]
fn a_panic_in_a_sessions_destructor_closes_its_connection() {
    both_kinds(|node, _, _| {
        let server = serve(node, 0, |_, _| Echo::boxed(true));
        for round in 0..4 {
            let mut client = connect(&server);
            assert!(is_answered(&mut client, b'a'), "{round}");
            assert!(!is_answered(&mut client, b'x'), "{round}");
        }
        eventually("all have left", || server.counters().open == 0);
        assert_eq!(server.counters().panics, 4);
    });
}

#[test]
fn a_panic_of_a_session_that_is_refused_closes_its_connection() {
    for kind in kinds() {
        let options = |b: ums::Builder| {
            let b = b.schedulers(1).max_workers(1).queue_limit(1);
            b.placement(Placement::AlwaysPreferred)
        };
        one_kind(kind, options, |node| {
            let server = serve(node, 0, |_, _| Echo::boxed(true));
            let mut client = connect(&server);
            assert!(is_answered(&mut client, b'a'));
            let load = || ums::testing::scheduler(node, 0).load;
            eventually("the session has no worker", || load() == 0);
            let gate = Gate::shut();
            let pass = || {
                let gate = gate.clone();
                start(node, 0, move || gate.pass())
            };
            let stuck = pass();
            eventually("the worker waits", || gate.waiters() == 1);
            let queued = pass();
            assert!(!is_answered(&mut client, b'b'), "the queue is full");
            eventually("it has left", || server.counters().open == 0);
            gate.open();
            [stuck, queued].into_iter().for_each(|task| task.join().unwrap());
            assert!(is_answered(&mut connect(&server), b'c'), "others are served");
        });
    }
}

#[test]
fn no_more_connections_are_served_at_once_than_the_limit() {
    const MOST: usize = 3;
    both_kinds(|node, _, _| {
        let (alive, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (counts, most) = (alive.clone(), seen.clone());
        let server = serve(node, MOST, move |_, _| {
            most.fetch_max(counts.fetch_add(1, SeqCst) + 1, SeqCst);
            // The wait gives other schedulers time to accept.
            ums::sleep(ms(5)).unwrap();
            Box::new(Echo { faulty: false, alive: Some(counts.clone()) })
        });
        for _ in 0..5 {
            let clients: Vec<_> = (0..12).map(|_| connect(&server)).collect();
            let answered = clients
                .into_iter()
                .filter_map(|mut client| is_answered(&mut client, b'a').then_some(client));
            let answered: Vec<_> = answered.collect();
            assert!((1..=MOST).contains(&answered.len()), "{}", answered.len());
            drop(answered);
            eventually("all have left", || server.counters().open == 0);
        }
        eventually("all are gone", || alive.load(SeqCst) == 0);
        assert!(seen.load(SeqCst) <= MOST, "{} at once", seen.load(SeqCst));
    });
}

/// A session that parks immediately. If parking is refused, it sends the error.
struct Parks;

impl Session for Parks {
    fn request(&mut self, _: &mut Connection<'_>, _: Why) -> Next {
        Next::Park
    }

    fn refused(&mut self, error: EnqueueError) -> Vec<u8> {
        error.to_string().into_bytes()
    }
}

#[test]
fn a_server_that_outlives_its_node_refuses_its_parked_sessions_and_stops_g13() {
    each_end(
        |b| b,
        |node, _, _| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let parks = |_: &User, _| -> Box<dyn Session> { Box::new(Parks) };
            let server = node.serve(listener, ServeOptions::default(), parks).unwrap();
            let connect = || TcpStream::connect(server.local_addr().unwrap()).unwrap();
            let clients: Vec<_> = (0..4).map(|_| connect()).collect();
            eventually("all are connected", || server.counters().accepted == 4);
            assert_eq!(node.shutdown(PATIENCE), ShutdownReport::default());
            server.stop();
            assert_eq!(server.counters().open, 0);
            for mut client in clients {
                let mut last_words = String::new();
                client.read_to_string(&mut last_words).unwrap();
                assert_eq!(last_words, EnqueueError::ShuttingDown.to_string());
            }
        },
    );
}
