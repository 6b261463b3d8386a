//! A watched thread that runs on its scheduler's kernel thread, not on its own (crate `context`).
//!
//! Its ownership word says RUNTIME all the while, and its place is vacant: no other thread could
//! run the user's code there, so nothing needs to be taken from it. Block watch has four tasks:
//!
//! * *An interposed call.* A call that blocks would hold up the host. So the thread first moves to
//!   its own kernel thread: without its place if the call is certain to block, as the seated owner
//!   of its place if that is unknown. From there on it is like any other watched thread, with its
//!   gate.
//!
//! * *A request to stop.* The signal goes to the host's kernel thread, whose handler runs on the
//!   stack of the thread that is hosted there. It finds that thread by a thread-local, in program
//!   order: either the thread is in user code there, or the request waits for its next switch. A
//!   thread that is stopped moves to its own kernel thread, even inside the handler: what the
//!   handler's frame restores is made that kernel thread's own before.
//!
//! * *An undeclared call.* The host's kernel thread blocks in it. A thread that detects this pokes
//!   the host. The handler finds the interrupted call in its frame, moves the thread to its own
//!   kernel thread and makes the call there once more; the frame then says that the call returned
//!   that result. Only calls on a list are made again: those whose interruption means that they
//!   have done nothing (`interrupted.rs`). A blocked write of much data may end early, as after any
//!   signal. In the Windows model page faults hold up the host.
//!
//! * *A page fault that a signal interrupts*, of a worker of a scheduler: a fault that a thread of
//!   user code resolves. The instruction must be executed once more, so the worker leaves its host
//!   and executes it on its own kernel thread, which blocks there as long as the fault takes. The
//!   frame makes the processor trap after that one instruction, and in that trap the worker rejoins
//!   its scheduler. What the instruction does to memory is done while the worker is away, like what
//!   a moved system call does. For faults that a signal does not interrupt see `carriers.rs`.
//!
//! ```text
//! thread, moving onto a host        thread that asks it to stop
//! host := H                         stop_asked := true
//! (a barrier of the asker's)        membarrier
//! looks at stop_asked               looks at host, and pokes it
//! ```
//!
//! At least one of them sees the other's store: the asker's `membarrier` is a barrier in every
//! thread of the process, so that a switch needs none.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use super::carriers::{Carrier, Carriers};
use super::interrupted::Interrupted;
use super::means::Blocks;
use super::state::Seen;
use super::thread::{Watched, gate_handler};
use crate::os::entry;
use crate::os::linux::handlers::Frame;

impl Watched {
    /// Own thread, inside the library: runs on this kernel thread from now on, in user code.
    #[inline]
    pub fn come_onto(&'static self, host: i32) {
        self.host.store(host, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if self.stop_asked.load(Ordering::Relaxed) {
            self.stop_on_host();
        }
    }

    /// Own thread, about to leave its host: is inside the library from now on.
    #[inline]
    pub fn leave(&self) {
        self.host.store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// Does as [`Watched::leave`] and returns true, if it is hosted. One instruction: a handler
    /// that ran between a look and a store would make it leave a host that it is no longer on.
    #[inline]
    pub fn leave_if_hosted(&self) -> bool {
        let hosted = self.host.swap(0, Ordering::Relaxed) != 0;
        compiler_fence(Ordering::SeqCst);
        hosted
    }

    /// Own thread, hosted and in user code: stops if it was asked to and the request still stands.
    #[cold]
    pub(super) fn stop_on_host(&'static self) {
        // In a handler of the application's the request waits for the next switch.
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

    /// Own thread, in the handler of a poke, hosted and in user code: stops if it was asked to, and
    /// makes the interrupted call on its own kernel thread. `seen` is the call that the host was
    /// seen blocked in. `ends` says that another signal has interrupted the call, too, and ends it.
    pub(super) fn poked(&'static self, frame: &mut Frame<'_>, seen: Option<Seen>, ends: bool) {
        self.stop_on_host();
        if !self.is_hosted() || entry::is_inside() || !gate_handler().may_leave_host() {
            return;
        }
        let Some(call) = Interrupted::find(frame, seen) else { return };
        let result = match ends {
            true => -i64::from(libc::EINTR),
            false => self.call_of_hosted(Blocks::Certain, || call.make()),
        };
        call.is_over(frame, result);
    }
}

thread_local! {
    /// The carriers of the scheduler that this thread, a worker or a carrier, belongs to.
    static CARRIERS: Cell<Option<&'static Carriers>> = const { Cell::new(None) };
    /// It executes one instruction away from its host.
    static STEPS: Cell<bool> = const { Cell::new(false) };
}

/// Sets the carriers of the calling thread. From now on its handler checks, when it runs on one of
/// them, whether the scheduler was taken from that carrier.
pub(crate) fn runs_on(carriers: Option<&'static Carriers>) {
    CARRIERS.set(carriers);
}

/// Does in a handler what [`Carriers::arrive`] says.
pub(super) fn arrive() -> Option<&'static Carrier> {
    CARRIERS.get()?.arrive()
}

/// Returns whether the interrupted thread continues at this address.
pub(super) fn is_next(frame: &Frame<'_>, pc: u64) -> bool {
    frame.pc() == pc
}

/// Makes the interrupted thread trap after its next instruction.
pub(super) fn step(frame: &mut Frame<'_>) {
    STEPS.set(true);
    trap_flag(frame, true);
}

/// Returns whether the calling thread has executed its one instruction, and ends the stepping.
pub(super) fn has_stepped(frame: &mut Frame<'_>) -> bool {
    let so = STEPS.replace(false);
    if so {
        trap_flag(frame, false);
    }
    so
}

#[cfg(target_arch = "x86_64")]
fn trap_flag(frame: &mut Frame<'_>, on: bool) {
    const TRAP_FLAG: i64 = 1 << 8;
    let flags = &mut frame.context().uc_mcontext.gregs[libc::REG_EFL as usize];
    *flags = (*flags & !TRAP_FLAG) | if on { TRAP_FLAG } else { 0 };
}

/// On other processors there are no carriers.
#[cfg(not(target_arch = "x86_64"))]
fn trap_flag(_: &mut Frame<'_>, _: bool) {}

/// How often the same block was poked. A worker that cannot leave, because of where it is, must not
/// be interrupted forever: the call that it makes again and again would never end.
#[derive(Debug, Default)]
pub(crate) struct Pokes(AtomicU32);

impl Pokes {
    /// Counts a look at a block, and returns whether to poke it. After the first few pokes of the
    /// same block, only every 1024th look pokes it: about once a second.
    pub fn is_worth_one_more(&self, news: bool) -> bool {
        const FEW: u32 = 4;
        const LOOKS: u32 = 1024;
        let so_far = if news { 0 } else { self.0.load(Ordering::Relaxed).wrapping_add(1) };
        self.0.store(so_far, Ordering::Relaxed);
        so_far < FEW || so_far.is_multiple_of(LOOKS)
    }
}
