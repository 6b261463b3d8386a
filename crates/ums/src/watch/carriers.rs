//! Carriers: the kernel threads that can run a scheduler of workers with their own context, one at
//! a time.
//!
//! Without detection of blocks, such a scheduler is bound to one kernel thread, its host. With
//! detection it is bound to none. Its root (the context that the scheduler begins on) can move like
//! a worker, and a few small threads, the *carriers*, take turns as its host. One of them *carries*
//! the scheduler; the others are *spare*, and sleep.
//!
//! ```text
//!         go                   switch_to(root)              blocks in the code of W
//! spare ------> takes it over -----------------> carries -----------------------------> blocked
//!   ^                                                                                      |
//!   |         the handler: W resumes on its own kernel thread,      wakes; another carries |
//!   +-------- the carrier's own context here ----------------------------------------------+
//! ```
//!
//! A block of a worker that holds up the carrier ends in one of two ways:
//!
//! * *A signal can interrupt the block.* This is so for most system calls, and for a page fault
//!   that another thread of the process resolves (`userfaultfd`). Then a poke (`signals.rs`) ends
//!   the block, and its handler moves the worker to the worker's own kernel thread (`hosted.rs`).
//! * *No signal can interrupt the block* (a read from a disk, swap, `vfork`). The poke stays
//!   pending, and so is a gate, because its handler runs before any other instruction of the
//!   worker. So the scheduler can be taken from this carrier (`taking.rs`), and a spare carrier
//!   continues it.
//!
//! The scheduler is taken only if all of these conditions hold:
//!
//! * No signal whose handler blocks SIGTRAP can be delivered before SIGTRAP.
//! * The poke is seen pending and not blocked.
//! * The signal mask is the host's, so the carrier is in no handler of the application.
//! * After that, the carrier is seen blocked in the same place as before.
//! * Its stack pointer lies in the stack of a worker whose context is whole and whose state says
//!   that it is in user code.
//! * The wait is not for the lock of the address space.
//!
//! Otherwise the carrier keeps the scheduler.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use context::Context;

use super::signals;
use super::state::{self, StateFile, Waits};
use super::taking::Taking;
use crate::os::event::ThreadEvent;

/// The number of carriers of a scheduler. One carries; if all the others are blocked, the next
/// block holds up the scheduler. A spare carrier is a sleeping thread.
pub(crate) const CARRIERS: usize = 4;

/// One kernel thread that can carry the scheduler.
#[derive(Debug)]
pub(crate) struct Carrier {
    taking: Taking,
    /// The kernel's number of the thread; 0 before the thread has begun and after it has ended.
    pub thread: AtomicI32,
    /// The carrier's own context, saved while it carries. A worker that leaves the carrier for good
    /// switches to this context.
    pub own: AtomicPtr<Context>,
    /// The event that the carrier sleeps on while it is spare. After it is set, the carrier takes
    /// the scheduler over, or ends.
    pub go: ThreadEvent,
    /// Whether the carrier is spare: it sleeps, or is about to.
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
            go: ThreadEvent::new(),
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

    /// Returns the carrier that carries the scheduler.
    pub fn carrying(&self) -> &Carrier {
        &self.all[self.carrying.load(Ordering::Acquire)]
    }

    /// Called first in the handler of SIGTRAP: returns the carrier that the handler runs on, if the
    /// scheduler was taken from that carrier.
    pub fn arrive(&self) -> Option<&Carrier> {
        let here = signals::kernel_thread();
        let carrier = self.all.iter().find(|one| one.thread.load(Ordering::Relaxed) == here)?;
        carrier.taking.arrive().then_some(carrier)
    }

    /// Pokes the carrier that carries the scheduler, if it is still blocked in `waits`.
    pub fn poke(&self, waits: Waits) {
        if let Some(_one) = self.alone() {
            let carrier = self.carrying();
            let thread = carrier.thread.load(Ordering::Relaxed);
            signals::poke_blocked(thread, &carrier.state, waits);
        }
    }

    /// Returns whether the carrier that carries the scheduler waits uninterruptibly and is in no
    /// signal handler. `mask` is the set of signals that it blocks outside handlers.
    pub fn is_uninterruptible(&self, mask: u64) -> bool {
        let thread = self.carrying().thread.load(Ordering::Relaxed);
        let seen = state::signals_of(thread);
        seen.is_some_and(|seen| seen.cannot_be_interrupted && seen.blocked == mask)
    }

    /// Takes the scheduler from a carrier that is blocked in `waits`, and returns the spare carrier
    /// that must continue the scheduler. Returns `None` if the scheduler was not taken; the blocked
    /// carrier may have been poked. `may` returns whether the worker on the carrier is in user
    /// code; it is called while the answer cannot change.
    pub fn take(&self, waits: Waits, mask: u64, may: impl Fn() -> bool) -> Option<&Carrier> {
        let _one = self.alone()?;
        let carrier = self.carrying();
        let thread = carrier.thread.load(Ordering::Relaxed);
        if !signals::the_gate_comes_first() {
            return None;
        }
        // Steps T1 and T2 of `taking.rs`.
        let asked = carrier.taking.ask()?;
        signals::poke_blocked(thread, &carrier.state, waits);
        let gated = state::signals_of(thread)
            .is_some_and(|seen| seen.pending & signals::TRAP != 0 && seen.blocked == mask);
        let next = gated.then(|| self.claim_spare()).flatten();
        // Steps T3, T4 and T5.
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

    /// Returns the right to poke the carriers or to take the scheduler, or `None` if another thread
    /// has that right. This function never waits.
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
