//! The switch on x86-64: a fiber suspends itself, or passes to another fiber without a stop at the
//! code that resumed it.
//!
//! ```text
//!   resumer ──run──> fiber A ──pass──> fiber B ──pass──> fiber C ──suspend or end──> resumer
//!                    (saved)           (saved)
//! ```
//!
//! What a switch needs of a fiber is its [`Head`], at the base of the fiber's stack. The fiber that
//! runs has a *link* there: the stack pointer of the resumer. A fiber that passes hands the link
//! on. So every fiber can return to the resumer, and a backtrace of a fiber continues with the
//! frames of the resumer.
//!
//! ```text
//!   at the saved stack pointer of a fiber, upward:  next instruction, rbx, rbp
//!   at the link, upward:                            rbp, next instruction, rbx
//!   of a fiber that has not started:                `start`, then its closure
//! ```
//!
//! The order at the link, and rbp in [`start`], make a chain of frame pointers, for profilers that
//! follow it; the word behind the link stands for a return address, so it is never 0. The switches
//! declare all other registers clobbered, so the compiler saves those that it needs. They are
//! inlined, so that each has its own jump, whose target the processor's branch predictor learns.
//!
//! This file has unsafe code, because the switch can be written in assembly only.
#![allow(unsafe_code)]

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::arch::{asm, naked_asm};
use std::cell::Cell;
use std::mem::{ManuallyDrop, offset_of};
use std::ptr::{self, NonNull};

use super::resume::Resume;
use crate::stack::{FIBER_ROOM, Stack};

/// What a switch needs of a fiber.
#[repr(C)]
struct Head {
    /// The stack pointer of the suspended fiber; 0 while it runs, and after its end.
    saved: Cell<usize>,
    /// The stack pointer of the code that resumed the fiber, while the fiber runs.
    link: Cell<usize>,
    /// What to do with the closure; [`STARTED`] after the fiber has been resumed.
    closure: Cell<&'static Closure>,
}

/// What to do with a closure that lies at the initial stack pointer.
#[repr(C)]
struct Closure {
    run: unsafe extern "C" fn(NonNull<Head>, *mut ()) -> !,
    discard: unsafe fn(*mut ()),
}

/// Says that there is no closure any more.
static STARTED: Closure = Closure { run: run::<fn(WayOut)>, discard: |_| () };

const SAVED: usize = offset_of!(Head, saved);
const LINK: usize = offset_of!(Head, link);
const CLOSURE: usize = offset_of!(Head, closure);
const RUN: usize = offset_of!(Closure, run);

/// Bytes of a cache line.
const LINE: usize = 64;

/// Where in the header of its stack a fiber may be kept: behind the head, in the same cache line.
pub(crate) const KEPT_AT: usize = size_of::<Head>();
const _: () = assert!(KEPT_AT + size_of::<Switch>() <= FIBER_ROOM);

/// The switch of one fiber.
pub(crate) struct Switch {
    /// The head is in its header.
    stack: Stack,
}

impl Switch {
    #[inline]
    pub(crate) fn new<F: FnOnce(WayOut) + 'static>(stack: Stack, f: F) -> Switch {
        let closure = &const { Closure { run: run::<F>, discard: discard::<F> } };
        // A stack pointer is aligned to 16 bytes before each call.
        let at = (stack.header() - size_of::<F>()) & !(align_of::<F>().max(16) - 1);
        let saved = at - size_of::<usize>();
        // SAFETY: Own Memory: the memory below the header is the stack's, and it is large enough,
        // as `Fiber::new` has checked.
        unsafe { ptr::with_exposed_provenance_mut::<F>(at).write(f) };
        let first = start as *const () as usize;
        // SAFETY: Own Memory: as above.
        unsafe { ptr::with_exposed_provenance_mut::<usize>(saved).write(first) };
        let (saved, link) = (Cell::new(saved), Cell::new(0));
        let head = Head { saved, link, closure: Cell::new(closure) };
        // SAFETY: Own Memory: the header has this room.
        unsafe { ptr::with_exposed_provenance_mut::<Head>(stack.header()).write(head) };
        Switch { stack }
    }

    #[inline(always)]
    fn head(&self) -> &Head {
        head_of(&self.stack)
    }

    #[inline]
    pub(crate) fn is_started(&self) -> bool {
        ptr::eq(self.head().closure.get(), &raw const STARTED)
    }

    #[inline]
    pub(crate) fn is_finished(&self) -> bool {
        self.is_started() && self.head().saved.get() == 0
    }

    /// Does what [`Fiber::prefetch`](crate::Fiber::prefetch) does: gets the lines of the head, of
    /// the saved registers, and of the frame above them.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn prefetch(fiber: NonNull<Switch>) {
        // SAFETY: Contract.
        let saved = ptr::without_provenance::<u8>(unsafe { &*kept_head(fiber) }.saved.get());
        for at in [saved, saved.wrapping_add(LINE)] {
            // SAFETY: Plain Call: the instruction accesses no memory as far as the program can see.
            unsafe { _mm_prefetch::<{ _MM_HINT_T0 }>(at.cast()) };
        }
    }

    /// See [`Fiber::prefetch_early`](crate::Fiber::prefetch_early).
    #[inline(always)]
    pub(crate) fn prefetch_early(fiber: NonNull<Switch>) {
        // SAFETY: Plain Call: the instruction accesses no memory as far as the program can see.
        unsafe { _mm_prefetch::<{ _MM_HINT_T0 }>(kept_head(fiber).cast()) };
    }

    /// Returns the address of the word that has the stack pointer of the suspended fiber.
    pub(crate) fn saved_at(&self) -> Option<usize> {
        Some(self.stack.header() + SAVED)
    }

    #[inline]
    pub(crate) fn resume(&mut self) -> Resume {
        // SAFETY: Frozen Stack: the fiber is suspended or not started, and `self` is borrowed.
        unsafe { link_to(self.head()) }
    }

    /// Does what [`Fiber::run`](crate::Fiber::run) does.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn run(first: NonNull<Switch>) -> Resume {
        // SAFETY: Contract.
        unsafe { link_to(&*kept_head(first)) }
    }

    /// Returns the stack. The closure of a fiber that was not started is dropped.
    #[inline]
    pub(crate) fn into_stack(self) -> Stack {
        let this = ManuallyDrop::new(self);
        // SAFETY: Own Memory: `this` is not used again.
        let stack = unsafe { ptr::read(&raw const this.stack) };
        discard_closure(&stack);
        stack
    }
}

/// Returns the head of the fiber on this stack.
#[inline(always)]
fn head_of(stack: &Stack) -> &Head {
    // SAFETY: Own Memory: `Switch::new` has written the head, and the stack is out.
    unsafe { &*ptr::with_exposed_provenance::<Head>(stack.header()) }
}

/// Drops the closure of a fiber that was not started.
#[inline]
fn discard_closure(stack: &Stack) {
    let head = head_of(stack);
    let closure = head.closure.replace(&STARTED);
    if !ptr::eq(closure, &raw const STARTED) {
        let at = head.saved.replace(0) + size_of::<usize>();
        // SAFETY: Own Memory: `Switch::new` has put the closure there, and it was not run.
        unsafe { (closure.discard)(ptr::with_exposed_provenance_mut(at)) };
    }
}

impl Drop for Switch {
    /// Then the stack is dropped, which leaks and counts it. The frames of a suspended fiber stay
    /// as they are.
    fn drop(&mut self) {
        discard_closure(&self.stack);
    }
}

/// The head of a fiber that is kept in the header of its stack.
#[inline(always)]
fn kept_head(fiber: NonNull<Switch>) -> *const Head {
    fiber.as_ptr().wrapping_byte_sub(KEPT_AT).cast_const().cast()
}

/// The way out of a running fiber.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WayOut {
    head: NonNull<Head>,
}

impl std::fmt::Debug for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Head").finish_non_exhaustive()
    }
}

macro_rules! save {
    () => {
        "push rbp
         push rbx
         lea rax, [rip + 2f]
         push rax
         mov [rdi + {SAVED}], rsp"
    };
}

/// Continues the fiber whose head is in `rsi`. Its word becomes 0 before anything can be written to
/// its stack, because another thread may be reading that.
macro_rules! go_on {
    () => {
        "mov rax, [rsi + {SAVED}]
         mov qword ptr [rsi + {SAVED}], 0
         mov rsp, rax
         pop rax
         jmp rax"
    };
}

/// Continues the resumer of the fiber whose head is in `rdi`.
macro_rules! go_back {
    () => {
        "mov rsp, [rdi + {LINK}]
         mov edi, {HOW}
         pop rbp
         pop rax
         jmp rax"
    };
}

/// What the resumer finds in a register.
const SUSPENDED: u64 = 1;
const ENDED: u64 = 0;

/// Runs a fiber, and those to which it passes, until one suspends itself or ends.
///
/// # Safety
///
/// The fiber is suspended or not started.
#[inline(always)]
unsafe fn link_to(head: &Head) -> Resume {
    let how: u64;
    // SAFETY: Contract. Frozen Stack: the words that this pushes stay until the link is followed.
    unsafe {
        asm!(
            "push rbx
             lea rax, [rip + 2f]
             push rax
             push rbp
             mov [rsi + {LINK}], rsp",
            go_on!(),
            "2:
             pop rbx",
            SAVED = const SAVED, LINK = const LINK,
            inlateout("rsi") ptr::from_ref(head) => _, lateout("rdi") how,
            lateout("r12") _, lateout("r13") _, lateout("r14") _, lateout("r15") _,
            clobber_abi("sysv64"),
        );
    }
    if how == SUSPENDED { Resume::Suspended } else { Resume::Finished }
}

impl WayOut {
    #[inline(always)]
    pub(crate) fn into_raw(self) -> NonNull<()> {
        self.head.cast()
    }

    #[inline(always)]
    pub(crate) fn from_raw(raw: NonNull<()>) -> WayOut {
        WayOut { head: raw.cast() }
    }

    /// Does what [`Suspender::suspend`](crate::Suspender::suspend) does.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn suspend(self) {
        // SAFETY: Contract. Frozen Stack: what `save` pushes stays until the fiber is resumed.
        unsafe {
            asm!(
                save!(), go_back!(),
                "2:
                 pop rbx
                 pop rbp",
                SAVED = const SAVED, LINK = const LINK, HOW = const SUSPENDED,
                inlateout("rdi") self.head.as_ptr() => _, lateout("rsi") _,
                lateout("r12") _, lateout("r13") _, lateout("r14") _, lateout("r15") _,
                clobber_abi("sysv64"),
            );
        }
    }

    /// Does what [`Suspender::pass`](crate::Suspender::pass) does.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline(always)]
    pub(crate) unsafe fn pass(self, next: NonNull<Switch>) {
        // SAFETY: Contract. Frozen Stack: as in `suspend`.
        unsafe {
            asm!(
                save!(),
                // Nearly always equal already; and a comparison costs less than a store.
                "mov rax, [rdi + {LINK}]
                 cmp rax, [rsi + {LINK}]
                 je 3f
                 mov [rsi + {LINK}], rax
                 3:",
                go_on!(),
                "2:
                 pop rbx
                 pop rbp",
                SAVED = const SAVED, LINK = const LINK,
                inlateout("rdi") self.head.as_ptr() => _,
                inlateout("rsi") kept_head(next) => _,
                lateout("r12") _, lateout("r13") _, lateout("r14") _, lateout("r15") _,
                clobber_abi("sysv64"),
            );
        }
    }
}

/// The first instructions of every fiber. The head is in `rsi`, and the stack pointer at the
/// closure. The frame stays on the stack, and tells unwinders how the resumer's frames are found:
/// rbp points to the link, which points to three saved registers. It says that it is the frame of a
/// signal handler, because gdb allows only these to be on another stack than the frame above.
#[unsafe(naked)]
unsafe extern "C" fn start() {
    naked_asm!(
        ".cfi_startproc",
        ".cfi_signal_frame",
        // DW_CFA_def_cfa_expression, 5 bytes: DW_OP_breg6 (rbp) 0, DW_OP_deref,
        // DW_OP_plus_uconst 24.
        ".cfi_escape 0x0f, 5, 0x76, 0x00, 0x06, 0x23, 0x18",
        ".cfi_offset rbp, -24",
        ".cfi_offset rip, -16",
        ".cfi_offset rbx, -8",
        "lea rbp, [rsi + {LINK}]",
        "mov rdi, rsi",
        "mov rsi, rsp",
        "lea rax, [rip + 2f]",
        "push rax",
        "mov rax, [rdi + {CLOSURE}]",
        "jmp [rax + {RUN}]",
        // Never reached: the address that a backtrace shows must be inside this function.
        "2:",
        "int3",
        ".cfi_endproc",
        LINK = const LINK, CLOSURE = const CLOSURE, RUN = const RUN,
    )
}

/// Runs the closure, which does not unwind, and then returns to the resumer for the last time.
unsafe extern "C" fn run<F: FnOnce(WayOut)>(head: NonNull<Head>, at: *mut ()) -> ! {
    // SAFETY: Own Memory: `new` has put the closure there, and it is run once.
    let f = unsafe { at.cast::<F>().read() };
    // SAFETY: Own Memory: the head of the fiber that runs.
    unsafe { head.as_ref() }.closure.set(&STARTED);
    f(WayOut { head });
    // SAFETY: Frozen Stack: nothing is on the stack that anything refers to. The word of this
    // fiber has been 0 since it was resumed, so it is not resumed again.
    unsafe {
        asm!(
            go_back!(),
            LINK = const LINK, HOW = const ENDED,
            in("rdi") head.as_ptr(),
            options(noreturn),
        )
    }
}

/// Drops a closure that was not run.
unsafe fn discard<F>(at: *mut ()) {
    // SAFETY: Own Memory: as in `run`.
    unsafe { at.cast::<F>().drop_in_place() };
}
