//! Copies to streams whose bytes do not pass through the program's memory.
//!
//! ```text
//!   copy        stream ──splice──▶ pipe ──splice──▶ stream
//!   send_file   file ──sendfile──▶ stream     what is in memory; the rest is read, and written
//! ```
//!
//! `sendfile` blocks its thread while a file's pages come from the disk, so it is called only for
//! parts whose last page is in memory. In a simulated world, which has neither pages nor pipes, all
//! bytes pass through a buffer.

use std::io::{self, IoSliceMut, Write};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};

use super::halves::ByteStream;
use crate::current::{checkpoint_for, short_external_call};
use crate::io::wait_for;
use crate::os::clock::NEVER;
use crate::os::driver::LiveOp;
use crate::os::sim;
use crate::record::reason::WaitReason;

/// How many bytes one call moves at most; a pipe has room for as many.
const AT_ONCE: usize = 64 << 10;

/// Copies from one stream to another until the first one ends, and returns how many bytes that
/// were. The bytes do not pass through the program's memory. The caller waits as in reads of `from`
/// and writes of `to`, with their timeouts and deadlines.
///
/// While it copies, it has a pipe: two descriptors, and up to 64 KiB of the system's memory. For
/// small messages `std::io::copy` makes fewer system calls. Neither stream is shut down at the end.
/// The system sends `SIGPIPE` if `to` has ended, which Rust's programs ignore.
///
/// ```
/// use std::io::{Read, Write};
/// use std::net::Shutdown;
/// use ums::net::UnixStream;
///
/// let node = ums::Node::builder().schedulers(1).build()?;
/// let (client, front) = UnixStream::pair()?;
/// let (back, server) = UnixStream::pair()?;
/// let copied = node.run(move || {
///     let forward = ums::spawn(move || {
///         let copied = ums::net::copy(&front, &back)?;
///         back.shutdown(Shutdown::Write)?;
///         Ok::<_, std::io::Error>(copied)
///     });
///     (&client).write_all(b"a request")?;
///     client.shutdown(Shutdown::Write)?;
///     let mut arrived = String::new();
///     (&server).read_to_string(&mut arrived)?;
///     assert_eq!(arrived, "a request");
///     forward.join().unwrap()
/// })?;
/// assert_eq!(copied, 9);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// An error of either stream, `TimedOut`, or cancellation. Up to 64 KiB that were read may be lost
/// then.
pub fn copy<A: ByteStream, B: ByteStream>(from: &A, to: &B) -> io::Result<u64> {
    if sim::is_here() {
        return copy_through_memory(from, to);
    }
    let (out, into) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    let mut copied = 0;
    loop {
        let mut read = || splice(from, None, &into, None, AT_ONCE, flags);
        let mut left = from.with_input(&mut read)?;
        if left == 0 {
            return Ok(copied);
        }
        copied += left as u64;
        while left > 0 {
            left -= to.with_room(&mut || splice(&out, None, to, None, left, flags))?;
        }
    }
}

fn copy_through_memory<A: ByteStream, B: ByteStream>(from: &A, to: &B) -> io::Result<u64> {
    let mut buffer = vec![0; AT_ONCE];
    let mut copied = 0;
    loop {
        let read = from.receive(&mut buffer)?;
        if read == 0 {
            return Ok(copied);
        }
        copied += read as u64;
        Sink(to).write_all(&buffer[..read])?;
    }
}

/// Sends these bytes of a file on a stream, and returns how many those were: fewer if the file ends
/// before. What the system has in memory does not pass through the program's memory. The file's
/// position is neither used nor moved. The caller waits as in writes of the stream, with its
/// timeout and deadline, and while the file is read.
///
/// ```
/// use std::io::Read;
/// use ums::net::UnixStream;
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("page");
/// std::fs::write(&path, "<html></html>")?;
/// let (client, server) = UnixStream::pair()?;
/// let sent = ums::net::send_file(&ums::fs::File::open(&path)?, 0..u64::MAX, &server)?;
/// assert_eq!(sent, 13);
/// drop(server);
/// let mut page = String::new();
/// (&client).read_to_string(&mut page)?;
/// assert_eq!(page, "<html></html>");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// An error of the file or of the stream, `TimedOut`, or cancellation; how much was sent is then
/// unknown. `InvalidInput` for a position that no file has, and for a file that was opened for
/// direct I/O.
pub fn send_file<F: AsFd, S: ByteStream>(file: &F, bytes: Range<u64>, to: &S) -> io::Result<u64> {
    let file = file.as_fd();
    let mut at = bytes.start;
    let mut buffer = Vec::new();
    while at < bytes.end {
        let wanted = AT_ONCE.min(usize::try_from(bytes.end - at).unwrap_or(usize::MAX));
        if i64::try_from(at).is_err() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let sent = if !sim::is_here() && is_in_memory(file, at + (wanted as u64 - 1)) {
            let mut offset = at;
            let mut send = || rustix::fs::sendfile(to, file, Some(&mut offset), wanted);
            to.with_room(&mut || short_external_call(&mut send))?
        } else {
            buffer.resize(AT_ONCE, 0);
            checkpoint_for(WaitReason::IO_COMPLETION)?;
            let read = LiveOp::read(file.as_raw_fd(), &mut buffer[..wanted], at);
            let read = wait_for(read, WaitReason::IO_COMPLETION, NEVER)?;
            Sink(to).write_all(&buffer[..read])?;
            read
        };
        if sent == 0 {
            break;
        }
        at += sent as u64;
    }
    Ok(at.saturating_sub(bytes.start))
}

/// Returns whether the file's byte at this position is in memory, or the file ends before it. The
/// bytes before it are likely to be there, too.
fn is_in_memory(file: BorrowedFd<'_>, at: u64) -> bool {
    let mut byte = [0];
    let read = preadv2(file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT);
    // The call that follows returns other errors.
    !matches!(read, Err(Errno::AGAIN | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS))
}

/// A stream, for `write_all`.
struct Sink<'a, S>(&'a S);

impl<S: ByteStream> Write for Sink<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
