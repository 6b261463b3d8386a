//! A fiber: a closure on a stack, resumed and suspended by hand.
//!
//! ```text
//!   Fiber::new ──> not started ──resume──> running ──suspend──> suspended
//!                       │                   │   ^                  │  │
//!                       │                   │   └──────resume──────┘  │
//!                  into_stack,            return                    drop
//!                     drop                  v                         v
//!                       └──────────────> finished ──into_stack      leaked, counted
//! ```
//!
//! `resume` and `suspend` are those of crate corosensei, inlined. A suspension carries one word, in
//! a register. That crate can also unwind a suspended stack. This crate never does that, because
//! frames of C on the stack cannot be unwound, and because the kernel may still be writing into a
//! buffer on it. To end a suspended fiber, its user makes the fiber's wait fail, and resumes the
//! fiber until it ends.
//!
//! A fiber never changes its thread, because compiled code may keep the address of a thread-local
//! in a register over a suspension. So [`Fiber`] is neither `Send` nor `Sync`.
//!
//! This file has unsafe code for the switch, and for fields that are not dropped while the fiber is
//! suspended.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use corosensei::{Coroutine, CoroutineResult, Yielder};

use crate::stack::{self, FIBER_ROOM, Name, Stack};
use crate::sys::LastWords;
use crate::sys::Told;

/// Why [`Fiber::resume`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Resume {
    /// The fiber suspended itself and can be resumed.
    Suspended,
    /// The closure has returned. [`Fiber::into_stack`] returns the stack.
    Finished,
}

/// A closure with a stack of its own.
///
/// Dropping a suspended fiber leaks its stack and everything on it, on purpose;
/// [`leaked`](crate::leaked) counts such stacks. Dropping a fiber that is finished or was never
/// started drops the closure and leaks only the stack: use [`into_stack`](Fiber::into_stack)
/// instead.
///
/// ```compile_fail
/// fn send<T: Send>() {}
/// send::<fiber::Fiber>();
/// ```
/// ```compile_fail
/// fn sync<T: Sync>() {}
/// sync::<fiber::Fiber>();
/// ```
pub struct Fiber {
    inner: ManuallyDrop<Coroutine<(), usize, (), Stack>>,
    /// ThreadSanitizer's record of this fiber; leaked together with a leaked stack.
    told: ManuallyDrop<Told>,
    /// Neither `Send` nor `Sync`.
    pinned_to_thread: PhantomData<*mut ()>,
}

/// Suspends its fiber. The fiber's closure gets it as its argument.
///
/// It may be copied and stored anywhere on the fiber's thread; only its use is unsafe.
#[derive(Clone, Copy, Debug)]
pub struct Suspender {
    yielder: NonNull<Yielder<(), usize>>,
}

// A suspender has no state that a panic could leave half changed.
impl UnwindSafe for Suspender {}
impl RefUnwindSafe for Suspender {}

impl Fiber {
    /// Returns a fiber that will run `f` on `stack` when it is first resumed. `name` appears in the
    /// message about a stack overflow (the first 58 bytes of its text).
    ///
    /// `f` must catch its own panics: a panic that leaves `f` prints a message and aborts the
    /// process.
    ///
    /// # Panics
    ///
    /// If `f` itself takes more than a quarter of the stack.
    #[inline]
    pub fn new<'a, F>(mut stack: Stack, name: impl Into<Name<'a>>, f: F) -> Fiber
    where
        F: FnOnce(Suspender) + 'static,
    {
        // The closure is written to the stack from outside, where no guard would catch an overflow.
        assert!(size_of::<F>() + align_of::<F>() <= stack.size() / 4, "box this large closure");
        stack.set_name(name.into());
        let header = stack.header();
        let inner = Coroutine::with_stack(stack, move |yielder: &Yielder<(), usize>, ()| {
            fiber_root(Suspender { yielder: NonNull::from(yielder) }, f, header);
        });
        let (inner, told) = (ManuallyDrop::new(inner), ManuallyDrop::new(Told::new()));
        Fiber { inner, told, pinned_to_thread: PhantomData }
    }

    /// Returns a fiber as [`new`](Fiber::new) does, in the header of its own stack: there it costs
    /// no memory, and a switch finds it in the page of its frames. The caller resumes it there, and
    /// takes it out with [`take_from_stack`](Fiber::take_from_stack). Otherwise it is leaked.
    ///
    /// ```
    /// use fiber::{Fiber, Resume, StackConfig, StackPool};
    /// let mut pool = StackPool::new(StackConfig::default());
    /// let fiber = Fiber::on_its_stack(pool.take()?, "worker 1", |_| ());
    /// // SAFETY: Own Memory: the fiber was made just above, and is taken out once.
    /// let fiber = unsafe {
    ///     assert_eq!((*fiber).resume(), Resume::Finished);
    ///     Fiber::take_from_stack(fiber)
    /// };
    /// pool.give(fiber.into_stack());
    /// # Ok::<(), fiber::StackError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// As `new`.
    #[inline]
    pub fn on_its_stack<'a, F>(stack: Stack, name: impl Into<Name<'a>>, f: F) -> *mut Fiber
    where
        F: FnOnce(Suspender) + 'static,
    {
        // In one cache line, because the header begins with one: a switch among many fibers has to
        // get it.
        const { assert!(size_of::<Fiber>() <= FIBER_ROOM && align_of::<Fiber>() <= 64) };
        let at = ptr::with_exposed_provenance_mut::<Fiber>(stack.header());
        let fiber = Fiber::new(stack, name, f);
        // SAFETY: Own Memory: the stack that the fiber owns has this room, above the first frame.
        unsafe { at.write(fiber) };
        at
    }

    /// Takes a fiber out of the header of its stack.
    ///
    /// # Safety
    ///
    /// `at` came from [`on_its_stack`](Fiber::on_its_stack), and is not used again.
    #[inline]
    pub unsafe fn take_from_stack(at: *mut Fiber) -> Fiber {
        // SAFETY: Contract.
        unsafe { at.read() }
    }

    /// Runs the fiber until it suspends itself or ends.
    ///
    /// # Panics
    ///
    /// If the fiber has finished.
    #[inline]
    pub fn resume(&mut self) -> Resume {
        match self.resume_for_word() {
            Some(_) => Resume::Suspended,
            None => Resume::Finished,
        }
    }

    /// Does what [`Fiber::resume`] does. Returns the word that the fiber has passed to
    /// [`Suspender::suspend_with`], 0 if it has passed none, or `None` if it has ended.
    ///
    /// # Panics
    ///
    /// If the fiber has finished.
    #[inline]
    pub fn resume_for_word(&mut self) -> Option<usize> {
        let inner = &mut self.inner;
        match self.told.around(|| inner.resume(())) {
            CoroutineResult::Yield(word) => Some(word),
            CoroutineResult::Return(()) => None,
        }
    }

    /// Returns whether the closure has returned.
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.inner.done()
    }

    /// Returns whether the fiber has been resumed at least once.
    #[inline]
    pub fn is_started(&self) -> bool {
        self.inner.started()
    }

    /// Returns the stack, for another fiber. If the fiber was never started, its closure is
    /// dropped.
    ///
    /// # Panics
    ///
    /// If the fiber is suspended.
    #[inline]
    pub fn into_stack(self) -> Stack {
        assert!(self.is_at_rest(), "a suspended fiber keeps its stack: resume it to its end");
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

    /// Returns whether no frame is on the stack.
    #[inline]
    fn is_at_rest(&self) -> bool {
        self.inner.done() || !self.inner.started()
    }
}

impl Drop for Fiber {
    fn drop(&mut self) {
        if self.is_at_rest() {
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

impl std::fmt::Debug for Fiber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (started, finished) = (self.is_started(), self.is_finished());
        f.debug_struct("Fiber").field("started", &started).field("finished", &finished).finish()
    }
}

impl Suspender {
    /// Leaves the fiber; returns when it is resumed.
    ///
    /// # Safety
    ///
    /// * The caller runs inside the fiber this suspender was made for, on the fiber's own stack,
    ///   while the fiber is running.
    /// * Other code runs on this thread before the fiber is resumed. So the caller holds nothing
    ///   over the call that relies on the thread doing nothing else meanwhile: no borrow of a
    ///   thread-local, and no lock that a thread may not take twice. It does not suspend while it
    ///   unwinds, because panics are counted by thread.
    /// * The fiber may never be resumed. Its stack is then leaked: values on it stay valid, but
    ///   their destructors never run. No code may rely on their having run.
    #[inline(always)]
    pub unsafe fn suspend(self) {
        // SAFETY: Contract.
        unsafe { self.suspend_with(0) }
    }

    /// Does what [`Suspender::suspend`] does, and passes a word to [`Fiber::resume_for_word`]. The
    /// word goes through a register. So the code that resumes fibers can use it before it has
    /// loaded anything from its own stack.
    ///
    /// # Safety
    ///
    /// As [`Suspender::suspend`].
    #[inline(always)]
    pub unsafe fn suspend_with(self, word: usize) {
        // SAFETY: Contract: the fiber runs, so its root's frame, which has the yielder, is alive.
        unsafe { self.yielder.as_ref() }.suspend(word);
    }
}

/// Returns a fiber that suspends itself once.
pub(crate) fn suspending_once(stack: Stack) -> Fiber {
    Fiber::new(stack, "a fiber to be looked at", |me| {
        // SAFETY: Contract: this is the fiber that `me` was made for.
        unsafe { me.suspend() };
    })
}

/// The first frame of every fiber; backtraces show its name. Aborts on a panic of `f`.
#[inline(never)]
fn fiber_root<F: FnOnce(Suspender)>(suspender: Suspender, f: F, header: usize) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| f(suspender))) {
        // The payload is not dropped, because dropping it may panic again.
        std::mem::forget(payload);
        die_of_panic(header);
    }
}

#[cold]
fn die_of_panic(header: usize) -> ! {
    // SAFETY: Own Memory: this is the header of the stack that this code runs on.
    let name = unsafe { stack::read_name(header) };
    let name = name.get();
    LastWords::say(format_args!(
        "fatal: a panic reached the root of worker '{name}', which must catch its own; aborting\n"
    ));
    std::process::abort();
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use super::*;
    use crate::child;
    use crate::pool::{StackConfig, StackPool};
    use crate::stack::leaked;

    fn pool(size: usize) -> StackPool {
        StackPool::new(StackConfig { size, precommit: false, keep_warm: 64 })
    }

    /// Suspends the fiber, in a frame other than the root's.
    #[inline(never)]
    fn pause(me: Suspender) {
        // SAFETY: Contract: every caller below runs in the fiber that `me` was made for.
        unsafe { me.suspend() };
    }

    #[test]
    fn thousands_of_fibers_interleave_and_each_keeps_its_own_frames() {
        const FIBERS: usize = 5000;
        const ROUNDS: usize = 10;
        let mut pool = pool(16 * 1024);
        let log = Rc::new(RefCell::new(Vec::new()));
        let mut fibers: Vec<Fiber> = (0..FIBERS)
            .map(|number| {
                let log = Rc::clone(&log);
                Fiber::new(pool.take().expect("a stack"), "one of many", move |me| {
                    let mine = std::hint::black_box([number; 32]);
                    for (round, number) in mine.iter().enumerate().take(ROUNDS) {
                        log.borrow_mut().push((round, *number));
                        pause(me);
                    }
                    assert!(mine.iter().all(|word| *word == number));
                })
            })
            .collect();
        for _ in 0..ROUNDS {
            assert!(fibers.iter_mut().all(|fiber| fiber.resume() == Resume::Suspended));
        }
        assert!(fibers.iter_mut().all(|fiber| fiber.resume() == Resume::Finished));
        let expected: Vec<(usize, usize)> =
            (0..ROUNDS).flat_map(|round| (0..FIBERS).map(move |number| (round, number))).collect();
        assert_eq!(*log.borrow(), expected);
        fibers.into_iter().for_each(|fiber| pool.give(fiber.into_stack()));
        assert_eq!((pool.stats().taken, pool.stats().pooled), (0, FIBERS));
    }

    #[test]
    fn a_suspension_passes_a_word() {
        let mut pool = pool(64 * 1024);
        let mut fiber = Fiber::new(pool.take().expect("a stack"), "talks", |me| {
            // SAFETY: Contract: this is the fiber that `me` was made for.
            unsafe { me.suspend_with(usize::MAX) };
            pause(me);
        });
        let words = [fiber.resume_for_word(), fiber.resume_for_word(), fiber.resume_for_word()];
        assert_eq!(words, [Some(usize::MAX), Some(0), None]);
        pool.give(fiber.into_stack());
    }

    #[test]
    fn a_fiber_may_resume_another() {
        let mut pool = pool(64 * 1024);
        let (outer, inner) = (pool.take().expect("a stack"), pool.take().expect("a stack"));
        let order = Rc::new(RefCell::new(Vec::new()));
        let (seen_out, seen_in) = (Rc::clone(&order), Rc::clone(&order));
        let mut fiber = Fiber::new(outer, "outer", move |me| {
            let mut other = Fiber::new(inner, "inner", move |me| {
                seen_in.borrow_mut().push("inner begins");
                pause(me);
                seen_in.borrow_mut().push("inner ends");
            });
            assert_eq!(other.resume(), Resume::Suspended);
            seen_out.borrow_mut().push("outer");
            pause(me);
            assert_eq!(other.resume(), Resume::Finished);
        });
        assert_eq!(fiber.resume(), Resume::Suspended);
        order.borrow_mut().push("host");
        assert_eq!(fiber.resume(), Resume::Finished);
        assert_eq!(*order.borrow(), ["inner begins", "outer", "host", "inner ends"]);
        pool.give(fiber.into_stack());
    }

    #[test]
    fn a_panic_caught_inside_a_fiber_leaves_fiber_and_thread_whole() {
        let mut pool = pool(256 * 1024);
        let mut fiber = Fiber::new(pool.take().expect("a stack"), "careful", |me| {
            let caught = catch_unwind(|| {
                pause(me);
                std::panic::resume_unwind(Box::new(7));
            });
            assert_eq!(caught.expect_err("it panics").downcast_ref(), Some(&7));
            pause(me);
        });
        assert_eq!(fiber.resume(), Resume::Suspended);
        assert_eq!(fiber.resume(), Resume::Suspended);
        assert!(!std::thread::panicking());
        assert_eq!(fiber.resume(), Resume::Finished);
        pool.give(fiber.into_stack());
    }

    #[test]
    fn a_panic_at_the_root_names_the_worker_and_aborts() {
        let death =
            child::dies("fiber::tests::a_panic_at_the_root_names_the_worker_and_aborts", || {
                let mut pool = pool(256 * 1024);
                let stack = pool.take().expect("a stack");
                let name = Name::numbered("careless", 3);
                let mut fiber = Fiber::new(stack, name, |_| panic!("the last straw"));
                let _ = catch_unwind(AssertUnwindSafe(|| fiber.resume()));
            });
        assert_eq!(death.signal, Some(libc::SIGABRT), "{}", death.words);
        assert!(death.words.contains("the last straw"), "{}", death.words);
        let said = "a panic reached the root of worker 'careless/3'";
        assert!(death.words.contains(said), "{}", death.words);
    }

    /// Sets its flag when it is dropped.
    struct Flag(Rc<Cell<bool>>);

    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }

    #[test]
    fn a_suspended_fiber_that_is_dropped_is_leaked_and_counted_and_not_unwound() {
        let name =
            "fiber::tests::a_suspended_fiber_that_is_dropped_is_leaked_and_counted_and_not_unwound";
        child::succeeds(name, || {
            let mut pool = pool(64 * 1024);
            let dropped = Rc::new(Cell::new(false));
            let flag = Flag(Rc::clone(&dropped));
            let mut fiber = Fiber::new(pool.take().expect("a stack"), "parked", move |me| {
                let _held = flag;
                pause(me);
            });
            assert_eq!(fiber.resume(), Resume::Suspended);
            assert_eq!(leaked(), 0);
            drop(fiber);
            assert_eq!(leaked(), 1);
            assert!(!dropped.get(), "the frames were unwound");
            assert_eq!((pool.stats().taken, pool.stats().pooled), (1, 0));
        });
    }

    #[test]
    fn a_fiber_that_never_started_gives_back_its_closure_and_its_stack() {
        let mut pool = pool(64 * 1024);
        let dropped = Rc::new(Cell::new(false));
        let flag = Flag(Rc::clone(&dropped));
        let fiber = Fiber::new(pool.take().expect("a stack"), "late", move |_| drop(flag));
        assert!(!fiber.is_started() && !fiber.is_finished());
        pool.give(fiber.into_stack());
        assert!(dropped.get());
        assert_eq!(pool.stats().taken, 0);
    }

    #[test]
    #[should_panic(expected = "a suspended fiber keeps its stack")]
    fn a_suspended_fiber_keeps_its_stack() {
        let mut pool = pool(64 * 1024);
        let mut fiber = Fiber::new(pool.take().expect("a stack"), "parked", pause);
        assert_eq!(fiber.resume(), Resume::Suspended);
        pool.give(fiber.into_stack());
    }

    #[test]
    fn a_fiber_on_its_own_stack_runs_as_another_does_and_takes_no_other_memory() {
        let mut pool = pool(16 * 1024);
        let stack = pool.take().expect("a stack");
        let (range, seen) = (stack.range(), Rc::new(Cell::new(0)));
        let told = Rc::clone(&seen);
        let fiber = Fiber::on_its_stack(stack, Name::numbered("kept", 3), move |me| {
            let frame = std::hint::black_box([1u8; 2048]);
            pause(me);
            told.set(frame.iter().map(|byte| usize::from(*byte)).sum());
        });
        assert!(range.contains(fiber.addr()));
        // SAFETY: Own Memory: the fiber was made just above, and is taken out once.
        let fiber = unsafe {
            assert_eq!((*fiber).resume(), Resume::Suspended);
            assert_eq!((*fiber).resume(), Resume::Finished);
            Fiber::take_from_stack(fiber)
        };
        assert_eq!(seen.get(), 2048);
        pool.give(fiber.into_stack());
    }

    #[test]
    #[should_panic(expected = "completed coroutine")]
    fn a_finished_fiber_is_not_resumed() {
        let mut pool = pool(64 * 1024);
        let mut fiber = Fiber::new(pool.take().expect("a stack"), "done", |_| ());
        assert_eq!(fiber.resume(), Resume::Finished);
        let _ = fiber.resume();
    }

    #[test]
    #[should_panic(expected = "box this large closure")]
    fn a_closure_too_large_for_its_stack_is_refused() {
        let mut pool = pool(16 * 1024);
        let large = [0u8; 8 * 1024];
        let stack = pool.take().expect("a stack");
        let _ = Fiber::new(stack, "large", move |_| assert_eq!(large[0], 0));
    }

    #[inline(never)]
    fn host_frame(fiber: &mut Fiber) -> Resume {
        std::hint::black_box(fiber.resume())
    }

    #[test]
    fn a_backtrace_in_a_fiber_reaches_its_root_then_its_resumer_and_ends() {
        let mut pool = pool(1024 * 1024);
        let seen = Rc::new(RefCell::new(String::new()));
        let trace = Rc::clone(&seen);
        let mut fiber = Fiber::new(pool.take().expect("a stack"), "traced", move |me| {
            pause(me);
            *trace.borrow_mut() = std::backtrace::Backtrace::force_capture().to_string();
        });
        // The second resumption is in another function. The backtrace must show that one.
        assert_eq!(fiber.resume(), Resume::Suspended);
        assert_eq!(host_frame(&mut fiber), Resume::Finished);
        let trace = seen.borrow();
        let root = trace.find("fiber_root").expect("the fiber's root");
        let host = trace.find("host_frame").expect("the resumer");
        let last = trace.rfind("clone").or(trace.rfind("start")).expect("the thread's first frame");
        assert!(root < host && host < last, "{trace}");
        assert!(trace.lines().count() < 200, "{trace}");
        pool.give(fiber.into_stack());
    }
}
