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
//! Named invariant **Signal**: see ARCHITECTURE.md.

#![allow(unsafe_code)]

use std::sync::Once;

use super::signals::{
    ALL, block_here, blocked_in, fault_at, is_poke, kernel_thread, mask_here, wants_eintr,
};
use super::thread::{self, Watched};
use super::{calls, hosted, interrupted};
use crate::os::linux::handlers::{self, Before, Frame, Handler};

/// `si_code` of a SIGTRAP that perf sent.
const TRAP_PERF: i32 = 6;
/// `si_code` of one that the processor raised after a single instruction.
const TRAP_TRACE: i32 = 2;
/// `si_code` of one that the processor raised, and whose cause the kernel does not know.
const TRAP_BRKPT: i32 = 1;
/// The signal by which the C library cancels a thread.
const SIGCANCEL: i32 = 32;

static BEFORE: Before = Before::new();

/// Installs the handler. SIGTRAPs that are not ours go to the handler that was there before.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // Of the C library's own two signals, the one that cancels a thread would unwind the thread
        // while it waits at its gate; the other one must get through (setuid).
        let blocked = ALL | 1 << (SIGCANCEL - 1);
        handlers::install::<Trap>(libc::SIGTRAP, &BEFORE, libc::SA_RESTART, blocked);
    });
}

struct Trap;

// SAFETY: Signal: no allocation and no lock, as the head of this file says.
unsafe impl Handler for Trap {
    fn handle(frame: &mut Frame<'_>) {
        on_trap(frame);
    }
}

fn on_trap(frame: &mut Frame<'_>) {
    let code = frame.info().si_code;
    // Before everything else: whether the scheduler was taken from this carrier.
    if let Some(carrier) = hosted::arrive() {
        // Whatever else is pending waits until the worker has rejoined its scheduler.
        return elsewhere(frame, |_| calls::leave_taken(carrier));
    }
    let is_poke = is_poke(frame);
    match thread::me() {
        Some(me) if is_poke && me.is_hosted() => {
            // Another signal that has come with it may require the call to end.
            let ends = wants_eintr(*frame.mask());
            on_host(frame, |frame| me.poked(frame, blocked_in(frame), ends));
        }
        Some(me) if is_of_the_gate(me, code) || is_poke => {
            if me.at_trap() {
                fix_restart(frame);
            }
        }
        None if is_poke && calls::is_in_user_code() => {
            let ends = wants_eintr(*frame.mask());
            on_host(frame, |frame| match fault_at(frame) {
                Some(pc) => calls::poked_in_fault(frame, pc),
                None => calls::poked(frame, blocked_in(frame), ends),
            });
        }
        None if is_of_a_step(code) && hosted::has_stepped(frame) => {
            on_host(frame, |_| calls::has_stepped());
        }
        // A late trap of a thread that is no longer watched, or a poke for a thread that has left
        // this host.
        None if code == TRAP_PERF || is_poke => {}
        _ => pass_on(frame),
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

/// Runs `f`, which may return on another kernel thread, in the handler of a hosted thread. Restores
/// the host's mask first, because what the host runs next is not in a handler.
fn on_host(frame: &mut Frame<'_>, f: impl FnOnce(&mut Frame<'_>)) {
    elsewhere(frame, |frame| {
        block_here(*frame.mask());
        f(frame);
    });
}

/// Runs `f`, which may return on another kernel thread, in a handler. If it does, what the handler
/// restores is made that kernel thread's own: the mask becomes the one that it has now, and its
/// alternate signal stack stays as it is, because the kernel ignores an invalid one.
fn elsewhere(frame: &mut Frame<'_>, f: impl FnOnce(&mut Frame<'_>)) {
    const INVALID: libc::c_int = 7;
    let host = kernel_thread();
    f(frame);
    if kernel_thread() != host {
        *frame.mask() = mask_here();
        frame.context().uc_stack.ss_flags = INVALID;
    }
}

/// Turns the restart of an interrupted call into `EINTR`, if a pending signal requires that.
#[cfg(target_arch = "x86_64")]
fn fix_restart(frame: &mut Frame<'_>) {
    if interrupted::is_call_next(frame) && wants_eintr(*frame.mask()) {
        let registers = &mut frame.context().uc_mcontext.gregs;
        registers[libc::REG_RIP as usize] += interrupted::CALL_LENGTH as i64;
        registers[libc::REG_RAX as usize] = -i64::from(libc::EINTR);
    }
}

/// On other processors the restart stands: a call continues that would have ended with `EINTR`.
#[cfg(not(target_arch = "x86_64"))]
fn fix_restart(_: &mut Frame<'_>) {}

/// Does with a SIGTRAP that is not ours what would have happened without this handler.
#[cold]
fn pass_on(frame: &mut Frame<'_>) {
    frame.pass_on_or_raise(&BEFORE, false);
}
