//! Checks of a scheduler's state, at every turn in a simulated world.

use std::sync::atomic::Ordering;

use super::{Core, ExecutionContext, Scheduler};
use crate::os::counted::AtomicU64;

impl Scheduler {
    /// Checks the invariants of a turn, in a simulated world.
    pub(super) fn check(&self) {
        if !crate::os::sim::is_here() {
            return;
        }
        let wrong = self.with(|core| {
            let lists = core.workers.check().and_then(|()| core.fairness.check());
            lists.and_then(|()| self.add_up(core))
        });
        if let Err(wrong) = wrong {
            crate::os::sim::fail(&format!("scheduler {}: {wrong}", self.name()));
        }
    }

    /// Checks that the counters agree with the lists, and that the calling thread has the baton.
    fn add_up(&self, core: &mut Core) -> Result<(), String> {
        use crate::scheduler::lists::worker_list::State;
        let must = |so: bool, text: &dyn Fn() -> String| if so { Ok(()) } else { Err(text()) };
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as usize;

        let holder = core.workers.get(core.current);
        must(std::ptr::eq(self.current_waiter(), holder.waiter), &|| {
            "the current worker has another waiter".into()
        })?;
        let holder = match holder.execution {
            Some(ExecutionContext::Thread(_)) => &holder.waiter.record.view.thread,
            _ => &self.host_thread,
        };
        must(holder.load(Ordering::Relaxed) == crate::os::thread_number(), &|| {
            "two have the baton".into()
        })?;

        // A worker that has rejoined keeps its preemptive place until it runs.
        let (away, places) = (core.workers.in_state(State::Preemptive), core.preemptive);
        must(away <= places, &|| format!("{away} workers are preemptive, {places} counted"))?;

        let living = core.workers.count() - core.workers.in_state(State::Retired);
        let (made, ended) =
            (of(&self.counters.workers_created), of(&self.counters.workers_retired));
        must(made - ended == living, &|| format!("{living} workers: {made} made, {ended} ended"))?;

        let (asked, known) = (core.io.outstanding(), core.driver.pending() + core.done.len());
        must(asked == known, &|| format!("{asked} operations wait, the driver knows {known}"))?;

        let busy = living - core.workers.in_state(State::Idle) - core.workers.in_state(State::New);
        let (queued, load) = (self.queue.len(), self.load());
        must(load >= queued + busy, &|| format!("load {load}: {queued} queued, {busy} at work"))
    }
}
