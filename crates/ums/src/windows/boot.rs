//! How a worker thread begins and ends.
//!
//! ```text
//! start ---> thread: become watched, queue the context ---> tell the creator, park
//!                                                              | executed
//!                                   end <--- thread-key routine <--- user's routine, or pthread_exit
//! ```
//!
//! A worker with its own context is saved when its creator is told, and queued by that (`own.rs`).
//!
//! The end is told by a thread-specific key, whose routine the C library calls whatever way the
//! thread ends, and which renews itself so that it is called after those of others.
//!
//! Named invariant **Handed Over**: the pointer that a new thread gets is a box that only it opens;
//! the key's value is the context, which its thread holds.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};

use super::context::Context;
use super::list::List;
use super::own::{self, Life};
use crate::os::event::Event;
use crate::watch::{self, Watched, signals};

/// What a worker runs. It may return or call `pthread_exit`.
pub type Routine = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

struct Boot {
    context: Arc<Context>,
    own: bool,
    routine: Routine,
    arg: *mut c_void,
    told: Arc<Told>,
}

/// How the start went: 0 or an error number.
pub(super) struct Told {
    pub error: AtomicI32,
    pub event: Event,
}

impl Told {
    fn failed(&self, error: i32) {
        self.error.store(error, Ordering::Release);
        self.event.set();
    }
}

thread_local! {
    static CURRENT: Cell<*const Context> = const { Cell::new(ptr::null()) };
}

/// The context of the calling worker.
#[inline]
pub(super) fn current<'a>() -> Option<&'a Context> {
    watch::thread::me()?;
    // SAFETY: Handed Over: cleared at the thread's end, and held by the thread until then.
    unsafe { CURRENT.get().as_ref() }
}

/// Creates the thread of a worker, which is queued to its list when this returns. `own`: with its
/// own context.
pub(super) fn start(
    context: &Arc<Context>,
    list: &Arc<List>,
    own: bool,
    stack: usize,
    routine: Routine,
    arg: *mut c_void,
) -> io::Result<()> {
    if own {
        own::is_supported()?;
    }
    watch::prepare();
    watch::mechanism();
    end_key()?;
    if !context.start(list) {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    context.has_own_context.store(own, Ordering::Relaxed);
    let told = Arc::new(Told { error: AtomicI32::new(0), event: Event::new() });
    let boot = Boot { context: context.clone(), own, routine, arg, told: told.clone() };
    if let Err(error) = create_thread(Box::new(boot), stack) {
        context.unstart();
        return Err(error);
    }
    told.event.wait();
    match told.error.load(Ordering::Acquire) {
        0 => {
            // Saved, or in its park.
            context.queue_first();
            Ok(())
        }
        error => {
            context.unstart();
            Err(io::Error::from_raw_os_error(error))
        }
    }
}

fn create_thread(boot: Box<Boot>, stack: usize) -> io::Result<()> {
    let least = rustix::param::page_size() * 16;
    let boot = Box::into_raw(boot);
    let mut attr = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let mut thread = MaybeUninit::<libc::pthread_t>::uninit();
    // SAFETY: Handed Over: the thread gets the box; locals otherwise.
    let error = unsafe {
        libc::pthread_attr_init(attr.as_mut_ptr());
        libc::pthread_attr_setdetachstate(attr.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstacksize(attr.as_mut_ptr(), stack.max(least));
        let error =
            libc::pthread_create(thread.as_mut_ptr(), attr.as_ptr(), thread_main(), boot.cast());
        libc::pthread_attr_destroy(attr.as_mut_ptr());
        error
    };
    if error != 0 {
        // SAFETY: Handed Over: there is no thread that could have it.
        drop(unsafe { Box::from_raw(boot) });
        return Err(io::Error::from_raw_os_error(error));
    }
    Ok(())
}

/// The C library's declaration knows no unwinding; its `pthread_exit` unwinds all the same.
fn thread_main() -> extern "C" fn(*mut c_void) -> *mut c_void {
    type Declared = extern "C" fn(*mut c_void) -> *mut c_void;
    // SAFETY: Handed Over: the same function with the same arguments.
    unsafe { std::mem::transmute::<Routine, Declared>(main) }
}

/// A worker thread. Nothing here needs to be dropped while the user's routine runs, so that
/// `pthread_exit` may unwind through.
extern "C-unwind" fn main(boot: *mut c_void) -> *mut c_void {
    match begin(boot.cast()) {
        Some(Begun { life, told: None, .. }) => (life.routine)(life.arg),
        Some(Begun { mut life, told: Some(told), context }) => {
            // SAFETY: Handed Over: this thread holds the context from `settle_in` on, and whoever
            // created it holds what it is told by until it is told.
            let begun = unsafe { own::live(&*context, &*told, &mut life) };
            if let Err(error) = begun {
                // SAFETY: Handed Over: as above; the creator holds both until it is told.
                unsafe { refused(&*context, &*told, error) };
            }
            ptr::null_mut()
        }
        None => ptr::null_mut(),
    }
}

/// What a worker thread goes on with. `told`: where its creator is told that it is saved; null, it
/// was told.
struct Begun {
    context: *const Context,
    life: Life,
    told: Option<*const Told>,
}

/// From a new thread to one that a scheduler has just executed, or that is about to be saved. None:
/// the start failed.
fn begin(boot: *mut Boot) -> Option<Begun> {
    // SAFETY: Handed Over.
    let Boot { context, own, routine, arg, told } = *unsafe { Box::from_raw(boot) };
    let watched = match become_watched(&context) {
        Ok(watched) => watched,
        Err(error) => {
            told.failed(error.raw_os_error().unwrap_or(libc::EAGAIN));
            return None;
        }
    };
    let address = Arc::as_ptr(&context);
    CURRENT.set(address);
    let life = Life { routine, arg };
    if own {
        context.settle_in(watched);
        return Some(Begun { context: address, life, told: Some(Arc::as_ptr(&told)) });
    }
    // Executed before anybody can do that, so that it is in place when it matters.
    signals::masked(|| {
        context.settle_in(watched);
        told.event.set();
        drop(told);
        // SAFETY: Handed Over: this thread holds it from `settle_in` on.
        unsafe { (*address).wait_to_run() };
        signals::swallow();
    });
    watched.word.leave();
    watched.look_for_stop();
    Some(Begun { context: address, life, told: None })
}

/// The thread cannot have its own context: it ends as an ordinary one.
///
/// # Safety
/// Handed Over: its creator holds the context and waits to be told.
unsafe fn refused(context: &Context, told: &Told, error: i32) {
    CURRENT.set(ptr::null());
    let watched = context.watched();
    watched.abandon();
    watched.give_back();
    // SAFETY: Handed Over, by the contract.
    unsafe { context.unsettle() };
    told.failed(error);
}

fn become_watched(context: &Arc<Context>) -> io::Result<&'static Watched> {
    let key = end_key()?;
    let watched = Watched::take()?;
    let handler: *const Context = Arc::as_ptr(context);
    // SAFETY: Handed Over: the context outlives its thread's watch, which `at_end` ends.
    if let Err(error) = unsafe { watched.adopt(handler, watch::mechanism()) } {
        watched.give_back();
        return Err(error);
    }
    ROUNDS.set(0);
    // SAFETY: Handed Over: the key exists; the value is not used as a pointer that is freed.
    let error = unsafe { libc::pthread_setspecific(key, Arc::as_ptr(context).cast()) };
    if error != 0 {
        watched.abandon();
        watched.give_back();
        return Err(io::Error::from_raw_os_error(error));
    }
    Ok(watched)
}

thread_local! {
    static ROUNDS: Cell<u32> = const { Cell::new(0) };
}

/// The C library calls routines of keys that were set again so many times in all.
const ROUNDS_MAX: u32 = 4;

fn end_key() -> io::Result<libc::pthread_key_t> {
    static KEY: OnceLock<Result<libc::pthread_key_t, i32>> = OnceLock::new();
    let made = KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: Plain Call: a local, and a function that may be called at the end of any thread.
        match unsafe { libc::pthread_key_create(&mut key, Some(at_end)) } {
            0 => Ok(key),
            error => Err(error),
        }
    });
    made.map_err(io::Error::from_raw_os_error)
}

/// The end of a worker thread, in whatever way.
unsafe extern "C" fn at_end(context: *mut c_void) {
    if watch::thread::me().is_none() {
        // The child of a fork.
        return;
    }
    let round = ROUNDS.get() + 1;
    ROUNDS.set(round);
    if round < ROUNDS_MAX
        && let Ok(key) = end_key()
    {
        // SAFETY: Handed Over: as in `become_watched`.
        unsafe { libc::pthread_setspecific(key, context) };
        return;
    }
    // SAFETY: Handed Over: its thread holds it until `end`.
    let context = unsafe { &*context.cast::<Context>() };
    let Some(list) = context.list().cloned() else { return };
    if let Some(me) = watch::thread::me() {
        me.enter_library();
        signals::block_all();
        CURRENT.set(ptr::null());
        context.end(&list);
    }
}
