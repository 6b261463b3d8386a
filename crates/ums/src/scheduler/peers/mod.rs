//! Peers: how the schedulers of a node find out which of them are idle, and which have requests
//! waiting.
//!
//! Only visible schedulers are peers. The idle mask has a bit for each. The bit is set while its
//! scheduler sleeps, or is about to, or polls before it sleeps, and would take a request from a
//! peer. This protocol ensures that no request waits beside a sleeping scheduler:
//!
//! ```text
//!   idle scheduler                         enqueuer, at a busy scheduler
//!   S1 set own bit                         E1 push onto the work queue
//!   S2 fence                               E2 fence
//!   S3 look at all work queues             E3 read the mask, clear a bit, wake its owner
//!   S4 sleep
//!   S5 clear own bit
//!   S6 if E3 has cleared it: must look again
//! ```
//!
//! Either S3 sees the push of E1, or E3 sees the bit of S1, by the proof in os/asleep.
//!
//! **Polling** (scheduler/idle) comes before S4. After its first rounds, in which it is as good as
//! busy, a scheduler that polls does S1 to S3, and then looks at its own bit. An enqueuer clears
//! the bit, finds the inbox awake, and writes no event. When the scheduler sees that, it sets the
//! bit and looks again.
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
//! * It looks at all work queues while its own bit is set (S1 to S3).
//! * It notifies a peer: before it runs a worker, it reads the queues, and if a request waits, it
//!   does E2 and E3 itself.
//!
//! The invariant: **while a request waits that a peer may take, either some scheduler has the
//! obligation, or each scheduler that sleeps with its bit set has seen the request or has been
//! notified of one.** A push makes it true. Either the push wakes its own sleeping scheduler, which
//! then has the obligation (`Inbox::awake` reports the wake-up). Or it clears the bit of a peer,
//! which then has the obligation (S6). Or it finds no bit set, and then each scheduler that goes to
//! sleep later sees the request in S3. Fulfilling the obligation keeps the invariant true: a look
//! with the bit set finds nothing, or takes a request and keeps the obligation (one wake-up for
//! each scheduler that begins to work, as long as requests wait); and notifying a peer is E3 again.
//! If a scheduler without the obligation takes a request, nothing changes for the others.

use std::sync::atomic::Ordering;
use std::sync::{OnceLock, Weak};

use crate::os::asleep::IdleMask;
use crate::os::clock;
use crate::os::planted::{self, Bug};
use crate::scheduler::request::{RequestState, WorkRequest};
use crate::scheduler::{Peers, Scheduler};

/// At how many peers to look for one that has run.
const LOOKS_MAX: usize = 4;

impl Peers {
    /// Makes room for this many schedulers.
    pub fn new(count: usize) -> Peers {
        Peers { idle: IdleMask::new(count), list: OnceLock::new() }
    }

    /// Stores the schedulers, once, before any of them runs.
    pub fn introduce(&self, list: Box<[Weak<Scheduler>]>) {
        let _ = self.list.set(list);
    }

    /// Returns whether there is more than one scheduler.
    pub fn has_others(&self) -> bool {
        self.list().len() > 1
    }

    fn list(&self) -> &[Weak<Scheduler>] {
        self.list.get().map_or(&[], |l| l)
    }

    /// S1 and S2: sets the bit of this scheduler, which is about to sleep. The caller looks at all
    /// work queues again before it sleeps (S3).
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
        for _ in 0..LOOKS_MAX.min(list.len()) {
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
    /// then the scheduler must look at the work queues or notify a peer (S6).
    pub fn busy(&self, index: usize) -> bool {
        self.idle.withdraw(index)
    }

    /// E2 and E3: wakes one idle scheduler other than `index`, if there is one. The caller knows of
    /// a request that waits.
    pub fn wake_one(&self, index: usize) {
        self.wake(self.idle.take_other(index));
    }

    /// E3 alone: as [`Peers::wake_one`], of a caller that has called `Inbox::wake` since it has
    /// pushed a request. That has fenced (E2).
    pub fn wake_one_after_inbox(&self, index: usize) {
        self.wake(self.idle.take_other_after_wake(index));
    }

    fn wake(&self, idle: Option<usize>) {
        let idle = idle.and_then(|peer| self.list().get(peer));
        if let Some(peer) = idle.and_then(Weak::upgrade) {
            peer.inbox.wake();
        }
    }

    /// Returns whether a request waits in the work queue of any scheduler other than `index`.
    pub fn others_have_work(&self, index: usize) -> bool {
        let mut others = self.list().iter().enumerate().filter(|(at, _)| *at != index);
        others.any(|(_, p)| p.upgrade().is_some_and(|p| p.queue.len() > 0))
    }

    /// Moves a request that became urgent to the urgent lane of the queue that has it (the queue of
    /// `home`, or of the scheduler that took it), and wakes the scheduler of that queue.
    pub fn promote(&self, home: &Scheduler, request: &RequestState) {
        if home.queue.promote(request) {
            home.inbox.wake();
        } else if home.options.steal {
            let mut others = self.list().iter().filter_map(Weak::upgrade);
            if let Some(other) = others.find(|other| other.queue.promote(request)) {
                other.inbox.wake();
            }
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

    /// Takes an unstarted request from the peer that has most requests queued, and moves its load.
    pub fn steal(&self, thief: &Scheduler) -> Option<WorkRequest> {
        let peers = self.list().iter().enumerate().filter(|(at, _)| *at != thief.index);
        if planted::is(Bug::StealOfAStartedWorker) {
            let others = peers.clone().filter_map(|(_, p)| p.upgrade());
            others.for_each(|other| other.inbox.take_all(|waiter| thief.inbox.push(waiter)));
        }
        let loaded =
            || peers.clone().filter_map(|(_, p)| p.upgrade()).filter(|p| p.queue.len() > 0);
        let most = loaded().max_by_key(|p| p.queue.len())?;
        // For a shutdown that adds up loads (`Node::end`): the request is always counted in at
        // least one of them, and the move is counted before the first load decreases.
        let moved = || {
            thief.count_adopted();
            crate::record::counters::add(&thief.counters.stolen, 1);
        };
        // Then the other peers, because all requests of the first may be bound to it.
        std::iter::once(most).chain(loaded()).find_map(|p| p.queue.take_for_another(moved))
    }
}

#[cfg(all(test, loom))]
mod loom;
