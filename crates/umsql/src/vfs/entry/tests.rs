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
