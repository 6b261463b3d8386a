//! Bugs that are planted on purpose, to check that the simulation finds them, in a build with the
//! feature `sim` and with debug assertions.
//!
//! Each is a mistake that is easily made in this code, such as a forgotten line or a comparison
//! that is off by one, and is planted where it would be made. In other builds, [`is`] is a
//! constant, so the compiler removes the bugs. The environment variable `UMS_PLANTED` chooses one
//! bug for the whole process. The command that tries all of them is in docs/reliability.md.

macro_rules! bugs {
    ($($(#[$doc:meta])* $bug:ident = $name:literal,)*) => {
        /// A planted bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug { $($(#[$doc])* $bug,)* }

        /// All bugs, by name.
        pub const ALL: &[(&str, Bug)] = &[$(($name, Bug::$bug),)*];
    };
}

bugs! {
    /// A push into an inbox does not wake its scheduler.
    DroppedWake = "dropped-wake",
    /// A worker that returns from a preemptive call continues immediately, without the baton.
    TwoBatons = "two-batons",
    /// If one reap finds several completions, all but the first are lost.
    LostCompletion = "lost-completion",
    /// The last waiter of a lock is granted it first.
    WrongFifo = "wrong-fifo",
    /// A request that is cancelled in the work queue still counts in the load of its scheduler.
    LeakOnCancel = "leak-on-cancel",
    /// A scheduler sleeps without looking again at its inbox and its queue.
    OneSidedWakeCheck = "one-sided-wake-check",
    /// A fiber's stack is returned to the pool while the fiber uses it.
    StackReusedTooEarly = "stack-reused-too-early",
    /// A timer expires a nanosecond before its time.
    TimerOffByOne = "timer-off-by-one",
    /// An idle scheduler takes workers out of the inbox of another.
    StealOfAStartedWorker = "steal-of-a-started-worker",
    /// Workers that are destroyed because they were idle too long are not counted.
    CounterDrift = "counter-drift",
}

/// Returns true if this bug is planted in this process.
#[cfg(not(all(feature = "sim", debug_assertions)))]
#[inline(always)]
pub const fn is(_: Bug) -> bool {
    false
}

/// Returns true if this bug is planted in this process.
#[cfg(all(feature = "sim", debug_assertions))]
pub fn is(bug: Bug) -> bool {
    use std::sync::OnceLock;

    static WHICH: OnceLock<Option<Bug>> = OnceLock::new();
    let which = WHICH.get_or_init(|| {
        let name = std::env::var("UMS_PLANTED").ok()?;
        let found = ALL.iter().find(|(other, _)| *other == name);
        Some(found.unwrap_or_else(|| panic!("there is no planted bug called {name}")).1)
    });
    *which == Some(bug)
}
