//! The switch between contexts on x86-64, and the loop in which a context's own kernel thread
//! sleeps, which uses no stack.
//!
//! Where the registers of a saved context are:
//!
//! ```text
//!   at the saved stack pointer, upward: next instruction, rbx, rbp (as with fibers)
//!   in the context: stack pointer (0 while it runs), FS base, mxcsr, x87 control word
//! ```
//!
//! The switch declares all other registers clobbered, so the compiler saves those that it needs on
//! the stack. Control words are a part of the context. They are compared before they are loaded,
//! because they are nearly always equal, and loading one costs more than comparing it.
//!
//! The switch is inlined, so that each call has its own jump, whose target the processor's branch
//! predictor learns. If a profiler takes a sample inside these instructions, its backtrace is wrong
//! by up to three words. A backtrace of a saved context is right.
//!
//! This file has unsafe code, because the switch can be written in assembly only.
#![allow(unsafe_code)]

use std::arch::{asm, naked_asm};
use std::mem::offset_of;

use crate::post::Post;
use crate::record::Context;

const SP: usize = offset_of!(Context, sp);
const FS: usize = offset_of!(Context, fs);
const MXCSR: usize = offset_of!(Context, mxcsr);
const X87: usize = offset_of!(Context, x87);
const GO: usize = offset_of!(Context, go);
const GAP: usize = offset_of!(Context, gap);

/// Returns the FS base: the address of the thread control block.
#[inline]
pub(crate) fn thread_pointer() -> usize {
    let base: usize;
    // SAFETY: Plain Call: on x86-64 the first word of every thread control block is its address.
    unsafe {
        asm!("mov {}, fs:[0]", out(reg) base, options(pure, readonly, nostack, preserves_flags))
    };
    base
}

/// Sets the FS base.
///
/// # Safety
/// No code uses a thread-local until the base is set back, or until the stack changes, too.
#[inline(always)]
pub(crate) unsafe fn set_thread_pointer(base: usize) {
    // SAFETY: Contract.
    unsafe { asm!("wrfsbase {}", in(reg) base, options(nostack, preserves_flags)) };
}

/// Returns the id of the calling kernel thread, without changing errno.
pub(crate) fn kernel_thread() -> i32 {
    let mut number = libc::SYS_gettid;
    // SAFETY: Plain Call: returns a number.
    unsafe {
        asm!("syscall", inlateout("rax") number, out("rcx") _, out("r11") _, options(nostack));
    }
    number as i32
}

macro_rules! save {
    () => {
        "push rbp
         push rbx
         lea rax, [rip + 2f]
         push rax
         stmxcsr [rdi + {MXCSR}]
         fnstcw [rdi + {X87}]
         mov [rdi + {SP}], rsp"
    };
}

/// Switches from the context in `rdi` to the one in `rsi`, except for the registers that the latter
/// has saved on its stack. The word of the latter (its saved stack pointer) becomes 0 only after
/// stack pointer and FS base have changed. If a signal stops the host between these instructions,
/// the handler sees by the word that they do not belong together yet.
macro_rules! change {
    () => {
        "mov rsp, [rsi + {SP}]
         mov rax, [rsi + {FS}]
         wrfsbase rax
         mov qword ptr [rsi + {SP}], 0
         mov eax, [rdi + {MXCSR}]
         cmp eax, [rsi + {MXCSR}]
         jne 3f
         movzx eax, word ptr [rdi + {X87}]
         cmp ax, [rsi + {X87}]
         je 4f
         3:
         ldmxcsr [rsi + {MXCSR}]
         fldcw [rsi + {X87}]
         4:"
    };
}

macro_rules! resume {
    () => {
        "pop rcx
         pop rbx
         pop rbp
         jmp rcx
         2:"
    };
}

/// Saves the running context and resumes another on the calling kernel thread.
///
/// # Safety
/// *One Place*: `from` is the running context, and `to` a saved one that only the caller resumes.
/// The calling kernel thread lives as long as `to` stays on it.
#[inline(always)]
pub(crate) unsafe fn switch(from: *const Context, to: *const Context) {
    // SAFETY: Contract. Frozen Stack: stack pointer and FS base change together.
    unsafe {
        asm!(
            save!(), change!(), resume!(),
            SP = const SP, FS = const FS, MXCSR = const MXCSR, X87 = const X87,
            inlateout("rdi") from => _, inlateout("rsi") to => _,
            lateout("r12") _, lateout("r13") _, lateout("r14") _, lateout("r15") _,
            clobber_abi("sysv64"),
        );
    }
}

/// Switches as [`switch`] does, and then makes the own kernel thread of `from` resume it. That
/// happens on the stack of `to`, when `from` is saved (*One Place*). Once the word `go` of `from`
/// has been exchanged, `from` may be freed. The wake-up that follows is harmless then, because
/// waking an address on which no thread sleeps does nothing.
///
/// # Safety
/// As [`switch`]. The own kernel thread of `from` sleeps, or is about to.
#[inline(always)]
pub(crate) unsafe fn switch_and_release(from: *const Context, to: *const Context) {
    // SAFETY: Contract. Frozen Stack: as in `switch`.
    unsafe {
        asm!(
            save!(), change!(),
            "mov eax, 1",
            "xchg [rdi + {GO}], eax",
            "cmp eax, 2",
            "jne 5f",
            "mov eax, {FUTEX}",
            "lea rdi, [rdi + {GO}]",
            "mov esi, {WAKE}",
            "mov edx, 1",
            "syscall",
            "5:",
            resume!(),
            SP = const SP, FS = const FS, MXCSR = const MXCSR, X87 = const X87, GO = const GO,
            FUTEX = const libc::SYS_futex,
            WAKE = const libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            inlateout("rdi") from => _, inlateout("rsi") to => _,
            lateout("r12") _, lateout("r13") _, lateout("r14") _, lateout("r15") _,
            clobber_abi("sysv64"),
        );
    }
}

/// Saves the running context and sends the post. The calling kernel thread then sleeps, with its
/// stack pointer at the top of the gap, until the context is released; meanwhile a host may resume
/// the context. The call returns on that host, or here after a release.
///
/// # Safety
/// *One Place*: `context` is the running context, and it is coupled. All signals except
/// [`SETXID`](crate::setxid::SETXID) are blocked.
#[inline(always)]
pub(crate) unsafe fn park(context: *const Context, post: *const Post<'_>) {
    // SAFETY: Contract. One Place: `parked` sends the post, after all registers have been saved.
    unsafe {
        asm!(
            save!(),
            "mov rsp, [rdi + {GAP}]",
            "jmp {parked}",
            "2:",
            SP = const SP, MXCSR = const MXCSR, X87 = const X87, GAP = const GAP,
            parked = sym parked,
            inlateout("rdi") context => _, inlateout("rsi") post => _,
            lateout("r12") _, lateout("r13") _, lateout("r14") _, lateout("r15") _,
            clobber_abi("sysv64"),
        );
    }
}

/// Sends the post whose address is in `rsi`, and continues at label 8.
macro_rules! send {
    () => {
        concat!(
            "mov rdi, [rsi + {EVENT}]; test rdi, rdi; jz 6f\n",
            // An event.
            "mov eax, 1; xchg [rdi], eax\n",
            "cmp eax, 2; jne 8f\n",
            "mov eax, {FUTEX}; mov esi, {WAKE}; mov edx, 1; syscall\n",
            "jmp 8f\n",
            // A list.
            "6:\n",
            "mov r8, [rsi + {HEAD}]\n",
            "mov r9, [rsi + {NODE}]\n",
            "mov r10, [rsi + {LINK}]\n",
            "mov r12, [rsi + {ASLEEP}]\n",
            "mov edi, [rsi + {BELL}]\n",
            "mov rax, [r8]\n",
            "7:\n",
            "mov [r10], rax\n",
            "lock cmpxchg [r8], r9; jne 7b\n",
            "cmp byte ptr [r12], 0; je 8f\n",
            "xor eax, eax; xchg [r12], al; test al, al; je 8f\n",
            "mov eax, {WRITE}; lea rsi, [rip + {ONE}]; mov edx, 8; syscall\n",
        )
    };
}

/// Sleeps until the context in `rbx` is released, and continues at label 9. Begins at label 8. The
/// word is `go`: changing it from 1 (released) to 0 ends the sleep, and from 0 to 2 says that the
/// releasing thread must wake this one.
macro_rules! sleep {
    () => {
        concat!(
            "mov eax, 1; xor ecx, ecx; lock cmpxchg [rbx + {GO}], ecx; je 9f\n",
            "xor eax, eax; mov ecx, 2; lock cmpxchg [rbx + {GO}], ecx\n",
            "cmp eax, 1; je 8b\n",
            "mov eax, {FUTEX}; lea rdi, [rbx + {GO}]\n",
            "mov esi, {WAIT}; mov edx, 2; xor r10d, r10d; syscall\n",
            "jmp 8b\n",
        )
    };
}

/// The number that is written to an eventfd.
static ONE: u64 = 1;

/// Sends the post, and sleeps until the context is released. Debuggers show a context's own kernel
/// thread under this name. [`park`] jumps here, with the context in `rdi` and the post in `rsi`;
/// the post may be freed as soon as it is sent. Uses no stack, because `rsp` points to the gap, and
/// the frames below the gap belong to the context.
#[unsafe(naked)]
unsafe extern "C" fn parked() {
    naked_asm!(
        ".cfi_startproc",
        // This is the outermost frame for debuggers, because the context is saved elsewhere.
        ".cfi_undefined rip",
        "mov rbx, rdi",
        send!(),
        "8:",
        sleep!(),
        // Released. The FS base needs no change: that of this kernel thread is the context's.
        "9:",
        "mov rsp, [rbx + {SP}]",
        "mov qword ptr [rbx + {SP}], 0",
        "ldmxcsr [rbx + {MXCSR}]",
        "fldcw [rbx + {X87}]",
        "pop rcx; pop rbx; pop rbp",
        "jmp rcx",
        ".cfi_endproc",
        SP = const SP, MXCSR = const MXCSR, X87 = const X87, GO = const GO,
        EVENT = const offset_of!(Post<'static>, event),
        HEAD = const offset_of!(Post<'static>, head),
        NODE = const offset_of!(Post<'static>, node),
        LINK = const offset_of!(Post<'static>, link),
        ASLEEP = const offset_of!(Post<'static>, asleep),
        BELL = const offset_of!(Post<'static>, bell),
        FUTEX = const libc::SYS_futex,
        WRITE = const libc::SYS_write,
        WAKE = const libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
        WAIT = const libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
        ONE = sym ONE,
    )
}

/// Calls `f(arg)` on the same stack, with its frame below a gap of `gap` bytes. Stores the top of
/// the gap in the context.
///
/// # Safety
/// The stack has room for the gap and for the frames of `f`.
#[unsafe(naked)]
pub(crate) unsafe extern "C-unwind" fn across_gap(
    context: *const Context,
    gap: usize,
    f: unsafe extern "C-unwind" fn(*mut ()),
    arg: *mut (),
) {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov [rdi + {GAP}], rsp",
        "sub rsp, rsi",
        "and rsp, -16",
        "mov rdi, rcx",
        "call rdx",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
        GAP = const GAP,
    )
}
