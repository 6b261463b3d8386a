//! Reads and writes of an open file, positioned and not.
//!
//! ```text
//!   read:  in the cache? --yes--> copied on the spot    write: cached --> copied on the spot
//!              |no, or past the cache                          past the cache, synchronous, stream
//!              v                                                    v
//!          the I/O list: the caller parks                       the I/O list
//! ```

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use rustix::io::{Errno, ReadWriteFlags};

use super::file::File;
use super::manner::Manner;
use crate::current::{checkpoint_for, is_worker, short_external_call, yield_if_due};
use crate::io::{wait_for, wait_out};
use crate::os::driver::{CURRENT, LiveOp};
use crate::os::op::BUFFERS_MAX;

/// Checks that a file can have this position. The system would read larger numbers as negative, and
/// one of them as "the current position".
fn placed(offset: u64) -> io::Result<u64> {
    match i64::try_from(offset) {
        Ok(_) => Ok(offset),
        Err(_) => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

/// Returns whether the caller is in a simulated world. Such a world has no cache: its seed decides
/// which operations are late, short or lost.
fn is_simulated() -> bool {
    crate::os::sim::is_here()
}

impl File {
    /// Reads from this position (in bytes) and returns the number of bytes read. It is less than
    /// the buffer's length at the end of the file, and may be less where the cached part of the
    /// file ends; it is 0 only at the end of the file.
    ///
    /// # Errors
    /// The system's error; cancellation; `TimedOut`; `InvalidInput` for a buffer or position that
    /// direct I/O cannot use.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_from(buf, placed(offset)?)
    }

    fn read_from(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.before_reading()?;
        if let Some(n) = self.cached(&mut [IoSliceMut::new(buf)], offset)? {
            return Ok(n);
        }
        self.aligned(buf.as_ptr(), buf.len(), offset)?;
        self.wait_to_read(LiveOp::read(self.fd(), buf, offset))
    }

    /// Reads the bytes that are in the page cache now, without waiting. Returns `None` if the first
    /// byte would have to come from the disk, or if the system cannot tell. The read may be short
    /// where the cached part ends; it returns `Some(0)` only at the end of the file.
    ///
    /// # Errors
    /// The system's error.
    pub fn read_cached_at(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        self.ask_cache(&mut [IoSliceMut::new(buf)], placed(offset)?)
    }

    /// Fills the buffer from this position; returns fewer bytes only at the end of the file.
    ///
    /// # Errors
    /// Like [`File::read_at`]; bytes read before the error are lost.
    pub fn read_full_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buf.len() {
            match self.read_at(&mut buf[filled..], offset.saturating_add(filled as u64)) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A short read of a direct file ends at the file's end, which need not be aligned.
                Err(error) if error.kind() == ErrorKind::InvalidInput && filled > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    /// Fills the buffer from this position.
    ///
    /// # Errors
    /// Like [`File::read_at`]; `UnexpectedEof` if the file ends before.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        match self.read_full_at(buf, offset)? {
            n if n == buf.len() => Ok(()),
            _ => Err(io::Error::new(ErrorKind::UnexpectedEof, "failed to fill whole buffer")),
        }
    }

    /// Like [`File::read_at`], into several buffers, one after another.
    ///
    /// # Errors
    /// Like [`File::read_at`].
    pub fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        self.read_vectored_from(bufs, placed(offset)?)
    }

    fn read_vectored_from(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        self.before_reading()?;
        let many = bufs.len().min(BUFFERS_MAX);
        let bufs = &mut bufs[..many];
        if let Some(n) = self.cached(bufs, offset)? {
            return Ok(n);
        }
        bufs.iter().try_for_each(|b| self.aligned(b.as_ptr(), b.len(), offset))?;
        self.wait_to_read(LiveOp::readv(self.fd(), bufs, offset))
    }

    /// Writes at this position (in bytes) and returns the number of bytes written, which may be
    /// less than the buffer's length.
    ///
    /// # Errors
    /// The system's error; `InvalidInput` for a buffer or position that direct I/O cannot use.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let offset = placed(offset)?;
        yield_if_due();
        if self.writes_on_the_spot() {
            return short_external_call(|| self.std.write_at(buf, offset));
        }
        self.aligned(buf.as_ptr(), buf.len(), offset)?;
        self.wait_to_write(LiveOp::write(self.fd(), buf, offset))
    }

    /// Writes the whole buffer from this position.
    ///
    /// # Errors
    /// Like [`File::write_at`]; a part may have been written.
    pub fn write_all_at(&self, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match self.write_at(buf, offset) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => {
                    buf = &buf[n..];
                    offset = offset.saturating_add(n as u64);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Like [`File::write_at`], from several buffers, one after another.
    ///
    /// # Errors
    /// Like [`File::write_at`].
    pub fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let offset = placed(offset)?;
        yield_if_due();
        let bufs = &bufs[..bufs.len().min(BUFFERS_MAX)];
        if self.writes_on_the_spot() {
            let now = || rustix::io::pwritev(&self.std, bufs, offset);
            return Ok(short_external_call(now)?);
        }
        bufs.iter().try_for_each(|b| self.aligned(b.as_ptr(), b.len(), offset))?;
        self.wait_to_write(LiveOp::writev(self.fd(), bufs, offset))
    }

    fn before_reading(&self) -> io::Result<()> {
        if self.cancellable {
            checkpoint_for(self.reasons.read)?;
        } else {
            yield_if_due();
        }
        Ok(())
    }

    fn writes_on_the_spot(&self) -> bool {
        (self.manner == Manner::Cached { slow_writes: false } && !is_simulated()) || !is_worker()
    }

    /// Reads from the cache, if this file has one and the caller is a worker: a plain thread waits
    /// for the disk in the same call.
    fn cached(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<Option<usize>> {
        if matches!(self.manner, Manner::Cached { .. }) && is_worker() && !is_simulated() {
            self.ask_cache(bufs, offset)
        } else {
            Ok(None)
        }
    }

    fn ask_cache(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<Option<usize>> {
        let cached = matches!(self.manner, Manner::Cached { .. });
        if !cached || self.no_cache_question.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match rustix::io::preadv2(&self.std, bufs, offset, ReadWriteFlags::NOWAIT) {
            Ok(n) => Ok(Some(n)),
            // The operation that follows returns the error, if there is one.
            Err(Errno::AGAIN | Errno::INTR | Errno::INVAL) => Ok(None),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.no_cache_question.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Checks that direct I/O can use this buffer at this position.
    fn aligned(&self, start: *const u8, len: usize, offset: u64) -> io::Result<()> {
        let Manner::Direct { memory, offset: step } = self.manner else { return Ok(()) };
        let at = if offset == CURRENT { 0 } else { offset };
        let good = (start as usize).is_multiple_of(memory)
            && len.is_multiple_of(step)
            && at.is_multiple_of(step as u64);
        if good {
            return Ok(());
        }
        let text = format!(
            "direct I/O on this file needs buffers at multiples of {memory} bytes, and positions \
             and lengths that are multiples of {step}: not {len} bytes at {start:p} for position \
             {at}"
        );
        Err(io::Error::new(ErrorKind::InvalidInput, text))
    }

    fn wait_to_read(&self, op: LiveOp<'_>) -> io::Result<usize> {
        match self.cancellable {
            true => wait_for(op, self.reasons.read, self.deadline()),
            false => wait_out(op, self.reasons.read),
        }
    }

    fn wait_to_write(&self, op: LiveOp<'_>) -> io::Result<usize> {
        match self.manner {
            // A pipe may never have room, so this wait can be cancelled; a disk always answers.
            Manner::Stream => wait_for(op, self.reasons.write, self.deadline()),
            _ => wait_out(op, self.reasons.write),
        }
    }

    fn deadline(&self) -> u64 {
        self.deadline.load(Ordering::Relaxed)
    }
}

impl Read for &File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.read_from(buf, CURRENT)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.read_vectored_from(bufs, CURRENT)
    }
}

impl Write for &File {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.writes_on_the_spot() && self.manner != Manner::Stream {
            yield_if_due();
            return short_external_call(|| (&self.std).write(buf));
        }
        self.aligned(buf.as_ptr(), buf.len(), CURRENT)?;
        self.wait_to_write(LiveOp::write(self.fd(), buf, CURRENT))
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.writes_on_the_spot() && self.manner != Manner::Stream {
            yield_if_due();
            return short_external_call(|| (&self.std).write_vectored(bufs));
        }
        let bufs = &bufs[..bufs.len().min(BUFFERS_MAX)];
        bufs.iter().try_for_each(|b| self.aligned(b.as_ptr(), b.len(), CURRENT))?;
        self.wait_to_write(LiveOp::writev(self.fd(), bufs, CURRENT))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&self.std).seek(to)
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(bufs)
    }
}

impl Write for File {
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

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}
