//! The block watch of a scheduler: takes the baton from a worker that blocks in the kernel without
//! having gone preemptive (`detect_blocking`).
//!
//! Each scheduler that detects blocks has a *place* of the block watch, and its worker threads are
//! *watched*. The current worker is at the place. If it blocks, in a system call or a page fault,
//! the watcher thread takes the baton from it and gives the baton to the standby. The standby makes
//! the worker Preemptive and chooses the next one. When the blocked worker wakes, it stops at its
//! *gate*, before any other instruction of its own. There it is pushed onto the inbox, and waits to
//! be chosen, like a preemptive worker that rejoins.
//!
//! ```text
//! worker                     watcher                     standby
//! blocks in the kernel
//!                            looks: blocked, in user
//!                            code; takes the word away
//!                            holder := standby, event -> state := Preemptive, chooses, hands on
//! wakes, meets its gate
//! pushes itself through the inbox -----------------------> (another worker looks) runnable, chosen
//! has the baton, resumes where it was interrupted
//! ```
//!
//! *User code* is all code except accesses to the lists (in [`Scheduler::with`]), completion
//! routines, code between the beginning and the end of a wait, and code that holds a short lock; a
//! worker that is not Running or that is parked is not in user code either. The worker records all
//! this for other purposes, so detection costs the switch path nothing. The watcher reads the
//! records while the worker is blocked, when everything that the worker did before is visible. A
//! block outside user code is left alone, because it is short, or is the sleep of the idle loop.
//!
//! *Workers with their own context* are hosted by one kernel thread at a time. If that thread is
//! seen blocked, it is interrupted by a signal (a *poke*, `watch/hosted.rs`). The handler runs in
//! program order, so it can determine whether the worker is in user code. If it is, the worker goes
//! preemptive there, and makes its call, or its memory access, once more on its own kernel thread.
//! So it needs no gate: it rejoins like any preemptive worker. If the poke does not end the block,
//! the scheduler is taken from that kernel thread, as the baton is taken from a thread worker
//! (`kinds/contexts/carrier.rs`). Then the poke is the gate.
//!
//! An interposed call that will surely block goes preemptive by itself (`kinds/threads.rs`), which
//! is faster than detection.
//!
//! *Stuck.* The library's own code may need a lock that a worker at its gate holds, such as the
//! allocator's. The watchdog notices that the baton's holder waits for a lock, and allows workers
//! at their gates to run without the baton. Such a worker has no scheduler: at its first entry into
//! the library (`scheduler::here`) it stops at its gate again. These workers are counted. For
//! workers with their own context, see `kinds/contexts/lent.rs`.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::state::REASON;
use crate::os::clock;
use crate::os::entry::Inside;
use crate::os::event::ThreadEvent;
use crate::record::counters::add;
use crate::record::event_ring::RingEvent;
use crate::scheduler::lists::worker_list::{STANDBY, State};
use crate::scheduler::state::AWAY;
use crate::scheduler::switch::SwitchEvent;
use crate::scheduler::{Scheduler, set_here};
use crate::wait::Waiter;
use crate::watch::{self, GateHandler, Place, PlaceOwner, Watched, state};

const NOT_LOST: u8 = 0;
const IN_CALL: u8 = 1;
const IN_FAULT: u8 = 2;

/// How many successive looks of the watchdog must find the scheduler waiting for one lock before
/// workers are allowed to run without the baton.
const STUCK_LOOKS: u64 = 4;

impl Scheduler {
    /// Opens the place of a scheduler, if it detects. Returns whether it does. Called on the
    /// standby's thread.
    pub(in crate::scheduler) fn open_place(
        &self,
        owner: Box<dyn PlaceOwner>,
    ) -> std::io::Result<bool> {
        let cpu = self.options.pin.filter(|_| self.options.detect_blocking);
        let Some(cpu) = cpu else { return Ok(false) };
        let place = Place::open(cpu, watch::mechanism()?, owner)?;
        let _ = self.detection.place.set(place);
        Ok(true)
    }

    /// Ends the watcher thread, if there is one.
    pub(super) fn close_place(&self) {
        self.detection.place.get().inspect(|place| place.close());
    }

    /// Called when a thread is about to run for this scheduler that did not run just before.
    #[inline]
    pub(in crate::scheduler) fn stir_place(&self) {
        self.detection.place.get().inspect(|place| place.stir());
        if self.detection.taker.get().is_some() {
            watch::watchdog::wake();
        }
    }

    /// Returns the waiter whose thread has the baton.
    pub(in crate::scheduler) fn holder(&self) -> Option<&'static Waiter> {
        self.holder.load()
    }

    /// Returns whether the current worker is in user code. It is blocked, or it is the caller.
    pub(in crate::scheduler) fn is_in_user_code(&self, waiter: &Waiter) -> bool {
        waiter.record.is_outside() && self.is_calm(waiter)
    }

    /// Returns whether the states of waiter and scheduler are those of user code. Does not look
    /// whether the worker's thread is inside the library.
    pub(in crate::scheduler) fn is_calm(&self, waiter: &Waiter) -> bool {
        waiter.is(State::Running)
            && waiter.is_quiet()
            && !self.busy.load(Ordering::Relaxed)
            && !self.looking.load(Ordering::Relaxed)
            && self.in_routine.load(Ordering::Relaxed) == 0
    }

    /// Notes that the baton was taken from the current worker. The standby, which gets the baton,
    /// reads the note.
    pub(in crate::scheduler) fn baton_was_taken(&self, in_call: bool) {
        let lost = if in_call { IN_CALL } else { IN_FAULT };
        self.detection.lost.store(lost, Ordering::Relaxed);
    }

    /// Hands the baton, which the caller has taken from the current worker, to the standby.
    pub(super) fn pass_to_standby(&self, in_call: bool) {
        self.baton_was_taken(in_call);
        self.held_by(self.standby);
        self.standby.event.set();
    }

    /// Called by the standby when it has the baton: if the baton was taken from a worker, makes
    /// that worker Preemptive.
    pub(in crate::scheduler) fn make_blocked_preemptive(&self) {
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
            let now = clock::ticks();
            core.fairness.turn = (core.turn_at, now);
            core.turn_at = now;
            core.workers.shift(me, State::Running, State::Preemptive, core.turn_at);
            core.record_at(RingEvent::Leave, me, REASON.index() as u32, core.turn_at);
            self.count_preemptive(core);
            let waiter = core.workers.get(me).waiter;
            waiter.reason.store(REASON.index() as u16, Ordering::Relaxed);
            waiter.began.store(core.turn_at, Ordering::Relaxed);
            core.hand_to(self, STANDBY, SwitchEvent::At(core.turn_at));
        });
    }

    /// Prepares the watch of the calling thread, which does not have the baton. The thread stays
    /// unwatched if the scheduler does not detect, or the system refuses.
    pub(in crate::scheduler) fn watch_worker(
        &self,
        waiter: &'static Waiter,
    ) -> Option<Arc<WatchedWorker>> {
        let place = self.detection.place.get()?;
        let watched_worker =
            WatchedWorker { scheduler: self.arc(), waiter, watched: Watched::take().ok()? };
        place.belongs(watched_worker.watched);
        Some(Arc::new(watched_worker))
    }
}

/// The watch of one worker's thread. Its `GateHandler` says what the worker does when it wakes and
/// has lost the baton.
pub(in crate::scheduler) struct WatchedWorker {
    scheduler: Arc<Scheduler>,
    waiter: &'static Waiter,
    watched: &'static Watched,
}

impl WatchedWorker {
    /// Watches the calling thread until [`WatchedWorker::end`]. Until [`WatchedWorker::enter`] the
    /// thread counts as inside the library, where it cannot lose the baton.
    pub(in crate::scheduler) fn begin(self: &Arc<Self>) {
        let adopted = watch::mechanism().and_then(|how| self.watched.adopt(self.clone(), how));
        match adopted {
            Ok(()) => self.waiter.record.be_watched(Some(self.watched)),
            // The worker's blocks delay the scheduler, as without detection.
            Err(_) => {
                self.scheduler.counters.unwatched_workers.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Called when the worker has the baton for the first time.
    pub(in crate::scheduler) fn enter(&self) {
        if self.waiter.record.watched().is_some() {
            self.watched.word.leave();
        }
    }

    /// Called when the worker's thread, which has no baton, is about to end.
    pub(in crate::scheduler) fn end(&self) {
        if self.waiter.record.watched().is_some() {
            self.waiter.record.be_watched(None);
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
        // Only a thread that hands this worker the baton sets the worker's event.
        true
    }

    fn event(&self) -> &'static ThreadEvent {
        &self.waiter.event
    }

    fn regained_place(&self) {
        let _inside = Inside::enter();
        set_here(Some(&self.scheduler));
        AWAY.set(None);
        self.scheduler.end_preemptive(self.waiter, REASON);
    }

    fn resumes_without_place(&self) {
        set_here(None);
        AWAY.set(Some(self.waiter));
    }

    fn stop(&self) {}
}

/// The scheduler as the watcher thread and the watchdog see it.
pub(super) struct DetectingScheduler(pub(super) Weak<Scheduler>);

impl PlaceOwner for DetectingScheduler {
    fn seated(&self) -> Option<&'static Watched> {
        let scheduler = self.0.upgrade()?;
        let asleep = scheduler.counters.asleep_since.load(Ordering::Acquire) != 0;
        scheduler.holder().filter(|_| !asleep)?.record.watched()
    }

    fn may_take(&self, worker: &Watched) -> bool {
        let Some(scheduler) = self.0.upgrade() else { return false };
        let waiter = scheduler.holder().filter(|waiter| {
            waiter.record.watched().is_some_and(|watched| std::ptr::eq(watched, worker))
        });
        waiter.is_some_and(|waiter| scheduler.is_in_user_code(waiter))
            && !worker.runs_without_place()
            && is_no_short_wait(worker.tid())
    }

    fn place_is_free(&self, in_call: bool) {
        self.0.upgrade().inspect(|scheduler| scheduler.pass_to_standby(in_call));
    }

    fn check(&self) -> bool {
        let Some(scheduler) = self.0.upgrade() else { return false };
        let asleep = scheduler.counters.asleep_since.load(Ordering::Acquire) != 0;
        if !asleep && scheduler.is_stuck(|| scheduler.holder_waits_for_lock()) {
            watch::thread::lend(&scheduler.counters.workers_lent);
        }
        !asleep
    }
}

/// Returns whether the thread is in a wait that may last, as far as the kernel tells. A wait for
/// the lock of the address space is short; allocators make such a wait while they hold a lock.
fn is_no_short_wait(tid: i32) -> bool {
    let Some(waits) = state::look_at(tid) else { return false };
    !waits.changes_memory_map() && (waits.call.is_some() || !state::waits_for_memory_map(tid))
}

impl Scheduler {
    /// Returns a number that grows with everything that a scheduler does.
    pub(in crate::scheduler) fn progress(&self) -> u64 {
        let c = &self.counters;
        let progress = [&c.turns, &c.yields, &c.context_switches, &c.routines];
        progress.map(|n| n.load(Ordering::Relaxed)).iter().sum()
    }

    /// Called by the watchdog: returns whether the baton's holder, inside the library, has been
    /// seen waiting for one lock at several looks.
    pub(in crate::scheduler) fn is_stuck(&self, waits_for_lock: impl FnOnce() -> bool) -> bool {
        let [seen, looks] = &self.detection.stuck;
        let now = 1 + self.progress();
        if !waits_for_lock() || seen.swap(now, Ordering::Relaxed) != now {
            looks.store(0, Ordering::Relaxed);
            return false;
        }
        looks.fetch_add(1, Ordering::Relaxed) >= STUCK_LOOKS
    }

    /// Returns whether the baton's holder waits for a lock inside the library, or where it cannot
    /// leave.
    fn holder_waits_for_lock(&self) -> bool {
        self.holder().is_some_and(|holder| {
            !self.is_in_user_code(holder)
                && state::look_at(self.baton_thread() as i32)
                    .and_then(|waits| waits.futex())
                    .is_some_and(|futex| futex != holder.event.address())
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::os::thread_number;
    use crate::scheduler::here;
    use crate::{Node, current};

    fn node() -> Node {
        Node::builder().schedulers(1).take_over_blocked(false).build().unwrap()
    }

    /// Returns the caller's scheduler. The caller is in user code afterwards.
    fn mine() -> Arc<Scheduler> {
        here().expect("it runs on a worker").arc()
    }

    #[test]
    fn only_looks_in_a_row_that_see_one_wait_find_a_scheduler_stuck() {
        let counts = node().run(|| {
            let scheduler = mine();
            let looks_until_stuck = || (1..100).find(|_| scheduler.is_stuck(|| true));
            let first = looks_until_stuck();
            let stays = looks_until_stuck();
            assert!(!scheduler.is_stuck(|| false), "it waits no more");
            let again = looks_until_stuck();
            crate::yield_now();
            [first, stays, again, looks_until_stuck()]
        });
        // The first look at a wait only notes it.
        let all = STUCK_LOOKS as i32 + 2;
        assert_eq!(counts, [Some(all), Some(1), Some(all - 1), Some(all)]);
    }

    #[test]
    fn a_worker_is_not_in_user_code_while_it_uses_its_scheduler() {
        let found = node().run(|| {
            let (scheduler, me) = (mine(), current::waiter());
            let found = || scheduler.is_in_user_code(me);
            let inside = |_: Option<Inside>| found();
            let lists = here().expect("it runs on a worker");
            let in_lists = lists.with(|_| found());
            drop(lists);
            [found(), inside(Inside::enter()), in_lists]
        });
        assert_eq!(found, [true, false, false]);
    }

    #[test]
    fn a_lock_that_user_code_waits_for_does_not_make_a_scheduler_stuck() {
        let (node, lock) = (node(), Arc::new(Mutex::new(())));
        for inside in [false, true] {
            let held = lock.lock().unwrap();
            let (wanted, (tell, told)) = (lock.clone(), channel());
            let worker = node.spawn_on(0, move || {
                let scheduler = mine();
                tell.send((scheduler.clone(), thread_number() as i32)).unwrap();
                let wait = || drop(wanted.lock().unwrap());
                match inside {
                    true => here().expect("it runs on a worker").with(|_| wait()),
                    false => wait(),
                }
            });
            let (scheduler, thread) = told.recv().unwrap();
            let began = Instant::now();
            while state::look_at(thread).and_then(|waits| waits.futex()).is_none() {
                assert!(began.elapsed() < Duration::from_secs(30), "it waits for the lock");
                std::thread::yield_now();
            }
            let found = scheduler.holder_waits_for_lock();
            drop(held);
            worker.unwrap().join().unwrap();
            assert_eq!(found, inside);
        }
    }
}
