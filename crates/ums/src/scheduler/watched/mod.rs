//! Undeclared blocks: a thread worker that blocks in the kernel without having said so
//! (`detect_blocking`).
//!
//! Each scheduler that detects has a *place* of the block watch, and its worker threads are
//! *watched*. The current worker has the place. If it blocks, in a system call or a page fault, the
//! watcher takes the baton away for it, and the standby, whose baton it is then, makes it
//! Preemptive and chooses who is next. When the worker wakes it meets its gate, before any other
//! instruction of its own: there it comes home through the inbox, and waits to be chosen, like one
//! that had gone preemptive.
//!
//! ```text
//! worker                     watcher                     standby
//! blocks in the kernel
//!                            looks: blocked, in user
//!                            code; takes the word away
//!                            holder := standby, event -> state := Preemptive, chooses, hands on
//! wakes, meets its gate
//! pushes itself through the inbox -----------------------> (whoever looks) runnable, chosen
//! has the baton, goes on where it was interrupted
//! ```
//!
//! *User code* is all but this: between the lists ([`Scheduler::with`]), in a completion routine,
//! with a wait begun and not ended, holding a short lock, in any state but Running, and parked. The
//! worker writes these down anyway, so being ready for this costs the switch path nothing; the
//! watcher reads them while the worker is blocked, when everything that it did before is visible. A
//! block anywhere else is left alone: it is short, or it is the idle loop's.
//!
//! *Workers with their own context* are hosted by one kernel thread at a time, which is poked when
//! it is seen blocked (`watch/hosted.rs`). Its handler finds the worker, in the order of the
//! program, in user code or not, and if so the worker goes preemptive there and then and makes its
//! call, or its access to memory, once more on its own kernel thread. So it needs no gate: it comes
//! home as from any other time away. Where the poke does not end the block, the scheduler is taken
//! from that kernel thread, as the baton is from a worker (`carrier.rs`): the poke is the gate.
//!
//! An interposed call that will surely block goes preemptive by itself (`preempt::OF_THREADS`),
//! which is faster.
//!
//! *Stuck.* What runs inside the machine may need a lock that a worker at its gate holds, such as
//! the allocator's. The watchdog sees that the baton's holder waits for a lock, and lends workers
//! at their gates the right to run on. Such a *loose* worker has no scheduler: the first question
//! for one ([`super::here`]) takes it to its gate again. That is counted. Of workers with their own
//! context: `lent.rs`.
//!
//! Named invariant **Own Handler**: a [`WatchedWorker`] lives on the stack of its worker's thread,
//! which ends the watch before it goes.

#![allow(unsafe_code)]

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::{Scheduler, WorkerKind, set_here};
use crate::os::entry::Inside;
use crate::os::event::Event;
use crate::os::{self, clock};
use crate::record::counters::add;
use crate::record::event_ring::RingEvent;
use crate::record::reason::WaitReason;
use crate::scheduler::lists::worker_list::{STANDBY, State};
use crate::wait::Waiter;
use crate::watch::{self, GateHandler, Place, PlaceOwner, Watched, state};

/// What an undeclared block is counted and waited as.
pub(super) const REASON: WaitReason = WaitReason::PREEMPTIVE_EXTERNAL;

const NOT_LOST: u8 = 0;
const IN_CALL: u8 = 1;
const IN_FAULT: u8 = 2;

/// How many looks of the watchdog a scheduler may wait for one lock before workers are lent to it.
const STUCK_LOOKS: u64 = 4;

impl Scheduler {
    /// Opens the place of a scheduler that detects. On the thread that stands by.
    pub(super) fn open_place(self: &Arc<Self>) -> std::io::Result<()> {
        let cpu = self.options.pin.filter(|_| self.options.detect_blocking);
        let Some(cpu) = cpu else { return Ok(()) };
        watch::prepare();
        let owner = Box::new(DetectingScheduler(Arc::downgrade(self)));
        let place = Place::open(cpu, watch::mechanism(), owner)?;
        let _ = self.detection.place.set(place);
        if self.options.kind == WorkerKind::OwnContext {
            watch::install();
            if !Scheduler::is_to_be_carried(&self.options) {
                self.detection.host.open(os::thread_number() as i32)?;
            }
        }
        Ok(())
    }

    /// Ends the watcher, if there is one.
    pub(super) fn close_place(&self) {
        self.detection.place.get().inspect(|place| place.close());
        self.detection.host.close();
    }

    /// Somebody is about to run here who was not running a moment ago.
    #[inline]
    pub(super) fn stir_place(&self) {
        self.detection.place.get().inspect(|place| place.stir());
        if self.taker.get().is_some() {
            watch::watchdog::wake();
        }
    }

    /// The waiter that has the baton.
    pub(super) fn holder(&self) -> Option<&'static Waiter> {
        // SAFETY: Type Stable: the pointer is null or came from a `&'static Waiter`.
        unsafe { self.holder.load(Ordering::Acquire).as_ref() }
    }

    /// Whether the current worker, which is blocked or the caller, is in user code.
    pub(super) fn is_in_user_code(&self, waiter: &Waiter) -> bool {
        waiter.entry.is_outside() && self.is_calm(waiter)
    }

    /// The same as far as the waiter and the scheduler tell.
    pub(super) fn is_calm(&self, waiter: &Waiter) -> bool {
        waiter.is(State::Running)
            && waiter.is_quiet()
            && !self.busy.load(Ordering::Relaxed)
            && !self.looking.load(Ordering::Relaxed)
            && self.in_routine.load(Ordering::Relaxed) == 0
    }

    /// Notes for the standby, which will have the baton, that it was taken from the current worker.
    pub(super) fn baton_was_taken(&self, in_call: bool) {
        let lost = if in_call { IN_CALL } else { IN_FAULT };
        self.detection.lost.store(lost, Ordering::Relaxed);
    }

    /// The caller has taken the baton from the current worker, and hands it to the standby.
    pub(super) fn pass_to_standby(&self, in_call: bool) {
        self.baton_was_taken(in_call);
        self.held_by(self.standby);
        self.standby.event.set();
    }

    /// The standby has the baton: if it was taken from a worker, that is away from now on.
    pub(super) fn see_to_the_blocked(&self) {
        let lost = self.detection.lost.swap(NOT_LOST, Ordering::Relaxed);
        if lost == NOT_LOST {
            return;
        }
        let row = self.waits.row(REASON);
        add(&row.begun, 1);
        let counter = match lost {
            IN_CALL => &self.counters.undeclared_blocks,
            _ => &self.counters.undeclared_faults,
        };
        add(counter, 1);
        add(&self.counters.context_switches, 1);
        add(&self.counters.leave_switches, 1);
        self.with(|core| {
            let me = core.current;
            core.turn_at = clock::ticks();
            core.workers.shift(me, State::Running, State::Preemptive, core.turn_at);
            core.record(RingEvent::Leave, me, REASON.index() as u32);
            self.count_preemptive(core);
            let waiter = core.workers.get(me).waiter;
            waiter.reason.store(REASON.index() as u16, Ordering::Relaxed);
            waiter.began.store(core.turn_at, Ordering::Relaxed);
            core.hand_to(STANDBY);
        });
    }

    /// Makes the calling thread, which does not have the baton, one that is watched. It stays an
    /// ordinary one where the scheduler does not detect, or the system refuses.
    pub(super) fn watch_worker(&self, waiter: &'static Waiter) -> Option<WatchedWorker> {
        let place = self.detection.place.get()?;
        let watched_worker =
            WatchedWorker { scheduler: self.arc(), waiter, watched: Watched::take().ok()? };
        place.belongs(watched_worker.watched);
        Some(watched_worker)
    }
}

/// What a watched worker does while it has no baton. It stands on its thread's stack.
pub(super) struct WatchedWorker {
    scheduler: Arc<Scheduler>,
    waiter: &'static Waiter,
    watched: &'static Watched,
}

impl WatchedWorker {
    /// Watches the calling thread until [`WatchedWorker::end`]. It is parked, inside the machine.
    pub(super) fn begin(&self) {
        // SAFETY: Own Handler: `end` abandons, and whoever made this calls it on the same thread.
        let begun = unsafe { self.watched.adopt(std::ptr::from_ref(self), watch::mechanism()) };
        match begun {
            Ok(()) => self.waiter.be_watched(Some(self.watched)),
            // Its blocks hold up the scheduler, as without detection.
            Err(_) => {
                self.scheduler.counters.unwatched_workers.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// It has the baton for the first time.
    pub(super) fn enter(&self) {
        if self.waiter.watched().is_some() {
            self.watched.word.leave();
        }
    }

    /// Its thread, which has no baton, is about to end.
    pub(super) fn end(&self) {
        if self.waiter.watched().is_some() {
            self.waiter.be_watched(None);
            self.watched.enter_library();
            self.watched.abandon();
        }
        self.watched.give_back();
    }
}

impl GateHandler for WatchedWorker {
    fn report(&self) {
        self.waiter.signalled.store(clock::ticks(), Ordering::Relaxed);
        self.scheduler.inbox.push(self.waiter);
    }

    fn owns_place(&self) -> bool {
        // Its event is set by who hands the baton on, and by nobody else.
        true
    }

    fn event(&self) -> &'static Event {
        &self.waiter.event
    }

    fn regained_place(&self) {
        let _inside = Inside::enter();
        set_here(Some(&self.scheduler));
        super::AWAY.set(None);
        self.scheduler.come_home(self.waiter, REASON);
    }

    fn resumes_without_place(&self) {
        set_here(None);
        super::AWAY.set(Some(self.waiter));
    }

    fn stop(&self) {}
}

/// The scheduler as the watcher and the watchdog see it.
struct DetectingScheduler(Weak<Scheduler>);

impl PlaceOwner for DetectingScheduler {
    fn seated(&self) -> Option<&'static Watched> {
        let scheduler = self.0.upgrade()?;
        let asleep = scheduler.counters.asleep_since.load(Ordering::Acquire) != 0;
        scheduler.holder().filter(|_| !asleep)?.watched()
    }

    fn may_take(&self, who: &Watched) -> bool {
        let Some(scheduler) = self.0.upgrade() else { return false };
        let waiter = scheduler
            .holder()
            .filter(|waiter| waiter.watched().is_some_and(|watched| std::ptr::eq(watched, who)));
        waiter.is_some_and(|waiter| scheduler.is_in_user_code(waiter))
            && !who.runs_without_place()
            && is_no_short_wait(who.tid())
    }

    fn place_is_free(&self, in_call: bool) {
        self.0.upgrade().inspect(|scheduler| scheduler.pass_to_standby(in_call));
    }

    fn check(&self) -> bool {
        let Some(scheduler) = self.0.upgrade() else { return false };
        let asleep = scheduler.counters.asleep_since.load(Ordering::Acquire) != 0;
        if !asleep && scheduler.is_stuck() {
            match scheduler.options.kind {
                WorkerKind::OwnContext => scheduler.lend_own(),
                _ => watch::thread::lend(&scheduler.counters.workers_lent),
            }
        }
        !asleep
    }

    fn hosts(&self) -> bool {
        self.0.upgrade().is_some_and(|scheduler| scheduler.hosts())
    }

    fn look_at_hosted(&self) -> bool {
        let Some(scheduler) = self.0.upgrade() else { return false };
        let Some(waits) = scheduler.blocks_hosted() else { return false };
        let now = scheduler.number_of(waits);
        let news = scheduler.detection.poked.swap(now, Ordering::Relaxed) != now;
        if !scheduler.detection.pokes.is_worth_one_more(news) {
            return news;
        }
        match scheduler.detection.carriers.get() {
            None => {
                let host = scheduler.host_thread.load(Ordering::Relaxed) as i32;
                watch::poke_blocked(host, &scheduler.detection.host, waits);
                news
            }
            // Most faults are over at the second look, and most calls can be interrupted.
            Some(carriers) if news => {
                if watch::can_be_carried(waits) {
                    carriers.poke(waits);
                }
                true
            }
            Some(carriers) => scheduler.see_to_carrier(carriers, waits),
        }
    }

    fn suspects_hosted(&self) -> u64 {
        let Some(scheduler) = self.0.upgrade() else { return 0 };
        scheduler.blocks_hosted().map_or(0, |waits| scheduler.number_of(waits))
    }
}

/// Whether a wait may last, as far as the kernel tells: not one for the address space, which
/// allocators make while they hold a lock.
fn is_no_short_wait(tid: i32) -> bool {
    let Some(waits) = state::look_at(tid) else { return false };
    !waits.changes_memory_map() && (waits.call.is_some() || !state::waits_for_memory_map(tid))
}

impl Scheduler {
    /// Whether workers may run on the host now that are looked after.
    fn hosts(&self) -> bool {
        self.options.kind == WorkerKind::OwnContext
            && self.counters.asleep_since.load(Ordering::Acquire) == 0
    }

    /// The call or fault that the host is blocked in, unless it is the machine's own: then the
    /// worker there need not be in user code, which its handler finds out.
    fn blocks_hosted(&self) -> Option<state::Waits> {
        let waits = self.host_waits()?;
        let seen = self.detection.carriers.get().is_some() || watch::can_be_carried(waits);
        let machine = self.busy.load(Ordering::Acquire)
            || self.looking.load(Ordering::Relaxed)
            || self.in_routine.load(Ordering::Relaxed) > 0;
        (seen && self.hosts() && !machine).then_some(waits)
    }

    /// The same only for the same sight of the same block, as far as can be told.
    fn number_of(&self, waits: state::Waits) -> u64 {
        self.progress() << 16 | waits.pc & 0xffff | 1
    }

    /// Grows with everything that a scheduler does.
    pub(super) fn progress(&self) -> u64 {
        let c = &self.counters;
        let progress = [&c.turns, &c.yields, &c.context_switches, &c.routines];
        progress.map(|n| n.load(Ordering::Relaxed)).iter().sum()
    }

    /// For the watchdog: whether the baton's holder, inside the machine, has waited for a lock for
    /// some looks.
    fn is_stuck(&self) -> bool {
        let [seen, looks] = &self.detection.stuck;
        let now = 1 + self.progress();
        if !self.waits_for_lock() || seen.swap(now, Ordering::Relaxed) != now {
            looks.store(0, Ordering::Relaxed);
            return false;
        }
        looks.fetch_add(1, Ordering::Relaxed) >= STUCK_LOOKS
    }

    /// Whether the baton's holder waits for a lock inside the machine, or where it cannot leave.
    fn waits_for_lock(&self) -> bool {
        if self.options.kind == WorkerKind::OwnContext {
            let futex = self.host_waits().and_then(|waits| waits.futex());
            return futex.is_some_and(|futex| !self.is_own_event(futex));
        }
        self.holder().is_some_and(|holder| {
            !self.is_in_user_code(holder)
                && state::look_at(self.baton_thread() as i32)
                    .and_then(|waits| waits.futex())
                    .is_some_and(|futex| futex != holder.event.address())
        })
    }
}

/// Whether workers of this kind can be watched.
pub(crate) fn can_detect(kind: WorkerKind) -> bool {
    kind != WorkerKind::Fiber
}

#[cfg(all(test, not(loom)))]
mod tests;
