//! An I/O operation: the arguments of one system call, for a driver to carry out.
//!
//! An [`Op`] is plain data, and its raw pointers promise nothing. A [`LiveOp`] is an operation with
//! the exclusive use of its buffers: as long as the value exists, the memory that the operation
//! points to is valid, and no other code touches it (invariant *Frozen Buffer*). So only a `LiveOp`
//! can be carried out. The code that does so keeps it until the kernel no longer uses the buffers,
//! and drops it before it delivers the completion.
//!
//! What this file does not do: it carries out no operation. `linux/call` makes the system calls.

#![allow(unsafe_code)] // Frozen Buffer: an Op has raw pointers.

use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::os::fd::RawFd;

use socket2::{SockAddr, SockAddrStorage};

/// The most buffers that one call takes (`IOV_MAX`).
pub const BUFFERS_MAX: usize = 1024;

/// The most bytes that one [`Op::Receive`] takes.
pub const RECEIVE_MAX: usize = 2048;

/// An offset that means the file's current position.
pub const CURRENT: u64 = u64::MAX;

/// One operation. Descriptors of sockets and pipes are in non-blocking mode, and stay open until
/// the operation has completed. If one is closed early, the operation fails with `-EBADF`, does not
/// complete until it is cancelled, or is carried out on the file that has the number by then.
///
/// The result is that of the system call of the same name: the byte count, the new descriptor or 0,
/// or `-errno`. The result of a poll is a mask of `poll(2)` events. `MSG_NOSIGNAL` is always
/// implied, `MSG_WAITALL` is not obeyed by every back end, and with `MSG_DONTWAIT` the result may
/// be `-EAGAIN`. Several operations on one side of a descriptor may be pending at the same time.
/// epoll and the synchronous driver carry them out in the order of arrival, a ring in any order.
#[derive(Debug, Clone, Copy)]
// The library connects sockets without this operation, so only the drivers and their tests use it.
#[allow(dead_code)]
#[allow(missing_docs)] // The fields are the arguments of the system calls.
pub enum Op {
    /// Completes when the descriptor is readable, hung up or in error. Holds no buffer.
    PollIn { fd: RawFd },
    /// Completes when the descriptor is writable, hung up or in error. Holds no buffer.
    PollOut { fd: RawFd },
    /// `recv(2)`.
    Recv { fd: RawFd, buf: *mut u8, len: usize, flags: i32 },
    /// `recv(2)` on a stream into memory that the driver chooses when bytes have arrived. They are
    /// put into the vector, at most `most` and at most [`RECEIVE_MAX`]. So an operation that waits
    /// needs no buffer.
    Receive { fd: RawFd, into: *mut Vec<u8>, most: usize },
    /// `send(2)`.
    Send { fd: RawFd, buf: *const u8, len: usize, flags: i32 },
    /// `recvmsg(2)`. The buffer is the header with all that it points to.
    RecvMsg { fd: RawFd, msg: *mut libc::msghdr, flags: i32 },
    /// `sendmsg(2)`. The buffer is the header with all that it points to.
    SendMsg { fd: RawFd, msg: *const libc::msghdr, flags: i32 },
    /// `accept4(2)` without an address. The result is the new descriptor.
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
    /// Calls `run(data)` once, on a thread that may block. This is for calls that have no
    /// asynchronous form. The buffer is `data`.
    Call { run: unsafe fn(*mut ()) -> i32, data: *mut () },
}

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
            | Op::Receive { fd, .. }
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

    /// Returns the side of the descriptor that must be ready for the operation to proceed.
    pub fn side(&self) -> Side {
        match self {
            Op::PollIn { .. }
            | Op::Recv { .. }
            | Op::Receive { .. }
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

    /// Returns whether the operation is certainly on a regular file, or is a call. No readiness
    /// event says when such an operation can proceed, so a thread that may block or a ring carries
    /// it out.
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

/// An operation with the exclusive use of its buffers, which are borrowed for `'a`. It is neither
/// copied nor shared, so its holder may carry it out.
#[derive(Debug)]
pub struct LiveOp<'a> {
    op: Op,
    buffers: PhantomData<&'a mut [u8]>,
}

// SAFETY: Frozen Buffer: no other code uses the bytes that it may write, and the bytes that it only
// reads may be shared; a closure that it calls is `Send`.
unsafe impl Send for LiveOp<'_> {}

impl Deref for LiveOp<'_> {
    type Target = Op;

    fn deref(&self) -> &Op {
        &self.op
    }
}

impl LiveOp<'static> {
    /// Makes an operation that waits until a side of a descriptor is ready.
    pub fn poll(fd: RawFd, side: Side) -> LiveOp<'static> {
        LiveOp::with(match side {
            Side::In => Op::PollIn { fd },
            Side::Out => Op::PollOut { fd },
        })
    }

    /// Makes an operation that accepts a connection, without returning its address.
    pub fn accept(fd: RawFd, flags: i32) -> LiveOp<'static> {
        LiveOp::with(Op::Accept { fd, flags })
    }

    /// Makes an operation that writes a file's data to its disk, and, unless `data_only`, its
    /// metadata, too.
    pub fn fsync(fd: RawFd, data_only: bool) -> LiveOp<'static> {
        LiveOp::with(Op::Fsync { fd, data_only })
    }
}

impl<'a> LiveOp<'a> {
    /// Private, because the pointers in `op` must come from borrows for `'a`; the constructors
    /// below see to that.
    fn with(op: Op) -> LiveOp<'a> {
        LiveOp { op, buffers: PhantomData }
    }

    /// Makes an operation from raw pointers.
    ///
    /// # Safety
    /// *Frozen Buffer*: until the value is dropped, every pointer in `op` is valid for what the
    /// operation does, on every thread, and no other code touches what it points at.
    pub unsafe fn of(op: Op) -> LiveOp<'a> {
        LiveOp::with(op)
    }

    /// Extends the lifetime of the borrowed buffers to `'static`.
    ///
    /// # Safety
    /// *Frozen Buffer*: the caller does not return to its caller before the value has been dropped.
    pub unsafe fn untied(self) -> LiveOp<'static> {
        LiveOp::with(self.op)
    }

    /// Shortens a transfer to at most this many bytes. Other operations are not changed.
    pub fn shorten(&mut self, to: usize) {
        if let Op::Read { len, .. }
        | Op::Write { len, .. }
        | Op::Recv { len, .. }
        | Op::Receive { most: len, .. }
        | Op::Send { len, .. } = &mut self.op
        {
            *len = to.min(*len);
        }
    }

    /// Puts received bytes into the vector of an [`Op::Receive`], in place of its contents.
    pub fn fill(&mut self, bytes: Vec<u8>) {
        let Op::Receive { into, .. } = self.op else { unreachable!("it has a buffer") };
        // SAFETY: Frozen Buffer: the vector is valid, and no other code uses it.
        unsafe { *into = bytes };
    }

    /// Returns the same operation for an attempt: a send or a receive that would wait fails with
    /// `-EAGAIN` instead. Others are not changed.
    pub fn attempt(&mut self) -> LiveOp<'_> {
        let mut op = self.op;
        if let Op::Recv { flags, .. }
        | Op::Send { flags, .. }
        | Op::RecvMsg { flags, .. }
        | Op::SendMsg { flags, .. } = &mut op
        {
            *flags |= libc::MSG_DONTWAIT;
        }
        LiveOp::with(op)
    }

    /// Makes an operation that receives bytes.
    pub fn recv(fd: RawFd, buf: &'a mut [u8], flags: i32) -> LiveOp<'a> {
        LiveOp::with(Op::Recv { fd, buf: buf.as_mut_ptr(), len: buf.len(), flags })
    }

    /// Makes an operation that sends bytes.
    pub fn send(fd: RawFd, buf: &'a [u8], flags: i32) -> LiveOp<'a> {
        LiveOp::with(Op::Send { fd, buf: buf.as_ptr(), len: buf.len(), flags })
    }

    /// Makes an operation that receives a message into the message's buffers.
    pub fn recv_msg(fd: RawFd, into: &'a mut Message<&mut [u8]>, flags: i32) -> LiveOp<'a> {
        LiveOp::with(Op::RecvMsg { fd, msg: into.filled(), flags })
    }

    /// Makes an operation that sends a message.
    pub fn send_msg(fd: RawFd, from: &'a mut Message<&[u8]>, flags: i32) -> LiveOp<'a> {
        LiveOp::with(Op::SendMsg { fd, msg: from.filled(), flags })
    }

    /// Makes an operation that reads at a position of a file.
    pub fn read(fd: RawFd, buf: &'a mut [u8], offset: u64) -> LiveOp<'a> {
        LiveOp::with(Op::Read { fd, buf: buf.as_mut_ptr(), len: buf.len(), offset })
    }

    /// Makes an operation that writes at a position of a file.
    pub fn write(fd: RawFd, buf: &'a [u8], offset: u64) -> LiveOp<'a> {
        LiveOp::with(Op::Write { fd, buf: buf.as_ptr(), len: buf.len(), offset })
    }

    /// Makes an operation that reads at a position into several buffers, at most [`BUFFERS_MAX`].
    /// std guarantees that they have the layout of iovecs.
    pub fn readv(fd: RawFd, bufs: &'a mut [IoSliceMut<'_>], offset: u64) -> LiveOp<'a> {
        let (iov, cnt) = (bufs.as_mut_ptr().cast(), bufs.len().min(BUFFERS_MAX) as u32);
        LiveOp::with(Op::Readv { fd, iov, cnt, offset })
    }

    /// Makes an operation that writes several buffers, at most [`BUFFERS_MAX`], at a position.
    pub fn writev(fd: RawFd, bufs: &'a [IoSlice<'_>], offset: u64) -> LiveOp<'a> {
        let (iov, cnt) = (bufs.as_ptr().cast(), bufs.len().min(BUFFERS_MAX) as u32);
        LiveOp::with(Op::Writev { fd, iov, cnt, offset })
    }

    /// Makes an operation that calls this closure, on a thread that may block.
    pub fn call<F: FnMut() -> i32 + Send>(f: &'a mut F) -> LiveOp<'a> {
        /// # Safety
        /// *Frozen Buffer*: `data` is an `F` that no other thread touches.
        unsafe fn run<F: FnMut() -> i32>(data: *mut ()) -> i32 {
            // SAFETY: Frozen Buffer: this function's contract.
            unsafe { (*data.cast::<F>())() }
        }
        LiveOp::with(Op::Call { run: run::<F>, data: std::ptr::from_mut(f).cast() })
    }
}

/// The argument of `recvmsg(2)` and `sendmsg(2)`: buffers, and an address if one is asked for. `B`
/// is the type of the borrowed buffers: `&mut [u8]` or `&[u8]`.
pub struct Message<B> {
    header: libc::msghdr,
    /// The place where the kernel writes the sender's address, if that is asked for.
    sender: Option<SockAddrStorage>,
    buffers: PhantomData<B>,
}

impl<B> Message<B> {
    fn new(iov: *mut libc::iovec, buffers: usize) -> Message<B> {
        // SAFETY: Plain Data: zeros, so it points at nothing.
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        header.msg_iov = iov;
        header.msg_iovlen = buffers.min(BUFFERS_MAX) as _;
        Message { header, sender: None, buffers: PhantomData }
    }

    /// Returns the header, which points at this message's place for the address.
    fn filled(&mut self) -> *mut libc::msghdr {
        if let Some(sender) = &mut self.sender {
            self.header.msg_name = std::ptr::from_mut(sender).cast();
            self.header.msg_namelen = sender.size_of();
        }
        &mut self.header
    }
}

impl<'b> Message<&'b mut [u8]> {
    /// Makes a message that is received into these buffers, which std lays out as iovecs.
    pub fn into(bufs: &'b mut [IoSliceMut<'_>]) -> Message<&'b mut [u8]> {
        Message::new(bufs.as_mut_ptr().cast(), bufs.len())
    }

    /// Asks for the sender's address.
    pub fn with_sender(mut self) -> Message<&'b mut [u8]> {
        self.sender = Some(SockAddrStorage::zeroed());
        self
    }

    /// Returns the sender's address, if the message has been received and has one.
    pub fn sender(self) -> Option<SockAddr> {
        let sender = self.sender?;
        let len = self.header.msg_namelen.min(sender.size_of());
        if (len as usize) < size_of::<libc::sa_family_t>() {
            return None;
        }
        // SAFETY: Own Memory: zeros, or what the kernel has written there: an address this long.
        Some(unsafe { SockAddr::new(sender, len) })
    }
}

impl<'b> Message<&'b [u8]> {
    /// Makes a message that is sent from these buffers.
    pub fn from(bufs: &'b [IoSlice<'_>]) -> Message<&'b [u8]> {
        Message::new(bufs.as_ptr().cast_mut().cast(), bufs.len())
    }

    /// Sets where it goes.
    pub fn to(mut self, to: &'b SockAddr) -> Message<&'b [u8]> {
        (self.header.msg_name, self.header.msg_namelen) = (to.as_ptr().cast_mut().cast(), to.len());
        self
    }
}
