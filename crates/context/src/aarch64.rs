//! The switch between contexts on aarch64, and the loop in which a context's own kernel thread
//! sleeps, which uses no stack.
//!
//! Where the registers of a saved context are:
//!
//! ```text
//!   at the saved stack pointer, upward: x19, x29, next instruction, an unused word
//!   (as corosensei leaves a fiber)
//!   in the context: stack pointer (0 while it runs), thread pointer (`fs`), FPCR (`mxcsr`)
//! ```
//!
//! The thread pointer is TPIDR_EL0, which user code may write on every processor. The switch
//! declares all other registers clobbered, as on x86-64.
//!
//! *Order.* On this processor stores may become visible to other processors in any order. So each
//! exchange that tells another thread that a context is saved has release semantics, and each
//! exchange by which a thread gets a context has acquire semantics. They are written as pairs of
//! exclusive loads and stores, which every aarch64 processor has.
//!
//! This file has been run under an emulator only. The emulator shows that each instruction is
//! right. It shows nothing about memory order or cost.
//!
//! This file has unsafe code, because the switch can be written in assembly only.
#![allow(unsafe_code)]

use std::arch::{asm, naked_asm};
use std::mem::offset_of;

use crate::post::Post;
use crate::record::Context;

const SP: usize = offset_of!(Context, sp);
const TP: usize = offset_of!(Context, fs);
const FPCR: usize = offset_of!(Context, mxcsr);
const GO: usize = offset_of!(Context, go);
const GAP: usize = offset_of!(Context, gap);

/// Returns the thread pointer: the address of the thread control block.
#[inline]
pub(crate) fn thread_pointer() -> usize {
    let base: usize;
    // SAFETY: Plain Call: reads a register.
    unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) base, options(pure, nomem, nostack, preserves_flags))
    };
    base
}

/// Sets the thread pointer.
///
/// # Safety
/// No code uses a thread-local until the pointer is set back, or until the stack changes, too.
#[inline(always)]
pub(crate) unsafe fn set_thread_pointer(base: usize) {
    // SAFETY: Contract.
    unsafe { asm!("msr tpidr_el0, {}", in(reg) base, options(nostack, preserves_flags)) };
}

/// Returns the id of the calling kernel thread, without changing errno.
pub(crate) fn kernel_thread() -> i32 {
    let number: i64;
    // SAFETY: Plain Call: returns a number.
    unsafe {
        asm!("svc 0", in("x8") libc::SYS_gettid, lateout("x0") number, options(nostack));
    }
    number as i32
}

macro_rules! save {
    () => {
        "sub sp, sp, 32
         stp x19, x29, [sp]
         adr x9, 2f
         str x9, [sp, 16]
         mrs x9, fpcr
         str w9, [x0, {FPCR}]
         mov x9, sp
         add x10, x0, {SP}
         stlr x9, [x10]"
    };
}

/// Switches from the context in `x0` to the one in `x1`, except for the registers that the latter
/// has saved on its stack, which `resume!` loads.
macro_rules! change {
    () => {
        "ldr x9, [x1, {SP}]
         mov sp, x9
         str xzr, [x1, {SP}]
         ldr x9, [x1, {TP}]
         msr tpidr_el0, x9
         ldr w9, [x0, {FPCR}]
         ldr w10, [x1, {FPCR}]
         cmp w9, w10
         b.eq 4f
         msr fpcr, x10
         4:"
    };
}

/// Loads the registers that the context has saved on its stack, and jumps to its next instruction.
/// That instruction, at `2:`, is `bti j` (`hint 36`): in programs with branch target identification
/// an indirect jump must land on such an instruction. In others it has no effect.
macro_rules! resume {
    () => {
        "ldr x9, [sp, 16]
         ldp x19, x29, [sp]
         add sp, sp, 32
         br x9
         2:
         hint 36"
    };
}

/// Saves the running context and resumes another on the calling kernel thread.
///
/// # Safety
/// *One Place*: `from` is the running context, and `to` a saved one that only the caller resumes.
/// The calling kernel thread lives as long as `to` stays on it.
#[inline(always)]
pub(crate) unsafe fn switch(from: *const Context, to: *const Context) {
    // SAFETY: Contract. Frozen Stack: stack pointer and thread pointer change together.
    unsafe {
        asm!(
            save!(), change!(), resume!(),
            SP = const SP, TP = const TP, FPCR = const FPCR,
            inlateout("x0") from => _, inlateout("x1") to => _,
            lateout("x20") _, lateout("x21") _, lateout("x22") _, lateout("x23") _,
            lateout("x24") _, lateout("x25") _, lateout("x26") _, lateout("x27") _,
            lateout("x28") _,
            clobber_abi("C"),
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
            "mov w9, 1",
            "add x0, x0, {GO}",
            "5:",
            "ldaxr w10, [x0]",
            "stlxr w11, w9, [x0]",
            "cbnz w11, 5b",
            "cmp w10, 2",
            "b.ne 6f",
            "mov x1, {WAKE}",
            "mov x2, 1",
            "mov x8, {FUTEX}",
            "svc 0",
            "6:",
            resume!(),
            SP = const SP, TP = const TP, FPCR = const FPCR, GO = const GO,
            FUTEX = const libc::SYS_futex,
            WAKE = const libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            inlateout("x0") from => _, inlateout("x1") to => _,
            lateout("x20") _, lateout("x21") _, lateout("x22") _, lateout("x23") _,
            lateout("x24") _, lateout("x25") _, lateout("x26") _, lateout("x27") _,
            lateout("x28") _,
            clobber_abi("C"),
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
            "ldr x9, [x0, {GAP}]",
            "mov sp, x9",
            "b {parked}",
            "2:",
            "hint 36",
            SP = const SP, FPCR = const FPCR, GAP = const GAP,
            parked = sym parked,
            inlateout("x0") context => _, inlateout("x1") post => _,
            lateout("x20") _, lateout("x21") _, lateout("x22") _, lateout("x23") _,
            lateout("x24") _, lateout("x25") _, lateout("x26") _, lateout("x27") _,
            lateout("x28") _,
            clobber_abi("C"),
        );
    }
}

/// The number that is written to an eventfd.
static ONE: u64 = 1;

/// Sends the post in `x1`: sets the event in `x0`, or at `6:` pushes onto the list. Continues at
/// `30:`. All fields of the post are read before it is sent, because it may be freed after that.
/// The barrier makes the push visible before the flag is read.
macro_rules! send_post {
    () => {
        "// An event.
         mov w9, 1
         5:
         ldaxr w10, [x0]
         stlxr w11, w9, [x0]
         cbnz w11, 5b
         cmp w10, 2
         b.ne 30f
         mov x1, {WAKE}; mov x2, 1; mov x8, {FUTEX}; svc 0
         b 30f
         // A list.
         6:
         ldr x9, [x1, {HEAD}]
         ldr x10, [x1, {NODE}]
         ldr x11, [x1, {LINK}]
         ldr x12, [x1, {ASLEEP}]
         ldrsw x13, [x1, {BELL}]
         ldr x14, [x9]
         7:
         str x14, [x11]
         8:
         ldaxr x15, [x9]
         cmp x15, x14
         b.ne 9f
         stlxr w16, x10, [x9]
         cbnz w16, 8b
         b 20f
         9:
         clrex
         mov x14, x15
         b 7b
         // The push is visible before the look at the flag.
         20:
         dmb ish
         ldrb w14, [x12]
         cbz w14, 30f
         21:
         ldaxrb w14, [x12]
         stlxrb w15, wzr, [x12]
         cbnz w15, 21b
         cbz w14, 30f
         mov x0, x13
         adrp x1, {ONE}
         add x1, x1, :lo12:{ONE}
         mov x2, 8; mov x8, {WRITE}; svc 0"
    };
}

/// Sleeps on the word `go`, to which `x21` points: changing it from 1 (released) to 0 ends the
/// sleep, and from 0 to 2 says that the releasing thread must wake this one.
macro_rules! sleep_until_released {
    () => {
        "// Sleeps: 1 -> 0 ends it, 0 -> 2 says that a wake is needed.
         30:
         ldaxr w9, [x21]
         cmp w9, 1
         b.eq 32f
         cbnz w9, 31f
         mov w11, 2
         stlxr w10, w11, [x21]
         cbnz w10, 30b
         31:
         clrex
         mov x0, x21; mov x1, {WAIT}; mov x2, 2; mov x3, xzr; mov x8, {FUTEX}; svc 0
         b 30b
         32:
         stlxr w10, wzr, [x21]
         cbnz w10, 30b"
    };
}

/// Sends the post, and sleeps until the context is released. Debuggers show a context's own kernel
/// thread under this name. [`park`] jumps here, with the context in `x0` and the post in `x1`;
/// the post may be freed as soon as it is sent. Uses no stack, because `sp` points to the gap, and
/// the frames below the gap belong to the context.
#[unsafe(naked)]
unsafe extern "C" fn parked() {
    naked_asm!(
        ".cfi_startproc",
        // This is the outermost frame for debuggers, because the context is saved elsewhere.
        ".cfi_undefined x30",
        "mov x20, x0",
        "add x21, x0, {GO}",
        "ldr x0, [x1, {EVENT}]",
        "cbz x0, 6f",
        send_post!(),
        sleep_until_released!(),
        // Released. The thread pointer of this kernel thread is the context's, and has not changed.
        "ldr x9, [x20, {SP}]",
        "mov sp, x9",
        "str xzr, [x20, {SP}]",
        "ldr w9, [x20, {FPCR}]",
        "msr fpcr, x9",
        "ldr x9, [sp, 16]",
        "ldp x19, x29, [sp]",
        "add sp, sp, 32",
        "br x9",
        ".cfi_endproc",
        SP = const SP, FPCR = const FPCR, GO = const GO,
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
        "stp x29, x30, [sp, -16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset x29, -16",
        ".cfi_offset x30, -8",
        "mov x29, sp",
        ".cfi_def_cfa_register x29",
        "mov x9, sp",
        "str x9, [x0, {GAP}]",
        "sub x9, x9, x1",
        "and sp, x9, -16",
        "mov x0, x3",
        "blr x2",
        "mov sp, x29",
        ".cfi_def_cfa_register sp",
        "ldp x29, x30, [sp], 16",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "ret",
        ".cfi_endproc",
        GAP = const GAP,
    )
}
