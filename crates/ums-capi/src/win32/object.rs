//! What can be waited for: events, semaphores, mutexes, threads, completion lists.
//!
//! Each has an eventfd, and the kernel's count in it is the truth: an object is signalled while its
//! descriptor is readable, and *taking* it is what a successful wait does to it.
//!
//! ```text
//!   object            | taking it                | given by
//!   event, manual     | looks only               | SetEvent
//!   event, automatic  | reads the count away     | SetEvent
//!   completion list   | reads the count away     | a worker that is queued to an empty list
//!   semaphore         | reads one                | ReleaseSemaphore
//!   mutex             | reads the one token      | ReleaseMutex
//!   thread            | looks only               | its end
//! ```
//!
//! A wait tries to take, polls all descriptors, and tries again; so who loses a race waits on.

#![allow(unsafe_code)] // Named invariant "C Caller" of lib.rs, "Plain Call" of ARCHITECTURE.md.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::error::{
    BOOL, ERROR_INVALID_HANDLE, ERROR_INVALID_PARAMETER, ERROR_NOT_OWNER, ERROR_TOO_MANY_POSTS,
    SetLastError, done, guarded, os,
};
use super::handle::{self, CURRENT_PROCESS, HANDLE, Use};
use super::thread::{GetCurrentThreadId, Thread};

/// A wait ended because the object was signalled; the object's place is added.
pub const WAIT_OBJECT_0: u32 = 0;
/// The time was over first.
pub const WAIT_TIMEOUT: u32 = 258;
/// The wait could not be made; the last error says why.
pub const WAIT_FAILED: u32 = u32::MAX;
/// No time limit.
pub const INFINITE: u32 = u32::MAX;
/// Most objects that one wait can have.
pub const MAXIMUM_WAIT_OBJECTS: usize = 64;

/// An eventfd.
pub(super) fn eventfd(count: u32, flags: i32) -> Result<OwnedFd, u32> {
    // SAFETY: Plain Call; a descriptor that is not negative is new and ours.
    unsafe {
        let fd = libc::eventfd(count, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK | flags);
        if fd < 0 { Err(os()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Adds to the count of an eventfd.
pub(super) fn signal(fd: RawFd, count: u64) {
    // SAFETY: Plain Call: eight bytes. It fails only when the count is full, which signals as well.
    unsafe { libc::write(fd, (&raw const count).cast(), 8) };
}

/// Reads the count of an eventfd away. False: it was 0.
fn take(fd: RawFd) -> bool {
    let mut count = 0u64;
    // SAFETY: Plain Call: eight bytes.
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) == 8 }
}

fn is_readable(fd: RawFd) -> bool {
    let mut set = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: Plain Call: the structure outlives it.
    unsafe { libc::poll(&mut set, 1, 0) > 0 }
}

/// An event.
pub struct Event {
    fd: OwnedFd,
    manual: bool,
}

impl Event {
    /// A new one.
    pub fn new(manual: bool, set: bool) -> Result<Event, u32> {
        Ok(Event { fd: eventfd(set.into(), 0)?, manual })
    }
}

/// A semaphore.
pub struct Semaphore {
    fd: OwnedFd,
    count: AtomicI64,
    max: i64,
}

/// A mutex, which its owner can lock again.
pub struct Mutex {
    fd: OwnedFd,
    owner: AtomicU32,
    depth: AtomicU32,
}

/// What a handle can stand for.
pub enum Object {
    /// An event.
    Event(Event),
    /// A semaphore.
    Semaphore(Semaphore),
    /// A mutex.
    Mutex(Mutex),
    /// A thread.
    Thread(Arc<Thread>),
    /// The event of a completion list.
    List(OwnedFd),
}

impl Object {
    fn fd(&self) -> Result<RawFd, u32> {
        match self {
            Object::Event(event) => Ok(event.fd.as_raw_fd()),
            Object::Semaphore(semaphore) => Ok(semaphore.fd.as_raw_fd()),
            Object::Mutex(mutex) => Ok(mutex.fd.as_raw_fd()),
            Object::List(fd) => Ok(fd.as_raw_fd()),
            Object::Thread(thread) => thread.signal(),
        }
    }

    /// Takes it, if it is signalled.
    fn take(&self) -> bool {
        match self {
            Object::Event(Event { fd, manual: true }) => is_readable(fd.as_raw_fd()),
            Object::Event(Event { fd, .. }) | Object::List(fd) => take(fd.as_raw_fd()),
            Object::Thread(thread) => thread.has_ended(),
            Object::Semaphore(semaphore) => {
                let taken = take(semaphore.fd.as_raw_fd());
                semaphore.count.fetch_sub(taken.into(), Ordering::AcqRel);
                taken
            }
            Object::Mutex(mutex) => {
                let me = GetCurrentThreadId();
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

    /// Whether a take would succeed, at some moment during the call.
    fn is_signalled(&self) -> bool {
        match self {
            Object::Thread(thread) => thread.has_ended(),
            Object::Mutex(mutex) if mutex.owner.load(Ordering::Relaxed) == GetCurrentThreadId() => {
                true
            }
            other => other.fd().is_ok_and(is_readable),
        }
    }

    /// Undoes a take.
    fn put_back(&self) {
        match self {
            Object::Event(Event { manual: true, .. }) | Object::Thread(_) => {}
            Object::Event(Event { fd, .. }) | Object::List(fd) => signal(fd.as_raw_fd(), 1),
            Object::Semaphore(semaphore) => {
                semaphore.count.fetch_add(1, Ordering::AcqRel);
                signal(semaphore.fd.as_raw_fd(), 1);
            }
            Object::Mutex(mutex) => mutex.release(),
        }
    }
}

impl Mutex {
    /// By its owner.
    fn release(&self) {
        if self.depth.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.owner.store(0, Ordering::Relaxed);
            signal(self.fd.as_raw_fd(), 1);
        }
    }
}

/// A new event. Names are not supported: processes share nothing here.
#[unsafe(no_mangle)]
pub extern "C" fn CreateEventA(
    _security: *mut c_void,
    manual: BOOL,
    set: BOOL,
    name: *const c_void,
) -> HANDLE {
    guarded(std::ptr::null_mut(), || {
        nameless(name)?;
        handle::make(Object::Event(Event::new(manual != 0, set != 0)?))
    })
}

/// As `CreateEventA`.
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
        Object::Event(Event { fd, .. }) | Object::List(fd) => {
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

/// A new semaphore, without a name.
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
        let fd = eventfd(initial as u32, libc::EFD_SEMAPHORE)?;
        let count = AtomicI64::new(initial.into());
        handle::make(Object::Semaphore(Semaphore { fd, count, max: max.into() }))
    })
}

/// As `CreateSemaphoreA`.
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
pub unsafe extern "C" fn ReleaseSemaphore(
    semaphore: HANDLE,
    count: i32,
    previous: *mut i32,
) -> BOOL {
    let release = || {
        let object = handle::get(semaphore)?;
        let Object::Semaphore(semaphore) = &*object else { return Err(ERROR_INVALID_HANDLE) };
        if count <= 0 {
            return Err(ERROR_INVALID_PARAMETER);
        }
        let more = |n: i64| (n + i64::from(count) <= semaphore.max).then(|| n + i64::from(count));
        let before = semaphore.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        let before = before.map_err(|_| ERROR_TOO_MANY_POSTS)?;
        signal(semaphore.fd.as_raw_fd(), count as u64);
        if !previous.is_null() {
            // SAFETY: C Caller: NULL or writable.
            unsafe { *previous = before as i32 };
        }
        Ok(())
    };
    done(release())
}

/// A new mutex, without a name.
#[unsafe(no_mangle)]
pub extern "C" fn CreateMutexA(_security: *mut c_void, owned: BOOL, name: *const c_void) -> HANDLE {
    guarded(std::ptr::null_mut(), || {
        nameless(name)?;
        let object = Object::Mutex(Mutex {
            fd: eventfd(1, 0)?,
            owner: AtomicU32::new(0),
            depth: AtomicU32::new(0),
        });
        if owned != 0 {
            object.take();
        }
        handle::make(object)
    })
}

/// As `CreateMutexA`.
#[unsafe(no_mangle)]
pub extern "C" fn CreateMutexW(security: *mut c_void, owned: BOOL, name: *const c_void) -> HANDLE {
    CreateMutexA(security, owned, name)
}

/// Lets a mutex go, once for each time it was taken.
#[unsafe(no_mangle)]
pub extern "C" fn ReleaseMutex(mutex: HANDLE) -> BOOL {
    done(handle::get(mutex).and_then(|object| match &*object {
        Object::Mutex(mutex) if mutex.owner.load(Ordering::Relaxed) == GetCurrentThreadId() => {
            mutex.release();
            Ok(())
        }
        Object::Mutex(_) => Err(ERROR_NOT_OWNER),
        _ => Err(ERROR_INVALID_HANDLE),
    }))
}

/// Waits for one object.
#[unsafe(no_mangle)]
pub extern "C" fn WaitForSingleObject(object: HANDLE, ms: u32) -> u32 {
    // SAFETY: C Caller: one handle, of ours.
    unsafe { WaitForMultipleObjects(1, &raw const object, 0, ms) }
}

/// As `WaitForSingleObject`; there are no asynchronous procedure calls here to be alerted by.
#[unsafe(no_mangle)]
pub extern "C" fn WaitForSingleObjectEx(object: HANDLE, ms: u32, _alertable: BOOL) -> u32 {
    WaitForSingleObject(object, ms)
}

/// Waits for one of several objects, or for all of them together.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn WaitForMultipleObjects(
    count: u32,
    handles: *const HANDLE,
    all: BOOL,
    ms: u32,
) -> u32 {
    let count = count as usize;
    if count == 0 || count > MAXIMUM_WAIT_OBJECTS || handles.is_null() {
        SetLastError(ERROR_INVALID_PARAMETER);
        return WAIT_FAILED;
    }
    // SAFETY: C Caller: `count` handles.
    let handles = unsafe { std::slice::from_raw_parts(handles, count) };
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
    match wait(&uses[..count], all != 0, ms) {
        Ok(Some(at)) => WAIT_OBJECT_0 + at as u32,
        Ok(None) => WAIT_TIMEOUT,
        Err(code) => {
            SetLastError(code);
            WAIT_FAILED
        }
    }
}

/// As `WaitForMultipleObjects`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn WaitForMultipleObjectsEx(
    count: u32,
    handles: *const HANDLE,
    all: BOOL,
    ms: u32,
    _alertable: BOOL,
) -> u32 {
    // SAFETY: C Caller: passed on.
    unsafe { WaitForMultipleObjects(count, handles, all, ms) }
}

fn find(handle: HANDLE) -> Result<Use, u32> {
    if handle == CURRENT_PROCESS { Err(ERROR_INVALID_HANDLE) } else { handle::get(handle) }
}

/// The place of the object that was taken (of all: 0), or None when the time was over.
fn wait(uses: &[Option<Use>], all: bool, ms: u32) -> Result<Option<usize>, u32> {
    let began = Instant::now();
    let objects = || uses.iter().flatten().map(|u| &**u);
    loop {
        let taken =
            if all { take_all(uses).then_some(0) } else { objects().position(Object::take) };
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
                // Rounded up: a wait never ends before its time.
                i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
            }
        };
        let none = libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 };
        let mut set = [none; MAXIMUM_WAIT_OBJECTS];
        // For all: only what is missing is waited for, or those that are there would end each poll.
        for (entry, object) in set.iter_mut().zip(objects()) {
            entry.fd = if all && object.is_signalled() { -1 } else { object.fd()? };
        }
        if set.iter().all(|entry| entry.fd < 0) {
            continue;
        }
        // SAFETY: Plain Call: the array outlives it.
        unsafe { libc::poll(set.as_mut_ptr(), uses.len() as libc::nfds_t, left) };
    }
}

/// Takes all or none.
fn take_all(uses: &[Option<Use>]) -> bool {
    let objects = || uses.iter().flatten().map(|u| &**u);
    if !objects().all(Object::is_signalled) {
        return false;
    }
    let taken = objects().take_while(|object| object.take()).count();
    if taken == uses.len() {
        return true;
    }
    // Somebody was quicker at one of them.
    objects().take(taken).for_each(Object::put_back);
    false
}

/// Signals one object and waits for another. Another thread can see the moment in between.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SignalObjectAndWait(
    signalled: HANDLE,
    waited: HANDLE,
    ms: u32,
    _alertable: BOOL,
) -> u32 {
    let signal = || {
        match &*handle::get(signalled)? {
            Object::Event(_) => SetEvent(signalled),
            Object::Mutex(_) => ReleaseMutex(signalled),
            // SAFETY: C Caller: no pointer is given.
            Object::Semaphore(_) => unsafe { ReleaseSemaphore(signalled, 1, std::ptr::null_mut()) },
            _ => return Err(ERROR_INVALID_HANDLE),
        };
        Ok(WaitForSingleObject(waited, ms))
    };
    super::error::given(WAIT_FAILED, signal())
}
