//! Owners of descriptors: the table that lets a driver keep a registration.
//!
//! epoll forgets a descriptor when it is closed, and the number may be given to another file the
//! next moment, unregistered. A driver that trusts its memory would then wait without end; one that
//! does not must ask the kernel again at each wait. This table settles it: the owner that will
//! close a descriptor *adopts* it, and *releases* it right before closing it. Each adoption gives
//! the number a new stamp, so that a driver on any thread sees by one load whether the descriptor
//! is still the one it registered.
//!
//! ```text
//! word of a number | meaning
//! n * 4 + 0        | not adopted (the beginning, and after release)
//! n * 4 + 1        | adopted: a stream, whose short read means "drained"
//! n * 4 + 2        | adopted: anything else
//! n * 4 + 3        | adopted: a file of a disk, or a disk, which epoll cannot watch
//! ```
//!
//! Adoption is an optimisation only: a descriptor that is not adopted works, with one system call
//! more per wait. Adopting a descriptor that other code may close breaks I/O safety, as using it
//! would.

use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

const CHUNK: usize = 4096;
const CHUNKS: usize = 1024;
const STREAM: u32 = 1;
const OTHER: u32 = 2;
const FILE: u32 = 3;
const KIND: u32 = 3;

type Chunk = Box<[AtomicU32]>;
static TABLE: [OnceLock<Chunk>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];

/// The kind of an adopted descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A connected stream socket or a pipe: bytes without boundaries.
    Stream,
    /// A listener, a datagram socket, or anything else.
    Other,
    /// A file of a disk, or a disk: always ready, and yet slow.
    File,
}

/// One adoption of one number; `NONE` if it is not adopted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp(u32);

impl Stamp {
    /// The stamp of a number that is not adopted.
    pub const NONE: Stamp = Stamp(0);

    /// Returns whether the descriptor is adopted.
    pub fn is_owned(self) -> bool {
        self.0 & KIND != 0
    }

    /// Returns whether it is an adopted stream.
    pub fn is_stream(self) -> bool {
        self.0 & KIND == STREAM
    }

    /// Returns whether it is an adopted file of a disk.
    pub fn is_file(self) -> bool {
        self.0 & KIND == FILE
    }
}

/// Adopts a descriptor: from now until [`release`] the number means this file.
/// Numbers beyond the table (four million) are ignored.
pub fn adopt(fd: RawFd, kind: Kind) {
    let kind = match kind {
        Kind::Stream => STREAM,
        Kind::Other => OTHER,
        Kind::File => FILE,
    };
    if let Some(word) = word(fd, true) {
        // Only the owner writes the word of its number; drivers read it on other threads.
        let next = (word.load(Ordering::Relaxed) & !KIND).wrapping_add(KIND + 1);
        word.store(next | kind, Ordering::Release);
    }
}

/// Ends the adoption, right before the descriptor is closed or given away.
pub fn release(fd: RawFd) {
    if let Some(word) = word(fd, false) {
        word.store(word.load(Ordering::Relaxed) & !KIND, Ordering::Release);
    }
}

/// Returns the stamp that a number has now.
pub(super) fn stamp(fd: RawFd) -> Stamp {
    let word = word(fd, false).map_or(0, |word| word.load(Ordering::Acquire));
    if word & KIND == 0 { Stamp::NONE } else { Stamp(word) }
}

fn word(fd: RawFd, create: bool) -> Option<&'static AtomicU32> {
    let fd = usize::try_from(fd).ok()?;
    let cell = TABLE.get(fd / CHUNK)?;
    let chunk = if create {
        cell.get_or_init(|| (0..CHUNK).map(|_| AtomicU32::new(0)).collect())
    } else {
        cell.get()?
    };
    chunk.get(fd % CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_adoption_of_a_number_has_its_own_stamp() {
        let fd = 4_000_001; // No other test has this many descriptors.
        assert_eq!(stamp(fd), Stamp::NONE);
        adopt(fd, Kind::Stream);
        let first = stamp(fd);
        assert!(first.is_owned() && first.is_stream());
        release(fd);
        assert_eq!(stamp(fd), Stamp::NONE);
        adopt(fd, Kind::Other);
        let second = stamp(fd);
        assert!(second.is_owned() && !second.is_stream() && !second.is_file());
        assert_ne!(first, second);
        release(fd);
        adopt(fd, Kind::File);
        assert!(stamp(fd).is_owned() && stamp(fd).is_file() && !stamp(fd).is_stream());
        release(fd);
    }

    #[test]
    fn numbers_outside_the_table_are_not_adopted() {
        for fd in [-1, i32::MAX] {
            adopt(fd, Kind::Other);
            assert_eq!(stamp(fd), Stamp::NONE);
            release(fd);
        }
    }
}
