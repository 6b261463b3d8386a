//! Stands in for the switch on processors and C libraries for which none is written.
//! [`crate::supported`] refuses these, so no function here that would switch is ever called.

use crate::post::Post;
use crate::record::Context;

const REFUSED: &str = "contexts are refused here";

pub(crate) fn thread_pointer() -> usize {
    0
}

pub(crate) fn set_thread_pointer(_: usize) {}

pub(crate) fn kernel_thread() -> i32 {
    0
}

pub(crate) fn switch(_: *const Context, _: *const Context) {
    unreachable!("{REFUSED}")
}

pub(crate) fn switch_and_release(_: *const Context, _: *const Context) {
    unreachable!("{REFUSED}")
}

pub(crate) fn park(_: *const Context, _: *const Post<'_>) {
    unreachable!("{REFUSED}")
}

pub(crate) fn across_gap<F>(_: *const Context, _: usize, _: F, _: *mut ()) {
    unreachable!("{REFUSED}")
}
