//! Carried schedulers: those of workers with their own context that detect undeclared blocks
//! (`detect_blocking`).
//!
//! Such a scheduler must continue when the kernel thread that hosts it is blocked in a worker's
//! page fault. So its root is no host thread's own context but a detached one, as its workers are,
//! and *carriers* host it, one at a time (`watch/carriers.rs`). Without detection there are no
//! carriers: the root stays on the scheduler's thread.
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
//! Shutdown: every context returns to a kernel thread of its own. The root takes the scheduler down
//! on its present carrier and leaves for its own kernel thread; then the carriers are told to end
//! and joined.
//!
//! Invariants of crate `context`, as kept here. **One Place**: the root is saved while a worker is
//! current, and only the active carrier continues it; a carrier's own context is saved while it
//! carries, and only the context that leaves the carrier continues that. The first
//! carrier waits for the root's post. Contexts run on carriers, which end after
//! every worker was retired and the root has left.
//!
//! What is keyed to the kernel thread changes when another one carries: `host_thread`; the state
//! file and the stack for signals are each carrier's own; the signal mask is the same on all. The
//! I/O driver is one for many threads (epoll), for a ring would be the first carrier's only.
//!
//! *Locks.* A worker may fault with a lock held. Other workers that need it block in a system call,
//! which is seen, and leave. The scheduler itself, if it needs the lock (the allocator's), waits
//! until the fault has ended and the worker has rejoined: then the worker is allowed to run without
//! the baton (`lent.rs`). A fault is taken only of code, not of the short waits that allocators
//! have: those for the address space.
//!
//! Named invariant **Held**: what a thread's handler looks at lives until the thread ends,
//! because the thread has an owner of the scheduler.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::ptr::from_ref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use context::{Context, Host};

use super::mine::{self, Mine};
use crate::os::entry::Inside;
use crate::os::linux::sample;
use crate::os::threads::Promise;
use crate::os::{self, clock};
use crate::scheduler::blocks::REASON;
use crate::scheduler::lists::worker_list::State;
use crate::scheduler::state::AWAY;
use crate::scheduler::{Options, Scheduler, WorkerKind, set_here};
use crate::wait::Waiter;
use crate::watch::carriers::{Carrier, Carriers};
use crate::watch::{self, Waits, state};

/// The size of a carrier's own stack: a carrier only switches, and takes signals while it sleeps.
const STACK: usize = 64 << 10;

/// Sends the scheduler to the thread that starts it.
type Tell = Promise<io::Result<Arc<Scheduler>>>;

/// Returns whether the scheduler with these options is tied to no kernel thread.
pub(in crate::scheduler) fn are_carried(options: &Options) -> bool {
    let wanted =
        options.kind == WorkerKind::OwnContext && options.detect_blocking && !os::sim::is_here();
    // On other platforms the blocked instruction could not be found in a frame, nor be stepped
    // over.
    wanted && options.pin.is_some() && cfg!(all(target_arch = "x86_64", target_env = "gnu"))
}

impl Scheduler {
    /// Runs this scheduler on carriers until it ends. `main` is the root's code.
    pub(in crate::scheduler) fn run_carried(self: &Arc<Self>, tell: Tell, main: impl FnOnce()) {
        let carriers = self.hosting.carriers.get_or_init(Carriers::new);
        let root = Context::new();
        // SAFETY: Baton: no other thread has seen this scheduler yet.
        unsafe { (*self.core.get()).switching.root = &root };
        let crew = match self.make_carriers(carriers, &root) {
            Ok(crew) => crew,
            Err(error) => return tell.keep(Err(error)),
        };
        // SAFETY: Held: this thread has the scheduler, which has them, until it sets none.
        watch::runs_on(Some(unsafe { &*from_ref(carriers) }));
        let tell = Cell::new(Some(tell));
        let body = || {
            set_here(Some(self));
            self.make_ready();
            tell.take().into_iter().for_each(|tell| tell.keep(Ok(self.clone())));
            main();
            set_here(None);
            let host = carriers.carrying().own.load(Ordering::Relaxed);
            // SAFETY: One Place: the root runs here, and the active carrier has saved its own
            // context to switch to it. One Place: the crew is joined below.
            unsafe { root.leave_for(&*host) };
        };
        // SAFETY: One Place: the first carrier waits for the post, and a later one
        // finds the root saved, for a worker is current then. `body` ends by leaving, and `root`
        // stays in this frame.
        let detached = unsafe { root.detach(&carriers.all()[0].go.post(), body) };
        end_carriers(carriers, crew);
        if let (Err(why), Some(tell)) = (detached, tell.take()) {
            tell.keep(Err(io::Error::other(why)));
        }
        watch::runs_on(None);
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
            let made = thread.stack_size(STACK).spawn(move || scheduler.carry(at, root, tell));
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

    /// Runs a carrier's thread.
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
        // SAFETY: Held: the thread that made this one has the scheduler until it has joined
        // it.
        watch::runs_on(Some(unsafe { &*from_ref(carriers) }));
        me.own.store(from_ref(host.root()).cast_mut(), Ordering::Release);
        me.thread.store(os::thread_number() as i32, Ordering::Release);
        if at == 0 {
            self.host_thread.store(os::thread_number(), Ordering::Relaxed);
        }
        tell.keep(Ok(()));
        let root = std::ptr::with_exposed_provenance::<Context>(root);
        // The first one carries as soon as there is a root.
        let mut is_spare = at != 0;
        loop {
            me.spare.store(is_spare, Ordering::Release);
            is_spare = true;
            me.go.wait();
            if carriers.ending.load(Ordering::Acquire) {
                break;
            }
            // SAFETY: One Place: the root is saved, and continued by the active carrier, which this
            // thread now is; it is the only one, for the carrier before does not touch the root any
            // more. The root lives until the crew was joined.
            unsafe { host.root().switch_to(&*root) };
            // The context that left may have done so inside a signal handler.
            watch::block_here(self.hosting.mask());
        }
        me.thread.store(0, Ordering::Relaxed);
        me.state.close();
    }

    /// Handles a carrier that is blocked in `waits`, not for the first time: interrupts it, and
    /// takes the scheduler from it if that does not end the block.
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

    /// Returns whether the worker that has this stack pointer is in user code. The carrier is
    /// blocked meanwhile.
    fn may_be_taken(&self, sp: u64) -> bool {
        let library = self.busy.load(Ordering::Acquire);
        let here = |waiter: &&Waiter| {
            waiter.record.view.stack().is_some_and(|stack| stack.contains(sp as usize))
        };
        // The blocked thread may hold that lock.
        let waiter = self.roster.try_lock().and_then(|all| all.values().copied().find(here));
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

/// Called by a worker's own code, in the handler of the signal that was its gate: another carrier
/// has its scheduler. The worker resumes on its own kernel thread, frees this carrier, and rejoins
/// its scheduler.
pub(in crate::scheduler) fn leave_taken(carrier: &'static Carrier) {
    let Some(Mine { scheduler, context, waiter }) = mine::mine() else { return };
    let _inside = Inside::enter();
    // SAFETY: Baton: the scheduler outlives its workers' threads, each of which has an owner of it.
    let scheduler = unsafe { &*scheduler };
    set_here(None);
    AWAY.set(Some(waiter));
    let host = carrier.own.load(Ordering::Acquire);
    // SAFETY: One Place: this worker ran on this carrier when it was taken, whole, and has not been
    // continued since: it is on no list. The carrier's own context is saved since it switched to
    // the root, and only the context that leaves the carrier continues it. One Place.
    unsafe { (*context).leave_for(&*host) };
    AWAY.set(None);
    waiter.signalled.store(clock::ticks(), Ordering::Relaxed);
    let within = waiter.record.in_request_code.swap(false, Ordering::Relaxed);
    if scheduler.decouple_lendable(context, waiter, within) {
        set_here(Some(scheduler));
        scheduler.end_preemptive(waiter, REASON);
        debug_assert!(waiter.is(State::Running));
    }
    waiter.record.in_request_code.store(within, Ordering::Relaxed);
}
