//! Contexts and hosts: how a thread leaves its kernel thread, runs on a host, and comes home.
//!
//! Each function here is one arrow of the picture in `lib.rs`. Signals: while the own kernel thread
//! of a context sleeps it blocks all of them but the one by which glibc changes credentials, so
//! what is sent to the process goes to threads that run. Coupled, the context has its own mask
//! back, because whatever it starts there inherits it. On a host it has the host's.
//!
//! Invariants used here: those of the crate.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{from_mut, from_ref, null, null_mut};
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::post::Post;
use crate::support::{self, Refused, supported};
use crate::{machine, setxid, tsan};

/// The signal by which glibc has every thread change its credentials.
pub(crate) const SETXID: u32 = 33;

/// A thread as the switch sees it. It must stay where it is while anybody may continue it.
#[derive(Debug)]
#[repr(C)]
pub struct Context {
    /// The stack pointer while it is saved, else 0.
    pub(crate) sp: AtomicUsize,
    /// The address of its thread control block.
    pub(crate) fs: AtomicUsize,
    pub(crate) mxcsr: AtomicU32,
    pub(crate) x87: AtomicU16,
    /// What its own kernel thread sleeps on: an event, as `post.rs` says.
    pub(crate) go: AtomicU32,
    /// Where its own kernel thread sleeps.
    pub(crate) gap: AtomicUsize,
    /// Its signal mask while it is not coupled.
    mask: AtomicU64,
}

impl Default for Context {
    fn default() -> Context {
        Context::new()
    }
}

impl Context {
    /// A context for a thread that does not exist yet.
    pub const fn new() -> Context {
        Context {
            sp: AtomicUsize::new(0),
            fs: AtomicUsize::new(0),
            mxcsr: AtomicU32::new(0),
            x87: AtomicU16::new(0),
            go: AtomicU32::new(0),
            gap: AtomicUsize::new(0),
            mask: AtomicU64::new(0),
        }
    }

    /// Makes this the context of the calling thread, saves it, and sends the post. `body` runs
    /// where somebody switches to it, and must come back on the own kernel thread: after
    /// [`Context::leave_for`] or [`Context::release`]. The thread does nothing more but end, and
    /// does not do this twice.
    ///
    /// # Errors
    /// Why it cannot be; nothing has happened, and the post was not sent.
    ///
    /// # Panics
    /// With what `body` panics with.
    ///
    /// # Safety
    /// * The context stays where it is, and is used by nobody else, until `body` has come back;
    ///   before the post it is known to nobody who would continue it (*Saved First*).
    /// * `body` follows *One Place*, and what continues it *Host Outlives*.
    /// * Nothing in the thread keeps state by kernel thread over the switches of `body`; see the
    ///   crate's page for what is kept so.
    pub unsafe fn detach<R>(
        &self,
        post: &Post<'_>,
        body: impl FnOnce() -> R,
    ) -> Result<R, Refused> {
        self.prepare()?;
        let mut result = None;
        let whole = || {
            // SAFETY: One Place: the calling thread, coupled as every thread is at first.
            unsafe { self.come_in(post) };
            result = Some(catch_unwind(AssertUnwindSafe(body)));
            restore_mask(&self.mask);
        };
        beyond_the_gap(self, whole);
        match result.expect("what was called has come back") {
            Ok(result) => Ok(result),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// As [`Context::detach`], for a body that `pthread_exit` may unwind: nothing stands between it
    /// and the thread's first frame that catches that or needs to be dropped.
    ///
    /// # Errors
    /// As [`Context::detach`].
    ///
    /// # Safety
    /// As [`Context::detach`]; `body` may be called with `arg`, which needs not be dropped. The
    /// body is on its own kernel thread when it is unwound, and does not panic.
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
        unsafe { machine::across_gap(from_ref(self), support::gap(), Unguarded::live, whole) };
        Ok(())
    }

    /// What can be refused, and what a switch needs to know of the calling thread.
    fn prepare(&self) -> Result<(), Refused> {
        supported()?;
        if !support::has_room_for_the_gap() {
            return Err(Refused::Stack);
        }
        setxid::install()?;
        support::unregister_rseq()?;
        self.fs.store(machine::thread_pointer(), Ordering::Relaxed);
        Ok(())
    }

    /// Continues `to` here, and comes back when somebody switches to this context again, on that
    /// one's host.
    ///
    /// # Safety
    /// *One Place*: this is the running context, a root or one on a host, and `to` is saved and
    /// nobody else's to continue: another context, or the root of this host. *Host Outlives*.
    #[inline(always)]
    pub unsafe fn switch_to(&self, to: &Context) {
        debug_assert_ne!(to.sp.load(Ordering::Relaxed), 0, "a context that is not saved");
        tsan::release(from_ref(to).cast());
        // SAFETY: One Place and Host Outlives, by the contract.
        unsafe { machine::switch(from_ref(self), from_ref(to)) };
        tsan::acquire(from_ref(self).cast());
    }

    /// Couples: continues `to` here, and this context on its own kernel thread, with its own signal
    /// mask.
    ///
    /// # Safety
    /// As [`Context::switch_to`]; this context is one that was detached.
    #[inline]
    pub unsafe fn leave_for(&self, to: &Context) {
        debug_assert_ne!(to.sp.load(Ordering::Relaxed), 0, "a context that is not saved");
        tsan::release(from_ref(to).cast());
        // SAFETY: One Place and Host Outlives, by the contract; a detached context's own kernel
        // thread sleeps.
        unsafe { machine::switch_and_release(from_ref(self), from_ref(to)) };
        restore_mask(&self.mask);
    }

    /// Decouples: saves this context, sends the post, and comes back where somebody continues it:
    /// on a host, or here, when it was released.
    ///
    /// # Safety
    /// *One Place*: this is the running context, and it is coupled. *Host Outlives*, of whatever
    /// host continues it.
    pub unsafe fn come_in(&self, post: &Post<'_>) {
        block_signals(&self.mask);
        tsan::release(post.word());
        // SAFETY: One Place, by the contract; signals are blocked.
        unsafe { machine::park(from_ref(self), from_ref(post)) };
        tsan::acquire(from_ref(self).cast());
    }

    /// Has the own kernel thread continue this saved context. Its signals stay blocked until it has
    /// come back from [`Context::detach`], or takes its mask back ([`Context::stay`]).
    ///
    /// # Safety
    /// *One Place*: it is saved, and nobody else's to continue.
    pub unsafe fn release(&self) {
        tsan::release(from_ref(self).cast());
        let go = &self.go;
        if go.swap(1, Ordering::AcqRel) == 2 {
            let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
            // SAFETY: Plain Call: the word may be gone by now; then nobody sleeps there.
            unsafe { libc::syscall(libc::SYS_futex, go.as_ptr(), wake, 1) };
        }
    }

    /// Takes its own signal mask back after [`Context::come_in`] has come back here, because the
    /// context was released.
    pub fn stay(&self) {
        restore_mask(&self.mask);
    }

    /// The signal mask that it had when it came in last.
    pub fn mask(&self) -> u64 {
        self.mask.load(Ordering::Relaxed)
    }

    /// The address of the word that holds its stack pointer while it is saved, and 0 while it runs,
    /// whole: stack pointer and FS base are its own (*Whole*). What is saved there are the next
    /// instruction, rbx and rbp.
    pub fn saved_at(&self) -> usize {
        from_ref(&self.sp).expose_provenance()
    }

    /// Whether it is saved, as far as anybody can tell.
    pub fn is_saved(&self) -> bool {
        self.sp.load(Ordering::Acquire) != 0
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
            context.come_in(post);
            body(*arg);
        }
        restore_mask(&context.mask);
    }
}

/// A thread on whose kernel thread contexts run. Made on that thread, and stays there.
#[derive(Debug)]
pub struct Host {
    root: Box<Context>,
    pinned_to_thread: PhantomData<*mut ()>,
}

impl Host {
    /// Makes the calling thread a host. It may be one several times over.
    ///
    /// # Errors
    /// Why it cannot be one: [`Refused::Hosted`] for a context that is on a host itself.
    pub fn here() -> Result<Host, Refused> {
        supported()?;
        setxid::install()?;
        setxid::enlist()?;
        let root = Box::new(Context::new());
        root.fs.store(machine::thread_pointer(), Ordering::Relaxed);
        Ok(Host { root, pinned_to_thread: PhantomData })
    }

    /// Its own context, from which it switches to others and which they switch to when they leave.
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
        machine::across_gap(from_ref(context), support::gap(), call::<F>, from_mut(&mut f).cast());
    }
}

/// The kernel's set of signals.
const SET: usize = size_of::<u64>();

/// Blocks every signal but [`SETXID`], and keeps the mask that was.
fn block_signals(keep: &AtomicU64) {
    let all: u64 = !(1 << (SETXID - 1));
    let how = libc::SIG_SETMASK;
    // Not by the C library, which leaves some of its own unblocked.
    // SAFETY: Plain Call: both sets outlive the call.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, from_ref(&all), keep.as_ptr(), SET) };
}

fn restore_mask(kept: &AtomicU64) {
    let (how, nothing) = (libc::SIG_SETMASK, null_mut::<u64>());
    let kept = from_ref(kept).cast::<u64>();
    debug_assert_ne!(kept, null());
    // SAFETY: Plain Call: the set outlives the call.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, kept, nothing, SET) };
}
