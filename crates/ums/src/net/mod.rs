//! Sockets with the interface of `std::net` and `std::os::unix::net`, for workers and plain
//! threads.
//!
//! While a worker waits for a socket, its scheduler runs other workers; a plain thread blocks. A
//! socket may be used by both, and moved between them.
//!
//! ```
//! use std::io::{Read, Write};
//! use ums::net::{TcpListener, TcpStream};
//!
//! let node = ums::Node::builder().build()?;
//! node.run(|| {
//!     let listener = TcpListener::bind("127.0.0.1:0")?;
//!     let address = listener.local_addr()?;
//!     let server = ums::spawn(move || {
//!         let (mut stream, _) = listener.accept()?;
//!         stream.write_all(b"hello")
//!     });
//!     let mut text = String::new();
//!     TcpStream::connect(address)?.read_to_string(&mut text)?;
//!     assert_eq!(text, "hello");
//!     server.join().unwrap()
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where it differs from std
//!
//! * A timeout ends with [`ErrorKind::TimedOut`](std::io::ErrorKind::TimedOut); std returns
//!   `WouldBlock` on Linux. Timeouts belong to the object, not to the socket: a clone starts with
//!   those of its original and then has its own. Streams also have a *deadline*, an instant after
//!   which no call waits any more, even if bytes keep arriving one by one.
//! * When the work request is cancelled, its waits, and its later reads, accepts and connects, fail
//!   with an error whose source is [`WaitError::Cancelled`](crate::WaitError::Cancelled). A write
//!   still writes as much as it can without waiting, so that a request can send a last message.
//! * Accepting can be done in a loop that ignores errors: see [`TcpListener::accept`].
//! * Names are resolved by a call that goes preemptive, which means that it leaves its scheduler
//!   while it blocks ([`ToSocketAddrs`]); a literal address needs no such call.
//! * The descriptors are in non-blocking mode. There is no `set_nonblocking`, and no `SIGPIPE`.
//! * An operation that does not wait still yields when its caller's quantum is over, so a client
//!   that never pauses does not keep its scheduler to itself.
//!
//! Inside [`go_preemptive`](crate::go_preemptive) a caller is a plain thread: it blocks and is not
//! cancelled.
//!
//! # Dropping, cloning, shutting down
//!
//! [`TcpStream::try_clone`] makes a second descriptor of the same socket. Dropping one of them does
//! not wake callers that wait on the other; the connection ends with the last.
//! [`TcpStream::shutdown`] ends the waits of other callers: they read the end of the stream.
//!
//! # What is tried first
//!
//! Reads go to the I/O back end at once: epoll and the synchronous one try them before they wait,
//! and a ring tries them when it is entered. Writes are tried here, because a socket nearly always
//! has room; only if there is none is the wait for room an I/O request. System calls of the server
//! per echo round (64 bytes there and back, one scheduler of fibers, counted by perf):
//!
//! ```text
//!                                     1 connection                    100 busy ones
//! epoll                               3.0 epoll_pwait2, recv, send    2.1
//! ring, writes tried here             2.0 io_uring_enter, send        1.1
//! ring, writes left to it             2.0 io_uring_enter twice        0.2
//! ```
//!
//! Writes on the ring would save calls if many connections are busy (and about a seventh of the
//! processor time, in that measurement). They are still tried here, because the answer then leaves
//! at once, not when the ring is next entered, which may be many turns of other workers later.
//!
//! Not offered: TLS, ancillary data (passing descriptors), raw sockets.

mod resolve;
mod shape;
mod socket;
mod tcp;
mod udp;
mod unix;
mod unix_datagram;

pub use resolve::ToSocketAddrs;
pub(crate) use socket::{is_shortage, report_shortage};
pub use tcp::{Incoming, TcpListener, TcpStream};
pub use udp::UdpSocket;
pub use unix::{UnixIncoming, UnixListener, UnixStream};
pub use unix_datagram::UnixDatagram;
