//! Operations that wait for a descriptor, in queues, and found by token.
//!
//! ```text
//!   OpQueue (one per side of a descriptor)     Waiting (one per driver)
//!   first ----> token 7 <-> token 3 <-> token 9 <---- last
//! ```
//!
//! An [`OpQueue`] is a first-in first-out queue whose links are tokens. So any operation can leave
//! its queue in constant time, and the queue of a descriptor without waiting operations costs two
//! words. All code here is safe.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::RawFd;

use crate::os::driver::LiveOp;

/// A map with tokens as keys. The scheduler chooses the tokens, so no attacker can make them
/// collide.
pub type TokenMap<V> = HashMap<u64, V, BuildHasherDefault<TokenHasher>>;

/// A map with the numbers of descriptors as keys.
pub type DescriptorMap<V> = HashMap<RawFd, V, BuildHasherDefault<TokenHasher>>;

/// A hash function: one multiplication.
#[derive(Debug, Default)]
pub struct TokenHasher(u64);

impl Hasher for TokenHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_i32(&mut self, n: i32) {
        self.write_u64(n as u64);
    }

    fn write_u64(&mut self, n: u64) {
        // The map takes its index from the low bits and its tag from the high ones, so this folds
        // them.
        let mixed = (self.0 ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

const NONE: u64 = u64::MAX;

/// A queue of operations, whose links are in a [`Waiting`].
#[derive(Debug, Clone, Copy)]
pub struct OpQueue {
    first: u64,
    last: u64,
}

impl OpQueue {
    /// Makes an empty queue.
    pub const fn new() -> OpQueue {
        OpQueue { first: NONE, last: NONE }
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.first == NONE
    }

    /// Returns the token that has waited longest.
    pub fn first(&self) -> Option<u64> {
        (self.first != NONE).then_some(self.first)
    }
}

#[derive(Debug)]
struct Node {
    op: LiveOp<'static>,
    before: u64,
    after: u64,
}

/// All waiting operations of one driver, by token.
#[derive(Debug, Default)]
pub struct Waiting {
    nodes: TokenMap<Node>,
}

impl Waiting {
    /// Returns how many operations wait.
    #[cfg_attr(not(test), allow(dead_code))] // For `pending`, which the tests ask.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns whether no operation waits.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the operation that waits under this token.
    pub fn get(&mut self, token: u64) -> Option<&mut LiveOp<'static>> {
        self.nodes.get_mut(&token).map(|node| &mut node.op)
    }

    /// Puts an operation at the end of a queue.
    ///
    /// # Panics
    ///
    /// If the token is already waiting, because it would complete twice.
    pub fn push(&mut self, queue: &mut OpQueue, token: u64, op: LiveOp<'static>) {
        let node = Node { op, before: queue.last, after: NONE };
        assert!(self.nodes.insert(token, node).is_none(), "token {token} is already pending");
        match self.nodes.get_mut(&queue.last) {
            Some(last) => last.after = token,
            None => queue.first = token,
        }
        queue.last = token;
    }

    /// Takes an operation out of its queue.
    ///
    /// # Panics
    ///
    /// If the token does not wait. The caller must check that first.
    pub fn remove(&mut self, queue: &mut OpQueue, token: u64) -> LiveOp<'static> {
        let node = self.nodes.remove(&token).expect("only a waiting token is removed");
        match self.nodes.get_mut(&node.before) {
            Some(before) => before.after = node.after,
            None => queue.first = node.after,
        }
        match self.nodes.get_mut(&node.after) {
            Some(after) => after.before = node.before,
            None => queue.last = node.before,
        }
        node.op
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::driver::Side;

    fn tokens(waiting: &Waiting, queue: OpQueue) -> Vec<u64> {
        let mut seen = Vec::new();
        let mut at = queue.first;
        while at != NONE {
            seen.push(at);
            at = waiting.nodes[&at].after;
        }
        assert_eq!(seen.last().copied().unwrap_or(NONE), queue.last);
        seen
    }

    #[test]
    fn a_line_keeps_the_order_of_arrival_when_any_operation_leaves() {
        for leaver in [0, 1, 2, 3] {
            let (mut waiting, mut queue) = (Waiting::default(), OpQueue::new());
            for token in 0..4 {
                waiting.push(&mut queue, token, LiveOp::poll(0, Side::In));
            }
            waiting.remove(&mut queue, leaver);
            let rest: Vec<u64> = (0..4).filter(|&t| t != leaver).collect();
            assert_eq!(tokens(&waiting, queue), rest);
            for token in rest {
                assert_eq!(queue.first(), Some(token));
                waiting.remove(&mut queue, token);
            }
            assert!(queue.is_empty() && waiting.is_empty() && queue.last == NONE);
        }
    }

    #[test]
    #[should_panic(expected = "already pending")]
    fn a_token_cannot_wait_twice() {
        let (mut waiting, mut queue) = (Waiting::default(), OpQueue::new());
        waiting.push(&mut queue, 5, LiveOp::poll(0, Side::In));
        waiting.push(&mut queue, 5, LiveOp::poll(0, Side::In));
    }
}
