//! How a worker thread begins and ends.
//!
//! ```text
//! start ---> thread: become watched ---> tell the creator, park     (the creator queues it)
//!                                                           | executed
//!                              end <--- thread-key routine <--- user's routine, or pthread_exit
//! ```
//!
//! A worker with its own context is saved before its creator is notified; the creator then queues
//! it (`own.rs`).
//!
//! A thread-specific key is how the end of the thread is noticed. The C library calls the key's
//! routine however the thread ends. The routine sets the key again, so that it is also called after
//! the routines of other keys.
//!
//! Named invariant **Handed Over**: the pointer that a new thread gets is a box that only it opens;
//! the key's value is the context, on which the thread has a hold.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock};

use super::context::{self, Context, ContextList, Routine};
use super::own::{self, Life};
use crate::os::event::ThreadEvent;
use crate::watch::{self, Watched, signals};

struct Boot {
    context: Arc<Context>,
    own: bool,
    routine: Routine,
    arg: *mut c_void,
    started: Arc<Started>,
}

/// The result of the start: 0 or an error number. The creator waits for it.
struct Started {
    error: AtomicI32,
    event: ThreadEvent,
}

impl Started {
    fn failed(&self, error: i32) {
        self.error.store(error, Ordering::Release);
        self.event.set();
    }
}

/// Creates the thread of a worker. When this returns, the worker is queued to its list. If `own`,
/// the worker has its own context.
pub(super) fn start(
    context: &Arc<Context>,
    list: &Arc<ContextList>,
    own: bool,
    stack: usize,
    routine: Routine,
    arg: *mut c_void,
) -> io::Result<()> {
    if own {
        own::is_supported()?;
    }
    watch::mechanism()?;
    end_key()?;
    if !context.start(list) {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    context.has_own_context.store(own, Ordering::Relaxed);
    let started = Arc::new(Started { error: AtomicI32::new(0), event: ThreadEvent::new() });
    let boot = Boot { context: context.clone(), own, routine, arg, started: started.clone() };
    if let Err(error) = create_thread(Box::new(boot), stack) {
        context.unstart();
        return Err(error);
    }
    started.event.wait();
    match started.error.load(Ordering::Acquire) {
        0 => {
            // The worker is saved, or its thread is parked.
            context.queue();
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
    // SAFETY: Handed Over: the new thread gets the box; everything else is local.
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
        // SAFETY: Handed Over: no thread was created, so no other code can open the box.
        drop(unsafe { Box::from_raw(boot) });
        return Err(io::Error::from_raw_os_error(error));
    }
    Ok(())
}

/// Returns `main` with the type that the C library declares for thread routines, which says that
/// they do not unwind; but its `pthread_exit` does unwind them.
fn thread_main() -> extern "C" fn(*mut c_void) -> *mut c_void {
    type Declared = extern "C" fn(*mut c_void) -> *mut c_void;
    // SAFETY: Handed Over: the same function with the same arguments.
    unsafe { std::mem::transmute::<Routine, Declared>(main) }
}

/// The body of a worker thread. While the user's routine runs, nothing here needs to be dropped, so
/// `pthread_exit` may unwind through this function.
extern "C-unwind" fn main(boot: *mut c_void) -> *mut c_void {
    match begin(boot.cast()) {
        Some(Begun { life, started: None, .. }) => (life.routine)(life.arg),
        Some(Begun { mut life, started: Some(started), context }) => {
            // SAFETY: Handed Over: this thread has a hold on the context since `settle_in`, and its
            // creator keeps `started` alive until its event is set.
            let lived = unsafe { own::live(&*context, &(*started).event, &mut life) };
            if let Err(error) = lived {
                // SAFETY: Handed Over: as above; the creator keeps both alive until the event is
                // set.
                unsafe { refused(&*context, &*started, error) };
            }
            ptr::null_mut()
        }
        None => ptr::null_mut(),
    }
}
/// The context of a new worker thread, and the function that the thread runs. `started` is set when
/// the worker is saved; it is `None` if the creator was notified already.
struct Begun {
    context: *const Context,
    life: Life,
    started: Option<*const Started>,
}

/// Turns a new thread into one that a scheduler has just executed, or into one that is about to be
/// saved. Returns `None` if the start failed.
fn begin(boot: *mut Boot) -> Option<Begun> {
    // SAFETY: Handed Over.
    let Boot { context, own, routine, arg, started } = *unsafe { Box::from_raw(boot) };
    let watched = match become_watched(&context) {
        Ok(watched) => watched,
        Err(error) => {
            started.failed(error.raw_os_error().unwrap_or(libc::EAGAIN));
            return None;
        }
    };
    let address = Arc::as_ptr(&context);
    context::set_current(address);
    let life = Life { routine, arg };
    if own {
        context.settle_in(watched);
        return Some(Begun { context: address, life, started: Some(Arc::as_ptr(&started)) });
    }
    // Signals are blocked while the thread parks, and the SIGTRAP that parking causes is swallowed
    // (R7): it is not the gate of a block.
    signals::masked(|| {
        context.settle_in(watched);
        started.event.set();
        drop(started);
        // SAFETY: Handed Over: this thread has a hold on the context since `settle_in`.
        unsafe { (*address).wait_to_run() };
        signals::swallow();
    });
    watched.word.leave();
    watched.look_for_stop();
    Some(Begun { context: address, life, started: None })
}

/// Ends the watch of a thread that cannot have its own context, gives up the hold that the thread
/// has on its context, and reports the error to the creator. The thread then ends as an ordinary
/// one.
///
/// # Safety
/// Handed Over: the creator has a hold on the context, and waits for `started`.
unsafe fn refused(context: &Context, started: &Started, error: i32) {
    context::set_current(ptr::null());
    let watched = context.watched();
    watched.abandon();
    watched.give_back();
    // SAFETY: Handed Over, by the contract.
    unsafe { context.unsettle() };
    started.failed(error);
}

fn become_watched(context: &Arc<Context>) -> io::Result<&'static Watched> {
    let key = end_key()?;
    let how = watch::mechanism()?;
    let watched = Watched::take()?;
    if let Err(error) = watched.adopt(context.clone(), how) {
        watched.give_back();
        return Err(error);
    }
    ROUNDS.set(0);
    // SAFETY: Handed Over: the key exists; no code frees the value as a pointer.
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

/// How many times the C library calls the routine of a key that is set again each time.
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

/// Ends a worker thread, however its routine has ended.
unsafe extern "C" fn at_end(context: *mut c_void) {
    if watch::thread::me().is_none() {
        // This is the child of a fork, where the thread is an ordinary one.
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
    // SAFETY: Handed Over: the thread has a hold on the context until `end`.
    let context = unsafe { &*context.cast::<Context>() };
    let Some(list) = context.list().cloned() else { return };
    if let Some(me) = watch::thread::me() {
        me.enter_library();
        signals::block_all();
        context::set_current(ptr::null());
        context.end(&list);
    }
}
