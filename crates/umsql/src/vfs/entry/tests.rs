//! Tests of the functions that SQLite calls.
//!
//! Unsafe code, because the tests call them as SQLite does. **C Caller**: the calls are those that
//! SQLite would make.

use super::*;

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
