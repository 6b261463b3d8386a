//! The switch on x86-64: what is saved, and the few instructions that run on no stack.
//!
//! ```text
//!   at the saved stack pointer, upward: next instruction, rbx, rbp (as corosensei leaves a fiber)
//!   in the context: stack pointer (0 while it runs), FS base, mxcsr, x87 control word
//! ```
//!
//! The switch clobbers the other registers, so the compiler keeps what it needs on the stack.
//! Control words belong to the thread; they are nearly always equal, and loading one costs more
//! than comparing it.
//!
//! The switch is inlined, so that each place has its own jump and the processor learns where it
//! goes. A profiler's sample taken inside these instructions unwinds wrongly by up to three words;
//! a backtrace of a saved context is right.
//!
//! Unsafe code: instructions that Rust has no other words for.
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
    // SAFETY: Plain Call: every x86-64 C library keeps that address in its first word.
    unsafe {
        asm!("mov {}, fs:[0]", out(reg) base, options(pure, readonly, nostack, preserves_flags))
    };
    base
}

/// # Safety
/// Nothing uses a thread-local until the base is put back, or the stack changes too.
#[inline(always)]
pub(crate) unsafe fn set_thread_pointer(base: usize) {
    // SAFETY: Contract.
    unsafe { asm!("wrfsbase {}", in(reg) base, options(nostack, preserves_flags)) };
}

/// Returns the number of the calling kernel thread, without touching errno.
pub(crate) fn kernel_thread() -> i32 {
    let mut number = libc::SYS_gettid;
    // SAFETY: Plain Call: asks for a number.
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

/// Changes from the context in `rdi` to the one in `rsi`, except for what is on its stack. Its word
/// becomes 0 last, so code that inspects a host stopped between these instructions can tell that
/// stack and base do not belong together.
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

/// Saves the running context and resumes another here.
///
/// # Safety
/// *One Place*: `from` is the running context, `to` a saved one that only the caller resumes. Its
/// host outlives its stay.
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

/// Does as [`switch`], and then makes the own kernel thread of `from` resume it: done on the stack
/// of `to`, when `from` is saved (*One Place*). `from` may be freed once its word has been
/// exchanged; waking an address on which no thread sleeps does nothing.
///
/// # Safety
/// As [`switch`]; the own kernel thread of `from` sleeps, or is about to.
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

/// Saves the running context, sends the post, and sleeps on the gap until it is released; meanwhile
/// a host may resume the context. Returns on that host, or here after it was released.
///
/// # Safety
/// *One Place*: `context` is the running one, coupled. All signals except one are blocked.
#[inline(always)]
pub(crate) unsafe fn park(context: *const Context, post: *const Post<'_>) {
    // SAFETY: Contract. One Place: the post is sent by `parked`.
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

/// Sends the post in `rsi`, and continues at label 8.
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

/// Sleeps until the context in `rbx` is released, and continues at label 9. Begins at label 8. Its
/// word: 1 -> 0 ends the sleep, 0 -> 2 says that a wake is needed.
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

/// Sends the post, and sleeps: debuggers show a context's own kernel thread under this name.
/// Reached by a jump, with the context in `rdi` and the post in `rsi`, which may be freed as soon
/// as it is sent. Uses no stack; below `rsp` only the gap is its own.
#[unsafe(naked)]
unsafe extern "C" fn parked() {
    naked_asm!(
        ".cfi_startproc",
        // The outermost frame: the caller is saved elsewhere.
        ".cfi_undefined rip",
        "mov rbx, rdi",
        send!(),
        "8:",
        sleep!(),
        // Released. The FS base of this kernel thread has always been the context's.
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

/// Calls `f(arg)` on the same stack beyond a gap of that many bytes, whose top is stored in the
/// context.
///
/// # Safety
/// The stack has that much room, and what `f` needs.
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
