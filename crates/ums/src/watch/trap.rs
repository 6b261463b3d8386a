//! The gate in a signal: the handler of SIGTRAP, which runs on the way back to user code.
//!
//! perf sends SIGTRAP after every switch away from a watched thread, before that thread runs
//! another instruction of the user's. The handler reads the ownership word. If the thread still
//! owns its place (it was preempted, or its block was not detected), the handler returns. If not,
//! the thread waits here, inside the handler, until it owns a place again. The interrupted system
//! call has its result already and keeps it.
//!
//! The handler is async-signal-safe: no allocation, no lock, `errno` is preserved. All signals are
//! blocked in it, so the user's are delivered when the thread resumes.
//!
//! *Restart.* If another signal is pending, the kernel decides by *our* flags, as ours comes first,
//! whether an interrupted call is restarted. Our flags ask for the restart. If the other signal's
//! handler was installed without `SA_RESTART`, our handler turns the restart into `EINTR`.
//!
//! *Hosted.* A SIGTRAP on a host interrupts a thread that runs on a kernel thread other than its
//! own. Three things send one there: a poke, the gate of a carrier whose scheduler was taken
//! (`carriers.rs`), and the end of the one instruction that a worker executes away from its host
//! (`hosted.rs`).
//!
//! Named invariants. **Own Frame**: the kernel hands the handler its context, which is the
//! interrupted thread's and lives until the handler returns. **Plain Call**: see ARCHITECTURE.md.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

use super::signals::{blocked_in, fault_at, is_poke, kernel_thread, set_mask, wants_eintr};
use super::thread::{self, Watched};
use super::{calls, hosted, interrupted};
use crate::os::linux::handlers;

/// `si_code` of a SIGTRAP that perf sent.
const TRAP_PERF: i32 = 6;
/// `si_code` of one that the processor raised after a single instruction.
const TRAP_TRACE: i32 = 2;
/// `si_code` of one that the processor raised, and whose cause the kernel does not know.
const TRAP_BRKPT: i32 = 1;
/// The signal by which the C library cancels a thread.
const SIGCANCEL: i32 = 32;

static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler. SIGTRAPs that are not ours go to the handler that was there before.
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
            // The C library leaves out its own two. The one that cancels a thread would unwind the
            // thread while it waits at its gate; the other one must get through (setuid).
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
    // Before everything else: whether the scheduler was taken from this carrier.
    if let Some(carrier) = hosted::arrive() {
        // Whatever else is pending waits until the worker has rejoined its scheduler.
        return elsewhere(context, || calls::leave_taken(carrier));
    }
    match thread::me() {
        Some(me) if is_poke(info) && me.is_hosted() => {
            // Another signal that has come with it may require the call to end.
            let ends = ends_calls(context);
            on_host(context, || me.poked(context.cast(), blocked_in(info), ends));
        }
        Some(me) if is_of_the_gate(me, code) || is_poke(info) => {
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
        None if is_of_a_step(code) && hosted::has_stepped(context.cast()) => {
            on_host(context, calls::has_stepped);
        }
        // A late trap of a thread that is no longer watched, or a poke for a thread that has left
        // this host.
        None if code == TRAP_PERF || is_poke(info) => {}
        _ => pass_on(signal, info, context),
    }
}

/// Returns whether a SIGTRAP with this code comes from the gate of the calling thread.
///
/// The processor reports in its register DR6 which breakpoint was hit. Some hypervisors lose that
/// report now and then (R13). The kernel then has a debug exception without a cause: it consults no
/// perf event, and sends SIGTRAP with `TRAP_BRKPT`. On x86-64 the only other source of that code is
/// the instruction `int1`, which programs do not use (`int3` has another code). So in a thread that
/// has a breakpoint, the code means that breakpoint, and the handler is the gate in time: the
/// instruction at the breakpoint has not been executed.
fn is_of_the_gate(me: &Watched, code: i32) -> bool {
    let lost = cfg!(target_arch = "x86_64") && code == TRAP_BRKPT && me.breakpoint.is_attached();
    code == TRAP_PERF || lost
}

/// Returns whether a SIGTRAP with this code may come from the end of a step, whose cause may be
/// lost as well.
fn is_of_a_step(code: i32) -> bool {
    code == TRAP_TRACE || cfg!(target_arch = "x86_64") && code == TRAP_BRKPT
}

/// Returns the kernel's set of blocked signals, which begins the C library's.
fn mask_of(context: *mut libc::c_void) -> *mut u64 {
    // SAFETY: Own Frame: an address in it.
    unsafe { ptr::addr_of_mut!((*context.cast::<libc::ucontext_t>()).uc_sigmask).cast() }
}

/// Runs `f`, which may return on another kernel thread, in the handler of a hosted thread. Restores
/// the host's mask first, because what the host runs next is not in a handler.
fn on_host(context: *mut libc::c_void, f: impl FnOnce()) {
    elsewhere(context, || {
        set_mask(mask_of(context), ptr::null_mut());
        f();
    });
}

/// Runs `f`, which may return on another kernel thread, in a handler. If it does, what the handler
/// restores is made that kernel thread's own: the mask becomes the one that it has now, and its
/// alternate signal stack stays as it is, because the kernel ignores an invalid one.
fn elsewhere(context: *mut libc::c_void, f: impl FnOnce()) {
    const INVALID: libc::c_int = 7;
    // SAFETY: Plain Call: this thread's own errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: Plain Call: as above.
    let kept = unsafe { *errno };
    let host = kernel_thread();
    f();
    if kernel_thread() != host {
        set_mask(ptr::null(), mask_of(context));
        // SAFETY: Own Frame: what is restored when the handler returns.
        unsafe { (*context.cast::<libc::ucontext_t>()).uc_stack.ss_flags = INVALID };
    }
    // SAFETY: Plain Call: as above.
    unsafe { *errno = kept };
}

/// Returns whether a signal is pending that the interrupted thread takes when the handler returns,
/// and that ends a call with `EINTR`.
fn ends_calls(context: *mut libc::c_void) -> bool {
    // SAFETY: Own Frame: the kernel's set is eight bytes, at the beginning of the C library's.
    let mask = unsafe {
        (&raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>().read()
    };
    wants_eintr(mask)
}

/// Turns the restart of an interrupted call into `EINTR`, if a pending signal requires that.
#[cfg(target_arch = "x86_64")]
fn fix_restart(context: *mut libc::ucontext_t) {
    // SAFETY: Own Frame: the interrupted registers.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    // SAFETY: Own Frame: the thread continues there.
    let is_next = unsafe { interrupted::is_call(registers[libc::REG_RIP as usize] as u64) };
    // SAFETY: Own Frame: the kernel's set is eight bytes; the C library's is longer and zero there.
    let blocked = unsafe { ptr::from_ref(&(*context).uc_sigmask).cast::<u64>().read() };
    if is_next && wants_eintr(blocked) {
        registers[libc::REG_RIP as usize] += interrupted::CALL_LENGTH as i64;
        registers[libc::REG_RAX as usize] = -i64::from(libc::EINTR);
    }
}

/// On other processors the restart stands: a call continues that would have ended with `EINTR`.
#[cfg(not(target_arch = "x86_64"))]
fn fix_restart(_: *mut libc::ucontext_t) {}

/// Does with a SIGTRAP that is not ours what would have happened without this handler.
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
