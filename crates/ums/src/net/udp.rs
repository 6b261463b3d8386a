//! UDP sockets.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use socket2::SockAddr;

use super::resolve::{ToSocketAddrs, each_address};
use super::shape::{datagram_type, socket_type, timeouts};
use super::socket::{Socket, Way, time_to_live};
use crate::os::linux::owned::DescriptorKind;
use crate::wait::Arm;

/// A UDP socket.
pub struct UdpSocket {
    socket: Socket<std::net::UdpSocket>,
}

socket_type!(UdpSocket, std::net::UdpSocket, DescriptorKind::Other);
datagram_type!(UdpSocket);
timeouts!(UdpSocket);

/// Defines options that only call std's method of the same name.
macro_rules! options {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $kind:ty),*) -> $out:ty;)*) => {
        impl UdpSocket {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// The system's error.
                pub fn $name(&self, $($arg: $kind),*) -> io::Result<$out> {
                    self.socket.std.$name($($arg),*)
                }
            )*
        }
    };
}

options! {
    /// Returns the address of this end.
    local_addr() -> SocketAddr;
    /// Returns the address of the connected peer.
    peer_addr() -> SocketAddr;
    /// Sets whether sending to broadcast addresses is allowed.
    set_broadcast(yes: bool) -> ();
    /// Returns whether sending to broadcast addresses is allowed.
    broadcast() -> bool;
    /// Returns the time to live (hop limit) of the socket's packets.
    ttl() -> u32;
    /// Returns the time to live of multicast packets.
    multicast_ttl_v4() -> u32;
    /// Joins a multicast group.
    join_multicast_v4(group: &Ipv4Addr, interface: &Ipv4Addr) -> ();
    /// Leaves a multicast group.
    leave_multicast_v4(group: &Ipv4Addr, interface: &Ipv4Addr) -> ();
    /// Joins a multicast group.
    join_multicast_v6(group: &Ipv6Addr, interface: u32) -> ();
    /// Leaves a multicast group.
    leave_multicast_v6(group: &Ipv6Addr, interface: u32) -> ();
    /// Sets whether this host receives its own multicast packets.
    set_multicast_loop_v4(yes: bool) -> ();
    /// Sets whether this host receives its own multicast packets.
    set_multicast_loop_v6(yes: bool) -> ();
}

impl UdpSocket {
    fn of(socket: Socket<std::net::UdpSocket>) -> UdpSocket {
        UdpSocket { socket }
    }

    /// Binds to the first of these addresses that works; port 0 selects a free port.
    ///
    /// # Errors
    /// The error of the last address, or of the name's resolution.
    pub fn bind<A: ToSocketAddrs>(address: A) -> io::Result<UdpSocket> {
        each_address(address, |address| Ok(std::net::UdpSocket::bind(address)?.into()))
    }

    /// Sets the peer of `send` and `recv`. Nothing is sent, so this does not wait.
    ///
    /// # Errors
    /// The error of the last address, or of the name's resolution.
    pub fn connect<A: ToSocketAddrs>(&self, address: A) -> io::Result<()> {
        each_address(address, |address| self.socket.std.connect(address))
    }

    /// Sets the time to live (hop limit) of the socket's packets, 1 to 255.
    ///
    /// # Errors
    /// `InvalidInput` for another number; the system's error.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.socket.std.set_ttl(time_to_live(ttl, 1)?)
    }

    /// Sets the time to live of multicast packets, 0 to 255; with 0 they stay on this computer.
    ///
    /// # Errors
    /// `InvalidInput` for another number; the system's error.
    pub fn set_multicast_ttl_v4(&self, ttl: u32) -> io::Result<()> {
        self.socket.std.set_multicast_ttl_v4(time_to_live(ttl, 0)?)
    }

    /// Sends one datagram to the first of these addresses.
    ///
    /// # Errors
    /// The system's error, `TimedOut`, or cancellation.
    pub fn send_to<A: ToSocketAddrs>(&self, buf: &[u8], address: A) -> io::Result<usize> {
        let none = || io::Error::new(io::ErrorKind::InvalidInput, "no addresses to send data to");
        let to = address.to_socket_addrs()?.next().ok_or_else(none)?;
        self.socket.send_to(buf, &SockAddr::from(to), false)
    }

    /// Receives one datagram and returns its length and sender; the part that does not fit is lost.
    ///
    /// # Errors
    /// The system's error, `TimedOut`, or cancellation.
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive_from(buf, 0)
    }

    /// Like [`recv_from`](UdpSocket::recv_from), without consuming the datagram.
    ///
    /// # Errors
    /// The system's error, `TimedOut`, or cancellation.
    pub fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.receive_from(buf, libc::MSG_PEEK)
    }

    fn receive_from(&self, buf: &mut [u8], flags: i32) -> io::Result<(usize, SocketAddr)> {
        let (n, from) = self.socket.receive_from(buf, flags)?;
        let from = from.expect("a UDP datagram has a sender's address");
        let other = || io::Error::from_raw_os_error(libc::EAFNOSUPPORT);
        Ok((n, from.as_socket().ok_or_else(other)?))
    }
}
