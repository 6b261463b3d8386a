//! Waits: mutex, reader-writer lock, condition variable, event, semaphore and barrier, for workers
//! and for plain threads.
//!
//! Every wait has a time limit (0: do not wait, `UMS_FOREVER`: no limit). Cancelling the caller's
//! work request ends the wait. An object with waiters is in use, so it cannot be freed.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::time::Instant;

use ums::WaitReason;
use ums::lock::Lock;
use ums::sync::{Barrier, Event, RawMutex, RawRwLock, Semaphore, Share, Sleeper, Wait};

use super::fault::{Fault, answer, guard};
use super::node::is_forever;
use super::object::{self, ConstHandle, Handle, discard, give, objects};
use super::options::span;
use crate::caller::Out;

/// A lock that belongs to the worker (or thread) that has locked it; first come, first served.
pub struct ums_mutex {
    _opaque: [u8; 0],
}

/// A lock that several readers may have at the same time, or one writer alone; first come, first
/// served.
pub struct ums_rwlock {
    _opaque: [u8; 0],
}

/// A condition variable.
pub struct ums_condvar {
    _opaque: [u8; 0],
}

/// An event, which any thread may set, and for which many may wait.
pub struct ums_event {
    _opaque: [u8; 0],
}

/// A semaphore; first come, first served.
pub struct ums_semaphore {
    _opaque: [u8; 0],
}

/// A point where a fixed number of callers wait for each other.
pub struct ums_barrier {
    _opaque: [u8; 0],
}

objects! {
    ums_mutex = b"ums mutx": RawMutex;
    ums_rwlock = b"ums rwlk": RawRwLock;
    ums_condvar = b"ums cndv": Lock<VecDeque<Sleeper>>;
    ums_event = b"ums evnt": Event;
    ums_semaphore = b"ums sema": Semaphore;
    ums_barrier = b"ums barr": Barrier;
}

/// Creates a mutex.
#[unsafe(no_mangle)]
pub extern "C" fn ums_mutex_new(mutex: Out<'_, Handle<ums_mutex>>) -> c_int {
    guard(|| give(mutex, RawMutex::new()))
}

/// Frees a mutex. NULL is allowed. -EBUSY: the mutex is locked.
#[unsafe(no_mangle)]
pub extern "C" fn ums_mutex_free(mutex: Handle<ums_mutex>) -> c_int {
    discard(mutex, |mutex| !mutex.is_locked())
}

/// Locks a mutex, waiting for at most this long. -EDEADLK: the caller has locked it already.
#[unsafe(no_mangle)]
pub extern "C" fn ums_mutex_lock(mutex: Handle<ums_mutex>, timeout_ns: u64) -> c_int {
    guard(|| {
        let mutex = object::get(mutex)?;
        if mutex.try_lock() {
            return Ok(0);
        }
        if mutex.is_mine() {
            return Err(Fault::new(libc::EDEADLK, "the caller has locked this mutex already"));
        }
        if timeout_ns == 0 {
            return Err(ums::WaitError::TimedOut.into());
        }
        mutex.lock_for(WaitReason::MUTEX, span(timeout_ns))?;
        Ok(0)
    })
}

/// Unlocks a mutex. -EPERM: the caller has not locked it.
#[unsafe(no_mangle)]
pub extern "C" fn ums_mutex_unlock(mutex: Handle<ums_mutex>) -> c_int {
    guard(|| {
        let mutex = object::get_briefly(mutex)?;
        mine(&mutex)?;
        mutex.unlock();
        Ok(0)
    })
}

fn mine(mutex: &RawMutex) -> Result<(), Fault> {
    let not = || Fault::new(libc::EPERM, "the caller has not locked this mutex");
    mutex.is_mine().then_some(()).ok_or_else(not)
}

/// Creates a reader-writer lock.
#[unsafe(no_mangle)]
pub extern "C" fn ums_rwlock_new(rwlock: Out<'_, Handle<ums_rwlock>>) -> c_int {
    guard(|| give(rwlock, RawRwLock::new()))
}

/// Frees a reader-writer lock. NULL is allowed. -EBUSY: the lock is held.
#[unsafe(no_mangle)]
pub extern "C" fn ums_rwlock_free(rwlock: Handle<ums_rwlock>) -> c_int {
    discard(rwlock, |rwlock| !rwlock.is_locked())
}

/// Locks for reading, waiting for at most this long. A reader that arrives while a writer waits
/// queues behind it, so do not lock twice. -EDEADLK: the caller has locked it for writing.
#[unsafe(no_mangle)]
pub extern "C" fn ums_rwlock_read(rwlock: Handle<ums_rwlock>, timeout_ns: u64) -> c_int {
    lock_share(rwlock, Share::Shared, timeout_ns)
}

/// Locks for writing, waiting for at most this long. Readers are only counted: a caller that has
/// locked for reading would wait for itself. -EDEADLK: the caller has locked it for writing.
#[unsafe(no_mangle)]
pub extern "C" fn ums_rwlock_write(rwlock: Handle<ums_rwlock>, timeout_ns: u64) -> c_int {
    lock_share(rwlock, Share::Exclusive, timeout_ns)
}

fn lock_share(rwlock: Handle<ums_rwlock>, share: Share, timeout_ns: u64) -> c_int {
    guard(|| {
        let rwlock = object::get(rwlock)?;
        if rwlock.try_lock(share) {
            return Ok(0);
        }
        if rwlock.is_mine() {
            return Err(Fault::new(
                libc::EDEADLK,
                "the caller has locked this for writing already",
            ));
        }
        if timeout_ns == 0 {
            return Err(ums::WaitError::TimedOut.into());
        }
        rwlock.lock_for(share, span(timeout_ns))?;
        Ok(0)
    })
}

/// Unlocks what the caller has locked, for reading or for writing. -EPERM: the lock is free, or
/// another caller writes.
#[unsafe(no_mangle)]
pub extern "C" fn ums_rwlock_unlock(rwlock: Handle<ums_rwlock>) -> c_int {
    guard(|| {
        let released = object::get_briefly(rwlock)?.release();
        let not = || Fault::new(libc::EPERM, "the caller has not locked this");
        released.then_some(0).ok_or_else(not)
    })
}

/// Turns the caller's lock for writing into one for reading; no writer comes between. -EPERM: the
/// caller has not locked it for writing.
#[unsafe(no_mangle)]
pub extern "C" fn ums_rwlock_downgrade(rwlock: Handle<ums_rwlock>) -> c_int {
    guard(|| {
        let is_reader = object::get_briefly(rwlock)?.downgrade();
        let not = || Fault::new(libc::EPERM, "the caller has not locked this for writing");
        is_reader.then_some(0).ok_or_else(not)
    })
}

/// Creates a condition variable.
#[unsafe(no_mangle)]
pub extern "C" fn ums_condvar_new(condvar: Out<'_, Handle<ums_condvar>>) -> c_int {
    guard(|| give(condvar, Lock::default()))
}

/// Frees a condition variable. NULL is allowed. -EBUSY: the condition variable has waiters.
#[unsafe(no_mangle)]
pub extern "C" fn ums_condvar_free(condvar: Handle<ums_condvar>) -> c_int {
    discard(condvar, |_| true)
}

/// Unlocks the mutex, waits for a notification, and locks the mutex again, even if it returns
/// -ETIMEDOUT or -ECANCELED. The condition may have changed meanwhile, so check it again. -EPERM:
/// the caller has not locked the mutex.
#[unsafe(no_mangle)]
pub extern "C" fn ums_condvar_wait(
    condvar: Handle<ums_condvar>,
    mutex: Handle<ums_mutex>,
    timeout_ns: u64,
) -> c_int {
    guard(|| {
        let (condvar, mutex) = (object::get(condvar)?, object::get(mutex)?);
        mine(&mutex)?;
        let mut wait = Wait::new(WaitReason::CONDVAR).on(&*condvar);
        if !is_forever(timeout_ns) {
            let end = Instant::now().checked_add(span(timeout_ns));
            // A moment that cannot be represented never comes.
            wait = end.map_or(wait, |end| wait.until(end));
        }
        let mut me = None;
        let waited = wait.park(|sleeper| {
            me = Some(sleeper);
            condvar.lock().push_back(sleeper);
            mutex.unlock();
        });
        if waited.is_err() {
            condvar.lock().retain(|sleeper| Some(*sleeper) != me);
        }
        mutex.lock(WaitReason::MUTEX);
        waited?;
        Ok(0)
    })
}

/// Wakes the first waiter.
#[unsafe(no_mangle)]
pub extern "C" fn ums_condvar_notify_one(condvar: Handle<ums_condvar>) -> c_int {
    guard(|| {
        let condvar = object::get_briefly(condvar)?;
        let mut list = condvar.lock();
        // A notification goes to a wait that has not ended: `claim` returns None for a wait that
        // has.
        let mut woken = None;
        while woken.is_none()
            && let Some(sleeper) = list.pop_front()
        {
            woken = sleeper.claim();
        }
        drop(list);
        woken.into_iter().for_each(ums::sync::Woken::run);
        Ok(0)
    })
}

/// Wakes all current waiters.
#[unsafe(no_mangle)]
pub extern "C" fn ums_condvar_notify_all(condvar: Handle<ums_condvar>) -> c_int {
    guard(|| {
        let condvar = object::get_briefly(condvar)?;
        let all = std::mem::take(&mut *condvar.lock());
        for sleeper in all {
            sleeper.wake();
        }
        Ok(0)
    })
}

/// Creates an event. A manual event stays set until it is reset. An automatic event lets one waiter
/// continue each time it is set.
#[unsafe(no_mangle)]
pub extern "C" fn ums_event_new(
    manual: bool,
    is_set: bool,
    event: Out<'_, Handle<ums_event>>,
) -> c_int {
    guard(|| {
        let made = if manual { Event::manual(is_set) } else { Event::auto(is_set) };
        give(event, made)
    })
}

/// Frees an event. NULL is allowed. -EBUSY: the event has waiters. A worker that the event has
/// woken may free it, also if `ums_event_set` has not returned yet.
#[unsafe(no_mangle)]
pub extern "C" fn ums_event_free(event: Handle<ums_event>) -> c_int {
    discard(event, |_| true)
}

/// Sets an event.
#[unsafe(no_mangle)]
pub extern "C" fn ums_event_set(event: Handle<ums_event>) -> c_int {
    guard(|| {
        object::get_briefly(event)?.set();
        Ok(0)
    })
}

/// Resets an event. Returns 1 if it was set, 0 if it was not.
#[unsafe(no_mangle)]
pub extern "C" fn ums_event_reset(event: Handle<ums_event>) -> c_int {
    guard(|| Ok(object::get_briefly(event)?.reset().into()))
}

/// Returns true if it is set; false for a bad pointer.
#[unsafe(no_mangle)]
pub extern "C" fn ums_event_is_set(event: ConstHandle<ums_event>) -> bool {
    answer(false, || Ok(object::get_briefly(event)?.is_set()))
}

/// Waits until the event is set, for at most this long.
#[unsafe(no_mangle)]
pub extern "C" fn ums_event_wait(event: Handle<ums_event>, timeout_ns: u64) -> c_int {
    guard(|| {
        object::get(event)?.wait_for(span(timeout_ns))?;
        Ok(0)
    })
}

/// Creates a semaphore with this many permits.
#[unsafe(no_mangle)]
pub extern "C" fn ums_semaphore_new(
    permits: usize,
    semaphore: Out<'_, Handle<ums_semaphore>>,
) -> c_int {
    guard(|| {
        room(permits, 0)?;
        give(semaphore, Semaphore::new(permits))
    })
}

/// Frees a semaphore. NULL is allowed. -EBUSY: the semaphore has waiters.
#[unsafe(no_mangle)]
pub extern "C" fn ums_semaphore_free(semaphore: Handle<ums_semaphore>) -> c_int {
    discard(semaphore, |_| true)
}

/// Acquires one permit, waiting for at most this long. -ETIMEDOUT: none was free in that time; with
/// the limit 0, none is free now.
#[unsafe(no_mangle)]
pub extern "C" fn ums_semaphore_acquire(
    semaphore: Handle<ums_semaphore>,
    timeout_ns: u64,
) -> c_int {
    guard(|| {
        let semaphore = object::get(semaphore)?;
        let now = semaphore.try_acquire();
        let permit = match now {
            Some(permit) => permit,
            None if timeout_ns == 0 => return Err(ums::WaitError::TimedOut.into()),
            None => semaphore.acquire_for(span(timeout_ns))?,
        };
        permit.forget();
        Ok(0)
    })
}

/// Releases permits. Another worker may have acquired them. -EOVERFLOW: the semaphore would have
/// more than SIZE_MAX / 2 permits.
#[unsafe(no_mangle)]
pub extern "C" fn ums_semaphore_release(semaphore: Handle<ums_semaphore>, permits: usize) -> c_int {
    guard(|| {
        let semaphore = object::get_briefly(semaphore)?;
        room(permits, semaphore.available())?;
        semaphore.add_permits(permits);
        Ok(0)
    })
}

fn room(more: usize, there: usize) -> Result<(), Fault> {
    let fits = there.checked_add(more).is_some_and(|sum| sum <= Semaphore::MAX);
    let too_many = || Fault::new(libc::EOVERFLOW, "more permits than a semaphore can count");
    fits.then_some(()).ok_or_else(too_many)
}

/// Returns how many permits are available; 0 for a bad pointer.
#[unsafe(no_mangle)]
pub extern "C" fn ums_semaphore_available(semaphore: ConstHandle<ums_semaphore>) -> usize {
    answer(0, || Ok(object::get_briefly(semaphore)?.available()))
}

/// Creates a barrier for this many callers. -EINVAL: 0.
#[unsafe(no_mangle)]
pub extern "C" fn ums_barrier_new(callers: usize, barrier: Out<'_, Handle<ums_barrier>>) -> c_int {
    guard(|| {
        if callers == 0 {
            return Err(Fault::new(libc::EINVAL, "a barrier is for at least one caller"));
        }
        give(barrier, Barrier::new(callers))
    })
}

/// Frees a barrier. NULL is allowed. -EBUSY: a call of ums_barrier_wait has not returned yet.
#[unsafe(no_mangle)]
pub extern "C" fn ums_barrier_free(barrier: Handle<ums_barrier>) -> c_int {
    discard(barrier, |_| true)
}

/// Waits until as many callers have arrived as the barrier is for, for at most this long. Returns 1
/// for the caller that arrived last, and 0 for the others. Then the barrier can be used again. A
/// caller whose wait fails does not count.
#[unsafe(no_mangle)]
pub extern "C" fn ums_barrier_wait(barrier: Handle<ums_barrier>, timeout_ns: u64) -> c_int {
    guard(|| Ok(object::get(barrier)?.wait_for(span(timeout_ns))?.is_leader().into()))
}
