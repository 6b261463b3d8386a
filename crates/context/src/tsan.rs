//! What ThreadSanitizer is told about switches, with the feature `tsan`; without it nothing.
//!
//! What the sanitizer keeps for a thread is in the thread's own thread-locals, so it moves with the
//! context by itself. But it does not see what the few instructions of a switch or of a post do to
//! memory. So it is told what they mean: all that a thread did before it resumes a context, or
//! posts that it is saved, happens before all that the resumed context does after.
//!
//! AddressSanitizer needs no such call: it finds what it knows about a stack by the same register.
//!
//! Named invariant **Plain Call**: the calls below note an address and do not read what is there.

#![cfg_attr(feature = "tsan", allow(unsafe_code))]

#[cfg(feature = "tsan")]
unsafe extern "C" {
    fn __tsan_release(address: *mut std::ffi::c_void);
    fn __tsan_acquire(address: *mut std::ffi::c_void);
}

/// Says that all that was done here happens before what follows an acquire of this address.
#[inline(always)]
pub(crate) fn release(_address: *const ()) {
    #[cfg(feature = "tsan")]
    // SAFETY: Plain Call.
    unsafe {
        __tsan_release(_address.cast_mut().cast());
    }
}

/// Says that what follows here happens after all that preceded a release of this address.
#[inline(always)]
pub(crate) fn acquire(_address: *const ()) {
    #[cfg(feature = "tsan")]
    // SAFETY: Plain Call.
    unsafe {
        __tsan_acquire(_address.cast_mut().cast());
    }
}
