//! Taking over: takes the baton from a thread worker that has been blocked in the kernel for about
//! ten milliseconds.
//!
//! This is the default for thread workers; with block watch (`watched.rs`) it is not used. It needs
//! no privilege, no pinning and no signal.
//!
//! ```text
//! worker                            taker (a watchdog)              standby
//! blocks in the kernel, outside
//!                                   sees it asleep in the same wait
//!                                   each time, for BLOCKED_FOR_NS
//!                                   takes the baton (os/entry)
//!                                   holder := standby, event ---->  worker's state := Preemptive,
//!                                                                   chooses another, hands on
//! wakes, and continues in parallel with its scheduler
//! its next entry: through the inbox ----------------------------->  runnable, then chosen
//! has the baton, enters
//! ```
//!
//! There is no gate: until its next entry the worker is an ordinary thread that runs beside its
//! scheduler, like a preemptive worker. Meanwhile it touches nothing of the library, because
//! touching the library takes an entry. The end of its request is an entry, too.
//!
//! The baton is taken whether or not other workers could run at that moment. Timers, I/O and
//! messages come later, and the blocked worker is the one that would look for them. If the limit of
//! preemptive workers has been reached, the baton is not taken.
//!
//! A worker that has lost the baton waits at its next entry until it is chosen. It may hold a lock
//! of the application meanwhile: other workers that need the lock block, and lose the baton, too. A
//! completion routine that needs the lock runs inside a turn, where the baton cannot be taken. So a
//! routine must not take a lock that a worker holds over a call into the library.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::state::REASON;
use crate::os::clock;
use crate::os::entry;
use crate::os::linux::barrier;
use crate::scheduler::here::with_scheduler_of_this_thread;
use crate::scheduler::state::{AWAY, WORKER};
use crate::scheduler::{Scheduler, set_here};
use crate::watch::watchdog::{self, Subject};
use crate::watch::{Waits, state};

/// How long a worker must be observed in the same wait before it loses its scheduler. The watchdog
/// samples, so the real delay is up to two of its intervals longer.
const BLOCKED_FOR_NS: u64 = 8_000_000;

/// Watches one scheduler for blocked workers.
pub(super) struct Taker {
    scheduler: Weak<Scheduler>,
    /// The scheduler's progress at the last look.
    progress: AtomicU64,
    /// The wait in which its worker was at the last look; 0 for none.
    suspect: AtomicU64,
    /// When that wait was first seen.
    since: AtomicU64,
}

/// Returns why a node cannot take the baton from a blocked worker on this computer
/// ([`Builder::take_over_blocked`](crate::Builder::take_over_blocked)), or None if it can.
pub fn taking_over_is_refused() -> Option<&'static str> {
    barrier::is_refused()
}

impl Scheduler {
    /// Begins to take the baton from blocked workers of this scheduler, if the option is on and the
    /// system allows it.
    pub(super) fn open_taker(&self) -> std::io::Result<()> {
        let wanted = self.options.take_over_blocked
            && !self.options.detect_blocking
            && !crate::os::sim::is_here();
        if !wanted || taking_over_is_refused().is_some() {
            return Ok(());
        }
        entry::return_with(rejoin);
        let taker: Arc<dyn Subject> = Arc::new(Taker {
            scheduler: Arc::downgrade(&self.arc()),
            progress: AtomicU64::new(0),
            suspect: AtomicU64::new(0),
            since: AtomicU64::new(0),
        });
        watchdog::watch(&taker)?;
        let _ = self.detection.taker.set(taker);
        Ok(())
    }

    /// Ends that: the baton is not taken from workers any more.
    pub(super) fn close_taker(&self) {
        self.detection.taker.get().inspect(|taker| watchdog::forget(taker));
    }

    fn may_be_preemptive(&self) -> bool {
        self.counters.preemptive.load(Ordering::Relaxed) < self.options.preemptive_max as u64
    }
}

impl Subject for Taker {
    fn is_busy(&self) -> bool {
        let scheduler = self.scheduler.upgrade();
        scheduler
            .is_some_and(|scheduler| scheduler.counters.asleep_since.load(Ordering::Acquire) == 0)
    }

    fn look(&self) -> bool {
        let Some(scheduler) = self.scheduler.upgrade() else { return false };
        let progress = scheduler.progress();
        let moved = self.progress.swap(progress, Ordering::Relaxed) != progress;
        // The answers may change before the baton is taken; `take` asks again.
        let holder =
            scheduler.holder().filter(|waiter| !moved && scheduler.is_in_user_code(waiter));
        let thread =
            |waiter: &crate::wait::Waiter| waiter.record.view.thread.load(Ordering::Relaxed) as i32;
        let waits = holder.and_then(|waiter| state::look_at(thread(waiter)));
        let (Some(waiter), Some(waits)) = (holder, waits) else {
            self.suspect.store(0, Ordering::Relaxed);
            return false;
        };
        let (suspect, now) = (number_of(waits), clock::now());
        if self.suspect.swap(suspect, Ordering::Relaxed) != suspect {
            self.since.store(now, Ordering::Relaxed);
            return false;
        }
        if now - self.since.load(Ordering::Relaxed) < BLOCKED_FOR_NS
            || !scheduler.may_be_preemptive()
        {
            return false;
        }
        let still = || {
            scheduler.is_calm(waiter)
                && scheduler.progress() == progress
                && state::look_at(thread(waiter)).map(number_of) == Some(suspect)
        };
        let thread = waiter.record.thread();
        let taken = thread.is_some_and(|own| own.entry.take(barrier::on_all_threads, still));
        if taken {
            self.suspect.store(0, Ordering::Relaxed);
            scheduler.pass_to_standby(waits.call.is_some());
        }
        taken
    }
}

/// Returns a number that is the same for the same wait at the same place; never 0.
fn number_of(waits: Waits) -> u64 {
    waits.pc ^ waits.sp.rotate_left(32) ^ (waits.call.unwrap_or(-1) as u64) << 48 | 1
}

/// Called at an entry of a worker whose baton was taken: gets the baton again through the inbox.
fn rejoin() {
    let Some(waiter) = WORKER.get() else { return };
    with_scheduler_of_this_thread(|scheduler| {
        // A signal handler of the application may interrupt this function and enter the library,
        // too. So `was_taken` resets its word only after `set_here(None)`: from then on, such a
        // handler runs on a thread without a scheduler.
        set_here(None);
        AWAY.set(Some(waiter));
        if let Some(scheduler) = scheduler
            && waiter.record.own().entry.was_taken()
        {
            waiter.signalled.store(clock::ticks(), Ordering::Relaxed);
            waiter.record.spans.pause();
            scheduler.inbox.push(waiter);
            waiter.event.wait();
            waiter.record.spans.go_on();
            set_here(Some(scheduler));
            scheduler.end_preemptive(waiter, REASON);
        }
        AWAY.set(None);
        set_here(scheduler);
    });
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn no_wait_has_the_number_that_stands_for_none() {
        for (call, pc, sp) in [(0, 0, 0), (0, 1, 0), (1 << 47, 1 << 32, 1)] {
            let waits = Waits { call: Some(call), args: [0; 6], pc, sp };
            assert_ne!(number_of(waits), 0, "{waits:?}");
        }
    }
}
