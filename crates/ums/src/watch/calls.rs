//! Interposed calls: what blocks, called through here, hands the place over first and is gated after.
//!
//! [`crate::interpose`] defines the C library's blocking functions in a program, so that code which knows nothing
//! of this crate comes through here. Each looks first whether it would block (a `poll` that does not
//! wait): if so, the place is given up before the call, which is the fastest way; if not, or where that
//! cannot be told, the call is made in the mode CALL and the catcher may take the place.
//!
//! In a thread that is not watched each is the C library's own function and one thread-local look.

#![allow(unsafe_code)] // Named invariant **Plain Call**, see ARCHITECTURE.md.

use super::thread::me;

/// Whether the calling thread is watched.
pub fn is_watched() -> bool {
    me().is_some()
}

/// Runs a call that may block. `sure`: whether it surely will.
#[inline]
pub fn may_block<R>(sure: impl FnOnce() -> bool, call: impl FnOnce() -> R) -> R {
    match me() {
        Some(me) => me.call(sure, call),
        None => call(),
    }
}
