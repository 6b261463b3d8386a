//! Tests that move bytes through sockets, pipes and files.

use std::io::Seek;
use std::os::fd::FromRawFd;

use super::*;

pub fn tcp_connects_accepts_and_echoes_u57(mut rig: Rig) {
    let (listener, addr) = rig.listener();
    let client = rig.tcp();
    let addr = sockaddr(addr);
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    rig.submit(1, Op::Accept { fd: listener.raw(), flags });
    rig.quiet();
    assert_eq!(rig.run(2, connect_op(&client, &addr)), 0);
    let accepted = rig.take(1);
    assert!(accepted >= 0);
    // SAFETY: Contract: the accept has just returned this descriptor, to this test alone.
    let server = rig.own(unsafe { OwnedFd::from_raw_fd(accepted) }, DescriptorKind::Stream);
    for round in 0..100u8 {
        let (mut at_server, mut at_client) = ([0; 64], [0; 64]);
        rig.submit(3, server.recv(&mut at_server));
        assert_eq!(rig.run(4, client.send(&[round; 10])), 10);
        assert_eq!(rig.take(3), 10);
        rig.submit(5, client.recv(&mut at_client));
        assert_eq!(rig.run(6, server.send(&at_server[..10])), 10);
        assert_eq!(rig.take(5), 10);
        assert_eq!(at_client[..10], [round; 10]);
    }
    rig.finish();
}

pub fn a_refused_connection_says_so(mut rig: Rig) {
    let addr = rig.listener().1; // The listener is closed at once.
    let (client, addr) = (rig.tcp(), sockaddr(addr));
    assert_eq!(rig.run(1, connect_op(&client, &addr)), -libc::ECONNREFUSED);
    rig.finish();
}

pub fn polls_tell_readable_writable_and_hang_up(mut rig: Rig) {
    let (a, b) = rig.pair();
    assert_ne!(rig.run(1, a.poll_out()) & i32::from(libc::POLLOUT), 0);
    for _ in 0..3 {
        rig.submit(2, a.poll_in());
        rig.quiet();
        b.write(b"x");
        assert_ne!(rig.take(2) & i32::from(libc::POLLIN), 0);
        assert_ne!(rig.run(3, a.poll_in()) & i32::from(libc::POLLIN), 0, "it is still readable");
        assert_eq!(a.read().unwrap(), b"x", "read behind the driver's back");
    }
    rig.submit(4, a.poll_in());
    rig.quiet();
    drop(b);
    assert_ne!(rig.take(4) & i32::from(libc::POLLHUP), 0);
    for token in 5..8 {
        assert!(rig.run(token, a.poll_in()) > 0, "a hung up socket stays readable");
    }
    // A pipe without a writer reports a hang-up, and is not readable.
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    rig.submit(8, Op::PollIn { fd: reader.as_raw_fd() });
    rig.quiet();
    drop(writer);
    assert_eq!(rig.take(8), i32::from(libc::POLLHUP));
    rig.finish();
}

pub fn many_readers_of_one_socket_share_its_bytes(mut rig: Rig) {
    let (a, b) = rig.pair();
    let mut bufs = [[0u8; 1]; 8];
    for (token, buf) in bufs.iter_mut().enumerate() {
        rig.submit(token as u64, a.recv(buf));
    }
    rig.quiet();
    b.write(b"abc");
    while rig.done.len() < 3 {
        rig.io.wait(Some(1_000_000_000), &mut rig.done);
    }
    assert!(rig.done.drain(..).all(|done| done.result == 1));
    rig.quiet();
    b.write(b"defgh");
    while rig.io.pending() > 0 {
        rig.io.wait(Some(1_000_000_000), &mut rig.done);
    }
    assert!(rig.done.drain(..).all(|done| done.result == 1));
    if rig.io.name() == "io_uring" {
        bufs.sort_unstable(); // A ring serves its readers in any order.
    }
    assert_eq!(bufs.as_flattened(), b"abcdefgh");
    rig.finish();
}

pub fn the_first_reader_in_line_reads_first(mut rig: Rig) {
    if rig.io.name() == "io_uring" {
        return; // A ring serves its readers in any order.
    }
    let (a, b) = rig.pair();
    let mut bufs = [[0u8; 1]; 2];
    let [first, second] = &mut bufs;
    rig.submit(1, a.recv(first));
    b.write(b"xy");
    rig.submit(2, a.recv(second));
    assert_eq!((rig.take(1), rig.take(2)), (1, 1));
    assert_eq!(bufs.as_flattened(), b"xy");

    let [first, _] = &mut bufs;
    rig.submit(1, a.recv(first));
    rig.submit(2, a.poll_in());
    b.write(b"z");
    assert_eq!(rig.take(1), 1);
    rig.quiet(); // The one byte is taken, so the poll behind the reader reports nothing.
    b.write(b"!");
    assert!(rig.take(2) > 0);
    rig.finish();
}

pub fn a_late_adoption_is_noticed(mut rig: Rig) {
    let (mut a, b) = rig.pair();
    rig.submit(1, a.poll_in());
    b.write(b"x");
    assert!(rig.take(1) > 0);
    a.read().unwrap();
    owned::adopt(a.raw(), DescriptorKind::Stream);
    a.adopted = true;
    rig.submit(2, a.poll_in());
    rig.quiet();
    b.write(b"y");
    assert!(rig.take(2) > 0);
    rig.finish();
}

pub fn a_reader_and_a_writer_share_a_socket(mut rig: Rig) {
    let (a, b) = rig.pair();
    let (mut buf, big) = ([0u8; 16], vec![7u8; 4 << 20]);
    rig.submit(1, a.recv(&mut buf));
    let mut sent = 0;
    while sent < big.len() {
        rig.submit(2, a.send(&big[sent..]));
        let mut drained = 0;
        while !rig.done.iter().any(|done| done.token == 2) {
            drained += b.read().map_or(0, |bytes| bytes.len());
            rig.io.wait(Some(1_000_000), &mut rig.done);
        }
        assert!(rig.io.pending() >= 1, "the reader still waits (drained {drained})");
        sent += usize::try_from(rig.take(2)).unwrap();
    }
    b.write(b"answer");
    assert_eq!(rig.take(1), 6);
    rig.finish();
}

pub fn a_reused_number_is_the_new_descriptor(mut rig: Rig) {
    for round in 0..20 {
        let (a, b) = rig.pair();
        rig.submit(1, a.poll_in());
        rig.quiet();
        b.write(b"x");
        assert!(rig.take(1) > 0);
        if round % 2 == 0 {
            // A cancelled poll leaves a registration behind, too.
            a.read().unwrap();
            rig.submit(2, a.poll_in());
            rig.io.cancel(2);
            assert_eq!(rig.take(2), -libc::ECANCELED);
        }
        // Both sockets are closed here, and the next round gets the same numbers.
    }
    rig.finish();
}

pub fn a_replaced_descriptor_is_told_from_its_twin(mut rig: Rig) {
    for twin_lives in [false, true] {
        let (mut a, b) = rig.pair();
        rig.submit(1, a.poll_in());
        rig.quiet();
        rig.io.cancel(1);
        assert_eq!(rig.take(1), -libc::ECANCELED);
        // The number is given to another file, while a duplicate may keep the old file open.
        let twin = twin_lives.then(|| a.fd.try_clone().unwrap());
        let (c, d) = rig.pair();
        a.replace(&c);
        drop(c);
        rig.submit(2, a.poll_in());
        let _ = rustix::io::write(&b.fd, b"for the twin");
        rig.quiet();
        d.write(b"y");
        assert!(rig.take(2) > 0);
        drop(twin);
    }
    // This breaks the rules: an operation still waits when its descriptor is replaced. It must
    // complete once, and must not disturb the operation on the new file.
    let (mut a, _b) = rig.pair();
    let (c, d) = rig.pair();
    rig.submit(1, a.poll_in());
    rig.quiet();
    a.replace(&c);
    rig.submit(2, a.poll_in());
    d.write(b"y");
    assert!(rig.take(2) > 0);
    if rig.io.name() == "epoll" {
        assert_eq!(rig.take(1), -libc::EBADF);
    } else {
        rig.io.cancel(1);
        rig.take(1);
    }
    rig.finish();
}

pub fn a_peers_reset_ends_the_read(mut rig: Rig) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_nonblocking(true).unwrap();
    let client = rig.own(client.into(), DescriptorKind::Stream);
    let (server, _) = listener.accept().unwrap();
    let mut buf = [0; 8];
    rig.submit(1, client.recv(&mut buf));
    rig.quiet();
    // A linger time of zero makes the close a reset.
    rustix::net::sockopt::set_socket_linger(&server, Some(Duration::ZERO)).unwrap();
    drop(server);
    assert_eq!(rig.take(1), -libc::ECONNRESET);
    assert_eq!(rig.run(2, client.send(b"x")), -libc::EPIPE, "and no SIGPIPE");
    rig.finish();
}

pub fn datagrams_go_by_message(mut rig: Rig) {
    let (a, b) = rig.pair_of(SocketType::DGRAM, DescriptorKind::Other);
    let (mut one, mut two) = ([0u8; 4], [0u8; 8]);
    let mut into = [
        libc::iovec { iov_base: one.as_mut_ptr().cast(), iov_len: 4 },
        libc::iovec { iov_base: two.as_mut_ptr().cast(), iov_len: 8 },
    ];
    let mut text = *b"hello, world";
    let mut from = [libc::iovec { iov_base: text.as_mut_ptr().cast(), iov_len: text.len() }];
    let mut into_msg = message(&mut into);
    let from_msg = message(&mut from);
    rig.submit(1, Op::RecvMsg { fd: a.raw(), msg: &mut into_msg, flags: 0 });
    rig.quiet();
    assert_eq!(rig.run(2, Op::SendMsg { fd: b.raw(), msg: &from_msg, flags: 0 }), 12);
    assert_eq!(rig.take(1), 12);
    assert_eq!((&one, &two), (b"hell", b"o, world"));
    rig.finish();
}

fn message(iov: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: Plain Call: all zeros is a message header without name, data and control bytes.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = iov.as_mut_ptr();
    msg.msg_iovlen = iov.len() as _; // its type depends on the C library
    msg
}

pub fn pipelined_datagrams_are_all_received(mut rig: Rig) {
    // A datagram that is shorter than the buffer does not mean that no other datagram is there.
    let (a, b) = rig.pair_of(SocketType::DGRAM, DescriptorKind::Other);
    let mut buf = [0; 64];
    rig.submit(0, a.recv(&mut buf));
    rig.quiet();
    for _ in 0..8 {
        b.write(b"gram");
    }
    for token in 0..8 {
        if token > 0 {
            rig.submit(token, a.recv(&mut buf));
        }
        assert_eq!(rig.take(token), 4);
    }
    rig.finish();
}

pub fn a_big_transfer_arrives_whole(mut rig: Rig) {
    let (a, b) = rig.pair();
    let data: Vec<u8> = (0..1u32 << 20).map(|n| (n % 251) as u8).collect();
    let (mut sent, mut got, mut buf) = (0, Vec::new(), vec![0; 10_000]);
    rig.submit(1, a.send(&data));
    rig.submit(2, b.recv(&mut buf));
    while got.len() < data.len() {
        if rig.done.is_empty() {
            rig.io.wait(Some(1_000_000_000), &mut rig.done);
        }
        for done in std::mem::take(&mut rig.done) {
            let n = usize::try_from(done.result).unwrap();
            match done.token {
                1 => {
                    sent += n;
                    if sent < data.len() {
                        rig.submit(1, a.send(&data[sent..]));
                    }
                }
                _ => {
                    got.extend_from_slice(&buf[..n]);
                    if got.len() < data.len() {
                        rig.submit(2, b.recv(&mut buf));
                    }
                }
            }
        }
    }
    assert!(got == data);
    rig.finish();
}

pub fn the_end_after_the_last_bytes_is_seen(mut rig: Rig) {
    // Data and end arrive together, before the first read, so no edge follows the read.
    let (a, b) = rig.pair();
    let mut buf = [0; 64];
    rig.submit(1, a.poll_in());
    rig.quiet();
    b.write(b"bye");
    drop(b);
    assert!(rig.take(1) > 0);
    assert_eq!(rig.run(2, a.recv(&mut buf)), 3);
    assert_eq!(rig.run(3, a.recv(&mut buf)), 0);
    assert!(rig.run(4, a.poll_in()) > 0);

    // The end arrives after the data was reported and before it is read.
    let (a, b) = rig.pair();
    rig.submit(5, a.poll_in());
    b.write(b"bye");
    assert!(rig.take(5) > 0);
    drop(b);
    assert_eq!(rig.run(6, a.recv(&mut buf)), 3);
    assert_eq!(rig.run(7, a.recv(&mut buf)), 0);
    rig.finish();
}

pub fn files_are_read_and_written_in_four_variants_u60(mut rig: Rig) {
    let path = std::env::temp_dir().join(format!("ums-driver-{}", rig_number()));
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let fd = file.as_raw_fd();

    let text = b"0123456789";
    assert_eq!(rig.run(1, Op::Write { fd, buf: text.as_ptr(), len: 10, offset: 0 }), 10);
    let parts = [
        libc::iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: 3 },
        libc::iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: 4 },
    ];
    let iov = parts.as_ptr();
    assert_eq!(rig.run(2, Op::Writev { fd, iov, cnt: 2, offset: 10 }), 7);
    assert_eq!(rig.run(3, Op::Fsync { fd, data_only: true }), 0);
    assert_eq!(rig.run(4, Op::Fsync { fd, data_only: false }), 0);

    let mut buf = [0u8; 32];
    let ptr = buf.as_mut_ptr();
    assert_eq!(rig.run(5, Op::Read { fd, buf: ptr, len: 32, offset: 8 }), 9);
    assert_eq!(&buf[..9], b"890120123");
    file.seek(io::SeekFrom::Start(14)).unwrap();
    assert_eq!(rig.run(6, Op::Read { fd, buf: ptr, len: 32, offset: CURRENT }), 3);
    assert_eq!(&buf[..3], b"123");
    assert_eq!(rig.run(7, Op::Read { fd, buf: ptr, len: 32, offset: CURRENT }), 0);
    let (mut one, mut two) = ([0u8; 2], [0u8; 2]);
    let into = [
        libc::iovec { iov_base: one.as_mut_ptr().cast(), iov_len: 2 },
        libc::iovec { iov_base: two.as_mut_ptr().cast(), iov_len: 2 },
    ];
    assert_eq!(rig.run(8, Op::Readv { fd, iov: into.as_ptr(), cnt: 2, offset: 1 }), 4);
    assert_eq!((&one, &two), (b"12", b"34"));
    assert!(rig.run(9, Op::PollIn { fd }) > 0, "a file is always ready");

    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    rig.submit(10, Op::Read { fd: reader.as_raw_fd(), buf: ptr, len: 32, offset: CURRENT });
    rig.quiet();
    let fd = writer.as_raw_fd();
    assert_eq!(rig.run(11, Op::Write { fd, buf: text.as_ptr(), len: 10, offset: CURRENT }), 10);
    assert_eq!(rig.take(10), 10);
    rig.finish();
}

fn rig_number() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

pub fn errors_are_completions(mut rig: Rig) {
    let (a, _b) = rig.pair();
    let mut buf = [0; 8];
    let nowhere = Op::Recv { fd: 1 << 24, buf: buf.as_mut_ptr(), len: 8, flags: 0 };
    assert_eq!(rig.run(1, nowhere), -libc::EBADF);
    assert_eq!(rig.run(2, Op::PollIn { fd: 1 << 24 }), -libc::EBADF);
    assert_eq!(rig.run(3, Op::Accept { fd: a.raw(), flags: 0 }), -libc::EINVAL);
    let fd = a.raw();
    let impatient = Op::Recv { fd, buf: buf.as_mut_ptr(), len: 8, flags: libc::MSG_DONTWAIT };
    assert_eq!(rig.run(4, impatient), -libc::EAGAIN);
    let file = std::fs::File::open("/proc/self/stat").unwrap();
    let not_a_socket = Op::Recv { fd: file.as_raw_fd(), buf: buf.as_mut_ptr(), len: 8, flags: 0 };
    assert_eq!(rig.run(5, not_a_socket), -libc::ENOTSOCK);
    rig.finish();
}

pub fn a_receive_without_a_buffer_gets_the_bytes_in_order(mut rig: Rig) {
    let (a, b) = rig.pair();
    let mut into = Vec::new();
    for round in 0..3 {
        rig.submit(1, a.receive(&mut into));
        rig.quiet();
        b.write(&[round; 10]);
        assert_eq!(rig.take(1), 10);
        assert_eq!(into, [round; 10]);
        into.clear();
    }
    let sent: Vec<u8> = (0..3 * RECEIVE_MAX + 100).map(|at| (at % 251) as u8).collect();
    b.write(&sent);
    let mut got = Vec::new();
    while got.len() < sent.len() {
        let count = rig.run(2, a.receive(&mut into));
        assert!((1..=RECEIVE_MAX as i32).contains(&count) && into.len() == count as usize);
        got.append(&mut into);
    }
    assert_eq!(got, sent);
    drop(b);
    for token in 3..5 {
        assert_eq!(rig.run(token, a.receive(&mut into)), 0, "the end of the stream stays");
    }
    rig.finish();
}

pub fn more_receives_than_buffers_all_get_their_bytes(mut rig: Rig) {
    const MANY: u64 = 200;
    let pairs: Vec<_> = (0..MANY).map(|_| rig.pair()).collect();
    let mut into = vec![Vec::new(); MANY as usize];
    for round in 1..4u8 {
        for (token, (a, _)) in pairs.iter().enumerate() {
            rig.submit(token as u64, a.receive(&mut into[token]));
        }
        if round == 1 {
            rig.quiet();
        }
        pairs.iter().for_each(|(_, b)| b.write(&[round; 20]));
        (0..MANY).for_each(|token| assert_eq!(rig.take(token), 20));
        into.iter_mut().for_each(|bytes| assert_eq!(std::mem::take(bytes), [round; 20]));
    }
    rig.finish();
}
