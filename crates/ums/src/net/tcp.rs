//! TCP: listeners and streams.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::resolve::{ToSocketAddrs, each_address};
use super::shape::{socket_type, stream_type, timeouts};
use super::socket::{Socket, Way, is_wait_error, pause_before_connecting, time_to_live};
use crate::current::checkpoint_for;
use crate::io::wait_writable;
use crate::os::clock::{self, NEVER};
use crate::os::linux::owned::DescriptorKind;
use crate::os::sockets::{self, Attempt};
use crate::record::reason::WaitReason;
use crate::wait::{Arm, Waitable};

/// How many connections may wait to be accepted; the kernel caps it at `net.core.somaxconn`.
pub(super) const BACKLOG: i32 = 4096;

/// A socket that accepts connections.
///
/// ```no_run
/// use ums::net::TcpListener;
///
/// let node = ums::Node::builder().build()?;
/// node.run(|| {
///     let listener = TcpListener::bind("127.0.0.1:7")?;
///     for stream in listener.incoming().flatten() {
///         ums::spawn(move || std::io::copy(&mut &stream, &mut &stream)); // an echo server
///     }
///     Ok(())
/// })
/// # .map_err(|error: std::io::Error| Box::new(error) as Box<dyn std::error::Error>)
/// # ?; Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TcpListener {
    socket: Socket<std::net::TcpListener>,
    short: AtomicBool,
}

impl TcpListener {
    fn of(socket: Socket<std::net::TcpListener>) -> TcpListener {
        TcpListener { socket, short: AtomicBool::new(false) }
    }

    /// Listens on the first of these addresses that works; port 0 selects a free port. An address
    /// may be reused although closed connections of it linger (`SO_REUSEADDR`).
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
    /// the queue, a message on stderr says so, and the next call pauses for 10 ms before it tries
    /// again: a loop that continues after errors needs no pause of its own, and need not report
    /// each of them. If the work request is cancelled, every call fails.
    ///
    /// # At most N connections
    /// A semaphore counts the free seats. This loop takes a seat before it accepts, so that clients
    /// beyond the limit wait in the listener's queue. A permit borrows its semaphore; that of a
    /// `static` can move into a task.
    ///
    /// ```
    /// use ums::net::TcpListener;
    /// use ums::sync::Semaphore;
    ///
    /// static SEATS: Semaphore = Semaphore::new(100);
    ///
    /// fn accept(listener: &TcpListener) {
    ///     while let Ok(seat) = SEATS.acquire() { // ends if the task is cancelled
    ///         match listener.accept() {
    ///             Ok((stream, _peer)) => drop(ums::spawn(move || {
    ///                 let _ = std::io::copy(&mut &stream, &mut &stream);
    ///                 drop(seat); // the next client's
    ///             })),
    ///             Err(_) if ums::is_cancelled() => return,
    ///             Err(_) => {} // the next call pauses if it must
    ///         }
    ///     }
    /// }
    /// # let node = ums::Node::builder().build()?;
    /// # let listener = TcpListener::bind("127.0.0.1:0")?;
    /// # let client = ums::net::TcpStream::connect(listener.local_addr()?)?;
    /// # let acceptor = node.spawn(move || accept(&listener))?;
    /// # (&mut &client).write_all(b"hi")?;
    /// # use std::io::{Read, Write};
    /// # (&mut &client).read_exact(&mut [0; 2])?;
    /// # acceptor.cancel();
    /// # assert!(acceptor.join().is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
            if let Some(accepted) = with_peer(self.accept_stream(deadline)?)? {
                return Ok(accepted);
            }
        }
    }

    fn accept_stream(&self, deadline: u64) -> io::Result<TcpStream> {
        let fd = self.socket.accept(&self.short, deadline)?;
        Ok(TcpStream::of(Socket::new(fd.into(), DescriptorKind::Stream)))
    }

    /// Iterates over the connections as they arrive. It ends when the time of
    /// [`with_timeout`](crate::with_timeout) is over, and when the work request is cancelled, for
    /// example by [`Node::drain`](crate::Node::drain) or
    /// [`JoinHandle::cancel`](crate::JoinHandle::cancel). While the process is out of descriptors,
    /// the next connection waits in the listener's queue, and a message on stderr says so.
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
    /// `InvalidInput` if it is not 1 to 255; otherwise the system's error.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.socket.std.set_ttl(time_to_live(ttl, 1)?)
    }
}

/// The arm is for workers: in other code, and in preemptive code, it gets the error `Unsupported`
/// if the select would have to wait. If another arm happens, the system may keep the listener open
/// for a moment after it is dropped, until the scheduler next waits.
impl<'a> Waitable<'a> for &'a TcpListener {
    type Output = io::Result<(TcpStream, SocketAddr)>;

    fn arm(self) -> Arm<'a, Self::Output> {
        self.socket.accept_arm(&self.short, |fd| {
            with_peer(TcpStream::of(Socket::new(fd.into(), DescriptorKind::Stream)))
        })
    }
}

/// Returns an accepted connection with its peer's address, or `None` if the peer has gone.
fn with_peer(stream: TcpStream) -> io::Result<Option<(TcpStream, SocketAddr)>> {
    match stream.peer_addr() {
        Ok(peer) => Ok(Some((stream, peer))),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(None),
        Err(error) => Err(error),
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
        let accepted = fd.map(|fd| TcpStream::of(Socket::new(fd.into(), DescriptorKind::Stream)));
        (!accepted.as_ref().is_err_and(is_wait_error)).then_some(accepted)
    }
}

/// A TCP connection. Dropping it closes this descriptor.
///
/// As in std, `&TcpStream` can be read and written too, so two tasks can use one stream at once,
/// one to read and one to write. This copies between two streams, in both directions:
///
/// ```
/// use std::io::{Read, Write, copy};
/// use std::net::Shutdown;
/// use ums::net::TcpStream;
///
/// fn both_ways(one: &TcpStream, two: &TcpStream) {
///     // Copies to the end of `from`, and passes the end on.
///     let pass = |mut from: &TcpStream, mut to: &TcpStream| {
///         let copied = copy(&mut from, &mut to);
///         // After an error the other direction must not wait on.
///         let how = if copied.is_ok() { Shutdown::Write } else { Shutdown::Both };
///         let _ = (to.shutdown(how), copied.is_err().then(|| from.shutdown(how)));
///     };
///     ums::scope(|s| {
///         s.spawn(|| pass(one, two));
///         pass(two, one);
///     });
/// }
/// # use ums::net::TcpListener;
/// # let node = ums::Node::builder().build()?;
/// # node.run(|| {
/// #     let pair = || {
/// #         let listener = TcpListener::bind("127.0.0.1:0")?;
/// #         let client = TcpStream::connect(listener.local_addr()?)?;
/// #         Ok::<_, std::io::Error>((client, listener.accept()?.0))
/// #     };
/// #     let ((mut client, one), (mut server, two)) = (pair()?, pair()?);
/// #     let proxy = ums::spawn(move || both_ways(&one, &two));
/// #     client.write_all(b"question")?;
/// #     client.shutdown(Shutdown::Write)?;
/// #     let mut text = String::new();
/// #     server.read_to_string(&mut text)?;
/// #     assert_eq!(text, "question");
/// #     server.write_all(b"answer")?;
/// #     drop(server);
/// #     text.clear();
/// #     client.read_to_string(&mut text)?;
/// #     assert_eq!(text, "answer");
/// #     proxy.join().unwrap();
/// #     Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TcpStream {
    pub(super) socket: Socket<std::net::TcpStream>,
}

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
    ///
    /// # By name
    /// As in std, this takes one address. A name may have several, which share the time in this
    /// example. How long a name's lookup takes is not limited: see
    /// [`ToSocketAddrs`](crate::net::ToSocketAddrs).
    ///
    /// ```
    /// use std::io::{Error, ErrorKind};
    /// use std::time::{Duration, Instant};
    /// use ums::net::{TcpStream, ToSocketAddrs};
    ///
    /// fn connect_within(name: &str, span: Duration) -> std::io::Result<TcpStream> {
    ///     let addresses = name.to_socket_addrs()?;
    ///     let end = Instant::now() + span;
    ///     let mut result = Err(Error::new(ErrorKind::NotFound, "the name has no address"));
    ///     for address in addresses {
    ///         let left = end.saturating_duration_since(Instant::now());
    ///         if left.is_zero() {
    ///             break;
    ///         }
    ///         result = TcpStream::connect_timeout(&address, left);
    ///         if result.is_ok() {
    ///             break;
    ///         }
    ///     }
    ///     result
    /// }
    /// # let listener = ums::net::TcpListener::bind("127.0.0.1:0")?;
    /// # connect_within(&listener.local_addr()?.to_string(), Duration::from_secs(9))?;
    /// # Ok::<(), Error>(())
    /// ```
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
    /// `InvalidInput` if it is not 1 to 255; otherwise the system's error.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.socket.std.set_ttl(time_to_live(ttl, 1)?)
    }
}

// After the methods above, so that the generated documentation begins with those.
socket_type!(TcpListener, std::net::TcpListener, DescriptorKind::Other);
socket_type!(TcpStream, std::net::TcpStream, DescriptorKind::Stream);
stream_type!(TcpStream);
timeouts!(TcpStream);

/// Starts to connect, waits until the socket is writable, and reads the result.
fn connect_until(address: &SocketAddr, deadline: u64) -> io::Result<TcpStream> {
    checkpoint_for(WaitReason::NETWORK_CONNECT)?;
    let stream =
        |socket: OwnedFd| TcpStream::of(Socket::new(socket.into(), DescriptorKind::Stream));
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
