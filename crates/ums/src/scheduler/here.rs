//! Which scheduler the calling code is on: the first question of every entry into the library.

#![allow(unsafe_code)] // Named invariant "Baton", in the module's header.

use super::Scheduler;
use super::contexts;
use super::state::HERE;
use crate::os::entry::{self, Inside};

/// The scheduler whose baton the calling code holds, and cannot lose as long as this lives: the
/// worker is inside the library (`os/entry`).
pub(crate) struct Here {
    scheduler: &'static Scheduler,
    #[allow(dead_code)] // Kept for its drop.
    inside: Inside,
}

impl std::ops::Deref for Here {
    type Target = Scheduler;
    #[inline(always)]
    fn deref(&self) -> &Scheduler {
        self.scheduler
    }
}

impl Here {
    /// Returns whether it is this one.
    #[inline]
    pub(crate) fn is(&self, other: &Scheduler) -> bool {
        std::ptr::eq(self.scheduler, other)
    }
}

/// Returns the scheduler whose baton the calling code holds: None on a plain thread, and in a
/// preemptive worker. A worker that has lost the baton without noticing has it again when this
/// returns.
///
/// An operation of several steps keeps the returned value until the last of them: what was found
/// before a step may have changed after it.
#[inline]
pub(crate) fn here() -> Option<Here> {
    let inside = Inside::enter()?;
    // SAFETY: Baton: the pointer is set by a thread of the scheduler, which keeps its `Arc` until
    // it has cleared the pointer. The value claims 'static, but stays inside this file: it is lent
    // for as long as the calling code is inside.
    match unsafe { HERE.get().as_ref() } {
        Some(scheduler) => Some(Here { scheduler, inside }),
        None => settled(inside),
    }
}

/// Does the same for a thread that has no scheduler: it may be a worker that is allowed to run
/// without the baton, which ends now.
#[cold]
fn settled(inside: Inside) -> Option<Here> {
    match crate::watch::thread::me() {
        Some(me) => me.settle(),
        None => contexts::settle(),
    }
    // SAFETY: Baton: as above.
    let scheduler = unsafe { HERE.get().as_ref() };
    scheduler.map(|scheduler| Here { scheduler, inside })
}

/// Does the same if the calling code has interrupted code outside the library; returns None
/// otherwise.
pub(crate) fn here_from_outside() -> Option<Here> {
    if entry::is_inside() { None } else { here() }
}
