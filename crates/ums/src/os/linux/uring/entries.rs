//! The submission entries of operations.

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::{Fd, FsyncFlags};

use crate::os::driver::Op;
use crate::os::linux::call;

/// Returns a poll for the side of the descriptor that the operation needs.
pub(super) fn poll_entry(op: &Op) -> Entry {
    let events = call::poll_events(op.side()) as u32;
    opcode::PollAdd::new(Fd(op.fd()), events).build()
}

/// Returns the submission entry of an operation whose buffer is not registered.
pub(super) fn entry(op: &Op) -> Entry {
    const QUIET: i32 = libc::MSG_NOSIGNAL;
    // Longer than the kernel transfers in one call. Shortened, as the system calls do.
    let clip = |len: usize| u32::try_from(len).unwrap_or(i32::MAX as u32);
    match *op {
        Op::PollIn { .. } | Op::PollOut { .. } => poll_entry(op),
        Op::Call { .. } => unreachable!("a call goes to the helpers"),
        Op::Receive { .. } => unreachable!("its buffer is chosen by the kernel, or it is polled"),
        Op::Recv { fd, buf, len, flags } => {
            opcode::Recv::new(Fd(fd), buf, clip(len)).flags(flags).build()
        }
        Op::Send { fd, buf, len, flags } => {
            opcode::Send::new(Fd(fd), buf, clip(len)).flags(flags | QUIET).build()
        }
        Op::RecvMsg { fd, msg, flags } => {
            opcode::RecvMsg::new(Fd(fd), msg).flags(flags as u32).build()
        }
        Op::SendMsg { fd, msg, flags } => {
            opcode::SendMsg::new(Fd(fd), msg).flags((flags | QUIET) as u32).build()
        }
        Op::Accept { fd, flags } => {
            let (addr, len) = (std::ptr::null_mut(), std::ptr::null_mut());
            opcode::Accept::new(Fd(fd), addr, len).flags(flags).build()
        }
        Op::Connect { fd, addr, len } => opcode::Connect::new(Fd(fd), addr, len).build(),
        Op::Read { fd, buf, len, offset } => {
            opcode::Read::new(Fd(fd), buf, clip(len)).offset(offset).build()
        }
        Op::Write { fd, buf, len, offset } => {
            opcode::Write::new(Fd(fd), buf, clip(len)).offset(offset).build()
        }
        Op::Readv { fd, iov, cnt, offset } => {
            opcode::Readv::new(Fd(fd), iov, cnt).offset(offset).build()
        }
        Op::Writev { fd, iov, cnt, offset } => {
            opcode::Writev::new(Fd(fd), iov, cnt).offset(offset).build()
        }
        Op::Fsync { fd, data_only } => {
            let flags = if data_only { FsyncFlags::DATASYNC } else { FsyncFlags::empty() };
            opcode::Fsync::new(Fd(fd)).flags(flags).build()
        }
    }
}
