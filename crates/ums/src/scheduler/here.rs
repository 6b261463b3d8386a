//! Which scheduler the calling code is on: the first question of every entry into the library.

#![allow(unsafe_code)] // Named invariant "Baton", in the module's header.

use super::Scheduler;
use super::lent;
use super::state::HERE;
use crate::os::entry::{self, Inside};

/// The scheduler whose baton the calling code holds, and cannot lose as long as this lives: the
/// worker is inside (`os/entry`).
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
    /// Whether it is this one.
    #[inline]
    pub(crate) fn is(&self, other: &Scheduler) -> bool {
        std::ptr::eq(self.scheduler, other)
    }
}

/// The scheduler whose baton the calling code holds: None on a plain thread, and in a worker that
/// has gone preemptive. A worker that has lost the baton without knowing it has it again when this
/// returns.
///
/// What comes in several steps keeps what this gives until the last of them: what was asked before
/// another step may be no longer so.
#[inline]
pub(crate) fn here() -> Option<Here> {
    let inside = Inside::enter()?;
    // SAFETY: Baton: the pointer is set by a thread of the scheduler, which keeps its `Arc` until
    // it has cleared the pointer. The 'static is a lie that stays inside this file: it is lent for
    // as long as the calling code is inside.
    match unsafe { HERE.get().as_ref() } {
        Some(scheduler) => Some(Here { scheduler, inside }),
        None => settled(inside),
    }
}

/// As [`here`], of a thread that has none: it may be a worker that runs without the baton for a
/// moment, which ends now.
#[cold]
fn settled(inside: Inside) -> Option<Here> {
    match crate::watch::thread::me() {
        Some(me) => me.settle(),
        None => lent::settle(),
    }
    // SAFETY: Baton: as above.
    let scheduler = unsafe { HERE.get().as_ref() };
    scheduler.map(|scheduler| Here { scheduler, inside })
}

/// As [`here`], where the calling code has interrupted code outside the library; None anywhere
/// else.
pub(crate) fn here_from_outside() -> Option<Here> {
    if entry::is_inside() { None } else { here() }
}
