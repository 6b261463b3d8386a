//! The completion list: the list of contexts that may be executed again, and its event.
//!
//! A worker that has woken pushes itself, perhaps from inside a signal handler. A scheduler takes
//! all items in one step. So the list is a chain with one atomic head, and no lock. The items are
//! returned oldest first.
//!
//! ```text
//! head -> newest -> .. -> oldest          push: exchange the head, signal if the list was empty
//! take: head := none, reverse the chain
//! first -> second -> .. -> last           next(first): unlink it, return second
//! ```
//!
//! The event is an eventfd, which is reset by reading it. It is signalled when the list stops being
//! empty. If a thread takes the items without waiting for the event, the event stays signalled
//! although the list is empty.
//!
//! The list is generic over its items, so that it depends on no other file of this layer. The items
//! are worker contexts (`context.rs`), which refer to the list that they belong to.
//!
//! Named invariant **Held**: an item in a chain is alive. A worker's thread has a hold on the item
//! until the thread has ended; from then on the chain has that hold. The caller that takes the item
//! out of the chain releases the hold.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

use crate::os::clock;
use crate::os::stderr::keep_standard_descriptors_taken;

/// An item of a completion list. It contains its link.
pub trait Linked: Sized {
    /// Returns the item's link.
    fn link(&self) -> &Link<Self>;

    /// Releases the hold that the chain has on this item. The item was deleted while it was in the
    /// chain.
    ///
    /// # Safety
    /// Held: the caller has just taken the item out of the chain.
    unsafe fn release_deleted(&self);
}

/// The link of one item.
#[derive(Debug)]
pub struct Link<T> {
    /// The next item of its chain.
    next: AtomicPtr<T>,
    /// The item is in a chain.
    pub(super) linked: AtomicBool,
    /// The item's chain was taken out of the list.
    pub(super) taken: AtomicBool,
    /// The item was deleted while it was on the list; the next `take` releases it.
    pub(super) deleted: AtomicBool,
}

impl<T> Link<T> {
    pub(super) fn new() -> Link<T> {
        Link {
            next: AtomicPtr::new(ptr::null_mut()),
            linked: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            deleted: AtomicBool::new(false),
        }
    }
}

/// A completion list.
#[derive(Debug)]
pub struct List<T> {
    head: AtomicPtr<T>,
    event: OwnedFd,
    /// Number of items created with this list that have not been taken out of it after their end.
    pub(super) members: AtomicUsize,
}

impl<T: Linked> List<T> {
    /// Returns an empty list.
    ///
    /// # Errors
    /// The system's error, if it has no file descriptor left for the list's event.
    pub(super) fn new() -> io::Result<List<T>> {
        use rustix::event::{EventfdFlags, eventfd};
        keep_standard_descriptors_taken();
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

    /// Queues an item that is in no chain and whose `linked` is set already.
    pub(super) fn push(&self, item: &T) {
        let link = item.link();
        debug_assert!(link.linked.load(Ordering::Relaxed), "marked before it may be claimed");
        link.taken.store(false, Ordering::Relaxed);
        let item = ptr::from_ref(item).cast_mut();
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            link.next.store(head, Ordering::Relaxed);
            let swapped =
                self.head.compare_exchange_weak(head, item, Ordering::AcqRel, Ordering::Relaxed);
            match swapped {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        // From here on, another scheduler may have taken the item and may be running the worker.
        if head.is_null() {
            self.signal();
        }
    }

    fn signal(&self) {
        // The write fails only if the counter of the eventfd is full; then the event is signalled
        // already.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Takes all items and returns the oldest, which heads their chain. Returns null if there is
    /// none.
    pub(super) fn take(&self) -> *const T {
        let mut rest = self.head.swap(ptr::null_mut(), Ordering::AcqRel);
        let mut first = ptr::null_mut();
        while let Some(item) = deref(rest) {
            let link = item.link();
            let older = link.next.swap(first, Ordering::AcqRel);
            link.taken.store(true, Ordering::Relaxed);
            if link.deleted.load(Ordering::Acquire) {
                rest = older;
                // SAFETY: Held: the chain's hold ends here.
                unsafe { item.release_deleted() };
                continue;
            }
            if first.is_null() {
                // This is the last item of the chain: after it there is no item from which it would
                // be unlinked.
                link.linked.store(false, Ordering::Release);
            }
            first = rest;
            rest = older;
        }
        first
    }

    /// As `take`, but if there is no item, waits for one for at most `timeout_ns` nanoseconds;
    /// `None` waits without a limit. Returns null if the time has passed.
    pub(super) fn take_within(&self, timeout_ns: Option<u64>) -> *const T {
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
            if !self.wait(left) && deadline.is_none_or(|deadline| clock::now() < deadline) {
                // The system refuses to wait.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Waits for the event and resets it. Returns false if the time has passed first. A signal that
    /// interrupts the wait does not end it, nor does another waiter that resets the event first.
    /// Returns false, too, if the system refuses to wait.
    pub(super) fn wait(&self, timeout_ns: Option<u64>) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        use rustix::io::Errno;
        let deadline = timeout_ns.map(|ns| clock::now().saturating_add(ns));
        let span = |ns| Timespec::try_from(Duration::from_nanos(ns)).expect("so few seconds fit");
        loop {
            let left = deadline.map(|deadline| deadline.saturating_sub(clock::now()));
            let timeout = left.map(span);
            let mut ready = [PollFd::new(&self.event, PollFlags::IN)];
            match poll(&mut ready, timeout.as_ref()) {
                Ok(_) if ready[0].revents() == PollFlags::IN && self.reset() => return true,
                // The system refuses waits, or the program has closed the descriptor.
                Err(error) if error != Errno::INTR => return false,
                Ok(_) if ready[0].revents().contains(PollFlags::NVAL) => return false,
                _ if left == Some(0) => return false,
                _ => {}
            }
        }
    }

    /// Resets the event. Returns true if it was signalled.
    pub(super) fn reset(&self) -> bool {
        rustix::io::read(&self.event, &mut [0_u8; 8]).is_ok()
    }
}

/// Takes the first item of a chain out of it and returns the next item. Returns null at the end of
/// the chain, and for an item that is in no chain.
pub(super) fn next<T: Linked>(item: &T) -> *const T {
    let link = item.link();
    let next = link.next.swap(ptr::null_mut(), Ordering::AcqRel);
    link.linked.store(false, Ordering::Release);
    // The next item may be the last one, which was marked as unlinked when the chain was made.
    next
}

fn deref<'a, T>(item: *mut T) -> Option<&'a T> {
    // SAFETY: Held.
    unsafe { item.as_ref() }
}
