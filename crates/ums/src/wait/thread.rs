//! The waiter of a plain thread, and how such a thread blocks.

use std::cell::Cell;

use super::outcome::Outcome;
use super::waiter::{Ticket, Waiter};

impl Ticket {
    /// Parks a plain thread until its wait ends. Each claim is followed by exactly one set of the
    /// event, and this function consumes it, so the event is not set when the next wait begins.
    pub(crate) fn park_thread(self, deadline: u64) -> Outcome {
        if !self.waiter.event.wait_until(self.deadline(deadline)) {
            if let Some(mine) = self.claim(Outcome::TimedOut) {
                // This thread has claimed the wait, so no other thread sets the event.
                mine.kept();
            } else {
                self.waiter.event.wait();
            }
        }
        self.take_outcome().expect("the event is set only after the wait was claimed")
    }
}

/// The waiter of a plain thread. It is returned to the pool when the thread ends.
struct ThreadWaiter(Cell<Option<&'static Waiter>>);

impl Drop for ThreadWaiter {
    fn drop(&mut self) {
        if let Some(waiter) = self.0.get() {
            waiter.give_back();
        }
    }
}

thread_local! {
    static THREAD: ThreadWaiter = const { ThreadWaiter(Cell::new(None)) };
    /// The thread's waiter after the destructor of `THREAD` has run. This variable has no
    /// destructor, so it can be used until the thread ends.
    static LATE: Cell<Option<&'static Waiter>> = const { Cell::new(None) };
}

/// Returns the waiter that the calling thread uses when it waits as a plain thread.
pub(crate) fn thread_waiter() -> &'static Waiter {
    let of = |slot: &Cell<Option<&'static Waiter>>| {
        slot.get().unwrap_or_else(|| {
            let waiter = Waiter::take(None, 0);
            slot.set(Some(waiter));
            waiter
        })
    };
    THREAD.try_with(|slot| of(&slot.0)).unwrap_or_else(|_| {
        // `THREAD` is destroyed already: the destructor of another thread-local is waiting.
        let waiter = LATE.with(of);
        crate::os::linux::plain::at_the_very_end(give_back_late);
        waiter
    })
}

extern "C" fn give_back_late(_: *mut std::ffi::c_void) {
    if let Some(waiter) = LATE.take() {
        waiter.give_back();
    }
}
