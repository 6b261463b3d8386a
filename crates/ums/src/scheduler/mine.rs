//! What the code of a worker with its own context knows of itself, in a signal handler too.

#![allow(unsafe_code)] // Named invariant "Baton", in the module's header.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use context::Context;

use super::Scheduler;
use crate::wait::Waiter;

/// What the code of a worker of this kind needs to know of itself in a signal handler.
#[derive(Clone, Copy)]
pub(super) struct Mine {
    pub scheduler: *const Scheduler,
    pub context: *const Context,
    pub waiter: &'static Waiter,
}

thread_local! {
    static MINE: Cell<Option<Mine>> = const { Cell::new(None) };
}

/// The calling worker is this one, from now on.
pub(super) fn begin(mine: Mine) {
    MINE.set(Some(mine));
}

/// Of the calling worker.
pub(super) fn mine() -> Option<Mine> {
    MINE.get()
}

/// Whether the context of this worker, which lives, runs with its own stack and its own FS base.
/// Between the two instructions of a switch that change them its word is not 0 yet.
pub(super) fn is_whole(waiter: &Waiter) -> bool {
    let saved_at = waiter.view.saved_at.load(Ordering::Relaxed);
    let word = std::ptr::with_exposed_provenance::<AtomicUsize>(saved_at);
    // SAFETY: Baton: the word of its context, which is there as long as the worker's thread.
    saved_at != 0 && unsafe { (*word).load(Ordering::Acquire) } == 0
}
