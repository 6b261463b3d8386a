//! Limits of workers: whether a scheduler may create one more.
//!
//! There are two limits. The *hard* one is the number that the builder was given, or the number
//! that the computer has room for. The *soft* one is lower, if the builder was given no number: up
//! to it a worker is created for each request that finds none. Beyond it the existing workers are
//! given a moment, for one may become free:
//!
//! ```text
//! nothing runs, and no wait or request has ended for 10 ms     a standstill: make workers, without
//!                                                              a pause, until a wait ends
//! the oldest request has been queued for 100 ms                make one in each millisecond
//! ```
//!
//! The first resolves a standstill at once, however many requests are queued. The second is for
//! requests whose scheduler is kept busy by workers that never become free, such as one for each
//! connection.
//!
//! At the hard limit requests wait. A standstill of a second there is reported on stderr; it may be
//! permanent, if the workers wait for requests that are in the queue.
//!
//! *Progress* is read off two counters. A worker that is made begins one wait, so turns less
//! workers created stay the same for as long as only new workers come to wait.

use std::sync::atomic::Ordering;

use super::{Core, Scheduler};
use crate::os::clock;
use crate::os::limits::{OVERDUE_NS, OVERDUE_PAUSE_NS, STANDSTILL_NS, STANDSTILL_TOLD_NS};
use crate::record::report::Kind;
use crate::scheduler::lists::worker_list::{STANDBY, State};

impl Scheduler {
    /// Returns whether one more worker may be created, by these limits.
    pub(super) fn has_room(&self, core: &mut Core) -> bool {
        let count = core.workers.count();
        count < self.options.limit.soft || self.has_room_beyond(core, count)
    }

    #[cold]
    fn has_room_beyond(&self, core: &mut Core, count: usize) -> bool {
        if count >= self.options.limit.hard {
            if self.queue.len() > 0 {
                self.tell_the_limit(core, count);
                self.tell_the_standstill(core, count);
            }
            return false;
        }
        let now = clock::now();
        self.standstill_in(core, now, STANDSTILL_NS) == 0 || self.is_overdue(core, now)
    }

    /// Returns the nanoseconds until the standstill has lasted for `span`, if nothing progresses; 0
    /// if it has.
    fn standstill_in(&self, core: &mut Core, now: u64, span: u64) -> u64 {
        let of = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let c = &self.counters;
        let progress = of(&c.turns).wrapping_sub(of(&c.workers_created));
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

    /// Returns whether the oldest request has waited too long, and a worker is due for it.
    fn is_overdue(&self, core: &mut Core, now: u64) -> bool {
        self.overdue_in(core, now) == Some(0)
    }

    /// Returns the nanoseconds until that is so, or None if nothing is queued.
    fn overdue_in(&self, core: &mut Core, now: u64) -> Option<u64> {
        if self.queue.len() == 0 {
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

    /// Notes that a worker was created: the next overdue request has to wait for a moment.
    pub(super) fn made_one(&self, core: &mut Core) {
        if core.workers.count() > self.options.limit.soft {
            core.standstill.overdue = clock::now();
        }
    }

    /// Returns in how many nanoseconds to check again whether one more worker may be created, or
    /// whether to report a standstill; `u64::MAX` for never.
    pub(super) fn look_again_in(&self, core: &mut Core, now: u64) -> u64 {
        let count = core.workers.count();
        // A standstill that has been found was acted on already.
        let later = |left: u64| if left == 0 { u64::MAX } else { left };
        let soon = |left: u64| if left == 0 { OVERDUE_PAUSE_NS } else { left };
        match count {
            _ if count < self.options.limit.soft => u64::MAX,
            _ if count < self.options.limit.hard => {
                let still = later(self.standstill_in(core, now, STANDSTILL_NS));
                // After a refusal there is a pause of its own.
                let overdue = self.overdue_in(core, now).filter(|_| core.may_create());
                overdue.map_or(still, |left| still.min(soon(left)))
            }
            _ if self.queue.len() == 0 => u64::MAX,
            _ => later(self.standstill_in(core, now, STANDSTILL_TOLD_NS)),
        }
    }

    fn tell_the_limit(&self, core: &mut Core, count: usize) {
        let Some(short) = self.options.limit.set_by.filter(|_| !core.standstill.told) else {
            return;
        };
        core.standstill.told = true;
        self.warn(
            Kind::WorkerLimit,
            format_args!(
                "scheduler '{}' has the {count} workers that {short} leaves room for, and further \
                 requests wait: raise that, or let fewer requests wait at once",
                self.name(),
            ),
        );
    }

    fn tell_the_standstill(&self, core: &mut Core, count: usize) {
        let lasts = self.standstill_in(core, clock::now(), STANDSTILL_TOLD_NS) == 0;
        if !lasts || self.standstill_told.load(Ordering::Relaxed) {
            return;
        }
        self.standstill_told.store(true, Ordering::Relaxed);
        self.warn(
            Kind::Standstill,
            format_args!(
                "scheduler '{}' stands still: each of its {count} workers waits, no wait has ended \
                 for a second, and requests wait in its queue: {}. Leave max_workers out or raise \
                 it, or let fewer requests wait at once",
                self.name(),
                self.queue.len(),
            ),
        );
    }
}
