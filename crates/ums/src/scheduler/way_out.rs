//! The way by which a worker leaves its stack, once it has handed the baton on. In a file of its
//! own, because a scheduler's data names the type, too.

use fiber::Suspender;

use super::kinds::Pass;

/// How the worker that was current leaves its stack. Two words, so that it is returned in
/// registers.
pub(super) enum WayOut {
    /// It does not leave: it was chosen itself, or has the baton again; or the caller is the root
    /// loop of the host thread, which resumes the current fiber next.
    Stay,
    /// No worker can run: the caller hosts the idle loop.
    Nowhere,
    /// A fiber suspends itself.
    Suspend(Suspender),
    /// A worker with its own context switches to the next one.
    Pass(*const Pass),
}
