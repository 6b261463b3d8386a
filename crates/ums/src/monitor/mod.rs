//! The scheduler monitor: one thread per process that finds what is stuck, and says why.
//!
//! A cooperative scheduler stands still when a worker does not yield. The monitor reads each
//! scheduler's marks of progress, a few times in the shortest time that matters, and reports:
//!
//! | condition | what |
//! |---|---|
//! | `STALL` | a worker has not yielded for some hundred milliseconds |
//! | `NON-YIELDING` | a worker has not yielded for seconds |
//! | `SLOW ROUTINE` | a completion routine has run for some hundred milliseconds |
//! | `NO WORKERS` | requests wait, and all workers that there may be wait too |
//! | `NOT PICKED UP` | requests wait for any other reason |
//! | `ALL STUCK` | no scheduler of the node has picked up a request for a minute |
//! | `SLOW SUBMISSION` | submitting I/O to the kernel held the scheduler up |
//! | `SLOW I/O` | a wait for a file took too long |
//! | `DEADLOCK` | workers wait for each other in a circle; one wait is ended |
//!
//! ```text
//!   schedulers --marks--> watch: has anything changed? --no, for too long--> figures, sample
//!       |                                                                        |
//!       +--- alarm: awake again; slow I/O                        diagnose: what is the cause
//!                                                                                |
//!              report --> limit --> tracing event, callback, counter, text on stderr
//! ```
//!
//! *By default* ([`Builder::warnings`](crate::Builder::warnings)) a node is watched with different
//! options: it reports `STALL` and `SLOW ROUTINE` after one second and only while other work is
//! held up, `NO WORKERS` and `NOT PICKED UP`, each in one sentence (`sentence.rs`). It reports
//! neither stalls whose cause is outside the process nor slow I/O. When all schedulers are stuck,
//! it reports each of them. It does not look for deadlocks. The rest of this page is about nodes
//! that were given [`Options`].
//!
//! A report names the worker, its request and user, the functions that its thread is in, the
//! processor time of that thread, and a [`Diagnosis`]. The cause of most stalls is not the
//! application: if the computer gives the thread no processor, the diagnosis says so
//! ([`Diagnosis::exonerates`]).
//!
//! The cost: nothing on any path of the schedulers except a fence where one wakes from sleep. The
//! monitor sleeps while all schedulers sleep, so an idle process has no wake-ups.
//!
//! Reporting never blocks: a report that stderr does not accept is kept for a while, and then
//! counted.
//!
//! The monitor schedules nothing and stops no worker.

mod baton;
mod counts;
mod deadlock;
mod deliver;
mod diagnose;
mod figures;
mod limit;
pub(crate) mod looker;
mod options;
mod profile;
mod report;
mod sentence;
mod slow;
mod text;
mod unwind;
mod watch;
mod writer;

pub use crate::record::frame::Frame;
pub use crate::wait::deadlock::{Deadlock, DeadlockId, DeadlockWaiter};
pub(crate) use counts::Counts;
pub use counts::{ConditionCount, PastReport};
pub use diagnose::{Diagnosis, Thief};
pub use figures::{ProcessUse, ThreadUse};
pub use options::Options;
pub use profile::StallStack;
pub use report::{Condition, Report};
pub(crate) use watch::{Watching, watch};
