//! Switch: the only place that knows what kind a worker is (U1).
//!
//! * *Fiber*: note who is next and suspend; the host thread's root loop resumes that one. Two stack
//!   switches, no system call (U2, U83).
//! * *Thread*: set the next worker's event and wait on one's own (U10..U12, U42..U44).
//! * *Own context*: the third kind's place is here.
//!
//! Named invariants. **Home**: a fiber is resumed only by its scheduler's host thread. **Baton**:
//! setting the next worker's event gives the baton away; see `scheduler/mod.rs`.

use super::{Core, Seat, Shared, WorkerKind};
use crate::counters::add;
use crate::lists::WorkerId;
use crate::wait::Party;
use crate::worker::STANDBY;

impl Shared {
    /// Hands the baton to `to` and parks the current worker; returns when it has the baton again,
    /// or when it was retired. The current worker's state has been set by the caller.
    #[inline]
    pub(super) fn switch_to(&self, to: WorkerId) {
        add(&self.counters.context_switches, 1);
        match self.options.kind {
            WorkerKind::Fiber => {
                let suspender = self.with(|core| {
                    let me = core.current;
                    core.hand_to(to);
                    core.suspenders[me as usize]
                });
                // None: the standby is the host thread's root loop, which resumes `to` next.
                if let Some(suspender) = suspender {
                    // SAFETY: Home: this worker was current, so this is its own stack.
                    unsafe { suspender.suspend() };
                }
            }
            _ => {
                let (mine, theirs) = self.with(|core| {
                    let mine = core.party_of(core.current, self.standby);
                    core.hand_to(to);
                    (mine, core.party_of(to, self.standby))
                });
                theirs.event.set();
                // The baton is gone. Only our own event is ours now.
                mine.event.wait();
            }
        }
    }

    /// Hands the baton to `to` without parking: for a thread that leaves or ends.
    pub(super) fn give_to(&self, to: WorkerId) {
        debug_assert_ne!(self.options.kind, WorkerKind::Fiber);
        add(&self.counters.context_switches, 1);
        let theirs = self.with(|core| {
            core.hand_to(to);
            core.party_of(to, self.standby)
        });
        theirs.event.set();
    }
}

impl Core {
    #[inline]
    pub(super) fn hand_to(&mut self, to: WorkerId) {
        self.current = to;
        self.quantum_began = 0;
        if to != STANDBY {
            add(&self.workers.get(to).party.view.switches, 1);
        }
    }

    #[inline]
    pub(super) fn party_of(&mut self, id: WorkerId, standby: &'static Party) -> &'static Party {
        if id == STANDBY { standby } else { self.workers.get(id).party }
    }

    /// The current worker's fiber; None when the standby is current.
    #[inline]
    pub(super) fn current_fiber(&mut self) -> Option<*mut fiber::Fiber> {
        if self.current == STANDBY {
            return None;
        }
        match self.workers.get(self.current).seat {
            Seat::Fiber(fiber) => Some(fiber),
            Seat::Thread(_) => unreachable!("a fiber scheduler has fiber workers"),
        }
    }
}
