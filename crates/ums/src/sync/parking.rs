//! Parking: one wait of the caller, for components that keep a waiter list of their own.
//!
//! The locks of this folder decide which waiter runs when. A component with rules of its own, such
//! as the lock table of a database, keeps its own state and its own list of [`Sleeper`]s behind a
//! lock that it holds for a few instructions, and uses this file only for the wait:
//!
//! ```text
//!   waiter:   lock -> look -> park(|sleeper| push it, unlock)      ... woken or failed
//!   waker:    lock -> change the state, claim sleepers -> unlock -> run those claimed
//! ```
//!
//! No wake-up is lost: the wait has begun before the sleeper is pushed, and the list's own lock
//! orders the push before the waker's check. A sleeper whose wait has failed stays harmless: its
//! claim fails (One Outcome).
//!
//! This file keeps no list: the caller removes a sleeper whose wait has failed.

use std::panic::resume_unwind;
use std::time::Instant;

use super::patience::Patience;
use crate::current;
use crate::os::clock::NEVER;
use crate::record::reason::WaitReason;
use crate::scheduler::request::UserId;
use crate::wait::error::WaitError;
use crate::wait::{Claimed, Ticket, Waiter, What};

/// The holder of something that others wait for, as views show it: a user if the holder carries out
/// a user's request, otherwise a worker or thread.
#[derive(Clone, Copy)]
pub struct Holder {
    waiter: &'static Waiter,
    user: UserId,
}

impl Holder {
    /// Returns the caller as a holder.
    pub fn current() -> Holder {
        Holder { waiter: current::waiter(), user: current::user() }
    }

    /// Returns the user whose request the holder carries out; 0 means none.
    pub fn user(self) -> UserId {
        self.user
    }
}

impl PartialEq for Holder {
    fn eq(&self, other: &Holder) -> bool {
        std::ptr::eq(self.waiter, other.waiter) && self.user == other.user
    }
}

impl std::fmt::Debug for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Holder(user {})", self.user)
    }
}

/// A wait that another worker or thread can end, once.
#[derive(Clone, Copy, PartialEq)]
pub struct Sleeper(Ticket);

impl Sleeper {
    /// Ends the wait; returns `None` if it has ended already. It may be called under the lock of
    /// the list.
    pub fn claim(self) -> Option<Woken> {
        self.0.claim(crate::wait::Outcome::Granted).map(Woken)
    }

    /// Ends the wait and makes the sleeper run. Returns false if the wait had ended already.
    pub fn wake(self) -> bool {
        self.claim().map(Woken::run).is_some()
    }
}

impl std::fmt::Debug for Sleeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_waiting() { "Sleeper(waits)" } else { "Sleeper(woken)" })
    }
}

/// A sleeper whose wait has ended and which does not run yet.
#[must_use = "a claimed sleeper sleeps forever unless it is made to run"]
pub struct Woken(Claimed);

impl Woken {
    /// Puts the worker on its runnable list, or wakes its thread.
    pub fn run(self) {
        current::ready(self.0);
    }
}

impl std::fmt::Debug for Woken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Woken")
    }
}

/// A wait, described before it begins: its reason, what it waits for, and how long.
///
/// ```
/// use std::sync::Mutex;
/// use ums::sync::{Sleeper, Wait};
/// let list: Mutex<Vec<Sleeper>> = Mutex::new(Vec::new());
/// std::thread::scope(|s| {
///     s.spawn(|| Wait::new(ums::WaitReason::OTHER).park(|me| list.lock().unwrap().push(me)));
///     while !list.lock().unwrap().pop().is_some_and(Sleeper::wake) {
///         std::thread::yield_now();
///     }
/// });
/// ```
#[derive(Clone, Copy)]
#[must_use = "it waits when `park` is called"]
pub struct Wait {
    what: What,
    deadline: u64,
}

impl Wait {
    /// Describes a wait with this reason, without a deadline, that is cancelled with its work
    /// request.
    pub fn new(reason: WaitReason) -> Wait {
        Wait { what: What::new(reason), deadline: NEVER }
    }

    /// Names the resource waited for, by its address.
    pub fn on<T>(mut self, resource: &T) -> Wait {
        self.what = self.what.on(resource);
        self
    }

    /// Names the holder of the resource, for views and deadlock reports.
    pub fn held_by(mut self, holder: Option<Holder>) -> Wait {
        self.what = match holder {
            Some(Holder { user, .. }) if user != 0 => self.what.blocked_by_user(user),
            other => self.what.blocked_by(other.map(|h| h.waiter)),
        };
        self
    }

    /// Sets a deadline.
    pub fn until(mut self, deadline: Instant) -> Wait {
        self.deadline = Patience::Until(deadline).deadline();
        self
    }

    /// Makes the wait ignore cancellation, for waits that must not fail.
    pub fn uncancellable(mut self) -> Wait {
        self.what = self.what.uncancellable();
        self
    }

    /// Waits. `queue` receives the sleeper and stores it where the waker will find it, or wakes it
    /// itself; then the wait ends immediately. `queue` runs on the caller's stack. It may lock,
    /// send, spawn and wake, but a wait or yield in it is refused.
    ///
    /// # Errors
    /// [`WaitError`] if the deadline passed or the work request was cancelled.
    ///
    /// # Panics
    /// Passes on a panic of `queue`, which also panics if it tries to wait, to yield or to leave
    /// its scheduler; the wait is then abandoned. Panics if the caller must not wait: in a
    /// completion routine, and in the `queue` of another wait.
    pub fn park(self, queue: impl FnOnce(Sleeper)) -> Result<(), WaitError> {
        let ticket = current::begin(self.what);
        if let Err(panic) = current::while_begun(|| queue(Sleeper(ticket))) {
            if !ticket.abandon() {
                current::park(ticket, NEVER);
            }
            resume_unwind(panic);
        }
        current::park(ticket, self.deadline).ok()
    }
}

impl std::fmt::Debug for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Wait({})", self.what.reason.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::testing::{SHORT, until};
    use std::panic::catch_unwind;
    use std::sync::Mutex;

    #[test]
    fn a_sleeper_is_woken_once_u53() {
        let list = Mutex::new(Vec::new());
        std::thread::scope(|s| {
            let waiter =
                s.spawn(|| Wait::new(WaitReason::OTHER).park(|me| list.lock().unwrap().push(me)));
            until(|| list.lock().unwrap().len() == 1);
            let sleeper: Sleeper = list.lock().unwrap()[0];
            assert!(sleeper.wake());
            assert!(!sleeper.wake());
            assert_eq!(waiter.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn a_wait_ends_at_its_deadline_and_a_late_wake_finds_no_waiter_b23() {
        let mut late = None;
        let wait = Wait::new(WaitReason::OTHER).until(Instant::now() + SHORT);
        assert_eq!(wait.park(|me| late = Some(me)), Err(WaitError::TimedOut));
        assert!(!late.unwrap().wake());
    }

    #[test]
    fn a_panic_while_queueing_leaves_the_caller_able_to_wait_again() {
        let wait = Wait::new(WaitReason::OTHER);
        assert!(catch_unwind(|| wait.park(|_| panic!("no room"))).is_err());
        let wait = wait.until(Instant::now() + SHORT);
        assert_eq!(wait.park(drop), Err(WaitError::TimedOut));
    }

    #[test]
    fn a_wait_names_its_holder_b22() {
        let me = Holder::current();
        let list = Mutex::new(Vec::new());
        std::thread::scope(|s| {
            let list = &list;
            let (tell, told) = std::sync::mpsc::channel();
            s.spawn(move || {
                tell.send(current::waiter()).unwrap();
                let wait = Wait::new(WaitReason::OTHER).held_by(Some(me));
                wait.park(|me| list.lock().unwrap().push(me))
            });
            let waiter = told.recv().unwrap();
            until(|| list.lock().unwrap().len() == 1);
            assert!(waiter.blocker().is_some_and(|b| std::ptr::eq(b, me.waiter)));
            assert!(list.lock().unwrap()[0].wake());
        });
    }

    #[test]
    fn a_holder_is_one_waiter_that_works_for_one_user() {
        let me = Holder::current();
        assert_eq!(me, Holder::current());
        assert_ne!(me, Holder { user: me.user + 1, ..me });
        let other = std::thread::spawn(Holder::current).join().unwrap();
        assert_eq!(other.user, me.user);
        assert_ne!(me, other);
    }
}
