//! Limits of workers: whether a scheduler may create one more.
//!
//! There are two limits. The *hard* limit is the number that the builder was given, or else the
//! number that the computer has room for. If the builder was given no number, there is a lower
//! *soft* limit, too. Up to the soft limit, a worker is created for each request that finds no idle
//! worker. Beyond it, a request first waits for a moment, because one of the existing workers may
//! become free:
//!
//! ```text
//! nothing runs, and no wait or request has ended for 10 ms     a standstill: make workers, without
//!                                                              a pause, until a wait ends
//! the oldest request has been queued for 100 ms                make one in each millisecond
//! ```
//!
//! The first rule ends a standstill quickly, however many requests are queued. The second rule is
//! for schedulers whose workers are busy and never become free, for example with one connection
//! each.
//!
//! A request that a worker waits for gets a worker beyond the limits, too (a *reserve* worker). It
//! carries out only such urgent requests, until one of the two rules lets it carry out others.
//! Otherwise each join of a tree of tasks would make a worker, which would then begin another
//! branch of the tree, whose joins make further ones.
//!
//! At the hard limit, requests wait in the queue. If a standstill lasts for a second there, it is
//! reported on stderr. It may be permanent, because the workers may wait for requests in the queue.
//!
//! *Progress* is a change of the number of turns minus the number of workers that were created, or
//! raised from the reserve. Such a worker takes one turn when it begins its first wait, so the
//! difference does not change while the only events are such workers that begin to wait.

use std::sync::atomic::Ordering;

use super::{Core, Scheduler};
use crate::os::clock;
use crate::os::counted::AtomicU64;
use crate::os::limits::{OVERDUE_NS, OVERDUE_PAUSE_NS, STANDSTILL_NS, STANDSTILL_TOLD_NS};
use crate::record::plural::counted;
use crate::record::report::WarningKind;
use crate::scheduler::lists::worker_list::{STANDBY, State};

impl Scheduler {
    /// Returns whether these limits allow one more worker.
    pub(super) fn has_room(&self, core: &mut Core) -> bool {
        let count = core.workers.count();
        count < self.options.limit.soft || self.has_room_beyond(core, count)
    }

    #[cold]
    fn has_room_beyond(&self, core: &mut Core, count: usize) -> bool {
        if self.to_raise(core) >= self.options.limit.hard {
            if !self.queue.is_empty() {
                self.tell_the_limit(core, count);
                self.tell_the_standstill(core, count);
            }
            return false;
        }
        self.stands_still(core) || self.has_overdue(core)
    }

    /// Returns the number that the rules raise: of workers or, if a reserve worker is idle, of
    /// those that carry out any request.
    fn to_raise(&self, core: &Core) -> usize {
        let for_all = self.options.limit.soft + core.standstill.granted;
        let count = core.workers.count();
        if core.workers.idle.len > 0 { count.min(for_all) } else { count }
    }

    /// Returns whether there was no progress for long enough. Reads the clock only if there was
    /// none since the last call.
    fn stands_still(&self, core: &mut Core) -> bool {
        let progress = self.progress_of_workers(core);
        if core.standstill.progress != progress {
            (core.standstill.progress, core.standstill.since) = (progress, 0);
            self.standstill_told.store(false, Ordering::Relaxed);
            return false;
        }
        self.standstill_in(core, clock::now(), STANDSTILL_NS) == 0
    }

    /// Returns whether the oldest request is overdue. Reads the clock only if that is likely.
    fn has_overdue(&self, core: &mut Core) -> bool {
        let oldest = self.queue.fronts()[1];
        let waited = oldest.map_or(0, |enqueued| clock::ticks().saturating_sub(enqueued));
        clock::ticks_to_ns(waited) >= OVERDUE_NS && self.is_overdue(core, clock::now())
    }

    fn progress_of_workers(&self, core: &Core) -> u64 {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let begun = of(&self.counters.workers_created).wrapping_add(core.standstill.grants);
        of(&self.counters.turns).wrapping_sub(begun)
    }

    /// Returns the nanoseconds until the standstill has lasted for `span`, if there is no progress
    /// before; 0 if it has.
    fn standstill_in(&self, core: &mut Core, now: u64, span: u64) -> u64 {
        let progress = self.progress_of_workers(core);
        if core.standstill.progress != progress || core.standstill.since == 0 {
            (core.standstill.progress, core.standstill.since) = (progress, now);
            self.standstill_told.store(false, Ordering::Relaxed);
        }
        let current = core.current;
        let runs = current != STANDBY && core.workers.get(current).state == State::Running;
        if runs || core.workers.runnable() > 0 {
            return span;
        }
        (core.standstill.since + span).saturating_sub(now)
    }

    /// Returns whether the oldest request has waited so long that a worker may be created for it.
    fn is_overdue(&self, core: &mut Core, now: u64) -> bool {
        self.overdue_in(core, now) == Some(0)
    }

    /// Returns the nanoseconds until `is_overdue` is true, or None if nothing is queued.
    fn overdue_in(&self, core: &mut Core, now: u64) -> Option<u64> {
        if self.queue.is_empty() {
            return None;
        }
        let pause = (core.standstill.overdue + OVERDUE_PAUSE_NS).saturating_sub(now);
        if pause > 0 {
            return Some(pause);
        }
        let enqueued = self.queue.fronts()[1]?;
        let waited = clock::ticks_to_ns(clock::ticks().saturating_sub(enqueued));
        Some(OVERDUE_NS.saturating_sub(waited))
    }

    /// Notes that a worker was created. Beyond the soft limit, a pause begins before the next
    /// overdue request gets one. A worker that is no `reserve` raises the number of workers that
    /// may carry out any request.
    pub(super) fn made_one(&self, core: &mut Core, reserve: bool) {
        if core.workers.count() > self.options.limit.soft {
            core.standstill.overdue = clock::now();
            core.standstill.granted += usize::from(!reserve);
        }
    }

    /// Lets one more of the workers carry out any request, if one is idle and the rules allow it.
    pub(super) fn raises_one(&self, core: &mut Core) -> bool {
        if core.workers.idle.len == 0 || !core.may_create() || !self.has_room(core) {
            return false;
        }
        core.standstill.overdue = clock::now();
        core.standstill.granted += 1;
        core.standstill.grants += 1;
        true
    }

    /// Notes that a worker was removed.
    pub(super) fn removed_one(&self, core: &mut Core) {
        let beyond = core.workers.count().saturating_sub(self.options.limit.soft);
        core.standstill.granted = core.standstill.granted.min(beyond);
    }

    /// Returns in how many nanoseconds to check again whether one more worker may be created, or
    /// whether a standstill must be reported; `u64::MAX` for never.
    pub(super) fn look_again_in(&self, core: &mut Core, now: u64) -> u64 {
        let count = core.workers.count();
        // If the standstill has already been found, it has been acted on.
        let later = |left: u64| if left == 0 { u64::MAX } else { left };
        let soon = |left: u64| if left == 0 { OVERDUE_PAUSE_NS } else { left };
        match count {
            _ if count < self.options.limit.soft => u64::MAX,
            _ if self.to_raise(core) < self.options.limit.hard => {
                let still = later(self.standstill_in(core, now, STANDSTILL_NS));
                // The pause after a failed creation is awaited elsewhere (`sleep_for`).
                let overdue = self.overdue_in(core, now).filter(|_| core.may_create());
                overdue.map_or(still, |left| still.min(soon(left)))
            }
            _ if self.queue.is_empty() => u64::MAX,
            _ => later(self.standstill_in(core, now, STANDSTILL_TOLD_NS)),
        }
    }

    fn tell_the_limit(&self, core: &mut Core, count: usize) {
        let Some(short) = self.options.limit.set_by.filter(|_| !core.standstill.told) else {
            return;
        };
        core.standstill.told = true;
        self.warn(
            WarningKind::WorkerLimit,
            format_args!(
                "scheduler '{}' has the {} that {short} leaves room for, and further requests \
                 wait: raise that, or let fewer requests wait at once",
                self.name(),
                counted(count, "worker"),
            ),
        );
    }

    fn tell_the_standstill(&self, core: &mut Core, count: usize) {
        let progress = self.progress_of_workers(core);
        if core.standstill.progress != progress {
            // The next look without progress reads the clock. This one may be one of many.
            (core.standstill.progress, core.standstill.since) = (progress, 0);
            self.standstill_told.store(false, Ordering::Relaxed);
            return;
        }
        let lasts = self.standstill_in(core, clock::now(), STANDSTILL_TOLD_NS) == 0;
        if !lasts || self.standstill_told.load(Ordering::Relaxed) {
            return;
        }
        self.standstill_told.store(true, Ordering::Relaxed);
        self.warn(
            WarningKind::Standstill,
            format_args!(
                "scheduler '{}' stands still: all of its workers ({count}) wait, no wait has ended \
                 for a second, and requests wait in its queue: {}. Leave max_workers out or raise \
                 it, or let fewer requests wait at once",
                self.name(),
                self.queue.len(),
            ),
        );
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::Node;
    use crate::scheduler::here;
    use crate::sync::Event;

    #[test]
    fn a_scheduler_does_not_stand_still_while_a_worker_is_ready() {
        let node = Node::builder().schedulers(1).take_over_blocked(false).build().unwrap();
        let gate = Arc::new(Event::manual(false));
        let waits = gate.clone();
        let waiter = node.spawn_on(0, move || waits.wait().unwrap()).unwrap();
        let (tell, told) = channel();
        // It runs in a turn, so no worker runs.
        let routine = Box::new(move |_| {
            let here = here().expect("a turn is a scheduler's");
            let now = clock::now();
            let left = |at| here.with(|core| here.standstill_in(core, at, STANDSTILL_NS));
            let begins = left(now);
            let lasted = left(now + STANDSTILL_NS);
            gate.set();
            let is_ready = left(now + STANDSTILL_NS);
            tell.send([begins, lasted, is_ready]).unwrap();
        });
        let sets = move || {
            let here = here().expect("it runs on a worker");
            here.with(|core| core.call_at(clock::now(), routine));
        };
        node.spawn_on(0, sets).unwrap().join().unwrap();
        assert_eq!(told.recv().unwrap(), [STANDSTILL_NS, 0, STANDSTILL_NS]);
        waiter.join().unwrap();
    }

    #[test]
    fn at_its_limit_a_scheduler_looks_again_only_while_requests_wait() {
        let builder = Node::builder().schedulers(1).max_workers(1).take_over_blocked(false);
        let looks = builder.build().unwrap().run(|| {
            let look = || {
                let here = here().expect("it runs on a worker");
                here.with(|core| here.look_again_in(core, clock::now()))
            };
            let none_waits = look();
            let _waits = crate::spawn(|| ());
            [none_waits, look()]
        });
        assert_eq!(looks, [u64::MAX, STANDSTILL_TOLD_NS]);
    }

    /// Returns how many workers there are, and how often a reserve worker was granted.
    fn workers_and_grants() -> (usize, u64) {
        let here = here().expect("it runs on a worker");
        here.with(|core| (core.workers.count(), core.standstill.grants))
    }

    /// Otherwise it would begin another branch of a tree of tasks, whose joins need more workers.
    #[test]
    fn an_idle_reserve_worker_begins_another_request_only_when_that_is_overdue() {
        let node = Node::builder().schedulers(1).max_workers(8).soft_limit(1);
        let node = node.take_over_blocked(false).build().unwrap();
        node.run(|| {
            crate::spawn(|| ()).join().unwrap();
            assert_eq!(workers_and_grants(), (2, 0), "a reserve worker has carried it out");
            let queued = crate::spawn(|| ());
            crate::yield_now();
            let granted = workers_and_grants().1 > 0;
            assert!(granted || !queued.is_finished(), "the reserve worker has begun it");
            std::thread::sleep(std::time::Duration::from_nanos(OVERDUE_NS));
            crate::yield_now();
            assert!(queued.is_finished(), "it was overdue");
            assert_eq!(workers_and_grants(), (2, 1), "no further worker was made");
        });
    }

    /// All workers that there may be exist, and the only idle one is a reserve worker.
    #[test]
    fn a_standstill_at_the_hard_limit_lets_a_reserve_worker_carry_out_any_request() {
        let node = Node::builder().schedulers(1).max_workers(2).soft_limit(1);
        let node = node.take_over_blocked(false).build().unwrap();
        node.run(|| {
            crate::spawn(|| ()).join().unwrap();
            assert_eq!(workers_and_grants(), (2, 0));
            let gate = Arc::new(Event::manual(false));
            let sets = gate.clone();
            let _queued = crate::spawn(move || sets.set());
            gate.wait().unwrap();
            // Otherwise the reserve worker ended first, and another one was made.
            assert_eq!(workers_and_grants(), (2, 1));
        });
    }

    /// Of two workers, the one of the awaited task is beyond the limit.
    #[test]
    fn beyond_the_soft_limit_a_pause_follows_each_worker_that_is_made() {
        let node = Node::builder().schedulers(1).max_workers(1).take_over_blocked(false);
        let node = node.build().unwrap();
        node.run(|| {
            let here_now = here().expect("it runs on a worker");
            let made = here_now.with(|core| core.standstill.overdue);
            drop(here_now);
            assert_eq!(made, 0, "within the limit");
            let task = crate::spawn(|| {
                let waits = crate::spawn(|| ());
                let here = here().expect("it runs on a worker");
                let (made, pause, is_overdue) = here.with(|core| {
                    let made = core.standstill.overdue;
                    (made, here.overdue_in(core, made), here.is_overdue(core, made))
                });
                drop(here);
                assert_ne!(made, 0);
                assert_eq!(pause, Some(OVERDUE_PAUSE_NS));
                assert!(!is_overdue, "no other is made in the pause");
                waits
            });
            task.join().unwrap().join().unwrap();
        });
    }
}
