//! Input that the server has received before the connection's session asked for it.
//!
//! The read of an idle connection receives up to `RECEIVE_MAX` bytes as soon as they arrive. They
//! belong to the connection from then on, and its session reads them first, in order, before any
//! that the system still has. There is never more than one such read, and none is made while bytes
//! are left, so a session that does not read holds up its client.

use std::io;

use crate::io::RECEIVE_MAX;

/// The input of one connection that was received ahead.
#[derive(Default)]
pub(super) struct Ahead {
    bytes: Vec<u8>,
    /// How many of the bytes the session has read.
    read: usize,
    then: Then,
}

/// The answer of the system after the bytes.
#[derive(Clone, Copy, Default)]
enum Then {
    /// Unknown: it must be asked.
    #[default]
    Unknown,
    /// There was no more input when the bytes were received.
    Nothing,
    /// The end of the stream.
    End,
    /// An error, which the system reports only once.
    Failed(i32),
}

impl Ahead {
    /// Stores the bytes that a completed receive has returned.
    pub fn put(&mut self, result: i32, bytes: Vec<u8>) {
        self.then = match result {
            0 => Then::End,
            _ if result == -libc::ECANCELED => Then::Unknown,
            ..0 => Then::Failed(result.saturating_neg()),
            _ if bytes.len() < RECEIVE_MAX => Then::Nothing,
            _ => Then::Unknown,
        };
        (self.bytes, self.read) = (bytes, 0);
    }

    /// Forgets that there was no more input, because that was some time ago.
    pub fn forget_nothing(&mut self) {
        if let Then::Nothing = self.then {
            self.then = Then::Unknown;
        }
    }

    /// Returns how many bytes the session has not read yet.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.read
    }

    /// Returns how many bytes are kept, read or not.
    pub fn kept(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether the session would learn something new: bytes, the end or an error.
    pub fn has_news(&self) -> bool {
        self.len() > 0 || matches!(self.then, Then::End | Then::Failed(_))
    }

    /// Reads. Returns `None` if the system must be asked.
    pub fn read(&mut self, buf: &mut [u8]) -> Option<io::Result<usize>> {
        let left = &self.bytes[self.read..];
        if !left.is_empty() {
            let count = left.len().min(buf.len());
            buf[..count].copy_from_slice(&left[..count]);
            self.read += count;
            if self.len() == 0 {
                // An idle connection keeps no memory for this.
                (self.bytes, self.read) = (Vec::new(), 0);
            }
            return Some(Ok(count));
        }
        match std::mem::take(&mut self.then) {
            Then::Unknown => None,
            Then::Nothing => Some(Err(io::ErrorKind::WouldBlock.into())),
            Then::End => Some(Ok(0)),
            Then::Failed(errno) => Some(Err(io::Error::from_raw_os_error(errno))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(read: Option<io::Result<usize>>) -> Option<io::ErrorKind> {
        Some(read?.unwrap_err().kind())
    }

    #[test]
    fn bytes_come_in_order_and_once_and_then_what_was_seen_after_them() {
        let mut ahead = Ahead::default();
        assert!(ahead.read(&mut [0; 4]).is_none() && !ahead.has_news());
        ahead.put(5, b"hello".to_vec());
        let mut buf = [0; 3];
        assert_eq!((ahead.len(), ahead.has_news()), (5, true));
        assert_eq!(ahead.read(&mut buf).unwrap().unwrap(), 3);
        assert_eq!((&buf, ahead.len()), (b"hel", 2));
        assert_eq!(ahead.read(&mut buf).unwrap().unwrap(), 2);
        assert_eq!(&buf[..2], b"lo");
        assert_eq!(ahead.bytes.capacity(), 0);
        assert_eq!(kind(ahead.read(&mut buf)), Some(io::ErrorKind::WouldBlock));
        assert!(ahead.read(&mut buf).is_none(), "the system is asked from then on");
    }

    #[test]
    fn the_end_and_an_error_are_news_and_are_told_once() {
        let mut ahead = Ahead::default();
        ahead.put(0, Vec::new());
        assert!(ahead.has_news());
        assert_eq!(ahead.read(&mut [0; 4]).unwrap().unwrap(), 0);
        assert!(!ahead.has_news() && ahead.read(&mut [0; 4]).is_none());
        ahead.put(-libc::ECONNRESET, Vec::new());
        assert!(ahead.has_news());
        assert_eq!(kind(ahead.read(&mut [0; 4])), Some(io::ErrorKind::ConnectionReset));
        assert!(!ahead.has_news() && ahead.read(&mut [0; 4]).is_none());
    }

    #[test]
    fn a_full_buffer_and_a_cancelled_receive_say_nothing_about_what_follows() {
        let mut ahead = Ahead::default();
        ahead.put(RECEIVE_MAX as i32, vec![7; RECEIVE_MAX]);
        let mut buf = vec![0; RECEIVE_MAX];
        assert_eq!(ahead.read(&mut buf).unwrap().unwrap(), RECEIVE_MAX);
        assert!(ahead.read(&mut buf).is_none());
        ahead.put(-libc::ECANCELED, Vec::new());
        assert!(!ahead.has_news() && ahead.read(&mut buf).is_none());
    }
}
