//! Buffers for direct I/O: aligned, and pooled.
//!
//! `O_DIRECT` moves bytes between a buffer and the disk without a copy, and therefore requires that
//! address, offset and length are aligned for the disk. A [`DirectBuffer`] begins at a multiple of
//! 4096, which suits all disks. Freed buffers are kept for reuse, on a *shelf* of their size. The
//! shelves of the process hold [`SHELVES_MAX`] bytes at most. Pieces of the *arena* do not count as
//! part of that: small buffers are cut from the arena while it has room, because its memory is
//! registered with the rings.
//!
//! Named invariant **Own Memory**: a [`Block`] is the only pointer to its `capacity` bytes, which
//! are an allocation of their own or a piece of the arena, and have all been written to.

#![allow(unsafe_code)] // Named invariant "Own Memory", stated above.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::io::Buffer;
use crate::os::linux::arena;
use crate::os::lock::Lock;

/// The alignment of a buffer, and the step of its capacity.
const ALIGN: usize = 4096;
/// Sizes of pooled buffers: 4 KiB, 8 KiB, ... 1 MiB.
const SHELVES: usize = 9;
/// The most bytes that the shelves keep.
const SHELVES_MAX: usize = 64 << 20;

/// Bytes at an aligned address, for files that are opened for direct I/O.
///
/// ```
/// let mut buffer = ums::fs::DirectBuffer::new(8192);
/// assert_eq!((buffer.len(), buffer.as_ptr() as usize % 4096), (8192, 0));
/// buffer[..5].copy_from_slice(b"hello");
/// ```
pub struct DirectBuffer {
    block: Block,
    len: usize,
}

impl DirectBuffer {
    /// The largest size of a buffer in bytes: the largest multiple of 4096 that a program can
    /// address.
    pub const MAX: usize = isize::MAX as usize / ALIGN * ALIGN;

    /// Creates a buffer of `len` zero bytes, at an address that is a multiple of 4096.
    ///
    /// # Panics
    /// Panics if `len` is above [`DirectBuffer::MAX`].
    #[track_caller]
    pub fn new(len: usize) -> DirectBuffer {
        // Checked before anything is computed from `len`: below this limit nothing overflows.
        assert!(
            len <= DirectBuffer::MAX,
            "a direct buffer of {len} bytes was asked for: ask for at most DirectBuffer::MAX"
        );
        let capacity = capacity_for(len);
        let block = take(capacity).or_else(|| Block::in_arena(capacity));
        let block = block.unwrap_or_else(|| Block::new(capacity));
        let mut buffer = DirectBuffer { block, len };
        buffer.fill(0);
        buffer
    }
}

impl Deref for DirectBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: Own Memory: `len` is at most the capacity, and `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.block.start.as_ptr(), self.len) }
    }
}

impl DerefMut for DirectBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: Own Memory: as above, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.block.start.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for DirectBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DirectBuffer({} bytes)", self.len)
    }
}

// SAFETY: Own Memory: the bytes lie behind a pointer of their own, and stay when the buffer moves.
unsafe impl Buffer for DirectBuffer {
    fn start(&mut self) -> *mut u8 {
        self.block.start.as_ptr()
    }

    fn size(&self) -> usize {
        self.len
    }
}

impl Drop for DirectBuffer {
    fn drop(&mut self) {
        let block =
            std::mem::replace(&mut self.block, Block { start: NonNull::dangling(), capacity: 0 });
        give(block);
    }
}

/// An allocation of its own, or a piece of the arena.
struct Block {
    start: NonNull<u8>,
    /// In bytes; 0 means no memory.
    capacity: usize,
}

// SAFETY: Own Memory: this is the only pointer.
unsafe impl Send for Block {}
// SAFETY: Own Memory: a shared block is only read.
unsafe impl Sync for Block {}

impl Block {
    /// Takes a piece of the arena, which then moves between buffers and its shelf and is never
    /// freed.
    fn in_arena(capacity: usize) -> Option<Block> {
        Some(Block { start: arena::carve(capacity)?, capacity })
    }

    fn is_in_arena(&self) -> bool {
        arena::holds(self.start.as_ptr(), self.capacity)
    }

    fn new(capacity: usize) -> Block {
        let layout = Block::layout(capacity);
        // SAFETY: Own Memory: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Block { start, capacity }
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGN).expect("a buffer is smaller than the memory")
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.capacity > 0 && !self.is_in_arena() {
            // SAFETY: Own Memory: allocated with this layout, by `new`.
            unsafe { dealloc(self.start.as_ptr(), Block::layout(self.capacity)) }
        }
    }
}

struct Shelves {
    shelves: [Vec<Block>; SHELVES],
    bytes: usize,
}

static POOL: Lock<Shelves> =
    Lock::new(Shelves { shelves: [const { Vec::new() }; SHELVES], bytes: 0 });

fn capacity_for(len: usize) -> usize {
    let pages = len.div_ceil(ALIGN).max(1);
    let pooled = pages.next_power_of_two();
    if pooled <= 1 << (SHELVES - 1) { pooled * ALIGN } else { pages * ALIGN }
}

/// Returns the shelf for this capacity; `None` if the capacity is too large for any.
fn shelf(capacity: usize) -> Option<usize> {
    let at = (capacity / ALIGN).trailing_zeros() as usize;
    (capacity == ALIGN << at && at < SHELVES).then_some(at)
}

fn take(capacity: usize) -> Option<Block> {
    let mut pool = POOL.lock();
    let block = pool.shelves[shelf(capacity)?].pop()?;
    if !block.is_in_arena() {
        pool.bytes -= capacity;
    }
    Some(block)
}

fn give(block: Block) {
    let Some(at) = shelf(block.capacity) else { return };
    let mut pool = POOL.lock();
    if block.is_in_arena() {
        pool.shelves[at].push(block);
    } else if pool.bytes + block.capacity <= SHELVES_MAX {
        pool.bytes += block.capacity;
        pool.shelves[at].push(block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_zero_whatever_it_held_before() {
        for len in [0, 1, 4096, 4097, 65_536, 1 << 20, (1 << 20) + 1] {
            for _ in 0..2 {
                let mut buffer = DirectBuffer::new(len);
                assert_eq!((buffer.len(), buffer.as_ptr() as usize % ALIGN), (len, 0));
                assert!(buffer.iter().all(|byte| *byte == 0));
                buffer.fill(7);
            }
        }
    }

    #[test]
    fn a_buffer_beyond_what_can_be_addressed_is_refused_with_a_sentence() {
        for len in [usize::MAX, usize::MAX / 2 + 1, DirectBuffer::MAX + 1] {
            let refused = std::panic::catch_unwind(|| drop(DirectBuffer::new(len)));
            let text = *refused.unwrap_err().downcast::<String>().unwrap();
            assert!(text.contains("ask for at most"), "{text}");
        }
        assert_eq!(capacity_for(DirectBuffer::MAX), DirectBuffer::MAX);
        assert!(Layout::from_size_align(DirectBuffer::MAX, ALIGN).is_ok());
    }

    #[test]
    fn small_buffers_come_from_the_arena_and_large_ones_do_not() {
        // Other tests use the shelves meanwhile, so this test takes a block directly.
        let small = Block::in_arena(ALIGN).expect("there is room in the arena");
        assert!(small.is_in_arena() && (small.start.as_ptr() as usize).is_multiple_of(ALIGN));
        give(small);
        assert!(!Block::new(ALIGN).is_in_arena());
        assert!(Block::in_arena(1 << 20).is_none());
    }

    #[test]
    fn the_shelves_keep_a_bounded_number_of_bytes() {
        let many: Vec<_> = (0..100).map(|_| DirectBuffer::new(1 << 20)).collect();
        drop(many);
        assert!(POOL.lock().bytes <= SHELVES_MAX);
        assert_eq!(shelf(capacity_for(5000)), Some(1));
        assert_eq!(shelf(capacity_for((1 << 20) + 1)), None);
    }
}
