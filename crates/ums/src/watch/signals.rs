//! SIGTRAP and the signal mask of the calling kernel thread: sending a poke, and blocking,
//! swallowing and inspecting signals. The handler is in `trap.rs`.
//!
//! A *poke* is a SIGTRAP that this library sends to a thread. The poke makes the thread check two
//! things: whether it was asked to stop, and whether it is blocked in a call or fault that must
//! move off its host.
//!
//! Named invariants **Plain Call** and **Plain Data**: see ARCHITECTURE.md.

#![allow(unsafe_code)]

use std::ptr;

use super::state::{BlockedCall, StateFile, Waits};
use crate::os::linux::handlers::{self, SignalFrame};

/// The bit of SIGTRAP in a set of signals.
pub(super) const TRAP: u64 = 1 << (libc::SIGTRAP - 1);
/// Bytes of the kernel's signal set.
const SET_SIZE: usize = 8;
/// All signals except two that the C library needs: one cancels a thread, and by the other one all
/// threads change their user (setuid).
pub(super) const ALL: u64 = !(1 << 31 | 1 << 32);

/// The information that the kernel passes to a signal handler, as [`Poke::about`] fills it in. For
/// a queued signal, the kernel leaves the fields for error, process and user to the sender.
#[repr(C)]
struct Poke {
    signal: i32,
    /// The number of the system call that the thread was seen in, or -1.
    call: i32,
    code: i32,
    padding: i32,
    /// The address at which the thread continues after that call.
    pc: u64,
    value: usize,
    /// The fingerprint of the thread's stack pointer and arguments. The kernel passes on no further
    /// fields.
    of: u64,
    rest: [u64; 11],
}

const _: () = assert!(size_of::<Poke>() == size_of::<libc::siginfo_t>());

/// The address of this variable distinguishes a poke from every other SIGTRAP.
static MARK: u8 = 0;

fn mark() -> usize {
    ptr::from_ref(&MARK).addr()
}

/// Pokes a thread of this process, given by the kernel's number. A thread that has nothing to do
/// continues.
pub(crate) fn poke(thread: i32) {
    Poke::about(None).send(this_process(), thread);
}

/// Pokes a thread that was seen blocked in `waits`, if it is still blocked there. If the thread
/// wakes between the look and the poke and begins another call, the poke interrupts that call, and
/// a call whose number is unknown cannot be made again. So the poke follows the look immediately.
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
    /// Makes a poke that contains the call or fault that the thread was seen blocked in, if there
    /// is one.
    fn about(blocked: Option<Waits>) -> Poke {
        let (signal, code, value) = (libc::SIGTRAP, libc::SI_QUEUE, mark());
        let seen = blocked.and_then(|waits| waits.seen());
        let call = seen.map_or(-1, |seen| seen.number as i32);
        let pc = blocked.map_or(0, |waits| waits.pc);
        let of = seen.map_or(0, |seen| seen.of);
        Poke { signal, call, code, padding: 0, pc, value, of, rest: [0; 11] }
    }

    /// Reads the information of a signal as a poke, whether or not the library sent it.
    fn of(info: libc::siginfo_t) -> Poke {
        // SAFETY: Plain Data: numbers, and as long as the kernel's own structure.
        unsafe { std::mem::transmute::<libc::siginfo_t, Poke>(info) }
    }

    fn send(&self, process: i32, thread: i32) {
        let (send, signal) = (libc::SYS_rt_tgsigqueueinfo, self.signal);
        // SAFETY: Plain Call: numbers, and a local of the kernel's layout. If the thread number
        // means another thread by now, that thread is poked and continues, or the call returns an
        // error.
        unsafe { libc::syscall(send, process, thread, signal, ptr::from_ref(self)) };
    }
}

pub(super) fn is_poke(frame: &SignalFrame<'_>) -> bool {
    let poke = Poke::of(frame.info());
    poke.code == libc::SI_QUEUE && poke.value == mark()
}

/// Returns the system call in which the sender of the poke has seen the thread blocked.
pub(super) fn blocked_in(frame: &SignalFrame<'_>) -> Option<BlockedCall> {
    let poke = Poke::of(frame.info());
    (poke.call >= 0).then_some(BlockedCall { number: poke.call.into(), pc: poke.pc, of: poke.of })
}

/// Returns where the thread continues, if the sender of the poke has seen it blocked in a page
/// fault.
pub(super) fn fault_at(frame: &SignalFrame<'_>) -> Option<u64> {
    let poke = Poke::of(frame.info());
    (poke.call < 0 && poke.pc != 0).then_some(poke.pc)
}

/// Returns the number of the calling kernel thread, from the kernel. The C library keeps the number
/// in a thread-local, which for a hosted thread holds the number of its own kernel thread.
pub(super) fn kernel_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Returns the signals that the calling kernel thread blocks.
pub(crate) fn mask_here() -> u64 {
    let mut mask = 0;
    change(libc::SIG_SETMASK, None, Some(&mut mask));
    mask
}

/// Unblocks SIGTRAP on the calling kernel thread, because the trap after a single instruction must
/// be delivered immediately.
pub(super) fn let_traps_in() {
    let mask = mask_here();
    if mask & TRAP != 0 {
        block_here(mask & !TRAP);
    }
}

/// Makes the calling kernel thread block exactly these signals from now on.
pub(crate) fn block_here(mask: u64) {
    change(libc::SIG_SETMASK, Some(&mask), None);
}

/// Changes the mask of the calling kernel thread by `set`, and stores the previous mask in `old`.
/// It makes the system call itself, because the program may have replaced the C library's function
/// by one that does not block SIGTRAP.
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

/// Runs `f`, which parks, and swallows the SIGTRAPs that parking causes. Other signals are
/// delivered as usual.
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

/// Returns whether a pending SIGTRAP is handled before any handler of another signal runs. The
/// kernel delivers SIGTRAP before all other signals except SIGILL and those that a fault has
/// raised. SIGTRAP interrupts the handler of such a signal before its first instruction, unless the
/// handler's mask blocks SIGTRAP.
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

/// Takes a pending SIGTRAP of this thread without running the handler. The thread blocks SIGTRAP.
pub(crate) fn swallow() {
    let set: u64 = 1 << (libc::SIGTRAP - 1);
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let no_info = ptr::null_mut::<libc::siginfo_t>();
    // SAFETY: Plain Call: borrowed locals, and null for the information.
    unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, &set, no_info, &now, SET_SIZE) };
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn wants_eintr(_: u64) -> bool {
    false
}

/// Returns whether a signal other than SIGTRAP is pending and not blocked, and its handler was
/// installed without `SA_RESTART`.
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
        // SAFETY: Plain Call: only locals are passed, and all zeros are valid values of their
        // types. No thread raises this signal meanwhile.
        unsafe {
            let action = mine.assume_init_mut();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
            libc::sigfillset(&mut action.sa_mask);
            libc::sigaction(libc::SIGILL, action, before.as_mut_ptr());
        }
        assert!(!the_gate_comes_first());
        // SAFETY: Plain Call: restores the previous action.
        unsafe { libc::sigaction(libc::SIGILL, before.as_ptr(), ptr::null_mut()) };
        assert!(the_gate_comes_first());
    }
}
