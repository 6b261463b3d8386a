//! The process heap, which is that of the C library.
//!
//! Only the process heap exists: any heap handle means it. As on Windows, an entry point of a
//! scheduler must not allocate: a stopped worker may hold the heap's lock.

#![allow(unsafe_code)] // Named invariant "C Caller" of lib.rs: blocks came from this file.

use std::ffi::c_void;

use super::error::{BOOL, ERROR_NOT_ENOUGH_MEMORY, SetLastError, TRUE};
use super::handle::HANDLE;

/// The block is filled with zeroes.
pub const HEAP_ZERO_MEMORY: u32 = 8;

/// Returns the process heap.
#[unsafe(no_mangle)]
pub extern "C" fn GetProcessHeap() -> HANDLE {
    std::ptr::without_provenance_mut(0x4_0000_0000)
}

/// Allocates a block of memory; returns NULL if there is none left.
#[unsafe(no_mangle)]
pub extern "C" fn HeapAlloc(_heap: HANDLE, flags: u32, size: usize) -> *mut c_void {
    // A block of no bytes is a block too.
    let size = size.max(1);
    // SAFETY: Plain Call.
    let block = unsafe {
        if flags & HEAP_ZERO_MEMORY == 0 { libc::malloc(size) } else { libc::calloc(1, size) }
    };
    if block.is_null() {
        SetLastError(ERROR_NOT_ENOUGH_MEMORY);
    }
    block
}

/// Changes the size of a block, which may move.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn HeapReAlloc(
    _heap: HANDLE,
    flags: u32,
    block: *mut c_void,
    size: usize,
) -> *mut c_void {
    let size = size.max(1);
    // SAFETY: C Caller: a block of this heap; its new part may be written.
    unsafe {
        let before = if block.is_null() { 0 } else { libc::malloc_usable_size(block) };
        let moved = libc::realloc(block, size);
        if moved.is_null() {
            SetLastError(ERROR_NOT_ENOUGH_MEMORY);
        } else if flags & HEAP_ZERO_MEMORY != 0 && size > before {
            moved.cast::<u8>().add(before).write_bytes(0, size - before);
        }
        moved
    }
}

/// Frees a block; NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn HeapFree(_heap: HANDLE, _flags: u32, block: *mut c_void) -> BOOL {
    // SAFETY: C Caller: a block of this heap, or NULL.
    unsafe { libc::free(block) };
    TRUE
}

/// Returns a lower bound of a block's size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn HeapSize(_heap: HANDLE, _flags: u32, block: *const c_void) -> usize {
    // SAFETY: C Caller: a block of this heap.
    unsafe { libc::malloc_usable_size(block.cast_mut()) }
}

/// As `HeapAlloc`; the flag 0x40 asks for zeroes.
#[unsafe(no_mangle)]
pub extern "C" fn LocalAlloc(flags: u32, size: usize) -> *mut c_void {
    let zeroed = if flags & 0x40 == 0 { 0 } else { HEAP_ZERO_MEMORY };
    HeapAlloc(std::ptr::null_mut(), zeroed, size)
}

/// As `HeapFree`; returns NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn LocalFree(block: *mut c_void) -> *mut c_void {
    // SAFETY: C Caller: a block of this heap, or NULL.
    unsafe { libc::free(block) };
    std::ptr::null_mut()
}
