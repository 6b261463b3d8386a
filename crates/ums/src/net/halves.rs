//! A stream in two halves, for two tasks: one reads, the other writes.
//!
//! Two tasks may share a stream by reference, or in an `Arc`; the halves are for code that wants
//! one owner for each direction, and the direction to end with its owner.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::ops::Deref;
use std::sync::Arc;

use super::socket::Call;
use super::tcp::TcpStream;
use super::unix::UnixStream;

/// The half that reads. Dereferences to the stream, for its timeouts and addresses.
#[derive(Debug)]
pub struct ReadHalf<S>(Arc<S>);

/// The half that writes. Dereferences to the stream. When it is dropped, this direction is shut
/// down: the other end reads the end of the stream.
#[derive(Debug)]
pub struct WriteHalf<S: ByteStream>(Option<Arc<S>>);

/// A stream of bytes: [`TcpStream`] or [`UnixStream`]. Both have halves, and [`copy`](super::copy)
/// takes both.
pub trait ByteStream: Sized + sealed::Sealed {
    /// Divides the stream.
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// use ums::net::{ByteStream, UnixStream};
    ///
    /// let node = ums::Node::builder().schedulers(1).build()?;
    /// let (one, two) = UnixStream::pair()?;
    /// node.run(move || {
    ///     let (mut from, mut to) = one.into_split();
    ///     let writer = ums::spawn(move || to.write_all(b"all there is")); // and drops its half
    ///     let mut text = String::new();
    ///     (&two).read_to_string(&mut text)?;
    ///     assert_eq!(text, "all there is");
    ///     writer.join().unwrap()?;
    ///     (&two).write_all(b"!")?;
    ///     from.read_exact(&mut [0])
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn into_split(self) -> (ReadHalf<Self>, WriteHalf<Self>) {
        let stream = Arc::new(self);
        (ReadHalf(stream.clone()), WriteHalf(Some(stream)))
    }
}

mod sealed {
    use std::io;
    use std::os::fd::AsFd;

    use crate::net::socket::Call;

    /// What a stream does for its halves, and for copies.
    pub trait Sealed: AsFd {
        /// Shuts down the direction of writes.
        fn end_writing(&self);
        /// Reads, and waits for input if there is none.
        fn receive(&self, buf: &mut [u8]) -> io::Result<usize>;
        /// Writes, and waits for room if there is none.
        fn send(&self, buf: &[u8]) -> io::Result<usize>;
        /// Makes a call that takes input of this stream. Waits for input while there is none.
        fn with_input(&self, call: Call<'_>) -> io::Result<usize>;
        /// Makes a call that writes on this stream. Waits for room while there is none.
        fn with_room(&self, call: Call<'_>) -> io::Result<usize>;
    }
}

macro_rules! byte_stream {
    ($name:ident) => {
        impl sealed::Sealed for $name {
            fn end_writing(&self) {
                let _ = self.shutdown(Shutdown::Write);
            }

            fn receive(&self, buf: &mut [u8]) -> io::Result<usize> {
                (&*self).read(buf)
            }

            fn send(&self, buf: &[u8]) -> io::Result<usize> {
                (&*self).write(buf)
            }

            fn with_input(&self, call: Call<'_>) -> io::Result<usize> {
                self.socket.with_input(call)
            }

            fn with_room(&self, call: Call<'_>) -> io::Result<usize> {
                self.socket.with_room(call)
            }
        }

        impl ByteStream for $name {}
    };
}

byte_stream!(TcpStream);
byte_stream!(UnixStream);

impl<S: ByteStream> ReadHalf<S> {
    /// Puts the halves of one stream together again.
    ///
    /// # Errors
    /// The halves, if they are not of the same stream.
    pub fn reunite(self, mut other: WriteHalf<S>) -> Result<S, (ReadHalf<S>, WriteHalf<S>)> {
        match other.0.take() {
            Some(stream) if Arc::ptr_eq(&self.0, &stream) => {
                drop(stream);
                // These two were the only ones.
                Arc::try_unwrap(self.0).map_err(|stream| (ReadHalf(stream), WriteHalf(None)))
            }
            stream => Err((self, WriteHalf(stream))),
        }
    }
}

impl<S: ByteStream> WriteHalf<S> {
    fn stream(&self) -> &S {
        self.0.as_ref().expect("only `reunite` takes the stream, with the half")
    }
}

impl<S> Deref for ReadHalf<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.0
    }
}

impl<S: ByteStream> Deref for WriteHalf<S> {
    type Target = S;

    fn deref(&self) -> &S {
        self.stream()
    }
}

impl<S: ByteStream> Drop for WriteHalf<S> {
    fn drop(&mut self) {
        if let Some(stream) = &self.0 {
            stream.end_writing();
        }
    }
}

impl<S> Read for ReadHalf<S>
where
    for<'a> &'a S: Read,
{
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self.0).read(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self.0).read_vectored(bufs)
    }
}

impl<S: ByteStream> Write for WriteHalf<S>
where
    for<'a> &'a S: Write,
{
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.stream().write(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.stream().write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
