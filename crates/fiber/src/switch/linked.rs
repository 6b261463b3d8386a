//! The switch on other processors, and for sanitizers, which must be told of each switch: that of
//! crate corosensei, inlined. A fiber that passes to another suspends itself, and names the other
//! to the code that resumed it, which resumes the other.
//!
//! That crate can also unwind a suspended stack. This crate never does that, because frames of C on
//! the stack cannot be unwound, and because the kernel may still be writing into a buffer on it.
//!
//! The stack pointer of a suspended fiber is a private field of corosensei's coroutine. So one
//! trial finds the field's offset: exactly one word of a fiber is an address on the fiber's stack
//! while it is suspended, and 0 when it has ended. The memory is read through the kernel
//! (`/proc/self/mem`), so the trial needs no unsafe code.
//!
//! This file has unsafe code for the switch, and for fields that are not dropped while the fiber is
//! suspended.
#![allow(unsafe_code)]

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use corosensei::{Coroutine, CoroutineResult, Yielder};
use told::Told;

use super::resume::Resume;
use crate::pool::{StackConfig, StackPool};
use crate::stack::{self, FIBER_ROOM, Stack, StackRange};

/// Where in the header of its stack a fiber may be kept.
pub(crate) const KEPT_AT: usize = 0;
const _: () = assert!(size_of::<Switch>() <= FIBER_ROOM);

/// The switch of one fiber.
pub(crate) struct Switch {
    inner: ManuallyDrop<Coroutine<(), usize, (), Stack>>,
    /// ThreadSanitizer's record of this fiber; leaked together with a leaked stack.
    told: ManuallyDrop<Told>,
}

impl Switch {
    #[inline]
    pub(crate) fn new<F: FnOnce(WayOut) + 'static>(stack: Stack, f: F) -> Switch {
        let inner = Coroutine::with_stack(stack, move |yielder: &Yielder<(), usize>, ()| {
            f(WayOut { yielder: NonNull::from(yielder) });
        });
        Switch { inner: ManuallyDrop::new(inner), told: ManuallyDrop::new(Told::new()) }
    }

    #[inline]
    pub(crate) fn is_started(&self) -> bool {
        self.inner.started()
    }

    #[inline]
    pub(crate) fn is_finished(&self) -> bool {
        self.inner.done()
    }

    /// Does what [`Fiber::prefetch`](crate::Fiber::prefetch) does, which is nothing here.
    ///
    /// # Safety
    ///
    /// None.
    #[inline(always)]
    pub(crate) unsafe fn prefetch(_: NonNull<Switch>) {}

    /// Does nothing, as there.
    #[inline(always)]
    pub(crate) fn prefetch_early(_: NonNull<Switch>) {}

    /// Returns the address of the word that has the stack pointer of the suspended fiber.
    pub(crate) fn saved_at(&self) -> Option<usize> {
        static OFFSET: OnceLock<Option<usize>> = OnceLock::new();
        let offset = (*OFFSET.get_or_init(find))?;
        Some(ptr::from_ref(self).expose_provenance() + offset)
    }

    #[inline]
    pub(crate) fn resume(&mut self) -> Resume {
        match self.resume_for_next() {
            None => Resume::Finished,
            Some(0) => Resume::Suspended,
            // SAFETY: Contract: the fiber that passed has promised that this one can be resumed.
            Some(next) => unsafe { run_from(ptr::with_exposed_provenance_mut(next)) },
        }
    }

    /// Returns the address of the fiber to which this one passes, 0 if it suspends itself, and
    /// `None` if it has ended.
    #[inline]
    fn resume_for_next(&mut self) -> Option<usize> {
        let inner = &mut self.inner;
        match self.told.around(|| inner.resume(())) {
            CoroutineResult::Yield(next) => Some(next),
            CoroutineResult::Return(()) => None,
        }
    }

    /// Does what [`Fiber::run`](crate::Fiber::run) does.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn run(first: NonNull<Switch>) -> Resume {
        // SAFETY: Contract.
        unsafe { run_from(first.as_ptr()) }
    }

    /// Returns the stack. The closure of a fiber that was not started is dropped.
    #[inline]
    pub(crate) fn into_stack(self) -> Stack {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: Frozen Stack: no frame is on the stack, and `this` is never used or dropped
        // again.
        let mut inner = unsafe { ManuallyDrop::take(&mut this.inner) };
        // SAFETY: Frozen Stack: as above.
        unsafe { ManuallyDrop::drop(&mut this.told) };
        // Drops the closure of a fiber that was not started, and does nothing to a finished one.
        inner.force_unwind();
        inner.into_stack()
    }
}

/// Resumes a fiber, and those to which it passes.
///
/// # Safety
///
/// As [`Fiber::run`](crate::Fiber::run).
#[inline]
unsafe fn run_from(mut fiber: *mut Switch) -> Resume {
    loop {
        // SAFETY: Contract: each fiber is suspended or not started, and is not borrowed.
        match unsafe { (*fiber).resume_for_next() } {
            None => return Resume::Finished,
            Some(0) => return Resume::Suspended,
            Some(next) => fiber = ptr::with_exposed_provenance_mut(next),
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if self.is_finished() || !self.is_started() {
            // SAFETY: Frozen Stack: no frame is on the stack, and the field is not used again.
            unsafe { ManuallyDrop::drop(&mut self.inner) };
            // SAFETY: Frozen Stack: as above.
            unsafe { ManuallyDrop::drop(&mut self.told) };
        } else {
            // Frozen Stack: the frames stay as they are, and so does the stack under them.
            stack::count_leak();
        }
    }
}

/// The way out of a running fiber.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WayOut {
    yielder: NonNull<Yielder<(), usize>>,
}

impl WayOut {
    #[inline(always)]
    pub(crate) fn into_raw(self) -> NonNull<()> {
        self.yielder.cast()
    }

    #[inline(always)]
    pub(crate) fn from_raw(raw: NonNull<()>) -> WayOut {
        WayOut { yielder: raw.cast() }
    }

    /// Does what [`Suspender::suspend`](crate::Suspender::suspend) does.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn suspend(self) {
        // SAFETY: Contract: the fiber runs, so its root's frame, which has the yielder, is alive.
        unsafe { self.yielder.as_ref() }.suspend(0);
    }

    /// Does what [`Suspender::pass`](crate::Suspender::pass) does.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn pass(self, next: NonNull<Switch>) {
        // SAFETY: Contract: as in `suspend`.
        unsafe { self.yielder.as_ref() }.suspend(next.as_ptr().expose_provenance());
    }
}

const WORD: usize = size_of::<usize>();
const WORDS: usize = size_of::<Switch>() / WORD;

/// Finds the word by a trial with a fiber, and returns its offset in a `Switch`, in bytes.
fn find() -> Option<usize> {
    let memory = File::open("/proc/self/mem").ok()?;
    let config = StackConfig { size: 16 << 10, precommit: false, keep_warm: 0 };
    let mut pool = StackPool::new(config);
    let stack = pool.take().ok()?;
    let range = stack.range();
    let mut switch = Box::new(Switch::new(stack, |me| {
        // SAFETY: Contract: this is the fiber that `me` was made for.
        unsafe { me.suspend() };
    }));
    let mut looks = Vec::new();
    let mut looked = |switch: &Switch| looks.push(words(&memory, switch));
    let mut how = Resume::Suspended;
    while how == Resume::Suspended {
        how = switch.resume();
        looked(&switch);
    }
    pool.give(switch.into_stack());
    let [Some(suspended), Some(ended)] = looks[..] else { return None };
    the_only_one(&suspended, &ended, range)
}

fn the_only_one(
    suspended: &[usize; WORDS],
    ended: &[usize; WORDS],
    range: StackRange,
) -> Option<usize> {
    let is_it = |at: &usize| range.contains(suspended[*at]) && ended[*at] == 0;
    let mut found = (0..WORDS).filter(is_it);
    let at = found.next()?;
    found.next().is_none().then_some(at * WORD)
}

/// Returns the words of a `Switch`. The kernel reads them, because in Rust a read of padding would
/// be undefined behaviour.
fn words(memory: &File, switch: &Switch) -> Option<[usize; WORDS]> {
    let mut bytes = [0; WORDS * WORD];
    let at = ptr::from_ref(switch).expose_provenance();
    memory.read_exact_at(&mut bytes, at as u64).ok()?;
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<WORD>().0) {
        *word = usize::from_ne_bytes(*bytes);
    }
    Some(words)
}

/// Reports to ThreadSanitizer about fibers. The sanitizer treats a fiber as a thread with its own
/// call stack and its own clock. The code that resumes a fiber reports a switch to the fiber right
/// before, and a switch back to itself right after. So everything that one of them did before a
/// switch happens before everything that the other does after it, as is true on one kernel thread.
/// The sanitizer's handle of a fiber is destroyed once, while the fiber does not run.
#[cfg(tsan)]
mod told {
    use std::ffi::{c_uint, c_void};

    unsafe extern "C" {
        fn __tsan_get_current_fiber() -> *mut c_void;
        fn __tsan_create_fiber(flags: c_uint) -> *mut c_void;
        fn __tsan_destroy_fiber(fiber: *mut c_void);
        fn __tsan_switch_to_fiber(fiber: *mut c_void, flags: c_uint);
    }

    /// The sanitizer's handle of a fiber.
    pub(crate) struct Told(*mut c_void);

    impl Told {
        pub(crate) fn new() -> Told {
            // SAFETY: Plain Call: creates a handle.
            Told(unsafe { __tsan_create_fiber(0) })
        }

        /// Runs `resume`, which runs the fiber until it suspends or ends.
        #[inline]
        pub(crate) fn around<R>(&self, resume: impl FnOnce() -> R) -> R {
            // SAFETY: Plain Call: returns the handle of the code that is running.
            let back = Back(unsafe { __tsan_get_current_fiber() });
            // SAFETY: Held: the handle exists as long as this `Told`.
            unsafe { __tsan_switch_to_fiber(self.0, 0) };
            let result = resume();
            drop(back);
            result
        }
    }

    /// Reports the switch back to the resumer when it is dropped, also if `resume` panics.
    struct Back(*mut c_void);

    impl Drop for Back {
        fn drop(&mut self) {
            // SAFETY: Held: the resumer is waiting for this drop, so its handle exists.
            unsafe { __tsan_switch_to_fiber(self.0, 0) };
        }
    }

    impl Drop for Told {
        fn drop(&mut self) {
            // SAFETY: Own Memory: only this `Told` has the handle, and its fiber does not run,
            // because the fiber's owner is dropping it.
            unsafe { __tsan_destroy_fiber(self.0) };
        }
    }
}

#[cfg(not(tsan))]
mod told {
    /// Stands in for the handle of a fiber in a build without the sanitizer.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_words_that_look_alike_are_no_answer() {
        let range = StackRange::new(4096, 8192).unwrap();
        let mut suspended = [0; WORDS];
        assert_eq!(the_only_one(&suspended, &[0; WORDS], range), None);
        suspended[1] = 5000;
        assert_eq!(the_only_one(&suspended, &[0; WORDS], range), Some(WORD));
        assert_eq!(the_only_one(&suspended, &[5000; WORDS], range), None, "it stays");
        suspended[2] = 5008;
        assert_eq!(the_only_one(&suspended, &[0; WORDS], range), None);
    }
}
