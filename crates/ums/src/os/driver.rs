//! The I/O driver: tokens in, completions out (U57-U66, U72-U76).
//!
//! A *driver* carries out the asynchronous operations of one scheduler. It knows nothing of
//! workers: the scheduler hands it an [`Op`] under a *token*, and later gets the token back with
//! the result, in a [`Done`].
//!
//! ```text
//!   submit(token, op) --+--> Submitted::Done(result)        completed on the spot (U66)
//!                       |
//!                       +--> Submitted::Pending --> reap(out) / wait(.., out) --> Done { token, .. }
//!                                   ^                  (a turn)  (idle)
//!   cancel(token) ------------------+   asks; the one completion still comes
//!   waker().wake()                      from any thread: ends the wait, or the next one
//! ```
//!
//! Three back ends stand behind the trait, in the order of preference: io_uring for a scheduler
//! whose baton stays on one thread, epoll with speculative calls for one whose baton moves between
//! threads, and plain synchronous calls. `linux::open` probes and steps down, and says why.
//!
//! Invariants
//! * *One Holder*: only the holder of the scheduler's baton calls a driver, so it has no locks. A
//!   [`Waker`] is the exception: any thread may ring it.
//! * *Frozen Buffer*: every pointer in an [`Op`] stays valid, and what it points to is not touched
//!   by anyone else, until the operation's completion has been delivered (or the driver, which
//!   waits for that, has been dropped).
//! * *One Completion*: a token that was answered `Pending` comes back exactly once, cancelled or
//!   not. Until then the token is not used for another operation.
//!
//! It does not do: the choice of a back end, deadlines (the timer list cancels), fairness between
//! sockets, buffer ownership.

#![allow(unsafe_code)] // Named invariant "Frozen Buffer", stated above: Op carries raw pointers.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// Tokens from here on belong to the drivers themselves.
pub const TOKEN_MAX: u64 = u64::MAX - 16;

/// The offset that means "the file's current position".
pub const CURRENT: u64 = u64::MAX;

/// One operation. Descriptors of sockets and pipes are in non-blocking mode, and stay open until
/// the operation has completed: who closes one early gets `-EBADF`, or no completion at all
/// until it is cancelled.
///
/// Results follow the system call of the same name: the byte count, the new descriptor or 0, or
/// `-errno`. A poll's result is the mask of `poll(2)` events. `MSG_NOSIGNAL` is always implied,
/// `MSG_WAITALL` is not honoured by every back end, and with `MSG_DONTWAIT` the result may be
/// `-EAGAIN`. Several operations on one side of a descriptor may be pending together; epoll and
/// the synchronous driver carry them out in the order of arrival, a ring in any order.
#[derive(Debug, Clone, Copy)]
#[allow(dead_code)] // Sockets connect by a call of their own; the drivers can, and are tested with it.
#[allow(missing_docs)] // The fields are the arguments of the system calls.
pub enum Op {
    /// Completes when the descriptor is readable, hung up or in error. Holds no buffer.
    PollIn { fd: RawFd },
    /// Completes when the descriptor is writable, hung up or in error. Holds no buffer.
    PollOut { fd: RawFd },
    /// `recv(2)`.
    Recv { fd: RawFd, buf: *mut u8, len: usize, flags: i32 },
    /// `send(2)`.
    Send { fd: RawFd, buf: *const u8, len: usize, flags: i32 },
    /// `recvmsg(2)`: the header and all that it points to is the buffer.
    RecvMsg { fd: RawFd, msg: *mut libc::msghdr, flags: i32 },
    /// `sendmsg(2)`: the header and all that it points to is the buffer.
    SendMsg { fd: RawFd, msg: *const libc::msghdr, flags: i32 },
    /// `accept4(2)` without an address: the result is the new descriptor.
    Accept { fd: RawFd, flags: i32 },
    /// `connect(2)`.
    Connect { fd: RawFd, addr: *const libc::sockaddr, len: u32 },
    /// `pread(2)`, or `read(2)` at [`CURRENT`].
    Read { fd: RawFd, buf: *mut u8, len: usize, offset: u64 },
    /// `pwrite(2)`, or `write(2)` at [`CURRENT`].
    Write { fd: RawFd, buf: *const u8, len: usize, offset: u64 },
    /// `preadv(2)`, or `readv(2)` at [`CURRENT`].
    Readv { fd: RawFd, iov: *const libc::iovec, cnt: u32, offset: u64 },
    /// `pwritev(2)`, or `writev(2)` at [`CURRENT`].
    Writev { fd: RawFd, iov: *const libc::iovec, cnt: u32, offset: u64 },
    /// `fsync(2)`, or `fdatasync(2)` with `data_only`.
    Fsync { fd: RawFd, data_only: bool },
    /// Calls `run(data)` once, on a thread that may block: what has no asynchronous form. The
    /// data is the buffer.
    Call { run: unsafe fn(*mut ()) -> i32, data: *mut () },
}

// SAFETY: Frozen Buffer: the pointers are valid on whichever thread carries the operation out, and
// nobody else touches what they point to.
unsafe impl Send for Op {}
// SAFETY: Frozen Buffer: as above; what is shared is copied before anybody follows a pointer, and
// one thread does.
unsafe impl Sync for Op {}

/// Which side of a descriptor an operation waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Readable.
    In,
    /// Writable.
    Out,
}

impl Op {
    /// The descriptor the operation works on.
    pub fn fd(&self) -> RawFd {
        match *self {
            Op::PollIn { fd }
            | Op::PollOut { fd }
            | Op::Recv { fd, .. }
            | Op::Send { fd, .. }
            | Op::RecvMsg { fd, .. }
            | Op::SendMsg { fd, .. }
            | Op::Accept { fd, .. }
            | Op::Connect { fd, .. }
            | Op::Read { fd, .. }
            | Op::Write { fd, .. }
            | Op::Readv { fd, .. }
            | Op::Writev { fd, .. }
            | Op::Fsync { fd, .. } => fd,
            Op::Call { .. } => -1,
        }
    }

    /// A call of this closure, which must be sent to the thread that makes it.
    pub fn call<F: FnMut() -> i32 + Send>(f: &mut F) -> Op {
        /// # Safety
        /// Frozen Buffer: `data` is an `F` that nobody else touches.
        unsafe fn run<F: FnMut() -> i32>(data: *mut ()) -> i32 {
            // SAFETY: Frozen Buffer: our caller's promise.
            unsafe { (*data.cast::<F>())() }
        }
        Op::Call { run: run::<F>, data: std::ptr::from_mut(f).cast() }
    }

    /// The side of the descriptor that must be ready for the operation to go on.
    pub fn side(&self) -> Side {
        match self {
            Op::PollIn { .. }
            | Op::Recv { .. }
            | Op::RecvMsg { .. }
            | Op::Accept { .. }
            | Op::Read { .. }
            | Op::Readv { .. } => Side::In,
            Op::PollOut { .. }
            | Op::Send { .. }
            | Op::SendMsg { .. }
            | Op::Connect { .. }
            | Op::Write { .. }
            | Op::Writev { .. }
            | Op::Fsync { .. }
            | Op::Call { .. } => Side::Out,
        }
    }

    /// Whether the operation is surely on a file of a disk, or a call: no event would tell when it
    /// can be done, so it is done by a thread that may block, or by a ring.
    pub fn blocks(&self) -> bool {
        match *self {
            Op::Read { offset, .. }
            | Op::Write { offset, .. }
            | Op::Readv { offset, .. }
            | Op::Writev { offset, .. } => offset != CURRENT,
            Op::Fsync { .. } | Op::Call { .. } => true,
            _ => false,
        }
    }

    /// Whether the operation only asks for readiness.
    pub fn is_poll(&self) -> bool {
        matches!(self, Op::PollIn { .. } | Op::PollOut { .. })
    }
}

/// What became of a submitted operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Submitted {
    /// It is on its way; `reap` or `wait` will return its token.
    Pending,
    /// It completed before `submit` returned (U66), with this result; the token will not come back.
    Done(i32),
}

/// One completion: the token of the operation and its result, `-errno` below zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// The token given at submission.
    pub token: u64,
    /// The result, as [`Op`] says.
    pub result: i32,
}

/// One scheduler's I/O. See the module's text for the protocol.
pub trait Driver: Send {
    /// Which back end this is: `io_uring`, `epoll` or `sync`.
    #[cfg_attr(not(test), allow(dead_code))] // The tests of the back ends ask.
    fn name(&self) -> &'static str;

    /// One sentence for people: the flags in use, and why nothing better was chosen.
    fn describe(&self) -> String;

    /// Starts an operation under a token that no pending operation has, at most [`TOKEN_MAX`].
    /// Never fails: an error is a completion.
    ///
    /// # Safety
    ///
    /// *Frozen Buffer*: every pointer in `op` is valid for what the operation does, and what it
    /// points to stays untouched until the completion of `token` has been delivered.
    unsafe fn submit(&mut self, token: u64, op: Op) -> Submitted;

    /// Asks for an end of the operation. Its completion still comes exactly once, with
    /// `-ECANCELED` or its real result. A token that is not pending is ignored.
    fn cancel(&mut self, token: u64);

    /// Whether there is something to reap or to flush. Costs a few loads (epoll: one clock read
    /// while operations are pending), never a system call. May be late, is never wrong for good.
    fn ready(&mut self) -> bool;

    /// Appends what has completed. Does not block; at most one system call when there is little
    /// to do, and none when there is nothing.
    fn reap(&mut self, out: &mut Vec<Done>);

    /// Flushes, then blocks until a completion, a wake or the timeout (U72, U75), and appends what
    /// has completed. May return early and empty-handed.
    fn wait(&mut self, timeout_ns: Option<u64>, out: &mut Vec<Done>);

    /// A handle that ends `wait` from any thread.
    fn waker(&self) -> Waker;

    /// Of the pending operations, those that the system has done and nobody has been told of (B46).
    fn done(&mut self) -> usize;

    /// Operations submitted and not yet delivered.
    #[cfg_attr(not(test), allow(dead_code))] // The tests of the back ends ask.
    fn pending(&self) -> usize;
}

/// Ends a driver's wait from any thread. A wake that comes before the wait ends that one.
#[derive(Debug, Clone)]
pub struct Waker {
    bell: Arc<OwnedFd>,
    /// What rings besides, in models: who sleeps there waits for this.
    #[cfg(loom)]
    pub heard: Arc<::loom::sync::Notify>,
}

impl Waker {
    /// A new bell. Its descriptor counts wakes; drivers that see edges need not read it.
    pub(crate) fn new() -> io::Result<Waker> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Waker {
            bell: Arc::new(bell),
            #[cfg(loom)]
            heard: Arc::new(::loom::sync::Notify::new()),
        })
    }

    /// Rings: one `write(2)`. Never blocks and does not fail; a full counter rings as well.
    pub fn wake(&self) {
        // The only possible error is EAGAIN after 2^64 - 2 rings without a driver's drop.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
        #[cfg(feature = "sim")]
        super::sim::wake(super::sim::On::Bell(self.fd()));
        #[cfg(loom)]
        self.heard.notify();
    }

    /// Empties the counter, for a driver that sees levels instead of edges. Called by the driver
    /// alone, before it looks at what the wake was for.
    pub(in crate::os) fn silence(&self) {
        let _ = rustix::io::read(&*self.bell, &mut [0u8; 8]);
    }

    /// The descriptor a driver watches.
    pub(crate) fn fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }
}
