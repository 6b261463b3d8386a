//! The functions that create threads, end them and query them. `pthread.rs` has the threads
//! themselves.
//!
//! There is unsafe code only where a thread ends, because the end unwinds the program's frames.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ums::windows::raw;

use super::attributes::Attributes;
use super::error::{
    BOOL, ERROR_INVALID_HANDLE, ERROR_INVALID_PARAMETER, ERROR_NOT_SUPPORTED, done, given, guarded,
};
use super::handle::{self, CURRENT_PROCESS, CURRENT_THREAD, HANDLE, thread as find};
pub use super::pthread::STILL_ACTIVE;
use super::pthread::{
    StartRoutine, Thread, adopted, current, is_caller, start, start_worker, this_thread,
};
use super::system;
use super::waitable::KernelObject;
use super::worker;
use crate::caller::{Argument, Out};

/// The thread does not begin before `ResumeThread`.
pub const CREATE_SUSPENDED: u32 = 4;
/// `stack_size` is the size of the address space, which is always the case here.
pub const STACK_SIZE_PARAM_IS_A_RESERVATION: u32 = 0x0001_0000;

/// For a UMS worker: it has its own context, and is executed without a system call. Not a flag of
/// Windows: it exists only in this library.
pub const UMS_THREAD_OWN_CONTEXT: u32 = 0x0100_0000;

/// `THREAD_PRIORITY_ERROR_RETURN`.
const NO_PRIORITY: i32 = i32::MAX;

/// The minimum size of a thread's stack.
const STACK: usize = 1 << 20;

/// The start routine of a thread.
pub type ThreadStart = Option<StartRoutine>;

unsafe extern "C-unwind" {
    // Declared here because it unwinds the caller's frames, which the declaration in libc does not
    // permit.
    fn pthread_exit(value: *mut c_void) -> !;
}

/// Creates a thread.
#[unsafe(no_mangle)]
pub extern "C" fn CreateThread(
    _security: *mut c_void,
    stack_size: usize,
    start_routine: ThreadStart,
    argument: Argument,
    flags: u32,
    id: Out<'_, u32>,
) -> HANDLE {
    CreateRemoteThreadEx(
        CURRENT_PROCESS,
        std::ptr::null_mut(),
        stack_size,
        start_routine,
        argument,
        flags,
        Attributes::none(),
        id,
    )
}

/// Creates a thread in this process; other processes are not supported. With the attribute
/// `PROC_THREAD_ATTRIBUTE_UMS_THREAD` the thread is a UMS worker: it is queued to its completion
/// list, and runs when a scheduler executes it. A worker with its own context is executed without a
/// system call. It is created by the flag `UMS_THREAD_OWN_CONTEXT`, which Windows does not have, or
/// by `UMS_WINDOWS_WORKERS=context` in the environment.
#[unsafe(no_mangle)]
pub extern "C" fn CreateRemoteThreadEx(
    process: HANDLE,
    _security: *mut c_void,
    stack_size: usize,
    start_routine: ThreadStart,
    argument: Argument,
    flags: u32,
    attributes: Attributes<'_>,
    mut id: Out<'_, u32>,
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
        let thread = Arc::new(Thread::new(routine, argument));
        let worker = attributes.worker()?;
        let own = flags & UMS_THREAD_OWN_CONTEXT != 0;
        if own && worker.is_none() {
            return Err(ERROR_INVALID_PARAMETER);
        }
        // The handle is made first, because a thread that runs cannot be taken back.
        let handle = handle::make(KernelObject::Thread(thread.clone()))?;
        // As on Windows, `stack_size` is the size that is committed at first; the stack has at
        // least 1 MiB.
        let stack = stack_size.clamp(STACK, 1 << 40).next_multiple_of(65536);
        let suspend = flags & CREATE_SUSPENDED != 0;
        thread.suspended.store(suspend.into(), Ordering::Release);
        let made = match worker {
            None => start(&thread, stack),
            Some(worker) => start_worker(&thread, &worker, own, stack),
        };
        if let Err(code) = made {
            handle::CloseHandle(handle);
            return Err(code);
        }
        id.put(thread.id());
        Ok(handle)
    })
}

/// Like `CreateRemoteThreadEx`, without attributes.
#[unsafe(no_mangle)]
pub extern "C" fn CreateRemoteThread(
    process: HANDLE,
    security: *mut c_void,
    stack_size: usize,
    start_routine: ThreadStart,
    argument: Argument,
    flags: u32,
    id: Out<'_, u32>,
) -> HANDLE {
    let none = Attributes::none();
    CreateRemoteThreadEx(process, security, stack_size, start_routine, argument, flags, none, id)
}

/// Ends the calling thread. Cleanup handlers run, as with pthread_exit.
///
/// The frames that are cut off belong to the program: C has no frames with destructors here.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ExitThread(code: u32) -> ! {
    if let Some(thread) = current() {
        thread.exit_code.store(code, Ordering::Release);
    }
    raw::before_exit();
    // SAFETY: No Drops: the frames above belong to the caller, and this function has nothing to
    // drop.
    unsafe { pthread_exit(std::ptr::null_mut()) }
}

/// Ends the calling thread. No other thread can be ended by force (ERROR_NOT_SUPPORTED), because
/// the locks that it holds would stay locked.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn TerminateThread(thread: HANDLE, code: u32) -> BOOL {
    let own = thread == CURRENT_THREAD || find(thread).is_ok_and(|t| is_caller(&t));
    if own {
        // SAFETY: Contract: this function requires the same of its caller as `ExitThread`.
        unsafe { ExitThread(code) }
    }
    done(find(thread).and(Err(ERROR_NOT_SUPPORTED)))
}

/// Stores the exit code of a thread; STILL_ACTIVE if it has not ended.
#[unsafe(no_mangle)]
pub extern "C" fn GetExitCodeThread(thread: HANDLE, mut code: Out<'_, u32>) -> BOOL {
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
    done(found.map(|found| code.put(found)))
}

/// Returns the kernel's number of a thread, which gdb and perf show.
#[unsafe(no_mangle)]
pub extern "C" fn GetThreadId(thread: HANDLE) -> u32 {
    match thread {
        CURRENT_THREAD => GetCurrentThreadId(),
        other => given(0, find(other).map(|thread| thread.id())),
    }
}

/// Returns the kernel's number of the calling thread. For a worker with its own context, returns
/// the number of its own kernel thread.
#[unsafe(no_mangle)]
pub extern "C" fn GetCurrentThreadId() -> u32 {
    this_thread()
}

/// Returns a pseudo handle for the calling thread.
#[unsafe(no_mangle)]
pub extern "C" fn GetCurrentThread() -> HANDLE {
    CURRENT_THREAD
}

/// Yields the processor to other threads. Returns true, because another thread may have run.
#[unsafe(no_mangle)]
pub extern "C" fn SwitchToThread() -> BOOL {
    std::thread::yield_now();
    1
}

/// Resumes a suspended thread. Returns how many times it was suspended before, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn ResumeThread(thread: HANDLE) -> u32 {
    given(
        u32::MAX,
        find(thread).map(|thread| {
            if let Some(before) = worker::resume(thread.context.load(Ordering::Acquire)) {
                // A worker that was created suspended is counted as suspended in two places.
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
        system::wake(&thread.suspended, 1);
    }
    before.unwrap_or(0)
}

/// Suspends a UMS worker, or suspends once more a thread that was created suspended. Another
/// running thread cannot be suspended (ERROR_NOT_SUPPORTED). Returns how many times it was
/// suspended before, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn SuspendThread(thread: HANDLE) -> u32 {
    given(
        u32::MAX,
        find(thread).and_then(|thread| {
            if let Some(before) = worker::suspend(thread.context.load(Ordering::Acquire)) {
                return Ok(before);
            }
            let one_more = |n: u32| (n > 0).then_some(n + 1);
            let more = thread.suspended.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more);
            more.map_err(|_| ERROR_NOT_SUPPORTED)
        }),
    )
}

/// Sets the processors that a thread may use. Returns the previous mask, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn SetThreadAffinityMask(thread: HANDLE, mask: usize) -> usize {
    let set = || {
        let id = if thread == CURRENT_THREAD { 0 } else { find(thread)?.id() };
        // Before the first thread is pinned.
        system::allowed();
        system::set_affinity(id, mask)
    };
    given(0, set())
}

/// On Windows this names a preferred processor. It has no effect here. Returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn SetThreadIdealProcessor(_thread: HANDLE, _processor: u32) -> u32 {
    0
}

/// Sets a thread's priority as its nice value: -2 (lowest) to 2 (highest), -15 (idle), 15 (time
/// critical). If the system does not allow the change, it has no effect, and is no error.
#[unsafe(no_mangle)]
pub extern "C" fn SetThreadPriority(thread: HANDLE, priority: i32) -> BOOL {
    let set = || {
        let nice = match priority {
            -15 => 19,
            -2..=2 => -5 * priority, // Bounded: by the pattern.
            15 => -15,
            _ => return Err(ERROR_INVALID_PARAMETER),
        };
        let thread = any(thread)?;
        system::set_nice(thread.id(), nice);
        thread.priority.store(priority, Ordering::Relaxed);
        Ok(())
    };
    done(set())
}

/// Returns the priority that `SetThreadPriority` has set, or else 0 (normal).
#[unsafe(no_mangle)]
pub extern "C" fn GetThreadPriority(thread: HANDLE) -> i32 {
    given(NO_PRIORITY, any(thread).map(|thread| thread.priority.load(Ordering::Relaxed)))
}

/// Returns the thread behind a handle, or the calling thread for its pseudo handle.
fn any(thread: HANDLE) -> Result<Arc<Thread>, u32> {
    if thread == CURRENT_THREAD { Ok(adopted()) } else { find(thread) }
}
