//! The worker: a thread or a fiber that carries out work requests.
//!
//! A worker's state says which list it is on. Each method that changes a state asserts the previous
//! one. In the picture, each arrow has the name of what makes the change:
//!
//! ```text
//!            create                 choose                     finish
//!   (none) ---------> New --------------------> Running ----------------> Idle --> retire
//!                                               |  ^  |  ^                 |
//!                              park (wait)      |  |  |  | choose          | choose (a request)
//!                  +----------------------------+  |  |  +-----------------+
//!                  v                 choose        |  |
//!               Waiting --wake--> Runnable --------+  | go preemptive
//!                                    ^                v
//!                                    +--wake------ Preemptive
//! ```
//!
//! Two short cuts are not in the picture: a worker whose wait has ended may become Running at once
//! (`resume`), and a worker may begin its next request without becoming Idle (`go_on`).
//!
//! Named invariant **One List**: a worker is on the worker list when Idle, on the runnable list
//! when Runnable, on the waiter list when Waiting, and on none otherwise. The host of the idle loop
//! stays Idle or Waiting, and stays on that list.
//!
//! The waiter list has no links: its workers are those whose state is Waiting, and only their
//! number is kept. A wait ends by the waiter's own ticket, so no code looks for the next worker on
//! that list, and parking and waking touch no other worker that waits.
//!
//! Workers are numbered, and lists link numbers, so all of this is safe code. This file does not
//! switch to workers, and it does not depend on what is in a request.

mod worker;

pub use self::worker::State;
pub(crate) use self::worker::{Execution, Worker};
use crate::os::linux::plain::prefetch;
use crate::scheduler::lists::{ListEnds, NO_WORKER, WorkerId};
use crate::scheduler::request::WorkRequest;
use crate::wait::Waiter;

/// The number of the standby: the context that hosts the idle loop when no worker can. It runs no
/// requests, never goes preemptive, is on no list and in no count.
pub(crate) const STANDBY: WorkerId = 0;

/// The memory of so many workers, about five lines for each, stays in a processor's nearest cache.
const CACHED: usize = 32;

/// All workers of one scheduler, and the lists that they are on.
pub(crate) struct Workers<S> {
    /// Number 0 is the standby, which is no worker and never leaves its state. A vacant place keeps
    /// its last waiter, which is never freed, so every place has one.
    slots: Vec<Worker<S>>,
    free: Vec<WorkerId>,
    /// The worker list: last in, first out, so that warm stacks are used. Its front has been idle
    /// longest.
    pub idle: ListEnds,
    /// The runnable list consists of two: workers whose wait has ended, and workers that yielded.
    pub signalled: ListEnds,
    pub yielded: ListEnds,
    /// How many workers are on the waiter list.
    waiting: u32,
    /// Whether workers whose wait has ended have a list of their own; otherwise they go behind
    /// those that yielded.
    apart: bool,
    count: usize,
}

impl<S: Execution> Workers<S> {
    /// Makes a table without workers. If `apart` is false, the runnable list is one plain FIFO.
    pub fn new(apart: bool, standby: &'static Waiter) -> Workers<S> {
        Workers {
            slots: vec![Worker::new(standby, None, 0)],
            free: Vec::new(),
            idle: ListEnds::new(),
            signalled: ListEnds::new(),
            yielded: ListEnds::new(),
            waiting: 0,
            apart,
            count: 0,
        }
    }

    /// Returns how many workers there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns what is wrong with the lists, if anything (One List).
    pub fn check(&self) -> Result<(), String> {
        let mut on_lists = 0;
        let lists = [
            (self.idle, State::Idle),
            (self.signalled, State::Runnable),
            (self.yielded, State::Runnable),
        ];
        for (list, state) in lists {
            let (mut at, mut before, mut len) = (list.head, NO_WORKER, 0);
            while at != NO_WORKER {
                let worker = &self.slots[at as usize];
                if worker.execution.is_none() || worker.state != state || worker.prev != before {
                    return Err(format!("worker {at} is {:?} on the list {state:?}", worker.state));
                }
                (before, at, len) = (at, worker.next, len + 1);
                if len > self.count {
                    return Err(format!("the list {state:?} goes round"));
                }
            }
            if before != list.tail || len != list.len as usize {
                return Err(format!("the list {state:?} says {} and has {len}", list.len));
            }
            on_lists += len;
        }
        let is_listed = |w: &Worker<S>| matches!(w.state, State::Idle | State::Runnable);
        let living = || self.slots[1..].iter().filter(|w| w.execution.is_some());
        let running = living().filter(|w| w.state == State::Running).count();
        if running > 1 {
            return Err(format!("{running} workers run at once"));
        }
        let (all, listed) = (living().count(), living().filter(|w| is_listed(w)).count());
        if all != self.count || listed != on_lists {
            return Err(format!(
                "{all} workers, {} counted; {listed} listed, {on_lists} found",
                self.count
            ));
        }
        match self.in_state(State::Waiting) {
            waiting if waiting != self.waiting() => {
                Err(format!("{waiting} workers wait, {} counted", self.waiting()))
            }
            _ => Ok(()),
        }
    }

    /// Returns how many workers are in this state.
    pub fn in_state(&self, state: State) -> usize {
        self.slots[1..].iter().filter(|w| w.execution.is_some() && w.state == state).count()
    }

    /// Returns how many workers are on the waiter list.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.waiting as usize
    }

    /// Returns the workers on the waiter list, in the order of their numbers.
    pub fn waiters(&self) -> impl Iterator<Item = WorkerId> + '_ {
        let waits = |w: &Worker<S>| w.execution.is_some() && w.state == State::Waiting;
        (1..).zip(&self.slots[1..]).filter(move |(_, w)| waits(w)).map(|(id, _)| id)
    }

    /// Returns the number that the next worker will get.
    pub fn next_id(&self) -> WorkerId {
        self.free.last().copied().unwrap_or(self.slots.len() as WorkerId)
    }

    /// Adds a worker with the number that [`Workers::next_id`] has returned.
    // Not inlined: the copy of the worker would be in the frame of the caller, which has the
    // deepest calls that a worker makes for its scheduler.
    #[inline(never)]
    pub fn add(&mut self, waiter: &'static Waiter, execution: S, now: u64) -> WorkerId {
        let worker = Worker::new(waiter, Some(execution), now);
        let id = self.free.pop().unwrap_or(self.slots.len() as WorkerId);
        if id as usize == self.slots.len() {
            self.slots.push(worker);
        } else {
            self.slots[id as usize] = worker;
        }
        self.count += 1;
        id
    }

    /// Removes a retired worker from the table.
    pub fn remove(&mut self, id: WorkerId) -> (&'static Waiter, S) {
        let worker = &mut self.slots[id as usize];
        assert_eq!(worker.state, State::Retired, "only a retired worker is taken out");
        let execution = worker.execution.take().expect("a worker is removed once");
        self.free.push(id);
        self.count -= 1;
        (worker.waiter, execution)
    }

    /// Returns the worker of this number, or the standby. Numbers come from lists and waiters,
    /// which name only living workers; a vacant place is recognised by its state, Retired.
    ///
    /// # Panics
    /// Panics if there never was a worker of this number.
    #[inline]
    pub fn get(&mut self, id: WorkerId) -> &mut Worker<S> {
        let worker = &mut self.slots[id as usize];
        debug_assert!(
            id == STANDBY || worker.execution.is_some(),
            "a number names a living worker"
        );
        worker
    }

    /// Returns the workers of two numbers, as [`Workers::get`] does.
    #[inline]
    pub fn get_both(&self, one: WorkerId, other: WorkerId) -> (&Worker<S>, &Worker<S>) {
        let slots = &self.slots[..];
        (&slots[one as usize], &slots[other as usize])
    }

    /// Returns the waiter of the worker with this number, if there is one.
    pub fn find(&self, id: WorkerId) -> Option<&'static Waiter> {
        let worker = self.slots.get(id as usize).filter(|_| id != STANDBY)?;
        worker.execution.is_some().then_some(worker.waiter)
    }

    /// Moves a worker from one state to another, and so from list to list. It becomes the last of
    /// its new list. A worker that becomes Runnable here has yielded; [`Workers::wake`] is for the
    /// others. Neither state is Waiting, because [`Workers::wait`], [`Workers::resume`] and
    /// [`Workers::wake`] count the workers that wait.
    #[inline]
    pub fn shift(&mut self, id: WorkerId, from: State, to: State, now: u64) {
        debug_assert!(from != State::Waiting && to != State::Waiting);
        self.unlink(id, from);
        self.get(id).put(to, now);
        match to {
            State::Runnable => self.push_back(Which::Yielded, id),
            State::Idle => self.push_back(Which::Idle, id),
            _ => {}
        }
    }

    /// A worker starts a request: usually the worker that became idle last.
    #[inline]
    pub fn start(&mut self, id: WorkerId, request: WorkRequest, now: u64) {
        if id != self.idle.tail {
            let from = self.get(id).state;
            assert_ne!(from, State::Waiting, "a worker that waits has a request");
            self.shift(id, from, State::Running, now);
            self.get(id).request = Some(request);
            return;
        }
        let worker = self.get(id);
        assert_eq!(worker.state, State::Idle, "the worker list holds idle workers");
        let before = std::mem::replace(&mut worker.prev, NO_WORKER);
        worker.put(State::Running, now);
        worker.request = Some(request);
        self.idle.tail = before;
        self.idle.len -= 1;
        match before {
            NO_WORKER => self.idle.head = NO_WORKER,
            before => self.get(before).next = NO_WORKER,
        }
    }

    /// The current worker has ended its request, and becomes idle.
    #[inline]
    pub fn finish(&mut self, id: WorkerId, now: u64) {
        let tail = self.idle.tail;
        let worker = self.get(id);
        assert_eq!(worker.state, State::Running, "only a running worker ends its request");
        worker.put(State::Idle, now);
        worker.prev = tail;
        self.append(Which::Idle, tail, id);
    }

    /// Gets the memory that waking this worker needs.
    #[inline]
    pub fn prefetch(&self, id: WorkerId) {
        self.slots.get(id as usize).inspect(|worker| prefetch(*worker));
    }

    /// A worker whose wait has ended becomes Running at once, without becoming Runnable.
    #[inline]
    pub fn resume(&mut self, id: WorkerId) {
        let worker = self.get(id);
        assert_eq!(worker.state, State::Waiting, "only a worker that waits is resumed");
        worker.put(State::Running, 0);
        self.waiting -= 1;
    }

    /// The current worker has ended its request, and begins the next one at once.
    #[inline]
    pub fn go_on(&mut self, id: WorkerId, now: u64) {
        let worker = self.get(id);
        assert_eq!(worker.state, State::Running, "only a running worker ends its request");
        worker.since = now;
    }

    /// The current worker begins to wait.
    #[inline]
    pub fn wait(&mut self, id: WorkerId, now: u64) {
        let worker = self.get(id);
        assert_eq!(worker.state, State::Running, "only a running worker begins to wait");
        worker.put(State::Waiting, now);
        self.waiting += 1;
    }

    /// Makes a worker runnable whose wait has ended, or that rejoins. Such workers are in the order
    /// of their signals.
    #[inline]
    pub fn wake(&mut self, id: WorkerId, now: u64) {
        let tail = self.signalled.tail;
        let (apart, many) = (self.apart, self.count > CACHED);
        let worker = self.get(id);
        if !apart || worker.state != State::Waiting {
            return self.wake_unusually(id, now);
        }
        worker.be_signalled(tail, now);
        match tail {
            NO_WORKER if many => worker.prefetch(),
            _ if many => worker.prefetch_early(),
            _ => {}
        }
        self.waiting -= 1;
        self.append(Which::Signalled, tail, id);
    }

    /// Does the same for a worker that rejoins, and if the runnable list is one plain FIFO.
    #[cold]
    #[inline(never)]
    fn wake_unusually(&mut self, id: WorkerId, now: u64) {
        let which = self.runnable_list(true);
        let tail = self.list(which).tail;
        let worker = self.get(id);
        let from = worker.state;
        assert!(
            matches!(from, State::Waiting | State::Preemptive),
            "a worker that is {from:?} was woken"
        );
        worker.be_signalled(tail, now);
        self.waiting -= u32::from(from == State::Waiting);
        self.append(which, tail, id);
    }

    /// The current worker begins to wait, while all runnable workers have waited, and have a list
    /// of their own: the first of them becomes Running. Nothing is passed over by that. Returns
    /// None if there is none. One function does both moves, as in [`Workers::rotate`].
    #[inline]
    pub fn wait_for_next(&mut self, me: WorkerId, now: u64) -> Option<WorkerId> {
        self.wait(me, now);
        let id = self.signalled.head;
        if id == NO_WORKER {
            return None;
        }
        let slots = &mut self.slots[..];
        let worker = &mut slots[id as usize];
        debug_assert_eq!(worker.state, State::Runnable, "the runnable list holds runnable workers");
        let next = std::mem::replace(&mut worker.next, NO_WORKER);
        worker.put(State::Running, 0);
        self.signalled.head = next;
        self.signalled.len -= 1;
        match next {
            NO_WORKER => self.signalled.tail = NO_WORKER,
            next => {
                let worker = &mut slots[next as usize];
                worker.prev = NO_WORKER;
                worker.prefetch();
            }
        }
        Some(id)
    }

    /// A yield while all ready workers are workers that yielded: the first of them becomes Running,
    /// and the yielder becomes the last. One function does both moves, because this is what a busy
    /// scheduler does most.
    #[inline(always)]
    pub fn rotate(&mut self, yielder: WorkerId) -> Rotated {
        let next = self.yielded.head;
        if !self.signalled.is_empty() {
            return Rotated::Not;
        }
        if next == NO_WORKER {
            return Rotated::Alone;
        }
        let worker = self.get(next);
        if !worker.has_yielded() {
            assert_eq!(worker.state, State::Runnable, "the runnable list holds runnable workers");
            return Rotated::Not;
        }
        let (second, since) = (worker.next, worker.since);
        worker.next = NO_WORKER;
        worker.put(State::Running, since);
        let last = if second == NO_WORKER {
            self.yielded.head = yielder;
            NO_WORKER
        } else {
            self.yielded.head = second;
            let worker = self.get(second);
            worker.prev = NO_WORKER;
            worker.prefetch();
            let third = worker.next;
            self.slots.get(third as usize).inspect(|third| prefetch(*third));
            let last = self.yielded.tail;
            self.get(last).next = yielder;
            last
        };
        self.yielded.tail = yielder;
        let worker = self.get(yielder);
        assert_eq!(worker.state, State::Running, "only a running worker yields");
        worker.prev = last;
        // The clock is not read: this time is compared only with the times of other workers, and
        // whatever becomes ready after this is younger than both.
        worker.put(State::Runnable, since);
        Rotated::To(next)
    }

    /// Returns how many workers are runnable.
    pub fn runnable(&self) -> usize {
        (self.signalled.len + self.yielded.len) as usize
    }

    /// Returns since when the first worker of a list has been on it.
    pub fn first_since(&mut self, list: ListEnds) -> Option<u64> {
        (!list.is_empty()).then(|| self.get(list.head).since)
    }

    /// Returns whether there is a worker of this number whose wait has ended at this time, and that
    /// has not run since.
    #[inline]
    pub fn is_signalled(&self, id: WorkerId, since: u64) -> bool {
        let signalled = |w: &Worker<S>| w.state == State::Runnable && w.waited && w.since == since;
        self.slots.get(id as usize).is_some_and(signalled)
    }

    /// Returns the list that a runnable worker is on.
    #[inline]
    fn runnable_list(&self, waited: bool) -> Which {
        if waited && self.apart { Which::Signalled } else { Which::Yielded }
    }

    #[inline]
    fn unlink(&mut self, id: WorkerId, from: State) {
        let worker = self.get(id);
        assert_eq!(worker.state, from, "worker {id} moves from a state that it is not in");
        let (prev, next, waited) = (worker.prev, worker.next, worker.waited);
        let which = match from {
            State::Runnable => self.runnable_list(waited),
            State::Idle => Which::Idle,
            _ => return,
        };
        let worker = self.get(id);
        (worker.prev, worker.next) = (NO_WORKER, NO_WORKER);
        match prev {
            NO_WORKER => self.list(which).head = next,
            p => self.get(p).next = next,
        }
        match next {
            NO_WORKER => self.list(which).tail = prev,
            n => {
                let worker = self.get(n);
                worker.prev = prev;
                worker.prefetch();
            }
        }
        self.list(which).len -= 1;
    }

    #[inline]
    fn push_back(&mut self, which: Which, id: WorkerId) {
        let tail = self.list(which).tail;
        self.get(id).prev = tail;
        self.append(which, tail, id);
    }

    /// Puts a worker behind the last one of a list, which it has as its previous one already.
    #[inline]
    fn append(&mut self, which: Which, tail: WorkerId, id: WorkerId) {
        match tail {
            NO_WORKER => self.list(which).head = id,
            t => self.get(t).next = id,
        }
        let list = self.list(which);
        list.tail = id;
        list.len += 1;
    }

    #[inline]
    fn list(&mut self, which: Which) -> &mut ListEnds {
        match which {
            Which::Idle => &mut self.idle,
            Which::Signalled => &mut self.signalled,
            Which::Yielded => &mut self.yielded,
        }
    }
}

/// The result of a yield that looks only at the runnable list.
pub(crate) enum Rotated {
    /// This worker runs, and the yielder is the last that yielded.
    To(WorkerId),
    /// No worker is runnable: the yielder continues.
    Alone,
    /// There are runnable workers whose wait has ended. Nothing has changed.
    Not,
}

#[derive(Clone, Copy)]
enum Which {
    Idle,
    Signalled,
    Yielded,
}

#[cfg(test)]
mod tests;
