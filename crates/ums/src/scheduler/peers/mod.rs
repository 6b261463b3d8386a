//! The schedulers of a node, as each of them sees the others: which are idle, and which have
//! requests waiting.
//!
//! Only visible schedulers are peers. The idle mask has a bit for each scheduler that is about to
//! sleep or sleeps, and would take a request. Protocol, so that no request is left waiting beside a
//! sleeping scheduler:
//!
//! ```text
//!   idle scheduler                         enqueuer, at a busy scheduler
//!   S1 set own bit                         E1 push onto the work queue
//!   S2 fence                               E2 fence
//!   S3 look at all work queues             E3 read the mask, take a bit, wake its owner
//!   S4 sleep
//!   S5 take the own bit back
//!   S6 if it was gone: owe a look
//! ```
//!
//! Either S3 sees the push of E1, or E3 sees the bit of S1, by the proof in os/asleep.
//!
//! A wake-up goes to one scheduler, but its cause concerns all of them. The woken scheduler may
//! have something else to do: a worker came through its inbox, or a timer expired, at the same
//! moment. So a wake-up is a *debt* ([`PeersUnnotified`]), and is paid in one of two ways:
//!
//! * by a look at all work queues with the own bit set (S1 to S3), or
//! * by telling a peer: before a scheduler that owes a look runs a worker, it reads the queues, and
//!   if a request waits it does E2 and E3 itself.
//!
//! The invariant: **while a request waits that a peer may take, either some scheduler owes a look,
//! or no scheduler sleeps with its bit set that has not seen the request or been told of one.** A
//! push makes it true: it wakes its own sleeping scheduler, which owes a look (S5 and S6 of the
//! inbox: `Inbox::awake`); or it takes a bit, whose owner owes a look; or it finds no bit, and then
//! each scheduler that goes to sleep later sees the request in S3. Paying keeps it true: a look
//! with the bit set finds nothing, or takes a request and still owes (one wake-up for each
//! scheduler that begins to work, as long as requests wait); and telling a peer is E3 again. A
//! request that is taken by a scheduler that owes nothing changes nothing for the others.

use std::sync::atomic::Ordering;
use std::sync::{OnceLock, Weak};

use crate::os::asleep::IdleMask;
use crate::os::planted::{self, Bug};
use crate::scheduler::request::{RequestState, WorkRequest};
use crate::scheduler::{Peers, Scheduler};

impl Peers {
    /// Makes room for this many schedulers.
    pub fn new(count: usize) -> Peers {
        Peers { idle: IdleMask::new(count), list: OnceLock::new() }
    }

    /// Names the schedulers, once, before any of them runs.
    pub fn introduce(&self, list: Box<[Weak<Scheduler>]>) {
        let _ = self.list.set(list);
    }

    /// Returns whether there is more than one.
    pub fn has_others(&self) -> bool {
        self.list().len() > 1
    }

    fn list(&self) -> &[Weak<Scheduler>] {
        self.list.get().map_or(&[], |l| l)
    }

    /// Announces that the scheduler is about to sleep; the caller looks at all work queues again
    /// before it does (S3).
    pub fn announce_idle(&self, index: usize) {
        self.idle.announce(index);
    }

    /// Withdraws the announcement. Returns true if an enqueuer has told this scheduler of a
    /// request, so that it owes a look.
    pub fn busy(&self, index: usize) -> bool {
        self.idle.withdraw(index)
    }

    /// Wakes one idle scheduler other than `index`, if there is one. The caller has pushed and
    /// fenced.
    pub fn wake_one(&self, index: usize) {
        let idle = self.idle.take_other(index).and_then(|peer| self.list().get(peer));
        if let Some(peer) = idle.and_then(Weak::upgrade) {
            peer.inbox.wake();
        }
    }

    /// Returns whether a request waits in the work queue of any scheduler other than `index`.
    pub fn others_have_work(&self, index: usize) -> bool {
        let mut others = self.list().iter().enumerate().filter(|(at, _)| *at != index);
        others.any(|(_, p)| p.upgrade().is_some_and(|p| p.queue.len() > 0))
    }

    /// Tells the queue that has this request, its own or the one it was taken to, that it became
    /// urgent, and wakes its scheduler.
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

    /// Does the same for all requests that became urgent together.
    pub fn promote_all(&self, home: &Scheduler) {
        if home.queue.promote_all() {
            home.inbox.wake();
        }
        let others = self.list().iter().filter(|_| home.options.steal);
        for other in others.filter_map(Weak::upgrade).filter(|o| o.queue.promote_all()) {
            other.inbox.wake();
        }
    }

    /// Takes an unstarted request from the peer that has most waiting, and moves its load.
    pub fn steal(&self, thief: &Scheduler) -> Option<WorkRequest> {
        let peers = self.list().iter().enumerate().filter(|(at, _)| *at != thief.index);
        if planted::is(Bug::StealOfAStartedWorker) {
            let others = peers.clone().filter_map(|(_, p)| p.upgrade());
            others.for_each(|other| other.inbox.take_all(|waiter| thief.inbox.push(waiter)));
        }
        let loaded =
            || peers.clone().filter_map(|(_, p)| p.upgrade()).filter(|p| p.queue.len() > 0);
        let most = loaded().max_by_key(|p| p.queue.len())?;
        // The others after it, because what waits there may be bound to it.
        let (victim, request) = std::iter::once(most)
            .chain(loaded())
            .find_map(|p| p.queue.take_for_another().map(|request| (p, request)))?;
        // In this order, for a shutdown that adds up loads (`Node::end`): the request is always in
        // one of them, and its move is counted before it has left the first.
        thief.load.fetch_add(1, Ordering::Relaxed);
        crate::record::counters::add(&thief.counters.stolen, 1);
        victim.load.fetch_sub(1, Ordering::Release);
        Some(request)
    }
}

#[cfg(all(test, loom))]
mod loom;
