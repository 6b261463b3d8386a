//! The moves of a context: how a thread leaves its kernel thread, runs on a host, and returns.
//!
//! Each function of [`Context`] here is one arrow of the picture in `lib.rs`, which also defines
//! the words.
//!
//! *Signal masks.* While the own kernel thread of a context sleeps, it blocks all signals except
//! the one by which glibc changes credentials, so that the kernel delivers signals for the process
//! to threads that run. A coupled context has its own mask, because threads and processes that it
//! starts inherit the mask. A context on a host has the mask of the host's kernel thread.
//!
//! This file has unsafe code: the callers of a switch guarantee the invariant One Place, which
//! `lib.rs` defines.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{from_mut, from_ref, null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::post::Post;
use crate::record::Context;
use crate::setxid::SETXID;
use crate::support::{self, Refused, supported};
use crate::{arch, setxid};

impl Context {
    /// Makes this the context of the calling thread, saves it, and sends the post. `body` then runs
    /// on the host that switches to the context. It must return on the context's own kernel thread,
    /// after [`Context::leave_for`] or [`Context::release`]. A thread calls this at most
    /// once, and does nothing but end after it has returned.
    ///
    /// # Errors
    /// The reason why the thread cannot be detached. Then nothing has changed, and the post has not
    /// been sent.
    ///
    /// # Panics
    /// If `body` panics, with its payload.
    ///
    /// # Safety
    /// * The context does not move in memory, and is used for nothing else, until `body` has
    ///   returned. No thread resumes it before the post has been sent.
    /// * `body`, and the code that resumes the context, follow *One Place*: only one thread resumes
    ///   it at a time, and the root and the kernel thread of each host that resumes it outlive its
    ///   stay there.
    /// * No code of the thread relies, over a switch of `body`, on state that belongs to a kernel
    ///   thread; the crate's page lists such state.
    pub unsafe fn detach<R>(
        &self,
        post: &Post<'_>,
        body: impl FnOnce() -> R,
    ) -> Result<R, Refused> {
        self.prepare()?;
        let mut result = None;
        let whole = || {
            // SAFETY: One Place: this is the calling thread's context, and it is coupled, as every
            // thread is at first.
            unsafe { self.decouple(post) };
            result = Some(catch_unwind(AssertUnwindSafe(body)));
            restore_mask(&self.mask);
        };
        beyond_the_gap(self, whole);
        match result.expect("the call has returned") {
            Ok(result) => Ok(result),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Does what [`Context::detach`] does, for a body that `pthread_exit` may unwind: no frame of
    /// this crate between the body and the thread's first frame catches the unwinding, and none has
    /// anything to drop.
    ///
    /// # Errors
    /// As [`Context::detach`].
    ///
    /// # Safety
    /// As [`Context::detach`]. Calling `body` with `arg` is sound, and `arg` need not be dropped.
    /// The context is on its own kernel thread when `body` is unwound. `body` does not panic.
    pub unsafe fn detach_unguarded(
        &self,
        post: &Post<'_>,
        body: unsafe extern "C-unwind" fn(*mut ()),
        arg: *mut (),
    ) -> Result<(), Refused> {
        self.prepare()?;
        let mut unguarded = Unguarded { context: self, post, body, arg };
        let whole = from_mut(&mut unguarded).cast();
        // SAFETY: Plain Call: the struct outlives the call. The stack has room, because `prepare`
        // has checked that.
        unsafe { arch::across_gap(from_ref(self), support::gap(), Unguarded::live, whole) };
        Ok(())
    }

    /// Checks whether the calling thread can be detached, and stores its FS base in the context.
    fn prepare(&self) -> Result<(), Refused> {
        supported()?;
        if !support::has_room_for_the_gap() {
            return Err(Refused::Stack);
        }
        setxid::install()?;
        support::unregister_rseq()?;
        self.fs.store(arch::thread_pointer(), Ordering::Relaxed);
        Ok(())
    }

    /// Saves this context and resumes `to` on the calling kernel thread. Returns when another
    /// context switches to this one, on the kernel thread of that context's host.
    ///
    /// # Safety
    /// *One Place*: this is the running context, and it is a root or on a host. `to` is saved, only
    /// the caller may resume it, and it is a detached context or the root of this host. The root
    /// and the kernel thread of the host outlive the stay of `to` there.
    #[inline(always)]
    pub unsafe fn switch_to(&self, to: &Context) {
        debug_assert_ne!(to.sp.load(Ordering::Relaxed), 0, "a context that is not saved");
        told_release(from_ref(to).cast());
        // SAFETY: Contract.
        unsafe { arch::switch(from_ref(self), from_ref(to)) };
        told_acquire(from_ref(self).cast());
    }

    /// Couples: resumes `to` on the calling kernel thread, and this context on its own, with its
    /// own signal mask.
    ///
    /// # Safety
    /// As [`Context::switch_to`]; and this context has been detached, so it is no root.
    #[inline]
    pub unsafe fn leave_for(&self, to: &Context) {
        debug_assert_ne!(to.sp.load(Ordering::Relaxed), 0, "a context that is not saved");
        told_release(from_ref(to).cast());
        // SAFETY: Contract; the own kernel thread of a detached context sleeps.
        unsafe { arch::switch_and_release(from_ref(self), from_ref(to)) };
        restore_mask(&self.mask);
    }

    /// Decouples: saves this context and sends the post. Returns when the context is resumed: on a
    /// host, or on its own kernel thread after [`Context::release`].
    ///
    /// # Safety
    /// *One Place*: this is the running context, and it is coupled. The root and the kernel thread
    /// of the host that resumes it outlive its stay there.
    pub unsafe fn decouple(&self, post: &Post<'_>) {
        block_signals(&self.mask);
        told_release(post.word());
        // SAFETY: Contract; signals are blocked.
        unsafe { arch::park(from_ref(self), from_ref(post)) };
        told_acquire(from_ref(self).cast());
    }

    /// Makes the own kernel thread of this saved context resume it. Signals stay blocked there
    /// until [`Context::detach`] returns, or until the context calls [`Context::restore_mask`].
    ///
    /// # Safety
    /// *One Place*: it is saved, and only the caller may resume it.
    pub unsafe fn release(&self) {
        told_release(from_ref(self).cast());
        let go = &self.go;
        if go.swap(1, Ordering::AcqRel) == 2 {
            let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: Plain Call: the word may have been freed by now. Then no thread sleeps on
            // this address, and the call does nothing.
            unsafe { libc::syscall(libc::SYS_futex, go.as_ptr(), wake, 1) };
        }
    }

    /// Restores the context's own signal mask. To be called after [`Context::decouple`] has
    /// returned on the context's own kernel thread, because the context was released.
    pub fn restore_mask(&self) {
        restore_mask(&self.mask);
    }
}

/// The arguments of the function that [`Context::detach_unguarded`] runs below the gap.
struct Unguarded<'a> {
    context: &'a Context,
    post: &'a Post<'a>,
    body: unsafe extern "C-unwind" fn(*mut ()),
    arg: *mut (),
}

impl Unguarded<'_> {
    unsafe extern "C-unwind" fn live(whole: *mut ()) {
        // SAFETY: Own Memory: the struct is in the frame of `detach_unguarded`, which waits for
        // this function.
        let Unguarded { context, post, body, arg } = unsafe { &*whole.cast::<Unguarded<'_>>() };
        // SAFETY: One Place: this is the calling thread's context, and it is coupled, as every
        // thread is at first. The caller of `detach_unguarded` guarantees that `body` may be
        // called.
        unsafe {
            context.decouple(post);
            body(*arg);
        }
        restore_mask(&context.mask);
    }
}

/// A thread on whose kernel thread contexts run. It is created on that thread, and cannot be sent
/// to another.
#[derive(Debug)]
pub struct Host {
    root: Box<Context>,
    pinned_to_thread: PhantomData<*mut ()>,
}

impl Host {
    /// Makes the calling thread a host. A thread may be made a host several times.
    ///
    /// # Errors
    /// The reason why the thread cannot be a host: for example [`Refused::Hosted`], if the caller
    /// is a context that runs on a host itself.
    pub fn here() -> Result<Host, Refused> {
        supported()?;
        setxid::install()?;
        setxid::enlist()?;
        let root = Box::new(Context::new());
        root.fs.store(arch::thread_pointer(), Ordering::Relaxed);
        Ok(Host { root, pinned_to_thread: PhantomData })
    }

    /// Returns the root: the host's own context. The host switches from it to other contexts, and
    /// they switch to it when they leave.
    pub fn root(&self) -> &Context {
        &self.root
    }
}

/// Calls `f` on the same stack, below the gap.
fn beyond_the_gap<F: FnOnce()>(context: &Context, f: F) {
    unsafe extern "C-unwind" fn call<F: FnOnce()>(f: *mut ()) {
        // SAFETY: Own Memory: the closure is in the frame of `beyond_the_gap`, which waits for
        // this function.
        let f = unsafe { &*f.cast::<Cell<Option<F>>>() };
        f.take().into_iter().for_each(|f| f());
    }
    let mut f = Cell::new(Some(f));
    // SAFETY: Plain Call: `f` outlives the call. The stack has room, because `prepare` has checked
    // that.
    unsafe {
        arch::across_gap(from_ref(context), support::gap(), call::<F>, from_mut(&mut f).cast());
    }
}

/// The size of the kernel's set of signals, in bytes.
const SET: usize = size_of::<u64>();

/// Blocks every signal except [`SETXID`], and stores the previous mask in `keep`.
fn block_signals(keep: &AtomicU64) {
    let all: u64 = !(1 << (SETXID - 1));
    let how = libc::SIG_SETMASK;
    // The C library's function would leave some of its own signals unblocked, so this makes the
    // system call. SAFETY: Plain Call: both sets outlive the call.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, from_ref(&all), keep.as_ptr(), SET) };
}

fn restore_mask(kept: &AtomicU64) {
    let (how, nothing) = (libc::SIG_SETMASK, null_mut::<u64>());
    let kept = from_ref(kept).cast::<u64>();
    debug_assert_ne!(kept, null());
    // SAFETY: Plain Call: the set outlives the call.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, kept, nothing, SET) };
}

// Reports to ThreadSanitizer, with `--cfg tsan` only.
//
// The sanitizer keeps its data about a thread in the thread's own thread-locals, so these move with
// the context. But it does not see the memory accesses in the assembly of a switch or of a post. So
// these functions report their effect: everything that a thread has done before it resumes a
// context, or before it posts that the context is saved, happens before everything that the resumed
// context does afterwards.
//
// AddressSanitizer needs no report, because it finds its data about a stack by the FS base.

#[cfg(tsan)]
unsafe extern "C" {
    fn __tsan_release(address: *mut std::ffi::c_void);
    fn __tsan_acquire(address: *mut std::ffi::c_void);
}

/// Reports that everything before this call happens before everything that follows an acquire of
/// the same address.
#[inline(always)]
fn told_release(_address: *const ()) {
    #[cfg(tsan)]
    // SAFETY: Plain Call: records the address, and does not read the memory.
    unsafe {
        __tsan_release(_address.cast_mut().cast());
    }
}

/// Reports that everything after this call happens after everything that preceded a release of the
/// same address.
#[inline(always)]
fn told_acquire(_address: *const ()) {
    #[cfg(tsan)]
    // SAFETY: Plain Call: records the address, and does not read the memory.
    unsafe {
        __tsan_acquire(_address.cast_mut().cast());
    }
}
