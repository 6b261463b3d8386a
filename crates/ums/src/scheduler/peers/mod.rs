//! Peers: how the schedulers of a node find out which of them are idle, and which have requests
//! waiting.
//!
//! Only visible schedulers are peers. Two masks have a bit for each of them (os/asleep). In the
//! idle mask, the bit is set while its scheduler sleeps, or is about to, or polls before it sleeps,
//! and would take a request from a peer. In the work mask, it is set while requests may wait in its
//! scheduler's work queue that a peer may take: the queue is *posted*. This protocol ensures that
//! no request waits beside a sleeping scheduler:
//!
//! ```text
//!   idle scheduler                         enqueuer, at a busy scheduler
//!   S1 set own idle bit                    E1 push onto the work queue
//!   S2 fence                               E2 fence
//!   S3 look at all posted queues           E3 if the queue is not posted, post it and fence
//!   S4 sleep                               E4 read the idle mask, clear a bit, wake its owner
//!   S5 clear own idle bit
//!   S6 if E4 has cleared it: must look again
//! ```
//!
//! Either S3 sees the push of E1, or E4 sees the bit of S1, by the proof in os/asleep. A scheduler
//! that finds a posted queue empty in S3 takes it off the work mask, as described there.
//!
//! **No cost depends on the number of schedulers**, except that the masks have a cache line for 512
//! of them. A push reads two bits. S3 reads as many queues as are posted, each of which has
//! requests, or was posted by a push and is taken off now. To choose among those that have
//! requests, a scheduler compares [`LOOKS_MAX`] of them, from a random one on.
//!
//! **A pause**: a scheduler that has taken many tiny requests takes none for up to 512 us
//! (scheduler/steal). If it sees a request in S3 then, it clears its own bit, wakes another
//! scheduler whose bit is set, and sleeps only until its pause ends.
//!
//! **Polling** (scheduler/idle) comes before S4. After its first rounds, in which it is as good as
//! busy, a scheduler that polls does S1 to S3, and then looks at its own bit. An enqueuer clears
//! the bit, finds the inbox awake, and writes no event. When the scheduler sees that, it sets the
//! bit and looks again. A request that has waited for long in a peer's queue is taken before the
//! poll: its scheduler has others to run first, and this one has none.
//!
//! **The bit must be set during the sleep**: otherwise the next enqueuer would find no idle
//! scheduler. An enqueuer may clear it before the scheduler has announced its sleep to the inbox,
//! which then writes no event. So after that announcement (which fences) the scheduler looks at its
//! bit once more, and does not sleep if it is clear. If an enqueuer clears it after this look, the
//! enqueuer's fence, which follows, comes after that of the announcement, so it finds the inbox
//! asleep and writes the event.
//!
//! A wake-up is given to one scheduler, but its cause concerns all of them. The woken scheduler may
//! have something else to do, because at the same moment a worker came through its inbox, or a
//! timer expired. So a wake-up leaves an *obligation* with the woken scheduler
//! ([`PeersUnnotified`]), which it fulfils in one of two ways:
//!
//! * It looks at all posted queues while its own bit is set (S1 to S3).
//! * It notifies a peer: before it runs a worker, it reads its own queue and the posted ones, and
//!   if a request waits, it does E2 to E4 itself.
//!
//! The invariant: **while a request waits that a peer may take, either some scheduler has the
//! obligation, or its queue is posted and each scheduler that sleeps with its bit set has seen the
//! request or has been notified of one.** A push makes it true. Either the push wakes its own
//! sleeping scheduler, which then has the obligation (`Inbox::awake` reports the wake-up). Or it
//! clears the bit of a peer, which then has the obligation (S6). Or it finds no bit set, and then
//! each scheduler that goes to sleep later sees the request in S3. Fulfilling the obligation keeps
//! the invariant true: a look with the bit set finds nothing, or takes a request and keeps the
//! obligation (one wake-up for each scheduler that begins to work, as long as requests wait); and
//! notifying a peer is E4 again. If a scheduler without the obligation takes a request, nothing
//! changes for the others.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use crate::os::asleep::{IdleMask, WorkMask};
use crate::os::atomic::fence;
use crate::os::clock;
use crate::os::counted::note_change;
use crate::os::limits::LOOKS_MAX;
use crate::os::planted::{self, Bug};
use crate::os::random;
use crate::scheduler::request::{RequestState, WorkRequest};
use crate::scheduler::{Peers, Scheduler};

/// At how many peers to look for one that has run.
const RAN_LOOKS: usize = 4;

/// A request that was taken from a peer.
pub(crate) struct Taken {
    pub request: WorkRequest,
    /// The number of the peer.
    pub from: usize,
    /// How many requests have ended on the peer.
    pub ended: u64,
}

impl Peers {
    /// Makes room for this many schedulers.
    pub fn new(count: usize) -> Peers {
        Peers { idle: IdleMask::new(count), work: WorkMask::new(count), list: OnceLock::new() }
    }

    /// Stores the schedulers, once, before any of them runs.
    pub fn introduce(&self, list: Box<[Weak<Scheduler>]>) {
        let _ = self.list.set(list);
    }

    /// Returns whether there is more than one scheduler.
    #[inline]
    pub fn has_others(&self) -> bool {
        self.list().len() > 1
    }

    fn list(&self) -> &[Weak<Scheduler>] {
        self.list.get().map_or(&[], |l| l)
    }

    fn peer(&self, at: usize) -> Option<Arc<Scheduler>> {
        let peer = self.list().get(at)?.upgrade()?;
        // The count of references goes up here, and down later.
        (0..2).for_each(|_| note_change(&*peer));
        Some(peer)
    }

    /// S1 and S2: sets the bit of this scheduler, which is about to sleep. The caller looks at all
    /// posted queues again before it sleeps (S3).
    pub fn announce_idle(&self, index: usize) {
        self.idle.announce(index);
    }

    /// Returns whether the bit of this scheduler is still set. False: an enqueuer has taken it.
    pub fn is_idle(&self, index: usize) -> bool {
        self.idle.is_set(index)
    }

    /// Returns when one of a few peers last ran, in ticks; the present time if one is awake. Looks
    /// at the peers from number `next` on, and moves `next` beyond them.
    pub fn ran_last(&self, index: usize, next: &mut usize) -> u64 {
        let list = self.list();
        let mut last = 0;
        for _ in 0..RAN_LOOKS.min(list.len()) {
            *next = (*next + 1) % list.len();
            let Some(peer) = list[*next].upgrade().filter(|_| *next != index) else { continue };
            match peer.counters.asleep_since.load(Ordering::Relaxed) {
                0 => return clock::ticks(),
                since => last = last.max(since),
            }
        }
        last
    }

    /// S5: clears the bit. Returns true if an enqueuer has cleared it before, because of a request:
    /// then the scheduler must look at the posted queues or notify a peer (S6).
    pub fn busy(&self, index: usize) -> bool {
        self.idle.withdraw(index)
    }

    /// E2 to E4: wakes one idle scheduler other than `index`, if there is one, for a request that
    /// waits in the queue of `index`.
    pub fn offer(&self, index: usize) {
        fence(Ordering::SeqCst);
        self.offer_after_inbox(index);
    }

    /// E3 and E4: as [`Peers::offer`], of a caller that has called `Inbox::wake` since it has
    /// pushed the request. That has fenced (E2).
    #[inline]
    pub fn offer_after_inbox(&self, index: usize) {
        self.work.post(index);
        self.wake(self.idle.take_other_after_wake(index));
    }

    /// E3: posts the queue of `index`, for a request whose scheduler the caller has woken. That
    /// has fenced (E2).
    #[inline]
    pub fn post(&self, index: usize) {
        self.work.post(index);
    }

    /// E2 and E4: wakes one idle scheduler other than `index`, if there is one, for a request that
    /// waits in a posted queue.
    pub fn wake_one(&self, index: usize) {
        self.wake(self.idle.take_other(index));
    }

    #[inline]
    fn wake(&self, idle: Option<usize>) {
        if let Some(peer) = idle.and_then(|peer| self.peer(peer)) {
            peer.inbox.wake();
        }
    }

    /// Returns whether a request waits in a posted queue other than that of `index`.
    pub fn others_have_work(&self, index: usize) -> bool {
        self.posted(index, |_| true).is_some()
    }

    /// Returns the first posted queue's scheduler, from a random one on, that has requests and
    /// that `wanted` accepts. Never `index`. Takes queues without requests off the work mask; after
    /// that, the caller takes the requests that it has found or wakes a peer for them.
    fn posted(
        &self,
        index: usize,
        mut wanted: impl FnMut(&Arc<Scheduler>) -> bool,
    ) -> Option<Arc<Scheduler>> {
        let mut found = None;
        self.work.find(random::below(self.list().len()), |at| {
            let Some(peer) = (if at == index { None } else { self.peer(at) }) else { return false };
            let ends = self.work.has(at, || peer.queue.is_empty()) && wanted(&peer);
            if ends {
                found = Some(peer);
            }
            ends
        });
        found
    }

    /// Moves a request that became urgent to the urgent lane of the queue that has it (the queue of
    /// `home`, or of the scheduler that took it), and wakes the scheduler of that queue.
    pub fn promote(&self, home: &Scheduler, request: &RequestState) {
        if home.queue.promote(request) {
            home.inbox.wake();
        } else if home.options.steal
            && let Some(thief) = request.thief().and_then(|thief| self.peer(thief))
            && thief.queue.promote(request)
        {
            thief.inbox.wake();
        }
    }

    /// Does the same in all queues, for all requests that became urgent together.
    pub fn promote_all(&self, home: &Scheduler) {
        if home.queue.promote_all() {
            home.inbox.wake();
        }
        let others = self.list().iter().filter(|_| home.options.steal);
        for other in others.filter_map(Weak::upgrade).filter(|o| o.queue.promote_all()) {
            other.inbox.wake();
        }
    }

    /// Takes an unstarted request from a peer, and moves its load: from the one that has most
    /// requests queued, among a few of those whose queue is posted.
    pub fn steal(&self, thief: &Scheduler) -> Option<Taken> {
        if planted::is(Bug::StealOfAStartedWorker) {
            let others = self.list().iter().filter_map(Weak::upgrade);
            let others = others.filter(|other| other.index != thief.index);
            others.for_each(|other| other.inbox.take_all(|waiter| thief.inbox.push(waiter)));
        }
        let (mut most, mut looks) = (None, 0);
        self.posted(thief.index, |peer| {
            let queued = peer.queue.len();
            if most.as_ref().is_none_or(|(most, _)| *most < queued) {
                most = Some((queued, peer.clone()));
            }
            looks += 1;
            looks == LOOKS_MAX
        });
        let taken = most.and_then(|(_, peer)| peer.give_to(thief));
        // All requests of that one may be bound to it. Then this looks at each that is posted (S3).
        let mut other = None;
        if taken.is_none() {
            self.posted(thief.index, |peer| {
                other = peer.give_to(thief);
                other.is_some()
            });
        }
        taken.or(other)
    }

    /// Takes an unstarted request from a peer whose oldest one has waited for at least so many
    /// nanoseconds; looks at a few of those whose queue is posted. This is not the look of S3:
    /// it changes no mark, and None does not mean that no request waits.
    pub fn steal_overdue(&self, thief: &Scheduler, now: u64, after: u64) -> Option<Taken> {
        let is_overdue = |since| clock::ticks_to_ns(now.saturating_sub(since)) >= after;
        let (mut found, mut looks) = (None, 0);
        self.work.find(random::below(self.list().len()), |at| {
            let Some(peer) = (if at == thief.index { None } else { self.peer(at) }) else {
                return false;
            };
            looks += 1;
            let is_overdue = peer.queue.fronts_seen().into_iter().flatten().any(is_overdue);
            if is_overdue {
                found = peer.give_to(thief);
            }
            is_overdue || looks == LOOKS_MAX
        });
        found
    }
}

impl Scheduler {
    /// Takes an unstarted request out of this scheduler's queue for another one, and moves its
    /// load.
    fn give_to(&self, thief: &Scheduler) -> Option<Taken> {
        // For a shutdown that adds up loads (`Node::end`): the request is always counted in at
        // least one of them, and the move is counted before the first load decreases.
        let taken = self.queue.take_for_another(|| {
            thief.count_adopted();
            crate::record::counters::add(&thief.counters.stolen, 1);
        })?;
        taken.state().moves_to(thief.index);
        let ended = self.counters.requests_done.load(Ordering::Relaxed);
        Some(Taken { request: taken, from: self.index, ended })
    }
}

#[cfg(all(test, loom))]
mod loom;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::{Barrier, mpsc};
    use std::time::Duration;

    use super::*;
    use crate::Node;
    use crate::scheduler::here;

    /// The schedulers are held up, so that no other one takes a request.
    #[test]
    fn a_thief_takes_from_the_peer_that_has_the_most_requests_queued() {
        const MANY: usize = 20;
        let node = Node::builder().schedulers(3).take_over_blocked(false).build().unwrap();
        let all_run = Arc::new(Barrier::new(3));
        let (tell, told) = mpsc::channel();
        let held = [(1, 1), (2, 1 + MANY)].map(|(at, requests)| {
            let (all_run, tell) = (all_run.clone(), tell.clone());
            let (release, released) = mpsc::channel::<()>();
            let holds = move || {
                all_run.wait();
                (0..requests).for_each(|_| drop(crate::spawn(|| ())));
                tell.send(()).unwrap();
                let _ = released.recv();
            };
            (release, node.spawn_on(at, holds).unwrap())
        });
        let steals = move || {
            all_run.wait();
            (0..2).for_each(|_| told.recv().unwrap());
            let here = here().expect("it runs on a worker");
            let queued = |at| here.peers.peer(at).expect("the node lives").queue.len();
            for taken in 1..=MANY {
                let from = here.peers.steal(&here).expect("requests wait");
                assert!(here.queue.adopt(from.request).is_ok());
                assert_eq!([1, 2].map(queued), [1, 1 + MANY - taken]);
            }
        };
        node.spawn_on(0, steals).unwrap().join().unwrap();
        for (release, task) in held {
            drop(release);
            task.join().unwrap();
        }
    }

    /// A scheduler that was told to poll finds the request, too, but polls before that.
    #[test]
    fn an_idle_scheduler_takes_a_request_that_has_waited_for_long_before_it_polls() {
        let builder = Node::builder().schedulers(2).take_over_blocked(false);
        let node = builder.idle_spin(Duration::from_millis(1)).build().unwrap();
        let polls = || {
            let here = here().expect("it runs on a worker");
            let uncounted = here.with(|core| core.spin.uncounted.is_some());
            here.counters.idle_spins.load(Relaxed) + u64::from(uncounted)
        };
        let both_run = Arc::new(Barrier::new(2));
        let (tell, told) = mpsc::channel();
        let runs = both_run.clone();
        let ends = move || {
            runs.wait();
            told.recv().expect("the request has waited for long");
            polls()
        };
        let ends = node.spawn_on(1, ends).unwrap();
        let (answer, answered) = mpsc::channel();
        let holds = move || {
            both_run.wait();
            let answers = move || answer.send((here().map(|s| s.index), polls())).unwrap();
            drop(crate::spawn(answers));
            std::thread::sleep(Duration::from_micros(100));
            tell.send(()).unwrap();
            answered.recv().unwrap()
        };
        let (taken_by, after) = node.spawn_on(0, holds).unwrap().join().unwrap();
        assert_eq!((taken_by, after), (Some(1), ends.join().unwrap()));
    }
}
