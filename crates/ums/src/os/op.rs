//! An I/O operation: the arguments of one system call, for a driver to carry out.
//!
//! Named invariant **Frozen Buffer** (stated by [`driver`](super::driver)): every pointer in an
//! [`Op`] stays valid, and only the operation touches what it points to, until the operation's
//! completion has been delivered.
//!
//! What this file does not do: it carries nothing out. `linux/call` makes the system calls.

#![allow(unsafe_code)] // Frozen Buffer: an Op has raw pointers.

use std::os::fd::RawFd;

/// The offset that stands for the file's current position.
pub const CURRENT: u64 = u64::MAX;

/// One operation. Descriptors of sockets and pipes are in non-blocking mode, and stay open until
/// the operation has completed: if one is closed early, the operation fails with `-EBADF`, or does
/// not complete until it is cancelled.
///
/// Results follow the system call of the same name: the byte count, the new descriptor or 0, or
/// `-errno`. A poll's result is the mask of `poll(2)` events. `MSG_NOSIGNAL` is always implied,
/// `MSG_WAITALL` is not honoured by every back end, and with `MSG_DONTWAIT` the result may be
/// `-EAGAIN`. Several operations on one side of a descriptor may be pending together; epoll and
/// the synchronous driver carry them out in the order of arrival, a ring in any order.
#[derive(Debug, Clone, Copy)]
// Sockets connect by a call of their own; the drivers have it, and their tests use it.
#[allow(dead_code)]
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

// SAFETY: Frozen Buffer: the pointers are valid on the thread that carries the operation out, and
// no other touches what they point to.
unsafe impl Send for Op {}
// SAFETY: Frozen Buffer: as above; what is shared is copied before a pointer is followed, and only
// one thread follows it.
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
    /// Returns the descriptor the operation works on.
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

    /// Makes an operation that calls this closure, which must be `Send` for the thread that calls
    /// it.
    pub fn call<F: FnMut() -> i32 + Send>(f: &mut F) -> Op {
        /// # Safety
        /// Frozen Buffer: `data` is an `F` that no other thread touches.
        unsafe fn run<F: FnMut() -> i32>(data: *mut ()) -> i32 {
            // SAFETY: Frozen Buffer: our caller's promise.
            unsafe { (*data.cast::<F>())() }
        }
        Op::Call { run: run::<F>, data: std::ptr::from_mut(f).cast() }
    }

    /// Returns the side of the descriptor that must be ready for the operation to proceed.
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

    /// Returns whether the operation is certainly on a file of a disk, or a call: no event tells
    /// when it can proceed, so it is done by a thread that may block, or by a ring.
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

    /// Returns whether the operation only asks for readiness.
    pub fn is_poll(&self) -> bool {
        matches!(self, Op::PollIn { .. } | Op::PollOut { .. })
    }
}
