//! An atomic reference to what is never freed.
//!
//! Waiters, rings of events, watched threads and events are never freed, only used again. Other
//! threads reach them by a pointer that may be a little old; they find by a word in the object that
//! they are late.
//!
//! Named invariant **Type Stable**: an [`AtomicRef`] holds null or what was made from a `&'static
//! T`, and hands out the same.
//!
//! What this file does not do: words with a mark in their low bits, and the accesses that a model
//! looks at (`os/atomic.rs`).

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

/// An `Option<&'static T>` that threads share. As a pointer in memory, null for None.
#[derive(Debug)]
#[repr(transparent)]
pub struct AtomicRef<T: 'static> {
    at: AtomicPtr<T>,
    to: PhantomData<&'static T>,
}

fn pointer<T>(to: Option<&'static T>) -> *mut T {
    to.map_or(null_mut(), |to| from_ref(to).cast_mut())
}

impl<T> AtomicRef<T> {
    /// Makes one that refers to nothing.
    pub const fn new() -> AtomicRef<T> {
        AtomicRef { at: AtomicPtr::new(null_mut()), to: PhantomData }
    }

    /// Returns what it refers to.
    #[inline]
    pub fn load(&self, order: Ordering) -> Option<&'static T> {
        // SAFETY: Type Stable: null, or from a `&'static T`.
        unsafe { self.at.load(order).as_ref() }
    }

    /// Makes it refer to this.
    #[inline]
    pub fn store(&self, to: Option<&'static T>, order: Ordering) {
        self.at.store(pointer(to), order);
    }

    /// Makes it refer to nothing, if it refers to this.
    pub fn clear_if(&self, it: &'static T, success: Ordering) -> bool {
        let it = pointer(Some(it));
        self.at.compare_exchange(it, null_mut(), success, Ordering::Relaxed).is_ok()
    }

    /// Puts this before what it refers to: `link` stores that in the new head.
    pub fn push(&self, it: &'static T, link: impl Fn(Option<&'static T>)) {
        let mut before = self.load(Ordering::Relaxed);
        loop {
            link(before);
            let (old, new) = (pointer(before), pointer(Some(it)));
            match self.at.compare_exchange_weak(old, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(_) => before = self.load(Ordering::Relaxed),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::SeqCst;

    struct Node(u32, AtomicRef<Node>);

    #[test]
    fn a_reference_is_what_was_stored_and_a_list_has_the_last_first() {
        static NODES: [Node; 2] = [Node(1, AtomicRef::new()), Node(2, AtomicRef::new())];
        let list = AtomicRef::new();
        assert!(list.load(SeqCst).is_none());
        NODES.iter().for_each(|node| list.push(node, |before| node.1.store(before, SeqCst)));
        let all = std::iter::successors(list.load(SeqCst), |node: &&Node| node.1.load(SeqCst));
        assert_eq!(all.map(|node| node.0).collect::<Vec<_>>(), [2, 1]);
        assert!(!list.clear_if(&NODES[0], SeqCst) && list.clear_if(&NODES[1], SeqCst));
        assert!(list.load(SeqCst).is_none());
    }
}
