//! SIGTRAP and the signal mask of the calling kernel thread: sending a poke, and blocking,
//! swallowing and inspecting signals. The handler is in `trap.rs`.
//!
//! A *poke* is a SIGTRAP that makes a thread check itself: whether it was asked to stop, or whether
//! the call or fault that it is blocked in must move off its host.
//!
//! Named invariants. **Own Frame**: the kernel hands the handler its information, which lives until
//! the handler returns. **Plain Call**: see ARCHITECTURE.md.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

use super::state::{Seen, StateFile, Waits};

/// SIGTRAP in a set of signals.
pub(super) const TRAP: u64 = 1 << (libc::SIGTRAP - 1);
/// Bytes of the kernel's signal set.
const SET_SIZE: usize = 8;

/// The information that the kernel hands to a handler, filled in by [`Poke::about`]. The kernel
/// leaves the error, process and user of a queued signal to its sender.
#[repr(C)]
struct Poke {
    signal: i32,
    /// The number of the system call that the thread was seen in, or -1.
    call: i32,
    code: i32,
    padding: i32,
    /// The address at which it continues after that.
    pc: u64,
    value: usize,
    /// The fingerprint of its stack pointer and arguments. The kernel hands on no more than this.
    of: u64,
    rest: [u64; 11],
}

const _: () = assert!(size_of::<Poke>() == size_of::<libc::siginfo_t>());

/// Its address tells a poke from every other SIGTRAP.
static MARK: u8 = 0;

fn mark() -> usize {
    ptr::from_ref(&MARK).addr()
}

/// Pokes a thread of this process, by the kernel's number. A thread that finds nothing to do
/// continues.
pub(crate) fn poke(thread: i32) {
    Poke::about(None).send(this_process(), thread);
}

/// Pokes a thread that was seen blocked in `waits`, if it still is. The thread may wake at this
/// very moment and begin another call, which is then interrupted, and cannot be made again if its
/// number is unknown; so nothing stands between this look and the poke.
pub(crate) fn poke_blocked(thread: i32, state: &StateFile, waits: Waits) {
    let (poke, process) = (Poke::about(Some(waits)), this_process());
    if state.waits() == Some(waits) {
        poke.send(process, thread);
    }
}

fn this_process() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

impl Poke {
    /// Makes one that says what the thread was seen blocked in, if anything.
    fn about(blocked: Option<Waits>) -> Poke {
        let (signal, code, value) = (libc::SIGTRAP, libc::SI_QUEUE, mark());
        let seen = blocked.and_then(|waits| waits.seen());
        let call = seen.map_or(-1, |seen| seen.number as i32);
        let pc = blocked.map_or(0, |waits| waits.pc);
        let of = seen.map_or(0, |seen| seen.of);
        Poke { signal, call, code, padding: 0, pc, value, of, rest: [0; 11] }
    }

    fn send(&self, process: i32, thread: i32) {
        let (send, signal) = (libc::SYS_rt_tgsigqueueinfo, self.signal);
        // SAFETY: Plain Call: numbers, and a local that is what the kernel expects. A thread number
        // that is used again makes it a poke at a thread that continues, or an error.
        unsafe { libc::syscall(send, process, thread, signal, ptr::from_ref(self)) };
    }
}

pub(super) fn is_poke(info: *const libc::siginfo_t) -> bool {
    // SAFETY: Own Frame: as long as the kernel's own structure.
    let poke = unsafe { &*info.cast::<Poke>() };
    poke.code == libc::SI_QUEUE && poke.value == mark()
}

/// Returns the system call that the sender of the poke has seen the thread blocked in.
pub(super) fn blocked_in(info: *const libc::siginfo_t) -> Option<Seen> {
    // SAFETY: Own Frame: as above.
    let poke = unsafe { &*info.cast::<Poke>() };
    (poke.call >= 0).then_some(Seen { number: poke.call.into(), pc: poke.pc, of: poke.of })
}

/// Returns where the thread continues, if the sender of the poke has seen it blocked in a fault.
pub(super) fn fault_at(info: *const libc::siginfo_t) -> Option<u64> {
    // SAFETY: Own Frame: as above.
    let poke = unsafe { &*info.cast::<Poke>() };
    (poke.call < 0 && poke.pc != 0).then_some(poke.pc)
}

/// Returns the number of the calling kernel thread. Asks the kernel: the C library keeps the number
/// in a thread-local, which for a hosted thread names its own kernel thread.
pub(super) fn kernel_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Returns the signals that the calling kernel thread blocks.
pub(crate) fn mask_here() -> u64 {
    let mut mask = 0;
    set_mask(ptr::null(), &mut mask);
    mask
}

/// Unblocks SIGTRAP on the calling kernel thread: the trap after a single instruction cannot wait.
pub(super) fn let_traps_in() {
    let mask = mask_here();
    if mask & TRAP != 0 {
        block_here(mask & !TRAP);
    }
}

/// Makes the calling kernel thread block these signals from now on, and no others.
pub(crate) fn block_here(mask: u64) {
    set_mask(&mask, ptr::null_mut());
}

/// Sets the mask of the calling kernel thread, if `set` is not null, and stores the one before, if
/// `old` is not null. Sets have the kernel's size.
pub(super) fn set_mask(set: *const u64, old: *mut u64) {
    // SAFETY: Plain Call: borrowed sets of the kernel's size, or null.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, set, old, SET_SIZE) };
}

/// Runs `f` with all signals blocked except those that the C library needs.
pub(crate) fn masked<R>(f: impl FnOnce() -> R) -> R {
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: Plain Call: two locals.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = f();
    // SAFETY: Plain Call: written by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    result
}

/// Runs `f`, which parks, without the traps that parking causes. Other signals arrive as usual.
pub(crate) fn without_traps(f: impl FnOnce()) {
    let trap: u64 = 1 << (libc::SIGTRAP - 1);
    let mut before = 0_u64;
    let change = |how: libc::c_int, set: *const u64, old: *mut u64| {
        // SAFETY: Plain Call: locals of the kernel's size. Not the C library's function, which a
        // program may have made one that leaves SIGTRAP alone.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, set, old, SET_SIZE) };
    };
    change(libc::SIG_BLOCK, &trap, &mut before);
    f();
    swallow();
    change(libc::SIG_SETMASK, &before, ptr::null_mut());
}

/// Blocks all signals of this thread until it ends.
pub(crate) fn block_all() {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: Plain Call: a local.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut());
    }
}

/// Returns whether no handler of another signal can run before that of a pending SIGTRAP. The
/// kernel delivers the trap before all other signals except SIGILL and those that a fault has
/// raised. A handler of one of these is interrupted by the trap before its first instruction,
/// unless its mask blocks the trap.
pub(super) fn the_gate_comes_first() -> bool {
    [libc::SIGILL, libc::SIGBUS, libc::SIGSEGV, libc::SIGFPE, libc::SIGSYS].into_iter().all(
        |signal| {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: Plain Call: asks only; zeros are a valid value.
            let action = unsafe {
                libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
                action.assume_init()
            };
            let handled =
                action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
            // SAFETY: Plain Call: a borrowed set.
            !handled || unsafe { libc::sigismember(&action.sa_mask, libc::SIGTRAP) } == 0
        },
    )
}

/// Takes a pending SIGTRAP of this thread, which blocks the signal, without running the handler.
pub(crate) fn swallow() {
    let set: u64 = 1 << (libc::SIGTRAP - 1);
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let no_info = ptr::null_mut::<libc::siginfo_t>();
    // SAFETY: Plain Call: borrowed locals; the information is not asked for.
    unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, &set, no_info, &now, SET_SIZE) };
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn wants_eintr(_: u64) -> bool {
    false
}

/// Returns whether a signal is pending, and not blocked, whose handler was installed without
/// `SA_RESTART`.
#[cfg(target_arch = "x86_64")]
#[cold]
pub(super) fn wants_eintr(blocked: u64) -> bool {
    let mut pending = 0_u64;
    // SAFETY: Plain Call: a local of the kernel's size.
    unsafe { libc::syscall(libc::SYS_rt_sigpending, &mut pending, SET_SIZE) };
    let others = pending & !blocked & !(1 << (libc::SIGTRAP - 1));
    (1..=64).filter(|signal| others & (1 << (signal - 1)) != 0).any(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: Plain Call: asks only; zeros are a valid value.
        let action = unsafe {
            libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
            action.assume_init()
        };
        let handled = action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN;
        handled && action.sa_flags & libc::SA_RESTART == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_that_may_run_before_the_gate_and_blocks_its_signal_is_detected() {
        extern "C" fn nothing(_: libc::c_int) {}
        assert!(the_gate_comes_first());
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        let mut mine = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: Plain Call: locals, of which zeros are a value; no thread raises this signal
        // meanwhile.
        unsafe {
            let action = mine.assume_init_mut();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
            libc::sigfillset(&mut action.sa_mask);
            libc::sigaction(libc::SIGILL, action, before.as_mut_ptr());
        }
        assert!(!the_gate_comes_first());
        // SAFETY: Plain Call: what was there before.
        unsafe { libc::sigaction(libc::SIGILL, before.as_ptr(), ptr::null_mut()) };
        assert!(the_gate_comes_first());
    }
}
