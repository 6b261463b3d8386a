//! The objects that can be waited for: events, semaphores, mutexes, threads, completion lists.
//!
//! Each object has an eventfd, and the kernel's count in it is the object's state. An object is
//! signalled while its descriptor is readable. A successful wait *takes* the object:
//!
//! ```text
//!   object            | taking it                | signalled by
//!   event, manual     | changes nothing          | SetEvent
//!   event, automatic  | resets the count         | SetEvent
//!   completion list   | resets the count         | a worker that is queued to an empty list
//!   semaphore         | reads one                | ReleaseSemaphore
//!   mutex             | reads the one token      | ReleaseMutex
//!   thread            | changes nothing          | the thread's end
//! ```

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use super::error::ERROR_NOT_ENOUGH_MEMORY;
use super::pthread::{Thread, this_thread};
use super::system::{eventfd, is_readable, signal, take};

/// An event.
pub struct Event {
    pub(super) fd: OwnedFd,
    pub(super) manual: bool,
}

impl Event {
    /// Creates an event.
    pub fn new(manual: bool, set: bool) -> Result<Event, u32> {
        Ok(Event { fd: eventfd(set.into(), 0)?, manual })
    }
}

/// A semaphore.
pub struct Semaphore {
    pub(super) fd: OwnedFd,
    pub(super) count: AtomicI64,
    pub(super) max: i64,
}

/// A mutex, which its owner can lock several times.
pub struct Mutex {
    pub(super) fd: OwnedFd,
    pub(super) owner: AtomicU32,
    pub(super) depth: AtomicU32,
}

/// The object behind a handle.
pub enum KernelObject {
    /// An event.
    Event(Event),
    /// A semaphore.
    Semaphore(Arc<Semaphore>),
    /// A mutex.
    Mutex(Arc<Mutex>),
    /// A thread.
    Thread(Arc<Thread>),
    /// The event of a completion list.
    List(OwnedFd),
}

impl KernelObject {
    /// Returns the same object once more, for another handle. Both descriptors of an event share
    /// the kernel's count.
    pub(super) fn duplicate(&self) -> Result<KernelObject, u32> {
        let again = |fd: &OwnedFd| fd.try_clone().map_err(|_| ERROR_NOT_ENOUGH_MEMORY);
        Ok(match self {
            KernelObject::Event(event) => {
                KernelObject::Event(Event { fd: again(&event.fd)?, manual: event.manual })
            }
            KernelObject::List(fd) => KernelObject::List(again(fd)?),
            KernelObject::Semaphore(semaphore) => KernelObject::Semaphore(semaphore.clone()),
            KernelObject::Mutex(mutex) => KernelObject::Mutex(mutex.clone()),
            KernelObject::Thread(thread) => KernelObject::Thread(thread.clone()),
        })
    }

    /// Returns the descriptor that is readable while the object is signalled.
    pub(super) fn fd(&self) -> Result<RawFd, u32> {
        match self {
            KernelObject::Event(event) => Ok(event.fd.as_raw_fd()),
            KernelObject::Semaphore(semaphore) => Ok(semaphore.fd.as_raw_fd()),
            KernelObject::Mutex(mutex) => Ok(mutex.fd.as_raw_fd()),
            KernelObject::List(fd) => Ok(fd.as_raw_fd()),
            KernelObject::Thread(thread) => thread.signal(),
        }
    }

    /// Takes the object if it is signalled. Returns false if it is not.
    pub(super) fn take(&self) -> bool {
        match self {
            KernelObject::Event(Event { fd, manual: true }) => is_readable(fd.as_raw_fd()),
            KernelObject::Event(Event { fd, .. }) | KernelObject::List(fd) => take(fd.as_raw_fd()),
            KernelObject::Thread(thread) => thread.has_ended(),
            KernelObject::Semaphore(semaphore) => {
                let taken = take(semaphore.fd.as_raw_fd());
                semaphore.count.fetch_sub(taken.into(), Ordering::AcqRel);
                taken
            }
            KernelObject::Mutex(mutex) => {
                let me = this_thread();
                let mine = mutex.owner.load(Ordering::Relaxed) == me;
                if !mine && !take(mutex.fd.as_raw_fd()) {
                    return false;
                }
                mutex.owner.store(me, Ordering::Relaxed);
                mutex.depth.fetch_add(1, Ordering::Relaxed);
                true
            }
        }
    }

    /// Returns true if a call of `take` would have succeeded at some moment during this call.
    pub(super) fn is_signalled(&self) -> bool {
        match self {
            KernelObject::Thread(thread) => thread.has_ended(),
            KernelObject::Mutex(mutex) if mutex.owner.load(Ordering::Relaxed) == this_thread() => {
                true
            }
            other => other.fd().is_ok_and(is_readable),
        }
    }

    /// Undoes a `take`.
    pub(super) fn put_back(&self) {
        match self {
            KernelObject::Event(Event { manual: true, .. }) | KernelObject::Thread(_) => {}
            KernelObject::Event(Event { fd, .. }) | KernelObject::List(fd) => {
                signal(fd.as_raw_fd(), 1)
            }
            KernelObject::Semaphore(semaphore) => {
                semaphore.count.fetch_add(1, Ordering::AcqRel);
                signal(semaphore.fd.as_raw_fd(), 1);
            }
            KernelObject::Mutex(mutex) => mutex.release(),
        }
    }
}

impl Mutex {
    /// Undoes one acquisition of the mutex. The caller must own the mutex.
    pub(super) fn release(&self) {
        if self.depth.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.owner.store(0, Ordering::Relaxed);
            signal(self.fd.as_raw_fd(), 1);
        }
    }
}
