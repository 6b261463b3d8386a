//! SIGTRAP and the signal mask of the calling kernel thread: sending a poke, and blocking,
//! swallowing and inspecting signals. The handler is in `trap.rs`.
//!
//! A *poke* is a SIGTRAP that makes a thread check itself: whether it was asked to stop, or whether
//! the call or fault that it is blocked in must move off its host.
//!
//! Named invariants: **Plain Call** and **Plain Data**, see ARCHITECTURE.md.

#![allow(unsafe_code)]

use std::ptr;

use super::state::{Seen, StateFile, Waits};
use crate::os::linux::handlers::{self, Frame};

/// SIGTRAP in a set of signals.
pub(super) const TRAP: u64 = 1 << (libc::SIGTRAP - 1);
/// Bytes of the kernel's signal set.
const SET_SIZE: usize = 8;
/// All signals except the two that the C library needs: one that cancels a thread, and one by
/// which all threads change their user (setuid).
pub(super) const ALL: u64 = !(1 << 31 | 1 << 32);

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

    /// Reads the information of a signal as a poke, whether or not the library sent it.
    fn of(info: &libc::siginfo_t) -> &Poke {
        // SAFETY: Plain Data: numbers, and as long as the kernel's own structure.
        unsafe { &*ptr::from_ref(info).cast::<Poke>() }
    }

    fn send(&self, process: i32, thread: i32) {
        let (send, signal) = (libc::SYS_rt_tgsigqueueinfo, self.signal);
        // SAFETY: Plain Call: numbers, and a local that is what the kernel expects. A thread number
        // that is used again makes it a poke at a thread that continues, or an error.
        unsafe { libc::syscall(send, process, thread, signal, ptr::from_ref(self)) };
    }
}

pub(super) fn is_poke(frame: &Frame<'_>) -> bool {
    let poke = Poke::of(frame.info());
    poke.code == libc::SI_QUEUE && poke.value == mark()
}

/// Returns the system call that the sender of the poke has seen the thread blocked in.
pub(super) fn blocked_in(frame: &Frame<'_>) -> Option<Seen> {
    let poke = Poke::of(frame.info());
    (poke.call >= 0).then_some(Seen { number: poke.call.into(), pc: poke.pc, of: poke.of })
}

/// Returns where the thread continues, if the sender of the poke has seen it blocked in a fault.
pub(super) fn fault_at(frame: &Frame<'_>) -> Option<u64> {
    let poke = Poke::of(frame.info());
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
    change(libc::SIG_SETMASK, None, Some(&mut mask));
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
    change(libc::SIG_SETMASK, Some(&mask), None);
}

/// Changes the mask of the calling kernel thread by `set`, and stores the one before. Not by the C
/// library's function, which a program may have made one that leaves SIGTRAP alone.
fn change(how: libc::c_int, set: Option<&u64>, old: Option<&mut u64>) {
    let set = set.map_or(ptr::null(), ptr::from_ref);
    let old = old.map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: Plain Call: borrowed sets of the kernel's size, or null.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, set, old, SET_SIZE) };
}

/// Runs `f` with all signals blocked except those that the C library needs.
pub(crate) fn masked<R>(f: impl FnOnce() -> R) -> R {
    let mut before = 0;
    change(libc::SIG_SETMASK, Some(&ALL), Some(&mut before));
    let result = f();
    change(libc::SIG_SETMASK, Some(&before), None);
    result
}

/// Runs `f`, which parks, without the traps that parking causes. Other signals arrive as usual.
pub(crate) fn without_traps(f: impl FnOnce()) {
    let trap: u64 = 1 << (libc::SIGTRAP - 1);
    let mut before = 0_u64;
    change(libc::SIG_BLOCK, Some(&trap), Some(&mut before));
    f();
    swallow();
    change(libc::SIG_SETMASK, Some(&before), None);
}

/// Blocks all signals of this thread until it ends.
pub(crate) fn block_all() {
    change(libc::SIG_SETMASK, Some(&ALL), None);
}

/// Returns whether no handler of another signal can run before that of a pending SIGTRAP. The
/// kernel delivers the trap before all other signals except SIGILL and those that a fault has
/// raised. A handler of one of these is interrupted by the trap before its first instruction,
/// unless its mask blocks the trap.
pub(super) fn the_gate_comes_first() -> bool {
    [libc::SIGILL, libc::SIGBUS, libc::SIGSEGV, libc::SIGFPE, libc::SIGSYS].into_iter().all(
        |signal| {
            handlers::action_of(signal).is_none_or(|action| {
                // SAFETY: Plain Call: a borrowed set.
                let blocks = || unsafe { libc::sigismember(&action.sa_mask, libc::SIGTRAP) } != 0;
                !handlers::is_handled(&action) || !blocks()
            })
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
        handlers::action_of(signal).is_some_and(|action| {
            handlers::is_handled(&action) && action.sa_flags & libc::SA_RESTART == 0
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::MaybeUninit;

    #[test]
    fn a_handler_that_may_run_before_the_gate_and_blocks_its_signal_is_detected() {
        extern "C" fn nothing(_: libc::c_int) {}
        assert!(the_gate_comes_first());
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        let mut mine = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: Plain Call: only locals are passed, for whose types all zeros are valid; no
        // thread raises this signal meanwhile.
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
