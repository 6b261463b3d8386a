//! What ThreadSanitizer is told of switches, with the feature `tsan`; without it nothing.
//!
//! What the sanitizer keeps of a thread is in the thread's own thread-locals, so it goes with the
//! context by itself. But it sees nothing of what the few instructions of a switch or of a post do
//! to memory. So it is told what they mean: who continues a context, or posts that it is saved, has
//! done all before; who is continued does all after.
//!
//! AddressSanitizer needs no word: what it knows of a stack is found by the same register.
//!
//! Named invariant **Plain Call**: the calls below note an address and look at nothing behind it.
#![cfg_attr(feature = "tsan", allow(unsafe_code))]

#[cfg(feature = "tsan")]
unsafe extern "C" {
    fn __tsan_release(address: *mut std::ffi::c_void);
    fn __tsan_acquire(address: *mut std::ffi::c_void);
}

/// All that was done here is done before whoever acquires this address goes on.
#[inline(always)]
pub(crate) fn release(_address: *const ()) {
    #[cfg(feature = "tsan")]
    // SAFETY: Plain Call.
    unsafe {
        __tsan_release(_address.cast_mut().cast());
    }
}

/// All that was done before this address was released is done.
#[inline(always)]
pub(crate) fn acquire(_address: *const ()) {
    #[cfg(feature = "tsan")]
    // SAFETY: Plain Call.
    unsafe {
        __tsan_acquire(_address.cast_mut().cast());
    }
}
