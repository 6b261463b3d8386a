//! Unix stream sockets: listeners, streams and pairs.

use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{self, SocketAddr};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use socket2::{SockAddr, SockRef};

use super::shape::{socket_type, stream_type, timeouts};
use super::socket::{Backoff, Socket, Way, is_wait_error, pause_before_connecting};
use super::tcp::BACKLOG;
use crate::current::checkpoint_for;
use crate::os::clock::{self, NEVER};
use crate::os::linux::owned::DescriptorKind;
use crate::os::sockets::{self, Attempt};
use crate::record::reason::WaitReason;
use crate::wait::{Arm, Waitable};

/// Converts std's address to the form that system calls take.
pub(super) fn address_of(address: &SocketAddr) -> io::Result<SockAddr> {
    match (address.as_pathname(), address.as_abstract_name()) {
        (Some(path), _) => SockAddr::unix(path),
        // A zero before it is what makes a name abstract.
        (None, Some(name)) => SockAddr::unix(OsStr::from_bytes(&[b"\0", name].concat())),
        (None, None) => SockAddr::unix(""),
    }
}

/// A Unix socket that accepts connections.
pub struct UnixListener {
    socket: Socket<net::UnixListener>,
    short: AtomicBool,
}

impl UnixListener {
    fn of(socket: Socket<net::UnixListener>) -> UnixListener {
        UnixListener { socket, short: AtomicBool::new(false) }
    }

    /// Listens at this path, which must not exist. Dropping the listener does not remove the path.
    ///
    /// # Errors
    /// The system's error.
    pub fn bind<P: AsRef<Path>>(path: P) -> io::Result<UnixListener> {
        UnixListener::bind_addr(&SocketAddr::from_pathname(path)?)
    }

    /// Listens at this address, which may be abstract.
    ///
    /// # Errors
    /// The system's error.
    pub fn bind_addr(address: &SocketAddr) -> io::Result<UnixListener> {
        let std = net::UnixListener::bind_addr(address)?;
        SockRef::from(&std).listen(BACKLOG)?;
        Ok(std.into())
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// Like [`TcpListener::accept`](super::TcpListener::accept), including the message and the
    /// pause.
    pub fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        self.accept_until(NEVER)
    }

    /// Like [`accept`](UnixListener::accept), for at most this long.
    ///
    /// # Errors
    /// Like [`accept`](UnixListener::accept), and `TimedOut`.
    pub fn accept_timeout(&self, span: Duration) -> io::Result<(UnixStream, SocketAddr)> {
        self.accept_until(clock::after(span))
    }

    fn accept_until(&self, deadline: u64) -> io::Result<(UnixStream, SocketAddr)> {
        let stream = self.accept_stream(deadline)?;
        let peer = stream.peer_addr()?;
        Ok((stream, peer))
    }

    fn accept_stream(&self, deadline: u64) -> io::Result<UnixStream> {
        let fd = self.socket.accept(&self.short, deadline)?;
        Ok(UnixStream::of(Socket::new(fd.into(), DescriptorKind::Stream)))
    }

    /// Iterates over the connections as they arrive. It ends when the work request is cancelled;
    /// like [`TcpListener::incoming`](super::TcpListener::incoming), it continues during the grace
    /// time of a shutdown. While the process is out of descriptors, the next connection waits in
    /// the listener's queue, and a message on stderr says so.
    pub fn incoming(&self) -> UnixIncoming<'_> {
        UnixIncoming { listener: self }
    }

    /// Returns the address that the socket listens on.
    ///
    /// # Errors
    /// The system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.std.local_addr()
    }
}

/// The arm is for workers: in other code, and in preemptive code, it gets the error `Unsupported`
/// if the select would have to wait. If another arm happens, the system may keep the listener open
/// for a moment after it is dropped, until the scheduler next waits.
impl<'a> Waitable<'a> for &'a UnixListener {
    type Output = io::Result<(UnixStream, SocketAddr)>;

    fn arm(self) -> Arm<'a, Self::Output> {
        self.socket.accept_arm(&self.short, |fd| {
            let stream = UnixStream::of(Socket::new(fd.into(), DescriptorKind::Stream));
            let peer = stream.peer_addr()?;
            Ok(Some((stream, peer)))
        })
    }
}

/// The connections of a listener; see [`UnixListener::incoming`].
#[derive(Debug)]
pub struct UnixIncoming<'a> {
    listener: &'a UnixListener,
}

impl Iterator for UnixIncoming<'_> {
    type Item = io::Result<UnixStream>;

    fn next(&mut self) -> Option<io::Result<UnixStream>> {
        let fd = self.listener.socket.accept_despite_shortage(&self.listener.short);
        let accepted = fd.map(|fd| UnixStream::of(Socket::new(fd.into(), DescriptorKind::Stream)));
        (!accepted.as_ref().is_err_and(is_wait_error)).then_some(accepted)
    }
}

/// A Unix stream connection. Dropping it closes this descriptor.
pub struct UnixStream {
    pub(super) socket: Socket<net::UnixStream>,
}

impl UnixStream {
    fn of(socket: Socket<net::UnixStream>) -> UnixStream {
        UnixStream { socket }
    }

    /// Connects to the listener at this path.
    ///
    /// # Errors
    /// The system's error, or cancellation.
    pub fn connect<P: AsRef<Path>>(path: P) -> io::Result<UnixStream> {
        UnixStream::connect_addr(&SocketAddr::from_pathname(path)?)
    }

    /// Connects to the listener at this address, which may be abstract. If the listener's queue is
    /// full, the connect is retried at growing intervals, because no event tells when the queue has
    /// room again.
    ///
    /// # Errors
    /// The system's error, or cancellation.
    pub fn connect_addr(address: &SocketAddr) -> io::Result<UnixStream> {
        let address = address_of(address)?;
        let mut socket = None;
        let mut backoff = Backoff::new(WaitReason::NETWORK_CONNECT, NEVER);
        loop {
            checkpoint_for(WaitReason::NETWORK_CONNECT)?;
            pause_before_connecting(NEVER)?;
            match sockets::connect_unix(&address, socket)? {
                Attempt::Connected(socket) | Attempt::InProgress(socket) => {
                    return Ok(UnixStream::of(Socket::new(socket.into(), DescriptorKind::Stream)));
                }
                Attempt::Full(again) => socket = again,
            }
            backoff.pause(socket.as_ref().map_or(-1, AsRawFd::as_raw_fd))?;
        }
    }

    /// Creates two streams that are connected to each other.
    ///
    /// # Errors
    /// Fails if the process is out of descriptors.
    pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
        let (one, two) = sockets::pair()?;
        Ok((one.into(), two.into()))
    }

    /// Returns the address of this end.
    ///
    /// # Errors
    /// The system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.std.local_addr()
    }

    /// Returns the address of the other end.
    ///
    /// # Errors
    /// The system's error.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.std.peer_addr()
    }
}

// After the methods above, so that the generated documentation begins with those.
socket_type!(UnixListener, net::UnixListener, DescriptorKind::Other);
socket_type!(UnixStream, net::UnixStream, DescriptorKind::Stream);
stream_type!(UnixStream);
timeouts!(UnixStream);
