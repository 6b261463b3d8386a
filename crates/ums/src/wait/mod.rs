//! A wait: which waiter waits, for what, and its one outcome.
//!
//! Nouns. A *waiter* is a worker, or a plain thread outside every scheduler. A *ticket* names one
//! wait of one waiter, or one *arm* of a wait for several things. A resource, such as a lock, keeps
//! the tickets of its waiters. To end a wait, a thread *claims* the ticket with an [`Outcome`]. Of
//! several claims one succeeds, and only the thread that made it may make the waiter run again.
//!
//! ```text
//!   begin()                 claim(outcome), by exactly one of
//! Quiet ------> Waiting ------------------------------> Granted | TimedOut | Cancelled | Deadlock
//!   ^                       the granter, the timer,              |
//!   |                       the canceller                        | take_outcome(), by the waiter
//!   +------------------------------------------------------------+
//! ```
//!
//! | file | what is in it |
//! |---|---|
//! | `waiter` | the types: a waiter, what it waits for, its ticket, an inbox; the pool of waiters |
//! | `inbox` | the one way into a scheduler from outside it |
//! | `record` | what a waiter has in addition if it is a worker |
//! | `ticket` | the transitions of the picture above |
//! | `arm` | one of several things that a caller waits for at once |
//! | `owners` | asking the resource which workers hold it, during the wait |
//! | `thread` | the waiter of a plain thread, and how such a thread blocks |
//! | `bounds` | a deadline or a shield for all waits of a piece of code |
//! | `locals` | the values of request-locals that a waiter's code sees |
//! | `scoped` | where both are kept |
//! | `outcome`, `error`, `deadlock` | how a wait ended, for the library and for users |
//!
//! Named invariants.
//! * **Type Stable**: a waiter is never freed, only reused, and its wait numbers only grow. So a
//!   ticket is a plain copyable pair of waiter and wait number. A claim of an old ticket fails, and
//!   a wake-up that comes late touches live memory.
//! * **One Outcome**: a wait leaves the state `Waiting` by one compare-and-swap. The thread whose
//!   exchange succeeds gets a [`Claimed`], which cannot be copied and must be passed to `ready`,
//!   which makes the waiter run.
//!
//! What this room does not do: it moves no worker between lists. The only part of a scheduler that
//! it uses is the inbox.

mod arm;
mod bounds;
pub(crate) mod deadlock;
pub(crate) mod error;
#[cfg(debug_assertions)]
mod foreign;
mod inbox;
mod locals;
mod outcome;
mod owners;
mod record;
mod scoped;
mod thread;
mod ticket;
mod waiter;

pub(crate) use arm::Source;
pub use arm::{Arm, Waitable};
pub(crate) use bounds::Bounds;
pub(crate) use locals::{are_used, seeing_none};
pub(crate) use outcome::Outcome;
pub(crate) use record::COMPLETED;
pub(crate) use scoped::{Key, Values};
pub(crate) use thread::thread_waiter;
pub(crate) use ticket::Claimed;
pub(crate) use waiter::{
    AsVictim, Inbox, Joined, Letter, Owned, Owner, Ticket, WAITERS, Waiter, What,
};

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;
