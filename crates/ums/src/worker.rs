//! The worker: a thread or a fiber that carries out work requests (U21, U22).
//!
//! A worker's state says which list it is on; every change goes through [`Workers::shift`], which
//! asserts the state it comes from. Picture (arrow: function that performs it):
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
//! Named invariant **One List**: a worker is on the worker list when Idle, on the runnable list
//! when Runnable, on the waiter list when Waiting, and on none otherwise. Whoever hosts the idle
//! loop stays Idle or Waiting, and stays on that list.
//!
//! Workers are numbered; lists link numbers, so all of this is safe code. What this file does not
//! do: it does not switch, and it does not know what a request is made of.

use std::sync::atomic::Ordering;

use crate::lists::{List, NOBODY, WorkerId};
use crate::request::WorkRequest;
use crate::wait::Party;

/// The number of the standby: the context that hosts the idle loop when no worker can. It runs no
/// requests, never goes preemptive, is on no list and in no count.
pub(crate) const STANDBY: WorkerId = 0;

/// Where a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Created, not yet run. On no list; only its scheduler's current worker may touch it.
    New = 0,
    /// It is its scheduler's current worker. On no list; it owns its stack and the baton.
    Running,
    /// It could go on with its request. On the runnable list.
    Runnable,
    /// It waits for something, with a reason. On the waiter list.
    Waiting,
    /// It has no request. On the worker list.
    Idle,
    /// It runs outside its scheduler, which ignores it until it comes home. On no list.
    Preemptive,
    /// It is ending. On no list.
    Retired,
}

impl State {
    /// The state with this number; New for a number that is none.
    pub(crate) fn from_number(n: u8) -> State {
        use State::*;
        [New, Running, Runnable, Waiting, Idle, Preemptive, Retired]
            .into_iter()
            .find(|s| *s as u8 == n)
            .unwrap_or(New)
    }
}

/// One worker, as its scheduler sees it, or the vacant place of one (then Retired, without a seat).
/// `S` is what makes it run: a thread or a fiber.
pub(crate) struct Worker<S> {
    pub party: &'static Party,
    pub state: State,
    pub prev: WorkerId,
    pub next: WorkerId,
    /// It is Runnable because its wait was ended, not because it yielded.
    waited: bool,
    /// When it entered its list, in ticks.
    pub since: u64,
    /// The request it shall start with when it is next chosen.
    pub request: Option<WorkRequest>,
    /// The standby has none.
    pub seat: Option<S>,
}

impl<S> Worker<S> {
    fn new(party: &'static Party, seat: Option<S>, now: u64) -> Worker<S> {
        Worker {
            party,
            state: State::New,
            waited: false,
            prev: NOBODY,
            next: NOBODY,
            since: now,
            request: None,
            seat,
        }
    }

    #[inline]
    fn put(&mut self, to: State, now: u64) {
        self.state = to;
        self.waited = false;
        self.since = now;
        self.party.view.state.store(to as u8, Ordering::Relaxed);
    }
}

impl Party {
    /// Whether the worker behind this party is in that state, as its scheduler's current worker
    /// last said.
    #[inline]
    pub(crate) fn is(&self, state: State) -> bool {
        self.view.state.load(Ordering::Relaxed) == state as u8
    }
}

/// All workers of one scheduler, and the three lists of them.
pub(crate) struct Workers<S> {
    /// Number 0 is the standby, which is no worker and never leaves its state. A vacant place keeps
    /// its last party, which is never freed, so that a look at a place is one look.
    slots: Vec<Worker<S>>,
    free: Vec<WorkerId>,
    /// The worker list: last in, first out, so that warm stacks are used; the front is the oldest.
    pub idle: List,
    /// The runnable list.
    pub runnable: List,
    /// The waiter list.
    pub waiting: List,
    /// Where the part of the runnable list that was signalled ends, NOBODY if there is none.
    signalled_tail: WorkerId,
    head_inserts: u32,
    head_inserts_max: u32,
    count: usize,
}

impl<S> Workers<S> {
    /// No workers yet. `head_inserts_max` of 0 makes the runnable list plain FIFO.
    pub fn new(head_inserts_max: u32, standby: &'static Party) -> Workers<S> {
        Workers {
            slots: vec![Worker::new(standby, None, 0)],
            free: Vec::new(),
            idle: List::new(),
            runnable: List::new(),
            waiting: List::new(),
            signalled_tail: NOBODY,
            head_inserts: 0,
            head_inserts_max,
            count: 0,
        }
    }

    /// How many workers there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// What is wrong with the lists, if anything (One List).
    #[cfg(feature = "sim")]
    pub fn check(&self) -> Result<(), String> {
        let mut on_lists = 0;
        let lists = [
            (self.idle, State::Idle),
            (self.runnable, State::Runnable),
            (self.waiting, State::Waiting),
        ];
        for (list, state) in lists {
            let (mut at, mut before, mut len) = (list.head, NOBODY, 0);
            while at != NOBODY {
                let worker = &self.slots[at as usize];
                if worker.seat.is_none() || worker.state != state || worker.prev != before {
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
        let is_listed =
            |w: &Worker<S>| matches!(w.state, State::Idle | State::Runnable | State::Waiting);
        let living = || self.slots[1..].iter().filter(|w| w.seat.is_some());
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
        Ok(())
    }

    /// How many workers are in this state.
    #[cfg(feature = "sim")]
    pub fn in_state(&self, state: State) -> usize {
        self.slots[1..].iter().filter(|w| w.seat.is_some() && w.state == state).count()
    }

    /// The number that the next worker will get.
    pub fn next_id(&self) -> WorkerId {
        self.free.last().copied().unwrap_or(self.slots.len() as WorkerId)
    }

    /// Adds a worker with the number that [`Workers::next_id`] gave.
    pub fn add(&mut self, party: &'static Party, seat: S, now: u64) -> WorkerId {
        let worker = Worker::new(party, Some(seat), now);
        let id = self.free.pop().unwrap_or(self.slots.len() as WorkerId);
        if id as usize == self.slots.len() {
            self.slots.push(worker);
        } else {
            self.slots[id as usize] = worker;
        }
        self.count += 1;
        id
    }

    /// Takes a retired worker out.
    pub fn remove(&mut self, id: WorkerId) -> (&'static Party, S) {
        let worker = &mut self.slots[id as usize];
        assert_eq!(worker.state, State::Retired, "only who is retired is taken out");
        let seat = worker.seat.take().expect("a worker is removed once");
        self.free.push(id);
        self.count -= 1;
        (worker.party, seat)
    }

    /// The worker of this number, or the standby. Numbers come from lists and parties, which name
    /// only living workers; that one which is not there does nothing is seen by its state.
    ///
    /// # Panics
    /// When there never was one.
    #[inline]
    pub fn get(&mut self, id: WorkerId) -> &mut Worker<S> {
        let worker = &mut self.slots[id as usize];
        debug_assert!(id == STANDBY || worker.seat.is_some(), "a number names a living worker");
        worker
    }

    /// The party of a worker with this number, if there is one.
    pub fn find(&self, id: WorkerId) -> Option<&'static Party> {
        let worker = self.slots.get(id as usize).filter(|_| id != STANDBY)?;
        worker.seat.is_some().then_some(worker.party)
    }

    /// Moves a worker from one state to another, and so from list to list. New entries go to the
    /// tail; `wake` is the exception for signalled workers.
    #[inline]
    pub fn shift(&mut self, id: WorkerId, from: State, to: State, now: u64) {
        self.unlink(id, from);
        self.enter(id, to, now);
        match to {
            State::Runnable => self.push_back(Which::Runnable, id),
            State::Waiting => self.push_back(Which::Waiting, id),
            State::Idle => self.push_back(Which::Idle, id),
            _ => {}
        }
    }

    /// Makes a signalled or home-coming worker runnable: ahead of those that merely yielded, in
    /// the order of signals, but at most `head_inserts_max` times in a row (B9).
    pub fn wake(&mut self, id: WorkerId, now: u64) {
        let from = self.get(id).state;
        assert!(
            matches!(from, State::Waiting | State::Preemptive),
            "a worker that is {from:?} was woken"
        );
        self.unlink(id, from);
        self.enter(id, State::Runnable, now);
        self.get(id).waited = true;
        if self.head_inserts >= self.head_inserts_max {
            self.head_inserts = 0;
            self.push_back(Which::Runnable, id);
            return;
        }
        self.head_inserts += 1;
        let after = self.signalled_tail;
        self.signalled_tail = id;
        self.insert_after(after, id);
    }

    /// A yield: the first runnable worker becomes Running, and the yielder takes the last place.
    /// Gives the first, and whether it comes from a wait; None: nobody is runnable, and the yielder
    /// stays what it is. Both moves in one, because
    /// this is what a busy scheduler does most.
    #[inline]
    pub fn rotate(&mut self, yielder: WorkerId) -> Option<(WorkerId, bool)> {
        let next = self.runnable.head;
        if next == NOBODY {
            return None;
        }
        let worker = self.get(next);
        assert_eq!(worker.state, State::Runnable, "the runnable list holds runnable workers");
        let (second, since, waited) = (worker.next, worker.since, worker.waited);
        worker.next = NOBODY;
        worker.put(State::Running, since);
        self.passes_the_head(next, NOBODY);
        let last = if second == NOBODY {
            self.runnable.head = yielder;
            NOBODY
        } else {
            self.runnable.head = second;
            self.get(second).prev = NOBODY;
            let last = self.runnable.tail;
            self.get(last).next = yielder;
            last
        };
        self.runnable.tail = yielder;
        let worker = self.get(yielder);
        assert_eq!(worker.state, State::Running, "who yields runs");
        worker.prev = last;
        // Not the clock: nobody compares this time until a request is queued, and then the next
        // yield takes the path that reads it.
        worker.put(State::Runnable, since);
        Some((next, waited))
    }

    /// A worker leaves the runnable list: keeps count of B9's head insertions.
    #[inline]
    fn passes_the_head(&mut self, id: WorkerId, prev: WorkerId) {
        if self.signalled_tail == id {
            self.signalled_tail = prev;
        } else if self.signalled_tail == NOBODY {
            // One that merely yielded gets its turn: the run of head insertions is over.
            self.head_inserts = 0;
        }
    }

    /// The runnable worker that is next, without taking it.
    pub fn next_runnable(&self) -> Option<WorkerId> {
        (self.runnable.head != NOBODY).then_some(self.runnable.head)
    }

    #[inline]
    fn enter(&mut self, id: WorkerId, to: State, now: u64) {
        self.get(id).put(to, now);
    }

    #[inline]
    fn unlink(&mut self, id: WorkerId, from: State) {
        let worker = self.get(id);
        assert_eq!(worker.state, from, "worker {id} moves from a state that it is not in");
        let which = match from {
            State::Runnable => Which::Runnable,
            State::Waiting => Which::Waiting,
            State::Idle => Which::Idle,
            _ => return,
        };
        let (prev, next) = (worker.prev, worker.next);
        (worker.prev, worker.next) = (NOBODY, NOBODY);
        if which == Which::Runnable {
            self.passes_the_head(id, prev);
        }
        match prev {
            NOBODY => self.list(which).head = next,
            p => self.get(p).next = next,
        }
        match next {
            NOBODY => self.list(which).tail = prev,
            n => self.get(n).prev = prev,
        }
        self.list(which).len -= 1;
    }

    #[inline]
    fn push_back(&mut self, which: Which, id: WorkerId) {
        let tail = self.list(which).tail;
        self.get(id).prev = tail;
        match tail {
            NOBODY => self.list(which).head = id,
            t => self.get(t).next = id,
        }
        let list = self.list(which);
        list.tail = id;
        list.len += 1;
    }

    fn insert_after(&mut self, after: WorkerId, id: WorkerId) {
        let next = match after {
            NOBODY => self.runnable.head,
            a => self.get(a).next,
        };
        let worker = self.get(id);
        (worker.prev, worker.next) = (after, next);
        match after {
            NOBODY => self.runnable.head = id,
            a => self.get(a).next = id,
        }
        match next {
            NOBODY => self.runnable.tail = id,
            n => self.get(n).prev = id,
        }
        self.runnable.len += 1;
    }

    #[inline]
    fn list(&mut self, which: Which) -> &mut List {
        match which {
            Which::Idle => &mut self.idle,
            Which::Runnable => &mut self.runnable,
            Which::Waiting => &mut self.waiting,
        }
    }

    /// The numbers on a list, front to back.
    #[cfg(any(test, feature = "fuzz"))]
    pub fn on(&mut self, list: List) -> Vec<WorkerId> {
        let (mut at, mut out) = (list.head, Vec::new());
        while at != NOBODY {
            out.push(at);
            at = self.get(at).next;
        }
        assert_eq!(out.len(), list.len as usize);
        out
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Which {
    Idle,
    Runnable,
    Waiting,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// Workers 1..=n, all idle.
    fn idle(n: u32, head_inserts_max: u32) -> Workers<()> {
        let mut workers =
            Workers::new(head_inserts_max, Party::take(std::ptr::null_mut(), STANDBY));
        for id in 1..=n {
            let party = Party::take(std::ptr::null_mut(), id);
            assert_eq!(workers.add(party, (), 0), id);
            workers.shift(id, State::New, State::Idle, 0);
        }
        workers
    }

    fn waiting(n: u32, head_inserts_max: u32) -> Workers<()> {
        let mut workers = idle(n, head_inserts_max);
        for id in 1..=n {
            workers.shift(id, State::Idle, State::Running, 0);
            workers.shift(id, State::Running, State::Waiting, 0);
        }
        workers
    }

    fn yielders(workers: &mut Workers<()>, ids: impl IntoIterator<Item = u32>) {
        for id in ids {
            workers.shift(id, State::Waiting, State::Running, 0);
            workers.shift(id, State::Running, State::Runnable, 0);
        }
    }

    #[test]
    fn signalled_workers_run_before_those_that_yielded_in_the_order_of_signals_b9() {
        let mut workers = waiting(5, 1000);
        yielders(&mut workers, [4, 5]);
        (1..=3).for_each(|id| workers.wake(id, 0));
        assert_eq!(workers.on(workers.runnable), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn after_the_cap_a_signalled_worker_goes_to_the_tail_b9() {
        let mut workers = waiting(5, 2);
        yielders(&mut workers, [5]);
        (1..=4).for_each(|id| workers.wake(id, 0));
        // The third in a row goes to the tail; the count starts again with the fourth.
        assert_eq!(workers.on(workers.runnable), [1, 2, 4, 5, 3]);
    }

    #[test]
    fn a_plain_fifo_list_has_no_head_insertions_rule_15() {
        let mut workers = waiting(4, 0);
        yielders(&mut workers, [4]);
        (1..=3).for_each(|id| workers.wake(id, 0));
        assert_eq!(workers.on(workers.runnable), [4, 1, 2, 3]);
    }

    #[test]
    #[should_panic(expected = "was woken")]
    fn waking_a_worker_that_does_not_wait_is_refused_u20() {
        idle(1, 1000).wake(1, 0);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Start,
        Wait,
        Yield,
        Finish,
        Wake(usize),
        Next,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Start),
            Just(Step::Wait),
            Just(Step::Yield),
            Just(Step::Finish),
            (0..8usize).prop_map(Step::Wake),
            Just(Step::Next),
        ]
    }

    proptest! {
        /// One List: whatever happens, each worker is on the list that its state says, once, and
        /// the lists agree with a model of plain queues.
        #[test]
        fn each_worker_is_on_the_list_that_its_state_says_u20(
            steps in prop::collection::vec(step(), 0..400),
        ) {
            let mut workers = idle(8, 3);
            let mut model_waiting: VecDeque<u32> = VecDeque::new();
            let mut current: Option<u32> = None;
            for step in steps {
                match (step, current) {
                    (Step::Start, None) if workers.idle.len > 0 => {
                        let id = workers.idle.tail;
                        workers.shift(id, State::Idle, State::Running, 0);
                        current = Some(id);
                    }
                    (Step::Wait, Some(id)) => {
                        workers.shift(id, State::Running, State::Waiting, 0);
                        model_waiting.push_back(id);
                        current = None;
                    }
                    (Step::Yield, Some(id)) => {
                        workers.shift(id, State::Running, State::Runnable, 0);
                        current = None;
                    }
                    (Step::Finish, Some(id)) => {
                        workers.shift(id, State::Running, State::Idle, 0);
                        current = None;
                    }
                    (Step::Wake(at), _) if at < model_waiting.len() => {
                        let id = model_waiting.remove(at).unwrap();
                        workers.wake(id, 0);
                    }
                    (Step::Next, None) => {
                        if let Some(id) = workers.next_runnable() {
                            workers.shift(id, State::Runnable, State::Running, 0);
                            current = Some(id);
                        }
                    }
                    _ => {}
                }
                let lists = [workers.idle, workers.runnable, workers.waiting];
                let on: Vec<Vec<u32>> = lists.into_iter().map(|l| workers.on(l)).collect();
                prop_assert_eq!(on.iter().map(Vec::len).sum::<usize>() + usize::from(current.is_some()), 8);
                let states = [State::Idle, State::Runnable, State::Waiting];
                for (ids, state) in on.iter().zip(states) {
                    for id in ids {
                        prop_assert_eq!(workers.get(*id).state, state);
                    }
                }
                prop_assert_eq!(&on[2], &Vec::from(model_waiting.clone()));
            }
        }
    }
}
