//! Sockets and processes: the time of an accept and of a connect, the options of a socket, and the
//! numbers of signals.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;
use std::time::Duration;

use ums::net::{TcpListener, TcpStream, UdpSocket, UnixListener, UnixStream};
use ums::process::Child;

use super::Entry;
use super::On::{Both, Worker};
use super::tries::{ENDLESS, Limits, OVER, called, came, spans, spans_above_zero, woken};

pub const TABLE: &[Entry] = &[
    ("TcpListener::accept_timeout", Worker, |_| {
        let make = || TcpListener::bind("127.0.0.1:0").unwrap();
        let wake = |listener: &TcpListener| {
            StdStream::connect(listener.local_addr().unwrap()).unwrap();
        };
        woken(spans(), make, |listener, t| came(listener.accept_timeout(t)), wake);
    }),
    ("UnixListener::accept_timeout", Worker, |_| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let make = || {
            _ = std::fs::remove_file(&path);
            UnixListener::bind(&path).unwrap()
        };
        let wake = |_: &UnixListener| {
            std::os::unix::net::UnixStream::connect(&path).unwrap();
        };
        woken(spans(), make, |listener, t| came(listener.accept_timeout(t)), wake);
    }),
    ("TcpStream::connect_timeout", Worker, |_| {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        called();
        let error = TcpStream::connect_timeout(&address, Duration::ZERO).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let Limits { over, endless } = spans_above_zero();
        for span in over {
            called();
            // A connection within the computer may need no wait.
            came(TcpStream::connect_timeout(&address, span));
        }
        for span in endless {
            called();
            TcpStream::connect_timeout(&address, span).unwrap();
        }
    }),
    ("TcpListener::set_ttl", Both, |_| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        hops(1, |ttl| listener.set_ttl(ttl), || listener.ttl());
    }),
    ("TcpStream::set_ttl", Both, |_| {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let stream = StdStream::connect(listener.local_addr().unwrap()).unwrap();
        let stream = TcpStream::from(stream);
        hops(1, |ttl| stream.set_ttl(ttl), || stream.ttl());
    }),
    ("UdpSocket::set_ttl", Both, |_| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        hops(1, |ttl| socket.set_ttl(ttl), || socket.ttl());
    }),
    ("UdpSocket::set_multicast_ttl_v4", Both, |_| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        hops(0, |ttl| socket.set_multicast_ttl_v4(ttl), || socket.multicast_ttl_v4());
    }),
    ("TcpStream::set_keepalive", Both, |_| {
        let stream = connected();
        for seconds in [1, 32_767] {
            called();
            let span = Some(Duration::from_secs(seconds));
            stream.set_keepalive(span).unwrap();
            assert_eq!(stream.keepalive().unwrap(), span);
        }
        for span in OVER.into_iter().chain([Duration::from_secs(32_768)]).chain(ENDLESS) {
            called();
            let error = stream.set_keepalive(Some(span)).expect_err("it is out of range");
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{span:?}");
            let kept = stream.keepalive().unwrap().map(|span| span.as_secs());
            assert_eq!(kept, Some(32_767), "a refused call changes nothing");
        }
    }),
    ("TcpStream::set_linger", Both, |_| {
        let stream = connected();
        for span in [Duration::ZERO, Duration::from_secs(1)] {
            called();
            stream.set_linger(Some(span)).unwrap();
            assert_eq!(stream.linger().unwrap(), Some(span));
        }
        for span in ENDLESS {
            called();
            let refused = stream.set_linger(Some(span)).is_err();
            let kept = stream.linger().unwrap().unwrap();
            assert_eq!(kept == Duration::from_secs(1), refused, "{span:?}: {kept:?}");
        }
        stream.set_linger(None).unwrap();
        assert_eq!(stream.linger().unwrap(), None);
    }),
    ("buffers!::set_recv_buffer_size", Both, |_| {
        let (tcp, (unix, _), udp) = (connected(), UnixStream::pair().unwrap(), udp());
        buffers(|bytes| tcp.set_recv_buffer_size(bytes), || tcp.recv_buffer_size());
        buffers(|bytes| unix.set_recv_buffer_size(bytes), || unix.recv_buffer_size());
        buffers(|bytes| udp.set_recv_buffer_size(bytes), || udp.recv_buffer_size());
    }),
    ("buffers!::set_send_buffer_size", Both, |_| {
        let (tcp, (unix, _), udp) = (connected(), UnixStream::pair().unwrap(), udp());
        buffers(|bytes| tcp.set_send_buffer_size(bytes), || tcp.send_buffer_size());
        buffers(|bytes| unix.set_send_buffer_size(bytes), || unix.send_buffer_size());
        buffers(|bytes| udp.set_send_buffer_size(bytes), || udp.send_buffer_size());
    }),
    ("Child::signal", Both, |_| signals(Child::signal)),
    ("Child::signal_group", Both, |_| signals(Child::signal_group)),
];

fn signals(send: fn(&Child, i32) -> std::io::Result<()>) {
    let mut child = Child::spawn(Command::new("sleep").arg("1000").process_group(0)).unwrap();
    for number in [0, -1, 65, i32::MIN, i32::MAX] {
        called();
        let error = send(&child, number).expect_err("there is no such signal");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{number}");
        assert_eq!(child.try_wait().unwrap(), None, "a refused call changes nothing");
    }
    called();
    send(&child, 15).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(15));
}

fn udp() -> UdpSocket {
    UdpSocket::bind("127.0.0.1:0").unwrap()
}

fn connected() -> TcpStream {
    let listener = StdListener::bind("127.0.0.1:0").unwrap();
    StdStream::connect(listener.local_addr().unwrap()).unwrap().into()
}

/// Tries sizes of a buffer. The system has its own limits, and makes the best of a number.
fn buffers(set: impl Fn(usize) -> std::io::Result<()>, get: impl Fn() -> std::io::Result<usize>) {
    for bytes in [0, 1, i32::MAX as usize] {
        called();
        set(bytes).unwrap();
        assert!(get().unwrap() > 0, "{bytes}");
    }
    let before = get().unwrap();
    for bytes in [i32::MAX as usize + 1, usize::MAX] {
        called();
        let error = set(bytes).expect_err("the system takes no such number");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bytes}");
        assert_eq!(get().unwrap(), before, "a refused call changes nothing");
    }
}

/// Tries times to live. A packet has at most 255.
fn hops(
    least: u32,
    set: impl Fn(u32) -> std::io::Result<()>,
    get: impl Fn() -> std::io::Result<u32>,
) {
    for ttl in [least, 255] {
        called();
        set(ttl).unwrap();
        assert_eq!(get().unwrap(), ttl);
    }
    for ttl in (0..least).chain([256, i32::MAX as u32, 1 << 31, u32::MAX]) {
        called();
        let error = set(ttl).expect_err("it is out of range");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{ttl}");
        assert_eq!(get().unwrap(), 255, "a refused call changes nothing");
    }
}
