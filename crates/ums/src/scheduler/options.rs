//! How a scheduler is made: the decisions of the builder.

use fiber::StackPool;

/// What a worker is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WorkerKind {
    /// A kernel thread, the default: sound with any code.
    #[default]
    Thread,
    /// A fiber: fast to switch, shares the thread-locals of its host thread with other fibers.
    Fiber,
    /// A thread that is switched to like a fiber: its thread-locals and identity are its own.
    OwnContext,
}

impl WorkerKind {
    /// Returns whether each worker is a thread to Rust and to C, with thread-locals and a panic
    /// count of its own, and can leave its scheduler. Fibers are not.
    #[inline]
    pub(crate) fn is_thread(self) -> bool {
        self != WorkerKind::Fiber
    }
}

/// How many workers a node or a scheduler may have; see `limit`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerLimit {
    /// The most workers.
    pub hard: usize,
    /// The number of workers beyond which more are created only if none becomes free.
    pub soft: usize,
    /// What the computer has too little of for more workers; `None` if the builder was given the
    /// number.
    pub set_by: Option<&'static str>,
}

/// How a scheduler is made.
#[derive(Clone, Debug)]
pub(crate) struct SchedulerOptions {
    pub name: String,
    pub kind: WorkerKind,
    pub visible: bool,
    pub limit: WorkerLimit,
    pub workers_floor: usize,
    pub workers_ready: usize,
    pub preemptive_max: usize,
    pub queue_max: usize,
    pub stack_size: usize,
    pub precommit: bool,
    pub trim_after_ns: u64,
    /// How long to poll for work before sleeping; `None` for as long as it pays (`spin`).
    pub idle_spin_ns: Option<u64>,
    /// How long to look for the next request of a user that holds a lock, before the scheduler
    /// sleeps.
    pub holder_spin_ns: u64,
    pub queue_timeout_ns: u64,
    pub passed_max: u32,
    pub steal: bool,
    pub pin: Option<usize>,
    /// The nice value of its threads; 0 for that of the thread that starts it.
    pub nice: i32,
    /// Whether interposed C functions that may block go preemptive when its workers call them.
    pub detect_blocking: bool,
    /// Whether a thread worker that is blocked for about 10 ms loses the scheduler.
    pub take_over_blocked: bool,
    pub io: crate::os::linux::open::Choice,
    pub ring: bool,
    /// Whether messages about it go to stderr.
    pub warnings: bool,
    /// Whether the program is one in C, so that advice names functions and flags of `ums.h`.
    pub for_c: bool,
}

impl SchedulerOptions {
    /// Returns a pool of stacks for workers of this kind.
    pub(super) fn stacks(&self) -> StackPool {
        // Beside the end of a thread, a page fault at the start of the next one is cheap.
        let is_thread = self.kind.is_thread();
        let config = fiber::StackConfig {
            size: self.stack_size,
            precommit: self.precommit && !is_thread,
            keep_warm: if is_thread { 0 } else { crate::os::limits::WARM_STACKS },
        };
        match is_thread {
            true => StackPool::for_threads(config),
            false => StackPool::new(config),
        }
    }
}
