//! Bugs that are planted on purpose, to see that the simulation finds them (feature `planted`).
//!
//! Each is a mistake of the kind that people make here: a line forgotten, a comparison that is off
//! by one. They stand where they would be made, behind the feature, and a build without it has none
//! of them. One of them is chosen for the whole process, by `UMS_PLANTED`; the command that tries
//! them all is in docs/reliability.md.

use std::sync::OnceLock;

macro_rules! bugs {
    ($($(#[$doc:meta])* $bug:ident = $name:literal,)*) => {
        /// A mistake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug { $($(#[$doc])* $bug,)* }

        /// All of them, by name.
        pub const ALL: &[(&str, Bug)] = &[$(($name, Bug::$bug),)*];
    };
}

bugs! {
    /// Who pushes through a inbox does not wake its scheduler.
    DroppedWake = "dropped-wake",
    /// Who comes home from being preemptive goes on at once.
    TwoBatons = "two-batons",
    /// Of several completions in one look the last is lost.
    LostCompletion = "lost-completion",
    /// The last who waits for a lock gets it first.
    WrongFifo = "wrong-fifo",
    /// A request that is cancelled in the queue stays in the load of its scheduler.
    LeakOnCancel = "leak-on-cancel",
    /// A scheduler sleeps without a last look at its inbox and its queue.
    OneSidedWakeCheck = "one-sided-wake-check",
    /// A fiber's stack goes back to the pool when the fiber has it.
    StackReusedTooEarly = "stack-reused-too-early",
    /// A timer expires a nanosecond before its time.
    TimerOffByOne = "timer-off-by-one",
    /// An idle scheduler takes workers that wait at another's inbox.
    StealOfAStartedWorker = "steal-of-a-started-worker",
    /// Workers that are trimmed are not counted.
    CounterDrift = "counter-drift",
}

/// Whether this one is planted in this process.
pub fn is(bug: Bug) -> bool {
    static WHICH: OnceLock<Option<Bug>> = OnceLock::new();
    let which = WHICH.get_or_init(|| {
        let name = std::env::var("UMS_PLANTED").ok()?;
        let found = ALL.iter().find(|(other, _)| *other == name);
        Some(found.unwrap_or_else(|| panic!("no bug is called {name}")).1)
    });
    *which == Some(bug)
}
