//! What workers use to wait for each other: locks, semaphores, events, channels.
//!
//! Everything here works for workers of any scheduler, thread or fiber, and for plain threads, in
//! any mix. A worker that waits here gives its scheduler to the next one; a plain thread sleeps.
//!
//! ```text
//!   wait:     short lock -> look again -> begin -> queue the ticket -> unlock -> park
//!   release:  short lock -> change the state, claim tickets        -> unlock -> ready
//! ```
//!
//! Nouns. The *short lock* guards a resource's state and its waiters for a few instructions; it is
//! never held over `park` or `ready` (rule 6). The *wait queue* is the resource's own waiter list
//! (U53). A *grant* is a claim by the releaser: it hands over the thing itself, so who is granted
//! owns it already when it runs, and nobody can come in between.
//!
//! Ideas held throughout:
//! * **First come, first served.** Releasing hands over to the first in the queue, and nobody who
//!   comes later passes one who waits. It costs a switch where a lock that lets others barge in
//!   would spare one; it buys an order that can be relied on and tested.
//! * **Release does not run the waiter** (U55, U56): it moves it to the runnable list, here or
//!   through another scheduler's inbox (G6), and goes on.
//! * **A plain verb never fails.** `lock`, `read`, `acquire`, `wait`, `recv` last until they are
//!   granted and are deaf to the cancellation of their work request. Their `_for` and `_until`
//!   forms hear it, and end with [`WaitError`](crate::WaitError) at the deadline or when
//!   cancelled. `_for(Duration::MAX)` is a wait without a deadline that can be cancelled.
//! * **A circle is broken.** Workers that wait for each other would do so for ever. The monitor
//!   finds them by their owners, and ends one wait: with
//!   [`WaitError::Deadlock`](crate::WaitError::Deadlock) where the verb can fail, by a panic that
//!   names the circle where it cannot.
//! * **No poisoning.** A panic in a critical section unlocks, and that is all.
//!
//! A failed wait owns nothing: a grant and a failure exclude each other (One Outcome). Whoever
//! fails takes itself out of the queue, and lets in those whom only it had kept waiting.
//!
//! What is absent: no spinning before a wait (the holder cannot progress while a worker of its own
//! scheduler spins), no priorities, no `async`.

// A file uses only what stands above it.
mod patience;
mod queue;
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
pub use mutex::{Mutex, MutexGuard};
pub use once::OnceCell;
pub use parking::{Holder, Sleeper, Wait, Woken};
pub use raw_mutex::RawMutex;
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use semaphore::{Permit, Semaphore};
