//! Unix datagram sockets.
//!
//! The kernel limits how many datagrams wait at a receiver. A connected sender gets an event when
//! there is room again; a sender that names its receiver with each datagram does not, so
//! [`UnixDatagram::send_to`] retries at growing intervals.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use socket2::SockAddr;

use super::shape::{datagram_type, socket_type, timeouts};
use super::socket::{Socket, Way};
use super::unix::address_of;
use crate::os::linux::owned::DescriptorKind;
use crate::wait::Arm;

/// A Unix datagram socket.
pub struct UnixDatagram {
    socket: Socket<net::UnixDatagram>,
}

socket_type!(UnixDatagram, net::UnixDatagram, DescriptorKind::Other);
datagram_type!(UnixDatagram);
timeouts!(UnixDatagram);

impl UnixDatagram {
    fn of(socket: Socket<net::UnixDatagram>) -> UnixDatagram {
        UnixDatagram { socket }
    }

    /// Binds to this path, which must not exist. Dropping the socket does not remove the path.
    ///
    /// # Errors
    /// The system's error.
    pub fn bind<P: AsRef<Path>>(path: P) -> io::Result<UnixDatagram> {
        Ok(net::UnixDatagram::bind(path)?.into())
    }

    /// Binds to this address, which may be abstract.
    ///
    /// # Errors
    /// The system's error.
    pub fn bind_addr(address: &SocketAddr) -> io::Result<UnixDatagram> {
        Ok(net::UnixDatagram::bind_addr(address)?.into())
    }

    /// Creates a socket without an address.
    ///
    /// # Errors
    /// Fails if the process is out of descriptors.
    pub fn unbound() -> io::Result<UnixDatagram> {
        Ok(net::UnixDatagram::unbound()?.into())
    }

    /// Creates two sockets that are connected to each other.
    ///
    /// # Errors
    /// Fails if the process is out of descriptors.
    pub fn pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
        let (one, two) = net::UnixDatagram::pair()?;
        Ok((one.into(), two.into()))
    }

    /// Sets the peer of `send`.
    ///
    /// # Errors
    /// The system's error.
    pub fn connect<P: AsRef<Path>>(&self, path: P) -> io::Result<()> {
        self.socket.std.connect(path)
    }

    /// Sets the peer of `send` by an address, which may be abstract.
    ///
    /// # Errors
    /// The system's error.
    pub fn connect_addr(&self, address: &SocketAddr) -> io::Result<()> {
        self.socket.std.connect_addr(address)
    }

    /// Sends one datagram to the socket at this path.
    ///
    /// # Errors
    /// The system's error, `TimedOut`, or cancellation.
    pub fn send_to<P: AsRef<Path>>(&self, buf: &[u8], path: P) -> io::Result<usize> {
        self.send_to_addr(buf, &SocketAddr::from_pathname(path)?)
    }

    /// Sends one datagram to this address, which may be abstract.
    ///
    /// # Errors
    /// The system's error, `TimedOut`, or cancellation.
    pub fn send_to_addr(&self, buf: &[u8], address: &SocketAddr) -> io::Result<usize> {
        self.socket.send_to(buf, &address_of(address)?, true)
    }

    /// Receives one datagram and returns its length and sender; the part that does not fit is lost.
    ///
    /// # Errors
    /// The system's error, `TimedOut`, or cancellation.
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let (n, from) = self.socket.receive_from(buf, 0)?;
        Ok((n, std_address(from)?))
    }

    /// Shuts down one direction or both, for all clones.
    ///
    /// # Errors
    /// `NotConnected` if the socket has no peer.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket.std.shutdown(how)
    }

    /// Returns the address of this end.
    ///
    /// # Errors
    /// The system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.std.local_addr()
    }

    /// Returns the address of the connected peer.
    ///
    /// # Errors
    /// `NotConnected` if the socket has no peer.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.std.peer_addr()
    }
}

/// Converts the kernel's address to std's form; an empty path becomes the unnamed address.
fn std_address(from: Option<SockAddr>) -> io::Result<SocketAddr> {
    let from = from.as_ref();
    if let Some(name) = from.and_then(SockAddr::as_abstract_namespace) {
        return SocketAddr::from_abstract_name(name);
    }
    let path = from.and_then(SockAddr::as_pathname);
    SocketAddr::from_pathname(path.unwrap_or(Path::new("")))
}
