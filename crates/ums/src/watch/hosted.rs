//! A watched thread that runs on its scheduler's kernel thread, not on its own (crate `context`).
//!
//! Its ownership word says RUNTIME all the while, and its place is vacant: there is no other thread
//! that could run the user's code there, so nobody needs to take anything from it. What the watch
//! is needed for is this:
//!
//! * *An interposed call.* One that blocks would hold up the host. So the thread goes on on its own
//!   kernel thread first: without its place where the call surely blocks, as the seated owner of
//!   its place where that cannot be told. From there on it is as any other watched thread, with its
//!   gate.
//! * *A request to stop.* The signal goes to the host's kernel thread, whose handler runs on the
//!   stack of whoever is there. It finds the thread by a thread-local, in the order of the program:
//!   either the thread is in user code there, or the request is left for its next switch. Stopped,
//!   it goes on on its own kernel thread, inside the handler even: what a handler's frame restores
//!   is made that thread's own before.
//!
//! * *A call that nobody declared.* The host's kernel thread blocks in it. Whoever sees that pokes
//!   the host, too. The handler finds the interrupted call in its frame, carries it over to the
//!   thread's own kernel thread and makes it there, once more; the frame then says that it came
//!   back with that result. Only a call whose interruption means that it has done nothing is
//!   carried over, from a list (`interrupted.rs`). A blocked write of much may end early, as after
//!   any signal. In the Windows model page faults hold up the host.
//!
//! * *A page fault that a signal interrupts*, of a worker of a scheduler: one that a thread of user
//!   code resolves. The instruction is to be executed once more, so the worker leaves its host and
//!   executes it on its own kernel thread, which blocks there as long as it takes. The frame says
//!   that the processor shall trap after that one instruction; in that trap the worker comes home.
//!   What the instruction does to memory is done while the worker is away, like what a system call
//!   does that was carried over. One that a signal does not interrupt: `carriers.rs`.
//!
//! ```text
//! thread, coming onto a host        who asks
//! host := H                         stop_asked := true
//! (a barrier of the asker's)        membarrier
//! looks at stop_asked               looks at host, and pokes it
//! ```
//!
//! One of both sees the other's store: the asker's `membarrier` is a barrier in every thread of the
//! process, so that a switch needs none.

#![allow(unsafe_code)] // Named invariant **Plain Call**: see ARCHITECTURE.md.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use super::Blocks;
use super::carriers::{Carrier, Carriers};
use super::interrupted::Interrupted;
use super::state::Seen;
use super::thread::{Watched, keeper};
use crate::os::entry;
use crate::os::linux::barrier;

impl Watched {
    /// Own thread: whether it is hosted, and in user code.
    #[inline]
    pub fn is_hosted(&self) -> bool {
        self.host.load(Ordering::Relaxed) != 0
    }

    /// Own thread, inside the machine: it runs on this kernel thread from now on, in user code.
    #[inline]
    pub fn come_onto(&'static self, host: i32) {
        self.host.store(host, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if self.stop_asked.load(Ordering::Relaxed) {
            self.stop_on_host();
        }
    }

    /// Own thread: it is inside the machine from now on, and about to leave its host.
    #[inline]
    pub fn leave(&self) {
        self.host.store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// As [`Watched::leave`], if it is hosted. One instruction: a handler that comes between a look
    /// and a store would have it leave a host that it is no longer on.
    #[inline]
    pub fn leave_if_hosted(&self) -> bool {
        let hosted = self.host.swap(0, Ordering::Relaxed) != 0;
        compiler_fence(Ordering::SeqCst);
        hosted
    }

    /// Own thread, hosted and in user code: stops if that was asked for and is still wanted.
    #[cold]
    pub(super) fn stop_on_host(&'static self) {
        // In a handler of the application's the request is left for the next switch.
        while self.is_hosted()
            && keeper().may_leave_host()
            && self.stop_asked.swap(false, Ordering::SeqCst)
        {
            if keeper().stop_on_host() {
                self.word.leave();
                self.look_for_stop();
            }
        }
    }

    /// Own thread, in the handler of a poke, hosted and in user code. `seen`: what the host was
    /// seen blocked in; `ends`: another signal has interrupted it, too, and ends the call.
    pub(super) fn poked(
        &'static self,
        frame: *mut libc::ucontext_t,
        seen: Option<Seen>,
        ends: bool,
    ) {
        self.stop_on_host();
        if !self.is_hosted() || entry::is_inside() || !keeper().may_leave_host() {
            return;
        }
        let Some(call) = Interrupted::find(frame, seen) else { return };
        let result = match ends {
            true => -i64::from(libc::EINTR),
            false => self.call_of_hosted(Blocks::Surely, || call.make()),
        };
        call.is_over(frame, result);
    }

    /// Who has just asked it to stop: where it is hosted. 0: nowhere, or it will see the request
    /// when it is.
    pub(super) fn host_as_seen_after_asking(&self) -> i32 {
        barrier::on_all_threads();
        self.host.load(Ordering::SeqCst)
    }

    /// Own thread, hosted and in user code: runs an interposed call.
    pub(super) fn call_of_hosted<R>(&'static self, blocks: Blocks, call: impl FnOnce() -> R) -> R {
        match blocks {
            Blocks::Hardly => call(),
            // It holds up the host.
            _ if !keeper().may_leave_host() => call(),
            Blocks::Surely => {
                keeper().leave_host(true);
                self.word.lose();
                self.call_without_place(call)
            }
            Blocks::Perhaps => {
                keeper().leave_host(false);
                self.word.leave();
                self.call(|| Blocks::Perhaps, call)
            }
        }
    }
}

thread_local! {
    /// The carriers of the scheduler that this thread, whatever it is there, belongs to.
    static CARRIERS: Cell<Option<&'static Carriers>> = const { Cell::new(None) };
    /// It executes one instruction away from its host.
    static STEPS: Cell<bool> = const { Cell::new(false) };
}

/// From now on the handler of the calling thread looks whether its host was taken, when it runs on
/// one of these.
///
/// # Safety
/// **Own Carriers**: they live until the calling thread ends, or says that there are none.
pub(crate) unsafe fn runs_on(carriers: Option<&Carriers>) {
    // SAFETY: Own Carriers, by the contract. The 'static stays inside the handler.
    CARRIERS.set(carriers.map(|all| unsafe { &*std::ptr::from_ref(all) }));
}

/// In a handler: see [`Carriers::arrive`].
pub(super) fn arrive() -> Option<&'static Carrier> {
    CARRIERS.get()?.arrive()
}

/// Whether the interrupted thread goes on at this address.
pub(super) fn is_next(frame: *mut libc::ucontext_t, pc: u64) -> bool {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: Plain Call: the frame is the kernel's.
    let next = unsafe { (*frame).uc_mcontext.gregs[libc::REG_RIP as usize] } as u64;
    #[cfg(not(target_arch = "x86_64"))]
    let next = frame.is_null().into();
    next == pc
}

/// Has the interrupted thread trap after its next instruction.
pub(super) fn step(frame: *mut libc::ucontext_t) {
    STEPS.set(true);
    trap_flag(frame, true);
}

/// Whether it has made the step that it was to make. Then there is no other.
pub(super) fn has_stepped(frame: *mut libc::ucontext_t) -> bool {
    let so = STEPS.replace(false);
    if so {
        trap_flag(frame, false);
    }
    so
}

#[cfg(target_arch = "x86_64")]
fn trap_flag(frame: *mut libc::ucontext_t, on: bool) {
    const TRAP_FLAG: i64 = 1 << 8;
    // SAFETY: Plain Call: the frame is the kernel's, and restored by it.
    let flags = unsafe { &mut (*frame).uc_mcontext.gregs[libc::REG_EFL as usize] };
    *flags = (*flags & !TRAP_FLAG) | if on { TRAP_FLAG } else { 0 };
}

/// Elsewhere there are no carriers.
#[cfg(not(target_arch = "x86_64"))]
fn trap_flag(_: *mut libc::ucontext_t, _: bool) {}

/// How often the same block was poked. A worker that cannot leave, because of where it is, must not
/// be interrupted for ever: the call that it makes again and again would never end.
#[derive(Debug, Default)]
pub(crate) struct Pokes(AtomicU32);

impl Pokes {
    /// After a few of the same block there is one in so many looks: about once a second.
    pub fn is_worth_one_more(&self, news: bool) -> bool {
        const FEW: u32 = 4;
        const LOOKS: u32 = 1024;
        let so_far = if news { 0 } else { self.0.load(Ordering::Relaxed).wrapping_add(1) };
        self.0.store(so_far, Ordering::Relaxed);
        so_far < FEW || so_far.is_multiple_of(LOOKS)
    }
}
