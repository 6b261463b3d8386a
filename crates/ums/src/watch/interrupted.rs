//! A system call that a signal has interrupted, and whether it may be made again on another kernel
//! thread.
//!
//! A call is made again only if three conditions hold: the call is on the list below ([`again`]),
//! which gives the reason for each entry; it is certain which call it was; and the interruption
//! means that the call has done nothing. The frame of the signal's handler shows one of two things:
//!
//! * *The call is the next instruction.* The kernel has set the frame up so that the call is made
//!   again (`SA_RESTART`), or the call was not begun. The frame has the number and the arguments of
//!   the call. Making the call on another kernel thread does what the kernel was about to do on
//!   this one.
//! * *The call has ended with `EINTR`.* The frame has the arguments, but the number is lost. If the
//!   instruction before the `syscall` is `mov eax, number`, that instruction gives the number.
//!   Otherwise (one `syscall` instruction may serve several calls) the call is taken to be the one
//!   that the thread was seen blocked in just before, if instruction, stack pointer and all six
//!   arguments are the same. The call is identified in this way only if it waits and does nothing
//!   else, because no other call takes the same arguments. A call that moves data is not: `read`
//!   and `write` may well have the same arguments.
//!
//! Every other interrupted call is left as the kernel has left it. The library does not interrupt a
//! call that is not on the list. Such a call holds up its host. If no signal can interrupt it, its
//! scheduler is taken from the carrier (`carriers.rs`), and the call ends normally. `close` is an
//! example of a call that is not on the list: after `EINTR` its descriptor is closed, and the
//! descriptor's number may already mean a file of another thread.
//!
//! The kernel's promises are in signal(7), "Interruption of system calls and library functions by
//! signal handlers", and in the manual page of each call under `EINTR`.
//!
//! A timeout that is given as a span begins again, unless the kernel has stored the time that is
//! left. So such a call may wait longer than asked, by the time that passed until the block was
//! detected.

#![allow(unsafe_code)] // Named invariant **Plain Call**: see ARCHITECTURE.md.

use super::state::BlockedCall;
use super::state::Waits;
#[cfg(target_arch = "x86_64")]
use super::state::fingerprint;
use crate::os::linux::handlers::SignalFrame;

/// A system call that a signal has interrupted, and that may be made again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interrupted {
    number: i64,
    /// The address of the instruction after the call, where the thread continues.
    after: u64,
    args: [i64; 6],
}

/// When a call may be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    /// The call may be made again only if the kernel was about to restart it.
    Restarted,
    /// The call may be made again after `EINTR`, too, which for this call means that it has done
    /// nothing.
    Ended,
    /// The call may be made again after `EINTR`, too. It only waits, so its arguments distinguish
    /// it from every other call.
    Waits,
}

/// Returns whether a call in which a thread is blocked may be made again, on another kernel thread
/// of the process.
pub(crate) fn can_be_carried(waits: Waits) -> bool {
    let args = waits.args.map(|arg| arg as i64);
    // On other processors the call cannot be found in the frame.
    cfg!(target_arch = "x86_64") && waits.call.is_some_and(|number| again(number, args).is_some())
}

#[cfg(not(target_arch = "x86_64"))]
fn again(_: i64, _: [i64; 6]) -> Option<Again> {
    None
}

/// The list: returns when this call may be made again. Each of these calls means the same on
/// another kernel thread of the process.
#[cfg(target_arch = "x86_64")]
fn again(number: i64, [_, second, third, fourth, ..]: [i64; 6]) -> Option<Again> {
    let when = |yes: bool, again: Again| yes.then_some(again);
    match number {
        // The kernel compares the futex's value again before it waits. Operations that take a lock
        // for the calling kernel thread are not on the list.
        libc::SYS_futex => {
            let operation =
                second as i32 & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
            when(matches!(operation, libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET), Again::Waits)
        }
        // The lock belongs to the open file or to the process, not to the thread.
        libc::SYS_fcntl => {
            let command = second as i32;
            when(matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW), Again::Restarted)
        }
        // These calls wait for any child of the process. With `__WNOTHREAD` they would wait only
        // for children of the calling kernel thread.
        libc::SYS_wait4 => when(third as i32 & libc::__WNOTHREAD == 0, Again::Restarted),
        libc::SYS_waitid => when(fourth as i32 & libc::__WNOTHREAD == 0, Again::Restarted),
        _ => again_with_any_arguments(number),
    }
}

/// The part of the list where a call's arguments do not matter.
#[cfg(target_arch = "x86_64")]
fn again_with_any_arguments(number: i64) -> Option<Again> {
    match number {
        // Their manual pages say of `EINTR`: "before any data was read", "written", "available",
        // "transmitted", "before a valid connection arrived". Once data has been moved, the call
        // returns its length instead. The kernel restarts these calls, except on a socket with a
        // timeout.
        libc::SYS_read | libc::SYS_readv | libc::SYS_recvfrom | libc::SYS_recvmsg => {
            Some(Again::Ended)
        }
        libc::SYS_write | libc::SYS_writev | libc::SYS_sendto | libc::SYS_sendmsg => {
            Some(Again::Ended)
        }
        libc::SYS_accept | libc::SYS_accept4 => Some(Again::Ended),
        // Each of these calls is done as a whole or not at all. A message was taken or put, or it
        // was not; all operations on the semaphores were done, or none; completions were returned,
        // or there was none. The kernel restarts none of these calls.
        libc::SYS_msgrcv | libc::SYS_msgsnd | libc::SYS_semop | libc::SYS_semtimedop => {
            Some(Again::Ended)
        }
        libc::SYS_io_getevents => Some(Again::Ended),
        // These calls wait until a descriptor is ready, and consume nothing. The kernel restarts
        // none of them. `pselect6`, `ppoll` and `select` store the time that is left in place of
        // the timeout.
        libc::SYS_poll | libc::SYS_ppoll | libc::SYS_select | libc::SYS_pselect6 => {
            Some(Again::Waits)
        }
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => Some(Again::Waits),
        // The kernel stores the time that is left, if the caller asked for it (see
        // [`Interrupted::for_what_is_left`]). An absolute time needs no change.
        libc::SYS_nanosleep | libc::SYS_clock_nanosleep => Some(Again::Waits),
        libc::SYS_futex_waitv => Some(Again::Waits),
        // The kernel restarts these calls if nothing was done. After `EINTR`, a file may have been
        // created or a connection may have begun; for files, only the file system can tell whether
        // nothing was done.
        libc::SYS_open | libc::SYS_openat | libc::SYS_openat2 | libc::SYS_connect => {
            Some(Again::Restarted)
        }
        libc::SYS_pread64 | libc::SYS_preadv | libc::SYS_preadv2 => Some(Again::Restarted),
        libc::SYS_pwrite64 | libc::SYS_pwritev | libc::SYS_pwritev2 => Some(Again::Restarted),
        libc::SYS_recvmmsg | libc::SYS_sendmmsg => Some(Again::Restarted),
        libc::SYS_sendfile | libc::SYS_splice | libc::SYS_tee | libc::SYS_vmsplice => {
            Some(Again::Restarted)
        }
        libc::SYS_copy_file_range | libc::SYS_getrandom => Some(Again::Restarted),
        libc::SYS_mq_timedsend | libc::SYS_mq_timedreceive => Some(Again::Restarted),
        // The lock belongs to the open file, not to the thread.
        libc::SYS_flock => Some(Again::Restarted),
        _ => None,
    }
}

#[cfg(target_arch = "x86_64")]
impl Interrupted {
    /// Finds the call in the frame of a handler, by the rules at the head of this file. `seen` is
    /// the call in which the thread was seen blocked.
    pub fn find(frame: &SignalFrame<'_>, seen: Option<BlockedCall>) -> Option<Interrupted> {
        let (is_next, told) = (is_call_next(frame), number_before(frame));
        let pc = frame.pc();
        let get = |register| frame.register(register);
        use libc::{REG_R8, REG_R9, REG_R10, REG_RDI, REG_RDX, REG_RSI};
        let args = [REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9].map(get);
        let rax = get(libc::REG_RAX);
        if is_next {
            // If another call is next, it was not begun, or was not the one seen. The thread makes
            // it on its host, and block watch detects it there if it blocks.
            let after = pc + CALL_LENGTH;
            let number = seen.filter(|seen| (seen.number, seen.pc) == (rax, after))?.number;
            return again(number, args).map(|_| Interrupted { number, after, args });
        }
        if rax != -i64::from(libc::EINTR) {
            return None;
        }
        let of = fingerprint(get(libc::REG_RSP) as u64, args.map(|arg| arg as u64));
        let same = || seen.filter(|seen| (seen.pc, seen.of) == (pc, of)).map(|seen| seen.number);
        let number = told.or_else(same)?;
        let call = Interrupted { number, after: pc, args };
        let may = match again(number, args)? {
            Again::Restarted => false,
            Again::Ended => told.is_some(),
            Again::Waits => !call.waits_with_a_mask(),
        };
        may.then(|| call.for_what_is_left())
    }

    /// Returns whether the call changes the signal mask while it waits. If such a call has ended,
    /// the reason may be a signal of the application, whose handler has already run. Then the call
    /// must return `EINTR`, because otherwise the program would wait for something that has
    /// happened. For a call without a mask, the result is the same as if that signal had arrived
    /// just before the call.
    fn waits_with_a_mask(&self) -> bool {
        let [_, _, _, fourth, fifth, sixth] = self.args;
        match self.number {
            libc::SYS_ppoll => fourth != 0,
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => fifth != 0,
            libc::SYS_pselect6 => sixth != 0,
            _ => false,
        }
    }

    /// Returns the call to make in place of one that has ended with `EINTR`. If the call is a sleep
    /// for a span, and the program passed a place for the time that is left, the kernel has stored
    /// it there, and the new call sleeps for that time.
    fn for_what_is_left(mut self) -> Interrupted {
        let [_, second, _, fourth, ..] = self.args;
        match self.number {
            libc::SYS_nanosleep if second != 0 => self.args[0] = second,
            libc::SYS_clock_nanosleep
                if fourth != 0 && second as i32 & libc::TIMER_ABSTIME == 0 =>
            {
                self.args[2] = fourth;
            }
            _ => {}
        }
        self
    }

    /// Makes the call as the C library does, and returns the kernel's result.
    pub fn make(&self) -> i64 {
        let [a, b, c, d, e, f] = self.args;
        let result: i64;
        // SAFETY: Plain Call: the call that the program itself was making, with its arguments.
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

    /// Changes the frame of the handler so that the program sees the call return this result.
    pub fn is_over(&self, frame: &mut SignalFrame<'_>, result: i64) {
        frame.finish_call(self.after, result);
    }
}

/// The length of a `syscall` instruction.
#[cfg(target_arch = "x86_64")]
pub(super) const CALL_LENGTH: u64 = 2;

/// Returns whether the next instruction of the interrupted thread is a `syscall`. The instruction
/// may cross the boundary of two pages.
#[cfg(target_arch = "x86_64")]
pub(super) fn is_call_next(frame: &SignalFrame<'_>) -> bool {
    let byte = |n: u64| {
        let at = frame.pc();
        // SAFETY: Loaded: the thread continues at this address, so an instruction is there. The
        // second byte is read only after the first one was 0x0f: no instruction of one byte begins
        // with that.
        unsafe { ((at + n) as *const u8).read() }
    };
    byte(0) == 0x0f && byte(1) == 0x05
}

/// Returns the number of the call that the interrupted thread made just before its next
/// instruction, if the code is `mov eax, number; syscall`.
#[cfg(target_arch = "x86_64")]
fn number_before(frame: &SignalFrame<'_>) -> Option<i64> {
    let rip = frame.pc();
    /// The length of the two instructions and of the byte before them.
    const LENGTH: u64 = 8;
    // The bytes are read only if they are on the same page as the next instruction, because that
    // page is mapped.
    if rip % 4096 < LENGTH {
        return None;
    }
    // SAFETY: Loaded: bytes of the program's code, on a page that is mapped, by the check above.
    let bytes = unsafe { ((rip - LENGTH) as *const [u8; 8]).read_unaligned() };
    let [before, mov, a, b, c, d, rest @ ..] = bytes;
    // With such a prefix byte, `mov` loads another register (`mov r8d`).
    let is_prefixed = (0x40..0x50).contains(&before);
    let number = || i32::from_le_bytes([a, b, c, d]).into();
    (mov == 0xb8 && rest == [0x0f, 0x05] && !is_prefixed).then(number)
}

/// On other processors no thread is hosted.
#[cfg(not(target_arch = "x86_64"))]
impl Interrupted {
    pub fn find(_: &SignalFrame<'_>, _: Option<BlockedCall>) -> Option<Interrupted> {
        None
    }

    pub fn make(&self) -> i64 {
        0
    }

    pub fn is_over(&self, _: &mut SignalFrame<'_>, _: i64) {}
}

#[cfg(all(test, target_arch = "x86_64"))]
#[path = "interrupted_tests.rs"]
mod tests;
