//! Credentials: glibc changes them in every thread by a signal, whose handler must see the thread
//! that it runs on.
//!
//! `setuid` and its like apply to the process in POSIX and to the kernel thread in Linux. So glibc
//! sends signal 33 to the kernel thread of each thread that it knows. The handler makes the system
//! call and marks *its* thread as done, which it finds by the FS base. On a host that base is a
//! context's: the wrong thread would be marked, and the caller would send signals forever.
//!
//! ```text
//!   signal 33 on a host, in context W:
//!     FS base := the host's own;  glibc's handler;  FS base := W's
//!   on any other kernel thread, a sleeping one of a context too:
//!     glibc's handler
//! ```
//!
//! The handler asks the kernel which kernel thread it is on and looks that up among the hosts,
//! which are few. Credentials that a context changes on a host do not reach its own kernel thread:
//! it must couple first.
//!
//! A place in the list belongs to a thread, not to a [`Host`](crate::Host). A thread has one place
//! at most, from its first host on. A thread-local's destructor frees the place when the thread
//! ends, before the kernel can use its number again. So a forgotten host leaves nothing behind. The
//! child of a fork begins with an empty list, because the threads of its parent do not exist there.
//!
//! Unsafe code to install a handler by the bare system call, and to call the one before it.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{from_mut, from_ref, null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::arch;
use crate::support::Refused;

/// The signal by which glibc makes every thread change its credentials.
pub(crate) const SETXID: u32 = 33;

/// A host's kernel thread and its thread control block. `thread` is 0 in a free place, and -1 while
/// it is written.
struct Enlisted {
    thread: AtomicI32,
    tcb: AtomicUsize,
}

const FREE: i32 = 0;
const BUSY: i32 = -1;
const MOST: usize = 1024;

static HOSTS: [Enlisted; MOST] =
    [const { Enlisted { thread: AtomicI32::new(FREE), tcb: AtomicUsize::new(0) } }; MOST];

/// The place of the calling thread, and the number of its kernel thread when it got the place.
struct Listed(Cell<Option<(usize, i32)>>);

thread_local! {
    static LISTED: Listed = const { Listed(Cell::new(None)) };
}

impl Drop for Listed {
    fn drop(&mut self) {
        // In the child of a fork the number differs, and the place may be another thread's.
        if let Some((place, thread)) = self.0.get()
            && thread == arch::kernel_thread()
        {
            HOSTS[place].thread.store(FREE, Ordering::Release);
        }
    }
}

/// Lists the calling thread as a host, until it ends.
pub(crate) fn enlist() -> Result<(), Refused> {
    let (thread, tcb) = (arch::kernel_thread(), arch::thread_pointer());
    let known = HOSTS.iter().find(|host| host.thread.load(Ordering::Acquire) == thread);
    match known {
        Some(host) if host.tcb.load(Ordering::Relaxed) == tcb => return Ok(()),
        Some(_) => return Err(Refused::Hosted),
        None => {}
    }
    // A thread that is ending and has run this destructor cannot be a host.
    let listed = LISTED.try_with(|listed| {
        let place = HOSTS.iter().position(|host| {
            let taken =
                host.thread.compare_exchange(FREE, BUSY, Ordering::AcqRel, Ordering::Relaxed);
            taken.is_ok()
        })?;
        HOSTS[place].tcb.store(tcb, Ordering::Relaxed);
        HOSTS[place].thread.store(thread, Ordering::Release);
        listed.0.set(Some((place, thread)));
        Some(())
    });
    listed.ok().flatten().ok_or(Refused::Hosts)
}

/// Empties the list, in the child of a fork.
extern "C" fn forget_all() {
    HOSTS.iter().for_each(|host| host.thread.store(FREE, Ordering::Relaxed));
}

/// `struct sigaction` of the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// glibc's handler, once ours is installed before it.
static BEFORE: OnceLock<usize> = OnceLock::new();

/// Installs our handler before glibc's, which exists as soon as the process has made a second
/// thread. A host that is made before that finds none; the first context to detach finds it,
/// because that is another thread.
pub(crate) fn install() -> Result<(), Refused> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if BEFORE.get().is_some() {
        return Ok(());
    }
    static AT_FORK: OnceLock<i32> = OnceLock::new();
    // SAFETY: Plain Call: a function that stores numbers only.
    let at_fork = || unsafe { libc::pthread_atfork(None, None, Some(forget_all)) };
    if *AT_FORK.get_or_init(at_fork) != 0 {
        return Err(Refused::CLibrary);
    }
    // SAFETY: Plain Data: all zeroes is a value of the kernel's struct.
    let mut action: Action = unsafe { std::mem::zeroed() };
    if !act(null(), from_mut(&mut action)) {
        return Err(Refused::CLibrary);
    }
    // The values 0 and 1 are not functions.
    if action.handler <= 1 {
        return Ok(());
    }
    // Known before our handler can run.
    BEFORE.get_or_init(|| action.handler);
    action.handler = on_setxid as *const () as usize;
    if act(from_ref(&action), null_mut()) { Ok(()) } else { Err(Refused::CLibrary) }
}

/// Calls `rt_sigaction`, which the C library does not let programs call for its own signals.
/// Returns whether it succeeded.
fn act(new: *const Action, old: *mut Action) -> bool {
    let set = size_of::<u64>();
    // SAFETY: Plain Call: both structs outlive the call. The new one is glibc's with another
    // function of the same kind.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, SETXID, new, old, set) == 0 }
}

type Handler = extern "C" fn(i32, *mut c_void, *mut c_void);

extern "C" fn on_setxid(signal: i32, info: *mut c_void, frame: *mut c_void) {
    let Some(&before) = BEFORE.get() else { return };
    // SAFETY: Signal: glibc's handler, which it had installed with SA_SIGINFO.
    let before = unsafe { std::mem::transmute::<usize, Handler>(before) };
    let me = arch::kernel_thread();
    let host = HOSTS.iter().find(|host| host.thread.load(Ordering::Acquire) == me);
    let (tcb, now) = (host.map(|h| h.tcb.load(Ordering::Relaxed)), arch::thread_pointer());
    match tcb.filter(|tcb| *tcb != now) {
        None => before(signal, info, frame),
        Some(tcb) => {
            // SAFETY: Frozen Stack: no code of the context runs until its base is back: this
            // handler uses no thread-local, and glibc's those of the thread that it is sent to.
            unsafe { arch::set_thread_pointer(tcb) };
            before(signal, info, frame);
            // SAFETY: Frozen Stack: as above.
            unsafe { arch::set_thread_pointer(now) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::Host;

    fn is_listed(thread: i32) -> bool {
        HOSTS.iter().any(|host| host.thread.load(Ordering::SeqCst) == thread)
    }

    /// Forgets a host, and returns the number of its thread.
    fn forget_one() -> i32 {
        std::mem::forget(Host::here().expect("a host"));
        let me = arch::kernel_thread();
        assert!(is_listed(me));
        me
    }

    #[test]
    fn forgotten_hosts_leave_nothing_behind() {
        if let Err(why) = crate::supported() {
            return println!("skipped: {why}");
        }
        let in_one_thread = || (0..2 * MOST).fold(0, |_, _| forget_one());
        let thread = std::thread::spawn(in_one_thread).join().expect("all are made");
        assert!(!is_listed(thread), "its thread has ended");
        // When each has ended, its number may be used again.
        for _ in 0..2 * MOST {
            let thread = std::thread::spawn(forget_one).join().expect("each is made");
            assert!(!is_listed(thread), "its thread has ended");
        }
    }

    #[test]
    fn the_child_of_a_fork_has_none_of_its_parents_hosts() {
        if let Err(why) = crate::supported() {
            return println!("skipped: {why}");
        }
        // Our handler is installed only if the process has a second thread, which a test has.
        let ended = std::thread::spawn(|| {
            let me = forget_one();
            let mut status = 0;
            // SAFETY: Plain Call: the child looks at a static and ends.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::_exit(i32::from(is_listed(me)));
                }
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
            }
            assert!(is_listed(me), "the parent's are its own");
            status
        });
        assert_eq!(ended.join().expect("it forks"), 0);
    }
}
