//! Locks inside a process: critical sections, slim reader-writer locks, condition variables and
//! one-time initialisation. Each consists of words in the program's memory, and threads sleep on
//! these words (futex).
//!
//! A pointer to a lock is treated as a borrow: the lock stays valid while it is used, and only this
//! file accesses its words, as atomics.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::error::{BOOL, ERROR_TIMEOUT, FALSE, SetLastError, TRUE};
use super::object::INFINITE;
use super::system;
use super::thread::GetCurrentThreadId;
use crate::caller::{Argument, Out};

/// `CRITICAL_SECTION`.
///
/// ```text
///   word | meaning
///   0    | free
///   1    | owned, no thread sleeps
///   2    | owned, threads may sleep
/// ```
#[repr(C)]
#[derive(Default)]
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
                system::wait(&self.word, 2, None);
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
            system::wake(&self.word, 1);
        }
    }
}

/// Initialises a critical section.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeCriticalSection(section: Out<'_, CriticalSection>) {
    InitializeCriticalSectionAndSpinCount(section, 0);
}

/// Initialises a critical section. `spins` is the number of tries before a thread sleeps.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeCriticalSectionAndSpinCount(
    mut section: Out<'_, CriticalSection>,
    spins: u32,
) -> BOOL {
    section.put(CriticalSection { spins: AtomicUsize::new(spins as usize), ..Default::default() });
    TRUE
}

/// Like `InitializeCriticalSectionAndSpinCount`.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeCriticalSectionEx(
    section: Out<'_, CriticalSection>,
    spins: u32,
    _flags: u32,
) -> BOOL {
    InitializeCriticalSectionAndSpinCount(section, spins)
}

/// Enters a critical section. Waits without a time limit.
#[unsafe(no_mangle)]
pub extern "C" fn EnterCriticalSection(section: &CriticalSection) {
    section.enter();
}

/// Enters a critical section if that is possible without waiting.
#[unsafe(no_mangle)]
pub extern "C" fn TryEnterCriticalSection(section: &CriticalSection) -> BOOL {
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

/// Leaves a critical section.
#[unsafe(no_mangle)]
pub extern "C" fn LeaveCriticalSection(section: &CriticalSection) {
    section.leave();
}

/// Ends the use of a critical section.
#[unsafe(no_mangle)]
pub extern "C" fn DeleteCriticalSection(_section: &CriticalSection) {}

/// `SRWLOCK`: the number of readers, or WRITER; plus SLEEPERS while threads may sleep.
#[repr(C)]
#[derive(Default)]
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
                system::wait(&self.word, word, None);
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
            // The last owner wakes all sleeping threads, and they compete for the lock.
            self.word.fetch_and(!SLEEPERS, Ordering::Relaxed);
            system::wake(&self.word, i32::MAX);
        }
    }
}

fn no_writer(word: u32) -> bool {
    word & WRITER == 0
}

fn no_owner(word: u32) -> bool {
    word == 0
}

/// Initialises a lock. An all-zero lock is initialised as well.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeSRWLock(mut lock: Out<'_, SlimLock>) {
    lock.put(SlimLock::default());
}

/// Locks a slim lock exclusively.
#[unsafe(no_mangle)]
pub extern "C" fn AcquireSRWLockExclusive(lock: &SlimLock) {
    lock.lock(WRITER, no_owner);
}

/// Locks a slim lock together with other readers.
#[unsafe(no_mangle)]
pub extern "C" fn AcquireSRWLockShared(lock: &SlimLock) {
    lock.lock(1, no_writer);
}

/// Locks a slim lock exclusively if that is possible without waiting. Returns 1 if this call has
/// locked it, or else 0.
#[unsafe(no_mangle)]
pub extern "C" fn TryAcquireSRWLockExclusive(lock: &SlimLock) -> u8 {
    lock.try_lock(WRITER, no_owner).into()
}

/// Locks a slim lock together with other readers if that is possible without waiting. Returns 1 if
/// this call has locked it, or else 0.
#[unsafe(no_mangle)]
pub extern "C" fn TryAcquireSRWLockShared(lock: &SlimLock) -> u8 {
    lock.try_lock(1, no_writer).into()
}

/// Unlocks a slim lock that the caller has locked exclusively.
#[unsafe(no_mangle)]
pub extern "C" fn ReleaseSRWLockExclusive(lock: &SlimLock) {
    lock.unlock(WRITER);
}

/// Unlocks a slim lock that the caller has locked together with other readers.
#[unsafe(no_mangle)]
pub extern "C" fn ReleaseSRWLockShared(lock: &SlimLock) {
    lock.unlock(1);
}

/// `CONDITION_VARIABLE`: a number that each wake changes.
#[repr(C)]
#[derive(Default)]
pub struct ConditionVariable {
    turn: AtomicU32,
    unused: u32,
}

impl ConditionVariable {
    fn sleep(&self, ms: u32, unlock: impl FnOnce(), lock: impl FnOnce()) -> BOOL {
        // Read before the unlock. If a wake comes after the unlock, it changes the number, and the
        // sleep ends immediately.
        let turn = self.turn.load(Ordering::Acquire);
        unlock();
        let woken = system::wait(&self.turn, turn, (ms != INFINITE).then_some(ms));
        lock();
        if woken {
            return TRUE;
        }
        SetLastError(ERROR_TIMEOUT);
        FALSE
    }

    fn wake(&self, count: i32) {
        self.turn.fetch_add(1, Ordering::Release);
        system::wake(&self.turn, count);
    }
}

/// Initialises a condition variable. An all-zero variable is initialised as well.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeConditionVariable(mut variable: Out<'_, ConditionVariable>) {
    variable.put(ConditionVariable::default());
}

/// Leaves the section, waits until it is woken, and enters the section again. It may also wake
/// without a cause.
#[unsafe(no_mangle)]
pub extern "C" fn SleepConditionVariableCS(
    variable: &ConditionVariable,
    section: &CriticalSection,
    ms: u32,
) -> BOOL {
    variable.sleep(ms, || section.leave(), || section.enter())
}

/// Like `SleepConditionVariableCS`, with a slim lock. If `flags` is 1, the caller has locked it
/// shared.
#[unsafe(no_mangle)]
pub extern "C" fn SleepConditionVariableSRW(
    variable: &ConditionVariable,
    lock: &SlimLock,
    ms: u32,
    flags: u32,
) -> BOOL {
    if flags & 1 == 1 {
        variable.sleep(ms, || lock.unlock(1), || lock.lock(1, no_writer))
    } else {
        variable.sleep(ms, || lock.unlock(WRITER), || lock.lock(WRITER, no_owner))
    }
}

/// Wakes one sleeping thread.
#[unsafe(no_mangle)]
pub extern "C" fn WakeConditionVariable(variable: &ConditionVariable) {
    variable.wake(1);
}

/// Wakes all sleeping threads.
#[unsafe(no_mangle)]
pub extern "C" fn WakeAllConditionVariable(variable: &ConditionVariable) {
    variable.wake(i32::MAX);
}

/// `INIT_ONCE`. 0: not begun; 1: running; 2: done.
#[repr(C)]
pub struct InitOnce {
    state: AtomicU32,
    unused: u32,
}

/// The function that `InitOnceExecuteOnce` calls.
pub type InitOnceCallback = Option<
    extern "C-unwind" fn(&InitOnce, parameter: Argument, context: Out<'_, Argument>) -> BOOL,
>;

/// Calls the function once for all callers. Other callers wait meanwhile. If the function returns
/// false, the next caller calls it again.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn InitOnceExecuteOnce(
    once: &InitOnce,
    callback: InitOnceCallback,
    parameter: Argument,
    context: Out<'_, Argument>,
) -> BOOL {
    let Some(callback) = callback else {
        SetLastError(super::error::ERROR_INVALID_PARAMETER);
        return FALSE;
    };
    let state = &once.state;
    loop {
        match state.compare_exchange(0, 1, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => break,
            Err(2) => return TRUE,
            Err(seen) => _ = system::wait(state, seen, None),
        }
    }
    let said = callback(once, parameter, context);
    state.store(if said == 0 { 0 } else { 2 }, Ordering::Release);
    system::wake(state, i32::MAX);
    said
}
