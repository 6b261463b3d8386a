//! The functions with which SQLite asks for memory.
//!
//! Each block has a [`Header`] before it, with the account in which the block is counted
//! (`memory`). A large block gets its pages here, in pieces, and others run in between: otherwise
//! the system would give it a page for each 4 KiB that SQLite writes, and a value of 16 MiB, which
//! SQLite copies at once, would take some milliseconds more.
//!
//! Unsafe code, because SQLite passes pointers to blocks. **C Caller**: it frees, and asks to grow,
//! only blocks that `block_alloc` or `block_grow` returned, each from one thread at a time, and not
//! after it has freed them.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use rusqlite::ffi;

use crate::vfs::callback::guarded;
use crate::{host, memory};

/// A block of this size gets its pages before SQLite gets the block.
const LARGE: usize = 1 << 20;
/// The bytes of pages between two yields: the system needs a tenth of a millisecond for them.
const PIECE: usize = 256 << 10;
/// The size of a page. Where a page is larger, the system may refuse what [`populate`] asks.
const PAGE: usize = 4 << 10;

pub(super) const MEMORY: ffi::sqlite3_mem_methods = ffi::sqlite3_mem_methods {
    xMalloc: Some(block_alloc),
    xFree: Some(block_free),
    xRealloc: Some(block_grow),
    xSize: Some(block_size),
    xRoundup: Some(block_roundup),
    xInit: Some(memory_ready),
    xShutdown: None,
    pAppData: std::ptr::null_mut(),
};

/// What is before each block of SQLite's. SQLite's blocks are aligned for 8 bytes.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Header {
    size: u32,
    /// The account in which the block is counted.
    account: u32,
}

const HEADER: usize = size_of::<Header>();

/// Makes `block` a block of SQLite's.
///
/// # Safety
/// `block` must be null, or the caller's own memory, at least a header long.
unsafe fn with_header(block: *mut c_void, header: Header) -> *mut c_void {
    if block.is_null() {
        return block;
    }
    // SAFETY: Contract.
    unsafe {
        block.cast::<Header>().write(header);
        block.byte_add(HEADER)
    }
}

/// # Safety
/// `block` must be a block that SQLite has not freed.
unsafe fn header_of(block: *mut c_void) -> Header {
    // SAFETY: Contract: a header is before it.
    unsafe { block.byte_sub(HEADER).cast::<Header>().read() }
}

unsafe extern "C" fn block_alloc(size: c_int) -> *mut c_void {
    let size = size as usize;
    let account = guarded(None, || memory::take_block(size));
    let Some(account) = account else { return std::ptr::null_mut() };
    // SAFETY: Plain Call. Own Memory: the new block has room for the header.
    let block =
        unsafe { with_header(libc::malloc(size + HEADER), Header { size: size as u32, account }) };
    if block.is_null() {
        memory::give_block(account, size);
        return block;
    }
    populate(block, 0, size);
    block
}

unsafe extern "C" fn block_free(block: *mut c_void) {
    // SAFETY: C Caller: SQLite frees its blocks once, and never null.
    let header = unsafe { header_of(block) };
    memory::give_block(header.account, header.size as usize);
    // SAFETY: C Caller: the memory began with the header.
    unsafe { libc::free(block.byte_sub(HEADER)) };
}

unsafe extern "C" fn block_grow(block: *mut c_void, size: c_int) -> *mut c_void {
    // SAFETY: C Caller: SQLite grows blocks that it has not freed.
    let Header { size: before, account } = unsafe { header_of(block) };
    let (before, size) = (before as usize, size as usize);
    if !guarded(false, || memory::grow_block(account, before, size)) {
        return std::ptr::null_mut();
    }
    // SAFETY: C Caller: the memory began with the header. If there is no more memory, the block
    // stays as it is.
    let grown = unsafe {
        let moved = libc::realloc(block.byte_sub(HEADER), size + HEADER);
        with_header(moved, Header { size: size as u32, account })
    };
    match grown.is_null() {
        true if size > before => memory::give_block(account, size - before),
        false if size < before => memory::give_block(account, before - size),
        false => populate(grown, before, size),
        true => {}
    }
    grown
}

unsafe extern "C" fn block_size(block: *mut c_void) -> c_int {
    // SAFETY: C Caller: SQLite asks for the size of blocks that it has not freed.
    unsafe { header_of(block) }.size as c_int
}

/// Returns the size that a block for `size` bytes gets. SQLite asks for three bytes more when it
/// puts a zero behind a text; a large text mostly has them, and is not copied for that.
extern "C" fn block_roundup(size: c_int) -> c_int {
    if size < PAGE as c_int { (size + 7) & !7 } else { size.saturating_add(3 + 63) & !63 }
}

extern "C" fn memory_ready(_: *mut c_void) -> c_int {
    ffi::SQLITE_OK
}

/// Gives the bytes of a large block from `before` on their pages, and lets others run in between.
/// SQLite does not know yet where a block is that has grown; only the worker that uses the block's
/// connection could look for it there, and that is the caller.
fn populate(block: *mut c_void, before: usize, size: usize) {
    if size < LARGE {
        return;
    }
    // Only pages that belong to the block alone.
    let (first, end) = (block.addr().next_multiple_of(PAGE), block.addr() + size);
    let mut at = first.max((block.addr() + before) & !(PAGE - 1));
    while at + PAGE <= end {
        let len = PIECE.min((end - at) & !(PAGE - 1));
        let pages = block.with_addr(at);
        // If the system cannot do it, the pages come when SQLite writes.
        // SAFETY: Own Memory: the pages are inside the block, and keep what is in them.
        if unsafe { libc::madvise(pages, len, libc::MADV_POPULATE_WRITE) } != 0 {
            return;
        }
        guarded((), host::yield_if_due);
        at += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_keeps_its_content_and_its_size_when_it_grows() {
        // SAFETY: C Caller: the calls are those that SQLite would make.
        unsafe {
            let block = block_alloc(24);
            block.cast::<[u8; 24]>().write([7; 24]);
            let block = block_grow(block, 4000);
            assert_eq!((block_size(block), block_roundup(13)), (4000, 16));
            assert_eq!(block.cast::<[u8; 24]>().read(), [7; 24]);
            assert!(block.addr().is_multiple_of(8));
            block_free(block);
        }
    }

    /// An account's number that no account has panics where it is looked up.
    #[test]
    fn a_panic_while_a_block_grows_is_a_failure_to_grow() {
        // SAFETY: C Caller: the block is one of `block_alloc`, with another account in its header.
        unsafe {
            let block = block_alloc(24);
            let header = header_of(block);
            let wrong = Header { account: u32::MAX, ..header };
            with_header(block.byte_sub(HEADER), wrong);
            assert!(block_grow(block, 4000).is_null());
            assert_eq!(block_size(block), 24, "the block stays as it is");
            with_header(block.byte_sub(HEADER), header);
            block_free(block);
        }
    }

    #[test]
    fn a_large_text_has_room_for_the_zero_behind_it() {
        for size in [4096, 2_000_000, 16_000_000, 1 << 24] {
            let rounded = block_roundup(size);
            assert_eq!(rounded, block_roundup(size + 3), "{size}");
            assert!(rounded >= size + 3 && rounded < size + 3 + 64);
        }
        assert!(block_roundup(c_int::MAX) > c_int::MAX - 64);
    }

    /// Returns, for each page of the block that has these bytes, whether it has memory.
    fn pages_of(block: *mut c_void, size: usize) -> Vec<bool> {
        let first = block.addr().next_multiple_of(PAGE);
        let count = (block.addr() + size - first) / PAGE;
        let mut present = vec![0_u8; count];
        let of = block.with_addr(first);
        // SAFETY: Own Memory: there is a byte for each page.
        let done = unsafe { libc::mincore(of, count * PAGE, present.as_mut_ptr()) };
        assert_eq!(done, 0);
        present.iter().map(|page| page & 1 == 1).collect()
    }

    fn has_pages(block: *mut c_void, size: usize) -> bool {
        pages_of(block, size).iter().all(|has| *has)
    }

    /// In memory that is surely new: what the allocator gives may have been used before.
    #[test]
    fn the_smallest_large_block_gets_its_pages_too() {
        let (flags, size) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, LARGE);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: Own Memory: a new mapping, which only this test uses.
        unsafe {
            let block = libc::mmap(std::ptr::null_mut(), size, access, flags, -1, 0);
            assert_ne!(block, libc::MAP_FAILED);
            populate(block, 0, size);
            assert!(has_pages(block, size));
            assert_eq!(libc::munmap(block, size), 0);
        }
    }

    /// In new memory without huge pages, of which one would reach beyond the block.
    #[test]
    fn a_large_block_whose_last_piece_is_small_gets_no_pages_behind_its_end() {
        let (flags, size) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, LARGE + PAGE);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: Own Memory: a new mapping, which only this test uses.
        unsafe {
            let block = libc::mmap(std::ptr::null_mut(), 2 * LARGE, access, flags, -1, 0);
            assert_ne!(block, libc::MAP_FAILED);
            // A kernel without huge pages refuses it.
            libc::madvise(block, 2 * LARGE, libc::MADV_NOHUGEPAGE);
            populate(block, 0, size);
            assert!(has_pages(block, size));
            let behind = pages_of(block.byte_add(size), LARGE - PAGE);
            assert!(behind.iter().all(|has| !has));
            assert_eq!(libc::munmap(block, 2 * LARGE), 0);
        }
    }

    #[test]
    fn a_large_block_has_its_pages_when_sqlite_gets_it() {
        // SAFETY: C Caller: the calls are those that SQLite would make.
        unsafe {
            let block = block_alloc(12 << 20);
            assert!(has_pages(block, 12 << 20));
            let block = block_grow(block, 40 << 20);
            assert!(has_pages(block, 40 << 20));
            block_free(block);
        }
    }
}
