//! Tests of which interrupted call is found in the frame of a signal's handler. The tests make the
//! frames, and the code that the frames point to is never run.
//!
//! Named invariant **Plain Call**: see ARCHITECTURE.md.

#![allow(unsafe_code)]

use super::*;

/// Code that ends with a `syscall`; no instruction near it loads the call's number.
const SHARED: [u8; 16] = [
    0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x4c, 0x89, 0xc8, 0x48, 0x89, 0xc8, 0x90, 0x90, 0x0f, 0x05,
];

/// Returns code that ends with `mov register, number; syscall`. `prefix` is the byte before the
/// `mov`, which may select another register.
fn pair(prefix: u8, number: i64) -> [u8; 16] {
    let [a, b, c, d] = (number as i32).to_le_bytes();
    let mut code = [0x90; 16];
    code[8..].copy_from_slice(&[prefix, 0xb8, a, b, c, d, 0x0f, 0x05]);
    code
}

/// Code, and the bytes after it, on one page.
#[repr(C, align(64))]
struct Code {
    call: [u8; 16],
    after: [u8; 48],
}

struct Case {
    code: Code,
    args: [i64; 6],
    sp: u64,
}

impl Case {
    fn of(code: [u8; 16], args: [i64; 6]) -> Box<Case> {
        Box::new(Case { code: Code { call: code, after: [0x90; 48] }, args, sp: 0x7000 })
    }

    fn pc(&self) -> u64 {
        let end = self.code.call.as_ptr_range().end;
        assert_eq!(end, self.code.after.as_ptr());
        end.expose_provenance() as u64
    }

    /// Returns what is recorded of a thread that is seen blocked in this call, at this case's
    /// address.
    fn seen_in(&self, number: i64) -> Option<BlockedCall> {
        let args = self.args.map(|arg| arg as u64);
        Waits { call: Some(number), args, pc: self.pc(), sp: self.sp }.seen()
    }

    fn find(&self, pc: u64, rax: i64, seen: Option<BlockedCall>) -> Option<Interrupted> {
        // SAFETY: Plain Call: all zeros are a valid value of this structure.
        let mut frame: libc::ucontext_t = unsafe { std::mem::zeroed() };
        let registers = &mut frame.uc_mcontext.gregs;
        use libc::{REG_R8, REG_R9, REG_R10, REG_RDI, REG_RDX, REG_RSI};
        let places = [REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9];
        for (at, arg) in places.into_iter().zip(self.args) {
            registers[at as usize] = arg;
        }
        registers[libc::REG_RSP as usize] = self.sp as i64;
        registers[libc::REG_RIP as usize] = pc as i64;
        registers[libc::REG_RAX as usize] = rax;
        Interrupted::find(&frame_of(&mut frame, &mut info()), seen)
    }

    /// Returns what is found if the call has returned `EINTR`.
    fn ended(&self, seen: Option<BlockedCall>) -> Option<Interrupted> {
        self.find(self.pc(), -i64::from(libc::EINTR), seen)
    }

    /// Returns what is found if the kernel is about to make the call again.
    fn is_next(&self, number: i64) -> Option<Interrupted> {
        self.find(self.pc() - CALL_LENGTH, number, self.seen_in(number))
    }
}

fn info() -> libc::siginfo_t {
    // SAFETY: Plain Data: all zeros are a valid value of this structure.
    unsafe { std::mem::zeroed() }
}

/// Returns the frame of a handler that interrupted a thread at an instruction made by the test.
fn frame_of<'a>(
    context: &'a mut libc::ucontext_t,
    info: &'a mut libc::siginfo_t,
) -> SignalFrame<'a> {
    let context = std::ptr::from_mut(context).cast();
    // SAFETY: Contract: the frame's address is that of an instruction, which the test has made.
    unsafe { SignalFrame::of(libc::SIGTRAP, info, context) }
}

/// Returns what is found if a call has returned `EINTR`, and the code gives the same number as the
/// call in which the thread was seen.
fn ended(number: i64, args: [i64; 6]) -> Option<Interrupted> {
    let case = Case::of(pair(0x90, number), args);
    case.ended(case.seen_in(number))
}

#[test]
fn a_close_that_a_signal_has_ended_is_never_made_again() {
    let number = libc::SYS_close;
    assert!(ended(number, [3, 0, 0, 0, 0, 0]).is_none());
    let scheduler = Case::of(SHARED, [3, 0, 0, 0, 0, 0]);
    assert!(scheduler.ended(scheduler.seen_in(number)).is_none());
    assert!(scheduler.is_next(number).is_none());
    let waits = Waits { call: Some(number), args: [3, 0, 0, 0, 0, 0], pc: 0, sp: 0 };
    assert!(!can_be_carried(waits), "so it is not even interrupted");
}

#[test]
fn after_eintr_only_calls_are_made_again_that_have_done_nothing_then() {
    use libc::*;
    let moves = [SYS_read, SYS_readv, SYS_recvfrom, SYS_recvmsg, SYS_write, SYS_writev, SYS_sendto];
    let more = [SYS_sendmsg, SYS_accept, SYS_accept4, SYS_msgrcv, SYS_msgsnd, SYS_semop];
    let waits = [SYS_semtimedop, SYS_io_getevents, SYS_poll, SYS_ppoll, SYS_select, SYS_pselect6];
    let rest = [SYS_epoll_wait, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_nanosleep];
    let last = [SYS_clock_nanosleep, SYS_futex, SYS_futex_waitv];
    let all = [&moves[..], &more, &waits, &rest, &last].concat();
    for number in 0..1000 {
        let found = ended(number, [0; 6]).is_some();
        assert_eq!(found, all.contains(&number), "system call {number}");
    }
}

#[test]
fn where_one_instruction_serves_many_calls_only_the_same_wait_is_made_again() {
    let case = Case::of(SHARED, [5, 0x2000, 64, 0, 0, 0]);
    // The arguments do not decide: the interrupted call may have been a `write` instead of the
    // `read`.
    assert!(case.ended(case.seen_in(libc::SYS_read)).is_none());
    let seen = case.seen_in(libc::SYS_epoll_wait);
    assert_eq!(case.ended(seen).map(|call| call.number), Some(libc::SYS_epoll_wait));
    for changed in 0..6 {
        let mut other = Case::of(SHARED, case.args);
        other.args[changed] += 1;
        let seen = seen.map(|seen| BlockedCall { pc: other.pc(), ..seen });
        assert!(other.ended(seen).is_none(), "another argument: {changed}");
    }
    let mut deeper = Case::of(SHARED, case.args);
    deeper.sp -= 8;
    let seen = seen.map(|seen| BlockedCall { pc: deeper.pc(), ..seen });
    assert!(deeper.ended(seen).is_none(), "another frame");
}

#[test]
fn the_code_says_which_call_it_was_whatever_was_seen() {
    let case = Case::of(pair(0x90, libc::SYS_close), [3, 0, 0, 0, 0, 0]);
    assert!(case.ended(case.seen_in(libc::SYS_nanosleep)).is_none());
    let case = Case::of(pair(0x90, libc::SYS_recvfrom), [3, 0x2000, 8, 0, 0, 0]);
    let found = case.ended(case.seen_in(libc::SYS_poll));
    assert_eq!(found.map(|call| call.number), Some(libc::SYS_recvfrom));
    // `mov r8d, 0` does not load the number of a call.
    let case = Case::of(pair(0x41, libc::SYS_read), [3, 0x2000, 8, 0, 0, 0]);
    assert!(case.ended(None).is_none());
}

#[test]
fn what_the_kernel_was_about_to_make_again_is_made_again_if_it_is_on_the_list() {
    let restarted = [libc::SYS_connect, libc::SYS_openat, libc::SYS_flock, libc::SYS_sendfile];
    for number in restarted {
        let case = Case::of(SHARED, [0; 6]);
        assert_eq!(case.is_next(number).map(|call| call.number), Some(number));
        assert!(
            case.ended(case.seen_in(number)).is_none(),
            "after EINTR it may have done something"
        );
    }
    for number in [libc::SYS_ioctl, libc::SYS_exit, libc::SYS_clone, libc::SYS_io_uring_enter] {
        assert!(Case::of(SHARED, [0; 6]).is_next(number).is_none());
    }
    let children = |options: i32| Case::of(SHARED, [-1, 0, options.into(), 0, 0, 0]);
    assert!(children(0).is_next(libc::SYS_wait4).is_some());
    assert!(children(libc::__WNOTHREAD).is_next(libc::SYS_wait4).is_none());
    let lock = |command: i32| Case::of(SHARED, [3, command.into(), 0, 0, 0, 0]);
    assert!(lock(libc::F_SETLKW).is_next(libc::SYS_fcntl).is_some());
    assert!(lock(libc::F_SETLEASE).is_next(libc::SYS_fcntl).is_none());
    let futex = |operation: i32| Case::of(SHARED, [0x3000, operation.into(), 0, 0, 0, 0]);
    assert!(futex(libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG).is_next(libc::SYS_futex).is_some());
    assert!(futex(libc::FUTEX_LOCK_PI).is_next(libc::SYS_futex).is_none());
}

#[test]
fn a_sleep_that_is_made_again_takes_only_the_time_that_is_left() {
    let (span, left) = (0x1000, 0x2000);
    let sleep = ended(libc::SYS_nanosleep, [span, left, 0, 0, 0, 0]).unwrap();
    assert_eq!(sleep.args[0], left);
    let sleep = ended(libc::SYS_nanosleep, [span, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(sleep.args[0], span);
    let until = i64::from(libc::TIMER_ABSTIME);
    let sleep = |flags| ended(libc::SYS_clock_nanosleep, [0, flags, span, left, 0, 0]).unwrap();
    assert_eq!((sleep(0).args[2], sleep(until).args[2]), (left, span));
}

#[test]
fn a_call_that_unblocks_a_signal_only_while_it_waits_is_not_made_again_after_eintr() {
    let fourth = |mask| [0, 0, 0, mask, 0, 0];
    assert!(ended(libc::SYS_poll, fourth(0)).is_some());
    assert!(ended(libc::SYS_ppoll, fourth(0)).is_some());
    assert!(ended(libc::SYS_ppoll, fourth(0x1000)).is_none());
    assert!(ended(libc::SYS_rt_sigsuspend, fourth(0)).is_none());
}

/// Maps two pages. Returns the mapping, and the address of the first page's last byte, which is
/// `last`. If `second`, the second page begins with the last byte of a `syscall`; otherwise it is
/// unmapped.
fn at_the_end(last: u8, second: bool) -> (*mut libc::c_void, u64) {
    const PAGE: usize = 4096;
    // SAFETY: Plain Call: new memory, which no other code uses.
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
fn a_syscall_on_two_pages_is_recognised_and_other_code_at_the_end_of_a_page_is_not_one() {
    for (last, second, is) in [(0x0f, true, true), (0xc3, true, false), (0xc3, false, false)] {
        let (pages, at) = at_the_end(last, second);
        // SAFETY: Plain Data: all zeros are a valid value. The bytes at `at` were made above; if
        // only the last byte of the page is mapped, it is a whole instruction.
        let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
        context.uc_mcontext.gregs[libc::REG_RIP as usize] = at as i64;
        assert_eq!(is_call_next(&frame_of(&mut context, &mut info())), is, "{last:x}");
        // SAFETY: Plain Call: the mapping was made above; unmapping a part that is already unmapped
        // is harmless.
        assert_eq!(unsafe { libc::munmap(pages, 2 * 4096) }, 0);
    }
}
