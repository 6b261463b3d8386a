//! The functions that block watch calls on the thread of a worker with its own context.

use super::lent;
use super::{carrier, mine};
use crate::scheduler::{here_from_outside, preempt};
use crate::watch::Blocks;
use crate::watch::calls::BlockHandler;
use crate::watch::carriers::Carrier;

/// How workers with their own context run calls that were not declared. All calls that may block go
/// preemptive, because they would block the host thread.
///
/// The calls of a lent worker run in place, because the worker may hold a lock that its scheduler
/// waits for. So it must not wait for its scheduler there.
pub(super) struct OfContexts;

impl BlockHandler for OfContexts {
    fn least_likelihood(&self) -> Blocks {
        Blocks::Unknown
    }

    fn run_declared(&self, call: &mut dyn FnMut()) {
        if lent::is_lent() { call() } else { preempt::undeclared(call) }
    }

    fn run_seen(&self, call: &mut dyn FnMut()) {
        if lent::is_lent() { call() } else { preempt::seen_blocked(call) }
    }

    fn is_in_user_code(&self) -> bool {
        here_from_outside().is_some_and(|scheduler| scheduler.is_the_requests_own())
    }

    fn may_leave(&self) -> bool {
        here_from_outside().is_some_and(|scheduler| scheduler.may_leave_undeclared())
    }

    fn leave_taken(&self, carrier: &'static Carrier) {
        carrier::leave_taken(carrier);
    }

    fn step_out(&self) -> bool {
        mine::is_whole_here() && preempt::step_out()
    }

    fn step_back(&self) {
        preempt::come_back();
    }

    fn settle(&self) {
        lent::settle();
    }
}
