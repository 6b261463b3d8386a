//! The plain system calls of the operations: try one now, without blocking.
//!
//! [`try_now`] performs an operation immediately, and says whether it ended or would have blocked.
//! The epoll driver, the synchronous driver and the file helpers use it. This file also has the
//! three calls that wait: `epoll_pwait2`, its predecessor with milliseconds, and `ppoll`.
//!
//! Invariants
//! * *Frozen Buffer*: the pointers in a [`LiveOp`] are valid as long as it exists.
//! * *Plain Call*: apart from that, the kernel writes only into locals and slices borrowed for the
//!   call.
//!
//! A wrong descriptor number leads to an error value, never to undefined behaviour. So these
//! functions take plain numbers.

#![allow(unsafe_code)] // Named invariants "Frozen Buffer" and "Plain Call", stated above.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use crate::os::driver::{CURRENT, LiveOp, Op, Side};
use crate::os::op::RECEIVE_MAX;

/// The result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tried {
    /// The operation has ended. Its result; `-errno` if it failed.
    Finished(i32),
    /// The operation cannot proceed yet. Try again when the descriptor is ready.
    WouldBlock,
}

/// Performs an operation if that is possible without blocking. Operations on regular files count as
/// never blocking here; a caller that must not wait for a disk hands them to the file helpers.
pub fn try_now(op: &mut LiveOp<'_>) -> Tried {
    if op.is_poll() {
        return match poll_one(op.fd(), op.side()) {
            0 => Tried::WouldBlock,
            events => Tried::Finished(events),
        };
    }
    if let Op::Call { run, data } = **op {
        // SAFETY: Frozen Buffer: `data` is what `run` takes, and no other code uses it.
        return Tried::Finished(unsafe { run(data) });
    }
    loop {
        let result = match **op {
            Op::Receive { fd, most, .. } => receive(fd, most, op),
            _ => raw_call(op),
        };
        if result >= 0 {
            return Tried::Finished(i32::try_from(result).unwrap_or(i32::MAX));
        }
        let errno = last_errno();
        if errno != libc::EINTR {
            return judge(op, errno);
        }
    }
}

/// Decides whether this error ends the operation.
fn judge(op: &Op, errno: i32) -> Tried {
    match (op, errno) {
        // The attempt to connect is in progress. When the socket is writable, the same call returns
        // the result. EAGAIN means something else: the backlog of a Unix socket is full, which no
        // event reports.
        (Op::Connect { .. }, libc::EINPROGRESS | libc::EALREADY) => Tried::WouldBlock,
        (Op::Connect { .. }, _) => Tried::Finished(-errno),
        (_, libc::EAGAIN) if !asked_not_to_wait(op) => Tried::WouldBlock,
        _ => Tried::Finished(-errno),
    }
}

/// Returns the user id of the process at the other end of a Unix-domain connection.
pub fn peer_user(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of_val(&peer) as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    let place = std::ptr::from_mut(&mut peer).cast();
    // SAFETY: Plain Call: the kernel writes into two locals.
    let failed = unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, place, &mut len) };
    if failed == 0 { Ok(peer.uid) } else { Err(io::Error::last_os_error()) }
}

/// What a simulated network needs from its sockets.
#[cfg(feature = "sim")]
pub mod simulated {
    use std::os::fd::RawFd;

    /// Breaks a connection in both directions.
    pub fn reset(fd: RawFd) {
        // SAFETY: Plain Call: the call takes numbers only.
        unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
    }

    /// Returns the abstract name of the socket that this one is connected to.
    pub fn peer_name(fd: RawFd) -> Option<String> {
        abstract_name(fd, libc::getpeername)
    }

    /// Returns the abstract name of this socket.
    pub fn own_name(fd: RawFd) -> Option<String> {
        abstract_name(fd, libc::getsockname)
    }

    fn abstract_name(
        fd: RawFd,
        ask: unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut libc::socklen_t) -> i32,
    ) -> Option<String> {
        let mut name = libc::sockaddr_un { sun_family: 0, sun_path: [0; 108] };
        let mut len = size_of_val(&name) as libc::socklen_t;
        // SAFETY: Plain Call: the kernel writes into two locals.
        let failed = unsafe { ask(fd, std::ptr::from_mut(&mut name).cast(), &mut len) } != 0;
        let family = size_of_val(&name.sun_family);
        let path = name.sun_path.get(..(len as usize).checked_sub(family)?)?;
        if failed || i32::from(name.sun_family) != libc::AF_UNIX || path.first() != Some(&0) {
            return None;
        }
        String::from_utf8(path[1..].iter().map(|byte| *byte as u8).collect()).ok()
    }
}

/// Returns whether the operation's own flags contain `MSG_DONTWAIT`.
pub fn asked_not_to_wait(op: &Op) -> bool {
    match op {
        Op::Recv { flags, .. }
        | Op::Send { flags, .. }
        | Op::RecvMsg { flags, .. }
        | Op::SendMsg { flags, .. } => flags & libc::MSG_DONTWAIT != 0,
        _ => false,
    }
}

/// Receives into a buffer on the stack, and passes the bytes on to the operation. Not inlined: the
/// buffer would make all other operations of a waiting worker reach another page of its stack.
#[inline(never)]
fn receive(fd: RawFd, most: usize, op: &mut LiveOp<'_>) -> isize {
    let mut buf = [MaybeUninit::<u8>::uninit(); RECEIVE_MAX];
    let len = most.min(RECEIVE_MAX);
    // SAFETY: Own Memory: a local that has room for `len` bytes.
    let result = unsafe { libc::recv(fd, buf.as_mut_ptr().cast(), len, libc::MSG_DONTWAIT) };
    if let Ok(count) = usize::try_from(result) {
        // SAFETY: Own Memory: the kernel has written the first `count` bytes of the local.
        op.fill(unsafe { std::slice::from_raw_parts(buf.as_ptr().cast::<u8>(), count) }.to_vec());
    }
    result
}

/// Makes the operation's system call once.
fn raw_call(op: &mut LiveOp<'_>) -> isize {
    const NOW: i32 = libc::MSG_DONTWAIT;
    const SEND_NOW: i32 = NOW | libc::MSG_NOSIGNAL;
    // SAFETY: Frozen Buffer: each call gets the pointers and lengths of its operation.
    unsafe {
        match **op {
            Op::PollIn { .. } | Op::PollOut { .. } => unreachable!("polls are tried by poll(2)"),
            Op::Call { .. } => unreachable!("calls are made, not tried"),
            Op::Receive { .. } => unreachable!("it has a function of its own"),
            Op::Recv { fd, buf, len, flags } => libc::recv(fd, buf.cast(), len, flags | NOW),
            Op::Send { fd, buf, len, flags } => libc::send(fd, buf.cast(), len, flags | SEND_NOW),
            Op::RecvMsg { fd, msg, flags } => libc::recvmsg(fd, msg, flags | NOW),
            Op::SendMsg { fd, msg, flags } => libc::sendmsg(fd, msg, flags | SEND_NOW),
            Op::Accept { fd, flags } => {
                libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), flags) as isize
            }
            Op::Connect { fd, addr, len } => libc::connect(fd, addr, len) as isize,
            Op::Read { fd, buf, len, offset: CURRENT } => libc::read(fd, buf.cast(), len),
            Op::Read { fd, buf, len, offset } => {
                libc::pread(fd, buf.cast(), len, offset as libc::off_t)
            }
            Op::Write { fd, buf, len, offset: CURRENT } => libc::write(fd, buf.cast(), len),
            Op::Write { fd, buf, len, offset } => {
                libc::pwrite(fd, buf.cast(), len, offset as libc::off_t)
            }
            Op::Readv { fd, iov, cnt, offset: CURRENT } => libc::readv(fd, iov, cnt as i32),
            Op::Readv { fd, iov, cnt, offset } => {
                libc::preadv(fd, iov, cnt as i32, offset as libc::off_t)
            }
            Op::Writev { fd, iov, cnt, offset: CURRENT } => libc::writev(fd, iov, cnt as i32),
            Op::Writev { fd, iov, cnt, offset } => {
                libc::pwritev(fd, iov, cnt as i32, offset as libc::off_t)
            }
            Op::Fsync { fd, data_only: true } => libc::fdatasync(fd) as isize,
            Op::Fsync { fd, data_only: false } => libc::fsync(fd) as isize,
        }
    }
}

/// Returns the events of `poll(2)` that a side waits for.
pub fn poll_events(side: Side) -> i16 {
    match side {
        Side::In => libc::POLLIN | libc::POLLRDHUP,
        Side::Out => libc::POLLOUT,
    }
}

/// Returns the events for which one side of a descriptor is ready now; 0 for none, or `-EBADF`.
pub fn poll_one(fd: RawFd, side: Side) -> i32 {
    let mut one = [libc::pollfd { fd, events: poll_events(side), revents: 0 }];
    match poll(&mut one, Some(0)) {
        Err(errno) => -errno,
        Ok(_) if one[0].revents & libc::POLLNVAL != 0 => -libc::EBADF,
        Ok(_) => i32::from(one[0].revents),
    }
}

/// Calls `ppoll(2)` with a timeout in nanoseconds. If a signal interrupts it, nothing is ready.
///
/// # Errors
///
/// The errno.
pub fn poll(set: &mut [libc::pollfd], timeout_ns: Option<u64>) -> Result<usize, i32> {
    let ts = timeout_ns.map(timespec);
    let ts = ts.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: Plain Call: `set` and `ts` are borrowed for the whole call.
    let n =
        unsafe { libc::ppoll(set.as_mut_ptr(), set.len() as libc::nfds_t, ts, std::ptr::null()) };
    counted(n)
}

/// Adds, changes or removes the registration of `fd`; `ctl` says which.
///
/// # Errors
///
/// The errno.
pub fn epoll_ctl(epoll: RawFd, ctl: i32, fd: RawFd, events: u32, data: u64) -> Result<(), i32> {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: Plain Call: `event` is a local of the right type.
    match unsafe { libc::epoll_ctl(epoll, ctl, fd, &mut event) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Calls `epoll_pwait2(2)`. If a signal interrupts it, it returns no events.
///
/// # Errors
///
/// The errno; `ENOSYS` before Linux 5.11, where the caller must use [`epoll_wait_ms`] instead.
pub fn epoll_wait_ns(
    epoll: RawFd,
    events: &mut [libc::epoll_event],
    timeout_ns: Option<u64>,
) -> Result<usize, i32> {
    let ts = timeout_ns.map(timespec);
    let ts = ts.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: Plain Call: `events` and `ts` are borrowed for the whole call. (The call is made by
    // number because older C libraries have no function for it.)
    let n = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll,
            events.as_mut_ptr(),
            events.len() as i32,
            ts,
            std::ptr::null::<libc::sigset_t>(),
            0usize,
        )
    };
    counted(n as i32)
}

/// Calls `epoll_wait(2)`, with the timeout rounded up to milliseconds.
///
/// # Errors
///
/// The errno.
pub fn epoll_wait_ms(
    epoll: RawFd,
    events: &mut [libc::epoll_event],
    timeout_ns: Option<u64>,
) -> Result<usize, i32> {
    let ms = timeout_ns.map_or(-1, |ns| i32::try_from(ns.div_ceil(1_000_000)).unwrap_or(i32::MAX));
    // SAFETY: Plain Call: `events` is borrowed for the whole call.
    let n = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), events.len() as i32, ms) };
    counted(n)
}

fn counted(n: i32) -> Result<usize, i32> {
    match usize::try_from(n) {
        Ok(n) => Ok(n),
        Err(_) => match last_errno() {
            libc::EINTR => Ok(0),
            errno => Err(errno),
        },
    }
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    }
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
