//! Locks inside a process: critical sections, slim reader-writer locks, condition variables,
//! one-time initialisation. They are words in the program's memory, with a futex.
//!
//! Named invariant **Program Lock**: the pointer is to a lock of that kind in the program's memory,
//! which stays valid while it is used; only this file uses its words, as atomics.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::error::{BOOL, ERROR_TIMEOUT, FALSE, SetLastError, TRUE};
use super::futex;
use super::object::INFINITE;
use super::thread::GetCurrentThreadId;

/// `CRITICAL_SECTION`.
///
/// ```text
///   word | meaning
///   0    | free
///   1    | owned, no thread sleeps
///   2    | owned, threads may sleep
/// ```
#[repr(C)]
pub struct CriticalSection {
    debug: usize,
    word: AtomicU32,
    depth: AtomicU32,
    owner: AtomicUsize,
    semaphore: usize,
    spins: AtomicUsize,
}

impl CriticalSection {
    fn is_mine(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == GetCurrentThreadId() as usize
    }

    fn own(&self) {
        self.owner.store(GetCurrentThreadId() as usize, Ordering::Relaxed);
        self.depth.store(1, Ordering::Relaxed);
    }

    fn try_take(&self) -> bool {
        self.word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn enter(&self) {
        if self.is_mine() {
            self.depth.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let spins = self.spins.load(Ordering::Relaxed).min(4000);
        if !(0..=spins).any(|_| self.try_take()) {
            while self.word.swap(2, Ordering::Acquire) != 0 {
                futex::wait(&self.word, 2, None);
            }
        }
        self.own();
    }

    fn leave(&self) {
        if self.depth.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        self.owner.store(0, Ordering::Relaxed);
        if self.word.swap(0, Ordering::Release) == 2 {
            futex::wake(&self.word, 1);
        }
    }
}

/// Initialises it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeCriticalSection(section: *mut CriticalSection) {
    // SAFETY: Program Lock.
    unsafe { InitializeCriticalSectionAndSpinCount(section, 0) };
}

/// Initialises it, with a number of tries before it sleeps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeCriticalSectionAndSpinCount(
    section: *mut CriticalSection,
    spins: u32,
) -> BOOL {
    // SAFETY: Program Lock: it is not in use yet.
    unsafe { section.write_bytes(0, 1) };
    // SAFETY: Program Lock.
    unsafe { &*section }.spins.store(spins as usize, Ordering::Relaxed);
    TRUE
}

/// As `InitializeCriticalSectionAndSpinCount`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeCriticalSectionEx(
    section: *mut CriticalSection,
    spins: u32,
    _flags: u32,
) -> BOOL {
    // SAFETY: Program Lock.
    unsafe { InitializeCriticalSectionAndSpinCount(section, spins) }
}

/// Enters it, without a time limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn EnterCriticalSection(section: *mut CriticalSection) {
    // SAFETY: Program Lock.
    unsafe { &*section }.enter();
}

/// Enters it, if that can be done at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TryEnterCriticalSection(section: *mut CriticalSection) -> BOOL {
    // SAFETY: Program Lock.
    let section = unsafe { &*section };
    if section.is_mine() {
        section.depth.fetch_add(1, Ordering::Relaxed);
        return TRUE;
    }
    if section.try_take() {
        section.own();
        return TRUE;
    }
    FALSE
}

/// Leaves it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn LeaveCriticalSection(section: *mut CriticalSection) {
    // SAFETY: Program Lock.
    unsafe { &*section }.leave();
}

/// Ends its use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DeleteCriticalSection(_section: *mut CriticalSection) {}

/// `SRWLOCK`: the number of readers, or WRITER; SLEEPERS while threads may sleep.
#[repr(C)]
pub struct SlimLock {
    word: AtomicU32,
    unused: u32,
}

const WRITER: u32 = 1 << 30;
const SLEEPERS: u32 = 1 << 31;

impl SlimLock {
    fn lock(&self, by: u32, free: impl Fn(u32) -> bool) {
        while !self.try_lock(by, &free) {
            let word = self.word.fetch_or(SLEEPERS, Ordering::Relaxed) | SLEEPERS;
            if !free(word & !SLEEPERS) {
                futex::wait(&self.word, word, None);
            }
        }
    }

    fn try_lock(&self, by: u32, free: impl Fn(u32) -> bool) -> bool {
        let more = |word: u32| free(word & !SLEEPERS).then(|| word + by);
        self.word.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok()
    }

    fn unlock(&self, by: u32) {
        let word = self.word.fetch_sub(by, Ordering::Release) - by;
        if word == SLEEPERS {
            // The last owner wakes all, and they compete for the lock.
            self.word.fetch_and(!SLEEPERS, Ordering::Relaxed);
            futex::wake(&self.word, i32::MAX);
        }
    }
}

fn no_writer(word: u32) -> bool {
    word & WRITER == 0
}

fn no_owner(word: u32) -> bool {
    word == 0
}

/// Initialises it; a lock that is all zero is initialised too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeSRWLock(lock: *mut SlimLock) {
    // SAFETY: Program Lock: it is not in use yet.
    unsafe { lock.write_bytes(0, 1) };
}

/// Locks it exclusively.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn AcquireSRWLockExclusive(lock: *mut SlimLock) {
    // SAFETY: Program Lock.
    unsafe { &*lock }.lock(WRITER, no_owner);
}

/// Locks it together with other readers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn AcquireSRWLockShared(lock: *mut SlimLock) {
    // SAFETY: Program Lock.
    unsafe { &*lock }.lock(1, no_writer);
}

/// Locks it exclusively, if that can be done at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TryAcquireSRWLockExclusive(lock: *mut SlimLock) -> u8 {
    // SAFETY: Program Lock.
    unsafe { &*lock }.try_lock(WRITER, no_owner).into()
}

/// Locks it together with other readers, if that can be done at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TryAcquireSRWLockShared(lock: *mut SlimLock) -> u8 {
    // SAFETY: Program Lock.
    unsafe { &*lock }.try_lock(1, no_writer).into()
}

/// Unlocks it after `AcquireSRWLockExclusive`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ReleaseSRWLockExclusive(lock: *mut SlimLock) {
    // SAFETY: Program Lock.
    unsafe { &*lock }.unlock(WRITER);
}

/// Unlocks it after `AcquireSRWLockShared`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ReleaseSRWLockShared(lock: *mut SlimLock) {
    // SAFETY: Program Lock.
    unsafe { &*lock }.unlock(1);
}

/// `CONDITION_VARIABLE`: a number that each wake changes.
#[repr(C)]
pub struct ConditionVariable {
    turn: AtomicU32,
    unused: u32,
}

impl ConditionVariable {
    fn sleep(&self, ms: u32, unlock: impl FnOnce(), lock: impl FnOnce()) -> BOOL {
        // Read before the unlock: a wake after it changes the number, and the sleep ends at once.
        let turn = self.turn.load(Ordering::Acquire);
        unlock();
        let woken = futex::wait(&self.turn, turn, (ms != INFINITE).then_some(ms));
        lock();
        if woken {
            return TRUE;
        }
        SetLastError(ERROR_TIMEOUT);
        FALSE
    }

    fn wake(&self, count: i32) {
        self.turn.fetch_add(1, Ordering::Release);
        futex::wake(&self.turn, count);
    }
}

/// Initialises it; an all-zero variable is initialised too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeConditionVariable(variable: *mut ConditionVariable) {
    // SAFETY: Program Lock: it is not in use yet.
    unsafe { variable.write_bytes(0, 1) };
}

/// Leaves the section, waits to be woken (or wakes for no reason), and enters it again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SleepConditionVariableCS(
    variable: *mut ConditionVariable,
    section: *mut CriticalSection,
    ms: u32,
) -> BOOL {
    // SAFETY: Program Lock.
    let (variable, section) = unsafe { (&*variable, &*section) };
    variable.sleep(ms, || section.leave(), || section.enter())
}

/// As `SleepConditionVariableCS`, with a slim lock; `flags` 1: it is locked shared.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SleepConditionVariableSRW(
    variable: *mut ConditionVariable,
    lock: *mut SlimLock,
    ms: u32,
    flags: u32,
) -> BOOL {
    // SAFETY: Program Lock.
    let (variable, lock) = unsafe { (&*variable, &*lock) };
    if flags & 1 == 1 {
        variable.sleep(ms, || lock.unlock(1), || lock.lock(1, no_writer))
    } else {
        variable.sleep(ms, || lock.unlock(WRITER), || lock.lock(WRITER, no_owner))
    }
}

/// Wakes one sleeping thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn WakeConditionVariable(variable: *mut ConditionVariable) {
    // SAFETY: Program Lock.
    unsafe { &*variable }.wake(1);
}

/// Wakes all sleeping threads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn WakeAllConditionVariable(variable: *mut ConditionVariable) {
    // SAFETY: Program Lock.
    unsafe { &*variable }.wake(i32::MAX);
}

/// `INIT_ONCE`: 0 not begun, 1 running, 2 done.
#[repr(C)]
pub struct InitOnce {
    state: AtomicU32,
    unused: u32,
}

/// The function that `InitOnceExecuteOnce` calls.
pub type InitOnceCallback = Option<
    unsafe extern "C-unwind" fn(
        *mut InitOnce,
        parameter: *mut c_void,
        context: *mut *mut c_void,
    ) -> BOOL,
>;

/// Calls the function once, for all callers; the other callers wait. If it returns false, the next
/// caller tries.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn InitOnceExecuteOnce(
    once: *mut InitOnce,
    callback: InitOnceCallback,
    parameter: *mut c_void,
    context: *mut *mut c_void,
) -> BOOL {
    let Some(callback) = callback else {
        SetLastError(super::error::ERROR_INVALID_PARAMETER);
        return FALSE;
    };
    // SAFETY: Program Lock.
    let state = &unsafe { &*once }.state;
    loop {
        match state.compare_exchange(0, 1, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => break,
            Err(2) => return TRUE,
            Err(seen) => _ = futex::wait(state, seen, None),
        }
    }
    // SAFETY: C Caller: it may be called with its parameter.
    let said = unsafe { callback(once, parameter, context) };
    state.store(if said == 0 { 0 } else { 2 }, Ordering::Release);
    futex::wake(state, i32::MAX);
    said
}
