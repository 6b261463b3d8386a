//! The listener of a server and the stream of a connection: TCP or Unix-domain.
//!
//! Both are streams of bytes with a descriptor; the rest of the server does not distinguish them.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};

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
    /// Puts the stream into non-blocking mode, and turns off the delay of small TCP writes (Nagle).
    pub(super) fn prepare(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => {
                let _ = stream.set_nodelay(true);
                stream.set_nonblocking(true)
            }
            Stream::Unix(stream) => stream.set_nonblocking(true),
        }
    }

    pub(super) fn fd(&self) -> RawFd {
        match self {
            Stream::Tcp(stream) => stream.as_raw_fd(),
            Stream::Unix(stream) => stream.as_raw_fd(),
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
