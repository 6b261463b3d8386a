//! The near end of a pipe, in non-blocking mode: a read or write that cannot go on waits for the
//! descriptor to become ready.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, ioctl_fionbio, read, retry_on_intr, write};

use crate::current::{checkpoint_for, yield_if_due};
use crate::io::Watch;
use crate::os::driver::Side;
use crate::record::reason::WaitReason;
use crate::wait::Arm;

fn watch(end: OwnedFd) -> io::Result<Watch<OwnedFd>> {
    ioctl_fionbio(&end, true)?;
    Ok(Watch::new(end))
}

/// Calls `attempt` until it can go on; waits in between.
fn in_turn(
    watch: &Watch<OwnedFd>,
    side: Side,
    mut attempt: impl FnMut(BorrowedFd<'_>) -> rustix::io::Result<usize>,
) -> io::Result<usize> {
    loop {
        match retry_on_intr(|| attempt(watch.get_ref().as_fd())) {
            Err(Errno::AGAIN) => watch.wait(side, WaitReason::CHILD)?,
            done => return Ok(done?),
        }
    }
}

/// The end of a pipe from which bytes are read: what a child process writes.
///
/// Dropping it closes the pipe. A child that then writes to it gets `SIGPIPE`.
#[derive(Debug)]
pub struct PipeReader(Watch<OwnedFd>);

impl PipeReader {
    /// Takes the end of any pipe, and puts it into non-blocking mode.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(end: impl Into<OwnedFd>) -> io::Result<PipeReader> {
        watch(end.into()).map(PipeReader)
    }

    /// Returns the arm of a [`Select`](crate::sync::Select) that waits until a read would find
    /// bytes or the end. Only a worker can wait for it.
    pub fn readable(&self) -> Arm<'_, io::Result<()>> {
        self.0.readable()
    }
}

/// As for a socket, a read in a work request that was cancelled fails also if there are bytes.
///
/// # Errors
/// The system's error; an error whose source is a [`WaitError`](crate::WaitError) if the work
/// request was cancelled or a time limit has passed.
impl Read for &PipeReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        checkpoint_for(WaitReason::CHILD)?;
        in_turn(&self.0, Side::In, |end| read(end, &mut *buffer))
    }
}

impl Read for PipeReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl AsFd for PipeReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

/// The end of a pipe to which bytes are written: what a child process reads.
///
/// Dropping it closes the pipe, so that the child finds the end of its input.
#[derive(Debug)]
pub struct PipeWriter(Watch<OwnedFd>);

impl PipeWriter {
    /// Takes the end of any pipe, and puts it into non-blocking mode.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(end: impl Into<OwnedFd>) -> io::Result<PipeWriter> {
        watch(end.into()).map(PipeWriter)
    }

    /// Returns the arm of a [`Select`](crate::sync::Select) that waits until a write would find
    /// room or an error. Only a worker can wait for it.
    pub fn writable(&self) -> Arm<'_, io::Result<()>> {
        self.0.writable()
    }
}

/// As for a socket, a write in a work request that was cancelled still writes what there is room
/// for.
///
/// # Errors
/// `BrokenPipe` if the other end is closed; the system's error; an error whose source is a
/// [`WaitError`](crate::WaitError) if the work request was cancelled or a time limit has passed.
impl Write for &PipeWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        yield_if_due();
        in_turn(&self.0, Side::Out, |end| write(end, bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for PipeWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for PipeWriter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}
