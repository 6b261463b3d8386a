//! The data that a scheduler keeps for workers with their own context.

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use context::Context;

use crate::os::sim::carry::Carried;
use crate::os::threads::ThreadHandle;
use crate::watch::carriers::Carriers;
use crate::watch::{Pokes, StateFile};

/// How a worker with its own context is made to run.
pub(crate) struct Own {
    /// The worker's context, which is part of its waiter.
    pub(super) context: NonNull<Context>,
    pub(super) thread: Box<ThreadHandle>,
}

/// The data that only the baton's holder touches.
pub(crate) struct Switching {
    /// The host thread's own context, or that of a carried scheduler's root; dangling for workers
    /// of other kinds.
    pub(super) root: NonNull<Context>,
}

impl Switching {
    /// Returns the data of a scheduler that no thread hosts yet.
    pub(in crate::scheduler) fn new() -> Switching {
        Switching { root: NonNull::dangling() }
    }
}

/// The data that any thread may access.
#[derive(Default)]
pub(crate) struct Hosting {
    /// The signals that the host thread blocks.
    pub(super) mask: AtomicU64,
    /// The file in which the kernel says what the host thread does.
    pub(super) state_file: StateFile,
    /// The carriers, if the scheduler is tied to no host thread.
    pub(super) carriers: OnceLock<Carriers>,
    /// The block for which the host was last interrupted; `pokes` counts how often it was.
    pub(super) poked: AtomicU64,
    pub(super) pokes: Pokes,
    /// The host thread's membership in a simulated world, which contexts pass to each other.
    pub(super) carried: Carried,
}

impl Hosting {
    /// Returns whether carriers host the scheduler.
    pub(super) fn has_carriers(&self) -> bool {
        self.carriers.get().is_some()
    }

    /// Returns the signals that the host thread blocks.
    pub(super) fn mask(&self) -> u64 {
        self.mask.load(Ordering::Relaxed)
    }
}
