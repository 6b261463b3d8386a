//! Carried schedulers: schedulers of workers with their own context that detect undeclared blocks
//! (`detect_blocking`), and therefore are tied to no single kernel thread.
//!
//! Such a scheduler must continue when the kernel thread that hosts it is blocked in a page fault
//! of a worker. So its root (the context that runs when no worker does) is not the own context of a
//! host thread. It is detached from its kernel thread, like the workers' contexts, and *carriers*
//! host them all, one carrier at a time (`watch/carriers.rs`). Without detection there are no
//! carriers, and the root stays on the scheduler's thread.
//!
//! ```text
//!   scheduler's thread                 carrier A                       carrier B
//!   makes the carriers, detaches       switch_to(root)                 sleeps
//!   (its own kernel thread sleeps)     root, worker W, worker V ..
//!                                      W: page fault
//!   watcher or watchdog: takes, wakes B
//!                                                                      switch_to(root): W is
//!                                                                      Preemptive, V runs
//!                                      the fault ends: the handler
//!                                      W leaves for its own kernel
//!                                      thread; A's own context: sleeps
//!   W rejoins through the inbox -------------------------------------> chooses W, which resumes
//! ```
//!
//! At shutdown, every context returns to a kernel thread of its own. The root takes the scheduler
//! down on its present carrier and then leaves for its own kernel thread. Then the carriers are
//! made to end, and are joined.
//!
//! Named invariants of crate `context`, and how they are kept here. **One Place**: the root is
//! saved while a worker is current, and only the active carrier continues it. A carrier's own
//! context is saved while the carrier hosts the scheduler, and only the context that leaves the
//! carrier continues it. The first carrier waits for the root's post. The carriers end only after
//! every worker was retired and the root has left.
//!
//! When another carrier becomes the host, everything that belongs to a kernel thread changes:
//! `host_thread` is set; the state file and the alternate stack for signals are each carrier's own;
//! the signal mask is the same on all. The I/O driver is one for many threads (epoll), because a
//! ring would belong to the first carrier only.
//!
//! *Locks.* A worker may fault while it holds a lock. Other workers that need the lock block in a
//! system call, are noticed, and leave the scheduler. If the scheduler itself needs the lock (the
//! allocator's), it waits until the fault has ended and the worker has rejoined; then the worker is
//! allowed to run without the baton (`lent.rs`). The scheduler is not taken from a carrier during
//! the short waits that allocators have: those for the lock of the address space.
//!
//! Named invariant **Held**: the data that a thread's signal handler reads lives until the thread
//! ends, because the thread has an `Arc` of the scheduler.

#![allow(unsafe_code)]

use std::io;
use std::ptr::from_ref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use context::{Context, Host};

use super::mine::{self, Mine};
use crate::os::entry::Inside;
use crate::os::linux::sample;
use crate::os::threads::{self, Promise};
use crate::os::{self, clock};
use crate::scheduler::blocks::REASON;
use crate::scheduler::lists::worker_list::State;
use crate::scheduler::state::AWAY;
use crate::scheduler::{Scheduler, SchedulerOptions, set_here};
use crate::wait::Waiter;
use crate::watch::carriers::{Carrier, Carriers};
use crate::watch::{self, Waits, state};

/// The size of a carrier's own stack: a carrier only switches, and takes signals while it sleeps.
const STACK: usize = 64 << 10;

/// Returns whether carriers host a scheduler of such workers with these options.
pub(super) fn are_carried(options: &SchedulerOptions) -> bool {
    let wanted = options.detect_blocking && !os::sim::is_here();
    // On other platforms the handler cannot find the blocked instruction in a frame, and cannot
    // step over it.
    wanted && options.pin.is_some() && cfg!(all(target_arch = "x86_64", target_env = "gnu"))
}

impl Scheduler {
    /// Runs this scheduler on carriers until it ends.
    pub(super) fn run_carried(self: &Arc<Self>, begun: impl FnOnce()) -> io::Result<()> {
        self.show_host()?;
        let carriers = self.hosting.carriers.get_or_init(Carriers::new);
        let root = Context::new();
        self.set_root(&root);
        let crew = self.make_carriers(carriers, &root)?;
        // SAFETY: Held: this thread has the scheduler, and so the carriers, until `runs_on(None)`
        // below.
        watch::runs_on(Some(unsafe { &*from_ref(carriers) }));
        let body = || {
            self.run_standby(begun, || self.root(Scheduler::resume_context));
            let host = carriers.carrying().own.load(Ordering::Relaxed);
            // SAFETY: One Place: the root runs here. The active carrier saved its own context when
            // it switched to the root. The carriers are joined below.
            unsafe { root.leave_for(&*host) };
        };
        // SAFETY: One Place: the first carrier waits for the post. A later carrier finds the root
        // saved, because a worker is current when that carrier begins. `body` ends by leaving, and
        // `root` stays in this frame.
        let detached = unsafe { root.detach(&carriers.all()[0].go.post(), body) };
        end_carriers(carriers, crew);
        watch::runs_on(None);
        detached.map_err(io::Error::other)
    }

    fn make_carriers(
        self: &Arc<Self>,
        carriers: &Carriers,
        root: &Context,
    ) -> io::Result<Vec<JoinHandle<()>>> {
        let mut crew = Vec::new();
        let root = from_ref(root).expose_provenance();
        for at in 0..carriers.all().len() {
            let (tell, told) = Promise::new();
            let scheduler = self.clone();
            let thread = std::thread::Builder::new().name(format!("ums-{}/carrier", self.name()));
            let carry = move || scheduler.carry(at, root, tell);
            let made = threads::start(thread.stack_size(STACK), carry);
            let made = made.and_then(|thread| {
                crew.push(thread);
                told.wait().unwrap_or_else(|| Err(io::Error::other("it ended at its start")))
            });
            if let Err(error) = made {
                end_carriers(carriers, crew);
                let text = format!(
                    "scheduler '{}' could not create a carrier thread: {error}",
                    self.name()
                );
                return Err(io::Error::new(error.kind(), text));
            }
        }
        Ok(crew)
    }

    /// The main function of a carrier's thread.
    fn carry(&self, at: usize, root: usize, tell: Promise<io::Result<()>>) {
        let Some(carriers) = self.hosting.carriers.get() else { return };
        let me = &carriers.all()[at];
        self.pin_and_set_nice();
        let begun = Host::here().map_err(io::Error::other).and_then(|host| {
            me.state.open(os::thread_number() as i32)?;
            Ok(host)
        });
        let host = match begun {
            Ok(host) => host,
            Err(error) => return tell.keep(Err(error)),
        };
        let _alternate_stack = fiber::prepare_host_thread();
        sample::this_thread_is_on(fiber::StackRange::of_this_thread());
        // SAFETY: Held: the thread that created this carrier has the scheduler until it has joined
        // the carrier.
        watch::runs_on(Some(unsafe { &*from_ref(carriers) }));
        me.own.store(from_ref(host.root()).cast_mut(), Ordering::Release);
        me.thread.store(os::thread_number() as i32, Ordering::Release);
        if at == 0 {
            self.host_thread.store(os::thread_number(), Ordering::Relaxed);
        }
        tell.keep(Ok(()));
        let root = std::ptr::with_exposed_provenance::<Context>(root);
        // The first carrier begins to carry when the root has been detached.
        let mut is_spare = at != 0;
        loop {
            me.spare.store(is_spare, Ordering::Release);
            is_spare = true;
            me.go.wait();
            if carriers.ending.load(Ordering::Acquire) {
                break;
            }
            // SAFETY: One Place: the root is saved, and continued only by the active carrier. This
            // thread is the only active one: the carrier before it does not touch the root any
            // more. The root lives until the carriers have been joined.
            unsafe { host.root().switch_to(&*root) };
            // The context that has left may have done so inside a signal handler, with another
            // mask.
            watch::block_here(self.hosting.mask());
        }
        me.thread.store(0, Ordering::Relaxed);
        me.state.close();
    }

    /// Handles a carrier that is still blocked in `waits` at the second look or later. If the block
    /// can be interrupted, interrupts it again; otherwise takes the scheduler from the carrier.
    /// Returns true if the scheduler was taken.
    pub(super) fn handle_blocked_carrier(&self, carriers: &Carriers, waits: Waits) -> bool {
        let mask = self.hosting.mask();
        let in_call = waits.call.is_some();
        if in_call && !carriers.is_uninterruptible(mask) {
            if watch::can_be_carried(waits) {
                carriers.poke(waits);
            }
            return false;
        }
        let thread = carriers.carrying().thread.load(Ordering::Relaxed);
        if waits.changes_memory_map() || (!in_call && state::waits_for_memory_map(thread)) {
            return false;
        }
        let Some(next) = carriers.take(waits, mask, || self.may_be_taken(waits.sp)) else {
            return false;
        };
        self.host_thread.store(next.thread.load(Ordering::Relaxed) as u32, Ordering::Relaxed);
        self.baton_was_taken(in_call);
        next.go.set();
        true
    }

    /// Returns whether the worker on whose stack `sp` points is in user code. The carrier is
    /// blocked meanwhile.
    fn may_be_taken(&self, sp: u64) -> bool {
        let library = self.busy.load(Ordering::Acquire);
        let here = |waiter: &&Waiter| {
            waiter.record.view.stack().is_some_and(|stack| stack.contains(sp as usize))
        };
        // The lock is only tried, because the blocked thread may hold it.
        let waiter = self.roster.try_lock().and_then(|roster| roster.all().find(here));
        let Some(waiter) = waiter.filter(|_| !library) else { return false };
        self.is_in_user_code(waiter) && mine::is_whole(waiter)
    }
}

fn end_carriers(carriers: &Carriers, crew: Vec<JoinHandle<()>>) {
    carriers.ending.store(true, Ordering::Release);
    carriers.all().iter().for_each(|one| one.go.set());
    for thread in crew {
        // A carrier that panicked has reported it.
        let _ = thread.join();
    }
}

/// Called on a worker's stack, in the handler of the signal that was its gate, when another carrier
/// hosts its scheduler. The worker resumes on its own kernel thread, which frees this carrier, and
/// rejoins its scheduler.
pub(super) fn leave_taken(carrier: &'static Carrier) {
    let Some(Mine { scheduler, waiter }) = mine::mine() else { return };
    let _inside = Inside::enter();
    // SAFETY: Baton: the scheduler outlives its workers' threads: each has an `Arc` of it.
    let scheduler = unsafe { &*scheduler };
    set_here(None);
    AWAY.set(Some(waiter));
    let host = carrier.own.load(Ordering::Acquire);
    // SAFETY: One Place: this worker ran on this carrier, with its own stack and registers, when
    // the scheduler was taken from the carrier. It has not been continued since, because it is on
    // no list. The carrier's own context has been saved since the carrier switched to the root, and
    // only the context that leaves the carrier continues it.
    unsafe { waiter.record.own().context.leave_for(&*host) };
    AWAY.set(None);
    waiter.signalled.store(clock::ticks(), Ordering::Relaxed);
    let within = waiter.record.view.in_request_code.swap(false, Ordering::Relaxed);
    if scheduler.decouple_lendable(waiter, within) {
        set_here(Some(scheduler));
        scheduler.end_preemptive(waiter, REASON);
        debug_assert!(waiter.is(State::Running));
    }
    waiter.record.view.in_request_code.store(within, Ordering::Relaxed);
}
