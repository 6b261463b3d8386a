//! The alarm: what schedulers tell the monitor, which otherwise only looks at them.
//!
//! The monitor sleeps for good while every scheduler does, so one that wakes up has to wake it. It
//! also learns here of what is over before it could look: an I/O request that took too long, for
//! one. Both happen far from the switch path, and cost a fence and a load while nobody listens.
//!
//! No wake-up is lost, by the argument of scheduler/inbox:
//!
//! ```text
//!   scheduler                              monitor
//!   W1 says that it is awake (its inbox)    M1 says that it sleeps
//!   W2 fence                               M2 fence
//!   W3 looks whether the monitor sleeps    M3 looks whether any scheduler is awake
//!   W4 if so, sets its event               M4 if not, waits on its event
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use super::{Scheduler, here};
use crate::os::event::Event;
use crate::record::frame::callers_of;
use crate::scheduler::request::{RequestId, UserId};

/// Shortest submission that the monitor wants to hear of, in nanoseconds; [`NOBODY`]: there is no
/// monitor.
static LISTENS_FROM: AtomicU64 = AtomicU64::new(NOBODY);
static ASLEEP: AtomicBool = AtomicBool::new(false);
static EVENT: LazyLock<Event> = LazyLock::new(Event::new);
static NOTES: Mutex<Vec<Note>> = Mutex::new(Vec::new());

/// What [`listen`] is told when nobody does.
pub(crate) const NOBODY: u64 = u64::MAX;
/// More notes of one kind and scheduler than this wait for the monitor only when it is held up; the
/// last one counts the rest.
const NOTES_MAX: usize = 8;

/// What a worker noticed itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noticed {
    /// A wait for a file was slow (B50).
    SlowIo,
    /// Submitting I/O held the scheduler up (B51).
    SlowSubmission,
}

/// Something that is over.
pub(crate) struct Note {
    pub what: Noticed,
    pub at: Arc<Scheduler>,
    pub worker: u32,
    pub request: RequestId,
    pub user: UserId,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    pub fd: i32,
    /// More of its kind on its scheduler, which found no place.
    pub more: u64,
    /// Who did it: return addresses, the innermost first.
    pub addresses: Vec<usize>,
}

/// A scheduler is awake again: so shall be the monitor (W2..W4).
pub(crate) fn stir() {
    fence(Ordering::SeqCst);
    if ASLEEP.load(Ordering::Relaxed) && ASLEEP.swap(false, Ordering::Relaxed) {
        EVENT.set();
    }
}

/// From now on there is a monitor that wants to hear of submissions as long as this, or of nothing
/// any more: [`NOBODY`].
pub(crate) fn listen(from_ns: u64) {
    LISTENS_FROM.store(from_ns, Ordering::Release);
}

/// Wakes the monitor, whether it sleeps for good or for a moment.
pub(crate) fn ring() {
    ASLEEP.store(false, Ordering::Relaxed);
    EVENT.set();
}

/// The monitor sleeps until the deadline or until it is rung for.
pub(crate) fn sleep_until(deadline: u64) {
    EVENT.wait_until(deadline);
}

/// The monitor sleeps until a scheduler wakes up, if none is awake; until the time that it is given
/// then, at the latest.
pub(crate) fn sleep_while(quiet_until: impl FnOnce() -> Option<u64>) {
    ASLEEP.store(true, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    if let Some(deadline) = quiet_until() {
        EVENT.wait_until(deadline);
    }
    ASLEEP.store(false, Ordering::Relaxed);
}

/// What has been noted since the last time.
pub(crate) fn notes() -> Vec<Note> {
    std::mem::take(&mut *lock())
}

fn lock() -> MutexGuard<'static, Vec<Note>> {
    NOTES.lock().unwrap_or_else(|e| e.into_inner())
}

/// Counts it with the last of its kind, if there are so many that it gets no place of its own.
fn is_one_too_many(what: Noticed, at: &Scheduler) -> bool {
    let mut notes = lock();
    let alike = notes.iter_mut().filter(|note| note.what == what && std::ptr::eq(&*note.at, at));
    let last = alike.skip(NOTES_MAX - 1).last();
    last.map(|note| note.more += 1).is_some()
}

/// The calling worker noticed something, if there is a monitor to tell.
#[cold]
#[inline(never)]
pub(crate) fn note(what: Noticed, took_ns: u64, fd: i32) {
    let from = LISTENS_FROM.load(Ordering::Acquire);
    let unheard = from == NOBODY || (what == Noticed::SlowSubmission && took_ns < from);
    let Some(scheduler) = here().filter(|_| !unheard) else { return };
    if is_one_too_many(what, &scheduler) {
        return;
    }
    let waiter = scheduler.current_waiter();
    let of = |field: &std::sync::atomic::AtomicU64| field.load(Ordering::Relaxed);
    let note = Note {
        what,
        at: scheduler.arc(),
        worker: waiter.worker.load(Ordering::Relaxed),
        request: of(&waiter.view.request),
        user: of(&waiter.view.user),
        took_ns,
        fd,
        more: 0,
        addresses: callers_of(note as *const (), 64),
    };
    lock().push(note);
    ring();
}
