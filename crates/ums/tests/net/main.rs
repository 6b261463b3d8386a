//! Sockets, with every kind of worker, on 1 and 2 schedulers, over every I/O back end.
//!
//! `everywhere` runs a body on each such node and checks that nothing is left of it. Tests assert
//! only lower bounds of durations.

#[path = "../common/mod.rs"]
mod common;

mod copies;
mod ends;
mod order;
mod tcp;
mod udp;
mod unix;

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use common::{back_ends, one_kind};
use ums::Node;
use ums::net::{TcpListener, TcpStream};

/// Runs the body on every kind of node.
fn everywhere(body: impl Fn(&Node)) {
    on_so_many(&[1, 2], body);
}

/// Like [`everywhere`], on nodes with these numbers of schedulers.
fn on_so_many(schedulers: &[usize], body: impl Fn(&Node)) {
    for kind in common::kinds() {
        for io in back_ends(kind) {
            for &n in schedulers {
                eprintln!("{kind:?} workers, {n} schedulers, {io:?}");
                one_kind(kind, |b| b.schedulers(n).io(io), &body);
            }
        }
    }
}

/// Returns a listener on a free port of this host.
fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Returns the two ends of a TCP connection.
fn tcp_pair() -> (TcpStream, TcpStream) {
    let (listener, address) = listener();
    let here = TcpStream::connect(address).unwrap();
    let (there, from) = listener.accept().unwrap();
    assert_eq!(from, here.local_addr().unwrap());
    (here, there)
}

/// Sends everything back until the peer closes its side.
fn echo(stream: &TcpStream) -> io::Result<u64> {
    io::copy(&mut &*stream, &mut &*stream)
}

/// Writes a message, reads it back and compares.
fn round(mut stream: &TcpStream, text: &[u8]) {
    stream.write_all(text).unwrap();
    let mut back = vec![0; text.len()];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, text);
}

/// Returns the kind of the error.
#[track_caller]
fn kind_of<T>(result: io::Result<T>) -> io::ErrorKind {
    result.err().expect("this must fail").kind()
}

/// Returns whether it failed because the request was cancelled.
#[track_caller]
fn is_cancelled<T>(result: io::Result<T>) -> bool {
    let error = result.err().expect("this must fail");
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<ums::WaitError>());
    inner == Some(&ums::WaitError::Cancelled)
}
