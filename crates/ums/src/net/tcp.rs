//! TCP: listeners and streams.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::resolve::{ToSocketAddrs, each_address};
use super::shape::{socket_type, stream_type, timeouts};
use super::socket::{Socket, Way, is_cancelled_error, pause_before_connecting};
use crate::current::checkpoint;
use crate::io::wait_writable;
use crate::os::clock::{self, NEVER};
use crate::os::linux::owned::Kind;
use crate::os::sockets::{self, Attempt};
use crate::record::reason::WaitReason;

/// How many connections may wait to be accepted; the kernel caps it at `net.core.somaxconn`.
pub(super) const BACKLOG: i32 = 4096;

/// A socket that accepts connections.
pub struct TcpListener {
    socket: Socket<std::net::TcpListener>,
    short: AtomicBool,
}

socket_type!(TcpListener, std::net::TcpListener, Kind::Other);

impl TcpListener {
    fn of(socket: Socket<std::net::TcpListener>) -> TcpListener {
        TcpListener { socket, short: AtomicBool::new(false) }
    }

    /// Listens on the first of these addresses that works; port 0 takes a free one. An address may
    /// be reused although closed connections of it linger (`SO_REUSEADDR`).
    ///
    /// # Errors
    /// The error of the last address, or of the name's resolution.
    pub fn bind<A: ToSocketAddrs>(address: A) -> io::Result<TcpListener> {
        each_address(address, |address| Ok(sockets::listen_on(&address, BACKLOG)?.into()))
    }

    /// Waits for a connection. A connection that its peer has reset in the queue is dropped, and
    /// the wait continues.
    ///
    /// # Errors
    /// The system's error. If the system is out of descriptors or memory, the connection stays in
    /// the queue and the next call pauses for 10 ms before it tries again: a loop that continues
    /// after errors needs no pause of its own. If the work request is cancelled, every call fails.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.accept_until(NEVER)
    }

    /// Like [`accept`](TcpListener::accept), for at most this long.
    ///
    /// # Errors
    /// Like [`accept`](TcpListener::accept), and `TimedOut`.
    pub fn accept_timeout(&self, span: Duration) -> io::Result<(TcpStream, SocketAddr)> {
        self.accept_until(clock::after(span))
    }

    fn accept_until(&self, deadline: u64) -> io::Result<(TcpStream, SocketAddr)> {
        loop {
            let stream = self.accept_stream(deadline)?;
            match stream.peer_addr() {
                Ok(peer) => return Ok((stream, peer)),
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn accept_stream(&self, deadline: u64) -> io::Result<TcpStream> {
        let fd = self.socket.accept(&self.short, deadline)?;
        Ok(TcpStream::of(Socket::new(fd.into(), Kind::Stream)))
    }

    /// Iterates over the connections as they arrive; ends when the work request is cancelled, as it
    /// is at shutdown. While the process is out of descriptors, the next connection waits in the
    /// listener's queue, and a sentence on stderr says so.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// Returns the address that the socket listens on.
    ///
    /// # Errors
    /// The system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        sockets::listens_at(&self.socket.std)
    }

    /// Returns the time to live (hop limit) of the socket's packets.
    ///
    /// # Errors
    /// The system's error.
    pub fn ttl(&self) -> io::Result<u32> {
        self.socket.std.ttl()
    }

    /// Sets the time to live (hop limit) of the socket's packets.
    ///
    /// # Errors
    /// The system's error if the value is out of range.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.socket.std.set_ttl(ttl)
    }
}

/// The connections of a listener; see [`TcpListener::incoming`].
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a TcpListener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<io::Result<TcpStream>> {
        let fd = self.listener.socket.accept_despite_shortage(&self.listener.short);
        let accepted = fd.map(|fd| TcpStream::of(Socket::new(fd.into(), Kind::Stream)));
        (!accepted.as_ref().is_err_and(is_cancelled_error)).then_some(accepted)
    }
}

/// A TCP connection. Dropping it closes this descriptor.
pub struct TcpStream {
    socket: Socket<std::net::TcpStream>,
}

socket_type!(TcpStream, std::net::TcpStream, Kind::Stream);
stream_type!(TcpStream);
timeouts!(TcpStream);

impl TcpStream {
    fn of(socket: Socket<std::net::TcpStream>) -> TcpStream {
        TcpStream { socket }
    }

    /// Connects to the first of these addresses that answers.
    ///
    /// # Errors
    /// The error of the last address, of the name's resolution, or cancellation.
    pub fn connect<A: ToSocketAddrs>(address: A) -> io::Result<TcpStream> {
        each_address(address, |address| connect_until(&address, NEVER))
    }

    /// Connects within this time.
    ///
    /// # Errors
    /// The system's error, `TimedOut`, cancellation, or `InvalidInput` for a timeout of zero.
    pub fn connect_timeout(address: &SocketAddr, span: Duration) -> io::Result<TcpStream> {
        if span.is_zero() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a timeout of zero"));
        }
        connect_until(address, clock::after(span))
    }

    /// Returns the address of this end.
    ///
    /// # Errors
    /// The system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        sockets::local_addr(&self.socket.std)
    }

    /// Returns the address of the other end.
    ///
    /// # Errors
    /// `NotConnected` if the connection has ended.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        sockets::peer_addr(&self.socket.std)
    }

    /// Sets whether small writes are sent at once instead of being collected (`TCP_NODELAY`).
    ///
    /// # Errors
    /// The system's error.
    pub fn set_nodelay(&self, yes: bool) -> io::Result<()> {
        sockets::set_nodelay(&self.socket.std, yes)
    }

    /// Returns whether small writes are sent at once.
    ///
    /// # Errors
    /// The system's error.
    pub fn nodelay(&self) -> io::Result<bool> {
        sockets::nodelay(&self.socket.std)
    }

    /// Returns the time to live (hop limit) of the socket's packets.
    ///
    /// # Errors
    /// The system's error.
    pub fn ttl(&self) -> io::Result<u32> {
        self.socket.std.ttl()
    }

    /// Sets the time to live (hop limit) of the socket's packets.
    ///
    /// # Errors
    /// The system's error if the value is out of range.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.socket.std.set_ttl(ttl)
    }
}

/// Starts to connect, waits until the socket is writable, and reads the result.
fn connect_until(address: &SocketAddr, deadline: u64) -> io::Result<TcpStream> {
    checkpoint()?;
    let stream = |socket: OwnedFd| TcpStream::of(Socket::new(socket.into(), Kind::Stream));
    loop {
        pause_before_connecting(deadline)?;
        match sockets::connect_tcp(address)? {
            Attempt::Connected(socket) => return Ok(stream(socket)),
            Attempt::InProgress(socket) => {
                let stream = stream(socket);
                wait_writable(stream.as_raw_fd(), WaitReason::NETWORK_CONNECT, deadline)?;
                return stream.take_error()?.map_or(Ok(stream), Err);
            }
            Attempt::Full(_) => {}
        }
    }
}
