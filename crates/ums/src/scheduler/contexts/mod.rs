//! Workers with their own context, the third kind. The rest of the scheduler uses only what is
//! listed here. Switches of registers, carriers and lending are hidden behind it.
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
//! A wake-up and an I/O request call none of these functions. If the scheduler's workers are of
//! this kind, a yield and a wait call the two halves of the switch, and a choice calls
//! `can_resume_here`.
//!
//! * `switching` creates contexts, switches between them, and lets workers leave and rejoin.
//! * `host` is about the kernel thread that workers run on. If undeclared blocks are detected,
//!   several threads take turns at hosting: `carrier`.
//! * `lent` allows workers that may hold a lock which the scheduler needs to run without the baton.
//! * `mine` stores for each thread which worker it is, so that signal handlers can find it.

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
