//! The board of the I/O list: which I/O requests are outstanding, for any thread to read.
//!
//! Only the baton's holder may read the I/O list, so views read the board. The holder writes a
//! place of the board when a request goes on the list, and wipes it when the request leaves. A
//! place has the same number as the request's slot in the list.
//!
//! ```text
//!   chunk 0: 64 places | chunk 1: 128 | chunk 2: 256 | ...    made when needed, never moved
//! ```
//!
//! The token of a place is written last and wiped first. A reader loads the token before and after
//! the rest. If the token has changed meanwhile, the place has been wiped or reused, and the reader
//! skips it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::os::driver::{CURRENT, Op};

const FIRST_CHUNK: usize = 64;
/// Each chunk is twice as large as the one before, so this many hold all slots that a token can
/// name.
const CHUNKS: usize = 27;

/// The outstanding I/O requests of one scheduler.
#[derive(Default)]
pub(crate) struct IoBoard {
    chunks: [OnceLock<Box<[Place]>>; CHUNKS],
}

#[derive(Default)]
struct Place {
    /// 0 if the place is empty.
    token: AtomicU64,
    /// The operation's number in the upper 32 bits, the descriptor in the lower 32 bits.
    what: AtomicU64,
    offset: AtomicU64,
    since: AtomicU64,
}

/// A request that was outstanding when it was read.
pub(crate) struct OutstandingIo {
    pub token: u64,
    pub operation: &'static str,
    pub fd: Option<i32>,
    pub offset: Option<u64>,
    /// When it was submitted, in ticks.
    pub since: u64,
}

impl IoBoard {
    /// Writes a request that goes on the list. Only the baton's holder calls this.
    pub fn put(&self, token: u64, op: &Op, now: u64) {
        let Some(place) = self.place(token, true) else { return };
        let what = u64::from(number(op)) << 32 | u64::from(op.fd() as u32);
        place.what.store(what, Ordering::Relaxed);
        place.offset.store(offset(op), Ordering::Relaxed);
        place.since.store(now, Ordering::Relaxed);
        place.token.store(token, Ordering::Release);
    }

    /// Removes a request that leaves the list. Only the baton's holder calls this.
    pub fn wipe(&self, token: u64) {
        if let Some(place) = self.place(token, false) {
            place.token.store(0, Ordering::Relaxed);
            // What is written here next must not be seen together with the old token.
            fence(Ordering::Release);
        }
    }

    /// Returns the requests on the board.
    pub fn read(&self) -> Vec<OutstandingIo> {
        let chunks = self.chunks.iter().filter_map(OnceLock::get);
        chunks.flat_map(|chunk| chunk.iter().filter_map(Place::read)).collect()
    }

    fn place(&self, token: u64, make: bool) -> Option<&Place> {
        let at = (token & 0xFFFF_FFFF) as usize + FIRST_CHUNK;
        let number = (at.ilog2() - FIRST_CHUNK.ilog2()) as usize;
        let size = FIRST_CHUNK << number;
        let chunk = self.chunks.get(number)?;
        let chunk = match chunk.get() {
            Some(chunk) => chunk,
            None if make => chunk.get_or_init(|| (0..size).map(|_| Place::default()).collect()),
            None => return None,
        };
        chunk.get(at - size)
    }
}

impl Place {
    fn read(&self) -> Option<OutstandingIo> {
        let token = self.token.load(Ordering::Acquire);
        let what = self.what.load(Ordering::Relaxed);
        let offset = self.offset.load(Ordering::Relaxed);
        let since = self.since.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        if token == 0 || self.token.load(Ordering::Relaxed) != token {
            return None;
        }
        let operation = NAMES.get((what >> 32) as usize).copied().unwrap_or("?");
        let fd = Some(what as u32 as i32).filter(|fd| *fd >= 0);
        Some(OutstandingIo {
            token,
            operation,
            fd,
            offset: Some(offset).filter(|o| *o != CURRENT),
            since,
        })
    }
}

const NAMES: [&str; 14] = [
    "POLL IN", "POLL OUT", "RECV", "SEND", "RECVMSG", "SENDMSG", "ACCEPT", "CONNECT", "READ",
    "WRITE", "READV", "WRITEV", "FSYNC", "CALL",
];

/// Returns the number of an operation's name.
fn number(op: &Op) -> u32 {
    match op {
        Op::PollIn { .. } => 0,
        Op::PollOut { .. } => 1,
        Op::Recv { .. } | Op::Receive { .. } => 2,
        Op::Send { .. } => 3,
        Op::RecvMsg { .. } => 4,
        Op::SendMsg { .. } => 5,
        Op::Accept { .. } => 6,
        Op::Connect { .. } => 7,
        Op::Read { .. } => 8,
        Op::Write { .. } => 9,
        Op::Readv { .. } => 10,
        Op::Writev { .. } => 11,
        Op::Fsync { .. } => 12,
        Op::Call { .. } => 13,
    }
}

/// Returns the offset in the file; [`CURRENT`] for operations without one.
fn offset(op: &Op) -> u64 {
    match *op {
        Op::Read { offset, .. }
        | Op::Write { offset, .. }
        | Op::Readv { offset, .. }
        | Op::Writev { offset, .. } => offset,
        _ => CURRENT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_put_is_seen_until_it_is_wiped_b46() {
        let board = IoBoard::default();
        let tokens: Vec<u64> = [0u64, 63, 64, 191, 192, 5000].map(|at| 7 << 32 | at).into();
        for (n, token) in tokens.iter().enumerate() {
            let read =
                Op::Read { fd: n as i32, buf: std::ptr::null_mut(), len: 1, offset: n as u64 };
            board.put(*token, &read, 100 + n as u64);
        }
        let seen = board.read();
        assert_eq!(seen.iter().map(|s| s.token).collect::<Vec<_>>(), tokens);
        for (n, seen) in seen.iter().enumerate() {
            assert_eq!(
                (seen.operation, seen.fd, seen.offset),
                ("READ", Some(n as i32), Some(n as u64))
            );
            assert_eq!(seen.since, 100 + n as u64);
        }
        board.wipe(tokens[2]);
        board.wipe(7 << 32 | 900_000);
        assert!(board.read().iter().all(|s| s.token != tokens[2]));
        assert_eq!(board.read().len(), tokens.len() - 1);
    }

    #[test]
    fn an_operation_without_descriptor_and_offset_shows_none_b46() {
        let board = IoBoard::default();
        let mut f = || 0;
        board.put(1 << 32, &crate::os::driver::LiveOp::call(&mut f), 0);
        board.put(1 << 32 | 1, &Op::PollIn { fd: 5 }, 0);
        let seen = board.read();
        assert_eq!((seen[0].operation, seen[0].fd, seen[0].offset), ("CALL", None, None));
        assert_eq!((seen[1].operation, seen[1].fd, seen[1].offset), ("POLL IN", Some(5), None));
    }
}
