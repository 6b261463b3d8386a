//! The kernel thread that hosts the contexts of a scheduler: how it begins, and how the block watch
//! looks at it.

use std::sync::atomic::Ordering;

use context::Host;

use crate::os;
use crate::scheduler::lists::worker_list::STANDBY;
use crate::scheduler::{Scheduler, WorkerKind};
use crate::watch::{self, Waits};

impl Scheduler {
    /// Makes the calling thread a host, if workers have their own contexts. The returned value must
    /// outlive all these contexts.
    pub(in crate::scheduler) fn host_contexts(
        &self,
        carried: bool,
    ) -> std::io::Result<Option<Host>> {
        if self.options.kind != WorkerKind::OwnContext {
            return Ok(None);
        }
        self.hosting.mask.store(watch::mask_here(), Ordering::Relaxed);
        if carried {
            // Its carriers are hosts, and inherit the mask.
            return Ok(None);
        }
        Host::here().map(Some).map_err(std::io::Error::other)
    }

    /// Makes the host's own context the root, to which contexts switch when no worker can run. The
    /// host calls this when it begins to run this scheduler.
    pub(in crate::scheduler) fn set_root(&self, host: Option<&Host>) {
        if let Some(host) = host {
            self.with(|core| core.switching.root = host.root());
        }
    }

    /// Called by the root: switches to the current worker, if one is current. Returns false if none
    /// is.
    pub(in crate::scheduler) fn resume_context(&self) -> bool {
        let any = self.with(|core| core.current != STANDBY);
        if any {
            self.pass_from_root();
            if self.hosting.has_carriers() {
                self.make_blocked_preemptive();
            }
        }
        any
    }

    /// Registers the calling thread, which is about to host the contexts, with the block watch.
    pub(in crate::scheduler) fn show_host(&self) -> std::io::Result<()> {
        watch::install();
        if super::are_carried(&self.options) {
            return Ok(());
        }
        self.hosting.state_file.open(os::thread_number() as i32)
    }

    /// Unregisters the host from the block watch.
    pub(in crate::scheduler) fn hide_host(&self) {
        self.hosting.state_file.close();
    }

    /// Returns whether watched workers may be running on the host now.
    pub(in crate::scheduler) fn hosts(&self) -> bool {
        self.options.kind == WorkerKind::OwnContext
            && self.counters.asleep_since.load(Ordering::Acquire) == 0
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
        (seen && self.hosts() && !library).then_some(waits)
    }

    /// Returns a number that, as far as can be determined, is the same only for the same block.
    fn number_of(&self, waits: Waits) -> u64 {
        self.progress() << 16 | waits.pc & 0xffff | 1
    }

    /// Returns the number of the block that the host is in; 0 if it is in none.
    pub(in crate::scheduler) fn suspects_host(&self) -> u64 {
        self.blocks_hosted().map_or(0, |waits| self.number_of(waits))
    }

    /// Looks at the host, and interrupts it if it is blocked. Returns true if something has
    /// changed.
    pub(in crate::scheduler) fn look_at_host(&self) -> bool {
        let Some(waits) = self.blocks_hosted() else { return false };
        let now = self.number_of(waits);
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
    pub(in crate::scheduler) fn host_waits_for_lock(&self) -> bool {
        let futex = self.host_waits().and_then(|waits| waits.futex());
        futex.is_some_and(|futex| !self.is_own_event(futex))
    }
}
