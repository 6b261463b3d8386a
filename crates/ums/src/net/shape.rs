//! The methods and conversions that the socket types share, written once.
//!
//! ```text
//!   socket_type!    all six       conversions from and to std, descriptors, try_clone, take_error
//!   timeouts!       not listeners timeouts and the deadline
//!   stream_type!    two           Read, Write, peek, shutdown
//!   datagram_type!  two           send, recv, peek
//! ```
//!
//! Each type has a field `socket` and a constructor `of(socket)`, and its file imports the names
//! that the macros use. These are macros instead of traits, so that a user needs no import to call
//! a method.

/// Defines what every socket type has: conversions, descriptors, clones, the pending error.
macro_rules! socket_type {
    ($name:ident, $std:ty, $kind:expr) => {
        impl $name {
            /// Returns another descriptor of the same socket, with a copy of the timeouts; see the
            /// module's text.
            ///
            /// # Errors
            /// Fails if the process is out of descriptors.
            pub fn try_clone(&self) -> io::Result<$name> {
                Ok($name::of(self.socket.again(self.socket.std.try_clone()?, $kind)))
            }

            /// Returns the socket's pending error and clears it.
            ///
            /// # Errors
            /// The system's error.
            pub fn take_error(&self) -> io::Result<Option<io::Error>> {
                self.socket.std.take_error()
            }
        }

        /// Converts std's type to this one: puts the socket, and with it every clone of it, into
        /// non-blocking mode.
        impl From<$std> for $name {
            fn from(std: $std) -> $name {
                std.set_nonblocking(true).expect("every socket has a non-blocking mode");
                $name::of(Socket::new(std, $kind))
            }
        }

        /// Converts this type to std's: puts the socket into blocking mode, as std's callers
        /// expect. Clones that were made before share the mode and must not be used any more.
        impl From<$name> for $std {
            fn from(socket: $name) -> $std {
                let std = socket.socket.into_std();
                std.set_nonblocking(false).expect("every socket has a blocking mode");
                std
            }
        }

        /// The descriptor must be a socket of this type.
        impl From<OwnedFd> for $name {
            fn from(fd: OwnedFd) -> $name {
                <$std>::from(fd).into()
            }
        }

        /// The descriptor stays in non-blocking mode.
        impl From<$name> for OwnedFd {
            fn from(socket: $name) -> OwnedFd {
                socket.socket.into_std().into()
            }
        }

        impl AsFd for $name {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.socket.std.as_fd()
            }
        }

        impl AsRawFd for $name {
            fn as_raw_fd(&self) -> RawFd {
                self.socket.std.as_raw_fd()
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.socket.std, f)
            }
        }
    };
}

/// Defines the timeouts, for all types but listeners.
macro_rules! timeouts {
    ($name:ident) => {
        impl $name {
            /// Sets how long a read may wait; `None`, the default, means forever. A read that
            /// already waits keeps the limit with which it began.
            ///
            /// # Errors
            /// `InvalidInput` for a timeout of zero.
            pub fn set_read_timeout(&self, span: Option<Duration>) -> io::Result<()> {
                self.socket.set_timeout(Way::Read, span)
            }

            /// Sets how long a write may wait; `None`, the default, means forever. A write that
            /// already waits keeps the limit with which it began. A write that fails with
            /// `TimedOut` has written nothing; `write_all` may have written a part before.
            ///
            /// # Errors
            /// `InvalidInput` for a timeout of zero.
            pub fn set_write_timeout(&self, span: Option<Duration>) -> io::Result<()> {
                self.socket.set_timeout(Way::Write, span)
            }

            /// Returns the timeout of reads.
            ///
            /// # Errors
            /// Never fails; the signature is std's.
            pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
                Ok(self.socket.timeout(Way::Read))
            }

            /// Returns the timeout of writes.
            ///
            /// # Errors
            /// Never fails; the signature is std's.
            pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
                Ok(self.socket.timeout(Way::Write))
            }

            /// Sets an instant beyond which no read or write waits, whatever the timeouts; `None`,
            /// the default, means no limit. It concerns calls that begin after this one: a call
            /// that already waits, in another task, keeps the limit with which it began.
            pub fn set_deadline(&self, at: Option<Instant>) {
                self.socket.set_deadline(at);
            }

            /// Returns the arm of a [`Select`](crate::sync::Select) that waits until a read would
            /// find input, the end, or an error. Timeouts do not concern it. It is for workers: in
            /// other code, and in preemptive code, it gets the error `Unsupported` if the select
            /// would have to wait. If another arm happens, the system may keep the socket open for
            /// a moment after it is dropped, until the scheduler next waits.
            pub fn readable(&self) -> Arm<'_, io::Result<()>> {
                self.socket.ready_arm(Way::Read)
            }

            /// Returns the arm of a [`Select`](crate::sync::Select) that waits until a write would
            /// find room or an error, in the same way.
            pub fn writable(&self) -> Arm<'_, io::Result<()>> {
                self.socket.ready_arm(Way::Write)
            }
        }
    };
}

/// Defines `Read` and `Write` by reference and by value, `peek` and `shutdown`.
macro_rules! stream_type {
    ($name:ident) => {
        impl $name {
            /// Reads without consuming: the next read returns the same bytes.
            ///
            /// # Errors
            /// The system's error, `TimedOut`, or cancellation.
            pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
                self.socket.receive(buf, libc::MSG_PEEK)
            }

            /// Reads what has arrived. The call neither waits nor lets other workers run. Timeouts,
            /// the deadline and cancellation do not concern it.
            ///
            /// # Errors
            /// `WouldBlock` if nothing has arrived; the system's error.
            pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
                if buf.is_empty() { Ok(0) } else { self.socket.receive_now(buf) }
            }

            /// Writes as much as there is room for. The call neither waits nor lets other workers
            /// run. Timeouts, the deadline and cancellation do not concern it.
            ///
            /// # Errors
            /// `WouldBlock` if there is no room; the system's error.
            pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
                self.socket.send_now(buf)
            }

            /// Like `try_write`, from several buffers.
            ///
            /// # Errors
            /// As `try_write`.
            pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                self.socket.send_now_vectored(bufs)
            }

            /// Shuts down one direction or both, for all clones. Calls that wait in other tasks end
            /// at once: a read in a direction that has been shut down, at this end or at the peer,
            /// returns the end of the stream, and a write in a direction that was shut down at this
            /// end fails with `BrokenPipe`.
            ///
            /// # Errors
            /// `NotConnected` if the connection has ended already.
            pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
                self.socket.std.shutdown(how)
            }
        }

        impl Read for &$name {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                // The kernel would wait for a byte although the buffer has no room for it.
                if buf.is_empty() { Ok(0) } else { self.socket.receive_bytes(buf) }
            }

            fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                let empty = bufs.iter().all(|b| b.is_empty());
                if empty { Ok(0) } else { self.socket.receive_vectored(bufs) }
            }
        }

        impl Write for &$name {
            fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
                self.socket.send_bytes(buf)
            }

            fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                self.socket.send_bytes_vectored(bufs)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        impl Read for $name {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                (&*self).read(buf)
            }

            fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                (&*self).read_vectored(bufs)
            }
        }

        impl Write for $name {
            fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
                (&*self).write(buf)
            }

            fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                (&*self).write_vectored(bufs)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
    };
}

/// Defines `send`, `recv` and `peek` of connected datagram sockets.
macro_rules! datagram_type {
    ($name:ident) => {
        impl $name {
            /// Sends one datagram to the connected peer.
            ///
            /// # Errors
            /// The system's error, `TimedOut`, or cancellation.
            pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
                self.socket.send(buf)
            }

            /// Receives one datagram and returns its length; the part that does not fit is lost.
            ///
            /// # Errors
            /// The system's error, `TimedOut`, or cancellation.
            pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
                self.socket.receive(buf, 0)
            }

            /// Like `recv`, without consuming the datagram.
            ///
            /// # Errors
            /// The system's error, `TimedOut`, or cancellation.
            pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
                self.socket.receive(buf, libc::MSG_PEEK)
            }
        }
    };
}

pub(super) use {datagram_type, socket_type, stream_type, timeouts};
