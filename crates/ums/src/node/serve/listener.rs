//! The listener of a server and the stream of a connection: TCP or Unix-domain.
//!
//! Both are streams of bytes with a descriptor; the rest of the server does not distinguish them.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{SockRef, TcpKeepalive};

use crate::os::linux::call;

/// How long a TCP connection is silent before the system asks the peer whether it is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// The time between two such questions.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// After so many questions without an answer the connection ends.
const KEEPALIVE_QUESTIONS: u32 = 6;
/// A connection ends if the peer's system does not confirm what was sent for this long.
const UNCONFIRMED: Duration = Duration::from_secs(120);
/// How many bytes the system keeps that it has not sent yet. By default it would keep some MiB for
/// a peer that does not read, and a server would make as many bytes of answers for each such peer.
const UNSENT: u32 = 256 << 10;

/// A listening socket for [`Node::serve`](crate::Node::serve).
#[derive(Debug)]
pub enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// A path in the file system; faster than TCP for clients on the same machine.
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Listener {
        Listener::Tcp(listener)
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Listener {
        Listener::Unix(listener)
    }
}

/// The peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A TCP client, with its address.
    Tcp(SocketAddr),
    /// A client of a Unix-domain listener, on the same machine.
    Unix,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Tcp(address) => address.fmt(f),
            Peer::Unix => f.write_str("a Unix-domain socket"),
        }
    }
}

impl Listener {
    /// Checks that the socket listens: with any other one, every accept would fail.
    pub(super) fn check(&self) -> io::Result<()> {
        let listens = match self {
            Listener::Tcp(listener) => SockRef::from(listener).is_listener()?,
            Listener::Unix(listener) => SockRef::from(listener).is_listener()?,
        };
        let text = "the socket does not listen: call listen(2) first";
        if listens { Ok(()) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, text)) }
    }

    pub(super) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => listener.set_nonblocking(true),
            Listener::Unix(listener) => listener.set_nonblocking(true),
        }
    }

    pub(super) fn fd(&self) -> RawFd {
        match self {
            Listener::Tcp(listener) => listener.as_raw_fd(),
            Listener::Unix(listener) => listener.as_raw_fd(),
        }
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr(),
            Listener::Unix(_) => {
                let message = "a Unix-domain listener has a path and no address";
                Err(io::Error::new(io::ErrorKind::Unsupported, message))
            }
        }
    }

    pub(super) fn accept(&self) -> io::Result<(Stream, Peer)> {
        match self {
            Listener::Tcp(listener) => {
                listener.accept().map(|(stream, peer)| (Stream::Tcp(stream), Peer::Tcp(peer)))
            }
            Listener::Unix(listener) => {
                listener.accept().map(|(stream, _)| (Stream::Unix(stream), Peer::Unix))
            }
        }
    }
}

/// An accepted connection.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Puts the stream into non-blocking mode. For TCP it also turns off the delay of small writes
    /// (Nagle), lets the system find out that the peer is lost, and limits what the system keeps
    /// for a peer that does not read.
    pub(super) fn prepare(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => {
                let _ = stream.set_nodelay(true);
                // The connection works without these, too.
                let socket = SockRef::from(stream);
                let _ = find_lost_peers(&socket);
                let _ = socket.set_tcp_notsent_lowat(UNSENT);
                stream.set_nonblocking(true)
            }
            Stream::Unix(stream) => stream.set_nonblocking(true),
        }
    }

    /// Returns whether the peer has closed the connection, or at least its sending side, also if
    /// there is input that has not been read.
    pub(super) fn has_ended(&self) -> bool {
        self.shows(PollFlags::RDHUP, PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
    }

    /// Returns whether there is room for bytes to send.
    pub(super) fn has_room(&self) -> bool {
        self.shows(PollFlags::OUT, PollFlags::OUT)
    }

    /// Asks the system for the events `asked`, and returns whether it shows one of `wanted` now.
    fn shows(&self, asked: PollFlags, wanted: PollFlags) -> bool {
        let mut asked = match self {
            Stream::Tcp(stream) => [PollFd::new(stream, asked)],
            Stream::Unix(stream) => [PollFd::new(stream, asked)],
        };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut asked, Some(&at_once)).is_ok() && asked[0].revents().intersects(wanted)
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }

    /// Returns the user id of the process at the other end; `None` for TCP.
    pub(super) fn peer_uid(&self) -> io::Result<Option<u32>> {
        match self {
            Stream::Tcp(_) => Ok(None),
            Stream::Unix(stream) => call::peer_user(stream.as_fd()).map(Some),
        }
    }

    pub(super) fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => { stream }.read(buf),
            Stream::Unix(stream) => { stream }.read(buf),
        }
    }

    pub(super) fn write(&self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => { stream }.write(buf),
            Stream::Unix(stream) => { stream }.write(buf),
        }
    }

    /// Shuts down both directions.
    pub(super) fn close(&self) {
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

fn find_lost_peers(socket: &socket2::Socket) -> io::Result<()> {
    let questions = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_QUESTIONS);
    socket.set_tcp_keepalive(&questions)?;
    socket.set_tcp_user_timeout(Some(UNCONFIRMED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_does_not_listen_is_refused() {
        let one = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let refused = Listener::from(TcpListener::from(one)).check().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        assert!(Listener::from(TcpListener::bind("127.0.0.1:0").unwrap()).check().is_ok());
    }

    #[test]
    fn the_system_keeps_little_for_a_peer_that_does_not_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let listener = Listener::from(listener);
        let kept = |is_prepared: bool| {
            let peer = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
            let peer = peer.unwrap();
            peer.set_recv_buffer_size(64 << 10).unwrap();
            peer.connect(&address.into()).unwrap();
            let (stream, _) = listener.accept().unwrap();
            match &stream {
                _ if is_prepared => stream.prepare().unwrap(),
                Stream::Tcp(plain) => plain.set_nonblocking(true).unwrap(),
                Stream::Unix(_) => unreachable!("the listener is a TCP port"),
            }
            let (piece, mut kept) = (vec![0; 64 << 10], 0);
            let end = loop {
                match stream.write(&piece) {
                    Ok(written) => kept += written,
                    Err(error) => break error,
                }
            };
            assert_eq!(end.kind(), io::ErrorKind::WouldBlock);
            kept
        };
        let (little, much) = (kept(true), kept(false));
        assert!(little < 1 << 20 && little < much / 2, "{little} and {much} bytes");
    }
}
