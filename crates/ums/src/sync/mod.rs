//! Synchronisation between workers: locks, semaphores, events, channels.
//!
//! Everything here works for workers of any scheduler, thread or fiber, and for plain threads, in
//! any mix. While a worker waits here, its scheduler runs other workers; a plain thread blocks.
//!
//! ```text
//!   wait:     short lock -> look again -> begin -> queue the ticket -> unlock -> park
//!   release:  short lock -> change the state, claim tickets        -> unlock -> ready
//! ```
//!
//! Terms. A *ticket* names one wait. *Claiming* the ticket ends the wait; only one thread succeeds.
//! The *short lock* guards a resource's state and its waiters for a few instructions; it is never
//! held across `park` or `ready`. The *wait queue* is the resource's own list of tickets. A *grant*
//! is a claim by the releaser: it hands over ownership directly, so a granted waiter already owns
//! the resource when it runs, and no other caller can take it in between.
//!
//! What all of them have in common:
//! * **First come, first served.** A release hands over to the first waiter in the queue, and a
//!   later caller never overtakes a waiter. This costs a switch that a lock with barging would
//!   save; in exchange, the order can be relied on and tested.
//! * **A release does not run the waiter.** It moves the waiter to its scheduler's runnable list
//!   (through the inbox, if that is another scheduler), and the releaser continues.
//! * **Locking never fails.** `lock`, `read`, `write` and `get_or_init` wait until the lock is the
//!   caller's, even if the work request is cancelled. Every other wait returns a `Result`, and so
//!   do the `_for` and `_until` forms of locks; their error is or contains a
//!   [`WaitError`](crate::WaitError). `lock_for(Duration::MAX)` is a wait for a lock without a
//!   deadline that a cancellation ends.
//! * **A deadlock is broken.** Workers that wait for each other would wait forever. The monitor
//!   follows each lock to its owner, finds the cycle and ends one wait in it: with
//!   [`WaitError::Deadlock`](crate::WaitError::Deadlock) where the function can fail, and by a
//!   panic that describes the cycle where it cannot. Events, latches, barriers, semaphores and
//!   channels have no owner, and a wait for them is never chosen.
//! * **No poisoning.** A panic in a critical section unlocks the lock and has no other effect on
//!   it.
//!
//! A failed wait owns nothing: a grant and a failure exclude each other (One Outcome). A waiter
//! that fails removes itself from the queue and grants the waiters that only it had kept waiting.
//!
//! # Cancellation
//!
//! This is the rule for every wait of this crate. A work request is cancelled by
//! [`JoinHandle::cancel`](crate::JoinHandle::cancel), by [`User::cancel`](crate::User::cancel), and
//! by the shutdown of its node when the grace time is over. The tasks of its scopes and groups are
//! cancelled with it.
//! * **It lasts until the request ends.** The wait that the request is in fails with
//!   [`WaitError::Cancelled`](crate::WaitError::Cancelled), and so does, at once, each further wait
//!   that it begins. No call takes the cancellation back, so a loop that ignores the error never
//!   waits again: leave it. What must still be finished goes into [`shield`](crate::shield).
//! * **Only waits fail.** A call that finds what it asks for, such as `recv` on a channel with a
//!   value or `join` of a task that has ended, succeeds although its request is cancelled. Calls of
//!   [`net`](crate::net) and reads of [`fs`](crate::fs) are different: they fail at once.
//!   [`is_cancelled`](crate::is_cancelled) and [`checkpoint`](crate::checkpoint) ask without a
//!   wait.
//! * **One of two happens.** If a grant and the cancellation come at the same time, the call either
//!   succeeds and has what it waited for, or fails and has nothing: no value, permit or
//!   notification is lost.
//! * **Locks ignore it**, as said above, and so does every call that returns only when the caller's
//!   own closure has ended: [`scope`](fn@crate::scope), [`Node::run`](crate::Node::run),
//!   [`go_preemptive`](crate::go_preemptive). A scope cancels its tasks, and waits. To clean up
//!   after a cancellation there is
//!   [`JoinHandle::join_uncancellable`](crate::JoinHandle::join_uncancellable).
//! * **Preemptive code is not woken.** A wait that a worker begins inside
//!   [`go_preemptive`](crate::go_preemptive) is the wait of its thread: no cancellation ends it.
//! * **A plain thread is never cancelled.** There, a plain wait without a time limit fails for no
//!   other reason than a deadlock, and `unwrap` is right.
//!
//! The end of the time of [`with_timeout`](crate::with_timeout) is heard by the same waits, as
//! [`WaitError::TimedOut`](crate::WaitError::TimedOut), also on plain threads.
//!
//! Left out on purpose: spinning before a wait (the holder cannot progress while a worker of its
//! own scheduler spins), priorities, and `async` forms of anything but channels.

// A file uses only files that are declared above it.
mod patience;
mod queue;
mod select;
mod parking;
pub(crate) mod traced;
mod raw_mutex;
mod raw_rwlock;
mod mutex;
mod rwlock;
mod condvar;
mod semaphore;
mod event;
mod latch;
mod barrier;
mod once;
mod foreign;
pub mod channel;

#[cfg(test)]
mod testing;

pub use barrier::{Barrier, BarrierWaitResult};
pub use condvar::Condvar;
pub use event::Event;
pub use foreign::{Foreign, foreign};
pub use latch::Latch;
pub use mutex::{Mutex, MutexGuard, OwnedMutexGuard};
pub use once::OnceCell;
pub use parking::{Holder, Sleeper, Wait, Woken};
pub use raw_mutex::RawMutex;
pub use raw_rwlock::{RawRwLock, Share};
pub use rwlock::{
    OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
#[doc(hidden)]
pub use select::Happened;
pub use select::Select;
#[doc(inline)]
pub use select::select;
pub use semaphore::{OwnedPermit, Permit, Semaphore};

pub use crate::wait::{Arm, Waitable};
