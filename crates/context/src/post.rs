//! A post: the notification by which a context's own kernel thread tells other threads that the
//! context is saved (**One Place**).
//!
//! Because the instructions that send a post may use neither stack nor thread-locals, there are two
//! kinds of post only:
//!
//! * An *event* is a futex word: `0` unset, `1` set, `2` a thread sleeps on it. Sending exchanges
//!   the word for `1`, and wakes the sleeper if there is one.
//! * A *list* is a stack of nodes onto which many threads push and from which one thread, the
//!   taker, takes all. A flag beside it says whether the taker sleeps on an eventfd. Sending pushes
//!   a node by compare-and-swap, which is also the fence before the flag is read. The thread that
//!   exchanges a true flag for false writes the eventfd.
//!
//! As soon as the post is sent, another thread may resume the context and free the post. So the
//! sender reads all fields of the post before.

use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::ptr::{from_ref, null};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};

/// A notification that a context is saved. `'a` is the lifetime of the event or list that it points
/// to; these live as long as any thread may read them.
#[derive(Debug)]
#[repr(C)]
pub struct Post<'a> {
    /// The event's word, or null if the post is a list.
    pub(crate) event: *const u32,
    pub(crate) head: *const (),
    pub(crate) node: *const (),
    pub(crate) link: *const (),
    pub(crate) asleep: *const bool,
    pub(crate) bell: RawFd,
    lives: PhantomData<&'a ()>,
}

impl<'a> Post<'a> {
    /// Returns a post that sets this event.
    pub fn event(word: &'a AtomicU32) -> Post<'a> {
        let nothing = null();
        Post {
            event: word.as_ptr(),
            head: nothing,
            node: nothing,
            link: nothing,
            asleep: null(),
            bell: -1,
            lives: PhantomData,
        }
    }

    /// Returns the address of the word that sending the post changes.
    pub(crate) fn word(&self) -> *const () {
        if self.event.is_null() { self.head } else { self.event.cast() }
    }

    /// Returns a post that pushes `node`, whose link is `link`, onto the list, and writes the
    /// eventfd `bell` if the taker of the list sleeps.
    pub fn list<T>(
        head: &'a AtomicPtr<T>,
        node: &'a T,
        link: &'a AtomicPtr<T>,
        asleep: &'a AtomicBool,
        bell: RawFd,
    ) -> Post<'a> {
        Post {
            event: null(),
            head: from_ref(head).cast(),
            node: from_ref(node).cast(),
            link: from_ref(link).cast(),
            asleep: asleep.as_ptr(),
            bell,
            lives: PhantomData,
        }
    }
}
