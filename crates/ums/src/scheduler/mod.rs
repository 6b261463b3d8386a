//! The scheduler: one baton, five lists, no thread of its own.
//!
//! The *baton* of a scheduler is the right to touch its lists. Its holder is the scheduler's
//! *current worker*. While no worker can run the idle loop, the *standby* holds the baton: a thread
//! or stack that carries out no requests. [`Scheduler`] contains the data that any thread may
//! access (inbox, work queue, counters). [`Core`] contains the data that only the baton's holder
//! accesses, so `Core` is plain data without locks or atomics.
//!
//! ```text
//!     outside                         the current worker
//!   enqueue -> work queue --+
//!   release -> inbox --------+--> turn: look (I/O, routines, timers, inbox), choose
//!                           |           |
//!                           |           +-> Stay        continue
//!                           |           +-> Switch(w)   hand the baton to w, park
//!                           |           +-> Idle        sleep on the driver, then look again
//! ```
//!
//! * `turn` handles what has happened (I/O, timers, inbox) and chooses what runs next, for all
//!   kinds of workers alike.
//! * `switch` passes the baton on; `kinds` has the code that depends on the kind of the workers:
//!   threads, fibers, threads with their own context.
//! * `finish` is what a worker does that has ended its request.
//! * `idle` sleeps, and ends workers that have long been idle; `steal` takes requests from peers;
//!   `host` creates workers and runs their main loop.
//! * `preempt` lets a worker leave its scheduler and rejoin it; `blocks` takes the baton from a
//!   worker that blocks undeclared.
//!
//! Named invariant **Baton**: `Core` is touched only inside [`Scheduler::with`], which checks that
//! the calling thread has the baton and that no other borrow is alive; no borrow spans a switch.
//! While a value of [`here`] is alive, its worker is inside the library and cannot lose the baton.
//! Outside, in a request's own code, a worker may lose the baton (`blocks`), and gets it again at
//! its next entry. Setting the next worker's event *is* handing the baton on: afterwards the giver
//! touches only its own event and its waiter's atomics until it is chosen again.

pub(crate) mod alarm;
mod blocks;
mod check;
pub(crate) mod debugger;
mod choose;
mod enqueue;
mod finish;
mod here;
mod host;
mod idle;
mod io;
mod kinds;
mod limit;
pub(crate) mod lists;
mod options;
mod parents;
mod park;
mod peers;
mod preempt;
pub(crate) mod request;
mod spin;
mod state;
mod steal;
mod steal_pause;
mod stop;
mod switch;
mod timers;
mod turn;
mod wake;
mod way_out;
pub(crate) mod work_queue;
mod yield_now;

pub(crate) use crate::watch::carriers::CARRIERS;
pub use blocks::taking_over_is_refused;
pub(crate) use here::{Here, here, here_from_outside, here_with_baton};
pub(crate) use host::start;
pub(crate) use io::Submission;
pub use options::WorkerKind;
pub(crate) use options::{SchedulerOptions, WorkerLimit};
pub(crate) use park::Frozen;
pub use preempt::Coupled;
pub(crate) use preempt::{couple, go_preemptive, run_on, short_call};
use state::{AWAY, WORKER};
pub(crate) use state::{
    Core, ExecutionContext, HAS_BEGUN, Peers, PeersUnnotified, Scheduler, Timed, away, set_here,
};

pub(crate) use wake::{ready, ready_from};
