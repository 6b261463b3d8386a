//! The switch on aarch64: what is saved, and the few instructions that run on no stack.
//!
//! ```text
//!   at the saved stack pointer, upward: x19, x29, next instruction, nothing
//!   (as corosensei leaves a fiber)
//!   in the context: stack pointer (0 while it runs), thread pointer (`fs`), FPCR (`mxcsr`)
//! ```
//!
//! The thread pointer is TPIDR_EL0, which user code may write on every processor. The switch
//! clobbers the other registers, as on x86-64.
//!
//! *Order.* On this processor stores become visible in any order, so each exchange by which another
//! thread learns that a context is saved releases, and each by which a thread gets a context
//! acquires. These are pairs of exclusive accesses, which all of these processors have.
//!
//! This file was run under an emulator only. That shows that its instructions are right one by one,
//! and shows nothing about memory order or cost.
//!
//! Unsafe code: instructions that Rust has no other words for.
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

/// # Safety
/// Nothing uses a thread-local until the pointer is put back, or the stack changes too.
#[inline(always)]
pub(crate) unsafe fn set_thread_pointer(base: usize) {
    // SAFETY: Contract.
    unsafe { asm!("msr tpidr_el0, {}", in(reg) base, options(nostack, preserves_flags)) };
}

/// Returns the number of the calling kernel thread, without touching errno.
pub(crate) fn kernel_thread() -> i32 {
    let number: i64;
    // SAFETY: Plain Call: asks for a number.
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

/// Switches from the context in `x0` to the one in `x1`. The registers that the new context
/// saved on its stack are loaded by the caller.
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

/// The code at `2:` begins with a `bti j`, so that it may be jumped to in programs whose branches
/// must land on one; in others it is a hint without effect.
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

/// Saves the running context and resumes another here.
///
/// # Safety
/// *One Place*: `from` is the running context, `to` a saved one that only the caller resumes. Its
/// host outlives its stay.
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

/// Sends the post: sets the event in `x0`, or at `6:` pushes onto the list, and goes to `30:`. The
/// post is read before it is sent. The push is visible before the look at the flag.
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

/// Sleeps on the word that `x21` points to: 1 -> 0 ends the sleep, 0 -> 2 says that a wake is
/// needed.
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

/// Sends the post, and sleeps: debuggers show a context's own kernel thread under this name.
/// Reached by a jump, with the context in `x0` and the post in `x1`, which may be freed as soon as
/// it is sent. Uses no stack; below `sp` only the gap is its own.
#[unsafe(naked)]
unsafe extern "C" fn parked() {
    naked_asm!(
        ".cfi_startproc",
        // The outermost frame: the caller is saved elsewhere.
        ".cfi_undefined x30",
        "mov x20, x0",
        "add x21, x0, {GO}",
        "ldr x0, [x1, {EVENT}]",
        "cbz x0, 6f",
        send_post!(),
        sleep_until_released!(),
        // The context has come back to its own kernel thread, whose thread pointer is still right.
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
