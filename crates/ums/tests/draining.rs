//! A node that drains accepts no more connections, and lets those that it has end.

#![allow(unsafe_code)] // For the harness.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::thread;
use std::time::Duration;

use common::*;
use ums::Node;
use ums::WaitReason;
use ums::net::{TcpListener, TcpStream, UnixListener};
use ums::node::ShutdownReport;
use ums::serve::{Connection, Next, ServeOptions, Session, Why};

/// Longer than a test may take, so a test that ends has not used it up.
const GRACE: Duration = Duration::from_secs(600);

/// Answers each byte of a connection, until it ends.
fn echo(stream: &TcpStream) {
    let (mut reader, mut writer) = (stream, stream);
    let mut byte = [0];
    while reader.read(&mut byte).is_ok_and(|n| n > 0) && writer.write_all(&byte).is_ok() {}
}

/// Checks that the other end answers.
fn is_served(mut client: &StdStream) {
    client.write_all(b"x").unwrap();
    let mut byte = [0];
    client.read_exact(&mut byte).unwrap();
    assert_eq!(byte, *b"x");
}

/// Starts an acceptor on each scheduler, and connects one client.
fn serve(
    node: &Node,
    schedulers: usize,
    accept: impl Fn(&TcpListener) + Clone + Send + 'static,
) -> (SocketAddr, StdStream) {
    let listener = StdListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    for scheduler in 0..schedulers {
        let (accept, listener) = (accept.clone(), listener.try_clone().unwrap());
        drop(start(node, scheduler, move || accept(&TcpListener::from(listener))));
    }
    let client = StdStream::connect(address).unwrap();
    is_served(&client);
    (address, client)
}

/// Drains the node. Meanwhile `while_it_drains` is called, and the client is still served.
fn drains(node: Node, client: StdStream, while_it_drains: impl FnOnce()) {
    let drained = thread::spawn(move || node.drain(GRACE));
    while_it_drains();
    is_served(&client);
    assert!(!drained.is_finished(), "a connection is open");
    drop(client);
    assert_eq!(drained.join().unwrap(), ShutdownReport::default());
}

#[test]
fn requests_that_wait_for_connections_end_and_open_connections_are_served() {
    each_end(
        |b| b,
        |node, _, n| {
            let (address, client) = serve(&node, n, |listener| {
                for stream in listener.incoming().flatten() {
                    drop(ums::spawn(move || echo(&stream)));
                }
            });
            drains(node, client, || {
                eventually("new clients are refused", || StdStream::connect(address).is_err());
            });
        },
    );
}

#[test]
fn a_request_that_works_for_its_connection_is_cancelled_when_it_waits_for_the_next() {
    each_end(
        |b| b,
        |node, _, _| {
            let (_, client) = serve(&node, 1, |listener| {
                listener.incoming().flatten().for_each(|stream| echo(&stream));
            });
            // The node looks for requests to cancel several times, and leaves this one alone.
            drains(node, client, || thread::sleep(ms(20)));
        },
    );
}

#[test]
fn a_wait_with_a_time_limit_and_one_at_a_path_end_too() {
    each_end(
        |b| b,
        |node, _, n| {
            let folder = tempfile::tempdir().unwrap();
            let local = UnixListener::bind(folder.path().join("socket")).unwrap();
            let timed = TcpListener::bind("127.0.0.1:0").unwrap();
            drop(start(&node, 0, move || drop(local.accept())));
            let timed = start(&node, n - 1, move || timed.accept_timeout(GRACE).unwrap_err());
            assert_eq!(node.drain(GRACE), ShutdownReport::default());
            assert!(timed.join().unwrap().to_string().contains("cancelled"));
        },
    );
}

/// A session that waits until the server stops.
struct Idle;

impl Session for Idle {
    fn request(&mut self, connection: &mut Connection<'_>, why: Why) -> Next {
        let mut buffer = [0];
        match why {
            Why::Stopping => Next::Close,
            _ => match connection.try_read(&mut buffer) {
                Ok(1) if connection.write_all(&buffer).is_ok() => Next::Wait,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Next::Wait,
                _ => Next::Close,
            },
        }
    }
}

#[test]
fn servers_stop() {
    each_end(
        |b| b,
        |node, _, _| {
            let listener = StdListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let server =
                node.serve(listener, ServeOptions::default(), |_, _| Box::new(Idle)).unwrap();
            let mut client = StdStream::connect(address).unwrap();
            is_served(&client);
            assert_eq!(node.drain(GRACE), ShutdownReport::default());
            assert_eq!(client.read(&mut [0]).unwrap(), 0, "its session has ended");
            drop(server);
        },
    );
}

/// Runs tasks that end, so that idle workers are left, and then one that hangs until the second
/// value is dropped: in its own code, or in a preemptive section.
fn with_a_stuck_task(node: &Node, preemptive: bool) -> std::sync::mpsc::Sender<()> {
    let naps: Vec<_> = (0..20).map(|_| node.spawn(|| ums::sleep(ms(20))).unwrap()).collect();
    naps.into_iter().for_each(|nap| nap.join().unwrap().unwrap());
    let (enough, hangs) = std::sync::mpsc::channel::<()>();
    let (begins, begun) = std::sync::mpsc::channel();
    let hang = move || {
        begins.send(()).unwrap();
        let _ = hangs.recv();
    };
    let task = move || match preemptive {
        true => ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, hang),
        false => hang(),
    };
    drop(node.spawn(task).unwrap());
    begun.recv().unwrap();
    enough
}

#[test]
fn one_task_that_does_not_end_is_one_cancelled_and_one_left() {
    for preemptive in [false, true] {
        each_end(
            |b| b,
            |node, kind, n| {
                let (enough, again) = (with_a_stuck_task(&node, preemptive), node.clone());
                let report = node.drain(ms(10));
                let one = ShutdownReport { cancelled: 1, left: 1 };
                assert_eq!(report, one, "{kind:?} workers on {n}, preemptive {preemptive}");
                let report = again.drain(ms(10));
                assert_eq!(report, ShutdownReport { cancelled: 0, left: 1 }, "it is still there");
                drop(enough);
            },
        );
    }
}

#[test]
fn a_drain_that_takes_long_says_what_it_waits_for() {
    let name = "a_drain_that_takes_long_says_what_it_waits_for";
    for kind in kinds() {
        for errand in ["sleeps", "hangs", "hangs silently"] {
            let errand = format!("{kind:?} {errand}");
            if child_errand().is_none() {
                let output = child(name, &errand).output().unwrap();
                let said = String::from_utf8(output.stderr).unwrap();
                let does = match errand.rsplit_once(' ').unwrap().1 {
                    "sleeps" => "waits for SLEEP",
                    "hangs" => "waits for PREEMPTIVE_EXTERNAL",
                    _ => "",
                };
                let line = format!(
                    "ums: a node that drains waits: a task still runs (it {does}). After the grace \
                     time (1.2 s) tasks are cancelled, and then have as long again to end\n"
                );
                let times = said.matches(&line).count();
                let drains = said.matches("drains").count();
                let expected = usize::from(!does.is_empty());
                assert_eq!((times, drains), (expected, expected), "{errand}: {said}");
            } else if child_errand().is_some_and(|mine| mine == errand) {
                let warns = !errand.ends_with("silently");
                let node = build(kind, |b| b.schedulers(2).warnings(warns));
                if errand.ends_with("sleeps") {
                    drop(node.spawn(|| ums::sleep(GRACE)));
                    node.drain(ms(1200));
                    return;
                }
                let enough = with_a_stuck_task(&node, true);
                let report = node.drain(ms(1200));
                assert_eq!(report, ShutdownReport { cancelled: 1, left: 1 });
                drop(enough);
            }
        }
    }
}
