//! Counters of a scheduler: its current worker writes them, and any thread reads them at any time.
//!
//! Each field has one writer (the baton's holder), so adding is a plain load and a plain store. A
//! snapshot stops no thread, so it may contain some fields in an older state than others.

use std::sync::atomic::Ordering;

use crate::os::counted::AtomicU64;

macro_rules! counters {
    ($(#[$sdoc:meta])* $live:ident => $snap:ident { $($(#[$doc:meta])* $field:ident,)* }) => {
        $(#[$sdoc])*
        #[derive(Default)]
        pub(crate) struct $live { $($(#[$doc])* pub $field: AtomicU64,)* }
        /// A snapshot of a scheduler's counters.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $snap { $($(#[$doc])* pub $field: u64,)* }
        impl $live {
            /// Reads every field.
            pub fn read(&self) -> $snap {
                $snap { $($field: self.$field.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// What a scheduler counts.
    Counters => SchedulerCounters {
        /// Workers on the runnable list now.
        runnable,
        /// Workers on the waiter list now.
        waiting,
        /// Workers on the worker list now, including one that hosts the idle loop.
        idle,
        /// Workers that exist now.
        workers,
        /// Workers outside their scheduler now.
        preemptive,
        /// I/O requests outstanding now.
        pending_io,
        /// Timers set now.
        timers,
        /// Switches from one worker to another.
        context_switches,
        /// How often the scheduler went to sleep because it had no work.
        idle_switches,
        /// The total time that the scheduler has slept for lack of work, as of its last waking, in
        /// ticks of the processor's clock.
        idle_ticks,
        /// When the scheduler went to sleep, in the same ticks; 0 while it is awake.
        asleep_since,
        /// How often the scheduler polled for work before it went to sleep. A poll that has found
        /// something is counted here and below when the scheduler is idle again.
        idle_spins,
        /// How many of these polls found something to do.
        idle_spins_paid,
        /// The total time of these polls, in nanoseconds. The scheduler is awake during a poll, so
        /// `idle_ticks` does not contain this time.
        idle_spin_ns,
        /// How much of that time was charged to the budget of adaptive polling, in nanoseconds: the
        /// time of polls that found nothing, and the time beyond the cost of sleeping and waking up
        /// of those that found something.
        idle_spin_charged_ns,
        /// How often a worker went preemptive.
        preemptive_switches,
        /// Context switches made because a worker had ended its request. Switches because of a wait
        /// are counted with the reason of the wait.
        end_switches,
        /// Context switches made because a worker went preemptive.
        leave_switches,
        /// Context switches made because a worker ended, or because the scheduler was handed to its
        /// standby.
        other_switches,
        /// The longest observed turn of a worker, in ticks of the processor's clock: from when the
        /// worker was chosen until it waited, ended its request or let others run. Turns among
        /// workers that only yield are not timed.
        longest_turn,
        /// The largest number of consecutive choices that passed over something that was ready
        /// earlier. Quick joins count as parts of a choice, and are rounded down.
        passed_over_max,
        /// Yields of any kind. The monitor sees by them that the scheduler makes progress.
        yields,
        /// Turns: yields, waits and ends of requests.
        turns,
        /// Requests that were carried out.
        requests_done,
        /// Requests that ended by a panic.
        panics,
        /// Completion routines run.
        routines,
        /// I/O requests completed.
        io_completions,
        /// Waits for file I/O that took longer than the limit set by `io::set_slow_after`.
        slow_io,
        /// Submissions of I/O to the system that held the scheduler up for longer than a quantum.
        slow_submissions,
        /// Requests refused because the work queue was full. Written by threads without the baton.
        requests_refused,
        /// Requests taken from another scheduler's work queue.
        stolen,
        /// Workers created.
        workers_created,
        /// Workers destroyed.
        workers_retired,
        /// How often a worker could not be created.
        failed_to_create_worker,
        /// Workers created beyond the limit for the request of a user that holds a resource.
        /// Without such a worker, those that wait for the resource could never continue.
        reserve_workers,
        /// Requests that waited too long for a worker and were not carried out.
        queue_timeouts,
        /// When the timer list was last examined, in nanoseconds.
        last_timer_look,
        /// How often a worker went preemptive automatically, in an interposed C library call that
        /// blocks.
        undeclared_calls,
        /// How often the baton was taken from a worker that had blocked in a system call.
        undeclared_blocks,
        /// How often the baton was taken from a worker that had blocked in a page fault.
        undeclared_faults,
        /// How often workers that waited to be chosen were allowed to run without the baton,
        /// because the scheduler waited for a lock that one of them may hold. Written by the
        /// watchdog thread, not by the baton's holder.
        workers_lent,
        /// Workers that the system did not allow the library to watch for undeclared blocks.
        unwatched_workers,
        /// Short external calls that took longer than a quantum.
        short_overruns,
        /// The largest number of workers that were preemptive at the same time.
        preemptive_max,
    }
}

/// Adds to a counter. The caller must be its only writer.
#[inline]
pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// Raises a counter to `to` if it is lower. The caller must be its only writer.
#[inline]
pub(crate) fn max(counter: &AtomicU64, to: u64) {
    if counter.load(Ordering::Relaxed) < to {
        counter.store(to, Ordering::Relaxed);
    }
}

/// Sets a counter. The caller must be its only writer.
#[inline]
pub(crate) fn set(counter: &AtomicU64, to: usize) {
    counter.store(to as u64, Ordering::Relaxed);
}
