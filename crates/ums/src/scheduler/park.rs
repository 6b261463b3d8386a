//! Park: a worker waits, and whoever parks does the scheduler's work until somebody else runs.

use std::sync::atomic::Ordering;

use super::switch::{Handed, WayOut};
use super::{Core, Shared, Timed, WorkerKind, here};
use crate::door::Door;
use crate::lists::WorkerId;
use crate::os::clock::{self, NEVER};
use crate::os::threads::point;
use crate::reason::WaitReason;
use crate::report;
use crate::ring::RingEvent;
use crate::wait::{Claimed, Outcome, Party, Ticket};
use crate::worker::{STANDBY, State};

/// How long a destructor may wait during a panic on a fiber before that is taken for a deadlock.
const UNWINDING_WAIT_MAX_NS: u64 = 10_000_000_000;

/// Makes a claimed party run: onto its runnable list, if it is a worker of the scheduler whose
/// baton the caller holds; through its door, if it is another's (G6), or the caller itself, which
/// has begun to wait and takes its own wake-up when it parks; by its event, if it is a plain thread.
/// Runs nobody now (U55).
#[inline]
pub(crate) fn ready(claimed: Claimed) {
    let Some(door) = Door::of(claimed.party) else { return claimed.set_event() };
    let party = claimed.kept();
    match here() {
        Some(shared) if std::ptr::eq(shared.door, door) && !party.is(State::Running) => {
            shared.with(|core| core.wake(party));
        }
        other => {
            if let Some(shared) = other {
                let worker = party.worker.load(Ordering::Relaxed);
                let whose = door.number.load(Ordering::Relaxed);
                shared.record(RingEvent::Wake, worker, whose);
            }
            party.signalled.store(clock::ticks(), Ordering::Relaxed);
            party.spans.woken();
            door.push(party);
        }
    }
}

/// Stands in a frame that somebody else uses until the wait in it ends: the kernel its buffers, another scheduler
/// its closure. Such a frame cannot be unwound. What could panic below it is a driver that the kernel refuses;
/// then the process ends before anybody writes into what is freed. Who comes back forgets it.
pub(crate) struct Frozen;

impl Drop for Frozen {
    #[cold]
    fn drop(&mut self) {
        #[cfg(feature = "sim")]
        crate::os::sim::fail(
            "a scheduler panicked while others used the frame of a worker that waits",
        );
        report::last_words(format_args!(
            "a scheduler panicked while others used the frame of a worker that waits: aborting"
        ));
        std::process::abort();
    }
}

impl Shared {
    /// The party of the current worker.
    #[inline]
    pub(crate) fn current_party(&self) -> &'static Party {
        self.with(|core| core.workers.get(core.current).party)
    }

    /// As `current_party`, for one that is about to wait. Checked before a ticket exists, so that no
    /// resource is left with a ticket of a party that never parks; and outside `with`, so that the
    /// panic leaves the lists in order.
    #[inline]
    pub(crate) fn waiting_party(&self) -> &'static Party {
        self.may_switch();
        self.current_party()
    }

    /// Parks the current worker until its wait ends.
    pub(crate) fn park(&self, ticket: Ticket, deadline: u64) -> Outcome {
        let party = ticket.party;
        let began = clock::ticks();
        party.began.store(began, Ordering::Relaxed);
        let reason = WaitReason::from_index(party.reason.load(Ordering::Relaxed) as usize);
        let row = self.waits.row(reason);
        crate::counters::add(&row.begun, 1);
        if ticket.sees_cancel()
            && let Some(mine) = ticket.claim(Outcome::Cancelled)
        {
            mine.kept();
            row.ended(0, 0);
            party.view.waits.ended(reason, 0, 0);
        } else {
            self.park_on(ticket, deadline, began);
            let now = self.with(|core| core.turn_at);
            let signalled = party.signalled.load(Ordering::Relaxed);
            let (total, signal) = (now.saturating_sub(began), now.saturating_sub(signalled));
            row.ended(total, signal);
            party.view.waits.ended(reason, total, signal);
        }
        ticket.take_outcome().expect("a worker runs again only after its wait was claimed")
    }

    #[inline(always)]
    fn park_on(&self, ticket: Ticket, deadline: u64, began: u64) {
        let (me, timer) = self.with(|core| {
            let me = core.current;
            assert_ne!(me, STANDBY, "the standby never waits");
            let timer = (deadline != NEVER).then(|| core.set_timer(deadline, Timed::Wait(ticket)));
            core.workers.shift(me, State::Running, State::Waiting, began);
            let reason = ticket.party.reason.load(Ordering::Relaxed);
            core.record(RingEvent::Wait, me, reason.into());
            core.end_turn(self, began, 0);
            (me, timer)
        });
        if self.options.kind == WorkerKind::Fiber && std::thread::panicking() {
            self.wait_while_unwinding(me);
        } else {
            self.until_chosen(me, ticket.party);
        }
        if let Some(timer) = timer {
            self.with(|core| core.timers.cancel(timer));
        }
    }

    /// The current worker (which is not Running any more) does the scheduler's work until
    /// somebody is chosen. If that is itself it just returns: no switch at all. Else it hands the
    /// baton on and returns when it is Running again, or Retired. If it gets the baton back while
    /// it is neither, it hosts the idle loop: any worker may (U50).
    #[inline(always)]
    pub(super) fn until_chosen(&self, me: WorkerId, party: &'static Party) {
        crate::counters::add(&self.counters.turns, 1);
        party.spans.pause();
        loop {
            match self.turn() {
                WayOut::Nowhere => self.idle(me),
                way_out => self.leave_by(way_out),
            }
            // Written by whoever chose or retired us, before it gave us the baton or our event.
            if party.is(State::Running) || party.is(State::Retired) {
                party.spans.go_on();
                return;
            }
        }
    }

    /// One turn of a worker that waits or has ended its request: hands the baton to whoever is
    /// next. Nowhere: there is nobody.
    #[inline(never)]
    fn turn(&self) -> WayOut {
        point("turn");
        #[cfg(feature = "sim")]
        self.check();
        let quiet = self.with(|core| self.quiet(core));
        if !quiet {
            self.look();
            self.with(|core| core.begin_turn(self));
        }
        let handed = self.with(|core| {
            let next = self.choose(core);
            self.publish(core);
            match next {
                Some(next) if next == core.current => {
                    // No switch, but the trace wants to know that it runs again.
                    core.record(RingEvent::Switch, next, 0);
                    Handed::Left(WayOut::Stay)
                }
                Some(next) => {
                    self.count_cause(core);
                    core.hand_over(self, next)
                }
                None => Handed::Left(WayOut::Nowhere),
            }
        });
        handed.by_event()
    }

    /// Another worker gets the baton, because of what the current one does (B45).
    #[inline]
    fn count_cause(&self, core: &mut Core) {
        let worker = core.workers.get(core.current);
        let counter = match worker.state {
            State::Waiting => {
                let reason = worker.party.reason.load(Ordering::Relaxed);
                &self.waits.row(WaitReason::from_index(reason.into())).switches
            }
            State::Idle => &self.counters.end_switches,
            _ => &self.counters.other_switches,
        };
        crate::counters::add(counter, 1);
    }

    /// Rule 11: a destructor waits during a panic. The panic count is the host thread's, so no
    /// other fiber may run here: this one keeps the thread, serving I/O, timers and the door.
    #[cold]
    fn wait_while_unwinding(&self, me: WorkerId) {
        let give_up = clock::now() + UNWINDING_WAIT_MAX_NS;
        loop {
            self.look();
            self.tell_peers();
            let mine = self.with(|core| {
                let mine = core.workers.get(me).state == State::Runnable;
                if mine {
                    let now = core.begin_turn(self);
                    core.workers.shift(me, State::Runnable, State::Running, now);
                }
                mine
            });
            if mine {
                return;
            }
            if clock::now() > give_up {
                report::last_words(format_args!(
                    "a fiber worker of scheduler '{}' has waited 10 s in a destructor during \
                     a panic, and nothing else can run on its thread meanwhile: aborting",
                    self.name()
                ));
                std::process::abort();
            }
            self.sleep_at_most(1_000_000);
        }
    }
}
