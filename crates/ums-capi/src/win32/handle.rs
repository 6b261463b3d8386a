//! Handles: numbers that stand for objects.
//!
//! ```text
//!   HANDLE bits   31 .. 22 generation | 21 .. 2 slot | 00
//!   slot word     generation | OPEN | uses             OPEN: the handle has not been closed
//! ```
//!
//! A handle contains the number of a slot. Its generation shows whether the object for which the
//! handle was made is still in that slot. The uses of an object are counted. Closing the handle
//! clears OPEN. When the last use ends after that, the object is dropped and the slot goes to the
//! list of free slots. All of this uses only compare-and-swap, because an entry point must not wait
//! for a lock that a stopped worker holds. Memory is allocated only if more slots are needed than
//! ever before.
//!
//! A call with a closed handle fails with ERROR_INVALID_HANDLE, until the slot has been used
//! another 1023 times.
//!
//! This file has unsafe code, because objects are moved in and out of slots that many threads
//! access:
//!
//! * Type Stable: slots are never freed.
//! * Held: an object is written and dropped only by the thread that changed its slot's word to no
//!   use and not OPEN, and it is read only by a counted use.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::error::{
    BOOL, ERROR_INVALID_HANDLE, ERROR_INVALID_PARAMETER, ERROR_NOT_ENOUGH_MEMORY,
    ERROR_NOT_SUPPORTED, done,
};
use super::pthread::{Thread, adopted};
use super::waitable::KernelObject;
use crate::caller::Out;

/// A handle, as programs use it.
pub type HANDLE = *mut c_void;

/// The pseudo handle of the calling process.
pub const CURRENT_PROCESS: HANDLE = usize::MAX as HANDLE;
/// The pseudo handle of the calling thread.
pub const CURRENT_THREAD: HANDLE = (usize::MAX - 1) as HANDLE;

const SEGMENT: usize = 1024;
const SEGMENTS: usize = 1024;
const GENERATIONS: u64 = 1 << 10;
const OPEN: u64 = 1 << 31;
const USES: u64 = OPEN - 1;

struct Slot {
    word: AtomicU64,
    /// The next free slot, plus one.
    next: AtomicU32,
    object: UnsafeCell<MaybeUninit<KernelObject>>,
}

// SAFETY: Held: an object is shared as `&KernelObject`, and only one thread at a time moves it in
// or out.
unsafe impl Sync for Slot {}

static TABLE: [AtomicPtr<[Slot; SEGMENT]>; SEGMENTS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; SEGMENTS];
/// Number of slots that have ever been used.
static USED: AtomicU32 = AtomicU32::new(0);
/// The number of the first free slot plus one. The upper half is a counter that every change
/// increments.
static FREE: AtomicU64 = AtomicU64::new(0);

fn slot(index: u32) -> Option<&'static Slot> {
    let segment = TABLE.get(index as usize / SEGMENT)?.load(Ordering::Acquire);
    // SAFETY: Type Stable: a segment is never freed.
    let segment = unsafe { segment.as_ref() }?;
    Some(&segment[index as usize % SEGMENT])
}

fn new_slot() -> Option<u32> {
    let index = USED.fetch_add(1, Ordering::Relaxed);
    let Some(place) = TABLE.get(index as usize / SEGMENT) else {
        USED.fetch_sub(1, Ordering::Relaxed);
        return None;
    };
    if place.load(Ordering::Acquire).is_null() {
        let empty = || Slot {
            word: AtomicU64::new(0),
            next: AtomicU32::new(0),
            object: UnsafeCell::new(MaybeUninit::uninit()),
        };
        let slots: Box<[Slot]> = (0..SEGMENT).map(|_| empty()).collect();
        let made = Box::into_raw(slots).cast::<[Slot; SEGMENT]>();
        let null = std::ptr::null_mut();
        if place.compare_exchange(null, made, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: Type Stable: this segment was never published, because another thread
            // published one first.
            drop(unsafe { Box::from_raw(made) });
        }
    }
    Some(index)
}

fn free_slot() -> Option<u32> {
    let mut head = FREE.load(Ordering::Acquire);
    loop {
        let index = (head as u32).checked_sub(1)?;
        let next = slot(index)?.next.load(Ordering::Relaxed);
        let to = ((head >> 32) + 1) << 32 | u64::from(next);
        match FREE.compare_exchange_weak(head, to, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some(index),
            Err(now) => head = now,
        }
    }
}

fn set_free(index: u32) {
    let Some(slot) = slot(index) else { return };
    let mut head = FREE.load(Ordering::Relaxed);
    loop {
        slot.next.store(head as u32, Ordering::Relaxed);
        let to = ((head >> 32) + 1) << 32 | u64::from(index + 1);
        match FREE.compare_exchange_weak(head, to, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// Creates a handle for this object.
pub fn make(object: KernelObject) -> Result<HANDLE, u32> {
    let index = free_slot().or_else(new_slot).ok_or(ERROR_NOT_ENOUGH_MEMORY)?;
    let slot = slot(index).ok_or(ERROR_NOT_ENOUGH_MEMORY)?;
    // Generations begin at 1, so that no handle is NULL.
    let before = slot.word.load(Ordering::Relaxed) >> 32;
    let generation = if before + 1 == GENERATIONS { 1 } else { before + 1 };
    // SAFETY: Held: the slot is new, or it came from the free list, so it has no other user.
    unsafe { (*slot.object.get()).write(object) };
    slot.word.store(generation << 32 | OPEN, Ordering::Release);
    Ok(((generation << 22 | u64::from(index) << 2) as usize) as HANDLE)
}

/// A counted use of an object.
pub struct Use {
    slot: &'static Slot,
    index: u32,
}

impl Deref for Use {
    type Target = KernelObject;

    fn deref(&self) -> &KernelObject {
        // SAFETY: Held: this use is counted.
        unsafe { (*self.slot.object.get()).assume_init_ref() }
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let before = self.slot.word.fetch_sub(1, Ordering::AcqRel);
        if before & (OPEN | USES) == 1 {
            // SAFETY: Held: the handle is closed, and this was the last use.
            let object = unsafe { (*self.slot.object.get()).assume_init_read() };
            drop(object);
            set_free(self.index);
        }
    }
}

/// Returns the object behind a handle. Pseudo handles have none.
pub fn get(handle: HANDLE) -> Result<Use, u32> {
    let number = handle.addr() as u64;
    // As on Windows, the lowest two bits belong to the program.
    let (index, generation) = ((number >> 2) as u32 & 0xf_ffff, number >> 22);
    let slot = slot(index).ok_or(ERROR_INVALID_HANDLE)?;
    let mut word = slot.word.load(Ordering::Relaxed);
    loop {
        if word & OPEN == 0 || word >> 32 != generation {
            return Err(ERROR_INVALID_HANDLE);
        }
        match slot.word.compare_exchange_weak(word, word + 1, Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => return Ok(Use { slot, index }),
            Err(now) => word = now,
        }
    }
}

/// Returns the thread behind a handle.
pub(super) fn thread(handle: HANDLE) -> Result<Arc<Thread>, u32> {
    match &*get(handle)? {
        KernelObject::Thread(thread) => Ok(thread.clone()),
        _ => Err(ERROR_INVALID_HANDLE),
    }
}

/// Closes a handle. Waits for the object continue. Closing a pseudo handle has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn CloseHandle(handle: HANDLE) -> BOOL {
    if handle == CURRENT_PROCESS || handle == CURRENT_THREAD {
        return done(Ok(()));
    }
    done(get(handle).and_then(|object| {
        let before = object.slot.word.fetch_and(!OPEN, Ordering::AcqRel);
        if before & OPEN == 0 { Err(ERROR_INVALID_HANDLE) } else { Ok(()) }
    }))
}

/// Closes the source handle, too.
pub const DUPLICATE_CLOSE_SOURCE: u32 = 1;
/// The new handle permits the same operations. Every handle permits all operations here.
pub const DUPLICATE_SAME_ACCESS: u32 = 2;

/// Makes another handle for the same object. Both processes must be this one. For the pseudo handle
/// of the calling thread the result is a handle that other threads may use.
#[unsafe(no_mangle)]
pub extern "C" fn DuplicateHandle(
    source_process: HANDLE,
    source: HANDLE,
    target_process: HANDLE,
    mut target: Out<'_, HANDLE>,
    _access: u32,
    _inherit: BOOL,
    options: u32,
) -> BOOL {
    let mut duplicate = || {
        if [source_process, target_process] != [CURRENT_PROCESS; 2] {
            return Err(ERROR_NOT_SUPPORTED);
        }
        if options & !(DUPLICATE_CLOSE_SOURCE | DUPLICATE_SAME_ACCESS) != 0 {
            return Err(ERROR_INVALID_PARAMETER);
        }
        let object = match source {
            CURRENT_PROCESS => return Err(ERROR_NOT_SUPPORTED),
            CURRENT_THREAD => KernelObject::Thread(adopted()),
            other => get(other)?.duplicate()?,
        };
        if !target.is_null() {
            target.put(make(object)?);
        }
        if options & DUPLICATE_CLOSE_SOURCE != 0 {
            CloseHandle(source);
        }
        Ok(())
    };
    done(duplicate())
}

#[cfg(test)]
mod tests {
    use super::super::error::GetLastError;
    use super::*;
    use crate::win32::waitable::Event;

    fn event() -> HANDLE {
        make(KernelObject::Event(Event::new(true, false).unwrap())).unwrap()
    }

    #[test]
    fn a_closed_handle_is_told_from_the_next_one_in_its_slot() {
        let first = event();
        assert!(!first.is_null());
        assert_eq!(first.addr() % 4, 0);
        assert_eq!(CloseHandle(first), 1);
        assert_eq!(CloseHandle(first), 0);
        assert_eq!(GetLastError(), ERROR_INVALID_HANDLE);
        for _ in 0..100 {
            let other = event();
            assert_ne!(other, first);
            assert!(get(first).is_err());
            assert_eq!(CloseHandle(other), 1);
        }
        assert!(get(std::ptr::null_mut()).is_err());
        assert!(get(0xdead_beef_usize as HANDLE).is_err());
    }

    #[test]
    fn handles_are_made_and_closed_by_many_threads_at_once() {
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..2000 {
                        let (a, b) = (event(), event());
                        assert!(get(a).is_ok() && get(b).is_ok());
                        assert_eq!(CloseHandle(a) + CloseHandle(b), 2);
                        assert!(get(a).is_err() && get(b).is_err());
                    }
                });
            }
        });
    }

    #[test]
    fn an_object_lives_until_its_last_use_ends() {
        let handle = event();
        let used = get(handle).unwrap();
        assert_eq!(CloseHandle(handle), 1);
        assert!(get(handle).is_err());
        assert!(matches!(&*used, KernelObject::Event(_)));
    }
}
