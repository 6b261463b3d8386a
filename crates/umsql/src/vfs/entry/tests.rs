//! Tests of the functions that SQLite calls.
//!
//! Unsafe code, because the tests call them as SQLite does. **C Caller**: the calls are those that
//! SQLite would make.

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

#[test]
fn sqlite_gets_statics_and_boxes_and_gives_boxes_back() {
    // SAFETY: C Caller: the calls are those that SQLite would make.
    unsafe {
        let boxed = mutex_alloc(0);
        mutex_enter(boxed);
        assert_eq!((mutex_held(boxed), mutex_try(boxed)), (1, ffi::SQLITE_BUSY));
        mutex_leave(boxed);
        assert_eq!(mutex_not_held(boxed), 1);
        mutex_free(boxed);
        assert_eq!(mutex_alloc(2), mutex_alloc(2));
        assert_ne!(mutex_alloc(2), mutex_alloc(3));
        assert!(mutex_alloc(99).is_null());
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
