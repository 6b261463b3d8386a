//! Streams of `ums::net` with the I/O traits of hyper and of tokio.
//!
//! ```text
//!   poll_read:   try_read -> bytes
//!                   | WouldBlock
//!                   +-> poll_readable -> Pending: the waker is called when there is input
//! ```
//!
//! The socket is neither waited for nor yielded from inside a poll: a caller may hold a lock of std
//! around it, as `tokio::io::split` does. After [`IN_A_ROW`] reads and writes without a pause, a
//! poll returns `Pending` and wakes itself, so that others run, and so that the task hears its time
//! limit and its cancellation.
//!
//! A read that did not fill its buffer has emptied the socket, so the next one does not try first.
//! It watches the socket, which says at once if more has arrived. So an exchange of short messages
//! costs one receive and one send for each.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ums::io::Watch;
use ums::net::{TcpStream, UnixStream};

/// A socket of `ums::net` that [`Stream`] makes asynchronous.
pub trait Socket: AsFd + private::Sealed {
    /// Reads what has arrived.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived; the system's error.
    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes as much as there is room for.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; the system's error.
    fn try_write(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Ends one direction.
    ///
    /// # Errors
    /// The system's error.
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;
}

mod private {
    pub trait Sealed {}
}

macro_rules! socket {
    ($name:ident) => {
        impl private::Sealed for $name {}

        impl Socket for $name {
            fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
                self.try_read(buf)
            }

            fn try_write(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                match bufs {
                    [one] => self.try_write(one),
                    several => self.try_write_vectored(several),
                }
            }

            fn shutdown(&self, how: Shutdown) -> io::Result<()> {
                self.shutdown(how)
            }
        }
    };
}

socket!(TcpStream);
socket!(UnixStream);

/// A socket with `hyper::rt::Read` and `Write`, and with tokio's `AsyncRead` and `AsyncWrite`. It
/// must be polled on a worker: elsewhere a read or write that would wait fails with `Unsupported`.
/// The timeouts and the deadline of the socket do not concern it.
#[derive(Debug)]
pub struct Stream<S = TcpStream> {
    watch: Watch<S>,
    /// Whether to try a read before the socket is watched.
    may_have_input: bool,
    /// How many reads and writes have succeeded since a poll was last pending.
    in_a_row: u32,
}

/// After how many reads and writes without a pause others run.
const IN_A_ROW: u32 = 64;

impl<S: Socket> Stream<S> {
    /// Makes a stream of this socket.
    pub fn new(socket: S) -> Stream<S> {
        // A peer that connects sends something first, in most protocols.
        Stream { watch: Watch::new(socket), may_have_input: true, in_a_row: 0 }
    }

    /// Returns the socket.
    pub fn get_ref(&self) -> &S {
        self.watch.get_ref()
    }

    /// Returns the socket, for blocking code. Nothing that has arrived is lost: the stream reads
    /// nothing ahead.
    pub fn into_inner(self) -> S {
        self.watch.into_inner()
    }

    /// Calls `read` when there is input. `read` tries to read, and returns whether it has filled
    /// its buffer. So does this function.
    fn poll_in(
        &mut self,
        context: &mut Context<'_>,
        mut read: impl FnMut(&S) -> io::Result<bool>,
    ) -> Poll<io::Result<bool>> {
        ready!(self.poll_turn(context));
        loop {
            if !self.may_have_input {
                let ready = self.watch.poll_readable(context);
                self.note(&ready);
                ready!(ready)?;
            }
            let result = read(self.get_ref());
            self.may_have_input = matches!(result, Ok(true));
            match result {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    /// Reads as much of the rest as there is, for hyper. An error comes again at the next read.
    #[cold]
    fn read_more(&mut self, buf: &mut hyper::rt::ReadBufCursor<'_>) {
        let filled = read_for_hyper::<LONG>(self.get_ref(), buf);
        self.may_have_input = filled.unwrap_or(false);
    }

    fn poll_out(
        &mut self,
        context: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_turn(context));
        loop {
            match self.get_ref().try_write(bufs) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let ready = self.watch.poll_writable(context);
                    self.note(&ready);
                    ready!(ready)?;
                }
                result => return Poll::Ready(result),
            }
        }
    }

    /// Lets others run, if this stream was ready many times in a row.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.in_a_row += 1;
        if self.in_a_row <= IN_A_ROW {
            return Poll::Ready(());
        }
        self.in_a_row = 0;
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn note<T>(&mut self, polled: &Poll<T>) {
        if polled.is_pending() {
            self.in_a_row = 0;
        }
    }

    fn end_output(&self) -> Poll<io::Result<()>> {
        match self.get_ref().shutdown(Shutdown::Write) {
            // The peer has ended the connection already.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            result => Poll::Ready(result),
        }
    }
}

impl<S: Socket> From<S> for Stream<S> {
    fn from(socket: S) -> Stream<S> {
        Stream::new(socket)
    }
}

/// What a read of hyper tries to read first, and then if there was as much.
const SHORT: usize = 1 << 10;
const LONG: usize = 8 << 10;

/// Reads at most this many bytes. They are on the caller's stack for a moment, because only unsafe
/// code can say how much of hyper's own buffer is filled. Returns whether there were as many.
fn read_for_hyper<const MOST: usize>(
    socket: &impl Socket,
    buf: &mut hyper::rt::ReadBufCursor<'_>,
) -> io::Result<bool> {
    let mut bytes = [0; MOST];
    let room = buf.remaining().min(MOST);
    let n = socket.try_read(&mut bytes[..room])?;
    buf.put_slice(&bytes[..n]);
    Ok(n == room)
}

impl<S: Socket + Unpin> hyper::rt::Read for Stream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        let read = |socket: &S| read_for_hyper::<SHORT>(socket, &mut buf);
        let filled = ready!(stream.poll_in(context, read))?;
        if filled && buf.remaining() > 0 {
            stream.read_more(&mut buf);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Socket + Unpin> tokio::io::AsyncRead for Stream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = |socket: &S| {
            let into = buf.initialize_unfilled();
            let n = socket.try_read(into)?;
            let filled = n == into.len();
            buf.advance(n);
            Ok(filled)
        };
        self.get_mut().poll_in(context, read).map_ok(drop)
    }
}

/// Implements a trait for output. The traits of hyper and of tokio have the same methods.
macro_rules! output {
    ($write:path) => {
        impl<S: Socket + Unpin> $write for Stream<S> {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                self.get_mut().poll_out(context, &[IoSlice::new(buf)])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.get_mut().poll_out(context, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            /// Does nothing: what was written is the system's.
            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.end_output()
            }
        }
    };
}

output!(hyper::rt::Write);
output!(tokio::io::AsyncWrite);
