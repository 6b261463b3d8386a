//! UDP: datagrams with and without a connection.

use std::io;
use std::thread;

use ums::net::UdpSocket;

use crate::common::ms;
use crate::{everywhere, kind_of};

fn bound() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").unwrap()
}

#[test]
fn datagrams_are_answered_to_their_senders() {
    everywhere(|node| {
        let server = bound();
        let address = server.local_addr().unwrap();
        let task = node.spawn(move || {
            let mut buf = [0; 100];
            for _ in 0..40 {
                let (n, from) = server.recv_from(&mut buf).unwrap();
                assert_eq!(server.send_to(&buf[..n], from).unwrap(), n);
            }
        });
        let client = move || {
            let socket = bound();
            for i in 0..10u8 {
                let text = vec![i; usize::from(i)]; // The first is empty.
                socket.send_to(&text, address).unwrap();
                let mut back = [9; 20];
                assert_eq!(socket.recv_from(&mut back).unwrap(), (text.len(), address));
                assert_eq!(back[..text.len()], text);
            }
        };
        let workers: Vec<_> = (0..2).map(|_| node.spawn(client).unwrap()).collect();
        let threads: Vec<_> = (0..2).map(|_| thread::spawn(client)).collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        workers.into_iter().for_each(|t| t.join().unwrap());
        task.unwrap().join().unwrap();
    });
}

fn connected() {
    let (one, two) = (bound(), bound());
    one.connect(two.local_addr().unwrap()).unwrap();
    two.connect(one.local_addr().unwrap()).unwrap();
    assert_eq!(one.peer_addr().unwrap(), two.local_addr().unwrap());
    assert_eq!(one.send(b"a long datagram").unwrap(), 15);
    let mut buf = [0; 6];
    assert_eq!(two.peek(&mut buf).unwrap(), 6);
    assert_eq!(two.peek_from(&mut buf).unwrap(), (6, one.local_addr().unwrap()));
    assert_eq!(two.recv(&mut buf).unwrap(), 6);
    assert_eq!(&buf, b"a long");
    two.set_read_timeout(Some(ms(5))).unwrap();
    assert_eq!(kind_of(two.recv(&mut buf)), io::ErrorKind::TimedOut, "the rest is lost");
    assert_eq!(kind_of(two.recv_from(&mut buf)), io::ErrorKind::TimedOut);
    two.set_broadcast(true).unwrap();
    assert!(two.try_clone().unwrap().broadcast().unwrap());
    // The port has no listener any more. The first datagram is answered by an error, which the
    // second call returns.
    drop(two);
    assert_eq!(one.send(b"x").unwrap(), 1);
    assert_eq!(kind_of(one.recv(&mut buf)), io::ErrorKind::ConnectionRefused);
}

#[test]
fn connected_sockets_send_receive_peek_and_time_out() {
    everywhere(|node| {
        node.run(connected);
        connected();
    });
}

#[test]
fn a_socket_goes_to_std_and_comes_back() {
    everywhere(|node| {
        node.run(|| {
            let socket = std::net::UdpSocket::from(bound());
            let address = socket.local_addr().unwrap();
            let socket = UdpSocket::from(socket);
            socket.send_to(b"to myself", address).unwrap();
            assert_eq!(socket.recv_from(&mut [0; 99]).unwrap(), (9, address));
        });
    });
}
