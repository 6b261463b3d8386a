//! The handler of SIGTRAP, which is the gate of a thread on its way back to user code.
//!
//! perf sends SIGTRAP after every switch away from a watched thread, before that thread runs
//! another instruction of user code. The handler reads the ownership word. If the thread still owns
//! its place (it was preempted, or its block was not detected), the handler returns. Otherwise the
//! thread waits inside the handler until it owns a place again. The interrupted system call has its
//! result already and keeps it.
//!
//! The handler is async-signal-safe: it does not allocate or lock, and it preserves `errno`. All
//! signals are blocked in it, so the application's signals are delivered after the handler has
//! returned.
//!
//! *Restart.* If another signal is pending, SIGTRAP is delivered first. So the kernel decides by
//! the flags of *our* handler whether an interrupted call is restarted, and our flags ask for the
//! restart. If the other signal's handler was installed without `SA_RESTART`, our handler turns the
//! restart into `EINTR`, whether or not the thread had to wait at its gate.
//!
//! *Hosted.* A SIGTRAP on a host interrupts a thread that runs on a kernel thread other than its
//! own. There are three sources of such a SIGTRAP: a poke (`signals.rs`), the gate of a carrier
//! whose scheduler was taken (`carriers.rs`), and the end of the one instruction that a worker
//! executes away from its host (`hosted.rs`).
//!
//! Named invariant **Signal**: see ARCHITECTURE.md.

#![allow(unsafe_code)]

use std::sync::Once;

#[cfg(target_arch = "x86_64")]
use super::interrupted;
use super::signals::{
    ALL, block_here, blocked_in, fault_at, is_poke, kernel_thread, mask_here, wants_eintr,
};
use super::thread::{self, Watched};
use super::{calls, hosted};
use crate::os::linux::handlers::{self, Before, Handler, SignalFrame};

/// `si_code` of a SIGTRAP that perf sent.
const TRAP_PERF: i32 = 6;
/// `si_code` of a SIGTRAP that the processor raised after a single instruction.
const TRAP_TRACE: i32 = 2;
/// `si_code` of a SIGTRAP that the processor raised for a cause that the kernel cannot determine.
const TRAP_BRKPT: i32 = 1;
/// The signal by which the C library cancels a thread.
const SIGCANCEL: i32 = 32;

static BEFORE: Before = Before::new();

/// Installs the handler. A SIGTRAP that is not sent for this crate goes to the handler that was
/// installed before.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // The C library has two signals of its own. The one that cancels a thread must be blocked,
        // because it would unwind the thread while the thread waits at its gate. The other one must
        // be delivered (setuid).
        let blocked = ALL | 1 << (SIGCANCEL - 1);
        handlers::install::<Trap>(libc::SIGTRAP, &BEFORE, libc::SA_RESTART, blocked);
    });
}

struct Trap;

// SAFETY: Signal: no allocation and no lock, as the file's header says. The frame is changed in
// four ways. A call that was interrupted gets its result, or ends with `EINTR`. The trap flag is
// set for one instruction. If `handle` returns on another kernel thread, the frame gets that
// thread's signal mask and signal stack.
unsafe impl Handler for Trap {
    fn handle(frame: &mut SignalFrame<'_>) {
        on_trap(frame);
    }
}

fn on_trap(frame: &mut SignalFrame<'_>) {
    let code = frame.info().si_code;
    // This check comes first: was the scheduler taken from the carrier that the handler runs on?
    if let Some(carrier) = hosted::arrive() {
        // Any other pending request waits until the worker has rejoined its scheduler.
        return elsewhere(frame, |_| calls::leave_taken(carrier));
    }
    let is_poke = is_poke(frame);
    match thread::me() {
        Some(me) if is_poke && me.is_hosted() => {
            // Another signal that is pending too may require that the call ends with `EINTR`.
            let ends = wants_eintr(frame.mask());
            on_host(frame, |frame| me.poked(frame, blocked_in(frame), ends));
        }
        Some(me) if is_of_the_gate(me, code) || is_poke => {
            if me.at_trap() {
                fix_restart(frame);
            }
        }
        None if is_poke && calls::is_in_user_code() => {
            let ends = wants_eintr(frame.mask());
            on_host(frame, |frame| match fault_at(frame) {
                Some(pc) => calls::poked_in_fault(frame, pc),
                None => calls::poked(frame, blocked_in(frame), ends),
            });
        }
        None if is_of_a_step(code) && hosted::has_stepped(frame) => {
            on_host(frame, |_| calls::has_stepped());
        }
        // A late SIGTRAP of perf for a thread that is no longer watched, or a poke for a thread
        // that has left this host.
        None if code == TRAP_PERF || is_poke => {}
        _ => pass_on(frame),
    }
}

/// Returns whether a SIGTRAP with this code comes from the gate of the calling thread.
///
/// The processor reports in its register DR6 which breakpoint was hit. Some hypervisors lose that
/// report now and then (R13). The kernel then sees a debug exception without a cause. It consults
/// no perf event, and sends SIGTRAP with `TRAP_BRKPT`. On x86-64 the only other source of that code
/// is the instruction `int1`, which programs do not use (`int3` has another code). So if the thread
/// has a breakpoint, this code means that the breakpoint was hit. The handler still runs in time as
/// the gate, because the instruction at the breakpoint has not been executed.
fn is_of_the_gate(me: &Watched, code: i32) -> bool {
    let lost = cfg!(target_arch = "x86_64") && code == TRAP_BRKPT && me.breakpoint.is_attached();
    code == TRAP_PERF || lost
}

/// Returns whether a SIGTRAP with this code may come from the end of a single step. A hypervisor
/// may lose the cause of that SIGTRAP, too.
fn is_of_a_step(code: i32) -> bool {
    code == TRAP_TRACE || cfg!(target_arch = "x86_64") && code == TRAP_BRKPT
}

/// Runs `f` in the handler of a hosted thread; `f` may return on another kernel thread. Restores
/// the host's signal mask first, because the code that the host runs next is in no handler.
fn on_host(frame: &mut SignalFrame<'_>, f: impl FnOnce(&mut SignalFrame<'_>)) {
    elsewhere(frame, |frame| {
        block_here(frame.mask());
        f(frame);
    });
}

/// Runs `f` in a handler; `f` may return on another kernel thread. If it does, the frame is changed
/// so that the handler's return restores that kernel thread's own state. The signal mask in the
/// frame becomes the one that the kernel thread has now. Its alternate signal stack stays
/// unchanged.
fn elsewhere(frame: &mut SignalFrame<'_>, f: impl FnOnce(&mut SignalFrame<'_>)) {
    let host = kernel_thread();
    f(frame);
    if kernel_thread() != host {
        frame.set_mask(mask_here());
        frame.keep_signal_stack();
    }
}

/// Turns the restart of an interrupted call into `EINTR`, if another pending signal requires that.
#[cfg(target_arch = "x86_64")]
fn fix_restart(frame: &mut SignalFrame<'_>) {
    if interrupted::is_call_next(frame) && wants_eintr(frame.mask()) {
        frame.finish_call(frame.pc() + interrupted::CALL_LENGTH, -i64::from(libc::EINTR));
    }
}

/// Does nothing, because this processor is not x86-64. So a call is restarted although it should
/// end with `EINTR`.
#[cfg(not(target_arch = "x86_64"))]
fn fix_restart(_: &mut SignalFrame<'_>) {}

/// Handles a SIGTRAP that was not sent for this crate as it would have been handled without this
/// handler.
#[cold]
fn pass_on(frame: &mut SignalFrame<'_>) {
    frame.pass_on_or_raise(&BEFORE, false);
}
