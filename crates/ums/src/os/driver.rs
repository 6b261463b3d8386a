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
//! threads, and plain synchronous calls. [`open`] probes and steps down, and says why.
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
//! It does not do: deadlines (the timer list cancels), fairness between sockets, buffer ownership.

#![allow(unsafe_code)] // Named invariant "Frozen Buffer", stated above: Op carries raw pointers.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use super::linux::{epoll::Epoll, sync::Sync, uring::Uring};

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
/// `-EAGAIN`.
#[derive(Debug, Clone, Copy)]
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
}

// SAFETY: Frozen Buffer: the pointers are valid on whichever thread carries the operation out, and
// nobody else touches what they point to.
unsafe impl Send for Op {}

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
        }
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
            | Op::Fsync { .. } => Side::Out,
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

    /// Operations submitted and not yet delivered.
    fn pending(&self) -> usize;
}

/// Ends a driver's wait from any thread. A wake that comes before the wait ends that one.
#[derive(Debug, Clone)]
pub struct Waker {
    bell: Arc<OwnedFd>,
}

impl Waker {
    /// A new bell. Its descriptor counts wakes; drivers that see edges need not read it.
    pub(super) fn new() -> io::Result<Waker> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Waker { bell: Arc::new(bell) })
    }

    /// Rings: one `write(2)`. Never blocks and does not fail; a full counter rings as well.
    pub fn wake(&self) {
        // The only possible error is EAGAIN after 2^64 - 2 rings without a driver's drop.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }

    /// Empties the counter, for a driver that sees levels instead of edges. Called by the driver
    /// alone, before it looks at what the wake was for.
    pub(super) fn silence(&self) {
        let _ = rustix::io::read(&*self.bell, &mut [0u8; 8]);
    }

    /// The descriptor a driver watches.
    pub(super) fn fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }
}

/// Which back end to open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// The best that this machine and this owner allow.
    #[default]
    Auto,
    /// io_uring or an error; epoll for an owner with many threads (a ring belongs to one thread).
    Uring,
    /// epoll or an error.
    Epoll,
    /// Plain synchronous calls and `poll(2)`.
    Sync,
}

impl std::str::FromStr for Choice {
    type Err = io::Error;

    fn from_str(text: &str) -> io::Result<Choice> {
        match text {
            "auto" | "" => Ok(Choice::Auto),
            "uring" | "io_uring" => Ok(Choice::Uring),
            "epoll" => Ok(Choice::Epoll),
            "sync" => Ok(Choice::Sync),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("no I/O driver is called {text:?}; known are auto, uring, epoll and sync"),
            )),
        }
    }
}

/// Who will call the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// The calling thread alone, for the driver's whole life (fiber workers).
    OneThread,
    /// Any thread that holds the baton (thread workers).
    ManyThreads,
}

/// Opens a driver for the calling thread's scheduler. The environment variable `UMS_IO` (`auto`,
/// `uring`, `epoll`, `sync`) overrides `choice`.
///
/// # Errors
///
/// When a forced back end is denied here, with the reason; when `UMS_IO` names none; when the
/// process is out of descriptors.
///
/// ```text
/// let mut io = open(Choice::Auto, Owner::ManyThreads)?;
/// let mut done = Vec::new();
/// io.waker().wake();
/// io.wait(None, &mut done);
/// assert!(done.is_empty(), "a wake ends the wait and is no completion");
/// ```
pub fn open(choice: Choice, owner: Owner) -> io::Result<Box<dyn Driver>> {
    let choice = match std::env::var("UMS_IO") {
        Ok(forced) => forced.parse()?,
        Err(_) => choice,
    };
    open_as(choice, owner)
}

/// As [`open`], without the environment.
///
/// # Errors
///
/// As [`open`].
pub fn open_as(choice: Choice, owner: Owner) -> io::Result<Box<dyn Driver>> {
    const SHARED: &str = "a ring belongs to one thread, and this scheduler has many";
    match (choice, owner) {
        (Choice::Sync, _) => Ok(Box::new(Sync::new("it was asked for".into())?)),
        (Choice::Epoll, _) => Ok(Box::new(Epoll::new("it was asked for".into())?)),
        (Choice::Uring, Owner::OneThread) => Ok(Box::new(Uring::new()?)),
        (Choice::Uring, Owner::ManyThreads) => Ok(Box::new(Epoll::new(SHARED.into())?)),
        (Choice::Auto, Owner::ManyThreads) => epoll_or_sync(SHARED.into()),
        (Choice::Auto, Owner::OneThread) => match Uring::new() {
            Ok(ring) => Ok(Box::new(ring)),
            Err(why) => epoll_or_sync(format!("io_uring: {why}")),
        },
    }
}

fn epoll_or_sync(why: String) -> io::Result<Box<dyn Driver>> {
    match Epoll::new(why.clone()) {
        Ok(epoll) => Ok(Box::new(epoll)),
        Err(error) => Ok(Box::new(Sync::new(format!("{why}; epoll: {error}"))?)),
    }
}

#[cfg(test)]
mod tests;
