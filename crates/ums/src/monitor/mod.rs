//! The scheduler monitor: one thread per process that detects schedulers that are stuck, and
//! reports why.
//!
//! A cooperative scheduler stands still while a worker does not yield. The monitor looks at each
//! scheduler several times within the shortest time limit that is set. It compares marks of
//! progress (counters that grow when the scheduler does something), and reports these *conditions*:
//!
//! | condition | what |
//! |---|---|
//! | `STALL` | a worker has not yielded for some hundred milliseconds |
//! | `NON-YIELDING` | a worker has not yielded for seconds |
//! | `SLOW ROUTINE` | a completion routine has run for some hundred milliseconds |
//! | `NO WORKERS` | requests wait, the limit of workers is reached, and all of them wait too |
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
//!                                                                                 |
//!              report --> limit --> tracing event, callback, counter, text on stderr
//! ```
//!
//! *By default* ([`Builder::warnings`](crate::Builder::warnings)) a node is watched with different
//! options. `STALL` and `SLOW ROUTINE` are reported after one second, and only while other work is
//! held up. `NO WORKERS` and `NOT PICKED UP` are reported too. Each report is one line
//! (`sentence.rs`). Not reported are stalls whose cause is outside the process, and slow I/O. When
//! all schedulers are stuck, each of them is reported. The monitor does not look for deadlocks. The
//! rest of this page is about nodes that were given [`Options`].
//!
//! A report names the worker, its request and user, the functions that its thread is in, the
//! processor time of that thread, and a [`Diagnosis`]. The cause of most stalls is not the
//! application: if the computer gives the thread no processor, the diagnosis says so
//! ([`Diagnosis::exonerates`]).
//!
//! The monitor costs the schedulers nothing, except one memory fence when a scheduler wakes from
//! sleep. The monitor sleeps while all schedulers sleep, so an idle process has no wake-ups.
//!
//! Reporting never blocks the monitor. While stderr accepts no output, a few reports are kept; the
//! rest are only counted.
//!
//! The monitor schedules nothing and stops no worker.

mod baton;
mod counts;
mod deadlock;
mod deliver;
mod diagnose;
mod figures;
mod limit;
mod options;
mod profile;
mod report;
mod sentence;
mod slow;
mod text;
mod watch;
mod writer;

pub use crate::record::frame::Frame;
pub use crate::wait::deadlock::{Deadlock, DeadlockId, DeadlockWaiter};
pub(crate) use counts::ReportCounts;
pub use counts::{ConditionCount, PastReport};
pub use diagnose::{Diagnosis, Thief};
pub use figures::{ProcessUse, ThreadUse};
pub use options::Options;
pub use profile::StallStack;
pub use report::{Condition, Report};
pub(crate) use watch::{Watching, watch};
