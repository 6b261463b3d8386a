//! Every limit of the library, in one place.

/// A deadline that never comes, as nanoseconds on the clock.
pub const NEVER: u64 = u64::MAX;
/// The most workers that one scheduler can have, whatever its builder was asked for.
pub const WORKERS_PER_SCHEDULER_MAX: usize = 1 << 20;
/// The maximum number of workers in a process that uses the `classic` profile.
pub const CLASSIC_WORKERS: usize = 255;
/// How long a worker may be idle before it is destroyed: 15 minutes.
pub const TRIM_AFTER_NS: u64 = 15 * 60 * 1_000_000_000;
/// How long an idle reserve worker is kept for the next request that needs one: 1 s. (A reserve
/// worker is one beyond the limit, for the request of a user that holds a resource, or for a task
/// that another one joins. Between the soft and the hard limit it is kept for 10 s.)
pub const TRIM_RESERVE_AFTER_NS: u64 = 1_000_000_000;
/// How much longer a scheduler sleeps for each 1,000 timers that are set if many are due soon, so
/// that one sleep serves several of them: 10 us, and 500 us at most. (With 100,000 timers in a
/// second, sleeps of 100 us took a tenth of all their processor time.)
pub const TIMER_SLACK_NS: u64 = 10_000;
pub const TIMER_SLACK_MAX_NS: u64 = 500_000;
/// How long a worker may run before `yield_if_due` yields: 4 ms.
pub const QUANTUM_NS: u64 = 4_000_000;
/// How long a wait for file I/O may take before it is counted as slow: 15 s.
pub const SLOW_IO_NS: u64 = 15_000_000_000;
/// How long an idle scheduler stays awake for the next request of a user that holds a lock: 100 us.
pub const HOLDER_SPIN_NS: u64 = 100_000;
/// The longest adaptive poll of an idle scheduler before it sleeps: 50 us.
pub const SPIN_MAX_NS: u64 = 50_000;
/// The shortest adaptive poll: 5 us.
pub const SPIN_LEAST_NS: u64 = 5_000;
/// The longest idle period that speaks for polling: 100 us.
pub const SPIN_PERIOD_MAX_NS: u64 = 100_000;
/// What it costs a processor to sleep and wake up, about. A poll that finds something within this
/// time is not charged: 5 us.
pub const SPIN_FREE_NS: u64 = 5_000;
/// Polls are charged at most one part in so many of the time: 5 %.
pub const SPIN_SHARE: u64 = 20;
/// How much charged polling may be saved up: 250 us.
pub const SPIN_BUDGET_MAX_NS: u64 = 250_000;
/// An idle scheduler polls only if a peer has run within this time: 1 ms.
pub const SPIN_PEER_RAN_NS: u64 = 1_000_000;
/// The highest nice value, for threads that leave the processor to all others.
pub const NICE_MAX: u8 = 19;
/// How many choices may pass over something that was ready earlier, before only age decides.
pub const PASSED_MAX: u32 = 1000;
/// The default stack size of a thread worker, in bytes.
pub const THREAD_STACK: usize = 2 << 20;
/// The default stack size of a fiber worker, in bytes.
pub const FIBER_STACK: usize = 256 << 10;
/// The smallest stack of a worker, in bytes. It has room for the worker's own turn, a signal
/// handler and the message of a panic. A worker with its own context needs more.
pub const STACK_MIN: usize = 32 << 10;
/// The smallest stack of a fiber, in bytes. Signal handlers do not run on a fiber's stack.
pub const FIBER_STACK_MIN: usize = 16 << 10;
/// The largest stack size that is accepted: 1 TiB.
pub const STACK_MAX: usize = 1 << 40;
/// How many unused fiber stacks of a scheduler keep their pages, at least (`fiber::StackConfig`).
pub const WARM_STACKS: usize = 64;
/// How many requests may wait for a worker on one scheduler.
pub const QUEUE_MAX: usize = 1 << 20;
/// How much higher the load of a preferred scheduler may be than that of the least loaded one, in
/// per cent.
pub const HINT_SLACK_PERCENT: usize = 20;

/// At how many schedulers a placement or a steal looks to find the best of all. In a node of more,
/// a placement looks at two that are chosen at random, and a steal at so many.
pub const LOOKS_MAX: usize = 8;

/// How often a placement draws a scheduler before it looks at all of them, because those that it
/// has drawn are offline.
pub const DRAWS_MAX: usize = 4;

/// How long a scheduler may make no progress before it creates workers beyond its soft limit: 10
/// ms.
pub const STANDSTILL_NS: u64 = 10_000_000;
/// How long a scheduler at its hard limit of workers may make no progress before that is reported
/// on stderr: 1 s.
pub const STANDSTILL_TOLD_NS: u64 = 1_000_000_000;
/// How long a request may be queued before a worker beyond the soft limit is created for it: 100
/// ms.
pub const OVERDUE_NS: u64 = 100_000_000;
/// The shortest time between the creation of two workers for overdue requests: 1 ms.
pub const OVERDUE_PAUSE_NS: u64 = 1_000_000;
/// How long a worker beyond the soft limit may be idle before it is destroyed: 10 s.
pub const TRIM_BEYOND_SOFT_AFTER_NS: u64 = 10_000_000_000;

/// Returns the soft limit of workers for this many processors, if the computer has memory for them.
pub fn soft_limit_for(cpus: usize) -> usize {
    let auto = match cpus {
        0..=4 => 512,
        5..=64 => cpus.saturating_sub(4).saturating_mul(16).saturating_add(512),
        _ => cpus.saturating_sub(4).saturating_mul(32).saturating_add(512),
    };
    auto.clamp(128, 32_767)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_soft_limit_follows_the_table_b14() {
        let table = [(1, 512), (4, 512), (8, 576), (16, 704), (32, 960), (64, 1472), (128, 4480)];
        for (cpus, workers) in table {
            assert_eq!(super::soft_limit_for(cpus), workers, "{cpus} CPUs");
        }
        assert_eq!(super::soft_limit_for(256), 8576);
        assert_eq!(super::soft_limit_for(1 << 20), 32_767);
    }
}
