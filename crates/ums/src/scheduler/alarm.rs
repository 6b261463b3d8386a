//! The alarm: how schedulers wake the monitor, and report events to it that it would not see
//! itself.
//!
//! While every scheduler sleeps, the monitor sleeps without a deadline, so a scheduler that wakes
//! up must wake the monitor. Schedulers also report events here that end before the monitor can
//! look, such as an I/O request that took too long. Neither the wake-up nor the report happens on
//! the switch path; without a monitor, each costs a fence and a load.
//!
//! No wake-up is lost, by the proof in os/asleep. The monitor is the sleeper: after its
//! announcement it looks again whether any scheduler is awake. A scheduler that has woken up is the
//! waker.

use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use super::{Scheduler, here};
use crate::os::asleep::Asleep;
use crate::os::counted::AtomicU64;
use crate::os::event::ThreadEvent;
use crate::os::lock::Lock;
use crate::record::frame::callers_of;
use crate::scheduler::request::{RequestId, UserId};

/// The shortest I/O submission that is reported to the monitor, in nanoseconds; [`NO_WORKER`] if
/// there is no monitor.
static LISTENS_FROM: AtomicU64 = AtomicU64::new(NO_WORKER);
#[cfg(not(loom))]
static ASLEEP: Asleep = Asleep::new();
#[cfg(loom)] // Its atomics are made at run time.
static ASLEEP: LazyLock<Asleep> = LazyLock::new(Asleep::new);
static EVENT: LazyLock<ThreadEvent> = LazyLock::new(ThreadEvent::new);
static NOTES: Lock<Vec<Note>> = Lock::new(Vec::new());

/// The argument of [`listen`] when the monitor ends.
pub(crate) const NO_WORKER: u64 = u64::MAX;
/// The most notes of one kind from one scheduler. There can be more events only while the monitor
/// is delayed; the last note then counts the rest.
const NOTES_MAX: usize = 8;

/// A kind of event that a worker has noticed itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noticed {
    /// A slow wait for a file.
    SlowIo,
    /// A submission of I/O that held the scheduler up.
    SlowSubmission,
}

/// An event that has ended, reported to the monitor.
pub(crate) struct Note {
    pub what: Noticed,
    pub at: Arc<Scheduler>,
    pub worker: u32,
    pub request: RequestId,
    pub user: UserId,
    /// How long the event took, in nanoseconds.
    pub took_ns: u64,
    pub fd: i32,
    /// How many more events of this kind, on this scheduler, have no note of their own.
    pub more: u64,
    /// The backtrace of the event's cause: return addresses, the innermost first.
    pub addresses: Vec<usize>,
}

/// Wakes the monitor, if it sleeps, because a scheduler is awake again.
pub(crate) fn stir() {
    if ASLEEP.wake() {
        EVENT.set();
    }
}

/// Sets the shortest I/O submission that is reported to the monitor; [`NO_WORKER`] to report none.
pub(crate) fn listen(from_ns: u64) {
    LISTENS_FROM.store(from_ns, Ordering::Release);
}

/// Wakes the monitor, whether it sleeps with or without a deadline.
pub(crate) fn ring() {
    ASLEEP.withdraw();
    EVENT.set();
}

/// Lets the monitor sleep until the deadline or until [`ring`] wakes it.
pub(crate) fn sleep_until(deadline: u64) {
    EVENT.wait_until(deadline);
}

/// Lets the monitor sleep until a scheduler wakes up, but not beyond the time that `quiet_until`
/// returns. `quiet_until` is called after the announcement, and returns None if any scheduler is
/// awake; then the monitor does not sleep.
pub(crate) fn sleep_while(quiet_until: impl FnOnce() -> Option<u64>) {
    ASLEEP.announce();
    if let Some(deadline) = quiet_until() {
        EVENT.wait_until(deadline);
    }
    ASLEEP.withdraw();
}

/// Returns what has been noted since the last call.
pub(crate) fn notes() -> Vec<Note> {
    std::mem::take(&mut *NOTES.lock())
}

/// If [`NOTES_MAX`] of these notes are of this kind and from this scheduler, counts the event in
/// the last of them and returns true.
fn is_one_too_many(notes: &mut [Note], what: Noticed, at: &Scheduler) -> bool {
    let alike = notes.iter_mut().filter(|note| note.what == what && std::ptr::eq(&*note.at, at));
    let last = alike.skip(NOTES_MAX - 1).last();
    last.map(|note| note.more += 1).is_some()
}

/// Returns whether a monitor with this shortest submission is told of an event that took this long.
fn is_told(from_ns: u64, what: Noticed, took_ns: u64) -> bool {
    from_ns != NO_WORKER && (what != Noticed::SlowSubmission || took_ns >= from_ns)
}

/// Reports to the monitor, if there is one, what the calling worker has noticed.
#[cold]
#[inline(never)]
pub(crate) fn note(what: Noticed, took_ns: u64, fd: i32) {
    let told = is_told(LISTENS_FROM.load(Ordering::Acquire), what, took_ns);
    let Some(scheduler) = here().filter(|_| told) else { return };
    if is_one_too_many(&mut NOTES.lock(), what, &scheduler) {
        return;
    }
    let waiter = scheduler.current_waiter();
    let of = |field: &std::sync::atomic::AtomicU64| field.load(Ordering::Relaxed);
    let note = Note {
        what,
        at: scheduler.arc(),
        worker: waiter.worker.load(Ordering::Relaxed),
        request: of(&waiter.record.view.request),
        user: of(&waiter.record.view.user),
        took_ns,
        fd,
        more: 0,
        addresses: callers_of(note as *const (), 64),
    };
    NOTES.lock().push(note);
    ring();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Node;

    #[test]
    fn a_monitor_is_told_of_submissions_from_its_shortest_one_on_and_of_every_slow_wait() {
        let submission = |took_ns| is_told(50, Noticed::SlowSubmission, took_ns);
        assert_eq!([49, 50, 51].map(submission), [false, true, true]);
        assert!(is_told(50, Noticed::SlowIo, 1));
        let kinds = [Noticed::SlowSubmission, Noticed::SlowIo];
        assert!(kinds.iter().all(|kind| !is_told(NO_WORKER, *kind, u64::MAX)), "no monitor");
    }

    #[test]
    fn events_for_which_there_is_no_note_are_counted_in_the_last_note_of_their_kind() {
        let node = Node::builder().schedulers(1).build().unwrap();
        let at = node.run(|| here().expect("it runs on a worker").arc());
        let note = |what| Note {
            what,
            at: at.clone(),
            worker: 0,
            request: 0,
            user: 0,
            took_ns: 0,
            fd: -1,
            more: 0,
            addresses: Vec::new(),
        };
        let mut notes = vec![note(Noticed::SlowSubmission)];
        for _ in 0..NOTES_MAX {
            assert!(!is_one_too_many(&mut notes, Noticed::SlowIo, &at), "there is room for it");
            notes.push(note(Noticed::SlowIo));
        }
        for _ in 0..3 {
            assert!(is_one_too_many(&mut notes, Noticed::SlowIo, &at));
        }
        assert!(!is_one_too_many(&mut notes, Noticed::SlowSubmission, &at));
        let counted: Vec<_> = notes.iter().map(|note| note.more).collect();
        assert_eq!(counted, [0, 0, 0, 0, 0, 0, 0, 0, 3]);
    }
}
