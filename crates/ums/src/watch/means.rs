//! Two types that the layers above share with this folder: how likely a call is to block, and by
//! which mechanism a blocked thread is detected.

/// How likely a call is to block, judged before it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blocks {
    /// The call is unlikely to block, because the thing that it waits for is available.
    Unlikely,
    /// The call may or may not block.
    Unknown,
    /// The call will block, because the thing that it waits for is not available.
    Certain,
}

impl From<bool> for Blocks {
    /// Returns `Certain` for true, and otherwise `Unknown`.
    fn from(certain: bool) -> Blocks {
        if certain { Blocks::Certain } else { Blocks::Unknown }
    }
}

/// The mechanism by which blocked threads are detected, and stopped when they wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// A perf event on context switches that sends SIGTRAP. Covers every system call and page
    /// fault.
    Trap,
    /// Needs no privilege: records of context switches, gates at interposed calls, and a breakpoint
    /// for all other calls.
    Breakpoint,
    /// Needs no perf events: gates at interposed calls only (see [`crate::interpose`]). Other
    /// blocking calls and faults hold up the processor.
    Calls,
}

impl Mechanism {
    /// All mechanisms, the best first.
    pub const ALL: [Mechanism; 3] = [Mechanism::Trap, Mechanism::Breakpoint, Mechanism::Calls];

    /// Returns the name that the environment variable `UMS_WATCH` takes.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Trap => "trap",
            Mechanism::Breakpoint => "breakpoint",
            Mechanism::Calls => "calls",
        }
    }
}
