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

use crate::wait::{COMPLETED, Ticket};

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
    completion: Completion,
}

/// The outstanding requests of one scheduler.
pub(crate) struct IoList {
    slots: Slab<Slot>,
    generation: u32,
}

impl IoList {
    /// Makes an empty list.
    pub fn new() -> IoList {
        IoList { slots: Slab::new(), generation: 0 }
    }

    /// Puts a request on the list; returns its token, which is never 0 and has no bit
    /// [`COMPLETED`].
    pub fn insert(&mut self, completion: Completion) -> u64 {
        self.generation = (self.generation + 1) % (COMPLETED >> 32) as u32;
        self.generation = self.generation.max(1);
        let generation = self.generation;
        u64::from(generation) << 32 | self.slots.insert(Slot { generation, completion }) as u64
    }

    /// Takes the request with this token off the list, because the driver has completed it, and
    /// returns what to do now.
    pub fn complete(&mut self, token: u64) -> Option<Completion> {
        let at = self.find(token)?;
        Some(self.slots.remove(at).completion)
    }

    /// Returns whether this request is still outstanding.
    pub fn is_outstanding(&self, token: u64) -> bool {
        self.find(token).is_some()
    }

    /// Returns how many requests the operating system still works on.
    pub fn outstanding(&self) -> usize {
        self.slots.len()
    }

    /// Returns the tokens of all outstanding requests.
    pub fn tokens(&self) -> Vec<u64> {
        let token = |(at, slot): (usize, &Slot)| u64::from(slot.generation) << 32 | at as u64;
        self.slots.iter().map(token).collect()
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
        let Some(Completion::Call(routine)) = list.complete(token) else {
            panic!("the routine comes back")
        };
        assert_eq!((list.outstanding(), list.is_outstanding(token)), (0, false));
        routine(7);
        assert!(list.complete(token).is_none(), "a routine is handed out once");
    }

    #[test]
    fn a_token_of_an_ended_request_finds_nothing_u62() {
        let mut list = IoList::new();
        let first = list.insert(Completion::Call(Box::new(|_| {})));
        assert!(list.complete(first).is_some());
        let second = list.insert(Completion::Call(Box::new(|_| {})));
        assert_ne!(first, second);
        assert!(!list.is_outstanding(first) && list.is_outstanding(second));
        assert_eq!(list.tokens(), [second]);
    }

    #[test]
    fn a_token_is_never_0_and_never_looks_like_a_result() {
        let last = (COMPLETED >> 32) as u32 - 1;
        let mut list = IoList { slots: Slab::new(), generation: last - 1 };
        for generation in [last, 1, 2] {
            let token = list.insert(Completion::Call(Box::new(|_| {})));
            assert_eq!((token >> 32, token & COMPLETED), (u64::from(generation), 0));
        }
    }
}
