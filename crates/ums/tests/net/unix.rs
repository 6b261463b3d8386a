//! Unix sockets: streams, pairs and datagrams, and two queues about which the kernel reports no
//! event when they have room again.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::thread;

use ums::net::{UnixDatagram, UnixListener, UnixStream};

use crate::common::ms;
use crate::{everywhere, kind_of};

#[test]
fn streams_echo_at_a_path_and_at_an_abstract_name() {
    everywhere(|node| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let name = format!("ums-test-{}-{:p}", std::process::id(), node);
        let name = SocketAddr::from_abstract_name(name).unwrap();
        let at_path = UnixListener::bind(&path).unwrap();
        let at_name = UnixListener::bind_addr(&name).unwrap();
        assert_eq!(at_path.local_addr().unwrap().as_pathname(), Some(&*path));
        let serve = |listener: UnixListener| {
            move || {
                for stream in listener.incoming().take(4) {
                    let stream = stream.unwrap();
                    io::copy(&mut &stream, &mut &stream).unwrap();
                }
            }
        };
        let servers = [node.spawn(serve(at_path)).unwrap(), node.spawn(serve(at_name)).unwrap()];
        let client = |mut stream: UnixStream| {
            stream.write_all(b"text").unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut back = String::new();
            stream.read_to_string(&mut back).unwrap();
            assert_eq!(back, "text");
        };
        for _ in 0..2 {
            client(UnixStream::connect(&path).unwrap());
            client(UnixStream::connect_addr(&name).unwrap());
            let (path, name) = (path.clone(), name.clone());
            node.run(move || {
                client(UnixStream::connect(&path).unwrap());
                client(UnixStream::connect_addr(&name).unwrap());
            });
        }
        servers.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(kind_of(UnixStream::connect(&path)), io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn a_pair_of_streams_times_out_and_ends() {
    everywhere(|node| {
        node.run(|| {
            let (mut one, mut two) = UnixStream::pair().unwrap();
            one.set_read_timeout(Some(ms(5))).unwrap();
            assert_eq!(kind_of(one.read(&mut [0])), io::ErrorKind::TimedOut);
            one.set_write_timeout(Some(ms(5))).unwrap();
            let full = (0..10_000).find_map(|_| one.write(&[0; 4096]).err());
            assert_eq!(full.unwrap().kind(), io::ErrorKind::TimedOut);
            drop(one);
            assert!(io::copy(&mut two, &mut io::sink()).unwrap() > 4096);
            assert_eq!(kind_of(two.write(b"x")), io::ErrorKind::BrokenPipe);
        });
    });
}

#[test]
fn connecting_waits_while_the_listener_s_queue_is_full() {
    everywhere(|node| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let connect = move || drop(UnixStream::connect(&path).unwrap());
        let workers: Vec<_> = (0..6).map(|_| node.spawn(connect.clone()).unwrap()).collect();
        let plain = thread::spawn(connect);
        thread::sleep(ms(5));
        for _ in 0..7 {
            let (_, peer) = listener.accept().unwrap();
            assert!(peer.is_unnamed());
        }
        workers.into_iter().for_each(|t| t.join().unwrap());
        plain.join().unwrap();
    });
}

#[test]
fn datagrams_name_their_sender_whatever_its_address() {
    everywhere(|node| {
        let folder = tempfile::tempdir().unwrap();
        let (path, sender) = (folder.path().join("to"), folder.path().join("from"));
        let name = format!("ums-test-dgram-{}-{:p}", std::process::id(), node);
        let name = SocketAddr::from_abstract_name(name).unwrap();
        let receiver = UnixDatagram::bind(&path).unwrap();
        node.run(move || {
            let mut buf = [0; 10];
            UnixDatagram::bind(&sender).unwrap().send_to(b"1", &path).unwrap();
            let (n, from) = receiver.recv_from(&mut buf).unwrap();
            assert_eq!((n, from.as_pathname()), (1, Some(&*sender)));
            UnixDatagram::bind_addr(&name).unwrap().send_to(b"22", &path).unwrap();
            let (n, from) = receiver.recv_from(&mut buf).unwrap();
            assert_eq!((n, from.as_abstract_name()), (2, name.as_abstract_name()));
            let unbound = UnixDatagram::unbound().unwrap();
            unbound.connect(&path).unwrap();
            unbound.send(b"").unwrap();
            let (n, from) = receiver.recv_from(&mut buf).unwrap();
            assert!(n == 0 && from.is_unnamed());
        });
    });
}

#[test]
fn a_full_receiver_makes_its_senders_wait_and_loses_nothing() {
    const EACH: usize = 50; // A receiver's queue holds 10 datagrams, or the host's limit.
    everywhere(|node| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("to");
        let receiver = UnixDatagram::bind(&path).unwrap();
        let to = path.clone();
        let naming = move || {
            let socket = UnixDatagram::unbound().unwrap();
            (0..EACH).for_each(|_| assert_eq!(socket.send_to(b"named", &to).unwrap(), 5));
        };
        let connected = move || {
            let socket = UnixDatagram::unbound().unwrap();
            socket.connect(&path).unwrap();
            (0..EACH).for_each(|_| assert_eq!(socket.send(b"connected").unwrap(), 9));
        };
        let plain = [thread::spawn(naming.clone()), thread::spawn(connected.clone())];
        let workers = [node.spawn(naming).unwrap(), node.spawn(connected).unwrap()];
        node.run(move || {
            ums::sleep(ms(5)).unwrap();
            let mut buf = [0; 20];
            for n in 0..4 * EACH {
                let len = receiver.recv(&mut buf).unwrap();
                assert!(
                    [&b"named"[..], b"connected"].contains(&&buf[..len]),
                    "{n}: {:?}",
                    &buf[..len]
                );
            }
        });
        plain.into_iter().for_each(|t| t.join().unwrap());
        workers.into_iter().for_each(|t| t.join().unwrap());
    });
}

#[test]
fn a_pair_of_datagram_sockets_times_out_and_ends() {
    everywhere(|node| {
        node.run(|| {
            let (one, two) = UnixDatagram::pair().unwrap();
            one.send(b"abc").unwrap();
            assert_eq!(two.peek(&mut [0; 9]).unwrap(), 3);
            assert_eq!(two.recv(&mut [0; 9]).unwrap(), 3);
            two.set_read_timeout(Some(ms(5))).unwrap();
            assert_eq!(kind_of(two.recv(&mut [0])), io::ErrorKind::TimedOut);
            one.set_write_timeout(Some(ms(5))).unwrap();
            let full = (0..10_000).find_map(|_| one.send(&[0; 4096]).err());
            assert_eq!(full.unwrap().kind(), io::ErrorKind::TimedOut);
            one.shutdown(std::net::Shutdown::Both).unwrap();
            assert_eq!(kind_of(one.send(b"x")), io::ErrorKind::BrokenPipe);
        });
    });
}
