//! The gate in a signal: SIGTRAP on the way back to user code.
//!
//! perf sends SIGTRAP after every switch away from a watched thread, before that thread runs
//! another instruction of the user's. The handler asks the ownership word. Still the owner (it was
//! preempted, or nobody has noticed that it blocked): return. Not the owner: wait here, inside the
//! handler, until it is again. The interrupted system call has its result already and keeps it.
//!
//! What a handler must not do, it does not: no allocation, no lock, `errno` as it was. All signals
//! are blocked in it, so those of the user's are delivered when the thread runs again.
//!
//! *Restart.* With another signal pending, the kernel decides by *our* flags, as ours comes first,
//! whether an interrupted call is restarted. We say yes, and where the other signal's handler would
//! have said no, the handler turns the restart into `EINTR`.
//!
//! *Hosted.* A SIGTRAP on a host meets a thread that runs on a kernel thread not its own. Three
//! things bring one there: a poke, the gate of a carrier whose worker was taken (`carriers.rs`),
//! and the end of the one instruction that a worker executes away from its host (`hosted.rs`).
//!
//! Named invariants. **Own Frame**: the kernel hands the handler its context, which is the
//! interrupted thread's and lives until the handler returns. **Plain Call**: see ARCHITECTURE.md.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

use super::state::{Seen, StateFile, Waits};
use super::{calls, hosted, interrupted, thread};
use crate::os::linux::handlers;

/// `si_code` of a SIGTRAP that perf sent.
const TRAP_PERF: i32 = 6;
/// And of one that the processor has sent itself after an instruction, because the frame before
/// said so.
const TRAP_TRACE: i32 = 2;
/// In a set of signals.
pub(super) const TRAP: u64 = 1 << (libc::SIGTRAP - 1);
/// Bytes of the kernel's signal set.
const SET_SIZE: usize = 8;

/// How the C library asks a thread to look whether it was cancelled.
const SIGCANCEL: i32 = 32;

static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Makes SIGTRAP ours; SIGTRAPs that perf did not send go to the handler that was there before.
pub(crate) fn install() {
    BEFORE.get_or_init(|| {
        let mut ours = MaybeUninit::<libc::sigaction>::zeroed();
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: Plain Call: both are locals, and zeros are a valid value of this structure.
        unsafe {
            let action = ours.assume_init_mut();
            action.sa_sigaction = on_trap as extern "C" fn(_, _, _) as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigfillset(&mut action.sa_mask);
            // The C library leaves out its own two. That which cancels a thread would have the
            // thread unwind while it waits at its gate; the other one must get through (setuid).
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
    // Before everything else: whether this thread still has what it had.
    if let Some(carrier) = hosted::arrive() {
        // Whatever else is pending waits until it is home.
        return elsewhere(context, || calls::leave_taken(carrier));
    }
    match thread::me() {
        Some(me) if is_poke(info) && me.is_hosted() => {
            // Another signal that has come with it, and wants the call to end.
            let ends = ends_calls(context);
            on_host(context, || me.poked(context.cast(), blocked_in(info), ends));
        }
        Some(me) if code == TRAP_PERF || is_poke(info) => {
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
        None if is_poke(info) && calls::is_in_user_code() => {
            let ends = ends_calls(context);
            on_host(context, || match fault_at(info) {
                Some(pc) => calls::poked_in_fault(context.cast(), pc),
                None => calls::poked(context.cast(), blocked_in(info), ends),
            });
        }
        None if code == TRAP_TRACE && hosted::has_stepped(context.cast()) => {
            on_host(context, calls::has_stepped);
        }
        // Late news of a thread that is watched no more; or a host that has left who was meant.
        None if code == TRAP_PERF || is_poke(info) => {}
        _ => pass_on(signal, info, context),
    }
}

/// What the kernel hands to a handler, filled in by [`Poke::about`]. It leaves to the sender what a
/// queued signal's error, process and user are.
#[repr(C)]
struct Poke {
    signal: i32,
    /// The number of the system call that the thread was seen in; -1: none.
    call: i32,
    code: i32,
    padding: i32,
    /// Where it goes on after that.
    pc: u64,
    value: usize,
    /// What its stack pointer and arguments are. The kernel hands on no more than this.
    of: u64,
    rest: [u64; 11],
}

const _: () = assert!(size_of::<Poke>() == size_of::<libc::siginfo_t>());

/// By its address a poke is told from every other SIGTRAP.
static MARK: u8 = 0;

fn mark() -> usize {
    ptr::from_ref(&MARK).addr()
}

/// Has a thread of this process, by the kernel's number, look at itself. One that has nothing to
/// look at goes on.
pub(crate) fn poke(thread: i32) {
    Poke::about(None).send(this_process(), thread);
}

/// Pokes a thread that was seen blocked in `waits`, if it is so still. It may go on in this very
/// moment and begin another call, which is interrupted then and cannot be carried over if its
/// number cannot be told; so nothing stands between this look and the poke.
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
    /// With what the thread was seen blocked in, if that is why.
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
        // that is used again makes it a poke at somebody who goes on, or an error.
        unsafe { libc::syscall(send, process, thread, signal, ptr::from_ref(self)) };
    }
}

fn is_poke(info: *const libc::siginfo_t) -> bool {
    // SAFETY: Own Frame: as long as the kernel's own structure.
    let poke = unsafe { &*info.cast::<Poke>() };
    poke.code == libc::SI_QUEUE && poke.value == mark()
}

/// The system call that the sender of the poke has seen it blocked in.
fn blocked_in(info: *const libc::siginfo_t) -> Option<Seen> {
    // SAFETY: Own Frame: as above.
    let poke = unsafe { &*info.cast::<Poke>() };
    (poke.call >= 0).then_some(Seen { number: poke.call.into(), pc: poke.pc, of: poke.of })
}

/// Where it goes on, if who has poked it has seen it blocked in a fault.
fn fault_at(info: *const libc::siginfo_t) -> Option<u64> {
    // SAFETY: Own Frame: as above.
    let poke = unsafe { &*info.cast::<Poke>() };
    (poke.call < 0 && poke.pc != 0).then_some(poke.pc)
}

/// Of the kernel's size, at the beginning of the C library's.
fn mask_of(context: *mut libc::c_void) -> *mut u64 {
    // SAFETY: Own Frame: an address in it.
    unsafe { ptr::addr_of_mut!((*context.cast::<libc::ucontext_t>()).uc_sigmask).cast() }
}

/// Runs `f`, which may go on on another kernel thread, in the handler of a thread that is hosted.
/// With the mask that the host has, because what the host runs next is not in a handler.
fn on_host(context: *mut libc::c_void, f: impl FnOnce()) {
    elsewhere(context, || {
        set_mask(mask_of(context), ptr::null_mut());
        f();
    });
}

/// Runs `f`, which may go on on another kernel thread, in a handler. When the handler returns
/// elsewhere, what it restores is made that kernel thread's own: the mask is what that has now, and
/// its other stack for signals is left alone, for a kernel that finds nonsense there keeps what it
/// has.
fn elsewhere(context: *mut libc::c_void, f: impl FnOnce()) {
    const NONSENSE: libc::c_int = 7;
    // SAFETY: Plain Call: this thread's own errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: Plain Call: as above.
    let kept = unsafe { *errno };
    let host = kernel_thread();
    f();
    if kernel_thread() != host {
        set_mask(ptr::null(), mask_of(context));
        // SAFETY: Own Frame: what is restored when the handler returns.
        unsafe { (*context.cast::<libc::ucontext_t>()).uc_stack.ss_flags = NONSENSE };
    }
    // SAFETY: Plain Call: as above.
    unsafe { *errno = kept };
}

/// Whether a signal is pending that the interrupted thread takes when the handler returns, and that
/// ends a call with `EINTR`.
fn ends_calls(context: *mut libc::c_void) -> bool {
    // SAFETY: Own Frame: the kernel's set is eight bytes, at the beginning of the C library's.
    let mask = unsafe {
        (&raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>().read()
    };
    wants_eintr(mask)
}

/// Not kept by the C library in a thread-local, which would give a hosted thread's own.
pub(super) fn kernel_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// The signals that the calling kernel thread blocks.
pub(crate) fn mask_here() -> u64 {
    let mut mask = 0;
    set_mask(ptr::null(), &mut mask);
    mask
}

/// The calling kernel thread takes the trap after one of its instructions, which cannot wait.
pub(super) fn let_traps_in() {
    let mask = mask_here();
    if mask & TRAP != 0 {
        block_here(mask & !TRAP);
    }
}

/// The calling kernel thread blocks these from now on, and no others.
pub(crate) fn block_here(mask: u64) {
    set_mask(&mask, ptr::null_mut());
}

/// Sets the mask of the calling kernel thread, where `set` is not null, and stores what it was. Of
/// the kernel's size.
fn set_mask(set: *const u64, old: *mut u64) {
    // SAFETY: Plain Call: borrowed sets of the kernel's size, or null.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, set, old, SET_SIZE) };
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

/// Whether no handler of another signal can run before that of a pending SIGTRAP. The kernel
/// delivers the trap before all others but SIGILL, and what a fault has raised; the handler of such
/// a one is interrupted by the trap before its first instruction, unless its mask blocks it.
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
    let nobody = ptr::null_mut::<libc::siginfo_t>();
    // SAFETY: Plain Call: borrowed locals; the information is not asked for.
    unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, &set, nobody, &now, SET_SIZE) };
}

/// Turns the restart of an interrupted call into `EINTR`, where a pending signal wants that.
#[cfg(target_arch = "x86_64")]
fn fix_restart(context: *mut libc::ucontext_t) {
    // SAFETY: Own Frame: the interrupted registers.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    // SAFETY: Own Frame: the thread goes on there.
    let is_next = unsafe { interrupted::is_call(registers[libc::REG_RIP as usize] as u64) };
    // SAFETY: Own Frame: the kernel's set is eight bytes; the C library's is longer and zero there.
    let blocked = unsafe { ptr::from_ref(&(*context).uc_sigmask).cast::<u64>().read() };
    if is_next && wants_eintr(blocked) {
        registers[libc::REG_RIP as usize] += interrupted::CALL_LENGTH as i64;
        registers[libc::REG_RAX as usize] = -i64::from(libc::EINTR);
    }
}

/// Elsewhere the restart stands: a call goes on that would have ended with `EINTR`.
#[cfg(not(target_arch = "x86_64"))]
fn fix_restart(_: *mut libc::ucontext_t) {}

#[cfg(not(target_arch = "x86_64"))]
fn wants_eintr(_: u64) -> bool {
    false
}

/// Whether a signal is pending, and not blocked, whose handler was installed without SA_RESTART.
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
    fn a_handler_that_blocks_the_gates_signal_and_may_come_before_it_is_noticed() {
        extern "C" fn nothing(_: libc::c_int) {}
        assert!(the_gate_comes_first());
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        let mut mine = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: Plain Call: locals, of which zeros are a value; nobody raises this signal
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
