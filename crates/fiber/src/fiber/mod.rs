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
//! A fiber may also *pass* to another: it suspends itself, and the other runs, in one switch. The
//! switch itself is in file `direct`, or `linked` for other processors. A suspended stack is never
//! unwound, because frames of C on it cannot be unwound, and because the kernel may still be
//! writing into a buffer on it. To end a suspended fiber, its user makes the fiber's wait fail, and
//! resumes the fiber until it ends.
//!
//! A fiber never changes its thread, because compiled code may keep the address of a thread-local
//! in a register over a suspension. So [`Fiber`] is neither `Send` nor `Sync`.
//!
//! This file has unsafe code for a fiber that is kept on its own stack, and functions whose callers
//! have to keep a contract.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use crate::stack::{self, Name, Stack};
use crate::switch::{KEPT_AT, Resume, Switch, WayOut};
use crate::sys::LastWords;

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
#[repr(transparent)]
pub struct Fiber {
    switch: Switch,
    /// Neither `Send` nor `Sync`.
    pinned_to_thread: PhantomData<*mut ()>,
}

/// Suspends its fiber. The fiber's closure gets it as its argument.
///
/// It may be copied and stored anywhere on the fiber's thread; only its use is unsafe.
#[derive(Clone, Copy, Debug)]
pub struct Suspender {
    way_out: WayOut,
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
        let main = move |way_out| fiber_root(Suspender { way_out }, f, header);
        Fiber { switch: Switch::new(stack, main), pinned_to_thread: PhantomData }
    }

    /// Returns a fiber as [`new`](Fiber::new) does, in the header of its own stack: there it costs
    /// no memory, and a switch finds it in the page of its frames. The caller resumes it there, and
    /// takes it out with [`take_from_stack`](Fiber::take_from_stack). Otherwise it is leaked.
    ///
    /// ```
    /// use fiber::{Fiber, Resume, StackConfig, StackPool};
    /// let mut pool = StackPool::new(StackConfig::default());
    /// let mut fiber = Fiber::on_its_stack(pool.take()?, "worker 1", |_| ());
    /// // SAFETY: Own Memory: the fiber was made just above, and is taken out once.
    /// let fiber = unsafe {
    ///     assert_eq!(fiber.as_mut().resume(), Resume::Finished);
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
    pub fn on_its_stack<'a, F>(stack: Stack, name: impl Into<Name<'a>>, f: F) -> NonNull<Fiber>
    where
        F: FnOnce(Suspender) + 'static,
    {
        let at = ptr::with_exposed_provenance_mut::<Fiber>(stack.header() + KEPT_AT);
        let fiber = Fiber::new(stack, name, f);
        // SAFETY: Own Memory: the stack that the fiber owns has this room, above the first frame.
        unsafe { at.write(fiber) };
        NonNull::new(at).expect("no stack at address 0")
    }

    /// Takes a fiber out of the header of its stack.
    ///
    /// # Safety
    ///
    /// `at` came from [`on_its_stack`](Fiber::on_its_stack), does not run, and is not used again.
    #[inline]
    pub unsafe fn take_from_stack(at: NonNull<Fiber>) -> Fiber {
        // SAFETY: Contract.
        unsafe { at.read() }
    }

    /// Runs the fiber until it suspends itself or ends. If it passes to another fiber, this returns
    /// when that one suspends itself or ends, or the one to which that one passes, and so on.
    ///
    /// # Panics
    ///
    /// If the fiber has finished.
    #[inline]
    pub fn resume(&mut self) -> Resume {
        assert!(!self.is_finished(), "a fiber that has finished is not resumed");
        self.switch.resume()
    }

    /// Resumes a fiber that is kept on its stack, and lets it pass to others. Returns when one of
    /// them suspends itself or ends; the caller has to know which.
    ///
    /// ```
    /// use fiber::{Fiber, Resume, StackConfig, StackPool};
    /// let mut pool = StackPool::new(StackConfig::default());
    /// let second = Fiber::on_its_stack(pool.take()?, "second", |_| ());
    /// let first = Fiber::on_its_stack(pool.take()?, "first", move |me| {
    ///     // SAFETY: Contract: `me` is the suspender of this fiber, and `second` is not started.
    ///     unsafe { me.pass(second) };
    /// });
    /// // SAFETY: Contract: both were made just above. Own Memory: each is taken out once.
    /// unsafe {
    ///     assert_eq!(Fiber::run(first), Resume::Finished); // The second one.
    ///     assert_eq!(Fiber::run(first), Resume::Finished); // The first one.
    ///     pool.give(Fiber::take_from_stack(first).into_stack());
    ///     pool.give(Fiber::take_from_stack(second).into_stack());
    /// }
    /// # Ok::<(), fiber::StackError>(())
    /// ```
    ///
    /// # Safety
    ///
    /// `first` came from [`on_its_stack`](Fiber::on_its_stack) on this thread, was not taken out,
    /// and is suspended or not started. No reference to it, or to a fiber that is passed to, is
    /// alive.
    #[inline(always)]
    pub unsafe fn run(first: NonNull<Fiber>) -> Resume {
        // SAFETY: Contract.
        unsafe { Switch::run(first.cast()) }
    }

    /// Lets the processor get the memory that a switch to this fiber needs, which will be needed
    /// soon. No effect otherwise.
    ///
    /// # Safety
    ///
    /// `fiber` came from [`on_its_stack`](Fiber::on_its_stack), and was not taken out.
    #[inline(always)]
    pub unsafe fn prefetch(fiber: NonNull<Fiber>) {
        // SAFETY: Contract.
        unsafe { Switch::prefetch(fiber.cast()) }
    }

    /// Lets the processor get the memory that [`prefetch`](Fiber::prefetch) reads. No effect
    /// otherwise, whatever the address is.
    #[inline(always)]
    pub fn prefetch_early(fiber: NonNull<Fiber>) {
        Switch::prefetch_early(fiber.cast());
    }

    /// Returns whether the closure has returned.
    #[inline]
    pub fn is_finished(&self) -> bool {
        self.switch.is_finished()
    }

    /// Returns whether the fiber has been resumed at least once.
    #[inline]
    pub fn is_started(&self) -> bool {
        self.switch.is_started()
    }

    /// Returns the address of the word that holds the stack pointer while the fiber is suspended,
    /// and 0 while it runs. The word may move in memory with the `Fiber`, so put that in a box
    /// first. Returns `None` if the word could not be found.
    ///
    /// ```
    /// use fiber::{Fiber, StackConfig, StackPool};
    /// let mut pool = StackPool::new(StackConfig::default());
    /// let worker = Box::new(Fiber::new(pool.take()?, "worker 1", |_| ()));
    /// assert!(worker.saved_at().is_some());
    /// pool.give(worker.into_stack());
    /// # Ok::<(), fiber::StackError>(())
    /// ```
    pub fn saved_at(&self) -> Option<usize> {
        self.switch.saved_at()
    }

    /// Returns the stack, for another fiber. If the fiber was never started, its closure is
    /// dropped.
    ///
    /// # Panics
    ///
    /// If the fiber is suspended.
    #[inline]
    pub fn into_stack(self) -> Stack {
        let at_rest = self.is_finished() || !self.is_started();
        assert!(at_rest, "a suspended fiber keeps its stack: resume it to its end");
        self.switch.into_stack()
    }
}

impl std::fmt::Debug for Fiber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (started, finished) = (self.is_started(), self.is_finished());
        f.debug_struct("Fiber").field("started", &started).field("finished", &finished).finish()
    }
}

impl Suspender {
    /// Returns the suspender as an even address, from which [`from_raw`](Suspender::from_raw) makes
    /// it again.
    #[inline(always)]
    pub fn into_raw(self) -> NonNull<()> {
        self.way_out.into_raw()
    }

    /// Returns the suspender that [`into_raw`](Suspender::into_raw) has made the address of.
    /// Another address gives a suspender of no fiber: every use of that breaks its contract.
    #[inline(always)]
    pub fn from_raw(raw: NonNull<()>) -> Suspender {
        Suspender { way_out: WayOut::from_raw(raw) }
    }

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
        unsafe { self.way_out.suspend() }
    }

    /// Leaves the fiber, and resumes another one, which can return to the code that resumed this
    /// one. Returns when this fiber is resumed. See [`Fiber::run`].
    ///
    /// # Safety
    ///
    /// As [`Suspender::suspend`]; and `next` came from [`Fiber::on_its_stack`] on this thread, was
    /// not taken out, and is suspended, not started, or the fiber of this suspender. No reference
    /// to `next` is alive.
    #[inline(always)]
    pub unsafe fn pass(self, next: NonNull<Fiber>) {
        // SAFETY: Contract.
        unsafe { self.way_out.pass(next.cast()) }
    }
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
mod tests;
