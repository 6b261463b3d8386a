//! Parents: which queued requests are *left to their parents*, the workers that queued them, while
//! everything goes by age (rule 6 of lists/fairness).
//!
//! A worker that divides its work queues many requests, and waits for them one after the other. The
//! first one divides its part of the work in the same way, and so on:
//!
//! ```text
//!   worker 1 has queued   a  b  c  d            and waits for a
//!   worker 2 runs a, has queued   e  f  g       and waits for e
//!   worker 3 runs e, and is ready
//! ```
//!
//! Here b, c and d are left to worker 1, and f and g to worker 2, because e is ready and both wait
//! for its end. If e waited for input, none would be left. A request is left to its parent if:
//!
//! * the parent still carries out the request during which it has queued this one;
//! * it waits for a request that was queued earlier, so this one will probably follow;
//! * that request *goes on*: it is queued, running or ready, or waits for one that goes on;
//! * one of those, from that request on, runs the same code. So a task of another kind that a
//!   program starts beside a tree is not left.
//!
//! This file only reads. What it reads of other schedulers may change at the same time; then a
//! request begins a little earlier or later than it should.

use std::sync::atomic::Ordering;

use super::{Core, Scheduler};
use crate::scheduler::lists::fairness::Search;
use crate::scheduler::lists::worker_list::State;
use crate::scheduler::work_queue::{QueuePlace, RequestMark};
use crate::wait::{Joined, Waiter};

/// How many joins lead from a parent to what goes on, at most. Beyond that the request is not left
/// to its parent.
const JOINS: usize = 64;

impl Scheduler {
    /// Finds the queued request that is next while everything goes by age: when it was queued, in
    /// ticks, and where it is. Returns None if all are left to their parents.
    #[cold]
    pub(super) fn first_by_age(&self, core: &mut Core) -> Option<(u64, QueuePlace)> {
        let Core { workers, fairness, .. } = core;
        if fairness.search.takes_any() {
            return self.queue.first_that(&mut Search::default(), |_, _| true);
        }
        self.queue.first_that(&mut fairness.search, |mark, enqueued| {
            let parent = workers.find(mark.parent());
            parent.is_none_or(|parent| !is_left_to(parent, mark, enqueued))
        })
    }
}

fn is_left_to(parent: &'static Waiter, mark: RequestMark, enqueued: u64) -> bool {
    let same = parent.record.view.started.load(Ordering::Relaxed) <= enqueued;
    let joined = if same { joined_by(parent) } else { None };
    joined.is_some_and(|joined| joined.enqueued <= enqueued && goes_on(joined, mark))
}

/// Returns whether this request goes on, and one from it on may run the code of the mark.
fn goes_on(mut joined: Joined, mark: RequestMark) -> bool {
    let mut alike = false;
    for _ in 0..JOINS {
        alike |= mark.may_run(joined.code);
        let Some(runner) = joined.runner else { return alike };
        if runner.is(State::Running) || runner.is(State::Runnable) {
            return alike;
        }
        let Some(next) = joined_by(runner) else { return false };
        joined = next;
    }
    false
}

/// Returns the request for which this worker waits, if it does.
fn joined_by(worker: &'static Waiter) -> Option<Joined> {
    let waits = worker.is(State::Waiting);
    if waits { worker.askable_wait()?.joined() } else { None }
}
