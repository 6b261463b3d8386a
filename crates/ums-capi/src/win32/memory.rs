//! The process heap, which is the heap of the C library.
//!
//! There is only the process heap: every heap handle stands for it. As on Windows, an entry point
//! of a scheduler must not allocate, because a stopped worker may hold the heap's lock.

use super::error::{BOOL, ERROR_NOT_ENOUGH_MEMORY, SetLastError, TRUE};
use super::handle::HANDLE;
use super::system::Block;

/// Fill the block with zeros.
pub const HEAP_ZERO_MEMORY: u32 = 8;

/// Returns the process heap.
#[unsafe(no_mangle)]
pub extern "C" fn GetProcessHeap() -> HANDLE {
    std::ptr::without_provenance_mut(0x4_0000_0000)
}

/// Allocates a block of memory. Returns NULL if there is no memory left.
#[unsafe(no_mangle)]
pub extern "C" fn HeapAlloc(_heap: HANDLE, flags: u32, size: usize) -> Block {
    told(Block::new(size, flags & HEAP_ZERO_MEMORY != 0))
}

/// Changes the size of a block, which may move.
#[unsafe(no_mangle)]
pub extern "C" fn HeapReAlloc(_heap: HANDLE, flags: u32, block: Block, size: usize) -> Block {
    told(block.resize(size, flags & HEAP_ZERO_MEMORY != 0))
}

/// Stores the last error if the block is NULL.
fn told(block: Block) -> Block {
    if block.is_null() {
        SetLastError(ERROR_NOT_ENOUGH_MEMORY);
    }
    block
}

/// Frees a block. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn HeapFree(_heap: HANDLE, _flags: u32, block: Block) -> BOOL {
    block.free();
    TRUE
}

/// Returns a lower bound of a block's size.
#[unsafe(no_mangle)]
pub extern "C" fn HeapSize(_heap: HANDLE, _flags: u32, block: Block) -> usize {
    block.size()
}

/// Like `HeapAlloc`. The flag 0x40 requests zeros.
#[unsafe(no_mangle)]
pub extern "C" fn LocalAlloc(flags: u32, size: usize) -> Block {
    let zeroed = if flags & 0x40 == 0 { 0 } else { HEAP_ZERO_MEMORY };
    HeapAlloc(std::ptr::null_mut(), zeroed, size)
}

/// Like `HeapFree`. Returns NULL.
#[unsafe(no_mangle)]
pub extern "C" fn LocalFree(block: Block) -> Block {
    block.free();
    Block::NULL
}
