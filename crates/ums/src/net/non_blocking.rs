//! A view of a stream whose `Read` and `Write` do not wait, for libraries that ask for those.

use std::io::{self, IoSlice, Read, Write};

use super::tcp::TcpStream;
use super::unix::UnixStream;

/// A view of a [`TcpStream`] or a [`UnixStream`] whose `Read` and `Write` do not wait: the streams'
/// `try_read` and `try_write`, for libraries that take a `Read` or a `Write`. `non_blocking` of the
/// stream makes it.
#[derive(Debug)]
pub struct NonBlocking<'a, S>(&'a S);

impl<S> Clone for NonBlocking<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for NonBlocking<'_, S> {}

macro_rules! non_blocking {
    ($name:ident) => {
        impl $name {
            /// Returns a view of the stream whose `Read` and `Write` neither wait nor let other
            /// workers run. Timeouts, the deadline and cancellation do not concern them. It is for
            /// libraries that take a `Read` or a `Write`, such as rustls: wait for `readable()` or
            /// `writable()`, and then let the library read or write.
            ///
            /// # Errors
            /// Reads fail with `WouldBlock` if nothing has arrived, writes if there is no room;
            /// otherwise with the system's error. After `read_exact` and `write_all` have failed,
            /// it is not known how much was transferred.
            ///
            /// ```
            /// use std::io::{ErrorKind, Read, Write};
            /// use ums::net::UnixStream;
            ///
            /// let (here, there) = UnixStream::pair()?;
            /// let mut text = [0; 5];
            /// let nothing = there.non_blocking().read(&mut text).unwrap_err();
            /// assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
            /// assert_eq!(here.non_blocking().write(b"hello")?, 5);
            /// assert_eq!(there.non_blocking().read(&mut text)?, 5);
            /// # Ok::<(), std::io::Error>(())
            /// ```
            pub fn non_blocking(&self) -> NonBlocking<'_, $name> {
                NonBlocking(self)
            }
        }

        impl Read for NonBlocking<'_, $name> {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                self.0.try_read(buf)
            }
        }

        impl Write for NonBlocking<'_, $name> {
            fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
                self.0.try_write(buf)
            }

            fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                self.0.try_write_vectored(bufs)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
    };
}

non_blocking!(TcpStream);
non_blocking!(UnixStream);
