//! Stealing: how an idle scheduler takes a request from a peer.
//!
//! It takes none during a pause, which follows many steals of tiny requests from a peer that
//! carries out others itself (`steal_pause`). A scheduler that sees requests during its pause
//! wakes another idle one for them, sleeps until the pause ends, and then takes one. Meanwhile it
//! is not announced as idle, so that no peer wakes it for a request that it would not take.
//!
//! What this file does not do: scheduler/peers finds the requests, and scheduler/idle decides when
//! to look.

use std::sync::atomic::Ordering::Relaxed;

use super::peers::Taken;
use super::{PeersUnnotified, Scheduler};
use crate::os::clock;
use crate::record::event_ring::RingEvent;
use crate::scheduler::lists::worker_list::STANDBY;

/// A request that has waited for so long is overdue: an idle peer takes it at once, and does not
/// poll before.
const OVERDUE_NS: u64 = 50_000;

/// What a look at the peers' requests has led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stolen {
    /// A request was taken.
    One,
    /// No request waits that this scheduler may take.
    None,
    /// Requests wait, and this scheduler pauses for so many nanoseconds more.
    Later(u64),
}

impl Scheduler {
    /// Announces a scheduler that polls as idle, and looks for a request that it can take (S1 to S3
    /// of scheduler/peers). Does nothing while its bit is still set: no peer has had a request
    /// since the last look that was not passed on to another idle scheduler.
    pub(super) fn find_request(&self, announced: &mut bool) -> bool {
        if (*announced && self.peers.is_idle(self.index))
            || !self.takes_requests()
            || self.pause_left() > 0
        {
            return false;
        }
        self.peers.announce_idle(self.index);
        *announced = true;
        self.steal() == Stolen::One
    }

    /// Returns whether this scheduler would take a request from a peer: only if it could start it.
    pub(super) fn takes_requests(&self) -> bool {
        self.options.steal && self.online.load(Relaxed) && self.with(|core| self.can_start(core))
    }

    /// Takes an unstarted request from another scheduler, unless this one pauses. The caller has
    /// announced that this scheduler is idle, so this is also the look that must follow the
    /// announcement.
    pub(super) fn steal(&self) -> Stolen {
        if !self.peers.has_others() {
            return Stolen::None;
        }
        let pause = self.pause_left();
        if pause > 0 {
            if self.peers.others_have_work(self.index) {
                return Stolen::Later(pause);
            }
        } else if let Some(taken) = self.peers.steal(self) {
            self.adopt(taken);
            return Stolen::One;
        }
        // That was a look at the others' queues. Peers need not know of this one's if it is empty.
        let mine =
            if self.queue.is_empty() { PeersUnnotified::Nothing } else { PeersUnnotified::Own };
        self.peers_unnotified.set(mine);
        Stolen::None
    }

    /// Takes a request that has waited for long in a peer's queue. Returns false if there is none.
    pub(super) fn take_overdue(&self) -> bool {
        if !self.peers.has_others() || !self.takes_requests() || self.pause_left() > 0 {
            return false;
        }
        let overdue = self.peers.steal_overdue(self, clock::ticks(), OVERDUE_NS);
        overdue.map(|taken| self.adopt(taken)).is_some()
    }

    /// Returns for how many nanoseconds this scheduler takes no request; 0 if it may take one.
    fn pause_left(&self) -> u64 {
        self.with(|core| core.steal_pause.left(clock::ticks))
    }

    /// Called when nothing can run: judges the last steal, unless that was done before.
    #[inline]
    pub(super) fn judge_steal(&self) {
        self.with(|core| {
            if core.steal_pause.is_unjudged() {
                core.steal_pause.judge(clock::ticks(), self.counters.requests_done.load(Relaxed));
            }
        });
    }

    /// Queues a request that was taken from a peer.
    fn adopt(&self, taken: Taken) {
        // There may be more requests, and this scheduler takes none before it has run this one.
        self.must_notify(PeersUnnotified::Any);
        let ended = self.counters.requests_done.load(Relaxed);
        let peer = (taken.from, taken.ended);
        self.with(|core| core.steal_pause.taken(clock::ticks(), ended, peer));
        let request = taken.request;
        self.record(RingEvent::Steal, STANDBY, request.state().id as u32);
        if let Err(request) = self.queue.adopt(request) {
            // The node is shutting down: the request will not run anywhere.
            self.count_ended();
            self.in_a_turn(move || request.abandon().into_iter().for_each(super::ready));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::{Arc, Barrier, mpsc};

    use super::*;
    use crate::Node;
    use crate::scheduler::here;

    /// Scheduler 0 is held up, and 1 pauses.
    #[test]
    fn a_request_that_waits_beside_a_scheduler_that_pauses_is_taken_after_the_pause() {
        let node = Node::builder().schedulers(2).take_over_blocked(false).build().unwrap();
        let pauses = Arc::new(Barrier::new(2));
        let seen = pauses.clone();
        let pause = move || {
            let here = here().expect("it runs on a worker");
            let since = clock::ticks();
            here.with(|core| core.steal_pause.begin(since, 20_000_000));
            seen.wait();
            since
        };
        let since = node.spawn_on(1, pause).unwrap();
        let holds = move || {
            pauses.wait();
            let (tell, told) = mpsc::channel();
            let tells = move || tell.send((here().map(|s| s.index), clock::ticks())).unwrap();
            drop(crate::spawn(tells));
            told.recv().unwrap()
        };
        let (taken_by, at) = node.spawn_on(0, holds).unwrap().join().unwrap();
        assert_eq!(taken_by, Some(1));
        let after = clock::ticks_to_ns(at - since.join().unwrap());
        assert!(after > 10_000_000, "{after} ns");
    }
}
