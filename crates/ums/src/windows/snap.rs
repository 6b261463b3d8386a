//! Leaves a C function without returning from it, by cutting off the stack above the frame of its
//! caller.
//!
//! `ExecuteUmsThread` does not return when it succeeds. [`call`] calls a function and records the
//! stack pointer. [`back`], called anywhere inside that function on the same thread, makes the call
//! return. Unlike `setjmp`, `call` returns once.
//!
//! ```text
//! call: | saved registers | <- *frame          back: stack pointer := *frame, restore, return 1
//!       | frames of C ... | <- gone
//! ```
//!
//! The frames in between vanish and no destructor runs, so nothing in them may need to be dropped.
//! This is why safe Rust has another interface, where the entry point returns what to do next.
//!
//! Named invariant **No Drops**: between `call` and `back` there are only frames of C, and frames
//! of Rust functions that own nothing at the moment of their call.

#![allow(unsafe_code)]

use std::ffi::c_void;

/// The stack pointer that a [`call`] has recorded.
#[repr(C)]
#[derive(Debug)]
pub(super) struct StackPointer(usize);

impl StackPointer {
    pub const fn new() -> StackPointer {
        StackPointer(0)
    }
}

/// The function that [`call`] calls.
pub(super) type Called = unsafe extern "C-unwind" fn(*mut c_void);

/// Calls `f(data)`. Returns 0 if `f` returned, and 1 if [`back`] was called in it.
///
/// # Safety
/// `f` may be called with `data`; `frame` lives until this returns.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(super) unsafe extern "C-unwind" fn call(
    frame: *mut StackPointer,
    f: Called,
    data: *mut c_void,
) -> u32 {
    // rdi: frame, rsi: f, rdx: data.
    core::arch::naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 8", // The stack is aligned at a call.
        "mov [rdi], rsp",
        "mov rdi, rdx",
        "call rsi",
        "xor eax, eax",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
}

/// Makes the [`call`] that has recorded this frame return 1.
///
/// # Safety
/// No Drops; the caller is on the same thread, inside that call.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(super) unsafe extern "C" fn back(frame: *const StackPointer) -> ! {
    // rdi: frame.
    core::arch::naked_asm!(
        "mov rsp, [rdi]",
        "mov eax, 1",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// Calls `f(data)`, as on x86-64.
///
/// # Safety
/// `f` may be called with `data`; `frame` lives until this returns.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub(super) unsafe extern "C-unwind" fn call(
    frame: *mut StackPointer,
    f: Called,
    data: *mut c_void,
) -> u32 {
    // x0: frame, x1: f, x2: data.
    core::arch::naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-160]!",
        ".cfi_def_cfa_offset 160",
        ".cfi_offset x29, -160",
        ".cfi_offset x30, -152",
        "stp x19, x20, [sp, #16]",
        "stp x21, x22, [sp, #32]",
        "stp x23, x24, [sp, #48]",
        "stp x25, x26, [sp, #64]",
        "stp x27, x28, [sp, #80]",
        "stp d8, d9, [sp, #96]",
        "stp d10, d11, [sp, #112]",
        "stp d12, d13, [sp, #128]",
        "stp d14, d15, [sp, #144]",
        "mov x29, sp",
        "str x29, [x0]",
        "mov x0, x2",
        "blr x1",
        "mov w0, #0",
        "ldp x19, x20, [sp, #16]",
        "ldp x21, x22, [sp, #32]",
        "ldp x23, x24, [sp, #48]",
        "ldp x25, x26, [sp, #64]",
        "ldp x27, x28, [sp, #80]",
        "ldp d8, d9, [sp, #96]",
        "ldp d10, d11, [sp, #112]",
        "ldp d12, d13, [sp, #128]",
        "ldp d14, d15, [sp, #144]",
        "ldp x29, x30, [sp], #160",
        "ret",
        ".cfi_endproc",
    )
}

/// Makes the [`call`] of this frame return 1, as on x86-64.
///
/// # Safety
/// No Drops; the caller is on the same thread, inside that call.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub(super) unsafe extern "C" fn back(frame: *const StackPointer) -> ! {
    core::arch::naked_asm!(
        "ldr x9, [x0]",
        "mov sp, x9",
        "mov w0, #1",
        "ldp x19, x20, [sp, #16]",
        "ldp x21, x22, [sp, #32]",
        "ldp x23, x24, [sp, #48]",
        "ldp x25, x26, [sp, #64]",
        "ldp x27, x28, [sp, #80]",
        "ldp d8, d9, [sp, #96]",
        "ldp d10, d11, [sp, #112]",
        "ldp d12, d13, [sp, #128]",
        "ldp d14, d15, [sp, #144]",
        "ldp x29, x30, [sp], #160",
        "ret",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Seen {
        frame: StackPointer,
        steps: u32,
        leave: bool,
    }

    unsafe extern "C-unwind" fn step(seen: *mut c_void) {
        let seen = seen.cast::<Seen>();
        // SAFETY: No Drops: only a counter is changed, and the pointer is the test's own.
        unsafe {
            (*seen).steps += 1;
            if (*seen).leave {
                back(&raw const (*seen).frame);
            }
        }
    }

    #[test]
    fn a_call_ends_by_return_or_by_being_snapped_back() {
        let mut seen = Seen { frame: StackPointer::new(), steps: 0, leave: false };
        let at = &raw mut seen;
        for round in 0..1000 {
            let leave = round % 2 == 1;
            // SAFETY: No Drops: `step` owns nothing, and everything that it uses is in this frame.
            let ended = unsafe {
                (*at).leave = leave;
                call(&raw mut (*at).frame, step, at.cast())
            };
            assert_eq!(ended, u32::from(leave));
        }
        assert_eq!(seen.steps, 1000);
    }
}
