//! A thread of this library: a pthread, its exit code and its end.
//!
//! A thread may end by returning, by `ExitThread` or by `pthread_exit`. No frame below its start
//! routine needs a destructor, so these frames may be unwound. However the thread ends, a
//! destructor of thread-specific data stores its exit code and signals its end.
//!
//! The eventfd for a thread's end is created by the first waiter, so that a thousand threads do not
//! need a thousand descriptors.
//!
//! This file has unsafe code, because `CURRENT` is null or points at the calling thread's own
//! [`Thread`], to which the thread keeps a reference until it has ended; and because of the calls
//! that start and end threads.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use ums::lock::Lock;
use ums::windows::raw;

use super::error::ERROR_NOT_ENOUGH_MEMORY;
use super::system::{self, eventfd, signal};
use super::worker::{self, Worker};
use crate::caller::Argument;

/// The exit code of a thread that has not ended.
pub const STILL_ACTIVE: u32 = 259;
/// A thread, shared by its handles and by the thread itself.
pub struct Thread {
    /// The kernel's number of the thread; 0 until the thread runs.
    pub(super) id: AtomicU32,
    pub(super) exit_code: AtomicU32,
    ended: AtomicU32,
    /// How many times it must be resumed before it begins.
    pub(super) suspended: AtomicU32,
    /// The eventfd that is signalled when the thread ends; -1 until there is a waiter.
    signal: AtomicI32,
    /// The address of its UMS context if it is a worker, otherwise 0.
    pub(super) context: AtomicUsize,
    /// The priority that the program has set.
    pub(super) priority: AtomicI32,
    /// The routine and its argument; None when it has begun, and for an adopted thread.
    work: Lock<Option<(StartRoutine, Argument)>>,
}

/// The start routine of a thread.
pub type StartRoutine = extern "C-unwind" fn(Argument) -> u32;

impl Drop for Thread {
    fn drop(&mut self) {
        let fd = *self.signal.get_mut();
        if fd >= 0 {
            // SAFETY: Own Memory: only this object has the descriptor.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
}

impl Thread {
    pub(super) fn new(start: StartRoutine, argument: Argument) -> Thread {
        Thread::of(0, Some((start, argument)))
    }

    fn of(id: u32, work: Option<(StartRoutine, Argument)>) -> Thread {
        Thread {
            id: AtomicU32::new(id),
            exit_code: AtomicU32::new(STILL_ACTIVE),
            ended: AtomicU32::new(0),
            suspended: AtomicU32::new(0),
            signal: AtomicI32::new(-1),
            context: AtomicUsize::new(0),
            priority: AtomicI32::new(0),
            work: Lock::new(work),
        }
    }

    /// Returns its kernel thread id.
    pub fn id(&self) -> u32 {
        self.id.load(Ordering::Acquire)
    }

    /// Returns true if it has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst) != 0
    }

    /// Returns the descriptor that becomes readable when the thread ends.
    pub fn signal(&self) -> Result<RawFd, u32> {
        let there = self.signal.load(Ordering::Acquire);
        if there >= 0 {
            return Ok(there);
        }
        let made = eventfd(0, 0)?;
        match self.signal.compare_exchange(
            -1,
            made.as_raw_fd(),
            Ordering::SeqCst,
            Ordering::Acquire,
        ) {
            Err(other) => return Ok(other),
            Ok(_) => _ = made.into_raw_fd(),
        }
        // SeqCst on both sides: either the ending thread sees this descriptor, or this call sees
        // that the thread has ended.
        let fd = self.signal.load(Ordering::SeqCst);
        if self.has_ended() {
            signal(fd, 1);
        }
        Ok(fd)
    }

    fn end(&self) {
        let unsaid = (STILL_ACTIVE, 0);
        // A thread that ended by pthread_exit has stored no exit code.
        let _ = self.exit_code.compare_exchange(
            unsaid.0,
            unsaid.1,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        self.ended.store(1, Ordering::SeqCst);
        let fd = self.signal.load(Ordering::SeqCst);
        if fd >= 0 {
            signal(fd, 1);
        }
    }
}

thread_local! {
    static CURRENT: Cell<*const Thread> = const { Cell::new(std::ptr::null()) };
}

/// Returns the calling thread, if this library created or adopted it.
pub(super) fn current() -> Option<&'static Thread> {
    // SAFETY: Own Thread: the object lives as long as the thread, and no caller keeps the borrow
    // longer.
    unsafe { CURRENT.get().as_ref() }
}

/// Returns the calling thread. A thread that this library did not create gets its object now, and
/// keeps it until it ends.
pub(super) fn adopted() -> Arc<Thread> {
    if CURRENT.get().is_null() {
        let thread = Arc::into_raw(Arc::new(Thread::of(this_thread(), None)));
        CURRENT.set(thread);
        // SAFETY: Plain Call: the key exists. Handed Over: the key keeps the reference.
        unsafe { libc::pthread_setspecific(key(), thread.cast()) };
    }
    // SAFETY: Own Thread: the object came from an `Arc`, and lives as long as the thread.
    unsafe {
        Arc::increment_strong_count(CURRENT.get());
        Arc::from_raw(CURRENT.get())
    }
}

/// Returns the key whose destructor is called at the end of each thread of this library.
fn key() -> libc::pthread_key_t {
    static KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();
    *KEY.get_or_init(|| system::key_new(Some(over)).expect("the process has a key left"))
}

/// The destructor of the key, which is called when a thread ends.
extern "C" fn over(value: *mut c_void) {
    // SAFETY: Handed Over: the value is the thread's own reference, which `begin` stored and this
    // call takes.
    let thread = unsafe { Arc::from_raw(value.cast_const().cast::<Thread>()) };
    CURRENT.set(std::ptr::null());
    thread.end();
}

/// The first function of each thread. It owns nothing, because an exit cuts off its frame.
extern "C-unwind" fn begin(argument: *mut c_void) -> *mut c_void {
    let thread = argument.cast_const().cast::<Thread>();
    CURRENT.set(thread);
    // SAFETY: Plain Call: the key exists.
    unsafe { libc::pthread_setspecific(key(), argument) };
    // SAFETY: Own Thread: from now on the key keeps the reference.
    let thread = unsafe { &*thread };
    if raw::own_thread_id().is_none() {
        // Its creator may be a scheduler or a worker, which are pinned.
        system::use_process_mask();
    }
    thread.id.store(this_thread(), Ordering::Release);
    system::wake(&thread.id, i32::MAX);
    let mut suspended = thread.suspended.load(Ordering::Acquire);
    while suspended != 0 {
        system::wait(&thread.suspended, suspended, None);
        suspended = thread.suspended.load(Ordering::Acquire);
    }
    let Some((start, argument)) = thread.work.lock().take() else { return std::ptr::null_mut() };
    let code = start(argument);
    thread.exit_code.store(code, Ordering::Release);
    std::ptr::null_mut()
}

/// Creates the pthread of a thread, and waits until the kernel's number of the thread is known.
pub(super) fn start(thread: &Arc<Thread>, stack: usize) -> Result<(), u32> {
    let argument = Arc::into_raw(thread.clone());
    // SAFETY: Plain Call: the attributes outlive the call. The function gets the argument that it
    // expects. The function may unwind, which pthread_exit needs and which its type in libc cannot
    // express.
    let failed = unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        // If the stack size is refused, the default size remains.
        libc::pthread_attr_setstacksize(&mut attributes, stack);
        let entry = std::mem::transmute::<
            extern "C-unwind" fn(*mut c_void) -> *mut c_void,
            extern "C" fn(*mut c_void) -> *mut c_void,
        >(begin);
        let mut id = 0;
        let made = libc::pthread_create(&mut id, &attributes, entry, argument.cast_mut().cast());
        libc::pthread_attr_destroy(&mut attributes);
        made != 0
    };
    if failed {
        // SAFETY: Handed Over: no thread was created that could take it.
        drop(unsafe { Arc::from_raw(argument) });
        return Err(ERROR_NOT_ENOUGH_MEMORY);
    }
    while thread.id() == 0 {
        system::wait(&thread.id, 0, None);
    }
    Ok(())
}

/// Starts a thread as a UMS worker, which waits to be executed. If `own` is set, the worker has its
/// own context.
pub(super) fn start_worker(
    thread: &Arc<Thread>,
    worker: &Worker,
    own: bool,
    stack: usize,
) -> Result<(), u32> {
    let arc = Arc::into_raw(thread.clone());
    // SAFETY: Contract: `begin` takes the reference.
    let made = unsafe { worker::start(worker, own, stack, begin, arc.cast_mut().cast()) };
    let (context, id) = made.inspect_err(|_| {
        // SAFETY: Handed Over: no thread was created that could take it.
        drop(unsafe { Arc::from_raw(arc) });
    })?;
    thread.context.store(context, Ordering::Release);
    thread.id.store(id, Ordering::Release);
    Ok(())
}

/// Returns true if this is the calling thread.
pub(super) fn is_caller(thread: &Arc<Thread>) -> bool {
    std::ptr::eq(Arc::as_ptr(thread), CURRENT.get())
}

/// Returns the kernel's number of the calling thread. For a worker with its own context, returns
/// the number of its own kernel thread.
pub(super) fn this_thread() -> u32 {
    raw::own_thread_id().unwrap_or_else(system::kernel_thread)
}
