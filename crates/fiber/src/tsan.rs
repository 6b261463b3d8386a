//! What ThreadSanitizer is told about fibers, with the feature `tsan`; without it nothing.
//!
//! To ThreadSanitizer a fiber is a thread of its own, with its own calls and its own clock. It is
//! told about each switch by the code that resumes: "now the fiber" right before, and "now me"
//! right after. So what one did before a switch happens before what the other does after it, as it
//! is on one kernel thread.
//!
//! Unsafe code, because the sanitizer's functions take handles: that of a fiber was given by the
//! sanitizer, and is returned once, when the fiber does not run; the handle to switch back to is
//! that of the thread or fiber that resumes, which waits meanwhile.
#![cfg_attr(feature = "tsan", allow(unsafe_code))]

#[cfg(feature = "tsan")]
mod told {
    use std::ffi::{c_uint, c_void};

    unsafe extern "C" {
        fn __tsan_get_current_fiber() -> *mut c_void;
        fn __tsan_create_fiber(flags: c_uint) -> *mut c_void;
        fn __tsan_destroy_fiber(fiber: *mut c_void);
        fn __tsan_switch_to_fiber(fiber: *mut c_void, flags: c_uint);
    }

    /// A fiber as the sanitizer knows it.
    pub(crate) struct Told(*mut c_void);

    impl Told {
        pub(crate) fn new() -> Told {
            // SAFETY: Plain Call: asks for a handle.
            Told(unsafe { __tsan_create_fiber(0) })
        }

        /// Runs `resume`, which runs the fiber until it suspends or ends.
        #[inline]
        pub(crate) fn around<R>(&self, resume: impl FnOnce() -> R) -> R {
            // SAFETY: Plain Call: asks for a handle.
            let back = Back(unsafe { __tsan_get_current_fiber() });
            // SAFETY: Held: the handle is the fiber's, which exists.
            unsafe { __tsan_switch_to_fiber(self.0, 0) };
            let result = resume();
            drop(back);
            result
        }
    }

    /// Switches back to the resumer when dropped, also if `resume` panicked.
    struct Back(*mut c_void);

    impl Drop for Back {
        fn drop(&mut self) {
            // SAFETY: Held: the resumer waits for this.
            unsafe { __tsan_switch_to_fiber(self.0, 0) };
        }
    }

    impl Drop for Told {
        fn drop(&mut self) {
            // SAFETY: Own Memory: its owner is dropped, so it does not run.
            unsafe { __tsan_destroy_fiber(self.0) };
        }
    }
}

#[cfg(not(feature = "tsan"))]
mod told {
    /// A fiber, of which nothing is told.
    pub(crate) struct Told;

    impl Told {
        #[inline(always)]
        pub(crate) fn new() -> Told {
            Told
        }

        /// Runs `resume`.
        #[inline(always)]
        pub(crate) fn around<R>(&self, resume: impl FnOnce() -> R) -> R {
            resume()
        }
    }
}

pub(crate) use told::Told;
