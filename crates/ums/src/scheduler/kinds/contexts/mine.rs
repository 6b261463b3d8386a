//! Which own-context worker the calling code runs on. Signal handlers may ask for it, too.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use fiber::StackRange;

use crate::scheduler::Scheduler;
use crate::wait::Waiter;

/// The data by which a signal handler on a worker's thread finds the worker.
#[derive(Clone, Copy)]
pub(super) struct Mine {
    pub scheduler: *const Scheduler,
    pub waiter: &'static Waiter,
}

thread_local! {
    static MINE: Cell<Option<Mine>> = const { Cell::new(None) };
}

/// Stores the calling thread's worker.
pub(super) fn begin(mine: Mine) {
    MINE.set(Some(mine));
}

/// Returns the calling thread's worker.
pub(super) fn mine() -> Option<Mine> {
    MINE.get()
}

/// Returns whether the context of this worker, which is alive, runs with both its own stack and its
/// own FS base (the register by which thread-locals are found). Between the two instructions of a
/// switch that change them, the context still counts as saved.
pub(super) fn is_whole(waiter: &Waiter) -> bool {
    let is_own = waiter.record.view.saved_at.load(Ordering::Relaxed) != 0;
    is_own && !waiter.record.own().context.is_saved()
}

/// Returns whether the calling code, in a signal handler, runs on its worker's own stack and with
/// the worker's own FS base.
pub(super) fn is_whole_here() -> bool {
    mine().is_some_and(|mine| {
        mine.waiter.record.view.stack().is_none_or(StackRange::is_here) && is_whole(mine.waiter)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_not_got_its_own_context_yet_is_not_whole() {
        let waiter = Waiter::take(None, 0);
        waiter.record.become_thread();
        assert!(!is_whole(waiter));
        waiter.give_back();
    }
}
