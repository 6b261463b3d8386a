//! The completion list: where contexts appear that may be run again, and its event.
//!
//! Pushed by workers that have woken, from inside a signal handler perhaps; taken as a whole by a
//! scheduler. So it is a chain with one atomic head, and no lock. It is handed out oldest first.
//!
//! ```text
//! head -> newest -> .. -> oldest          push: exchange the head; the list was empty: signal the event
//! take: head := none, turn the chain round
//! first -> second -> .. -> last           next(first): unlink it, give second
//! ```
//!
//! The event is an eventfd that is read to reset it: signalled when the list stops being empty. It
//! may be signalled while the list is empty, if somebody took the items without waiting for it.
//!
//! Named invariant **Members**: a context in a chain is alive: a worker's thread holds it until it
//! has ended, and from then on the chain does, until whoever takes it out releases that hold.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::context::Context;
use crate::os::clock;

/// A completion list.
#[derive(Debug)]
pub struct List {
    head: AtomicPtr<Context>,
    event: OwnedFd,
    /// Contexts created with this list whose end nobody has taken out.
    pub(super) members: AtomicUsize,
}

impl List {
    /// An empty list.
    ///
    /// # Errors
    /// No descriptor for its event.
    pub(super) fn new() -> io::Result<List> {
        use rustix::event::{EventfdFlags, eventfd};
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let head = AtomicPtr::new(ptr::null_mut());
        Ok(List { head, event, members: AtomicUsize::new(0) })
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head.load(Ordering::Acquire).is_null()
    }

    /// Queues a context that is in no chain, and is marked as linked already.
    pub(super) fn push(&self, context: &Context) {
        debug_assert!(context.linked.load(Ordering::Relaxed), "marked before it may be claimed");
        context.taken.store(false, Ordering::Relaxed);
        let item = ptr::from_ref(context).cast_mut();
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            context.link.store(head, Ordering::Relaxed);
            let swapped =
                self.head.compare_exchange_weak(head, item, Ordering::AcqRel, Ordering::Relaxed);
            match swapped {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        // From here on the context may be running already.
        if head.is_null() {
            self.signal();
        }
    }

    fn signal(&self) {
        let one = 1_u64;
        // SAFETY: Plain Call: eight bytes of a local. It fails only when the event is signalled
        // already, four billion times over.
        unsafe { libc::write(self.event.as_raw_fd(), ptr::from_ref(&one).cast(), 8) };
    }

    /// Takes everything there is, oldest first; null when there is nothing.
    pub(super) fn take(&self) -> *const Context {
        let mut rest = self.head.swap(ptr::null_mut(), Ordering::AcqRel);
        let mut first = ptr::null_mut();
        while let Some(item) = deref(rest) {
            let older = item.link.swap(first, Ordering::AcqRel);
            item.taken.store(true, Ordering::Relaxed);
            if item.deleted.load(Ordering::Acquire) {
                rest = older;
                // SAFETY: Members: this is the hold of the chain, which is left here.
                unsafe { item.release_system_hold() };
                continue;
            }
            if first.is_null() {
                // The last of the chain: nothing is left to unlink it from.
                item.linked.store(false, Ordering::Release);
            }
            first = rest;
            rest = older;
        }
        first
    }

    /// As `take`, and waits for at most so many nanoseconds for something; None: for ever. Null
    /// when the time is over.
    pub(super) fn take_within(&self, timeout_ns: Option<u64>) -> *const Context {
        let deadline = timeout_ns.map(|ns| clock::now().saturating_add(ns));
        loop {
            let chain = self.take();
            if !chain.is_null() {
                return chain;
            }
            let left = deadline.map(|deadline| deadline.saturating_sub(clock::now()));
            if left == Some(0) {
                return ptr::null();
            }
            self.wait(left);
        }
    }

    /// Waits for the event and resets it. False: the time was over first.
    pub(super) fn wait(&self, timeout_ns: Option<u64>) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let timeout = timeout_ns.map(|ns| Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        });
        let mut ready = [PollFd::new(&self.event, PollFlags::IN)];
        // Interrupted counts as woken for nothing: the caller looks again.
        let woken = poll(&mut ready, timeout.as_ref()).is_ok_and(|n| n > 0);
        woken && self.reset()
    }

    /// Resets the event. True: it was signalled.
    pub(super) fn reset(&self) -> bool {
        rustix::io::read(&self.event, &mut [0_u8; 8]).is_ok()
    }
}

/// Takes the first of a chain out of it and gives the next; null at the end, and for one that is
/// in no chain.
pub(super) fn next(context: &Context) -> *const Context {
    let next = context.link.swap(ptr::null_mut(), Ordering::AcqRel);
    context.linked.store(false, Ordering::Release);
    // The next one may be the last: then it was marked as unlinked when the chain was made.
    next
}

fn deref<'a>(context: *mut Context) -> Option<&'a Context> {
    // SAFETY: Members.
    unsafe { context.as_ref() }
}
