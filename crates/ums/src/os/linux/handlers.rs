//! Installs signal handlers that can pass a signal on to the handler that was installed before.
//!
//! ```text
//!   kernel --> enter --SignalFrame--> Handler::handle --pass_on--> the earlier handler
//! ```
//!
//! A [`SignalFrame`] has the arguments that the kernel passed to the handler. `enter` makes it of
//! them, so it is safe to read and change it, and to pass it on. A `SignalFrame` has no references
//! into that memory, only pointers: the C library's `ucontext_t` is larger than the kernel's, so
//! its end overlaps other data, such as the `siginfo_t`. Each access is to one field that the
//! kernel has written.
//!
//! Named invariant **Signal**: every action of a [`Handler`] is async-signal-safe. `enter` saves
//! and restores `errno`, unless the handler says that it does not change `errno`.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use errno::{errno, set_errno};
use libc::{c_int, c_void, siginfo_t, ucontext_t};

/// A handler of signals.
///
/// # Safety
/// *Signal*: `handle` does only async-signal-safe things. When it returns, the kernel restores
/// registers, signal mask and signal stack from the frame as it is then. If `handle` has changed
/// any of these, it is sound that the thread continues with the changed values, on the kernel
/// thread on which `handle` returns.
pub unsafe trait Handler {
    /// Whether `enter` saves `errno` before `handle` and restores it afterwards. It may be false
    /// only if `handle` itself does not change `errno`.
    const KEEPS_ERRNO: bool = true;

    /// Handles a signal.
    fn handle(frame: &mut SignalFrame<'_>);
}

/// The arguments of a handler. When the handler returns, the thread continues with the registers,
/// signal mask and signal stack that are then in the frame.
pub struct SignalFrame<'a> {
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut ucontext_t,
    /// Where the interrupted thread continued when the handler was called.
    pc: u64,
    of: PhantomData<&'a mut ucontext_t>,
}

impl SignalFrame<'_> {
    /// # Safety
    /// *Signal*: the kernel passed these to a handler with `SA_SIGINFO`, they stay valid as long as
    /// the frame lives, and only this frame is used to access them. The thread continues at the
    /// program counter that they name.
    pub unsafe fn of<'a>(
        signal: c_int,
        info: *mut siginfo_t,
        context: *mut c_void,
    ) -> SignalFrame<'a> {
        let context = context.cast::<ucontext_t>();
        let mut frame = SignalFrame { signal, info, context, pc: 0, of: PhantomData };
        frame.pc = frame.pc_now();
        frame
    }

    /// Returns the signal's number.
    pub fn signal(&self) -> c_int {
        self.signal
    }

    /// Returns what the kernel says about the signal.
    pub fn info(&self) -> siginfo_t {
        // SAFETY: Signal: the kernel has written all of it.
        unsafe { self.info.read() }
    }

    /// Returns the address of the instruction that the thread was about to execute. It stays the
    /// same if the handler makes the thread continue elsewhere.
    pub fn pc(&self) -> u64 {
        self.pc
    }

    /// Returns the signals that are blocked when the handler has returned, as the kernel's set.
    pub fn mask(&self) -> u64 {
        // SAFETY: Signal: the kernel's set is eight bytes, and begins the C library's.
        unsafe { (&raw const (*self.context).uc_sigmask).cast::<u64>().read() }
    }

    /// Changes the signals that are blocked when the handler has returned.
    pub fn set_mask(&mut self, blocked: u64) {
        // SAFETY: Signal: as above.
        unsafe { (&raw mut (*self.context).uc_sigmask).cast::<u64>().write(blocked) };
    }

    /// Makes the return of the handler leave the thread's signal stack unchanged: the frame then
    /// names an invalid one, which the kernel ignores.
    pub fn keep_signal_stack(&mut self) {
        const INVALID: c_int = 7;
        // SAFETY: Signal: one field, which the kernel has written.
        unsafe { (*self.context).uc_stack.ss_flags = INVALID };
    }

    /// Calls the earlier handler, as the kernel would have: once, if it has `SA_RESETHAND`, and
    /// with its own mask. (But on the stack that this handler runs on.) Returns whether there is
    /// one: the action is not the default, and not to ignore the signal. To be called last in a
    /// handler, because the signals that the earlier handler does not block stay unblocked.
    fn call(&mut self, before: &Before) -> bool {
        let signal = self.signal;
        let Some(before) = before.take_of(signal) else { return false };
        self.block_for(before);
        match before.sa_sigaction {
            handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                type Informed = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
                // SAFETY: Loaded: by SA_SIGINFO it has this signature, as its installer told the
                // kernel.
                let handler = unsafe { std::mem::transmute::<usize, Informed>(handler) };
                handler(signal, self.info, self.context.cast());
            }
            handler => {
                type Plain = extern "C" fn(c_int);
                // SAFETY: Loaded: without SA_SIGINFO it has this one.
                let handler = unsafe { std::mem::transmute::<usize, Plain>(handler) };
                handler(signal);
            }
        }
        true
    }

    /// Blocks the signals that are blocked in a handler with this action. The return of our handler
    /// restores the mask of the frame.
    fn block_for(&self, action: &libc::sigaction) {
        let own = if action.sa_flags & libc::SA_NODEFER == 0 { 1 << (self.signal - 1) } else { 0 };
        // SAFETY: Plain Data: the kernel's set is eight bytes, and begins the C library's.
        let theirs = unsafe { (&raw const action.sa_mask).cast::<u64>().read() };
        let mask: u64 = self.mask() | own | theirs;
        let (how, set, no_old) = (libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut::<u64>());
        // SAFETY: Plain Call: a local of the kernel's size, and null.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, set, no_old, size_of::<u64>()) };
    }

    /// Passes the signal on to the earlier handler. If there is none, does nothing.
    pub fn pass_on(&mut self, before: &Before) {
        let _ = self.call(before);
    }

    /// Passes the signal on to the earlier handler. If there is none, restores the earlier action,
    /// and sends the signal again, so that it takes effect as soon as this handler returns. If the
    /// earlier action was to ignore the signal, this happens only with `even_ignored`, which is for
    /// crashes: otherwise the faulting instruction would raise the signal again and again.
    pub fn pass_on_or_raise(&mut self, before: &Before, even_ignored: bool) {
        if self.call(before) {
            return;
        }
        let Some(mut action) = before.of(self.signal).copied() else { return };
        if is_handled(&action) {
            // It had `SA_RESETHAND`, and has run.
            action.sa_sigaction = libc::SIG_DFL;
        }
        if even_ignored || action.sa_sigaction == libc::SIG_DFL {
            // SAFETY: Signal: both are allowed in a handler; the action was there before.
            unsafe {
                libc::sigaction(self.signal, &raw const action, std::ptr::null_mut());
                libc::raise(self.signal);
            }
        }
    }
}

/// The registers that the handler's return restores.
#[cfg(target_arch = "x86_64")]
impl SignalFrame<'_> {
    /// Returns a register, by its number in the C library's array (`REG_RAX` and so on).
    pub fn register(&self, which: c_int) -> i64 {
        // SAFETY: Signal: one field, which the kernel has written.
        unsafe { (*self.context).uc_mcontext.gregs[which as usize] }
    }

    fn set_register(&mut self, which: c_int, value: i64) {
        // SAFETY: Signal: as above.
        unsafe { (*self.context).uc_mcontext.gregs[which as usize] = value };
    }

    fn pc_now(&self) -> u64 {
        self.register(libc::REG_RIP) as u64
    }

    /// Makes the thread continue at `after`, behind a system call, as if the call had just returned
    /// this result.
    pub fn finish_call(&mut self, after: u64, result: i64) {
        self.set_register(libc::REG_RIP, after.cast_signed());
        self.set_register(libc::REG_RAX, result);
    }

    /// Makes the thread trap after its next instruction, or no longer do so.
    pub fn set_trap_flag(&mut self, on: bool) {
        const TRAP_FLAG: i64 = 1 << 8;
        let flags = self.register(libc::REG_EFL) & !TRAP_FLAG;
        self.set_register(libc::REG_EFL, if on { flags | TRAP_FLAG } else { flags });
    }
}

/// The registers that the handler's return restores.
#[cfg(target_arch = "aarch64")]
impl SignalFrame<'_> {
    /// Returns a general register, x0 to x30.
    pub fn register(&self, which: usize) -> u64 {
        // SAFETY: Signal: one field, which the kernel has written.
        unsafe { (*self.context).uc_mcontext.regs[which] }
    }

    /// Returns the stack pointer.
    pub fn stack_pointer(&self) -> u64 {
        // SAFETY: Signal: as above.
        unsafe { (*self.context).uc_mcontext.sp }
    }

    fn pc_now(&self) -> u64 {
        // SAFETY: Signal: as above.
        unsafe { (*self.context).uc_mcontext.pc }
    }
}

/// The action that a signal had before a handler was installed.
pub struct Before {
    action: OnceLock<(c_int, libc::sigaction)>,
    /// Whether its handler has run. With `SA_RESETHAND` it is then not called again.
    has_run: AtomicBool,
}

impl Before {
    /// Makes an empty one.
    pub const fn new() -> Before {
        Before { action: OnceLock::new(), has_run: AtomicBool::new(false) }
    }

    fn of(&self, signal: c_int) -> Option<&libc::sigaction> {
        self.action.get().filter(|(of, _)| *of == signal).map(|(_, action)| action)
    }

    /// Returns the action if it has a handler, which the caller must call.
    fn take_of(&self, signal: c_int) -> Option<&libc::sigaction> {
        let action = self.of(signal).filter(|action| is_handled(action))?;
        let ran = self.has_run.swap(true, Ordering::Relaxed);
        (!ran || action.sa_flags & libc::SA_RESETHAND == 0).then_some(action)
    }
}

/// Returns the action of a signal, or `None` for a number that is no signal's.
pub fn action_of(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: Plain Data: zeros are a value; Plain Call: asks only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0).then_some(action)
    }
}

/// Returns whether a handler is installed for the signal of this action.
pub fn is_handled(action: &libc::sigaction) -> bool {
    action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN
}

/// Installs `H` for a signal, with these flags beside `SA_SIGINFO`, and these signals (the
/// kernel's set) blocked meanwhile. Returns false if the system refuses it.
pub fn install<H: Handler>(
    signal: c_int,
    before: &'static Before,
    flags: c_int,
    blocked: u64,
) -> bool {
    let Some(old) = action_of(signal) else { return false };
    // Stored before our handler can run.
    before.action.get_or_init(|| (signal, old));
    // SAFETY: Plain Data: zeros are a value, and the kernel's set begins the C library's; Plain
    // Call: `H` promises that it may be called.
    unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = enter::<H> as extern "C" fn(_, _, _) as usize;
        new.sa_flags = libc::SA_SIGINFO | flags;
        std::ptr::from_mut(&mut new.sa_mask).cast::<u64>().write(blocked);
        libc::sigaction(signal, &raw const new, std::ptr::null_mut()) == 0
    }
}

extern "C" fn enter<H: Handler>(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let kept = H::KEEPS_ERRNO.then(errno);
    // SAFETY: Contract: the kernel's own arguments.
    let mut frame = unsafe { SignalFrame::of(signal, info, context) };
    H::handle(&mut frame);
    if let Some(kept) = kept {
        set_errno(kept);
    }
}

/// Installs a handler that writes to the eventfd `bell` whenever the process gets this signal, and
/// passes the signal on. Only the first call in a process has an effect.
pub fn ring_on(signal: c_int, bell: OwnedFd) {
    static BELL: OnceLock<OwnedFd> = OnceLock::new();
    static BEFORE: Before = Before::new();
    struct Ring;
    // SAFETY: Signal: a load, a write and the earlier handler; the frame stays as it is.
    unsafe impl Handler for Ring {
        fn handle(frame: &mut SignalFrame<'_>) {
            if let Some(bell) = BELL.get() {
                let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
            }
            frame.pass_on(&BEFORE);
        }
    }
    if BELL.set(bell).is_ok() {
        install::<Ring>(signal, &BEFORE, libc::SA_ONSTACK | libc::SA_RESTART, 0);
    }
}
