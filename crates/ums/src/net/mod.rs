//! Sockets with the interface of `std::net` and `std::os::unix::net`, for workers and plain
//! threads.
//!
//! While a worker waits for a socket, its scheduler runs other workers; a plain thread blocks. A
//! socket may be used by both, and moved between them.
//!
//! A server accepts in one task and starts a task for each connection. Each task, spawned or
//! scoped, is a work request of its own: it has its own worker while it runs, and is cancelled by
//! itself.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::net::Shutdown;
//! use std::time::Duration;
//! use ums::net::{TcpListener, TcpStream};
//!
//! let node = ums::Node::builder().build()?;
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let address = listener.local_addr()?;
//! node.spawn(move || {
//!     for stream in listener.incoming().flatten() {
//!         // An echo server.
//!         ums::spawn(move || std::io::copy(&mut &stream, &mut &stream));
//!     }
//! })?;
//!
//! let mut client = TcpStream::connect(address)?;
//! client.write_all(b"hello")?;
//! client.shutdown(Shutdown::Write)?;
//! let mut text = String::new();
//! client.read_to_string(&mut text)?;
//! assert_eq!(text, "hello");
//!
//! node.drain(Duration::from_secs(5)); // ends `incoming`, and lets the open connections end
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! For many connections that are mostly idle, [`serve`](crate::serve) needs less memory. For at
//! most N connections at once, see [`TcpListener::accept`]; for two tasks on one stream,
//! [`TcpStream`]. The example `crates/ums/examples/proxy.rs` of the repository is a whole server,
//! with timeouts, a limit of connections and an orderly end.
//!
//! # Where it differs from std
//!
//! * A timeout ends with [`ErrorKind::TimedOut`](std::io::ErrorKind::TimedOut); std returns
//!   `WouldBlock` on Linux. Timeouts belong to the object, not to the socket: a clone starts with
//!   those of its original and then has its own. Streams also have a *deadline*, an instant after
//!   which no call waits any more, even if bytes keep arriving one by one. A changed timeout or
//!   deadline concerns the calls that begin after the change, not one that already waits.
//! * A read or write that fails with `TimedOut` has transferred nothing, and can be repeated. After
//!   `read_exact` or `write_all` has failed, it is not known how much was transferred.
//! * When the work request is cancelled, its waits fail, and so do its later reads, accepts and
//!   connects: see [below](#cancelled-calls). A write still writes as much as it can without
//!   waiting, so that a request can send a last message.
//! * Accepting can be done in a loop that ignores errors: see [`TcpListener::accept`].
//! * Names are resolved by a call that goes preemptive, which means that it leaves its scheduler
//!   while it blocks ([`ToSocketAddrs`]); a literal address needs no such call.
//! * The descriptors are in non-blocking mode. There is no `set_nonblocking`, and no `SIGPIPE`.
//!   Streams have `try_read`, `try_write` and a view, [`NonBlocking`], that do not wait.
//! * An operation that does not wait still yields when its caller's quantum is over, so a client
//!   that never pauses cannot occupy the scheduler.
//!
//! Inside [`go_preemptive`](crate::go_preemptive) a caller blocks its thread, and a cancellation
//! does not end a call that waits already.
//!
//! # Cancelled calls
//!
//! A wait of this library that fails inside an I/O call becomes an [`std::io::Error`] that contains
//! the [`WaitError`](crate::WaitError), which [`WaitError::of`](crate::WaitError::of) returns. Its
//! kind is `TimedOut`, or, if the request was cancelled, `ConnectionAborted`. That is not
//! `Interrupted`, which std's loops would retry. The system uses the same kinds for errors of its
//! own, so compare the contained error, not the kind:
//!
//! ```
//! use std::io::{ErrorKind, Read};
//! use ums::WaitError;
//! use ums::net::UnixStream;
//!
//! let node = ums::Node::builder().build()?;
//! let (mine, theirs) = UnixStream::pair()?;
//! # let (begun, begins) = std::sync::mpsc::channel();
//! let task = node.spawn(move || {
//!     # begun.send(()).unwrap();
//!     (&mine).read(&mut [0; 16]).unwrap_err() // nothing arrives
//! })?;
//! # begins.recv()?; // a task that has not begun would never run
//! task.cancel();
//! let error = task.join().unwrap();
//! assert_eq!(WaitError::of(&error), Some(WaitError::Cancelled));
//! assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
//! # drop(theirs);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! In a loop that treats all errors of a cancelled request the same,
//! [`is_cancelled`](crate::is_cancelled) is enough.
//!
//! # Dropping, cloning, shutting down
//!
//! [`TcpStream::try_clone`] makes a second descriptor of the same socket. Dropping one of them does
//! not wake callers that wait on the other; the connection ends with the last.
//! [`TcpStream::shutdown`] ends the waits of other callers: they read the end of the stream, and a
//! write that waits for room fails with `BrokenPipe`.
//!
//! # What is tried first
//!
//! Reads are given to the I/O driver immediately: the epoll driver and the synchronous one try them
//! before they wait, and a ring tries them when it is entered. If the last read filled its buffer,
//! the next one is tried by a call of its own, because more has probably arrived.
//!
//! Writes are tried at once, because a socket nearly always has room; only if there is none is the
//! wait for room an I/O request. If the scheduler has a ring and other workers can run, a write on
//! a stream becomes an entry of the ring instead, and its caller parks until the ring is entered:
//! when nothing can run, when 32 entries are queued, or in the first turn after 64 turns or 50 us.
//! If a worker keeps the processor longer, the answers of others leave late; writes are then made
//! at once for a while.
//!
//! The server makes this many system calls per echo round (64 bytes there and back, one scheduler
//! of fibers, counted by perf):
//!
//! ```text
//!                          1 connection                     100 busy ones
//! epoll                    3.0 epoll_pwait2, recv, send     2.1
//! ring                     2.0 io_uring_enter, send         0.1
//! ring, `serve`            2.0 io_uring_enter, send         0.1
//! ```
//!
//! A stream never receives more than its caller asked for, so nothing is lost when it is cloned,
//! converted or passed on.
//!
//! Not offered: TLS, ancillary data (passing descriptors), raw sockets.

mod copy;
mod halves;
mod non_blocking;
mod options;
mod resolve;
mod shape;
mod socket;
mod tcp;
mod udp;
mod unix;
mod unix_datagram;

pub use copy::{copy, send_file};
pub use halves::{ByteStream, ReadHalf, WriteHalf};
pub use non_blocking::NonBlocking;
pub use resolve::ToSocketAddrs;
pub(crate) use socket::{is_shortage, report_shortage};
pub use tcp::{Incoming, TcpListener, TcpStream};
pub use udp::UdpSocket;
pub use unix::{UnixIncoming, UnixListener, UnixStream};
pub use unix_datagram::UnixDatagram;
