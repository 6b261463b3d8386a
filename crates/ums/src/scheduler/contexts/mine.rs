//! What the code of a worker with its own context knows about that worker, in a signal handler too.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use context::Context;
use fiber::StackRange;

use crate::scheduler::Scheduler;
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

/// Sets the calling thread's worker.
pub(super) fn begin(mine: Mine) {
    MINE.set(Some(mine));
}

/// Returns the calling thread's worker.
pub(super) fn mine() -> Option<Mine> {
    MINE.get()
}

/// Returns whether the context of this worker, which is alive, runs with its own stack and its own
/// FS base. Between the two instructions of a switch that change them, its word is not yet 0.
pub(super) fn is_whole(waiter: &Waiter) -> bool {
    let is_own = waiter.record.view.saved_at.load(Ordering::Relaxed) != 0;
    is_own && !waiter.record.context.is_saved()
}

/// Returns whether the calling code, in a signal handler, runs on its worker's own stack, whole.
pub(in crate::scheduler) fn is_whole_here() -> bool {
    mine().is_some_and(|mine| {
        mine.waiter.record.view.stack().is_none_or(StackRange::is_here) && is_whole(mine.waiter)
    })
}
