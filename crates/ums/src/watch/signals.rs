//! The gate in a signal: SIGTRAP on the way back to user code.
//!
//! perf sends SIGTRAP after every switch away from a watched thread, before that thread runs another
//! instruction of the user's. The handler asks the ownership word. Still the owner (it was preempted,
//! or nobody has noticed that it blocked): return. Not the owner: wait here, inside the handler, until
//! it is again. The interrupted system call has its result already and keeps it.
//!
//! What a handler must not do, it does not: no allocation, no lock, `errno` as it was. All signals are
//! blocked in it, so those of the user's are delivered when the thread runs again.
//!
//! *Restart.* With another signal pending, the kernel decides by *our* flags, as ours comes first,
//! whether an interrupted call is restarted. We say yes, and where the other signal's handler would
//! have said no, the handler turns the restart into `EINTR`.
//!
//! Named invariants. **Own Frame**: the kernel hands the handler its context, which is the
//! interrupted thread's and lives until the handler returns. **Plain Call**: see ARCHITECTURE.md.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

use super::thread;
use crate::os::linux::handlers;

/// `si_code` of a SIGTRAP that perf sent.
const TRAP_PERF: i32 = 6;
/// Bytes of the kernel's signal set.
const SET_SIZE: usize = 8;

/// How the C library asks a thread to look whether it was cancelled.
const SIGCANCEL: i32 = 32;

static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Makes SIGTRAP ours; SIGTRAPs that perf did not send go to the handler that was there before.
pub(super) fn install() {
    BEFORE.get_or_init(|| {
        let mut ours = MaybeUninit::<libc::sigaction>::zeroed();
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: Plain Call: both are locals, and zeros are a valid value of this structure.
        unsafe {
            let action = ours.assume_init_mut();
            action.sa_sigaction = on_trap as extern "C" fn(_, _, _) as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigfillset(&mut action.sa_mask);
            // The C library leaves out its own two. That which cancels a thread would have the thread
            // unwind while it waits at its gate; the other one must get through (setuid).
            let mask = ptr::from_mut(&mut action.sa_mask).cast::<u64>();
            mask.write(mask.read() | 1 << (SIGCANCEL - 1));
            libc::sigaction(libc::SIGTRAP, action, before.as_mut_ptr());
            before.assume_init()
        }
    });
}

extern "C" fn on_trap(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: Own Frame: the kernel gave this.
    let code = unsafe { (*info).si_code };
    match thread::me() {
        // A plain kill with SIGTRAP is how others of this crate ask a thread to look at itself.
        Some(me) if code == TRAP_PERF || code == libc::SI_TKILL => {
            // SAFETY: Plain Call: this thread's own errno.
            let errno = unsafe { libc::__errno_location() };
            // SAFETY: Plain Call: as above.
            let kept = unsafe { *errno };
            if me.at_trap() {
                fix_restart(context.cast());
            }
            // SAFETY: Plain Call: as above.
            unsafe { *errno = kept };
        }
        // Late news of a thread that is watched no more.
        None if code == TRAP_PERF => {}
        _ => pass_on(signal, info, context),
    }
}

/// Not ours: what would have happened without us.
#[cold]
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: Plain Call: the arguments are the kernel's.
    let called = unsafe { handlers::call_before(before, signal, info, context) };
    if !called && before.sa_sigaction == libc::SIG_DFL {
        // The default of SIGTRAP ends the process; it is pending until this handler returns.
        // SAFETY: Plain Call: numbers, and the action that was there before.
        unsafe {
            libc::sigaction(libc::SIGTRAP, before, ptr::null_mut());
            libc::raise(signal);
        }
    }
}

/// Runs `f` with all signals blocked but those that the C library needs.
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

/// Runs `f`, which parks, without the traps that parking causes. Other signals arrive as always.
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

/// Blocks all signals of this thread, for good.
pub(crate) fn block_all() {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: Plain Call: a local.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut());
    }
}

/// Takes a pending SIGTRAP of this thread, which blocks the signal, without running the handler.
pub(crate) fn swallow() {
    let set: u64 = 1 << (libc::SIGTRAP - 1);
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let nobody = ptr::null_mut::<libc::siginfo_t>();
    // SAFETY: Plain Call: borrowed locals; the information is not asked for.
    unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, &set, nobody, &now, SET_SIZE) };
}

/// Turns the restart of an interrupted call into `EINTR`, where a pending signal wants that.
#[cfg(target_arch = "x86_64")]
fn fix_restart(context: *mut libc::ucontext_t) {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    // SAFETY: Own Frame: the interrupted registers; the thread goes on at this address, so there
    // is code.
    let (registers, next) = unsafe {
        let registers = &mut (*context).uc_mcontext.gregs;
        let at = registers[libc::REG_RIP as usize] as *const [u8; 2];
        (registers, at.read_unaligned())
    };
    // SAFETY: Own Frame: the kernel's set is eight bytes; the C library's is longer and zero there.
    let blocked = unsafe { ptr::from_ref(&(*context).uc_sigmask).cast::<u64>().read() };
    if next == SYSCALL && wants_eintr(blocked) {
        registers[libc::REG_RIP as usize] += SYSCALL.len() as i64;
        registers[libc::REG_RAX as usize] = -i64::from(libc::EINTR);
    }
}

/// Elsewhere the restart stands: a call goes on that would have ended with `EINTR`.
#[cfg(not(target_arch = "x86_64"))]
fn fix_restart(_: *mut libc::ucontext_t) {}

/// Whether a signal is pending, and not blocked, whose handler was installed without SA_RESTART.
#[cfg(target_arch = "x86_64")]
#[cold]
fn wants_eintr(blocked: u64) -> bool {
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
