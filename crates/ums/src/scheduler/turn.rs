//! The turn: the scheduler's work between two workers. The worker that yields, waits or ends its
//! request does it, on its own stack.
//!
//! A turn handles, in this order, completed I/O and its completion routines, expired timers, the
//! inbox, and the routines of timers. Then it chooses between the runnable list and the work queue
//! (scheduler/lists/fairness). It returns how the caller leaves its stack, and does not switch
//! stacks itself. If nothing has happened, a turn costs a few loads and no system call.

use std::sync::atomic::Ordering;

use super::switch::{Handed, SwitchEvent};
use super::way_out::WayOut;
use super::{Core, PeersUnnotified, Scheduler};
use crate::os::clock;
use crate::os::panics::contain;
use crate::os::threads::point;
use crate::record::counters::{add, max};
use crate::record::event_ring::RingEvent;
use crate::record::reason::WaitReason;
use crate::scheduler::lists::WorkerId;
use crate::scheduler::lists::io_list::{CompletionRoutine, IoResult};
use crate::scheduler::lists::worker_list::State;
use crate::wait::{seeing_none, thread_waiter};

/// The limit for completion routines that run inside one another.
const NESTED_MAX: u32 = 8;

impl Scheduler {
    /// Takes one turn for a worker that waits or has ended its request: hands the baton to the next
    /// worker. Returns `Nowhere` if no worker can run.
    #[inline(never)]
    pub(super) fn turn(&self) -> WayOut {
        point("turn");
        self.check();
        self.rest_of_turn(0)
    }

    /// The turn after its beginning. `now` is as for `quiet`.
    #[inline(never)]
    pub(super) fn rest_of_turn(&self, now: u64) -> WayOut {
        let quiet = self.with(|core| self.quiet(core, now));
        if !quiet {
            let now = self.look();
            self.with(|core| core.begin_turn(self, now));
        }
        let handed = self.with(|core| {
            let next = self.choose(core);
            self.publish(core);
            match next {
                Some(next) if next == core.current => {
                    // No switch, but the trace shows that it runs again.
                    core.record_at(RingEvent::Switch, next, 0, core.turn_at);
                    Handed::Left(WayOut::STAY)
                }
                Some(next) => {
                    self.count_cause(core);
                    core.hand_over(self, next, SwitchEvent::At(core.turn_at))
                }
                None => Handed::Left(WayOut::NOWHERE),
            }
        });
        handed.by_event()
    }

    /// Counts the switch by its cause: what the current worker does.
    #[inline]
    fn count_cause(&self, core: &mut Core) {
        let worker = core.workers.get(core.current);
        let counter = match worker.state {
            State::Waiting => {
                let reason = worker.waiter.reason.load(Ordering::Relaxed);
                &self.waits.row(WaitReason::from_index(reason.into())).switches
            }
            State::Idle => &self.counters.end_switches,
            _ => &self.counters.other_switches,
        };
        crate::record::counters::add(counter, 1);
    }

    /// Handles what has happened since the last turn: completed I/O, expired timers, the inbox.
    /// Returns the time, in ticks, if the last of these has just read it; otherwise 0.
    pub(super) fn look(&self) -> u64 {
        point("look");
        let routines = self.with(|core| {
            core.reap(self);
            !core.routines.is_empty()
        });
        if routines {
            self.run_routines();
        }
        let (now, routines) = self.with(|core| {
            core.expire(self);
            (core.take_inbox(self), !core.routines.is_empty())
        });
        if routines {
            self.run_routines();
            return 0;
        }
        now
    }

    /// Returns whether `look` would find nothing. `now` is the time, in ticks, that the caller has
    /// just read; 0 if it has not. Costs only loads, and a reading of the processor's counter if
    /// timers are set or requests outstanding, and the time is not given.
    #[inline]
    pub(super) fn quiet(&self, core: &mut Core, now: u64) -> bool {
        self.inbox.any() | core.has_any() == 0 || self.nothing_is_due(core, now)
    }

    /// Returns the same. Not inlined, so that a turn saves no registers for this call if there is
    /// nothing to look at.
    #[inline(never)]
    fn nothing_is_due(&self, core: &mut Core, now: u64) -> bool {
        self.inbox.is_empty() && core.nothing_is_due(now)
    }

    #[cold]
    fn run_routines(&self) {
        self.looking.store(true, Ordering::Relaxed);
        while let Some((routine, result)) = self.with(|core| core.routines.pop_front()) {
            self.run_routine(routine, result);
        }
        self.looking.store(false, Ordering::Relaxed);
    }

    /// Records that requests are queued which no peer has been notified of.
    pub(super) fn must_notify(&self, peers_unnotified: PeersUnnotified) {
        self.peers_unnotified.set(self.peers_unnotified.get().max(peers_unnotified));
    }

    /// Notifies an idle peer of queued requests, if `must_notify` has recorded any. Called before
    /// this scheduler runs a worker, because it may not serve the requests soon.
    #[inline]
    pub(super) fn tell_peers(&self) {
        if self.peers_unnotified.get() != PeersUnnotified::Nothing {
            self.pay_by_telling();
        }
    }

    /// Wakes one idle peer if a request waits. That peer must look at all posted queues, and wakes
    /// the next peer if it finds more than it takes. If the idle mask has no bit set, each
    /// scheduler that sets its bit later sees the requests that are seen here (S3 in
    /// scheduler/peers).
    #[cold]
    fn pay_by_telling(&self) {
        let any = self.peers_unnotified.replace(PeersUnnotified::Nothing) == PeersUnnotified::Any;
        if !self.options.steal {
            return;
        }
        if !self.queue.is_empty() {
            self.peers.offer(self.index);
        } else if any && self.peers.others_have_work(self.index) {
            self.peers.wake_one(self.index);
        }
    }

    /// Runs a completion routine while the lists are not borrowed, because the routine may enqueue
    /// requests and submit I/O. It must not wait.
    pub(crate) fn run_routine(&self, routine: CompletionRoutine, result: IoResult) {
        add(&self.counters.routines, 1);
        self.in_a_turn(move || routine(result));
    }

    /// Runs the completion routine of a request that completed when it was submitted. If so many
    /// routines run inside one another that a longer chain could exhaust the stack, queues the
    /// routine for the next `look` instead, and returns false.
    pub(crate) fn run_or_put_aside(&self, routine: CompletionRoutine, result: IoResult) -> bool {
        let now = self.routines_running() < NESTED_MAX;
        if now {
            self.run_routine(routine, result);
        } else {
            self.with(|core| core.routines.push_back((routine, result)));
        }
        now
    }

    /// Runs application code in the middle of a turn. The current worker may have begun a wait
    /// already, so this code must not wait (rule 9 of ARCHITECTURE.md).
    pub(super) fn in_a_turn(&self, call: impl FnOnce()) {
        // If the code submits an I/O request that completes immediately, the routine of that
        // request runs inside it, and this function is entered again.
        let outer = self.in_routine.load(Ordering::Relaxed);
        self.in_routine.store(outer + 1, Ordering::Relaxed);
        // The request-locals of code in a turn are those of the thread (`task/local`). The routine
        // around this one may have set some.
        let fine = contain(|| seeing_none(thread_waiter, call));
        add(&self.counters.panics, u64::from(!fine));
        self.in_routine.store(outer, Ordering::Relaxed);
    }
}

impl Core {
    /// Returns 0 if there are no routines of completed requests, and nothing that could complete or
    /// expire: no request on the I/O list, where a completed one is until it is reaped, and no
    /// timer. Then [`Scheduler::quiet`] need not look at them.
    #[inline]
    pub(super) fn has_any(&self) -> usize {
        self.routines.len() | self.io.outstanding() | self.timers.len()
    }

    /// Returns whether no request has completed and no timer has expired. `now` is as for `quiet`.
    #[inline]
    pub(super) fn nothing_is_due(&mut self, now: u64) -> bool {
        self.done.is_empty()
            && self.routines.is_empty()
            && self.driver_is_quiet(now)
            && self.timers_are_quiet(now)
    }

    /// Records several events, for which the clock was read at `at`.
    #[inline]
    pub(super) fn record_all<const N: usize>(
        &self,
        events: [(RingEvent, WorkerId, u32); N],
        at: u64,
    ) {
        if let Some(ring) = self.ring {
            ring.record_all(events, at);
        }
    }

    /// Notes the time, because a worker is about to have its turn. `now` is the time, in ticks,
    /// that the caller has just read; 0 if it has not.
    #[inline]
    pub(super) fn begin_turn(&mut self, scheduler: &Scheduler, now: u64) -> u64 {
        self.turn_at = clock::ticks_or(now);
        self.turn_yields = scheduler.counters.yields.load(Ordering::Relaxed);
        self.turn_at
    }

    /// Ends the current worker's turn, and updates the longest turn. `yields` is the number of
    /// yields that ended this turn. If other workers had turns since the clock was last read, the
    /// length is unknown and not counted: a yield between workers that only yield does not read the
    /// clock.
    #[inline]
    pub(super) fn end_turn(&mut self, scheduler: &Scheduler, now: u64, yields: u64) {
        let count = scheduler.counters.yields.load(Ordering::Relaxed);
        if count == self.turn_yields + yields {
            max(&scheduler.counters.longest_turn, now.saturating_sub(self.turn_at));
            self.fairness.turn = (self.turn_at, now);
        }
        (self.turn_at, self.turn_yields) = (now, count);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use crate::Node;
    use crate::scheduler::here;
    use crate::sync::Event;

    /// How many switches had the end of a request as their cause, and how many another one.
    fn switches_here() -> [u64; 2] {
        let here = here().expect("it runs on a worker");
        let counters = [&here.counters.end_switches, &here.counters.other_switches];
        counters.map(|counter| counter.load(Ordering::Relaxed))
    }

    #[test]
    fn the_switch_at_the_end_of_a_request_to_a_worker_that_is_ready_is_counted_as_such() {
        let node = Node::builder().schedulers(1).take_over_blocked(false).build().unwrap();
        let gate = Arc::new(Event::manual(false));
        let waits = gate.clone();
        let waiter = node.spawn_on(0, move || {
            waits.wait().unwrap();
            switches_here()
        });
        // It begins after the other one has begun to wait.
        let ends = node.spawn_on(0, move || {
            gate.set();
            switches_here()
        });
        let [ended, other] = ends.unwrap().join().unwrap();
        assert_eq!(waiter.unwrap().join().unwrap(), [ended + 1, other]);
    }
}
