//! Contexts of workers with their own context: creates them, switches between them, and lets them
//! leave the scheduler and rejoin it.
//!
//! Such a worker is a thread to Rust and to C, but it has left its kernel thread (crate `context`).
//! While it is in its scheduler, it runs on the scheduler's host thread, and a switch is a change
//! of registers. While it is preemptive, it is *coupled*: it runs on its own kernel thread. If
//! undeclared blocks are detected, there is no single host thread: carriers take turns
//! (`carrier.rs`).
//!
//! ```text
//!   where it is       its state                 what moves it from there, and how
//!   saved             New, Runnable, Waiting,   the current worker, or the standby: switch_to
//!                     Idle
//!   on the host       Running; hosts the idle   itself: switch_to another; leave_for (preemptive)
//!                     loop
//!   coupled           Preemptive                itself: decouple; its post is a push to the inbox
//!   blocked, on a     Preemptive                itself, when it wakes: leave_for the carrier's
//!   lost carrier                                own context, then decouple
//!   coupled, lent     any of these              itself, when it asks for its scheduler: decouple
//!   coupled           Retired                   its own kernel thread, until its end: release
//! ```
//!
//! *Which scheduler is the caller on?* As in thread workers, each thread-local of the library
//! belongs to one worker. A worker belongs to one scheduler for life. So the worker's thread-local
//! is right: it is set while the worker is on the host, and cleared while the worker is coupled.
//! State of a kernel thread is the host's while a worker is there: the I/O driver, whose ring
//! belongs to the host thread, is touched only there (with carriers it has no ring). The panic
//! count is the worker's own, so a destructor may wait during a panic (rule 11 of ARCHITECTURE.md
//! is for fibers).
//!
//! Named invariants of crate `context`, and how they are kept here. **One Place**: a worker's state
//! says where the worker is, and only the baton's holder changes the state; for a lent worker, the
//! lending word says it (`lent.rs`). The scheduler does not use a new worker before the worker's
//! post has been received, nor one that rejoins before it has come through the inbox. The standby
//! ends when every worker has been retired, and joins their threads. **Held**: a worker's thread
//! has an `Arc` of its scheduler, to which the carriers belong.

#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use context::{Context, Refused};

use super::calls::OfContexts;
use super::mine::{self, Mine};
use super::state::Own;
use crate::os;
use crate::os::entry;
use crate::os::linux::plain::prefetch;
use crate::os::threads::{self, ThreadHandle};
use crate::scheduler::lists::WorkerId;
use crate::scheduler::switch::SwitchEvent;
use crate::scheduler::{Core, ExecutionContext, Scheduler, here, preempt, set_here};
use crate::wait::Waiter;
use crate::watch::{self, calls};

/// How far from its thread pointer a thread has what each entry reads of it. It is the same for all
/// threads if the library is part of the program; otherwise a prefetch gets a line that is not
/// used.
static ENTRY: AtomicUsize = AtomicUsize::new(0);

impl Scheduler {
    /// The second half of a switch of the worker that was current until now.
    #[inline(always)]
    pub(in crate::scheduler) fn switch_context(&self, from: *const Context, to: *const Context) {
        // SAFETY: Baton: the first half of this switch has returned both, or the root has looked
        // them up after it made a worker current, and no other worker has had the baton since. One
        // Place: `from` is the running context, and only the holder of the baton, which is now
        // `to`, resumes either of the two. Both are alive: a worker's context is in its list entry,
        // the root in the frame of the host thread.
        along(|| unsafe { (*from).switch_to(&*to) });
    }
}

/// Runs a switch. In a simulated world, the host thread's membership passes to the next context.
#[inline(always)]
fn along(switch: impl FnOnce()) {
    match os::sim::is_here().then(here).flatten() {
        Some(scheduler) => scheduler.hosting.carried.along(switch),
        None => switch(),
    }
}

impl Core {
    /// Returns the context of a worker of this kind, or of the standby.
    #[inline]
    pub(super) fn context_of(&mut self, id: WorkerId) -> NonNull<Context> {
        match &self.workers.get(id).execution {
            Some(ExecutionContext::Own(own)) => own.context,
            _ => self.switching.root,
        }
    }
}

impl Scheduler {
    /// Sets the context to which contexts switch when no worker can run. Called before there are
    /// workers.
    pub(super) fn set_root(&self, root: &Context) {
        // SAFETY: Baton: only the calling thread uses the lists of this scheduler so far.
        unsafe { (*self.core.get()).switching.root = root.into() };
    }

    /// Called by the standby, which is the host thread's root, when it has made a worker current:
    /// switches to that worker. Returns when the standby is current again.
    pub(super) fn pass_from_root(&self) {
        let (root, to) = self.with(|core| (core.switching.root, core.context_of(core.current)));
        self.switch_context(root.as_ptr(), to.as_ptr());
    }

    /// Hands the baton to `to`. When this returns, the worker runs outside its scheduler, on its
    /// own kernel thread.
    pub(super) fn couple(&self, to: WorkerId) {
        let (mine, theirs) = self.with(|core| {
            let mine = core.context_of(core.current);
            core.hand_to(self, to, SwitchEvent::At(core.turn_at));
            (mine, core.context_of(to))
        });
        // Cleared before the worker's own kernel thread takes the signals that are pending there.
        set_here(None);
        // SAFETY: One Place: the caller was current until now, so its context is the running one
        // and on the host; the context that has the baton now is saved. Both are alive, as in
        // `switch_context`.
        let leave = || unsafe { mine.as_ref().leave_for(theirs.as_ref()) };
        self.hosting.carried.home(leave);
    }

    /// Rejoins the scheduler: the worker is saved, then pushed onto the inbox. Returns when it has
    /// the baton.
    pub(super) fn decouple(&self, waiter: &'static Waiter) {
        let mine = &waiter.record.own().context;
        if os::sim::is_here() {
            let inbox = self.inbox;
            let saved = os::sim::carry::ferry(move || inbox.push(waiter));
            // SAFETY: One Place, as below; the helper thread (`ferry`) pushes the worker onto the
            // inbox.
            unsafe { mine.decouple(&saved.post()) };
            return self.hosting.carried.arrive();
        }
        let post = self.inbox.post(waiter);
        // SAFETY: One Place: the caller has run coupled since `couple`. The worker that takes it
        // from the inbox may continue it. Its context is in its list entry, which stays until the
        // worker is retired, and a preemptive worker is not retired.
        unsafe { mine.decouple(&post) };
    }

    /// The first step of a worker's thread, if carriers host it.
    fn runs_on_carriers(&self, mine: Mine) {
        let carriers = self.hosting.carriers.get();
        mine::begin(mine);
        preempt::prepare_here(self.hosting.mask());
        // SAFETY: Held: the carriers belong to the scheduler, and this thread has an `Arc` of the
        // scheduler until it ends. Nothing else uses the reference.
        watch::runs_on(carriers.map(|all| unsafe { &*std::ptr::from_ref(all) }));
    }

    /// Creates the thread of a new worker, and waits until the worker has left its kernel thread.
    pub(super) fn create_context(
        &self,
        core: &mut Core,
        id: WorkerId,
        waiter: &'static Waiter,
    ) -> io::Result<Own> {
        let (scheduler, context) = (self.arc(), &waiter.record.become_thread().context);
        let refused: Arc<OnceLock<Refused>> = Arc::default();
        let told = refused.clone();
        let main = move || {
            scheduler.arrive(waiter);
            calls::detect_here(&OfContexts);
            scheduler.runs_on_carriers(Mine { scheduler: &*scheduler, waiter });
            if os::sim::carry::leaves_own_thread() {
                return scheduler.detach_in_world(context, id, waiter);
            }
            let live = || {
                let distance = entry::place().wrapping_sub(context.thread_pointer());
                ENTRY.store(distance, Ordering::Relaxed);
                scheduler.live(id, waiter);
            };
            // SAFETY: One Place: `live` returns when the worker was retired, and retiring it
            // releases its context. The creating thread waits for the post. The library keeps
            // nothing over a switch that depends on the kernel thread, except the state that the
            // header of this file names; docs/worker-kinds.md lists the state that applications
            // must not keep.
            match unsafe { context.detach(&waiter.event.post(), live) } {
                Ok(()) => {
                    entry::enter_by(None);
                    waiter.give_back();
                }
                Err(why) => {
                    let _ = told.set(why);
                    waiter.event.set();
                }
            }
        };
        let thread = self.start_context(core, self.worker_name(id).to_string(), main)?;
        waiter.event.wait();
        if let Some(why) = refused.get() {
            core.take_stack_back(thread.join().ok().flatten());
            return Err(io::Error::other(*why));
        }
        waiter.record.view.saved_at.store(context.saved_at(), Ordering::Relaxed);
        Ok(Own { context: context.into(), thread: Box::new(thread) })
    }
}

impl Scheduler {
    /// Creates a thread on a stack of the pool: so it takes no mapping of its own, and the stacks
    /// of different workers begin at different offsets of a page. In a simulated world it is one
    /// of `std`.
    fn start_context(
        &self,
        core: &mut Core,
        name: String,
        main: impl FnOnce() + Send + 'static,
    ) -> io::Result<ThreadHandle> {
        if os::sim::is_here() {
            let builder = std::thread::Builder::new().stack_size(self.options.stack_size);
            return threads::spawn(builder, name, main);
        }
        let pool = core.stacks.get_or_insert_with(|| self.options.stacks());
        let stack = pool.take().map_err(io::Error::other)?;
        threads::spawn_on(stack, &name, main).map_err(|(error, stack)| {
            pool.give(stack);
            error
        })
    }

    /// Does in a simulated world what a new worker does: leaves its kernel thread, and notifies its
    /// creator.
    fn detach_in_world(self: &Arc<Self>, mine: &Context, id: WorkerId, waiter: &'static Waiter) {
        let saved = os::sim::carry::ferry(move || waiter.event.set());
        let live = || {
            self.hosting.carried.arrive();
            self.live(id, waiter);
        };
        // SAFETY: One Place, as in `create_context`; the helper thread notifies the creator.
        match unsafe { mine.detach(&saved.post(), live) } {
            Ok(()) => {
                entry::enter_by(None);
                waiter.give_back();
            }
            // After this error, no thread of the simulated world could run.
            Err(why) => panic!("a context was refused although the node was built: {why}"),
        }
    }
}

impl Own {
    /// Lets the processor get the memory that a switch to this worker needs. No effect otherwise.
    #[inline(always)]
    pub(in crate::scheduler) fn prefetch(&self) {
        // SAFETY: Type Stable: the record of a worker's thread, which has the context.
        let context = unsafe { self.context.as_ref() };
        prefetch(std::ptr::without_provenance::<u8>(context.stack_pointer()));
        let entry = context.thread_pointer().wrapping_add(ENTRY.load(Ordering::Relaxed));
        prefetch(std::ptr::without_provenance::<u8>(entry));
    }

    /// Lets the processor get the memory that `prefetch` reads.
    #[inline(always)]
    pub(in crate::scheduler) fn prefetch_early(&self) {
        prefetch(self.context.as_ptr());
    }

    /// Lets a retired worker end on its own kernel thread. Returns the thread, to be joined.
    pub(super) fn end(self) -> ThreadHandle {
        // SAFETY: One Place: the worker is retired, so it is on no list and nothing else continues
        // it. It was idle, so it is saved.
        unsafe { self.context.as_ref().release() };
        self.thread.released();
        *self.thread
    }
}
