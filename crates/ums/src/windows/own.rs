//! Workers with their own context: executed by a switch in user mode, on the kernel thread of their
//! scheduler.
//!
//! Such a worker is a thread that has left its kernel thread (crate `context`). Executing it, and
//! its yield, are a change of registers each, and no system call. The entry point runs on the
//! scheduler's own stack in between, as always.
//!
//! ```text
//!           executed: switch                          calls what may block, is asked to stop, ends
//!   SAVED ---------------------> IN USER MODE ------------------------------------------------+
//!    ^ ^                          |  on its scheduler's kernel thread; its own sleeps         |
//!    | +---- yields: switch ------+                                                           v
//!    +-------- yields: comes in ------------------------------------ ON ITS OWN KERNEL THREAD
//!                                                                     |  seated at the place, or |  executed: its event
//!                                                                     +--> blocked --> at its gate
//! ```
//!
//! This is Windows' own division: a worker that has entered the kernel runs on its own kernel
//! thread until it yields, and that yield is a system call (KernelYieldCount); the others are not
//! (YieldCount). There every system call does that, here those that may block: interposed calls and
//! this crate's own before they do, any other when it is seen that it has.
//!
//! On its own kernel thread it is a worker like any other, with its word, its gate and its place
//! (`watch`); in user mode its word says RUNTIME and the place is vacant (`watch/hosted.rs`).
//!
//! Invariants of crate `context`, as kept here. **One Place**: who has claimed a worker continues
//! it, and nobody else can claim it before it is PARKED again. **Saved First**: it is made PARKED
//! by its scheduler, when it has switched back, or when the event has come that its own kernel
//! thread posts after saving it; the first time by its creator, in the same way. **Whole** is the
//! switch's. **Host Outlives**: a scheduler waits in `Primary::run` as long as a worker is on its
//! kernel thread, and that frame stands inside that of its host. **Executed**: see `context.rs`.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

use super::boot::{self, Routine, Told};
use super::context::Context;
use super::primary::{Heard, News, Primary};
use crate::record::counters::add;
use crate::watch::{self, Watched};

/// What workers are made of if nobody says: 0 the environment decides, 1 threads, 2 threads with
/// their own context.
static DEFAULT: AtomicU8 = AtomicU8::new(0);

/// Whether workers have their own context if nobody says: `UMS_WINDOWS_WORKERS=context`.
pub(super) fn by_default() -> bool {
    match DEFAULT.load(Ordering::Relaxed) {
        0 => {
            let said = std::env::var("UMS_WINDOWS_WORKERS");
            let own = said.is_ok_and(|said| said == "context");
            set_default(own);
            own
        }
        said => said == 2,
    }
}

/// Decides that instead of the environment.
pub(super) fn set_default(own: bool) {
    DEFAULT.store(if own { 2 } else { 1 }, Ordering::Relaxed);
}

/// Whether threads can have their own context here.
pub(super) fn is_supported() -> io::Result<()> {
    ::context::supported().map_err(|why| io::Error::new(io::ErrorKind::Unsupported, why))
}

/// What a worker runs.
#[derive(Clone, Copy)]
pub(super) struct Life {
    pub routine: Routine,
    pub arg: *mut c_void,
}

/// The life of a worker with its own context, from its new thread on. Owns nothing while the
/// routine runs.
///
/// # Errors
/// The number of the error: it cannot be one. Its creator was not told.
///
/// # Safety
/// *Saved First*: nobody knows of the context before its creator is told. The calling thread holds
/// it until its end; `told` is held until it is told.
pub(super) unsafe fn live(context: &Context, told: &Told, life: &mut Life) -> Result<(), i32> {
    let (post, life) = (told.event.post(), ptr::from_mut(life).cast());
    context.stack_is_here();
    // SAFETY: One Place and Saved First: as the head of this file says. The routine's code is the
    // application's, for which docs/worker-kinds.md says what is kept by kernel thread; when it
    // ends, by `pthread_exit` too, `leave_for_good` comes first.
    let lived = unsafe { context.own.detach_unguarded(&post, body, life) };
    lived.map_err(|_| libc::ENOTSUP)
}

unsafe extern "C-unwind" fn body(life: *mut ()) {
    // SAFETY: One Place: from the frame of `live`, which waits for this; nothing to be dropped.
    let Life { routine, arg } = unsafe { *life.cast::<Life>() };
    let Some(context) = boot::current() else { return };
    context.is_cancellable.store(cancelling(UNCANCELLABLE), Ordering::Relaxed);
    context.detached.store(true, Ordering::Relaxed);
    context.watched().come_onto(context.primary().thread);
    routine(arg);
    leave_for_good();
}

/// Sets whether the calling thread can be cancelled, and gives what it was. In user mode it cannot:
/// a cancellation unwinds to the end of the thread wherever that is noticed, and on the scheduler's
/// kernel thread that would be the end of another.
fn cancelling(state: libc::c_int) -> libc::c_int {
    unsafe extern "C" {
        fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
    }
    let mut before = 0;
    // SAFETY: Plain Call: a local.
    unsafe { pthread_setcancelstate(state, &mut before) };
    before
}

/// `PTHREAD_CANCEL_DISABLE`.
const UNCANCELLABLE: libc::c_int = 1;

/// The calling worker, in user code, is about to end: from here on it stays on its own kernel
/// thread. Nothing, if it is not hosted.
pub(super) fn leave_for_good() {
    let (Some(context), Some(me)) = (boot::current(), watch::thread::me()) else { return };
    if me.is_hosted() {
        context.couple(None);
        me.word.leave();
        me.look_for_stop();
    }
    context.detached.store(false, Ordering::Relaxed);
}

impl Context {
    /// The calling worker, in user mode and inside the machine since it was found there, yields.
    /// Comes back when it is executed again.
    #[inline(always)]
    pub(super) fn yield_in_user_mode(&self, me: &'static Watched, param: usize) {
        add(&self.counts.yields, 1);
        let primary = self.primary();
        primary.note_here(Some(News::Yielded), self, param);
        // SAFETY: One Place: hosted, so it is the running context, and the root has switched to it.
        unsafe { self.own.switch_to(&*primary.root()) };
        me.come_onto(self.primary().thread);
    }

    /// The calling worker, on its own kernel thread, yields: comes back in user mode when it is
    /// executed again, if it can be saved.
    #[cold]
    pub(super) fn yield_from_own_thread(&self, me: &'static Watched, param: usize) {
        add(&self.counts.kernel_yields, 1);
        if !self.detached.load(Ordering::Relaxed) {
            let ends = self.has_own_context.load(Ordering::Relaxed);
            add(&self.counts.mixed_yields, ends.into());
            return me.inside(|| self.yield_to_scheduler(param));
        }
        me.enter_library();
        let primary = self.primary();
        primary.place().vacate(me);
        self.is_cancellable.store(cancelling(UNCANCELLABLE), Ordering::Relaxed);
        primary.note_yield(self, param);
        // SAFETY: One Place: detached, and not hosted. Saved First: its scheduler waits for the
        // post.
        unsafe { self.own.decouple(&primary.event.post()) };
        me.come_onto(self.primary().thread);
    }

    /// The calling worker, in user mode, goes on on its own kernel thread, inside the machine: with
    /// news for its scheduler, which is called then; or (None) seated at its place, and its
    /// scheduler waits.
    pub(super) fn couple(&self, news: Option<News>) {
        let me = self.watched();
        me.leave();
        let primary = self.primary();
        self.stay_on(primary.place().cpu);
        primary.note_here(news, ptr::null(), 0);
        if news.is_none() {
            primary.place().seat(me);
        }
        // SAFETY: One Place: hosted until now, so it is the running context, and the root has
        // switched to it.
        unsafe { self.own.leave_for(&*primary.root()) };
        cancelling(self.is_cancellable.load(Ordering::Relaxed));
    }
}

impl Primary {
    /// Executes a claimed worker by a switch, if it is saved. None: it goes on on its own kernel
    /// thread, and there will be news of it.
    #[inline(always)]
    pub(super) fn run_in_user_mode(&self, context: &Context) -> Option<Heard> {
        context.executed_by(self);
        self.begins_to_host();
        // SAFETY: One Place: it is claimed and saved. Host Outlives: this frame.
        unsafe { (*self.root()).switch_to(&context.own) };
        self.ends_hosting();
        let heard = self.heard_here()?;
        if heard.news == News::Yielded {
            context.may_be_claimed();
        }
        Some(heard)
    }
}
