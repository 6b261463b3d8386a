//! Contexts and hosts: how a thread leaves its kernel thread, runs on a host, and returns.
//!
//! Each function here is one arrow of the picture in `lib.rs`. Signals: while the own kernel thread
//! of a context sleeps, it blocks all of them except the one by which glibc changes credentials, so
//! signals to the process go to threads that run. A coupled context has its own mask again, because
//! whatever it starts there inherits it. On a host it has the host's.
//!
//! Unsafe code to switch: see `lib.rs` for the rules.

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
    /// Makes this the context of the calling thread, saves it, and sends the post. `body` runs on
    /// the host that switches to it, and must return on the own kernel thread: after
    /// [`Context::leave_for`] or [`Context::release`]. After this the thread only ends, and it does
    /// not call this twice.
    ///
    /// # Errors
    /// The reason why the thread cannot be detached. Nothing has happened, and the post was not
    /// sent.
    ///
    /// # Panics
    /// If `body` panics, with its payload.
    ///
    /// # Safety
    /// * The context does not move, and is used for nothing else, until `body` has returned; before
    ///   the post no thread resumes it (*One Place*).
    /// * `body` follows *One Place*, and what resumes it *One Place*.
    /// * Nothing in the thread keeps state by kernel thread over the switches of `body`; the
    ///   crate's page lists such state.
    pub unsafe fn detach<R>(
        &self,
        post: &Post<'_>,
        body: impl FnOnce() -> R,
    ) -> Result<R, Refused> {
        self.prepare()?;
        let mut result = None;
        let whole = || {
            // SAFETY: One Place: the calling thread, coupled as every thread is at first.
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

    /// Does as [`Context::detach`], for a body that `pthread_exit` may unwind: no frame between it
    /// and the thread's first frame catches that or needs to be dropped.
    ///
    /// # Errors
    /// As [`Context::detach`].
    ///
    /// # Safety
    /// As [`Context::detach`]; `body` may be called with `arg`, which need not be dropped. The body
    /// is on its own kernel thread when it is unwound, and does not panic.
    pub unsafe fn detach_unguarded(
        &self,
        post: &Post<'_>,
        body: unsafe extern "C-unwind" fn(*mut ()),
        arg: *mut (),
    ) -> Result<(), Refused> {
        self.prepare()?;
        let mut unguarded = Unguarded { context: self, post, body, arg };
        let whole = from_mut(&mut unguarded).cast();
        // SAFETY: Plain Call: the struct outlives the call. The stack has room: `prepare` has
        // looked.
        unsafe { arch::across_gap(from_ref(self), support::gap(), Unguarded::live, whole) };
        Ok(())
    }

    /// Checks what can be refused, and notes what a switch needs to know about the calling thread.
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

    /// Resumes `to` here, and returns when another context switches to this one again, on that
    /// context's host.
    ///
    /// # Safety
    /// *One Place*: this is the running context, a root or one on a host, and `to` is saved, and
    /// only the caller may resume it: another context, or the root of this host. *One Place*.
    #[inline(always)]
    pub unsafe fn switch_to(&self, to: &Context) {
        debug_assert_ne!(to.sp.load(Ordering::Relaxed), 0, "a context that is not saved");
        told_release(from_ref(to).cast());
        // SAFETY: Contract.
        unsafe { arch::switch(from_ref(self), from_ref(to)) };
        told_acquire(from_ref(self).cast());
    }

    /// Couples: resumes `to` here, and this context on its own kernel thread, with its own signal
    /// mask.
    ///
    /// # Safety
    /// As [`Context::switch_to`]; this context is one that was detached.
    #[inline]
    pub unsafe fn leave_for(&self, to: &Context) {
        debug_assert_ne!(to.sp.load(Ordering::Relaxed), 0, "a context that is not saved");
        told_release(from_ref(to).cast());
        // SAFETY: Contract; a detached context's own kernel
        // thread sleeps.
        unsafe { arch::switch_and_release(from_ref(self), from_ref(to)) };
        restore_mask(&self.mask);
    }

    /// Decouples: saves this context, sends the post, and returns where it is resumed: on a host,
    /// or here, after it was released.
    ///
    /// # Safety
    /// *One Place*: this is the running context, and it is coupled. *One Place*, of whatever
    /// host resumes it.
    pub unsafe fn decouple(&self, post: &Post<'_>) {
        block_signals(&self.mask);
        told_release(post.word());
        // SAFETY: Contract; signals are blocked.
        unsafe { arch::park(from_ref(self), from_ref(post)) };
        told_acquire(from_ref(self).cast());
    }

    /// Makes the own kernel thread resume this saved context. Its signals stay blocked until it has
    /// returned from [`Context::detach`], or restores its mask ([`Context::restore_mask`]).
    ///
    /// # Safety
    /// *One Place*: it is saved, and only the caller may resume it.
    pub unsafe fn release(&self) {
        told_release(from_ref(self).cast());
        let go = &self.go;
        if go.swap(1, Ordering::AcqRel) == 2 {
            let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: Plain Call: the word may be gone by now; then no thread sleeps there.
            unsafe { libc::syscall(libc::SYS_futex, go.as_ptr(), wake, 1) };
        }
    }

    /// Restores its own signal mask after [`Context::decouple`] has returned here because the
    /// context was released.
    pub fn restore_mask(&self) {
        restore_mask(&self.mask);
    }
}

/// What [`Context::detach_unguarded`] runs beyond the gap.
struct Unguarded<'a> {
    context: &'a Context,
    post: &'a Post<'a>,
    body: unsafe extern "C-unwind" fn(*mut ()),
    arg: *mut (),
}

impl Unguarded<'_> {
    unsafe extern "C-unwind" fn live(whole: *mut ()) {
        // SAFETY: One Place: from the frame of `detach_unguarded`, which waits for this.
        let Unguarded { context, post, body, arg } = unsafe { &*whole.cast::<Unguarded<'_>>() };
        // SAFETY: One Place: the calling thread, coupled as every thread is at first. The body as
        // its caller has promised.
        unsafe {
            context.decouple(post);
            body(*arg);
        }
        restore_mask(&context.mask);
    }
}

/// A thread on whose kernel thread contexts run. It is made on that thread, and cannot be sent to
/// another.
#[derive(Debug)]
pub struct Host {
    root: Box<Context>,
    pinned_to_thread: PhantomData<*mut ()>,
}

impl Host {
    /// Makes the calling thread a host. A thread may be made a host several times.
    ///
    /// # Errors
    /// The reason why it cannot be one: [`Refused::Hosted`] for a context that is on a host itself.
    pub fn here() -> Result<Host, Refused> {
        supported()?;
        setxid::install()?;
        setxid::enlist()?;
        let root = Box::new(Context::new());
        root.fs.store(arch::thread_pointer(), Ordering::Relaxed);
        Ok(Host { root, pinned_to_thread: PhantomData })
    }

    /// Returns its own context, from which it switches to others and to which they switch when they
    /// leave.
    pub fn root(&self) -> &Context {
        &self.root
    }
}

/// Calls `f` on the same stack beyond the gap.
fn beyond_the_gap<F: FnOnce()>(context: &Context, f: F) {
    unsafe extern "C-unwind" fn call<F: FnOnce()>(f: *mut ()) {
        // SAFETY: One Place: from the frame of `beyond_the_gap`, which waits for this.
        let f = unsafe { &*f.cast::<Cell<Option<F>>>() };
        f.take().into_iter().for_each(|f| f());
    }
    let mut f = Cell::new(Some(f));
    // SAFETY: Plain Call: `f` outlives the call. The stack has room: `prepare` has looked.
    unsafe {
        arch::across_gap(from_ref(context), support::gap(), call::<F>, from_mut(&mut f).cast());
    }
}

/// The kernel's set of signals.
const SET: usize = size_of::<u64>();

/// Blocks every signal except [`SETXID`], and stores the mask before.
fn block_signals(keep: &AtomicU64) {
    let all: u64 = !(1 << (SETXID - 1));
    let how = libc::SIG_SETMASK;
    // By the system call: the C library leaves some of its own signals unblocked. SAFETY: Plain
    // Call: both sets outlive the call.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, from_ref(&all), keep.as_ptr(), SET) };
}

fn restore_mask(kept: &AtomicU64) {
    let (how, nothing) = (libc::SIG_SETMASK, null_mut::<u64>());
    let kept = from_ref(kept).cast::<u64>();
    debug_assert_ne!(kept, null());
    // SAFETY: Plain Call: the set outlives the call.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, kept, nothing, SET) };
}

// What ThreadSanitizer is told about switches, with the feature `tsan`; without it nothing.
//
// What the sanitizer keeps for a thread is in the thread's own thread-locals, so it moves with the
// context by itself. But it does not see what the few instructions of a switch or of a post do to
// memory. So it is told what they mean: all that a thread did before it resumes a context, or posts
// that it is saved, happens before all that the resumed context does after.
//
// AddressSanitizer needs no such call: it finds what it knows about a stack by the same register.

#[cfg(feature = "tsan")]
unsafe extern "C" {
    fn __tsan_release(address: *mut std::ffi::c_void);
    fn __tsan_acquire(address: *mut std::ffi::c_void);
}

/// Says that all that was done here happens before what follows an acquire of this address.
#[inline(always)]
fn told_release(_address: *const ()) {
    #[cfg(feature = "tsan")]
    // SAFETY: Plain Call: notes an address, and does not read what is there.
    unsafe {
        __tsan_release(_address.cast_mut().cast());
    }
}

/// Says that what follows here happens after all that preceded a release of this address.
#[inline(always)]
fn told_acquire(_address: *const ()) {
    #[cfg(feature = "tsan")]
    // SAFETY: Plain Call: notes an address, and does not read what is there.
    unsafe {
        __tsan_acquire(_address.cast_mut().cast());
    }
}
