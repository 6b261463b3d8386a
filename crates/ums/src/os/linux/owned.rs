//! Adopted descriptors: a table of the descriptors that the library itself will close, so that a
//! driver can keep their registrations.
//!
//! epoll drops a registration when the descriptor is closed, and its number may be given to another
//! file immediately, which is not registered. A driver that relies on its own record of
//! registrations would then wait without end. A driver that keeps no such record must ask the
//! kernel at each wait. This table solves the problem: the code that will close a descriptor
//! *adopts* the descriptor, and *releases* it right before closing it. Each adoption gives the
//! number a new stamp. So a driver on any thread sees by one load whether the number still means
//! the descriptor that it registered.
//!
//! ```text
//! word of a number | meaning
//! n * 4 + 0        | not adopted (at the beginning, and after a release)
//! n * 4 + 1        | adopted: a stream; after a short read, its buffer is empty
//! n * 4 + 2        | adopted: anything else
//! n * 4 + 3        | adopted: a regular file or a disk, which epoll cannot watch
//! ```
//!
//! Adoption is only an optimisation. A descriptor that is not adopted works, too, with one more
//! system call for each wait. Code that adopts a descriptor which other code may close breaks I/O
//! safety, just as code that uses such a descriptor does.

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
pub enum DescriptorKind {
    /// A connected stream socket or a pipe: bytes without boundaries.
    Stream,
    /// A listener, a datagram socket, or anything else.
    Other,
    /// A regular file or a disk. epoll counts it as always ready, although it may be slow.
    File,
}

/// One adoption of one number, or `NONE` for a number that is not adopted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp(u32);

impl Stamp {
    /// The stamp of a number that is not adopted.
    pub const NONE: Stamp = Stamp(0);

    /// Returns whether the descriptor is adopted.
    pub fn is_owned(self) -> bool {
        self.0 & KIND != 0
    }

    /// Returns whether the descriptor is an adopted stream.
    pub fn is_stream(self) -> bool {
        self.0 & KIND == STREAM
    }

    /// Returns whether the descriptor is an adopted file.
    pub fn is_file(self) -> bool {
        self.0 & KIND == FILE
    }
}

/// Adopts a descriptor: from now until [`release`] the number means this file. Numbers beyond the
/// end of the table (four million) are ignored.
pub fn adopt(fd: RawFd, kind: DescriptorKind) {
    let kind = match kind {
        DescriptorKind::Stream => STREAM,
        DescriptorKind::Other => OTHER,
        DescriptorKind::File => FILE,
    };
    if let Some(word) = word(fd, true) {
        // Only the owner of a number writes its word; drivers on other threads read it.
        let next = (word.load(Ordering::Relaxed) & !KIND).wrapping_add(KIND + 1);
        word.store(next | kind, Ordering::Release);
    }
}

/// Ends the adoption. Called right before the descriptor is closed or given to other code.
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
        adopt(fd, DescriptorKind::Stream);
        let first = stamp(fd);
        assert!(first.is_owned() && first.is_stream());
        release(fd);
        assert_eq!(stamp(fd), Stamp::NONE);
        adopt(fd, DescriptorKind::Other);
        let second = stamp(fd);
        assert!(second.is_owned() && !second.is_stream() && !second.is_file());
        assert_ne!(first, second);
        release(fd);
        adopt(fd, DescriptorKind::File);
        assert!(stamp(fd).is_owned() && stamp(fd).is_file() && !stamp(fd).is_stream());
        release(fd);
    }

    #[test]
    fn numbers_outside_the_table_are_not_adopted() {
        for fd in [-1, i32::MAX] {
            adopt(fd, DescriptorKind::Other);
            assert_eq!(stamp(fd), Stamp::NONE);
            release(fd);
        }
    }
}
