//! Yield: the current worker lets the others run, and stays runnable.
//!
//! There is a quick path for the case that nothing has happened but that workers yield: the first
//! worker of the runnable list gets the baton, and the yielder becomes the last of that list.

use super::kinds::Kind;
use super::switch::{Handed, SwitchEvent};
use super::way_out::WayOut;
use super::{Core, Scheduler};
use crate::os::clock;
use crate::os::limits::QUANTUM_NS;
use crate::os::threads::point;
use crate::record::counters::add;
use crate::scheduler::lists::worker_list::{Rotated, State};

impl Scheduler {
    /// Yields in the middle of a request: the other workers get a turn, if there are any.
    #[inline(always)]
    pub(crate) fn yield_now(&self) {
        // The turn may refuse by a panic, which leaves the worker inside its spans, too.
        #[cfg(feature = "spans")]
        let _paused = self.current_waiter().record.spans.paused();
        let way_out = (self.yielding)(self);
        self.leave_by(way_out);
    }

    /// Yields if the current worker's quantum is over, and returns whether it did.
    #[inline]
    pub(crate) fn yield_if_due(&self) -> bool {
        self.yield_after(QUANTUM_NS)
    }

    /// Does the same with a quantum of this length.
    pub(crate) fn yield_after(&self, quantum_ns: u64) -> bool {
        let due = self.with(|core| core.quantum_is_over(quantum_ns));
        if due {
            self.yield_now();
        }
        due
    }

    /// Takes a turn. `RECORDED` says whether the scheduler has an event ring; the turn is so short
    /// that it is compiled for both cases, and for each kind of workers.
    pub(super) fn yielding_turn<K: Kind, const RECORDED: bool>(&self) -> WayOut {
        if K::SHARES_PANIC_COUNT && std::thread::panicking() {
            // A destructor yields during a panic. The panic count belongs to the host thread, so
            // another fiber would behave as if it were panicking itself (rule 11 of
            // ARCHITECTURE.md). So no other worker gets a turn.
            return WayOut::STAY;
        }
        self.may_switch();
        point("yield");
        let quickly = self.with(|core| {
            add(&self.counters.yields, 1);
            let something = self.queue.any() | self.inbox.any() | core.has_any();
            if something != 0 && (!self.queue.is_empty() || !self.quiet(core, 0)) {
                return None;
            }
            match core.workers.rotate(core.current) {
                Rotated::To(next) => {
                    add(&self.counters.context_switches, 1);
                    let event = if RECORDED { SwitchEvent::Yield } else { SwitchEvent::None };
                    Some(K::hand_over(self, core, next, event))
                }
                // A worker that yields when no other is ready selects itself: a yield, not a
                // switch.
                Rotated::Alone => Some(Handed::Left(WayOut::STAY)),
                Rotated::Not => None,
            }
        });
        match quickly {
            Some(handed) => handed.by_event(),
            None => self.yield_after_a_look(),
        }
    }

    #[cold]
    fn yield_after_a_look(&self) -> WayOut {
        self.with(|core| core.end_turn(self, clock::ticks(), 1));
        let now = self.look();
        let handed = self.with(|core| {
            core.begin_turn(self, now);
            let Some(next) = self.choose(core) else {
                self.tell_peers();
                return Handed::Left(WayOut::STAY);
            };
            // `turn_at` is not read again: a request that starts now was queued until then.
            core.workers.shift(core.current, State::Running, State::Runnable, core.turn_at);
            self.publish(core);
            core.hand_over(self, next, SwitchEvent::At(core.turn_at))
        });
        handed.by_event()
    }
}

impl Core {
    /// Returns whether the current worker has run for a quantum of this length. If it has, the next
    /// quantum begins now.
    #[inline]
    pub(crate) fn quantum_is_over(&mut self, length_ns: u64) -> bool {
        let now = clock::ticks();
        if self.quantum_began == 0 {
            // The clock is not read at a switch. The first call after a switch starts the quantum.
            self.quantum_began = now;
        }
        // A counter that goes back, because the machine has moved, ends the quantum.
        let over = now.checked_sub(self.quantum_began).is_none_or(|ran| {
            // A tick is never longer than a nanosecond, so most calls need no conversion.
            ran >= length_ns && clock::ticks_to_ns(ran) >= length_ns
        });
        if over {
            self.quantum_began = now;
        }
        over
    }
}
