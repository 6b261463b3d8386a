//! Workers with their own context: executed by a switch in user mode, on the kernel thread of their
//! scheduler.
//!
//! Such a worker is a thread that has left its kernel thread (crate `context`). When it is executed
//! and when it yields, only registers change, and no system call is made. Between two runs, the
//! entry point runs on the scheduler's own stack.
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
//! Windows makes the same distinction. A worker that has entered the kernel runs on its own kernel
//! thread until it yields, and that yield is a system call (KernelYieldCount). Other yields are not
//! (YieldCount). On Windows every system call moves the worker to its own kernel thread. Here only
//! calls that may block do: interposed calls and this crate's own calls move it before they block,
//! and any other call moves it when block watch finds it blocked.
//!
//! On its own kernel thread such a worker is like any other, with its ownership word, its gate and
//! its place (`watch`). In user mode its word says RUNTIME and its place is vacant
//! (`watch/hosted.rs`).
//!
//! Invariants of crate `context`, as kept here. **One Place**: only the scheduler that has claimed
//! a worker continues it, and no other scheduler can claim it before it is PARKED again. Its
//! scheduler makes it PARKED at one of two moments: after the worker has switched back, or after
//! the worker was saved on its own kernel thread, which then posts the scheduler's event. The first
//! time, the thread that created the worker makes it PARKED, in the same way. While a worker is on
//! the scheduler's kernel thread, the scheduler waits in `Primary::run`, and that frame is inside
//! the frame of its host. **Held**: see `context.rs`.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use super::context::{self, Context, Routine};
use super::executor::News;
use crate::os::event::ThreadEvent;
use crate::record::counters::add;
use crate::watch::{self, Watched};

/// Whether workers have their own context by default: 0 if the environment decides, 1 no, 2 yes.
static DEFAULT: AtomicU8 = AtomicU8::new(0);

/// Returns whether new workers have their own context by default: as
/// `UMS_WINDOWS_WORKERS=thread|context` in the environment says, or else `None`.
///
/// # Errors
/// `InvalidInput` if the variable has another value.
pub(super) fn by_default() -> io::Result<Option<bool>> {
    match DEFAULT.load(Ordering::Relaxed) {
        0 => {}
        set => return Ok(Some(set == 2)),
    }
    static SAID: OnceLock<Result<Option<bool>, String>> = OnceLock::new();
    let said = SAID.get_or_init(|| {
        let said = std::env::var_os("UMS_WINDOWS_WORKERS").unwrap_or_default();
        match said.to_str() {
            Some("") => Ok(None),
            Some("thread") => Ok(Some(false)),
            Some("context") => Ok(Some(true)),
            _ => {
                Err(format!("UMS_WINDOWS_WORKERS={}: it must be thread or context", said.display()))
            }
        }
    });
    said.clone().map_err(|text| io::Error::new(io::ErrorKind::InvalidInput, text))
}

/// Sets the default, so that the environment is not consulted.
pub(super) fn set_default(own: bool) {
    DEFAULT.store(if own { 2 } else { 1 }, Ordering::Relaxed);
}

/// Returns an error if threads cannot have their own context here.
pub(super) fn is_supported() -> io::Result<()> {
    ::context::supported().map_err(|why| io::Error::new(io::ErrorKind::Unsupported, why))
}

/// The function that a worker runs, and its argument.
#[derive(Clone, Copy)]
pub(super) struct Life {
    pub routine: Routine,
    pub arg: *mut c_void,
}

/// Runs the whole life of a worker with its own context. Called on the worker's new thread. Saves
/// the worker and posts `saved`; the routine begins when a host switches to the worker. This
/// function owns no value while the routine runs, because `pthread_exit` may unwind its frame.
///
/// # Errors
/// The error number, if the thread cannot have its own context. `saved` is not set then.
///
/// # Safety
/// *One Place*: only the creator uses the context before `saved` is set. The calling thread has a
/// hold on it until the thread's end; `saved` lives until it is set.
pub(super) unsafe fn live(
    context: &Context,
    saved: &ThreadEvent,
    life: &mut Life,
) -> Result<(), i32> {
    let (post, life) = (saved.post(), ptr::from_mut(life).cast());
    context.stack_is_here();
    // SAFETY: One Place: as the file's header says. The routine is the application's code; the page
    // docs/worker-kinds.md says which state the kernel keeps for each kernel thread. When the
    // routine ends, even by `pthread_exit`, `leave_for_good` is called first.
    let lived = unsafe { context.own.detach_unguarded(&post, body, life) };
    lived.map_err(|_| libc::ENOTSUP)
}

unsafe extern "C-unwind" fn body(life: *mut ()) {
    // SAFETY: One Place: the pointer comes from the frame of `live`, which waits for this function.
    // Nothing needs to be dropped.
    let Life { routine, arg } = unsafe { *life.cast::<Life>() };
    let Some(context) = context::current() else { return };
    context.is_cancellable.store(cancelling(UNCANCELLABLE), Ordering::Relaxed);
    context.detached.store(true, Ordering::Relaxed);
    context.watched().come_onto(context.executor().thread);
    routine(arg);
    leave_for_good();
}

/// Sets whether the calling thread can be cancelled, and returns the previous state. In user mode
/// it must not be cancellable. A cancellation unwinds the stack to its end and then ends the kernel
/// thread that it runs on, which would be the scheduler's.
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

/// Moves the calling worker to its own kernel thread, where it stays. The worker is in user code
/// and about to end. Does nothing if it is on its own kernel thread already.
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
    /// Yields. The caller is the worker, which was in user mode and is inside the library now.
    /// Returns when the worker is executed again.
    #[inline(always)]
    pub(super) fn yield_in_user_mode(&self, me: &'static Watched, param: usize) {
        add(&self.counts.yields, 1);
        let executor = self.executor();
        executor.note_here(Some(News::Yielded), param);
        // SAFETY: One Place: the worker is hosted, so it is the running context, and the root has
        // switched to it.
        unsafe { self.own.switch_to(&*executor.root()) };
        me.come_onto(self.executor().thread);
    }

    /// Yields. The caller is the worker, on its own kernel thread. Returns when the worker is
    /// executed again; then it is in user mode, if it could be saved.
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
        // SAFETY: One Place: the worker is detached and not hosted; its scheduler waits for the
        // post.
        unsafe { self.own.decouple(&executor.event.post()) };
        me.come_onto(self.executor().thread);
    }

    /// Moves the calling worker from user mode to its own kernel thread, inside the library. With
    /// `news`, its scheduler's entry point is called with them. Without, the worker is seated at
    /// its scheduler's place, and its scheduler waits for the end of its run.
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
        // SAFETY: One Place: the worker was hosted until now, so it is the running context, and the
        // root has switched to it.
        unsafe { self.own.leave_for(&*executor.root()) };
        cancelling(self.is_cancellable.load(Ordering::Relaxed));
    }
}
