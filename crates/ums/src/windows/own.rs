//! Workers with their own context: executed by a switch in user mode, on the kernel thread of their
//! scheduler.
//!
//! Such a worker is a thread that has left its kernel thread (crate `context`). To execute it, and
//! for it to yield, only registers change; neither makes a system call. The entry point runs on the
//! scheduler's own stack in between.
//!
//! ```text
//!           executed: switch                      calls what may block, is asked to stop, ends
//!   SAVED ---------------------> IN USER MODE ---------------------------------------------+
//!    ^ ^                          |  on its scheduler's kernel thread; its own sleeps      |
//!    | +---- yields: switch ------+                                                        v
//!    +-------- yields: leaves its kernel thread ---------------- ON ITS OWN KERNEL THREAD
//!                                                                 |  seated at the place, or
//!                                                                 +--> blocked --> at its gate
//!                                                                      |  executed: its event
//!                                                                      +--> seated again
//! ```
//!
//! Windows divides it in the same way: a worker that has entered the kernel runs on its own kernel
//! thread until it yields, and that yield is a system call (KernelYieldCount); other yields are not
//! (YieldCount). On Windows every system call moves the worker to its own kernel thread. Here only
//! calls that may block do: interposed calls and this crate's own do so before they block, any
//! other call when it is found blocked.
//!
//! On its own kernel thread it is a worker like any other, with its word, its gate and its place
//! (`watch`). In user mode its word says RUNTIME and the place is vacant (`watch/hosted.rs`).
//!
//! Invariants of crate `context`, as kept here. **One Place**: only the scheduler that has claimed
//! a worker continues it, and no other can claim it before it is PARKED again. Its
//! scheduler makes it PARKED, either after the worker has switched back, or after the event has
//! come that the worker's own kernel thread posts when it has saved it; the first time its creator
//! does so, in the same way. A scheduler waits in
//! `Primary::run` as long as a worker is on its kernel thread, and that frame stands inside that of
//! its host. **Held**: see `context.rs`.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

use super::context::{self, Context, Routine};
use super::executor::News;
use crate::os::event::Event;
use crate::record::counters::add;
use crate::watch::{self, Watched};

/// Whether workers have their own context by default: 0 the environment decides, 1 no, 2 yes.
static DEFAULT: AtomicU8 = AtomicU8::new(0);

/// Returns whether workers have their own context by default: `UMS_WINDOWS_WORKERS=context`.
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

/// Sets the default instead of the environment.
pub(super) fn set_default(own: bool) {
    DEFAULT.store(if own { 2 } else { 1 }, Ordering::Relaxed);
}

/// Returns an error if threads cannot have their own context here.
pub(super) fn is_supported() -> io::Result<()> {
    ::context::supported().map_err(|why| io::Error::new(io::ErrorKind::Unsupported, why))
}

/// What a worker runs, and with which argument.
#[derive(Clone, Copy)]
pub(super) struct Life {
    pub routine: Routine,
    pub arg: *mut c_void,
}

/// Runs a worker with its own context, from its new thread on: saves it, and posts `saved`. Owns
/// nothing while the routine runs.
///
/// # Errors
/// The error number if the thread cannot have its own context. `saved` is not set then.
///
/// # Safety
/// *One Place*: only the creator knows of the context before `saved` is set. The calling thread
/// holds it until its end; `saved` lives until it is set.
pub(super) unsafe fn live(context: &Context, saved: &Event, life: &mut Life) -> Result<(), i32> {
    let (post, life) = (saved.post(), ptr::from_mut(life).cast());
    context.stack_is_here();
    // SAFETY: One Place: as the head of this file says. The routine's code is the
    // application's; docs/worker-kinds.md says for it what the kernel keeps by kernel thread. When
    // it ends, even by `pthread_exit`, `leave_for_good` comes first.
    let lived = unsafe { context.own.detach_unguarded(&post, body, life) };
    lived.map_err(|_| libc::ENOTSUP)
}

unsafe extern "C-unwind" fn body(life: *mut ()) {
    // SAFETY: One Place: from the frame of `live`, which waits for this function; nothing to be
    // dropped.
    let Life { routine, arg } = unsafe { *life.cast::<Life>() };
    let Some(context) = context::current() else { return };
    context.is_cancellable.store(cancelling(UNCANCELLABLE), Ordering::Relaxed);
    context.detached.store(true, Ordering::Relaxed);
    context.watched().come_onto(context.executor().thread);
    routine(arg);
    leave_for_good();
}

/// Sets whether the calling thread can be cancelled, and returns whether it could be. In user mode
/// it cannot: a cancellation unwinds to the end of the thread that notices it, and on the
/// scheduler's kernel thread that would end the scheduler's thread.
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

/// Moves the calling worker, in user code and about to end, to its own kernel thread, where it
/// stays. Does nothing if it is there already.
pub(super) fn leave_for_good() {
    let (Some(context), Some(me)) = (context::current(), watch::thread::me()) else { return };
    if me.is_hosted() {
        context.couple(None);
        me.word.leave();
        me.look_for_stop();
    }
    context.detached.store(false, Ordering::Relaxed);
}

impl Context {
    /// Yields. The caller is the worker; it was in user mode, and is inside the library now.
    /// Returns when it is executed again.
    #[inline(always)]
    pub(super) fn yield_in_user_mode(&self, me: &'static Watched, param: usize) {
        add(&self.counts.yields, 1);
        let executor = self.executor();
        executor.note_here(Some(News::Yielded), param);
        // SAFETY: One Place: hosted, so it is the running context, and the root has switched to it.
        unsafe { self.own.switch_to(&*executor.root()) };
        me.come_onto(self.executor().thread);
    }

    /// Yields. The caller is the worker, on its own kernel thread. Returns when it is executed
    /// again: in user mode, if it could be saved.
    #[cold]
    pub(super) fn yield_from_own_thread(&self, me: &'static Watched, param: usize) {
        add(&self.counts.kernel_yields, 1);
        if !self.detached.load(Ordering::Relaxed) {
            let ends = self.has_own_context.load(Ordering::Relaxed);
            add(&self.counts.mixed_yields, ends.into());
            return me.inside(|| self.yield_to_scheduler(param));
        }
        me.enter_library();
        let executor = self.executor();
        executor.place().vacate(me);
        self.is_cancellable.store(cancelling(UNCANCELLABLE), Ordering::Relaxed);
        executor.note_yield(param);
        // SAFETY: One Place: detached, and not hosted; its scheduler waits for the
        // post.
        unsafe { self.own.decouple(&executor.event.post()) };
        me.come_onto(self.executor().thread);
    }

    /// Moves the calling worker from user mode to its own kernel thread, inside the library. With
    /// news, its scheduler is called with that; without, the worker is seated at its scheduler's
    /// place, and its scheduler waits.
    pub(super) fn couple(&self, news: Option<News>) {
        let me = self.watched();
        me.leave();
        let executor = self.executor();
        self.stay_on(executor.place().cpu);
        executor.note_here(news, 0);
        if news.is_none() {
            executor.place().belongs(me);
            executor.place().seat(me);
        }
        // SAFETY: One Place: hosted until now, so it is the running context, and the root has
        // switched to it.
        unsafe { self.own.leave_for(&*executor.root()) };
        cancelling(self.is_cancellable.load(Ordering::Relaxed));
    }
}
