//! The arena: memory for direct I/O that rings register in advance.
//!
//! In each direct I/O operation the kernel looks up and pins the pages of the buffer. If a ring has
//! *registered* the pages once, the kernel need not look them up again, which saves a tenth of the
//! cost of a read of 4 KiB. So small buffers for direct I/O are pieces of one mapping, the arena. A
//! ring registers the whole arena before its first operation on a buffer in it.
//!
//! ```text
//!   arena  [ piece | piece | piece | ...free... ]   made for the first buffer; no piece is freed
//! ```
//!
//! Registered memory is pinned. It counts against the user's limit of locked memory, once for each
//! ring. The rings of `perf` count against this limit, too. So with a low limit (`ulimit -l`), the
//! block watch of the Windows model may have to use a weaker mechanism. For that reason the arena
//! is small, and only rings that do direct I/O register it. If the limit is too low for a ring to
//! register the arena, the ring works without the arena.
//!
//! Files are not registered. A ring would keep a registered file open, with its locks, after the
//! file's owner has closed it, and the saving was too small to measure.
//!
//! Each byte of the arena is part of at most one piece.

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::plain;

/// The size of the arena in bytes: 1024 buffers of 4 KiB. This is half of what Linux lets a user
/// lock by default.
pub const SIZE: usize = 4 << 20;
/// The largest piece, in bytes. Larger buffers are few, and copying the data dominates their cost.
const PIECE_MAX: usize = 64 << 10;

struct Arena {
    /// The address of the first byte. It never changes, and is atomic only so that threads may
    /// share it.
    start: AtomicPtr<u8>,
    used: AtomicUsize,
}

/// The arena; `None` inside if there was no memory for it.
static ARENA: OnceLock<Option<Arena>> = OnceLock::new();

/// Allocates this many zeroed bytes, which are never freed. The number must be a multiple of 4096.
/// Returns `None` if it is more than a piece may have, or if there is no room.
pub fn carve(bytes: usize) -> Option<NonNull<u8>> {
    debug_assert!(bytes.is_multiple_of(4096));
    if bytes > PIECE_MAX {
        return None;
    }
    ARENA.get_or_init(Arena::map).as_ref()?.carve(bytes)
}

/// Returns the start of the arena, if it has been made.
#[inline]
pub fn start() -> Option<NonNull<u8>> {
    NonNull::new(ARENA.get()?.as_ref()?.start.load(Ordering::Relaxed))
}

/// Returns whether all of these bytes are in the arena.
#[inline]
pub fn holds(at: *const u8, len: usize) -> bool {
    start().is_some_and(|start| {
        let offset = at.addr().wrapping_sub(start.as_ptr().addr());
        offset < SIZE && len <= SIZE - offset
    })
}

impl Arena {
    #[cold]
    fn map() -> Option<Arena> {
        let start = AtomicPtr::new(plain::pages(SIZE)?.as_ptr());
        Some(Arena { start, used: AtomicUsize::new(0) })
    }

    fn carve(&self, bytes: usize) -> Option<NonNull<u8>> {
        let room = |used: usize| (used + bytes <= SIZE).then_some(used + bytes);
        let at = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()?;
        // Inside the mapping, because `used` never exceeds its size.
        NonNull::new(self.start.load(Ordering::Relaxed).wrapping_add(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_do_not_overlap_and_the_arena_knows_what_is_in_it() {
        let (Some(a), Some(b)) = (carve(4096), carve(8192)) else { panic!("there is room") };
        let (from, to) = (a.as_ptr().addr(), b.as_ptr().addr());
        assert!(from.abs_diff(to) >= if from < to { 4096 } else { 8192 });
        assert!(holds(a.as_ptr(), 4096) && holds(b.as_ptr(), 8192));
        let start = start().unwrap().as_ptr();
        assert!(holds(start, SIZE) && !holds(start, SIZE + 1));
        assert!(!holds(start.wrapping_sub(1), 1) && !holds(start.wrapping_add(SIZE), 0));
        assert!(!holds([0u8; 8].as_ptr(), 8));
        assert_eq!(carve(PIECE_MAX + 4096), None);
    }

    #[test]
    fn a_full_arena_gives_nothing() {
        let full = Arena::map().unwrap();
        full.used.store(SIZE - 8192, Ordering::Relaxed);
        assert_eq!(full.carve(3 * 4096), None);
        assert!(full.carve(4096).is_some() && full.carve(4096).is_some());
        assert_eq!(full.carve(4096), None);
    }
}
