//! The functions for events, semaphores and mutexes, and for waiting for one or several objects.
//!
//! A wait tries to take its objects (`waitable.rs`), polls all descriptors, and tries again. So if
//! another wait takes an object first, this wait continues.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::error::{
    BOOL, ERROR_INVALID_HANDLE, ERROR_INVALID_PARAMETER, ERROR_NOT_OWNER, ERROR_TOO_MANY_POSTS,
    SetLastError, done, guarded,
};
use super::handle::{self, CURRENT_PROCESS, HANDLE, Use};
use super::pthread::this_thread;
use super::system::{eventfd, poll, signal, take};
use super::waitable::{Event, KernelObject, Mutex, Semaphore};
use crate::caller::{Array, Count, Out};

/// The wait ended because an object was signalled. The object's index is added to this value.
pub const WAIT_OBJECT_0: u32 = 0;
/// The time limit expired.
pub const WAIT_TIMEOUT: u32 = 258;
/// The wait failed; the last error says why.
pub const WAIT_FAILED: u32 = u32::MAX;
/// No time limit.
pub const INFINITE: u32 = u32::MAX;
/// Maximum number of objects of one wait.
pub const MAXIMUM_WAIT_OBJECTS: usize = 64;

/// Creates an event. Names are not supported, because processes cannot share objects here.
#[unsafe(no_mangle)]
pub extern "C" fn CreateEventA(
    _security: *mut c_void,
    manual: BOOL,
    set: BOOL,
    name: *const c_void,
) -> HANDLE {
    guarded(std::ptr::null_mut(), || {
        nameless(name)?;
        handle::make(KernelObject::Event(Event::new(manual != 0, set != 0)?))
    })
}

/// Like `CreateEventA`.
#[unsafe(no_mangle)]
pub extern "C" fn CreateEventW(
    security: *mut c_void,
    manual: BOOL,
    set: BOOL,
    name: *const c_void,
) -> HANDLE {
    CreateEventA(security, manual, set, name)
}

fn nameless(name: *const c_void) -> Result<(), u32> {
    if name.is_null() { Ok(()) } else { Err(super::error::ERROR_NOT_SUPPORTED) }
}

fn with_event(handle: HANDLE, f: impl FnOnce(RawFd)) -> BOOL {
    done(handle::get(handle).and_then(|object| match &*object {
        KernelObject::Event(Event { fd, .. }) | KernelObject::List(fd) => {
            f(fd.as_raw_fd());
            Ok(())
        }
        _ => Err(ERROR_INVALID_HANDLE),
    }))
}

/// Sets an event.
#[unsafe(no_mangle)]
pub extern "C" fn SetEvent(event: HANDLE) -> BOOL {
    with_event(event, |fd| signal(fd, 1))
}

/// Resets an event.
#[unsafe(no_mangle)]
pub extern "C" fn ResetEvent(event: HANDLE) -> BOOL {
    with_event(event, |fd| _ = take(fd))
}

/// Creates a semaphore, without a name.
#[unsafe(no_mangle)]
pub extern "C" fn CreateSemaphoreA(
    _security: *mut c_void,
    initial: i32,
    max: i32,
    name: *const c_void,
) -> HANDLE {
    guarded(std::ptr::null_mut(), || {
        nameless(name)?;
        if max <= 0 || initial < 0 || initial > max {
            return Err(ERROR_INVALID_PARAMETER);
        }
        // Bounded: it is not negative.
        let fd = eventfd(initial as u32, libc::EFD_SEMAPHORE)?;
        let count = AtomicI64::new(initial.into());
        let semaphore = Semaphore { fd, count, max: max.into() };
        handle::make(KernelObject::Semaphore(Arc::new(semaphore)))
    })
}

/// Like `CreateSemaphoreA`.
#[unsafe(no_mangle)]
pub extern "C" fn CreateSemaphoreW(
    security: *mut c_void,
    initial: i32,
    max: i32,
    name: *const c_void,
) -> HANDLE {
    CreateSemaphoreA(security, initial, max, name)
}

/// Adds to a semaphore's count; `previous` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn ReleaseSemaphore(
    semaphore: HANDLE,
    count: i32,
    mut previous: Out<'_, i32>,
) -> BOOL {
    let mut release = || {
        let object = handle::get(semaphore)?;
        let KernelObject::Semaphore(semaphore) = &*object else { return Err(ERROR_INVALID_HANDLE) };
        if count <= 0 {
            return Err(ERROR_INVALID_PARAMETER);
        }
        let more = |n: i64| (n + i64::from(count) <= semaphore.max).then(|| n + i64::from(count));
        let before = semaphore.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        let before = before.map_err(|_| ERROR_TOO_MANY_POSTS)?;
        // Bounded: it is not negative.
        signal(semaphore.fd.as_raw_fd(), count as u64);
        previous.put(before as i32);
        Ok(())
    };
    done(release())
}

/// Creates a mutex, without a name.
#[unsafe(no_mangle)]
pub extern "C" fn CreateMutexA(_security: *mut c_void, owned: BOOL, name: *const c_void) -> HANDLE {
    guarded(std::ptr::null_mut(), || {
        nameless(name)?;
        let object = KernelObject::Mutex(Arc::new(Mutex {
            fd: eventfd(1, 0)?,
            owner: AtomicU32::new(0),
            depth: AtomicU32::new(0),
        }));
        if owned != 0 {
            object.take();
        }
        handle::make(object)
    })
}

/// Like `CreateMutexA`.
#[unsafe(no_mangle)]
pub extern "C" fn CreateMutexW(security: *mut c_void, owned: BOOL, name: *const c_void) -> HANDLE {
    CreateMutexA(security, owned, name)
}

/// Releases a mutex. To be called once for each time that it was taken.
#[unsafe(no_mangle)]
pub extern "C" fn ReleaseMutex(mutex: HANDLE) -> BOOL {
    done(handle::get(mutex).and_then(|object| match &*object {
        KernelObject::Mutex(mutex) if mutex.owner.load(Ordering::Relaxed) == this_thread() => {
            mutex.release();
            Ok(())
        }
        KernelObject::Mutex(_) => Err(ERROR_NOT_OWNER),
        _ => Err(ERROR_INVALID_HANDLE),
    }))
}

/// Waits for one object.
#[unsafe(no_mangle)]
pub extern "C" fn WaitForSingleObject(object: HANDLE, ms: u32) -> u32 {
    wait_for(&[object], false, ms)
}

/// Like `WaitForSingleObject`. There are no asynchronous procedure calls, so `alertable` has no
/// effect.
#[unsafe(no_mangle)]
pub extern "C" fn WaitForSingleObjectEx(object: HANDLE, ms: u32, _alertable: BOOL) -> u32 {
    WaitForSingleObject(object, ms)
}

/// Waits for one of several objects, or for all of them.
#[unsafe(no_mangle)]
pub extern "C" fn WaitForMultipleObjects<'a>(
    count: Count<'a>,
    handles: Array<'a, HANDLE>,
    all: BOOL,
    ms: u32,
) -> u32 {
    wait_for(handles.of(count, MAXIMUM_WAIT_OBJECTS), all != 0, ms)
}

fn wait_for(handles: &[HANDLE], all: bool, ms: u32) -> u32 {
    let count = handles.len();
    if count == 0 {
        SetLastError(ERROR_INVALID_PARAMETER);
        return WAIT_FAILED;
    }
    let mut uses = [const { None::<Use> }; MAXIMUM_WAIT_OBJECTS];
    for (use_, handle) in uses.iter_mut().zip(handles) {
        match find(*handle) {
            Ok(found) => *use_ = Some(found),
            Err(code) => {
                SetLastError(code);
                return WAIT_FAILED;
            }
        }
    }
    match wait(&uses[..count], all, ms) {
        Ok(Some(at)) => WAIT_OBJECT_0 + at as u32,
        Ok(None) => WAIT_TIMEOUT,
        Err(code) => {
            SetLastError(code);
            WAIT_FAILED
        }
    }
}

/// Like `WaitForMultipleObjects`.
#[unsafe(no_mangle)]
pub extern "C" fn WaitForMultipleObjectsEx<'a>(
    count: Count<'a>,
    handles: Array<'a, HANDLE>,
    all: BOOL,
    ms: u32,
    _alertable: BOOL,
) -> u32 {
    WaitForMultipleObjects(count, handles, all, ms)
}

fn find(handle: HANDLE) -> Result<Use, u32> {
    if handle == CURRENT_PROCESS { Err(ERROR_INVALID_HANDLE) } else { handle::get(handle) }
}

/// Returns the index of the object that was taken (0 if it waits for all), or None if the time is
/// over.
fn wait(uses: &[Option<Use>], all: bool, ms: u32) -> Result<Option<usize>, u32> {
    let began = Instant::now();
    let objects = || uses.iter().flatten().map(|u| &**u);
    loop {
        let taken =
            if all { take_all(uses).then_some(0) } else { objects().position(KernelObject::take) };
        if taken.is_some() {
            return Ok(taken);
        }
        let left = match ms {
            INFINITE => -1,
            ms => {
                let left = Duration::from_millis(ms.into()).saturating_sub(began.elapsed());
                if left.is_zero() {
                    return Ok(None);
                }
                // Rounded up, so that a wait never ends early.
                i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
            }
        };
        let none = libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 };
        let mut set = [none; MAXIMUM_WAIT_OBJECTS];
        // If it waits for all, only the objects that are not signalled are polled; otherwise a
        // signalled object would end each poll immediately.
        for (entry, object) in set.iter_mut().zip(objects()) {
            entry.fd = if all && object.is_signalled() { -1 } else { object.fd()? };
        }
        if set.iter().all(|entry| entry.fd < 0) {
            continue;
        }
        poll(&mut set[..uses.len()], left);
    }
}

/// Takes all objects or none. Returns true if it has taken all.
fn take_all(uses: &[Option<Use>]) -> bool {
    let objects = || uses.iter().flatten().map(|u| &**u);
    if !objects().all(KernelObject::is_signalled) {
        return false;
    }
    let taken = objects().take_while(|object| object.take()).count();
    if taken == uses.len() {
        return true;
    }
    // Another thread took one of the objects first.
    objects().take(taken).for_each(KernelObject::put_back);
    false
}

/// Signals one object and waits for another. These are two steps, and another thread can observe
/// the state between them.
#[unsafe(no_mangle)]
pub extern "C" fn SignalObjectAndWait(
    signalled: HANDLE,
    waited: HANDLE,
    ms: u32,
    _alertable: BOOL,
) -> u32 {
    let signal = || {
        match &*handle::get(signalled)? {
            KernelObject::Event(_) => SetEvent(signalled),
            KernelObject::Mutex(_) => ReleaseMutex(signalled),
            KernelObject::Semaphore(_) => ReleaseSemaphore(signalled, 1, Out::null()),
            _ => return Err(ERROR_INVALID_HANDLE),
        };
        Ok(WaitForSingleObject(waited, ms))
    };
    super::error::given(WAIT_FAILED, signal())
}
