//! Carriers: the kernel threads that a scheduler of workers with their own context can run on, one
//! at a time.
//!
//! Without detection such a scheduler is bound to one kernel thread, its host. With detection it is
//! bound to none: its root is a context, too, and a few small threads, the *carriers*, host it in
//! turn. One *carries*; the others are *spare*, and sleep.
//!
//! ```text
//!         go                   switch_to(root)              blocks in the code of W
//! spare ------> takes it over -----------------> carries -----------------------------> blocked
//!   ^                                                                                      |
//!   |         the handler: W resumes on its own kernel thread,      wakes; another carries |
//!   +-------- the carrier's own context here ----------------------------------------------+
//! ```
//!
//! A block that holds up the carrier ends in one of two ways:
//!
//! * *It can be interrupted*, as most system calls can, and faults that user code resolves. Then
//!   the poke ends it, and the handler lets the worker leave (`hosted.rs`).
//! * *It cannot* (a disk's page, swap, `vfork`). The poke stays pending. That is a gate: the
//!   handler runs before any other instruction of the worker's. So the scheduler can be taken from
//!   this carrier (`taking.rs`), and a spare one continues it.
//!
//! The scheduler is taken only if all of this is so: no signal whose handler blocks SIGTRAP can be
//! delivered before it; the signal is seen pending and not blocked; the mask is the host's, so the
//! carrier is in no handler of the application's; after that the carrier is seen blocked in the
//! same place; its stack pointer lies in the stack of a worker whose context is whole and whose
//! state says user code; and the wait is not for the lock of the address space. Otherwise the
//! carrier keeps the scheduler.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use context::Context;

use super::signals;
use super::state::{self, StateFile, Waits};
use super::taking::Taking;
use crate::os::event::Event;

/// The number of carriers of a scheduler. One carries; if all the others are blocked, the next
/// block holds up the scheduler. Each is a thread that sleeps.
pub(crate) const CARRIERS: usize = 4;

/// One kernel thread.
#[derive(Debug)]
pub(crate) struct Carrier {
    taking: Taking,
    /// The kernel's number, or 0 before it has begun and after it has ended.
    pub thread: AtomicI32,
    /// Its own context, saved while it carries. A worker that leaves it for good switches to that.
    pub own: AtomicPtr<Context>,
    /// The event that it sleeps on. When it is set, the carrier takes the scheduler over, or ends.
    pub go: Event,
    /// It sleeps, or is about to.
    pub spare: AtomicBool,
    pub state: StateFile,
}

/// The carriers of one scheduler.
#[derive(Debug)]
pub(crate) struct Carriers {
    all: [Carrier; CARRIERS],
    carrying: AtomicUsize,
    /// A thread is trying to take the scheduler from a carrier.
    asking: AtomicBool,
    pub ending: AtomicBool,
}

impl Carriers {
    pub fn new() -> Carriers {
        let one = |_| Carrier {
            taking: Taking::new(),
            thread: AtomicI32::new(0),
            own: AtomicPtr::new(std::ptr::null_mut()),
            go: Event::new(),
            spare: AtomicBool::new(false),
            state: StateFile::new(),
        };
        Carriers {
            all: std::array::from_fn(one),
            carrying: AtomicUsize::new(0),
            asking: AtomicBool::new(false),
            ending: AtomicBool::new(false),
        }
    }

    pub fn all(&self) -> &[Carrier] {
        &self.all
    }

    /// Returns the one that carries.
    pub fn carrying(&self) -> &Carrier {
        &self.all[self.carrying.load(Ordering::Acquire)]
    }

    /// In the handler of a signal, before everything else: returns the carrier that this runs on,
    /// if the scheduler was taken from it.
    pub fn arrive(&self) -> Option<&Carrier> {
        let here = signals::kernel_thread();
        let carrier = self.all.iter().find(|one| one.thread.load(Ordering::Relaxed) == here)?;
        carrier.taking.arrive().then_some(carrier)
    }

    /// Pokes the one that carries, if it is still blocked in `waits`.
    pub fn poke(&self, waits: Waits) {
        if let Some(_one) = self.alone() {
            let carrier = self.carrying();
            let thread = carrier.thread.load(Ordering::Relaxed);
            signals::poke_blocked(thread, &carrier.state, waits);
        }
    }

    /// Returns whether the one that carries cannot be interrupted, and is in no signal handler.
    /// `mask` is the set of signals that it blocks outside handlers.
    pub fn is_uninterruptible(&self, mask: u64) -> bool {
        let thread = self.carrying().thread.load(Ordering::Relaxed);
        let seen = state::signals_of(thread);
        seen.is_some_and(|seen| seen.cannot_be_interrupted && seen.blocked == mask)
    }

    /// Takes the scheduler from a carrier that is blocked in `waits`, and returns the carrier that
    /// must continue it. Returns `None` if the scheduler was not taken; the carrier may have been
    /// poked. `may` returns whether the worker there is in user code, and is called while that
    /// cannot change.
    pub fn take(&self, waits: Waits, mask: u64, may: impl Fn() -> bool) -> Option<&Carrier> {
        let _one = self.alone()?;
        let carrier = self.carrying();
        let thread = carrier.thread.load(Ordering::Relaxed);
        if !signals::the_gate_comes_first() {
            return None;
        }
        // T1, T2.
        let asked = carrier.taking.ask()?;
        signals::poke_blocked(thread, &carrier.state, waits);
        let gated = state::signals_of(thread)
            .is_some_and(|seen| seen.pending & signals::TRAP != 0 && seen.blocked == mask);
        let next = gated.then(|| self.claim_spare()).flatten();
        // T3, T4, T5.
        let taken = next.is_some()
            && carrier.state.waits() == Some(waits)
            && may()
            && carrier.taking.take(asked);
        if !taken {
            carrier.taking.give_up(asked);
            next.inspect(|at| self.all[*at].spare.store(true, Ordering::Release));
            return None;
        }
        self.carrying.store(next?, Ordering::Release);
        Some(self.carrying())
    }

    fn claim_spare(&self) -> Option<usize> {
        self.all.iter().position(|one| one.spare.swap(false, Ordering::AcqRel))
    }

    /// Returns the right to take the scheduler, if no other thread has it. Never waits.
    fn alone(&self) -> Option<Asking<'_>> {
        (!self.asking.swap(true, Ordering::Acquire)).then(|| Asking(&self.asking))
    }
}

struct Asking<'a>(&'a AtomicBool);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
