//! What a scheduler keeps for workers with their own context.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use context::Context;

use crate::os::sim::carry::Carried;
use crate::os::threads::JoinHandle;
use crate::watch::carriers::Carriers;
use crate::watch::{Pokes, StateFile};

/// What makes a worker with its own context run.
pub(crate) struct Own {
    /// The context in its waiter.
    pub(super) context: *const Context,
    pub(super) thread: JoinHandle,
}

/// The two sides of the next switch. Kept in one place, so that a way out is two words.
pub(crate) struct Pass {
    pub(super) from: *const Context,
    pub(super) to: *const Context,
}

/// What only the baton's holder touches.
pub(crate) struct Switching {
    /// The host thread's own context, or that of a carried scheduler's root; null for workers of
    /// other kinds.
    pub(super) root: *const Context,
    pub(super) pass: Box<Pass>,
}

impl Switching {
    /// Returns what a scheduler has before it is hosted.
    pub(in crate::scheduler) fn new() -> Switching {
        let pass = Pass { from: std::ptr::null(), to: std::ptr::null() };
        Switching { root: std::ptr::null(), pass: Box::new(pass) }
    }
}

/// What any thread may reach.
#[derive(Default)]
pub(crate) struct Hosting {
    /// The signals that the host blocks.
    pub(super) mask: AtomicU64,
    /// The file that tells what the host thread does.
    pub(super) state_file: StateFile,
    /// The carriers, if the scheduler is tied to no host thread.
    pub(super) carriers: OnceLock<Carriers>,
    /// The block for which the host was interrupted last, and how often.
    pub(super) poked: AtomicU64,
    pub(super) pokes: Pokes,
    /// In a simulated world, the place of the host thread while contexts change on it.
    pub(super) carried: Carried,
}

impl Hosting {
    /// Returns whether carriers host the scheduler.
    pub(in crate::scheduler) fn has_carriers(&self) -> bool {
        self.carriers.get().is_some()
    }

    /// Returns the signals that the host blocks.
    pub(in crate::scheduler) fn mask(&self) -> u64 {
        self.mask.load(Ordering::Relaxed)
    }
}
