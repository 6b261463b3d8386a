//! Stacks on a signal: on SIGUSR2 they are written to stderr.
//!
//! ```text
//!   kill -USR2 --> handler: writes to an eventfd --> a thread: reads it, looks, writes to stderr
//! ```
//!
//! After the write, the handler only passes the signal on to the previous handler. The thread
//! starts with the first node that asks for it, and sleeps until a signal.
//!
//! Named invariants. **Signal**: the handler only reads atomics and calls functions that POSIX
//! allows in a signal handler; its arguments come from the kernel and are valid. **Zeroed**: all
//! zeroes is a value of the C struct.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use libc::{c_int, c_void, siginfo_t};

use super::of_node;
use crate::node::{Node, NodeInner};
use crate::os::linux::handlers;
use crate::os::lock::Lock;
use crate::scheduler::lists::worker_list::State;

const SIGNAL: c_int = libc::SIGUSR2;

/// The nodes whose stacks are printed.
static NODES: Lock<Vec<Weak<NodeInner>>> = Lock::new(Vec::new());
/// The eventfd that the handler writes to, never closed; -1 before it exists.
static BELL: AtomicI32 = AtomicI32::new(-1);
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

impl Node {
    /// Installs a handler for SIGUSR2: whenever the process gets this signal, the backtrace of
    /// every worker that is not idle is written to stderr.
    ///
    /// # Errors
    /// Fails if the system refuses a thread or a descriptor.
    pub fn print_stacks_on_sigusr2(&self) -> std::io::Result<()> {
        let mut nodes = NODES.lock();
        nodes.retain(|node| node.strong_count() > 0);
        if BELL.load(Ordering::Relaxed) < 0 {
            be_there()?;
        }
        nodes.push(Arc::downgrade(&self.inner));
        Ok(())
    }
}

fn be_there() -> std::io::Result<()> {
    use rustix::event::{EventfdFlags, eventfd};
    let mut bell = File::from(eventfd(0, EventfdFlags::CLOEXEC)?);
    let number = bell.as_raw_fd();
    std::thread::Builder::new().name("ums-stacks".into()).spawn(move || {
        let mut count = [0; 8];
        while bell.read_exact(&mut count).is_ok() {
            print();
        }
    })?;
    BELL.store(number, Ordering::Release);
    // SAFETY: Zeroed: a sigaction; the first call only asks, and `old` outlives it.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(SIGNAL, std::ptr::null(), &raw mut old);
        // Set before the new handler can run.
        BEFORE.get_or_init(|| old);
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = on_signal as *const () as usize;
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigaction(SIGNAL, &raw const new, std::ptr::null_mut());
    }
    Ok(())
}

fn print() {
    let nodes = NODES.lock().clone();
    for node in nodes.iter().filter_map(Weak::upgrade) {
        let stacks = of_node(&node);
        let waiters = node.all().into_iter().flat_map(|s| s.left_over());
        let idle = waiters.filter(|waiter| waiter.is(State::Idle)).count();
        let mut text = format!("ums: {} workers, and {idle} idle ones\n", stacks.len());
        for stack in stacks {
            text += &format!("ums: {stack}\n");
        }
        // An error means that stderr is closed; it is ignored.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

extern "C" fn on_signal(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: Signal: errno is the thread's own, write is allowed, and the bytes are in this frame.
    unsafe {
        let errno = *libc::__errno_location();
        libc::write(BELL.load(Ordering::Acquire), one.as_ptr().cast(), one.len());
        *libc::__errno_location() = errno;
    }
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: Signal: the arguments are the kernel's.
    unsafe { handlers::call_before(before, signal, info, context) };
}
