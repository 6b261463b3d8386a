//! Carriers: the kernel threads that a scheduler of workers with their own context can run on, one
//! at a time.
//!
//! Without detection such a scheduler is tied to one kernel thread, its host. With detection
//! nothing of it is: its root is a context, too, and a few small threads, the *carriers*, host it
//! in turn. One *carries*; the others are *spare*, and sleep.
//!
//! ```text
//!           go                     switch_to(root)
//!   spare ------> takes it over ---------------------> carries ----blocks in the code of W----> blocked
//!     ^                                                                                            |
//!     |            the handler: W goes on on its own kernel thread, the carrier's own              | wakes; another carries
//!     +----------- context here ------------------------------------------------------------------+
//! ```
//!
//! Two ways in which a block ends that holds up the carrier:
//!
//! * *It can be interrupted.* Then the poke ends it, and the handler lets the worker leave
//!   (`hosted.rs`). So with most system calls, and with faults that a program of user code
//!   resolves.
//! * *It cannot* (a disk's page, swap, `vfork`). The poke stays pending. That is a gate: the
//!   handler comes before any other instruction of the worker's. So what the carrier carries can be
//!   taken from it (`taking.rs`), and a spare one goes on.
//!
//! It is taken only where that is certain: no signal whose handler blocks the gate's can come
//! before it, the signal is seen pending and not blocked, the mask is the host's (so it is in no
//! handler of the application's), the carrier is seen blocked in the same place after that, its
//! stack pointer lies in the stack of a worker whose context is whole and whose state says user
//! code, and the wait is not for the lock of the address space. Anything else is left alone.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use context::Context;

use super::signals;
use super::state::{self, StateFile, Waits};
use super::taking::Taking;
use crate::os::event::Event;

/// How many there are: one carries, and so many less one may be blocked in faults at once before
/// the next one holds up the scheduler. Each is a thread that sleeps.
pub(crate) const CARRIERS: usize = 4;

/// One kernel thread.
#[derive(Debug)]
pub(crate) struct Carrier {
    taking: Taking,
    /// The kernel's number; 0: not yet, or no more.
    pub thread: AtomicI32,
    /// Its own context, saved while it carries: who leaves it for good continues that.
    pub own: AtomicPtr<Context>,
    /// What it sleeps on: set, it takes the scheduler over, or ends.
    pub go: Event,
    /// It sleeps, or is about to.
    pub spare: AtomicBool,
    pub state: StateFile,
}

/// Those of one scheduler.
#[derive(Debug)]
pub(crate) struct Carriers {
    all: [Carrier; CARRIERS],
    carrying: AtomicUsize,
    /// Somebody asks.
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

    /// The one that carries.
    pub fn carrying(&self) -> &Carrier {
        &self.all[self.carrying.load(Ordering::Acquire)]
    }

    /// In the handler of a signal, before everything else: the carrier that this runs on, if what
    /// it carried was taken from it.
    pub fn arrive(&self) -> Option<&Carrier> {
        let here = signals::kernel_thread();
        let carrier = self.all.iter().find(|one| one.thread.load(Ordering::Relaxed) == here)?;
        carrier.taking.arrive().then_some(carrier)
    }

    /// Pokes the one that carries, if it is blocked so still.
    pub fn poke(&self, waits: Waits) {
        if let Some(_one) = self.alone() {
            let carrier = self.carrying();
            let thread = carrier.thread.load(Ordering::Relaxed);
            signals::poke_blocked(thread, &carrier.state, waits);
        }
    }

    /// Whether the one that carries cannot be interrupted, and is in no signal handler: `mask` is
    /// what it blocks elsewhere.
    pub fn is_deaf(&self, mask: u64) -> bool {
        let thread = self.carrying().thread.load(Ordering::Relaxed);
        let seen = state::signals_of(thread);
        seen.is_some_and(|seen| seen.cannot_be_interrupted && seen.blocked == mask)
    }

    /// Takes what is carried from a carrier that is blocked in `waits`, and gives who shall carry
    /// it now. None: it was poked, at most. `may`: whether who is there is in user code, asked
    /// while that stands still.
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

    /// The right to ask, if nobody else has it. Never waited for.
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
