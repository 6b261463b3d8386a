//! The kernel thread that hosts the contexts of a scheduler: how it begins, and how the block watch
//! looks at it.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use context::Host;

use crate::os;
use crate::scheduler::Scheduler;
use crate::scheduler::lists::worker_list::STANDBY;
use crate::watch::{self, PlaceOwner, Waits};

impl Scheduler {
    /// Runs this scheduler on the calling thread until it ends.
    pub(super) fn run_hosted(self: &Arc<Self>, begun: impl FnOnce()) -> io::Result<()> {
        let host = Host::here().map_err(io::Error::other)?;
        if self.show_host()? {
            self.hosting.state_file.open(os::thread_number() as i32)?;
        }
        self.set_root(host.root());
        let _alternate_stack = fiber::prepare_host_thread();
        self.run_standby(begun, || self.root(Scheduler::resume_context));
        self.hosting.state_file.close();
        Ok(())
    }

    /// Begins to detect blocks of the kernel thread that hosts the contexts, if the options ask for
    /// that. Returns whether they do. Called before there are workers.
    pub(super) fn show_host(&self) -> io::Result<bool> {
        self.hosting.mask.store(watch::mask_here(), Ordering::Relaxed);
        let detects = self.open_place(Box::new(DetectingHost(self.me.clone())))?;
        if detects {
            watch::install();
        }
        Ok(detects)
    }

    /// Called by the root: switches to the current worker, if one is current. Returns false if none
    /// is.
    pub(super) fn resume_context(&self) -> bool {
        let any = self.with(|core| core.current != STANDBY);
        if any {
            self.pass_from_root();
            if self.hosting.has_carriers() {
                self.make_blocked_preemptive();
            }
        }
        any
    }

    /// Returns whether watched workers may be running on the host now.
    fn may_run_workers(&self) -> bool {
        self.counters.asleep_since.load(Ordering::Acquire) == 0
    }

    /// Returns the system call or fault in which the kernel thread that runs the workers is
    /// blocked, if it is blocked.
    fn host_waits(&self) -> Option<Waits> {
        match self.hosting.carriers.get() {
            Some(carriers) => carriers.carrying().state.waits(),
            None => self.hosting.state_file.waits(),
        }
    }

    /// Returns the call or fault that the host is blocked in, unless the scheduler itself made it.
    /// The worker on the host may be outside user code; the handler of the poke determines that.
    fn blocks_hosted(&self) -> Option<Waits> {
        let waits = self.host_waits()?;
        let seen = self.hosting.has_carriers() || watch::can_be_carried(waits);
        let library = self.busy.load(Ordering::Acquire)
            || self.looking.load(Ordering::Relaxed)
            || self.in_routine.load(Ordering::Relaxed) > 0;
        (seen && self.may_run_workers() && !library).then_some(waits)
    }

    /// Looks at the host, and interrupts it if it is blocked. Returns true if something has
    /// changed.
    fn look_at_host(&self) -> bool {
        let Some(waits) = self.blocks_hosted() else { return false };
        let now = waits.number(self.progress());
        let news = self.hosting.poked.swap(now, Ordering::Relaxed) != now;
        if !self.hosting.pokes.is_worth_one_more(news) {
            return news;
        }
        match self.hosting.carriers.get() {
            None => {
                let host = self.host_thread.load(Ordering::Relaxed) as i32;
                watch::poke_blocked(host, &self.hosting.state_file, waits);
                news
            }
            // Only at the second look, because most faults have ended by then, and most calls can
            // be interrupted.
            Some(carriers) if news => {
                if watch::can_be_carried(waits) {
                    carriers.poke(waits);
                }
                true
            }
            Some(carriers) => self.handle_blocked_carrier(carriers, waits),
        }
    }

    /// Returns whether the host waits for a lock that a worker may hold.
    fn host_waits_for_lock(&self) -> bool {
        let futex = self.host_waits().and_then(|waits| waits.futex());
        futex.is_some_and(|futex| !self.is_own_event(futex))
    }
}

/// The host as the watcher thread and the watchdog see it.
struct DetectingHost(Weak<Scheduler>);

impl PlaceOwner for DetectingHost {
    // No worker has the place of a watched thread.
    fn place_is_free(&self, _: bool) {}

    fn check(&self) -> bool {
        let Some(scheduler) = self.0.upgrade() else { return false };
        let may_run = scheduler.may_run_workers();
        if may_run && scheduler.is_stuck(|| scheduler.host_waits_for_lock()) {
            scheduler.lend_own();
        }
        may_run
    }

    fn hosts(&self) -> bool {
        self.0.upgrade().is_some_and(|scheduler| scheduler.may_run_workers())
    }

    fn look_at_hosted(&self) -> bool {
        self.0.upgrade().is_some_and(|scheduler| scheduler.look_at_host())
    }

    fn suspects_hosted(&self) -> u64 {
        let Some(scheduler) = self.0.upgrade() else { return 0 };
        scheduler.blocks_hosted().map_or(0, |waits| waits.number(scheduler.progress()))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::Node;
    use crate::scheduler::here;

    #[test]
    fn a_scheduler_that_sleeps_or_has_ended_hosts_no_worker() {
        let node = Node::builder().schedulers(1).build().unwrap();
        let (scheduler, runs) = node.run(|| {
            let scheduler = here().expect("it runs on a worker").arc();
            let runs = DetectingHost(Arc::downgrade(&scheduler)).hosts();
            (scheduler, runs)
        });
        assert!(runs, "a worker runs");
        let seen = DetectingHost(Arc::downgrade(&scheduler));
        let began = Instant::now();
        while seen.hosts() {
            assert!(began.elapsed() < Duration::from_secs(30), "it sleeps, and has no worker");
            std::thread::yield_now();
        }
        assert!(!DetectingHost(Weak::new()).hosts());
    }
}
