//! A watched thread that runs on its scheduler's kernel thread, its host, and not on its own (crate
//! `context`).
//!
//! The ownership word of such a thread says RUNTIME all the time, and the place is vacant: no other
//! thread can run user code there, so nothing needs to be taken from the thread. Block watch has
//! four tasks:
//!
//! * *An interposed call.* A call that blocks would hold up the host. So the thread first moves to
//!   its own kernel thread. If the call is certain to block, it moves without its place. If that is
//!   unknown, it moves as the seated owner of its place. From there on it is like any other watched
//!   thread, with its gate.
//!
//! * *A request to stop.* The signal is sent to the host's kernel thread. Its handler runs on the
//!   stack of the thread that is hosted there, and finds that thread by a thread-local. If that
//!   thread is in user code, it stops; otherwise the request waits until the thread's next switch.
//!   A thread that stops moves to its own kernel thread, even inside the handler. So that the
//!   handler can return there, the signal mask and the alternate stack that the handler's frame
//!   restores are changed to those of that kernel thread.
//!
//! * *An undeclared call.* The host's kernel thread blocks in a system call. A thread that detects
//!   this pokes the host (`signals.rs`). The handler of the poke finds the interrupted call in its
//!   frame, moves the hosted thread to its own kernel thread and makes the call again there. Then
//!   it changes the frame, so that the call returns that result. Only calls on a list are made
//!   again: calls whose interruption means that they have done nothing (`interrupted.rs`). A
//!   blocked write of much data may end early, as after any signal. In the Windows model page
//!   faults hold up the host.
//!
//! * *A page fault that a signal interrupts*, of a worker of a scheduler. Such a fault is resolved
//!   by another thread of the process (`userfaultfd`). The instruction must be executed again. So
//!   the worker leaves its host and executes the instruction on its own kernel thread, which blocks
//!   as long as the fault takes. The frame makes the processor trap after that one instruction, and
//!   in that trap the worker rejoins its scheduler. What the instruction does to memory is done
//!   while the worker is away, as with a system call that is made again. For faults that a signal
//!   does not interrupt, see `carriers.rs`.
//!
//! A thread that moves onto a host and a thread that asks it to stop use this protocol:
//!
//! ```text
//! thread, moving onto a host          thread that asks it to stop
//! host := H                           stop_asked := true
//! (no barrier, only a compiler fence) membarrier
//! looks at stop_asked                 looks at host, and pokes it
//! ```
//!
//! At least one of them sees the other's store, because `membarrier` is a barrier in every thread
//! of the process. So the moving thread needs no barrier of its own.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use super::carriers::{Carrier, Carriers};
use super::interrupted::Interrupted;
use super::means::Blocks;
use super::state::BlockedCall;
use super::thread::{Watched, gate_handler};
use crate::os::entry;
use crate::os::linux::handlers::SignalFrame;

impl Watched {
    /// Called by the thread itself, inside the library: from now on it runs on this kernel thread,
    /// in user code.
    #[inline]
    pub fn come_onto(&'static self, host: i32) {
        self.host.store(host, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if self.stop_asked.load(Ordering::Relaxed) {
            self.stop_on_host();
        }
    }

    /// Called by the thread itself when it is about to leave its host: it is inside the library
    /// from now on.
    #[inline]
    pub fn leave(&self) {
        self.host.store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// If the thread is hosted, does what [`Watched::leave`] does and returns true. This reads and
    /// writes `host` in one instruction. Otherwise a signal handler could run between reading and
    /// writing, and move the thread off its host.
    #[inline]
    pub fn leave_if_hosted(&self) -> bool {
        let hosted = self.host.swap(0, Ordering::Relaxed) != 0;
        compiler_fence(Ordering::SeqCst);
        hosted
    }

    /// Called by the thread itself, hosted and in user code: stops if a request to stop is pending.
    #[cold]
    pub(super) fn stop_on_host(&'static self) {
        // In a signal handler of the application the thread may not leave its host, so the request
        // waits for the thread's next switch.
        while self.is_hosted()
            && gate_handler().may_leave_host()
            && self.stop_asked.swap(false, Ordering::SeqCst)
        {
            if gate_handler().stop_on_host() {
                self.word.leave();
                self.look_for_stop();
            }
        }
    }

    /// Called by the thread itself in the handler of a poke, hosted and in user code: stops if it
    /// was asked to, and otherwise makes the interrupted call on its own kernel thread. `seen` is
    /// the call in which the host was seen blocked. `ends` is true if another signal has
    /// interrupted the call too, and the call must end with `EINTR`.
    pub(super) fn poked(
        &'static self,
        frame: &mut SignalFrame<'_>,
        seen: Option<BlockedCall>,
        ends: bool,
    ) {
        self.stop_on_host();
        if !self.is_hosted() || entry::is_inside() || !gate_handler().may_leave_host() {
            return;
        }
        let Some(call) = Interrupted::find(frame, seen) else { return };
        let mut result = -i64::from(libc::EINTR);
        if !ends {
            self.call_of_hosted(Blocks::Certain, &mut || result = call.make());
        }
        call.is_over(frame, result);
    }
}

thread_local! {
    /// The carriers of the scheduler that this thread, a worker or a carrier, belongs to.
    static CARRIERS: Cell<Option<&'static Carriers>> = const { Cell::new(None) };
    /// Whether this thread has left its host to execute one instruction.
    static STEPS: Cell<bool> = const { Cell::new(false) };
}

/// Sets the carriers of the calling thread. From now on the thread's handler of SIGTRAP checks
/// whether it runs on one of these carriers and the scheduler was taken from that carrier.
pub(crate) fn runs_on(carriers: Option<&'static Carriers>) {
    CARRIERS.set(carriers);
}

/// Does what [`Carriers::arrive`] does, for the carriers of the calling thread. Called in a signal
/// handler.
pub(super) fn arrive() -> Option<&'static Carrier> {
    CARRIERS.get()?.arrive()
}

/// Returns whether the interrupted thread will continue at this address.
pub(super) fn is_next(frame: &SignalFrame<'_>, pc: u64) -> bool {
    frame.pc() == pc
}

/// Makes the interrupted thread trap after its next instruction.
pub(super) fn step(frame: &mut SignalFrame<'_>) {
    STEPS.set(true);
    trap_flag(frame, true);
}

/// Returns whether the calling thread has executed its one instruction. Ends the single-stepping.
pub(super) fn has_stepped(frame: &mut SignalFrame<'_>) -> bool {
    let so = STEPS.replace(false);
    if so {
        trap_flag(frame, false);
    }
    so
}

#[cfg(target_arch = "x86_64")]
fn trap_flag(frame: &mut SignalFrame<'_>, on: bool) {
    frame.set_trap_flag(on);
}

/// There are no carriers on other processors.
#[cfg(not(target_arch = "x86_64"))]
fn trap_flag(_: &mut SignalFrame<'_>, _: bool) {}

/// Counts the pokes of one block. A worker that cannot leave its host where it is must not be
/// interrupted without limit, because the call that it makes again and again would never end.
#[derive(Debug, Default)]
pub(crate) struct Pokes(AtomicU32);

impl Pokes {
    /// Counts a look at a block, and returns whether to poke the thread. `news` is true at the
    /// first look at a block. After the first few pokes of a block, only every 1024th look pokes:
    /// about once a second.
    pub fn is_worth_one_more(&self, news: bool) -> bool {
        const FEW: u32 = 4;
        const LOOKS: u32 = 1024;
        let so_far = if news { 0 } else { self.0.load(Ordering::Relaxed).wrapping_add(1) };
        self.0.store(so_far, Ordering::Relaxed);
        so_far < FEW || so_far.is_multiple_of(LOOKS)
    }
}
