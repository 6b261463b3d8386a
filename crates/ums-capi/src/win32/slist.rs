//! Interlocked singly linked lists: stacks that many threads push to and pop from without a lock.
//! Schedulers often use them as ready lists.
//!
//! ```text
//!   word: 63 .. 20 the first entry's address, without its low 4 bits | 19 .. 0 number of changes
//! ```
//!
//! From the number of changes, a pop notices that the first entry was popped and pushed again
//! meanwhile. It fails to notice only if a multiple of 2^20 changes happened in that time.
//!
//! The header and the entries belong to the program and are aligned to 16 bytes. An entry's memory
//! stays readable as long as a pop is possible. Another thread may pop and free an entry before the
//! push of it returns, so entries are raw pointers here, and no reference to one lives longer than
//! one access. The unsafe code here is for these accesses only.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicPtr, AtomicU16, AtomicU64, Ordering};

use crate::caller::Out;

/// `SLIST_ENTRY`.
#[repr(C, align(16))]
pub struct Entry {
    next: AtomicPtr<Entry>,
}

/// `SLIST_HEADER`.
#[repr(C, align(16))]
#[derive(Default)]
pub struct Header {
    word: AtomicU64,
    depth: AtomicU16,
}

const CHANGES: u64 = (1 << 20) - 1;

fn first(word: u64) -> *mut Entry {
    std::ptr::with_exposed_provenance_mut(((word >> 20) << 4) as usize)
}

fn word(first: *mut Entry, before: u64) -> u64 {
    ((first.expose_provenance() as u64) >> 4) << 20 | ((before + 1) & CHANGES)
}

/// Makes the list empty; an all-zero header is an empty list.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeSListHead(mut list: Out<'_, Header>) {
    list.put(Header::default());
}

/// Pushes an entry, and returns the one that was first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InterlockedPushEntrySList(list: &Header, entry: *mut Entry) -> *mut Entry {
    let mut before = list.word.load(Ordering::Relaxed);
    loop {
        // SAFETY: C Caller: the entry is the caller's until it has been pushed.
        unsafe { (*entry).next.store(first(before), Ordering::Relaxed) };
        let to = word(entry, before);
        match list.word.compare_exchange_weak(before, to, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => before = now,
        }
    }
    list.depth.fetch_add(1, Ordering::Relaxed);
    first(before)
}

/// Pops the first entry; returns NULL if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn InterlockedPopEntrySList(list: &Header) -> *mut Entry {
    let mut before = list.word.load(Ordering::Acquire);
    loop {
        let entry = first(before);
        if entry.is_null() {
            return entry;
        }
        // SAFETY: C Caller: the entry is readable even if another thread has popped it meanwhile.
        // Then the exchange fails.
        let next = unsafe { (*entry).next.load(Ordering::Relaxed) };
        let to = word(next, before);
        match list.word.compare_exchange_weak(before, to, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                list.depth.fetch_sub(1, Ordering::Relaxed);
                return entry;
            }
            Err(now) => before = now,
        }
    }
}

/// Empties the list, and returns its first entry, from which the others are linked.
#[unsafe(no_mangle)]
pub extern "C" fn InterlockedFlushSList(list: &Header) -> *mut Entry {
    let empty = |before| Some(word(std::ptr::null_mut(), before));
    let before = list.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, empty);
    list.depth.store(0, Ordering::Relaxed);
    first(before.unwrap_or(0))
}

/// Returns the approximate number of entries.
#[unsafe(no_mangle)]
pub extern "C" fn QueryDepthSList(list: &Header) -> u16 {
    list.depth.load(Ordering::Relaxed)
}
