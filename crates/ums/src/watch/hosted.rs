//! A watched thread that runs on its scheduler's kernel thread, not on its own (crate `context`).
//!
//! Its ownership word says RUNTIME all the while, and its place is vacant: there is no other thread that could run the
//! user's code there, so nobody needs to take anything from it. What the watch is needed for is this:
//!
//! * *An interposed call.* One that blocks would hold up the host. So the thread goes on on its own kernel thread first: without its place
//!   where the call surely blocks, as the seated owner of its place where that cannot be told. From there on it is as any other watched
//!   thread, with its gate.
//! * *A request to stop.* The signal goes to the host's kernel thread, whose handler runs on the stack of whoever is there. It
//!   finds the thread by a thread-local, in the order of the program: either the thread is in user code there, or the request is left for its
//!   next switch. Stopped, it goes on on its own kernel thread, inside the handler even: what a handler's frame restores is made that
//!   thread's own before.
//!
//! * *A call that nobody declared.* The host's kernel thread blocks in it. Whoever sees that pokes the host, too. The handler finds the
//!   interrupted call in its frame, carries it over to the thread's own kernel thread and makes it there, once more; the frame then says that it
//!   came back with that result. To have been interrupted is no more than never to have begun, but for what a signal with a restarting
//!   handler may always do to a call: a write of much may end early. In the Windows model page faults hold up the host.
//!
//! * *A page fault that a signal interrupts*, of a worker of a scheduler: one that a thread of user code resolves. The instruction is to be
//!   executed once more, so the worker leaves its host and executes it on its own kernel thread, which blocks there as long as it takes. The frame says
//!   that the processor shall trap after that one instruction; in that trap the worker comes home. What the instruction does to memory is done while the
//!   worker is away, like what a system call does that was carried over. One that a signal does not interrupt: `carriers.rs`.
//!
//! ```text
//! thread, coming onto a host        who asks
//! host := H                         stop_asked := true
//! (a barrier of the asker's)        membarrier
//! looks at stop_asked               looks at host, and pokes it
//! ```
//!
//! One of both sees the other's store: the asker's `membarrier` is a barrier in every thread of the process, so that a switch
//! needs none.

#![allow(unsafe_code)] // Named invariant **Plain Call**: see ARCHITECTURE.md.

use std::cell::Cell;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};

use super::Blocks;
use super::carriers::{Carrier, Carriers};
use super::state::ADDRESS_SPACE;
use super::thread::{Watched, keeper};

const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;

fn membarrier(command: libc::c_int) {
    // SAFETY: Plain Call: numbers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
}

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

    /// Own thread, in the handler of a poke, hosted and in user code. `seen`: what the host was seen blocked in; `ends`: another
    /// signal has interrupted it, too, and ends the call.
    pub(super) fn poked(
        &'static self,
        frame: *mut libc::ucontext_t,
        seen: Option<(i64, u64)>,
        ends: bool,
    ) {
        self.stop_on_host();
        let holds = self.holds.load(Ordering::Relaxed) > 0;
        if !self.is_hosted() || holds || !keeper().may_leave_host() {
            return;
        }
        let Some(call) = Interrupted::find(frame, seen) else { return };
        let result = match ends {
            true => -i64::from(libc::EINTR),
            false => self.call_of_hosted(Blocks::Surely, || call.make()),
        };
        call.is_over(frame, result);
    }

    /// Who has just asked it to stop: where it is hosted. 0: nowhere, or it will see the request when it is.
    pub(super) fn host_as_seen_after_asking(&self) -> i32 {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| membarrier(REGISTER_PRIVATE_EXPEDITED));
        membarrier(PRIVATE_EXPEDITED);
        fence(Ordering::SeqCst);
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

/// From now on the handler of the calling thread looks whether its host was taken, when it runs on one of these.
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

/// How often the same block was poked. A worker that cannot leave, because of where it is, must not be interrupted for ever: the call that
/// it makes again and again would never end.
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

/// A system call that a signal has interrupted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interrupted {
    number: i64,
    /// Where it goes on.
    after: u64,
    args: [i64; 6],
}

#[cfg(target_arch = "x86_64")]
impl Interrupted {
    /// Finds it in the frame of a handler. Either the kernel was about to make it again, then it is next; or it has ended with
    /// EINTR, then it is the one that it was seen in. It may have gone on to another since: then its number is told by the instruction before,
    /// where that is one of the C library's usual pair; else it ends with EINTR.
    pub fn find(frame: *mut libc::ucontext_t, seen: Option<(i64, u64)>) -> Option<Interrupted> {
        // SAFETY: Plain Call: the registers are the kernel's own.
        let r = unsafe { &(*frame).uc_mcontext.gregs };
        let get = |register: i32| r[register as usize];
        let (rip, rax) = (get(libc::REG_RIP) as u64, get(libc::REG_RAX));
        // SAFETY: Plain Call: the thread goes on there.
        let is_next = unsafe { is_call(rip) };
        let (number, after) = match seen {
            // Any other that is next was not begun, or not seen: it is made here, and seen if it blocks.
            _ if is_next => seen.filter(|seen| *seen == (rax, rip + CALL_LENGTH))?,
            _ if rax != -i64::from(libc::EINTR) => return None,
            Some((number, pc)) if pc == rip => (number, rip),
            _ => (number_before(rip)?, rip),
        };
        use libc::{REG_R8, REG_R9, REG_R10, REG_RDI, REG_RDX, REG_RSI};
        let args = [REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9].map(get);
        let call = Interrupted { number, after, args };
        let keeps_its_end = !is_next && call.waits_with_a_mask();
        (can_be_carried(number) && !keeps_its_end).then_some(call)
    }

    /// Whether it lets signals in only while it waits. When it has ended, that may have been for one whose handler has run
    /// before this; it must then end, or the program would wait for what has happened. For any other call it is as if
    /// that signal had come just before.
    fn waits_with_a_mask(&self) -> bool {
        let [_, _, _, fourth, fifth, sixth] = self.args;
        match self.number {
            libc::SYS_ppoll => fourth != 0,
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => fifth != 0,
            libc::SYS_pselect6 => sixth != 0,
            _ => false,
        }
    }

    /// Makes it, as the C library would, and says what the kernel said.
    pub fn make(&self) -> i64 {
        let [a, b, c, d, e, f] = self.args;
        let result: i64;
        // SAFETY: Plain Call: the program's own call, which it was in, with its arguments.
        unsafe {
            std::arch::asm!(
                "syscall",
                inlateout("rax") self.number => result,
                in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
                lateout("rcx") _, lateout("r11") _,
            );
        }
        result
    }

    /// Makes the frame say that it has come back with this.
    pub fn is_over(&self, frame: *mut libc::ucontext_t, result: i64) {
        // SAFETY: Plain Call: the frame is the kernel's, and restored by it.
        let registers = unsafe { &mut (*frame).uc_mcontext.gregs };
        registers[libc::REG_RIP as usize] = self.after as i64;
        registers[libc::REG_RAX as usize] = result;
    }
}

/// The length of a `syscall`.
#[cfg(target_arch = "x86_64")]
pub(super) const CALL_LENGTH: u64 = 2;

/// Whether the instruction at this address is a `syscall`. It may lie on two pages.
///
/// # Safety
/// A thread is about to execute it.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn is_call(at: u64) -> bool {
    let byte = |n: u64| {
        // SAFETY: Plain Call: by the contract there is an instruction. Its second byte is only looked at if it has one: there is none of
        // one byte that begins like this.
        unsafe { ((at + n) as *const u8).read() }
    };
    byte(0) == 0x0f && byte(1) == 0x05
}

/// The number of the call that ends before this address, where it is made by `mov eax, number; syscall`.
#[cfg(target_arch = "x86_64")]
fn number_before(rip: u64) -> Option<i64> {
    const PAIR: u64 = 7;
    // On one page with what comes next, which is there.
    if rip % 4096 < PAIR {
        return None;
    }
    // SAFETY: Plain Call: bytes of the program's code, as said above.
    let [mov, a, b, c, d, rest @ ..] = unsafe { ((rip - PAIR) as *const [u8; 7]).read_unaligned() };
    (mov == 0xb8 && rest == [0x0f, 0x05]).then(|| i32::from_le_bytes([a, b, c, d]).into())
}

/// Elsewhere no thread is hosted.
#[cfg(not(target_arch = "x86_64"))]
impl Interrupted {
    pub fn find(_: *mut libc::ucontext_t, _: Option<(i64, u64)>) -> Option<Interrupted> {
        None
    }

    pub fn make(&self) -> i64 {
        0
    }

    pub fn is_over(&self, _: *mut libc::ucontext_t, _: i64) {}
}

/// Whether a call means the same on another kernel thread of the process: not what makes or ends threads and processes, not
/// what changes the address space, not what waits for nothing but a signal, and not what belongs to a ring of one kernel thread.
pub(crate) fn can_be_carried(number: i64) -> bool {
    let stays = [
        libc::SYS_clone,
        libc::SYS_clone3,
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_rt_sigreturn,
        libc::SYS_restart_syscall,
        libc::SYS_rt_sigsuspend,
        libc::SYS_io_uring_enter,
    ];
    let stays = stays.into_iter().chain(ADDRESS_SPACE);
    #[cfg(target_arch = "x86_64")]
    let stays = stays.chain([libc::SYS_fork, libc::SYS_vfork, libc::SYS_pause]);
    let mut stays = stays;
    // Elsewhere it could not be found in the frame.
    cfg!(target_arch = "x86_64") && number >= 0 && !stays.any(|call| call == number)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// What is found where a call came back with EINTR, with a fourth argument.
    fn ended(number: i64, fourth: i64) -> Option<Interrupted> {
        static AFTER: [u8; 16] = [0x90; 16];
        // SAFETY: Plain Call: zeros are a value of it.
        let mut frame: libc::ucontext_t = unsafe { std::mem::zeroed() };
        let registers = &mut frame.uc_mcontext.gregs;
        registers[libc::REG_RIP as usize] = AFTER.as_ptr().expose_provenance() as i64;
        registers[libc::REG_RAX as usize] = -i64::from(libc::EINTR);
        registers[libc::REG_R10 as usize] = fourth;
        Interrupted::find(&mut frame, Some((number, AFTER.as_ptr().addr() as u64)))
    }

    /// Two pages, of which the first ends with this byte; the second cannot be read, or begins with that of a call.
    fn at_the_end(last: u8, second: bool) -> (*mut libc::c_void, u64) {
        const PAGE: usize = 4096;
        // SAFETY: Plain Call: new memory, given to nobody else.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let pages = libc::mmap(std::ptr::null_mut(), 2 * PAGE, protection, flags, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            let end = pages.byte_add(PAGE);
            end.byte_sub(1).cast::<u8>().write(last);
            match second {
                true => end.cast::<u8>().write(0x05),
                false => assert_eq!(libc::munmap(end, PAGE), 0),
            }
            (pages, end.addr() as u64 - 1)
        }
    }

    #[test]
    fn a_call_on_two_pages_is_one_and_what_ends_a_page_need_be_none() {
        for (last, second, is) in [(0x0f, true, true), (0xc3, true, false), (0xc3, false, false)] {
            let (pages, at) = at_the_end(last, second);
            // SAFETY: Plain Call: bytes that were made above; one that stands alone is a whole instruction.
            assert_eq!(unsafe { is_call(at) }, is, "{last:x}");
            // SAFETY: Plain Call: made above; a part that is not there any more does no harm.
            assert_eq!(unsafe { libc::munmap(pages, 2 * 4096) }, 0);
        }
    }

    #[test]
    fn a_call_that_lets_a_signal_in_only_while_it_waits_ends_when_it_has_ended() {
        assert!(ended(libc::SYS_poll, 0).is_some());
        assert!(ended(libc::SYS_ppoll, 0).is_some());
        assert!(ended(libc::SYS_ppoll, 0x1000).is_none());
        assert!(ended(libc::SYS_rt_sigsuspend, 0).is_none());
    }
}
