//! Options of sockets beyond those of std.

use std::io::{self, ErrorKind};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use super::resolve::{ToSocketAddrs, each_address};
use super::tcp::{BACKLOG, TcpListener, TcpStream};
use super::udp::UdpSocket;
use super::unix::UnixStream;
use crate::os::sockets;

/// The longest time that `TCP_KEEPIDLE` takes.
const IDLE_MAX: Duration = Duration::from_secs(32_767);

/// The longest time that `SO_LINGER` takes.
const LINGER_MAX: Duration = Duration::from_secs(i32::MAX as u64);

impl TcpStream {
    /// Sets after how long a silence the system begins to ask the other end whether it is still
    /// there (`SO_KEEPALIVE`, `TCP_KEEPIDLE`); `None`, the default, means never. If the other end
    /// does not answer the system's questions, reads and writes fail with `TimedOut`. How many
    /// questions there are, and how far apart, is a setting of the system.
    ///
    /// # Errors
    /// `InvalidInput` if the time is not from 1 second to 32767 seconds; parts of a second do not
    /// count. The system's error.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ums::net::{TcpListener, TcpStream};
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let stream = TcpStream::connect(listener.local_addr()?)?;
    /// stream.set_keepalive(Some(Duration::from_secs(60)))?;
    /// assert_eq!(stream.keepalive()?, Some(Duration::from_secs(60)));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_keepalive(&self, silence: Option<Duration>) -> io::Result<()> {
        let least = Duration::from_secs(1);
        if silence.is_some_and(|silence| !(least..=IDLE_MAX).contains(&silence)) {
            let text = "a keepalive time is from 1 second to 32767 seconds";
            return Err(io::Error::new(ErrorKind::InvalidInput, text));
        }
        if sockets::is_simulated(self) {
            return Ok(());
        }
        let socket = SockRef::from(self);
        match silence {
            Some(silence) => socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(silence)),
            None => socket.set_keepalive(false),
        }
    }

    /// Returns after how long a silence the system asks whether the other end is still there.
    ///
    /// # Errors
    /// The system's error.
    pub fn keepalive(&self) -> io::Result<Option<Duration>> {
        let socket = SockRef::from(self);
        if sockets::is_simulated(self) || !socket.keepalive()? {
            return Ok(None);
        }
        socket.tcp_keepalive_time().map(Some)
    }

    /// Sets what happens to bytes that the other end has not received when the stream is dropped
    /// (`SO_LINGER`). By default (`None`) the system goes on sending them. With zero it resets the
    /// connection, and the bytes are lost. With a longer time, `close` **blocks the thread** for at
    /// most that time; shut the stream down and read to its end instead.
    ///
    /// # Errors
    /// The system's error.
    pub fn set_linger(&self, span: Option<Duration>) -> io::Result<()> {
        if sockets::is_simulated(self) {
            return Ok(());
        }
        // The system counts seconds. A part of one must not become zero, which resets.
        let whole = |span: Duration| span.saturating_add(Duration::from_nanos(999_999_999));
        SockRef::from(self).set_linger(span.map(|span| whole(span).min(LINGER_MAX)))
    }

    /// Returns what [`set_linger`](TcpStream::set_linger) has set.
    ///
    /// # Errors
    /// The system's error.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        if sockets::is_simulated(self) {
            return Ok(None);
        }
        SockRef::from(self).linger()
    }
}

impl TcpListener {
    /// Listens as [`bind`](TcpListener::bind) does, beside other sockets of the same user that
    /// listen on the same address in the same way (`SO_REUSEPORT`). The system divides the
    /// connections among them: for several processes, or for a process that takes over from another
    /// one without refusing a client. A connection in the queue of a socket that is closed is lost.
    ///
    /// # Errors
    /// The error of the last address, or of the name's resolution.
    ///
    /// ```
    /// use ums::net::TcpListener;
    /// let old = TcpListener::bind_shared("127.0.0.1:0")?;
    /// let new = TcpListener::bind_shared(old.local_addr()?)?;
    /// drop(old);
    /// # drop(new);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn bind_shared<A: ToSocketAddrs>(address: A) -> io::Result<TcpListener> {
        each_address(address, |address| Ok(sockets::listen_shared(&address, BACKLOG)?.into()))
    }
}

/// Returns the size, if it is one that fits into the system's type.
fn size(bytes: usize) -> io::Result<usize> {
    i32::try_from(bytes).map_err(|_| ErrorKind::InvalidInput)?;
    Ok(bytes)
}

/// Defines the sizes of the system's buffers.
macro_rules! buffers {
    ($($name:ident)*) => { $(
        impl $name {
            /// Sets how many bytes the system keeps that have arrived and were not read
            /// (`SO_RCVBUF`). The system doubles the number for its own needs, and has limits.
            ///
            /// # Errors
            /// The system's error.
            pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
                SockRef::from(self).set_recv_buffer_size(size(bytes)?)
            }

            /// Returns how many bytes the system keeps for reading, with its own needs.
            ///
            /// # Errors
            /// The system's error.
            pub fn recv_buffer_size(&self) -> io::Result<usize> {
                SockRef::from(self).recv_buffer_size()
            }

            /// Sets how many bytes the system keeps that were written and not sent (`SO_SNDBUF`).
            /// The system doubles the number for its own needs, and has limits.
            ///
            /// # Errors
            /// The system's error.
            pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
                SockRef::from(self).set_send_buffer_size(size(bytes)?)
            }

            /// Returns how many bytes the system keeps for sending, with its own needs.
            ///
            /// # Errors
            /// The system's error.
            pub fn send_buffer_size(&self) -> io::Result<usize> {
                SockRef::from(self).send_buffer_size()
            }
        }
    )* };
}

buffers! { TcpStream UnixStream UdpSocket }
