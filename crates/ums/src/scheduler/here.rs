//! Finds the scheduler that the calling code runs on ([`here`]). Every entry into the library
//! begins with this call.

use super::Scheduler;
use super::state::of_this_thread;
use crate::os::entry::{self, BatonNumber, Inside};

/// The scheduler whose baton the calling code holds. While this value is alive, the worker is
/// inside the library (`os/entry`) and cannot lose the baton.
pub(crate) struct Here {
    scheduler: &'static Scheduler,
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
    /// Returns the number by which short locks know the calling code, as long as this value lives.
    #[inline(always)]
    pub(crate) fn holder_number(&self) -> BatonNumber<'_> {
        self.inside.holder_is(self.scheduler.holder_number)
    }

    /// Returns what keeps the calling code inside the library.
    #[inline(always)]
    pub(crate) fn inside(&self) -> &Inside {
        &self.inside
    }

    /// Returns whether the calling code runs on the scheduler `other`.
    #[inline]
    pub(crate) fn is(&self, other: &Scheduler) -> bool {
        std::ptr::eq(self.scheduler, other)
    }
}

/// Returns the scheduler whose baton the calling code holds. Returns None on a plain thread, and in
/// a preemptive worker. If the baton was taken from the calling worker outside the library, the
/// worker gets it again before this returns.
///
/// An operation of several steps keeps the returned value until its last step. Without the value,
/// the baton may be taken between two steps, and data that was read before may have changed.
#[inline]
pub(crate) fn here() -> Option<Here> {
    let inside = Inside::enter()?;
    // The reference claims 'static, but stays inside this file: callers can use it only while they
    // are inside the library.
    match of_this_thread() {
        Some(scheduler) => Some(Here { scheduler, inside }),
        None => settled(inside),
    }
}

/// Does what [`here`] does, but returns None also to a worker that was allowed to run without the
/// baton: it goes on without it.
#[inline]
pub(crate) fn here_with_baton() -> Option<Here> {
    let inside = Inside::enter()?;
    of_this_thread().map(|scheduler| Here { scheduler, inside })
}

/// The second half of [`here`], for a thread that has no scheduler at this moment. A worker that
/// was allowed to run without the baton loses that permission here, and rejoins its scheduler,
/// unless the calling code is a signal handler.
#[cold]
fn settled(inside: Inside) -> Option<Here> {
    crate::watch::calls::settle();
    of_this_thread().map(|scheduler| Here { scheduler, inside })
}

/// Does what [`here`] does if the calling code runs outside the library. Returns None inside the
/// library, for example in a signal handler that has interrupted the library's code.
pub(crate) fn here_from_outside() -> Option<Here> {
    if entry::is_inside() { None } else { here() }
}

/// Calls `f` with the scheduler that the calling thread belongs to, even if another thread has
/// taken the baton from this thread.
pub(super) fn with_scheduler_of_this_thread(f: impl FnOnce(Option<&Scheduler>)) {
    // During this call the thread does not clear the reference, or sets it to the same value again.
    f(of_this_thread())
}
