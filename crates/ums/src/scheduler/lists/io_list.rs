//! The I/O list: requests that the operating system has not completed yet.
//!
//! A request is a slot with a *token*; the driver gets only the token. When the driver reports that
//! the operation of a token is done, the request leaves the list **first**. Then its completion is
//! returned to the caller, which acts on it: lists never call the scheduler (rule 15 of
//! ARCHITECTURE.md). The driver finds completions in a ring, so a look costs the number of
//! completed requests, not of outstanding ones.
//!
//! Tokens contain a generation, so a late cancellation of a request that has ended finds nothing.

use slab::Slab;

use crate::wait::Ticket;

/// The argument of a completion routine: the byte count or file descriptor, or a negative `errno`.
pub(crate) type IoResult = i32;

/// A routine that runs once, on the stack of the worker that does the turn.
pub(crate) type CompletionRoutine = Box<dyn FnOnce(IoResult) + Send>;

/// What to do when the request has completed.
pub(crate) enum Completion {
    /// Wake the worker that waits for the request.
    Wake(Ticket),
    /// Call this routine.
    Call(CompletionRoutine),
}

struct Slot {
    generation: u32,
    /// None once the request has completed, while the result waits for its worker.
    completion: Option<Completion>,
    result: IoResult,
}

/// The outstanding requests of one scheduler.
pub(crate) struct IoList {
    slots: Slab<Slot>,
    generation: u32,
    outstanding: usize,
}

impl IoList {
    /// Makes an empty list.
    pub fn new() -> IoList {
        IoList { slots: Slab::new(), generation: 0, outstanding: 0 }
    }

    /// Puts a request on the list; returns its token, which is never 0.
    pub fn insert(&mut self, completion: Completion) -> u64 {
        self.generation = self.generation.wrapping_add(1).max(1);
        let generation = self.generation;
        let slot = Slot { generation, completion: Some(completion), result: 0 };
        self.outstanding += 1;
        u64::from(generation) << 32 | self.slots.insert(slot) as u64
    }

    /// Takes the request with this token off the list, because the driver has completed it, and
    /// returns what to do now. A worker that waits for it fetches the result with `take_result`.
    pub fn complete(&mut self, token: u64, result: IoResult) -> Option<Completion> {
        let at = self.find(token)?;
        let slot = &mut self.slots[at];
        let completion = slot.completion.take()?;
        self.outstanding -= 1;
        match completion {
            Completion::Wake(_) => slot.result = result,
            Completion::Call(_) => drop(self.slots.remove(at)),
        }
        Some(completion)
    }

    /// Takes the result of a completed request, for the worker that waited for it.
    ///
    /// # Panics
    /// Panics if the request is still outstanding: its worker must not run before (rule 10 of
    /// ARCHITECTURE.md).
    pub fn take_result(&mut self, token: u64) -> IoResult {
        let at = self.find(token).expect("the result of an I/O request is taken once");
        let slot = self.slots.remove(at);
        assert!(slot.completion.is_none(), "a worker ran while its I/O request was outstanding");
        slot.result
    }

    /// Returns whether this request is still outstanding.
    pub fn is_outstanding(&self, token: u64) -> bool {
        self.find(token).is_some_and(|at| self.slots[at].completion.is_some())
    }

    /// Returns how many requests the operating system still works on.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Returns the tokens of all outstanding requests.
    pub fn tokens(&self) -> Vec<u64> {
        let outstanding = self.slots.iter().filter(|(_, s)| s.completion.is_some());
        outstanding.map(|(at, s)| u64::from(s.generation) << 32 | at as u64).collect()
    }

    fn find(&self, token: u64) -> Option<usize> {
        let at = (token & 0xFFFF_FFFF) as usize;
        let slot = self.slots.get(at)?;
        (u64::from(slot.generation) == token >> 32).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completed_request_leaves_the_list_before_its_routine_runs_u63() {
        let mut list = IoList::new();
        let token = list.insert(Completion::Call(Box::new(|_| {})));
        assert!(list.is_outstanding(token));
        let Some(Completion::Call(routine)) = list.complete(token, 7) else {
            panic!("the routine comes back")
        };
        assert_eq!((list.outstanding(), list.is_outstanding(token)), (0, false));
        routine(7);
        assert!(list.complete(token, 7).is_none(), "a routine is handed out once");
    }

    #[test]
    fn a_token_of_an_ended_request_finds_nothing_u62() {
        let mut list = IoList::new();
        let first = list.insert(Completion::Call(Box::new(|_| {})));
        assert!(list.complete(first, 0).is_some());
        let second = list.insert(Completion::Call(Box::new(|_| {})));
        assert_ne!(first, second);
        assert!(!list.is_outstanding(first) && list.is_outstanding(second));
        assert_eq!(list.tokens(), [second]);
    }
}
