//! A stream in two halves, for two tasks: one reads, the other writes.
//!
//! Two tasks may share a stream by reference, or in an `Arc`; the halves are for code that wants
//! one owner for each direction, and the direction to end with its owner.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::ops::Deref;
use std::sync::Arc;

use super::tcp::TcpStream;
use super::unix::UnixStream;

/// The half that reads. Dereferences to the stream, for its timeouts and addresses.
#[derive(Debug)]
pub struct ReadHalf<S>(Arc<S>);

/// The half that writes. Dereferences to the stream. When it is dropped, this direction is shut
/// down: the other end reads the end of the stream.
#[derive(Debug)]
pub struct WriteHalf<S: SplitStream>(Option<Arc<S>>);

/// A stream that has halves: [`TcpStream`] and [`UnixStream`].
pub trait SplitStream: Sized + sealed::Sealed {
    /// Divides the stream.
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// use ums::net::{SplitStream, UnixStream};
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
    pub trait Sealed {
        fn end_writing(&self);
    }
}

impl sealed::Sealed for TcpStream {
    fn end_writing(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl sealed::Sealed for UnixStream {
    fn end_writing(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl SplitStream for TcpStream {}
impl SplitStream for UnixStream {}

impl<S: SplitStream> ReadHalf<S> {
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

impl<S: SplitStream> WriteHalf<S> {
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

impl<S: SplitStream> Deref for WriteHalf<S> {
    type Target = S;

    fn deref(&self) -> &S {
        self.stream()
    }
}

impl<S: SplitStream> Drop for WriteHalf<S> {
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

impl<S: SplitStream> Write for WriteHalf<S>
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
