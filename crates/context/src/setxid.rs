//! Makes changes of credentials (`setuid`, `setgid`, ..) work in processes that have hosts.
//!
//! In POSIX such a call applies to the process, in Linux to the calling kernel thread. So glibc
//! sends signal 33 to the kernel thread of every other thread. Its handler makes the system call,
//! and then marks its thread as done. It finds that thread by the FS base. But on a host the FS
//! base may be that of a context: the handler would mark the wrong thread, and glibc would send
//! signals to the host forever. So this file installs a handler that runs before glibc's:
//!
//! ```text
//!   signal 33 on a host, in context W:
//!     FS base := the host's own;  glibc's handler;  FS base := W's
//!   on any other kernel thread, also on the sleeping one of a context:
//!     glibc's handler
//! ```
//!
//! The handler asks the kernel for the id of its kernel thread, and looks that up in a list of the
//! hosts, which are few. It does not help a context that changes credentials itself while it is on
//! a host: the change does not reach its own kernel thread. Such a context must couple first.
//!
//! A place in the list belongs to a thread, not to a [`Host`](crate::Host). A thread gets at most
//! one place, when it becomes a host for the first time. A thread-local's destructor frees the
//! place when the thread ends, before the kernel can reuse the id. So a host that is forgotten
//! (`mem::forget`) leaves nothing behind. The child of a fork begins with an empty list, because
//! the threads of its parent do not exist there.
//!
//! This file has unsafe code, because it installs the handler by a direct system call, and calls
//! glibc's handler.

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

/// A place in the list: a host's kernel thread and its thread control block. `thread` is [`FREE`]
/// in a free place, and [`BUSY`] while the place is written.
struct Enlisted {
    thread: AtomicI32,
    tcb: AtomicUsize,
}

const FREE: i32 = 0;
const BUSY: i32 = -1;
const MOST: usize = 1024;

static HOSTS: [Enlisted; MOST] =
    [const { Enlisted { thread: AtomicI32::new(FREE), tcb: AtomicUsize::new(0) } }; MOST];

/// The place of the calling thread, and the id of its kernel thread when it got the place.
struct Listed(Cell<Option<(usize, i32)>>);

thread_local! {
    static LISTED: Listed = const { Listed(Cell::new(None)) };
}

impl Drop for Listed {
    fn drop(&mut self) {
        // In the child of a fork the id differs, and the place may belong to another thread by now.
        if let Some((place, thread)) = self.0.get()
            && thread == arch::kernel_thread()
        {
            HOSTS[place].thread.store(FREE, Ordering::Release);
        }
    }
}

/// Puts the calling thread on the list, until it ends.
pub(crate) fn enlist() -> Result<(), Refused> {
    let (thread, tcb) = (arch::kernel_thread(), arch::thread_pointer());
    let known = HOSTS.iter().find(|host| host.thread.load(Ordering::Acquire) == thread);
    match known {
        Some(host) if host.tcb.load(Ordering::Relaxed) == tcb => return Ok(()),
        Some(_) => return Err(Refused::Hosted),
        None => {}
    }
    // A thread that is ending, and has dropped this thread-local already, cannot become a host.
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

/// glibc's handler. Set when ours is installed.
static BEFORE: OnceLock<usize> = OnceLock::new();

/// Installs our handler in the place of glibc's. glibc installs its own when the process creates
/// its second thread. If the first thread becomes a host before that, there is none yet, and this
/// does nothing. It is called again when the first context detaches, and then there is a second
/// thread.
pub(crate) fn install() -> Result<(), Refused> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if BEFORE.get().is_some() {
        return Ok(());
    }
    static AT_FORK: OnceLock<i32> = OnceLock::new();
    // SAFETY: Plain Call: registers a function that only stores numbers.
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
    // Stored before our handler can run.
    BEFORE.get_or_init(|| action.handler);
    action.handler = on_setxid as *const () as usize;
    // A handler of the program that interrupts ours would find the thread-locals of the host.
    action.mask = u64::MAX;
    if act(from_ref(&action), null_mut()) { Ok(()) } else { Err(Refused::CLibrary) }
}

/// Calls `rt_sigaction`, which the C library does not let programs call for its own signals.
/// Returns whether it succeeded.
fn act(new: *const Action, old: *mut Action) -> bool {
    let set = size_of::<u64>();
    // SAFETY: Plain Call: both structs outlive the call. The new one is glibc's, with another
    // function of the same signature.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, SETXID, new, old, set) == 0 }
}

type Handler = extern "C" fn(i32, *mut c_void, *mut c_void);

extern "C" fn on_setxid(signal: i32, info: *mut c_void, frame: *mut c_void) {
    let Some(&before) = BEFORE.get() else { return };
    // SAFETY: Signal: this is glibc's handler, which glibc had installed with SA_SIGINFO.
    let before = unsafe { std::mem::transmute::<usize, Handler>(before) };
    let me = arch::kernel_thread();
    let host = HOSTS.iter().find(|host| host.thread.load(Ordering::Acquire) == me);
    let (tcb, now) = (host.map(|h| h.tcb.load(Ordering::Relaxed)), arch::thread_pointer());
    match tcb.filter(|tcb| *tcb != now) {
        None => before(signal, info, frame),
        Some(tcb) => {
            // SAFETY: Frozen Stack: no code of the context runs until its FS base is set back.
            // This handler uses no thread-local, and glibc's uses those of the host's thread.
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

    /// Makes the calling thread a host, forgets the host, and returns the thread's id.
    fn forget_one() -> i32 {
        std::mem::forget(Host::here().expect("a host"));
        let me = arch::kernel_thread();
        assert!(is_listed(me));
        me
    }

    #[test]
    fn forgotten_hosts_leave_nothing_behind() {
        if let Err(why) = crate::supported() {
            return crate::skipped::skipped("own-context", why);
        }
        let in_one_thread = || (0..2 * MOST).fold(0, |_, _| forget_one());
        let thread = std::thread::spawn(in_one_thread).join().expect("all are made");
        assert!(!is_listed(thread), "its thread has ended");
        // When each thread has ended, the kernel may reuse its id.
        for _ in 0..2 * MOST {
            let thread = std::thread::spawn(forget_one).join().expect("each is made");
            assert!(!is_listed(thread), "its thread has ended");
        }
    }

    #[test]
    fn the_child_of_a_fork_has_none_of_its_parents_hosts() {
        if let Err(why) = crate::supported() {
            return crate::skipped::skipped("own-context", why);
        }
        // A test has a second thread, so our handler is installed.
        let ended = std::thread::spawn(|| {
            let me = forget_one();
            let mut status = 0;
            // SAFETY: Plain Call: the child only reads a static and ends.
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
