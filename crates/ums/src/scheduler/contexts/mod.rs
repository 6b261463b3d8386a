//! Workers with their own context, the third kind: behind what this file shows, the rest of the
//! scheduler knows nothing of switches of registers, carriers and lending.
//!
//! ```text
//!   called by   what
//!   host        are_carried, host_contexts, run_carried    where the root runs
//!               own_seat, resume_context, end_request      a worker begins, runs, ends a request
//!   switch      Core::pass_to, Pass::switch                the two halves of a switch
//!   choose      Core::can_resume_here                      unless it runs without the baton
//!   preempt     couple, decouple, decouple_lendable,       leaves the scheduler, and rejoins it
//!               own_context, is_whole_here, is_lent, leave_taken
//!   idle        Own::end                                   retires a worker
//!   here        settle                                     asks for the scheduler again
//!   blocks      show_host, hide_host, hosts, suspects_host, look_at_host,
//!               host_waits_for_lock, lend_own              what block watch sees and does
//! ```
//!
//! A wake-up and an I/O request call none of it. A yield and a wait call the two halves of the
//! switch, and a choice its question, each if the scheduler's workers are of this kind.
//!
//! * `switching` creates contexts, switches between them, and leaves and rejoins.
//! * `host` is the kernel thread that they run on. Where undeclared blocks are detected, several
//!   threads take turns at that: `carrier`.
//! * `lent` allows workers to run without the baton that may hold a lock which the scheduler needs.
//! * `mine` is what a worker's code knows of itself in a signal handler.

mod carrier;
mod host;
mod lent;
mod mine;
mod state;
mod switching;

pub(super) use carrier::{are_carried, leave_taken};
pub(super) use lent::{end_request, is_lent, settle};
pub(super) use mine::is_whole_here;
pub(super) use state::{Hosting, Own, Pass, Switching};
