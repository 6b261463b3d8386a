//! Processors and C libraries without a switch: [`crate::supported`] refuses them, and nothing here
//! is reached.
//!
//! Invariants used here: none.

#![allow(unsafe_code, missing_docs)]

use crate::post::Post;
use crate::record::Context;

const REFUSED: &str = "contexts are refused here";

pub(crate) fn thread_pointer() -> usize {
    0
}

pub(crate) unsafe fn set_thread_pointer(_: usize) {}

pub(crate) fn kernel_thread() -> i32 {
    0
}

pub(crate) unsafe fn switch(_: *const Context, _: *const Context) {
    unreachable!("{REFUSED}")
}

pub(crate) unsafe fn switch_and_release(_: *const Context, _: *const Context) {
    unreachable!("{REFUSED}")
}

pub(crate) unsafe fn park(_: *const Context, _: *const Post<'_>) {
    unreachable!("{REFUSED}")
}

pub(crate) unsafe extern "C-unwind" fn across_gap(
    _: *const Context,
    _: usize,
    _: unsafe extern "C-unwind" fn(*mut ()),
    _: *mut (),
) {
    unreachable!("{REFUSED}")
}
