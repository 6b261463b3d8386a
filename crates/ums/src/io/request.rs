//! I/O request objects: an operation, the buffers it uses, and a completion routine.
//!
//! ```text
//!   Request::read(file, buffer, offset, routine)       owns all of them
//!        | submit
//!        +--> completed at once: the routine has run when submit returns
//!        +--> on the I/O list of the submitting scheduler
//!                 | completes, or is cancelled, or its scheduler ends
//!                 +--> leaves the list, then the routine runs, once, on a worker that yields
//! ```
//!
//! Invariant *Frozen Buffer*: the memory that the operation points at belongs to the routine, which
//! is kept until the completion. The memory stays in its place when the routine is moved.

#![allow(unsafe_code)] // Named invariant "Frozen Buffer", stated above.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};

use super::{decode, on_thread, submit};
use crate::os::clock::NEVER;
use crate::os::driver::{LiveOp, Op};
use crate::record::reason::WaitReason;
use crate::scheduler::lists::io_list::CompletionRoutine;
use crate::scheduler::{Scheduler, away, here};
use crate::wait::{Letter, seeing_none, thread_waiter};

pub use crate::os::driver::CURRENT;

/// Memory that an I/O request can own.
///
/// # Safety
/// `start` points at `size` bytes that are initialised, belong to the buffer alone, and stay where
/// they are when the buffer itself moves.
pub unsafe trait Buffer: Send + 'static {
    /// Returns the address of the first byte.
    fn start(&mut self) -> *mut u8;
    /// Returns the number of bytes.
    fn size(&self) -> usize;
}

// SAFETY: Contract: a vector's elements lie on the heap, and its first `len` elements are
// initialised.
unsafe impl Buffer for Vec<u8> {
    fn start(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn size(&self) -> usize {
        self.len()
    }
}

/// An I/O request that has not been submitted. It owns its file and its buffers until its
/// completion routine gets the buffers back.
///
/// The routine runs on the stack of another worker, while that worker yields. It may queue
/// requests, submit I/O and release locks; if it waits, it panics. When its scheduler shuts down,
/// outstanding requests are cancelled and their routines run before the shutdown returns; a routine
/// must not submit new requests then.
///
/// The offset [`CURRENT`] means the file's own position. It is the only valid offset for pipes and
/// sockets, which must be in non-blocking mode.
///
/// ```
/// use std::sync::mpsc;
/// use ums::io::Request;
///
/// let mut file = tempfile::tempfile()?;
/// std::io::Write::write_all(&mut file, b"hello")?;
/// let (tell, told) = mpsc::channel();
/// let node = ums::Node::builder().schedulers(1).build()?;
/// node.run(move || {
///     let routine = move |result: std::io::Result<usize>, buffer: Vec<u8>| {
///         tell.send(buffer[..result.unwrap()].to_vec()).unwrap();
///     };
///     Request::read(file, vec![0; 16], 0, routine).submit();
/// });
/// assert_eq!(told.recv()?, b"hello"); // a shutdown would cancel outstanding requests
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a request does nothing until it is submitted"]
pub struct Request {
    // Dropped first, because the routine owns its buffers.
    op: LiveOp<'static>,
    routine: CompletionRoutine,
}

/// Several buffers and the array of pointers that describes them to the kernel.
struct Parts<B> {
    buffers: Vec<B>,
    iov: Vec<libc::iovec>,
}

// SAFETY: Frozen Buffer: the vectors of pointers point into the buffers, which are Send.
unsafe impl<B: Send> Send for Parts<B> {}

impl<B: Buffer> Parts<B> {
    fn new(mut buffers: Vec<B>) -> Parts<B> {
        let part = |b: &mut B| libc::iovec { iov_base: b.start().cast(), iov_len: b.size() };
        let iov = buffers.iter_mut().map(part).collect();
        Parts { buffers, iov }
    }
}

impl Request {
    /// Creates a request that reads into the buffer.
    pub fn read<F, B, R>(file: F, mut buffer: B, offset: u64, routine: R) -> Request
    where
        F: AsFd + Send + 'static,
        B: Buffer,
        R: FnOnce(io::Result<usize>, B) + Send + 'static,
    {
        let fd = file.as_fd().as_raw_fd();
        let op = Op::Read { fd, buf: buffer.start(), len: buffer.size(), offset };
        Request::of(op, file, buffer, routine)
    }

    /// Creates a request that writes the contents of the buffer.
    pub fn write<F, B, R>(file: F, mut buffer: B, offset: u64, routine: R) -> Request
    where
        F: AsFd + Send + 'static,
        B: Buffer,
        R: FnOnce(io::Result<usize>, B) + Send + 'static,
    {
        let fd = file.as_fd().as_raw_fd();
        let op = Op::Write { fd, buf: buffer.start(), len: buffer.size(), offset };
        Request::of(op, file, buffer, routine)
    }

    /// Creates a request that reads into several buffers, one after another.
    pub fn read_scatter<F, B, R>(file: F, buffers: Vec<B>, offset: u64, routine: R) -> Request
    where
        F: AsFd + Send + 'static,
        B: Buffer,
        R: FnOnce(io::Result<usize>, Vec<B>) + Send + 'static,
    {
        let parts = Parts::new(buffers);
        let (fd, iov) = (file.as_fd().as_raw_fd(), parts.iov.as_ptr());
        let op = Op::Readv { fd, iov, cnt: parts.iov.len() as u32, offset };
        Request::of(op, file, parts, |result, parts| routine(result, parts.buffers))
    }

    /// Creates a request that writes the contents of several buffers, one after another.
    pub fn write_gather<F, B, R>(file: F, buffers: Vec<B>, offset: u64, routine: R) -> Request
    where
        F: AsFd + Send + 'static,
        B: Buffer,
        R: FnOnce(io::Result<usize>, Vec<B>) + Send + 'static,
    {
        let parts = Parts::new(buffers);
        let (fd, iov) = (file.as_fd().as_raw_fd(), parts.iov.as_ptr());
        let op = Op::Writev { fd, iov, cnt: parts.iov.len() as u32, offset };
        Request::of(op, file, parts, |result, parts| routine(result, parts.buffers))
    }

    /// Creates a request that accepts one connection. The new socket is in non-blocking mode and is
    /// closed on exec.
    pub fn accept<F, R>(listener: F, routine: R) -> Request
    where
        F: AsFd + Send + 'static,
        R: FnOnce(io::Result<OwnedFd>) + Send + 'static,
    {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let op = Op::Accept { fd: listener.as_fd().as_raw_fd(), flags };
        Request::of(op, listener, (), |result, ()| {
            // SAFETY: Own Memory: a new descriptor, which no other code has.
            routine(result.map(|fd| unsafe { OwnedFd::from_raw_fd(fd as i32) }))
        })
    }

    /// Creates a request that connects the socket; the buffer holds the address as `connect(2)`
    /// takes it, a `sockaddr`.
    pub fn connect<F, B, R>(socket: F, mut address: B, routine: R) -> Request
    where
        F: AsFd + Send + 'static,
        B: Buffer,
        R: FnOnce(io::Result<()>) + Send + 'static,
    {
        let fd = socket.as_fd().as_raw_fd();
        let op = Op::Connect { fd, addr: address.start().cast(), len: address.size() as u32 };
        Request::of(op, socket, address, |result, _| routine(result.map(drop)))
    }

    /// Creates a request that completes when the written data is on the disk: `fdatasync(2)`, or
    /// `fsync(2)` with `metadata`.
    pub fn sync<F, R>(file: F, metadata: bool, routine: R) -> Request
    where
        F: AsFd + Send + 'static,
        R: FnOnce(io::Result<()>) + Send + 'static,
    {
        let op = Op::Fsync { fd: file.as_fd().as_raw_fd(), data_only: !metadata };
        Request::of(op, file, (), |result, ()| routine(result.map(drop)))
    }

    /// Builds a request whose routine owns everything that the operation uses.
    fn of<F, T, R>(op: Op, file: F, buffers: T, routine: R) -> Request
    where
        F: Send + 'static,
        T: Send + 'static,
        R: FnOnce(io::Result<usize>, T) + Send + 'static,
    {
        let routine = move |result| {
            drop(file);
            routine(decode(result), buffers);
        };
        // SAFETY: Frozen Buffer: the routine owns the file and the buffers, and it is called or
        // dropped only after the operation has been dropped.
        let op = unsafe { LiveOp::of(op) };
        Request { op, routine: Box::new(routine) }
    }

    /// Submits the request to the caller's scheduler. If the operation completes at once, the
    /// routine has run when this returns; on a plain thread this is always the case. If a routine
    /// submits a request that completes at once, the next routine runs nested inside it; in a long
    /// chain it is deferred, so the nesting is bounded.
    pub fn submit(self) -> Pending {
        if here().is_none() {
            let result = on_thread(self.op, WaitReason::IO_COMPLETION, NEVER);
            let errno = |error: io::Error| -error.raw_os_error().unwrap_or(libc::EIO);
            let result = result.map_or_else(errno, |n| n as i32);
            seeing_none(|| away().unwrap_or_else(thread_waiter), || (self.routine)(result));
            return Pending { at: None };
        }
        Pending::of(submit(self.op, self.routine))
    }
}

/// Puts the receive of at most this many bytes on the I/O list of the caller's scheduler. The
/// operation has no buffer while it waits. Its routine gets the result and the bytes. Returns as
/// [`submit`] does.
///
/// # Panics
/// Panics on a plain thread.
pub(crate) fn submit_receive<R>(fd: RawFd, most: usize, routine: R) -> Option<u64>
where
    R: FnOnce(i32, Vec<u8>) + Send + 'static,
{
    // A vector with one element, because the element stays in its place when the vector is moved.
    let mut into = vec![Vec::new()];
    let op = Op::Receive { fd, into: into.as_mut_ptr(), most };
    // SAFETY: Frozen Buffer: the routine owns the vector, and it is called or dropped only after
    // the operation has been dropped.
    let op = unsafe { LiveOp::of(op) };
    submit(op, Box::new(move |result| routine(result, into.pop().unwrap_or_default())))
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Request({:?})", *self.op)
    }
}

/// A submitted request. Dropping it changes nothing.
pub struct Pending {
    at: Option<(Weak<Scheduler>, u64)>,
}

impl Pending {
    /// The request with this token of the caller's scheduler.
    pub(super) fn of(token: Option<u64>) -> Pending {
        let at = token.zip(here()).map(|(token, here)| (Arc::downgrade(&here.arc()), token));
        Pending { at }
    }

    /// Asks for the request to be cancelled; may be called from any thread. The routine still runs
    /// exactly once: with the error `ECANCELED`, or with the real result if the operation was too
    /// far along. Does nothing if the request has completed.
    pub fn cancel(&self) {
        let Some((scheduler, token)) = &self.at else { return };
        let Some(scheduler) = scheduler.upgrade() else { return };
        match here() {
            Some(here) if here.is(&scheduler) => here.with(|core| core.cancel_io(*token)),
            _ => scheduler.inbox.send(Letter::CancelIo(*token)),
        }
    }

    /// Returns whether the routine had run before `submit` returned.
    pub fn completed_at_once(&self) -> bool {
        self.at.is_none()
    }
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token = self.at.as_ref().map(|(_, token)| token);
        write!(f, "Pending({token:?})")
    }
}

/// The number of I/O requests of one scheduler, by their state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingIo {
    /// Requests on the I/O list: submitted and not completed.
    pub outstanding: usize,
    /// Of these, the requests that the kernel has finished and the scheduler has not processed yet.
    pub done: usize,
}

/// Returns the number of I/O requests of the caller's scheduler; on a plain thread both are 0.
pub fn pending_io() -> PendingIo {
    let count = |core: &mut crate::scheduler::Core| {
        let done = core.done.len() + core.driver.done();
        PendingIo { outstanding: core.io.outstanding(), done }
    };
    here().map_or_else(PendingIo::default, |scheduler| scheduler.with(count))
}
