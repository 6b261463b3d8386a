//! Stream sockets: the system's, or in a simulated world those of its simulated network.
//!
//! This file has the calls that differ between the two. For all other calls a simulated socket is a
//! real one.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::op::Op;
use super::sim::{self, sockets as simulated};

/// The result of an attempt to connect. The sockets are in non-blocking mode.
pub enum Attempt {
    /// The socket is connected.
    Connected(OwnedFd),
    /// The attempt is under way. The socket becomes writable when it has ended.
    InProgress(OwnedFd),
    /// The listener's queue is full. The socket, if there is one, can be used for the next attempt.
    Full(Option<OwnedFd>),
}

/// Listens on this address. At most `backlog` connections may wait to be accepted.
pub fn listen_on(address: &SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    if let Some(socket) = simulated::listener(address) {
        return Ok(socket?.into());
    }
    let listener = TcpListener::bind(address)?;
    // std sets a short queue. A second `listen` changes the length.
    SockRef::from(&listener).listen(backlog)?;
    Ok(listener)
}

/// Listens on this address beside others that do the same. In a simulated world there is one
/// listener for each address.
pub fn listen_shared(address: &SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    if sim::is_here() {
        return listen_on(address, backlog);
    }
    let socket = unconnected(Domain::for_address(*address))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SockAddr::from(*address))?;
    socket.listen(backlog)?;
    Ok(socket.into())
}

/// Returns the address that a listener listens on.
pub fn listens_at(listener: &TcpListener) -> io::Result<SocketAddr> {
    simulated::listens_at(listener).map_or_else(|| listener.local_addr(), Ok)
}

/// Returns the address of this end of a connection.
pub fn local_addr(stream: &TcpStream) -> io::Result<SocketAddr> {
    simulated::addresses(stream).map_or_else(|| stream.local_addr(), |[mine, _]| Ok(mine))
}

/// Returns the address of the other end of a connection.
pub fn peer_addr(stream: &TcpStream) -> io::Result<SocketAddr> {
    simulated::addresses(stream).map_or_else(|| stream.peer_addr(), |[_, theirs]| Ok(theirs))
}

/// Sets whether small writes are sent immediately. A simulated network never collects small writes.
pub fn set_nodelay(stream: &TcpStream, yes: bool) -> io::Result<()> {
    if simulated::addresses(stream).is_some() {
        return Ok(());
    }
    stream.set_nodelay(yes)
}

/// Returns whether small writes are sent immediately.
pub fn nodelay(stream: &TcpStream) -> io::Result<bool> {
    if simulated::addresses(stream).is_some() {
        return Ok(true);
    }
    stream.nodelay()
}

/// Returns whether this is a TCP stream of a simulated network, which has no options.
pub fn is_simulated(stream: &impl AsRawFd) -> bool {
    simulated::addresses(stream).is_some()
}

/// Returns two Unix streams that are connected to each other.
pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
    if let Some(pair) = simulated::pair() {
        let (one, two) = pair?;
        return Ok((one.into(), two.into()));
    }
    UnixStream::pair()
}

/// In a simulated world, returns how long to wait before an attempt to connect, because the
/// simulated network takes that long.
pub fn delay_before_connecting() -> Option<Duration> {
    simulated::until_connected().map(Duration::from_nanos)
}

/// Begins to connect to this TCP address.
pub fn connect_tcp(address: &SocketAddr) -> io::Result<Attempt> {
    if sim::is_here() {
        return in_world(simulated::connect_to(address));
    }
    let socket = unconnected(Domain::for_address(*address))?;
    match socket.connect(&SockAddr::from(*address)) {
        Ok(()) => Ok(Attempt::Connected(socket.into())),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
            Ok(Attempt::InProgress(socket.into()))
        }
        Err(error) => Err(error),
    }
}

/// Connects to this Unix address. Uses the socket of an earlier attempt, if there was one.
pub fn connect_unix(address: &SockAddr, again: Option<OwnedFd>) -> io::Result<Attempt> {
    if sim::is_here() {
        return in_world(simulated::connect_to_unix(address));
    }
    let socket = again.map_or_else(|| unconnected(Domain::UNIX), |again| Ok(again.into()))?;
    match socket.connect(address) {
        Ok(()) => Ok(Attempt::Connected(socket.into())),
        Err(error) if is_full(&error) => Ok(Attempt::Full(Some(socket.into()))),
        Err(error) => Err(error),
    }
}

fn unconnected(domain: Domain) -> io::Result<Socket> {
    Socket::new(domain, Type::STREAM.nonblocking(), None)
}

fn is_full(error: &io::Error) -> bool {
    error.kind() == ErrorKind::WouldBlock
}

fn in_world(connected: Option<io::Result<OwnedFd>>) -> io::Result<Attempt> {
    match connected {
        Some(Ok(socket)) => Ok(Attempt::Connected(socket)),
        Some(Err(error)) if is_full(&error) => Ok(Attempt::Full(None)),
        Some(Err(error)) => Err(error),
        None => Err(io::Error::from_raw_os_error(libc::ENETUNREACH)),
    }
}

/// Returns whether an operation is tried before it is submitted to the driver. In a simulated world
/// that must not be done, because there the driver decides which operations complete immediately
/// and which fail.
pub fn are_tried_first() -> bool {
    !sim::is_here()
}

/// Returns the result of an ended operation as its caller sees it. Only a simulated network changes
/// it.
pub fn result_of(op: &Op, result: i32) -> i32 {
    simulated::result(op, result)
}
