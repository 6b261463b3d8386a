//! Threads: made, waited for, ended.
//!
//! A thread is a pthread of our own making, so that it may end by returning, by `ExitThread` or by
//! `pthread_exit`: nothing stands below its start routine that an unwinding could trip over.
//! However it ends, a destructor of thread-specific data stores its exit code and signals its end.
//!
//! A thread's end can be waited for by an eventfd that is made by the first who waits, so that a
//! thousand threads need no thousand descriptors.
//!
//! Named invariant **Own Thread**: `CURRENT` is null or points at the calling thread's own
//! [`Thread`], of which the thread keeps a reference until it is over.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use ums::windows::raw;

use super::attributes::{self, AttributeList};
use super::error::{
    BOOL, ERROR_INVALID_HANDLE, ERROR_INVALID_PARAMETER, ERROR_NOT_ENOUGH_MEMORY,
    ERROR_NOT_SUPPORTED, done, given, guarded, os,
};
use super::futex;
use super::handle::{self, CURRENT_PROCESS, CURRENT_THREAD, HANDLE};
use super::object::{Object, eventfd, signal};
use super::scheduling;

/// The exit code of a thread that has not ended.
pub const STILL_ACTIVE: u32 = 259;
/// Made, and not to run before `ResumeThread`.
pub const CREATE_SUSPENDED: u32 = 4;
/// `stack_size` is address space; here it always is.
pub const STACK_SIZE_PARAM_IS_A_RESERVATION: u32 = 0x0001_0000;

/// Of a UMS worker: it has its own context, and is executed without a system call. This library's
/// own.
pub const UMS_THREAD_OWN_CONTEXT: u32 = 0x0100_0000;

/// A thread's stack, at least.
const STACK: usize = 1 << 20;

/// A start routine.
pub type ThreadStart = Option<unsafe extern "C-unwind" fn(*mut c_void) -> u32>;

unsafe extern "C-unwind" {
    // Declared here because it unwinds the frames above it, which libc's declaration denies.
    fn pthread_exit(value: *mut c_void) -> !;
}

/// A thread, as its handles and itself see it.
pub struct Thread {
    /// The kernel's number; 0 until it runs.
    id: AtomicU32,
    exit_code: AtomicU32,
    ended: AtomicU32,
    /// Times it was suspended before it began.
    suspended: AtomicU32,
    /// The eventfd that its end signals; -1 until somebody waits.
    signal: AtomicI32,
    /// Its UMS context, for workers.
    context: AtomicUsize,
    start: unsafe extern "C-unwind" fn(*mut c_void) -> u32,
    argument: usize,
}

impl Drop for Thread {
    fn drop(&mut self) {
        let fd = *self.signal.get_mut();
        if fd >= 0 {
            // SAFETY: Plain Call: it is ours, and nobody else's any more.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
}

impl Thread {
    fn new(
        start: unsafe extern "C-unwind" fn(*mut c_void) -> u32,
        argument: *mut c_void,
    ) -> Thread {
        Thread {
            id: AtomicU32::new(0),
            exit_code: AtomicU32::new(STILL_ACTIVE),
            ended: AtomicU32::new(0),
            suspended: AtomicU32::new(0),
            signal: AtomicI32::new(-1),
            context: AtomicUsize::new(0),
            start,
            argument: argument.addr(),
        }
    }

    /// The kernel's number of it.
    pub fn id(&self) -> u32 {
        self.id.load(Ordering::Acquire)
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst) != 0
    }

    /// The descriptor that becomes readable with its end.
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
        // SeqCst on both sides: its end sees our descriptor, or we see its end.
        let fd = self.signal.load(Ordering::SeqCst);
        if self.has_ended() {
            signal(fd, 1);
        }
        Ok(fd)
    }

    fn end(&self) {
        let unsaid = (STILL_ACTIVE, 0);
        // Whoever left by pthread_exit has said nothing.
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

fn current() -> Option<&'static Thread> {
    // SAFETY: Own Thread: it lives as long as the thread, and nobody keeps the borrow longer.
    unsafe { CURRENT.get().as_ref() }
}

/// The key whose destructor is called at the end of each of our threads.
fn key() -> libc::pthread_key_t {
    static KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: Plain Call: `key` outlives it, and the function is good for every value we set.
        let made = unsafe { libc::pthread_key_create(&mut key, Some(over)) };
        assert_eq!(made, 0, "the process has a key left");
        key
    })
}

extern "C" fn over(value: *mut c_void) {
    // SAFETY: Own Thread: the value is the thread's own reference, set in `begin`, taken here.
    let thread = unsafe { Arc::from_raw(value.cast_const().cast::<Thread>()) };
    CURRENT.set(std::ptr::null());
    thread.end();
}

/// The first function of each of our threads. It owns nothing: an exit cuts it off.
extern "C-unwind" fn begin(argument: *mut c_void) -> *mut c_void {
    let thread = argument.cast_const().cast::<Thread>();
    CURRENT.set(thread);
    // SAFETY: Plain Call: the key is ours.
    unsafe { libc::pthread_setspecific(key(), argument) };
    // SAFETY: Own Thread: the reference is kept by the key from now on.
    let thread = unsafe { &*thread };
    thread.id.store(GetCurrentThreadId(), Ordering::Release);
    futex::wake(&thread.id, i32::MAX);
    let mut suspended = thread.suspended.load(Ordering::Acquire);
    while suspended != 0 {
        futex::wait(&thread.suspended, suspended, None);
        suspended = thread.suspended.load(Ordering::Acquire);
    }
    // SAFETY: C Caller: the start routine may be called with its argument on a new thread.
    let code = unsafe { (thread.start)(std::ptr::with_exposed_provenance_mut(thread.argument)) };
    thread.exit_code.store(code, Ordering::Release);
    std::ptr::null_mut()
}

/// Makes the pthread.
fn start(thread: &Arc<Thread>, stack: usize) -> Result<(), u32> {
    let argument = Arc::into_raw(thread.clone());
    // SAFETY: Plain Call: the attributes outlive the call. The function is given what it expects;
    // that it may unwind is what pthread_exit needs, and its type in libc cannot say.
    let failed = unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setdetachstate(&mut attributes, libc::PTHREAD_CREATE_DETACHED);
        // A size that the system refuses leaves the default.
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
        // SAFETY: Own Thread: there is no thread that would take it.
        drop(unsafe { Arc::from_raw(argument) });
        return Err(ERROR_NOT_ENOUGH_MEMORY);
    }
    while thread.id() == 0 {
        futex::wait(&thread.id, 0, None);
    }
    Ok(())
}

/// A new thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn CreateThread(
    _security: *mut c_void,
    stack_size: usize,
    start_routine: ThreadStart,
    argument: *mut c_void,
    flags: u32,
    id: *mut u32,
) -> HANDLE {
    // SAFETY: C Caller: passed on.
    unsafe {
        CreateRemoteThreadEx(
            CURRENT_PROCESS,
            std::ptr::null_mut(),
            stack_size,
            start_routine,
            argument,
            flags,
            std::ptr::null_mut(),
            id,
        )
    }
}

/// A new thread in this process, the only one there is here. With the attribute
/// `PROC_THREAD_ATTRIBUTE_UMS_THREAD` it is a UMS worker: it is queued to its completion list, and
/// runs when a scheduler executes it. With the flag `UMS_THREAD_OWN_CONTEXT`, which Windows does
/// not have, or with `UMS_WINDOWS_WORKERS=context` in the environment, that is done without a
/// system call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn CreateRemoteThreadEx(
    process: HANDLE,
    _security: *mut c_void,
    stack_size: usize,
    start_routine: ThreadStart,
    argument: *mut c_void,
    flags: u32,
    attributes: *mut AttributeList,
    id: *mut u32,
) -> HANDLE {
    guarded(std::ptr::null_mut(), || {
        let routine = start_routine.ok_or(ERROR_INVALID_PARAMETER)?;
        if process != CURRENT_PROCESS {
            return Err(if process.is_null() { ERROR_INVALID_HANDLE } else { ERROR_NOT_SUPPORTED });
        }
        let known = CREATE_SUSPENDED | STACK_SIZE_PARAM_IS_A_RESERVATION | UMS_THREAD_OWN_CONTEXT;
        if flags & !known != 0 {
            return Err(ERROR_INVALID_PARAMETER);
        }
        argument.expose_provenance();
        let thread = Arc::new(Thread::new(routine, argument));
        // SAFETY: C Caller: NULL, or an initialised list.
        let worker = unsafe { attributes::ums(attributes) }?;
        let own = flags & UMS_THREAD_OWN_CONTEXT != 0;
        if own && worker.is_none() {
            return Err(ERROR_INVALID_PARAMETER);
        }
        // The handle first: once the thread runs there is no way back.
        let handle = handle::make(Object::Thread(thread.clone()))?;
        // As on Windows, the size is what is used at first, and there is room for 1 MiB at least.
        let stack = stack_size.clamp(STACK, 1 << 40).next_multiple_of(65536);
        let suspend = flags & CREATE_SUSPENDED != 0;
        thread.suspended.store(suspend.into(), Ordering::Release);
        let made = match worker {
            None => start(&thread, stack),
            Some(worker) => {
                let arc = Arc::into_raw(thread.clone());
                let made = scheduling::start(&worker, own, stack, begin, arc.cast_mut().cast());
                made.map(|(context, id)| {
                    thread.context.store(context, Ordering::Release);
                    thread.id.store(id, Ordering::Release);
                })
                .inspect_err(|_| {
                    // SAFETY: Own Thread: there is no thread that would take it.
                    drop(unsafe { Arc::from_raw(arc) });
                })
            }
        };
        if let Err(code) = made {
            handle::CloseHandle(handle);
            return Err(code);
        }
        if !id.is_null() {
            // SAFETY: C Caller: NULL or writable.
            unsafe { *id = thread.id() };
        }
        Ok(handle)
    })
}

/// As `CreateRemoteThreadEx`, without attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn CreateRemoteThread(
    process: HANDLE,
    security: *mut c_void,
    stack_size: usize,
    start_routine: ThreadStart,
    argument: *mut c_void,
    flags: u32,
    id: *mut u32,
) -> HANDLE {
    let none = std::ptr::null_mut();
    // SAFETY: C Caller: passed on.
    unsafe {
        CreateRemoteThreadEx(
            process,
            security,
            stack_size,
            start_routine,
            argument,
            flags,
            none,
            id,
        )
    }
}

/// Ends the calling thread. As with pthread_exit, cleanup handlers run.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ExitThread(code: u32) -> ! {
    if let Some(thread) = current() {
        thread.exit_code.store(code, Ordering::Release);
    }
    raw::before_exit();
    // SAFETY: C Caller: the frames above are the caller's, and here nothing needs a destructor.
    unsafe { pthread_exit(std::ptr::null_mut()) }
}

/// Ends the calling thread; no other can be ended by force (ERROR_NOT_SUPPORTED), because its locks
/// would stay locked.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn TerminateThread(thread: HANDLE, code: u32) -> BOOL {
    let own = thread == CURRENT_THREAD || find(thread).is_ok_and(|t| is_caller(&t));
    if own {
        // SAFETY: C Caller: passed on.
        unsafe { ExitThread(code) }
    }
    done(find(thread).and(Err(ERROR_NOT_SUPPORTED)))
}

fn is_caller(thread: &Arc<Thread>) -> bool {
    std::ptr::eq(Arc::as_ptr(thread), CURRENT.get())
}

/// The thread behind a handle.
pub(super) fn find(handle: HANDLE) -> Result<Arc<Thread>, u32> {
    match &*handle::get(handle)? {
        Object::Thread(thread) => Ok(thread.clone()),
        _ => Err(ERROR_INVALID_HANDLE),
    }
}

/// The exit code of a thread; STILL_ACTIVE while it runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn GetExitCodeThread(thread: HANDLE, code: *mut u32) -> BOOL {
    if code.is_null() {
        return done(Err(ERROR_INVALID_PARAMETER));
    }
    let now = |thread: &Thread| {
        let code = thread.exit_code.load(Ordering::Acquire);
        if thread.has_ended() { code } else { STILL_ACTIVE }
    };
    let found = match thread {
        CURRENT_THREAD => Ok(STILL_ACTIVE),
        other => find(other).map(|thread| now(&thread)),
    };
    // SAFETY: C Caller: `code` is writable.
    done(found.map(|found| unsafe { *code = found }))
}

/// The kernel's number of a thread, as gdb and perf show it.
#[unsafe(no_mangle)]
pub extern "C" fn GetThreadId(thread: HANDLE) -> u32 {
    match thread {
        CURRENT_THREAD => GetCurrentThreadId(),
        other => given(0, find(other).map(|thread| thread.id())),
    }
}

/// The kernel's number of the calling thread: of its own kernel thread, if it is a worker that has
/// its own context.
#[unsafe(no_mangle)]
pub extern "C" fn GetCurrentThreadId() -> u32 {
    // SAFETY: Plain Call.
    raw::own_thread_id().unwrap_or_else(|| unsafe { libc::gettid() as u32 })
}

/// A pseudo handle for the calling thread.
#[unsafe(no_mangle)]
pub extern "C" fn GetCurrentThread() -> HANDLE {
    CURRENT_THREAD
}

/// A pseudo handle for this process.
#[unsafe(no_mangle)]
pub extern "C" fn GetCurrentProcess() -> HANDLE {
    CURRENT_PROCESS
}

/// The number of this process.
#[unsafe(no_mangle)]
pub extern "C" fn GetCurrentProcessId() -> u32 {
    std::process::id()
}

/// Gives others a chance to run. True: another may have run.
#[unsafe(no_mangle)]
pub extern "C" fn SwitchToThread() -> BOOL {
    // SAFETY: Plain Call.
    unsafe { libc::sched_yield() };
    1
}

/// Lets a suspended thread go on. Gives how often it had been suspended, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn ResumeThread(thread: HANDLE) -> u32 {
    given(
        u32::MAX,
        find(thread).map(|thread| {
            if let Some(before) = scheduling::resume(thread.context.load(Ordering::Acquire)) {
                // A worker made suspended waits in both places.
                let _ = less(&thread);
                return before;
            }
            less(&thread)
        }),
    )
}

fn less(thread: &Thread) -> u32 {
    let one_less = |n: u32| n.checked_sub(1);
    let before = thread.suspended.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
    if before == Ok(1) {
        futex::wake(&thread.suspended, 1);
    }
    before.unwrap_or(0)
}

/// Suspends a UMS worker, or a thread that was made suspended once more; another running thread
/// cannot be (ERROR_NOT_SUPPORTED). Gives how often it had been suspended, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn SuspendThread(thread: HANDLE) -> u32 {
    given(
        u32::MAX,
        find(thread).and_then(|thread| {
            if let Some(before) = scheduling::suspend(thread.context.load(Ordering::Acquire)) {
                return Ok(before);
            }
            let one_more = |n: u32| (n > 0).then_some(n + 1);
            let more = thread.suspended.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
            more.map_err(|_| ERROR_NOT_SUPPORTED)
        }),
    )
}

/// Which processors a thread may use. Gives the mask it had, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn SetThreadAffinityMask(thread: HANDLE, mask: usize) -> usize {
    let set = || {
        let id = if thread == CURRENT_THREAD { 0 } else { find(thread)?.id() } as libc::pid_t;
        let size = size_of::<usize>();
        let mut before = [0usize; 16];
        // SAFETY: Plain Call: the kernel writes no more than the size it is told of.
        let (read, written) = unsafe {
            let read = libc::syscall(
                libc::SYS_sched_getaffinity,
                id,
                size_of_val(&before),
                before.as_mut_ptr(),
            );
            let mask = &raw const mask;
            (read, libc::syscall(libc::SYS_sched_setaffinity, id, size, mask))
        };
        if read < 0 || written < 0 { Err(os()) } else { Ok(before[0]) }
    };
    given(0, set())
}

/// As `SetThreadAffinityMask` to one processor, which here is a wish only. Gives 0.
#[unsafe(no_mangle)]
pub extern "C" fn SetThreadIdealProcessor(_thread: HANDLE, _processor: u32) -> u32 {
    0
}

/// Sets a thread's priority, -2 (lowest) to 2 (highest), -15 (idle), 15 (time critical), as its
/// nice value. What the system does not allow is left as it was, and is no error.
#[unsafe(no_mangle)]
pub extern "C" fn SetThreadPriority(thread: HANDLE, priority: i32) -> BOOL {
    let set = || {
        let nice = match priority {
            -15 => 19,
            -2..=2 => -5 * priority,
            15 => -15,
            _ => return Err(ERROR_INVALID_PARAMETER),
        };
        let id = if thread == CURRENT_THREAD { 0 } else { find(thread)?.id() };
        // SAFETY: Plain Call.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, id, nice) };
        Ok(())
    };
    done(set())
}

/// Ends the process.
#[unsafe(no_mangle)]
pub extern "C" fn ExitProcess(code: u32) -> ! {
    std::process::exit(code as i32)
}
