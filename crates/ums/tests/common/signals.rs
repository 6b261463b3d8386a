//! Signals in tests: masks, handlers, signal stacks, and pages whose faults a handler resolves.
//!
//! Named invariant **Own Memory**: the calls get only memory of their caller.

#![allow(unsafe_code, dead_code)] // Each test file uses its own part of it.

use std::collections::HashSet;

/// Returns the signals that the calling thread blocks.
pub fn blocked_signals() -> HashSet<i32> {
    // SAFETY: Own Memory: a local, for which all zeros are a valid value.
    let set = unsafe {
        let mut set = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut set);
        set
    };
    // SAFETY: Own Memory: as above.
    (1..32).filter(|signal| unsafe { libc::sigismember(&set, *signal) } == 1).collect()
}

/// A handler with `SA_SIGINFO`.
pub type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// Installs a handler with these flags beside `SA_SIGINFO`, which runs with these signals blocked.
pub fn handle(signal: i32, handler: Handler, flags: i32, blocked: &[i32]) {
    // SAFETY: Own Memory: a local, for which all zeros are a valid value; the handlers of the tests
    // do only what a handler may do.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | flags;
        blocked.iter().for_each(|other| _ = libc::sigaddset(&mut action.sa_mask, *other));
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

/// Sends a signal to a kernel thread of this process. It makes the system call itself: `raise`
/// sends the signal to the own kernel thread of a worker with its own context.
pub fn send_to(thread: i32, signal: i32) {
    // SAFETY: Own Memory: numbers.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) };
    assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
}

/// Changes the mask of the calling kernel thread (`SIG_BLOCK`, `SIG_UNBLOCK`, `SIG_SETMASK`).
pub fn change_mask(how: i32, signals: impl IntoIterator<Item = i32>) {
    // SAFETY: Own Memory: a local, for which all zeros are a valid value.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        signals.into_iter().for_each(|signal| _ = libc::sigaddset(&mut set, signal));
        assert_eq!(libc::pthread_sigmask(how, &set, std::ptr::null_mut()), 0);
    }
}

/// The signals that a program can block, without the real-time ones.
pub fn blockable() -> impl Iterator<Item = i32> {
    (1..32).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal))
}

/// Returns the calling thread's `errno`.
pub fn errno() -> i32 {
    // SAFETY: Own Memory: it is the calling thread's own.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's `errno`.
pub fn set_errno(to: i32) {
    // SAFETY: Own Memory: it is the calling thread's own.
    unsafe { *libc::__errno_location() = to };
}

/// Memory that is an alternate signal stack of the calling kernel thread until it is dropped there.
pub struct SignalStack {
    memory: Box<[u8]>,
    before: libc::stack_t,
}

impl SignalStack {
    /// Makes new memory the signal stack of the calling kernel thread.
    pub fn here() -> SignalStack {
        let mut memory = vec![0; 128 << 10].into_boxed_slice();
        let (ss_sp, ss_size) = (memory.as_mut_ptr().cast(), memory.len());
        let mine = libc::stack_t { ss_sp, ss_flags: 0, ss_size };
        // SAFETY: Own Memory: the memory lives until `drop` has restored the stack of before.
        unsafe {
            let mut before = std::mem::zeroed();
            assert_eq!(libc::sigaltstack(&mine, &mut before), 0);
            SignalStack { memory, before }
        }
    }

    /// Returns whether the address is in it.
    pub fn contains(&self, address: usize) -> bool {
        self.memory.as_ptr_range().contains(&(address as *const u8))
    }

    /// Returns whether it is still the signal stack of the calling kernel thread.
    pub fn is_here(&self) -> bool {
        // SAFETY: Own Memory: a local, for which all zeros are a valid value.
        let now = unsafe {
            let mut now: libc::stack_t = std::mem::zeroed();
            libc::sigaltstack(std::ptr::null(), &mut now);
            now
        };
        self.contains(now.ss_sp as usize)
    }
}

impl Drop for SignalStack {
    fn drop(&mut self) {
        assert!(self.is_here(), "it is dropped on the kernel thread that has it");
        // SAFETY: Own Memory: the stack of before belongs to the code that has set it.
        unsafe { libc::sigaltstack(&self.before, std::ptr::null_mut()) };
    }
}

/// A page that cannot be read until [`Page::let_in`] was called since the last [`Page::shut`].
pub struct Page(usize);

impl Page {
    /// Maps a page.
    pub fn new() -> Page {
        let (access, kind) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: Own Memory: a new mapping, which is never released.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, kind, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Page(at as usize)
    }

    /// Returns its address.
    pub fn address(&self) -> usize {
        self.0
    }

    /// Makes it unreadable.
    pub fn shut(&self) {
        // SAFETY: Own Memory: our own mapping.
        assert_eq!(unsafe { libc::mprotect(self.0 as *mut _, 4096, libc::PROT_NONE) }, 0);
    }

    /// Makes the page at this address readable. May be called in a handler.
    pub fn let_in(address: usize) {
        // SAFETY: Own Memory: our own mapping.
        unsafe { libc::mprotect(address as *mut _, 4096, libc::PROT_READ) };
    }

    /// Reads it.
    pub fn touch(&self) -> u8 {
        // SAFETY: Own Memory: mapped; a test expects that the handler of the fault lets it in.
        unsafe { (self.0 as *const u8).read_volatile() }
    }
}
