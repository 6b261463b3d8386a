//! Serving: a user for each connection, and sessions that workers call (U30, U31, G2, G13).
//!
//! One session type serves all tests. The bytes that the client sends are commands:
//!
//! | byte | what the session does |
//! |---|---|
//! | `e` | answers `e` |
//! | `p` | parks the session, and gives its resumer to the test. When resumed, it answers `r` |
//! | `q` | resumes itself before it parks; then it answers `r` |
//! | `t` | waits for input for 20 milliseconds at most, and answers `t` if there was none |
//! | `l` | waits for input for an hour at most |
//! | `g` | passes the gate, and answers `g` |
//! | `h`, `u` | its user begins to hold something; its user stops holding it |
//! | `w` | answers `w`, and waits for input without another read |
//! | `a` | establishes the connection: answers `a`, or `n` if there is no place |
//! | `o` | gives its outlook to the test |
//! | `!` | panics |
//!
//! When the server stops, it sends `bye`; when the queue is full, `full`.

#![allow(unsafe_code)] // For the harness.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::*;
use ums::Node;
use ums::node::{EnqueueError, Placement};
use ums::serve::{Connection, Next, Outlook, Resumer, ServeOptions, Server};
use ums::serve::{Session, Why};
use ums::testing::scheduler;

/// The state that a test and its sessions share.
#[derive(Clone)]
struct Shared {
    log: Log<Why>,
    gate: Gate,
    resumer: Arc<Mutex<Option<Resumer>>>,
    outlook: Arc<Mutex<Option<Outlook>>>,
}

impl Shared {
    fn new() -> Shared {
        let (resumer, outlook) = (Arc::default(), Arc::default());
        Shared { log: Log::default(), gate: Gate::shut(), resumer, outlook }
    }

    /// Resumes the session that has announced its park.
    fn resume(&self) {
        let take = || self.resumer.lock().unwrap().take();
        let mut resumer = None;
        eventually("a session parks", || (resumer = take(), resumer.is_some()).1);
        resumer.expect("it was there").resume();
    }

    fn saw(&self, why: Why) -> usize {
        self.log.all().into_iter().filter(|w| *w == why).count()
    }
}

struct Served {
    shared: Shared,
    was_parked: bool,
}

impl Session for Served {
    fn request(&mut self, conn: &mut Connection<'_>, why: Why) -> Next {
        self.shared.log.push(why);
        let answer: &[u8] = match why {
            Why::Stopping => b"bye",
            Why::TimedOut => b"t",
            Why::Again if std::mem::take(&mut self.was_parked) => b"r",
            _ => b"",
        };
        if conn.write_all(answer).is_err() {
            return Next::Close;
        }
        let mut byte = [0];
        match conn.try_read(&mut byte) {
            Ok(1) => self.obey(conn, byte[0]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Next::Wait,
            _ => Next::Close,
        }
    }

    fn refused(&mut self, error: EnqueueError) -> Vec<u8> {
        match error {
            EnqueueError::QueueFull(4..) => b"full".to_vec(),
            // The node ends while the client is still connected. Such a client gets no `bye`.
            EnqueueError::ShuttingDown => Vec::new(),
            other => panic!("{other}"),
        }
    }
}

impl Served {
    fn obey(&mut self, conn: &mut Connection<'_>, byte: u8) -> Next {
        match byte {
            b'p' => {
                self.was_parked = true;
                *self.shared.resumer.lock().unwrap() = Some(conn.resumer());
                return Next::Park;
            }
            b'q' => {
                self.was_parked = true;
                conn.resumer().resume();
                return Next::Park;
            }
            b't' => return Next::WaitAtMost(ms(20)),
            b'l' => return Next::WaitAtMost(Duration::from_secs(3600)),
            b'o' => *self.shared.outlook.lock().unwrap() = Some(conn.outlook()),
            b'a' if !conn.establish() => {
                return if conn.write_all(b"n").is_ok() { Next::Again } else { Next::Close };
            }
            b'g' => self.shared.gate.pass(),
            b'h' => conn.user().hold(),
            b'u' => conn.user().release(),
            b'w' if conn.write_all(b"w").is_ok() => return Next::Wait,
            b'!' => panic!("a session panics, as its test asks"),
            _ => {}
        }
        if conn.write_all(&[byte]).is_ok() { Next::Again } else { Next::Close }
    }
}

fn serve(node: &Node, shared: &Shared, options: ServeOptions) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let shared = shared.clone();
    let make = move |_: &ums::User, _| -> Box<dyn Session> {
        Box::new(Served { shared: shared.clone(), was_parked: false })
    };
    node.serve(listener, options, make).unwrap()
}

/// The test's side of a connection.
struct Client(TcpStream);

impl Client {
    /// Connects, and waits until its session has been called for the first time.
    fn new(server: &Server) -> Client {
        let stream = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut client = Client(stream);
        client.expect("e", "e");
        client
    }

    fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
    }

    #[track_caller]
    fn read(&mut self, answer: &str) {
        let mut got = vec![0; answer.len()];
        self.0.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), answer);
    }

    #[track_caller]
    fn expect(&mut self, question: &str, answer: &str) {
        self.send(question);
        self.read(answer);
    }

    /// Returns everything that is sent until the connection is closed.
    fn rest(mut self) -> String {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).unwrap();
        rest
    }
}

fn at_rest(node: &Node) {
    let loads = || (0..node.scheduler_count()).map(|s| scheduler(node, s).load);
    eventually("no session has a worker", || loads().sum::<usize>() == 0);
}

fn each(body: impl Fn(&Node, &Shared, &Server, usize)) {
    both_kinds(|node, _, n| {
        let shared = Shared::new();
        let server = serve(node, &shared, ServeOptions::default());
        body(node, &shared, &server, n);
        assert!(server.stop_and_wait(PATIENCE), "all connections have closed");
        assert_eq!(server.counters().open, 0);
    });
}

#[test]
fn many_connections_are_served_by_few_workers_u30_u31() {
    for kind in kinds() {
        for n in COUNTS {
            one_kind(
                kind,
                |b| b.schedulers(n).max_workers(2 * n),
                |node| {
                    let shared = Shared::new();
                    let server = serve(node, &shared, ServeOptions::default());
                    let mut clients: Vec<_> = (0..60).map(|_| Client::new(&server)).collect();
                    for _ in 0..3 {
                        clients.iter_mut().for_each(|c| c.send("eee"));
                        clients.iter_mut().for_each(|c| c.read("eee"));
                    }
                    at_rest(node);
                    let counters = server.counters();
                    assert_eq!((counters.open, counters.accepted, counters.refused), (60, 60, 0));
                    drop(clients);
                    eventually("all have left", || server.counters().open == 0);
                    let users = || node.snapshot().schedulers.iter().map(|s| s.users).sum();
                    eventually("so have their users", || 0_usize == users());
                },
            );
        }
    }
}

#[test]
fn a_parked_session_is_called_when_it_is_resumed_and_not_for_input() {
    each(|node, shared, server, _| {
        let mut client = Client::new(server);
        for round in 1..=3 {
            at_rest(node);
            client.send("p");
            eventually("it parks", || shared.resumer.lock().unwrap().is_some());
            at_rest(node);
            let calls = shared.log.len();
            client.send("e");
            std::thread::sleep(ms(5));
            assert_eq!(shared.log.len(), calls, "input is no reason while it parks, {round}");
            shared.resume();
            client.read("re");
        }
    });
}

#[test]
fn a_session_that_is_resumed_before_it_parks_is_still_called() {
    each(|_, _, server, _| {
        let mut client = Client::new(server);
        for _ in 0..50 {
            client.expect("q", "r");
        }
    });
}

#[test]
fn a_resume_that_races_with_the_park_is_never_lost() {
    each(|_, shared, server, _| {
        let mut client = Client::new(server);
        for _ in 0..100 {
            client.send("p");
            // Resumes the session as soon as there is a resumer, which is before the session has
            // parked.
            shared.resume();
            client.read("r");
        }
    });
}

#[test]
fn a_session_whose_client_is_silent_for_too_long_is_called() {
    each(|node, shared, server, _| {
        let mut client = Client::new(server);
        client.expect("t", "t");
        client.expect("t", "t");
        assert_eq!(shared.saw(Why::TimedOut), 2);
        client.send("l");
        at_rest(node);
        let timers = || (0..node.scheduler_count()).map(|s| scheduler(node, s).counters.timers);
        eventually("its time runs", || timers().sum::<u64>() == 1);
        client.expect("e", "e");
        eventually("its timer is gone", || timers().sum::<u64>() == 0);
        assert_eq!(shared.saw(Why::TimedOut), 2, "the input was in time");
    });
}

#[test]
fn a_client_is_told_when_the_queue_is_full_g2() {
    for kind in kinds() {
        for n in COUNTS {
            one_kind(
                kind,
                |b| {
                    let b = b.schedulers(n).max_workers(n).queue_limit(4);
                    b.placement(Placement::AlwaysPreferred)
                },
                |node| {
                    let shared = Shared::new();
                    let server = serve(node, &shared, ServeOptions::default());
                    let mut client = Client::new(&server);
                    at_rest(node);
                    let pass = |s| {
                        let gate = shared.gate.clone();
                        node.spawn_on(s, move || gate.pass())
                    };
                    let mut stuck: Vec<_> = (0..n).map(|s| pass(s).unwrap()).collect();
                    eventually("every worker waits", || shared.gate.waiters() == n);
                    // Each scheduler polls the listener. One that hears of the client only now has
                    // a request that accepts it in its queue, so its queue is full a task earlier.
                    let fill = |s| std::iter::from_fn(move || pass(s).ok());
                    stuck.extend((0..n).flat_map(fill));
                    client.send("e");
                    assert_eq!(client.rest(), "full");
                    eventually("it has left", || server.counters().open == 0);
                    // The request that accepts connections is queued even if the queue is full.
                    let full: usize = (0..n).map(|s| scheduler(node, s).queued).sum();
                    let early = TcpStream::connect(server.local_addr().unwrap()).unwrap();
                    early.set_read_timeout(Some(PATIENCE)).unwrap();
                    let queued = || (0..n).map(|s| scheduler(node, s).queued).sum::<usize>();
                    eventually("it is to be accepted", || queued() > full);
                    shared.gate.open();
                    Client(early).expect("e", "e");
                    stuck.into_iter().for_each(|t| t.join().unwrap());
                    Client::new(&server).expect("e", "e");
                },
            );
        }
    }
}

#[test]
fn a_panic_closes_only_its_own_connection_g13() {
    each(|_, shared, server, _| {
        let mut well: Vec<_> = (0..4).map(|_| Client::new(server)).collect();
        for _ in 0..3 {
            let mut ill = Client::new(server);
            ill.send("!");
            assert_eq!(ill.rest(), "");
            well.iter_mut().for_each(|c| c.expect("e", "e"));
        }
        eventually("the panicked sessions have closed", || server.counters().open == 4);
        assert_eq!(shared.saw(Why::Stopping), 0);
    });
}

#[test]
fn stopping_says_goodbye_to_idle_timed_busy_and_parked_sessions_g13() {
    each(|node, shared, server, _| {
        let (mut timed, mut parked, mut busy) =
            (Client::new(server), Client::new(server), Client::new(server));
        let idle = Client::new(server);
        timed.send("l");
        parked.send("p");
        eventually("it parks", || shared.resumer.lock().unwrap().is_some());
        at_rest(node);
        busy.send("g");
        eventually("it is busy", || shared.gate.waiters() == 1);
        server.stop();
        for client in [idle, timed, parked] {
            assert_eq!(client.rest(), "bye");
        }
        eventually("they have left", || server.counters().open == 1);
        assert!(!server.stop_and_wait(ms(20)), "one is busy");
        shared.gate.open();
        assert_eq!(busy.rest(), "gbye", "its request ends first");
        assert_eq!(shared.saw(Why::Stopping), 4, "each was called once");
    });
}

#[test]
fn a_session_that_parks_while_the_server_stops_says_goodbye_too_g13() {
    each(|_, shared, server, _| {
        let clients: Vec<_> = (0..20).map(|_| Client::new(server)).collect();
        let mut clients = clients.into_iter().map(|mut c| (c.send("p"), c).1).collect::<Vec<_>>();
        assert!(server.stop_and_wait(PATIENCE));
        for client in clients.drain(..) {
            assert_eq!(client.rest(), "bye");
        }
        assert_eq!(shared.saw(Why::Stopping), 20);
    });
}

#[test]
fn a_cancelled_session_leaves_its_wait_b59() {
    each(|node, shared, server, _| {
        let mut client = Client::new(server);
        client.send("g");
        eventually("it waits", || shared.gate.waiters() == 1);
        let user = node.snapshot().workers.iter().find(|w| w.user != 0).map(|w| w.user).unwrap();
        assert!(node.cancel(user));
        // A cancelled wait at the gate panics. So the session panics, and its connection closes.
        assert_eq!(client.rest(), "");
        eventually("it has left", || server.counters().open == 0);
        assert!(!node.cancel(user), "there is no such user any more");
        assert_eq!(shared.gate.waiters(), 0);
    });
}

#[test]
fn connections_beyond_the_limit_are_closed_at_once() {
    both_kinds(|node, _, _| {
        let shared = Shared::new();
        let options = ServeOptions { max_connections: 2, ..Default::default() };
        let server = serve(node, &shared, options);
        let (mut first, second) = (Client::new(&server), Client::new(&server));
        let mut third = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        third.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(third.read(&mut [0]).unwrap(), 0);
        assert_eq!((server.counters().refused, server.counters().open), (1, 2));
        drop(second);
        eventually("there is room again", || server.counters().open == 1);
        Client::new(&server).expect("e", "e");
        first.expect("e", "e");
    });
}

#[test]
fn connections_that_are_not_established_make_room_for_new_ones() {
    both_kinds(|node, _, _| {
        let shared = Shared::new();
        let options = ServeOptions { max_connections: 1, max_new: 2, ..Default::default() };
        let server = serve(node, &shared, options);
        let silent: Vec<_> = (0..6).map(|_| Client::new(&server)).collect();
        // Of the oldest, one that is idle and one that runs a request are closed.
        eventually("the oldest are closed", || server.counters().open == 2);
        let mut client = Client::new(&server);
        client.expect("a", "a");
        client.expect("a", "a");
        let mut other = Client::new(&server);
        other.expect("a", "n");
        let more: Vec<_> = (0..6).map(|_| Client::new(&server)).collect();
        eventually("the oldest are closed", || server.counters().open == 3);
        client.expect("e", "e");
        drop((client, silent, more));
        eventually("all have left", || server.counters().open == 0);
        Client::new(&server).expect("a", "a");
    });
}

#[test]
fn an_outlook_says_whether_the_client_is_there_and_has_a_request() {
    both_kinds(|node, _, _| {
        let shared = Shared::new();
        let server = serve(node, &shared, ServeOptions::default());
        let mut client = Client::new(&server);
        client.expect("o", "o");
        let outlook = shared.outlook.lock().unwrap().take().expect("it was given");
        eventually("the request has ended", || !outlook.is_busy());
        assert!(!outlook.client_has_gone());
        client.send("ge"); // The second byte stays unread while the first is carried out.
        eventually("a request runs", || shared.gate.waiters() == 1);
        assert!(outlook.is_busy() && !outlook.client_has_gone());
        drop(client);
        eventually("it is seen", || outlook.client_has_gone());
        assert!(outlook.is_busy());
        shared.gate.open();
        eventually("its session ends", || server.counters().open == 0);
        assert!(outlook.client_has_gone() && !outlook.is_busy());
    });
}

/// Returns how often each scheduler has slept.
fn slept(node: &Node) -> Vec<u64> {
    (0..node.scheduler_count()).map(|s| scheduler(node, s).counters.idle_switches).collect()
}

#[test]
fn the_next_request_of_a_user_that_holds_a_lock_finds_its_scheduler_awake_b57() {
    let awake = |b: ums::Builder| {
        b.holder_spin(ms(100)).placement(Placement::AlwaysPreferred) // no other scheduler is woken
    };
    both_kinds_with(awake, |node, _, _| {
        let shared = Shared::new();
        let server = serve(node, &shared, ServeOptions::default());
        let mut client = Client::new(&server);
        client.expect("h", "h");
        let before: u64 = slept(node).iter().sum();
        (0..20).for_each(|_| client.expect("w", "w"));
        let while_held = slept(node).iter().sum::<u64>() - before;
        assert!(while_held < 20, "it slept {while_held} times between 20 requests");
        client.expect("u", "u");
        let sleeps = || node.snapshot().schedulers.iter().all(|s| s.is_idle);
        eventually("it sleeps when nothing is held", sleeps);
        // A user that holds something and sends nothing keeps its scheduler awake for one spin
        // only.
        client.expect("h", "h");
        eventually("it sleeps although its holder may send more", sleeps);
        client.expect("u", "u");
        assert!(server.stop_and_wait(PATIENCE), "all connections have closed");
    });
}

#[test]
fn a_request_that_runs_at_once_where_its_input_came_wakes_no_other_scheduler_b5() {
    each(|node, _, server, n| {
        let mut client = Client::new(server);
        at_rest(node);
        eventually("all sleep", || node.snapshot().schedulers.iter().all(|s| s.is_idle));
        let before = slept(node);
        (0..20).for_each(|_| client.expect("w", "w"));
        let mut times: Vec<_> =
            slept(node).iter().zip(before).map(|(now, then)| now - then).collect();
        times.sort_unstable();
        let others: u64 = times[..n - 1].iter().sum();
        assert!(others <= 2, "the others woke {others} times for 20 requests: {times:?}");
    });
}

#[test]
fn clients_of_a_unix_socket_are_served_like_those_of_a_port() {
    both_kinds(|node, _, _| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let shared = Shared::new();
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let own = shared.clone();
        let server = node.serve(listener, ServeOptions::default(), move |_, peer| {
            assert_eq!(peer, ums::serve::Peer::Unix);
            Box::new(Served { shared: own.clone(), was_parked: false }) as Box<dyn Session>
        });
        let server = server.unwrap();
        assert_eq!(server.local_addr().unwrap_err().kind(), ErrorKind::Unsupported);
        let connect = || std::os::unix::net::UnixStream::connect(&path).unwrap();
        let mut clients: Vec<_> = (0..20).map(|_| connect()).collect();
        for client in &mut clients {
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut got = [0; 3];
            client.write_all(b"ewe").unwrap();
            client.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"ewe");
        }
        assert_eq!(server.counters().open, 20);
        drop(clients.split_off(10));
        eventually("half of them have left", || server.counters().open == 10);
        assert!(server.stop_and_wait(PATIENCE), "all connections have closed");
        for mut client in clients {
            let mut rest = String::new();
            client.read_to_string(&mut rest).unwrap();
            assert!(rest.ends_with("bye"), "{rest}");
        }
    });
}
