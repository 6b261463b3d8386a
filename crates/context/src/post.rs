//! A post: how a context's own kernel thread tells other threads that the context is saved (*Saved
//! First*).
//!
//! It is sent by a few instructions that use neither stack nor thread-locals, so it can be one of
//! two things only:
//!
//! * an *event*: a futex word, `0` unset, `1` set, `2` a thread sleeps on it. Set by an exchange; a
//!   sleeper is woken.
//! * a *list*: a stack of nodes that many push and one takes whole, and a flag beside it that says
//!   whether the taker sleeps on an eventfd. The push is a compare-and-swap, which is also the
//!   fence before the look at the flag. The thread that exchanges a true flag for false writes the
//!   eventfd.
//!
//! Another thread may resume the context, and free the post, the moment it is sent, so the sender
//! reads all of the post before.

use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::ptr::{from_ref, null};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};

/// A notification that a context is saved. `'a` is the lifetime of what it points to, which lives
/// as long as any thread may read it.
#[derive(Debug)]
#[repr(C)]
pub struct Post<'a> {
    /// The event, or null if it is a list.
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

    /// Returns the word that its sending changes.
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
