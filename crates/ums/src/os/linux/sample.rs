//! A sample of another thread: its registers and a copy of its stack, taken by a signal.
//!
//! The signal handler runs on the sampled thread, at an arbitrary instruction, for instance in a
//! switch between fibers or in a panic. So it does as little as possible: it copies memory. The
//! thread that requested the sample interprets the copy, which needs locks and memory.
//!
//! ```text
//! FREE --take--> ASKED --the handler--> COPYING --> DONE --take reads it--> FREE
//!                  \--no answer in time--> FREE: a handler that comes late finds nothing to do
//! ```
//!
//! The signal is SIGURG, which has no effect on code that does not expect it. (Go uses it for the
//! same purpose.) A signal that this file did not send is passed to the handler that was installed
//! before.
//!
//! Invariants. **Own Thread**: the copied bytes lie between the stack pointer and the top of the
//! stack into which it points. The interrupted code is using that stack, so all of it is mapped.
//! The range of the stack is either noted by the thread itself, or found in the list of fiber
//! stacks. **Handed Over**: only the thread that changed the state to COPYING writes the sample,
//! and only the thread that sees DONE reads it. The state contains the number of the asked thread,
//! so that a late handler of another thread cannot answer. **Plain Call**: as in ARCHITECTURE.md.
//!
//! Effect on the sampled thread: a system call in which it sleeps may end early with EINTR, as with
//! any signal. Calls that the kernel restarts after a signal are restarted.

#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fiber::StackRange;
use libc::c_int;

use super::handlers::{self, Before, Handler, SignalFrame};
use crate::os::lock::Lock;

const SIGNAL: c_int = libc::SIGURG;
/// The largest number of bytes that is copied from a stack, from the stack pointer outward.
pub const COPY_MAX: usize = 128 << 10;
/// How long a thread may take to answer. A thread that waits in the kernel for a disk cannot answer
/// at all.
const PATIENCE: Duration = Duration::from_millis(200);

const FREE: u64 = 0;
const ASKED: u64 = 1;
const COPYING: u64 = 2;
const DONE: u64 = 3;

/// FREE, or one of the other states together with the number of the asked thread.
static STATE: AtomicU64 = AtomicU64::new(FREE);
static PLACE: Place = Place(UnsafeCell::new(Raw { regs: [0; REGS], len: 0, stack: [0; COPY_MAX] }));
static BEFORE: Before = Before::new();

/// The number of registers: on x86-64 all general registers and the instruction pointer; on aarch64
/// those that unwinding needs.
const REGS: usize = 17;

struct Place(UnsafeCell<Raw>);

// SAFETY: Handed Over: STATE says which thread may access it.
unsafe impl Sync for Place {}

struct Raw {
    regs: [u64; REGS],
    len: usize,
    stack: [u8; COPY_MAX],
}

/// The registers and the stack of a thread at one moment.
pub struct Sample {
    /// The thread's registers; see [`registers`] for their order.
    pub regs: [u64; REGS],
    /// The thread's stack, from the stack pointer outward.
    pub stack: Vec<u8>,
}

impl Sample {
    /// Makes the sample of a suspended fiber, from the registers that the switch saved, and its
    /// stack from the stack pointer outward.
    pub fn of_suspended(kept: fiber::Registers, stack: Vec<u8>) -> Sample {
        let mut regs = [0; REGS];
        (regs[PC], regs[SP]) = (kept.instruction, kept.stack);
        (regs[FRAME], regs[OTHER]) = (kept.frame, kept.other);
        Sample { regs, stack }
    }

    /// Makes the sample of a thread that sleeps in the kernel, from the two registers that the
    /// kernel shows. The others are unknown.
    pub fn of_sleeping(instruction: u64, stack_pointer: u64, stack: Vec<u8>) -> Sample {
        let mut regs = [0; REGS];
        (regs[PC], regs[SP]) = (instruction, stack_pointer);
        Sample { regs, stack }
    }

    /// Returns the address of the first byte of `stack`.
    pub fn stack_pointer(&self) -> u64 {
        self.regs[SP]
    }

    /// Returns the address of the next instruction.
    pub fn instruction(&self) -> u64 {
        self.regs[PC]
    }

    /// Returns the eight bytes of the stack at this address, if they were copied.
    pub fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.stack_pointer())?).ok()?;
        let bytes = self.stack.get(at..at.checked_add(8)?)?;
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    }
}

thread_local! {
    /// The range of this thread's own stack. It has no destructor, and the handler never touches it
    /// first, so the handler may read it.
    static BOUNDS: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Notes the range of the calling thread's own stack, so that the thread can be sampled.
pub fn this_thread_is_on(stack: Option<StackRange>) {
    BOUNDS.set(stack.map_or((0, 0), |stack| (stack.low(), stack.top())));
}

/// Takes a sample of a thread of this process. Returns `None` if the thread did not answer, or runs
/// on a stack whose range is not known.
pub fn take(thread: u32) -> Option<Sample> {
    static ALONE: Lock<()> = Lock::new(());
    let _alone = ALONE.lock();
    if !install() || STATE.load(Ordering::Acquire) != FREE {
        return None;
    }
    STATE.store(of(thread, ASKED), Ordering::Release);
    // SAFETY: Plain Call: if the thread has ended, the call returns an error.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGNAL) } == 0;
    let began = Instant::now();
    while sent && STATE.load(Ordering::Acquire) != of(thread, DONE) {
        if began.elapsed() > PATIENCE && withdraw(thread) {
            return None;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    if !sent {
        withdraw(thread);
        return None;
    }
    // SAFETY: Handed Over: this thread has seen DONE.
    let raw = unsafe { &*PLACE.0.get() };
    let sample = Sample { regs: raw.regs, stack: raw.stack[..raw.len].to_vec() };
    STATE.store(FREE, Ordering::Release);
    (!sample.stack.is_empty()).then_some(sample)
}

/// Returns the value of `STATE` for this thread and state.
const fn of(thread: u32, state: u64) -> u64 {
    (thread as u64) << 2 | state
}

/// Withdraws the request. Returns false if the thread is answering it now, which takes almost no
/// time.
fn withdraw(thread: u32) -> bool {
    let asked = of(thread, ASKED);
    STATE.compare_exchange(asked, FREE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

fn install() -> bool {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        handlers::install::<Sampler>(SIGNAL, &BEFORE, libc::SA_ONSTACK | libc::SA_RESTART, 0)
    })
}

struct Sampler;

// SAFETY: Signal: it reads atomics and thread-locals without destructors, and copies memory; the
// frame stays as it is.
unsafe impl Handler for Sampler {
    fn handle(frame: &mut SignalFrame<'_>) {
        let me = crate::os::thread_number();
        let (asked, copying) = (of(me, ASKED), of(me, COPYING));
        let mine = STATE.compare_exchange(asked, copying, Ordering::AcqRel, Ordering::Relaxed);
        if mine.is_err() {
            return frame.pass_on(&BEFORE);
        }
        // SAFETY: Handed Over: this thread moved the state to COPYING.
        copy(unsafe { &mut *PLACE.0.get() }, frame);
        STATE.store(of(me, DONE), Ordering::Release);
    }
}

fn copy(raw: &mut Raw, frame: &SignalFrame<'_>) {
    raw.regs = registers(frame);
    let sp = raw.regs[SP] as usize;
    let (low, top) = BOUNDS.get();
    let top = if (low..top).contains(&sp) {
        top
    } else {
        StackRange::of_fiber_at(sp).map_or(sp, StackRange::top)
    };
    raw.len = (top - sp).min(COPY_MAX);
    let from = std::ptr::with_exposed_provenance::<u8>(sp);
    // SAFETY: Own Thread: the bytes lie between the stack pointer and the top of the stack.
    unsafe { copy_bytes(from, raw.stack.as_mut_ptr(), raw.len) };
}

/// # Safety
/// *Own Thread*.
unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    // AddressSanitizer puts red zones between variables, and would report an ordinary copy over
    // them.
    #[cfg(all(asan, target_arch = "x86_64"))]
    // SAFETY: Own Thread: by this function's contract.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
        );
    }
    #[cfg(not(all(asan, target_arch = "x86_64")))]
    // SAFETY: Own Thread: by this function's contract.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, len);
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86_64::{FRAME, OTHER, PC, SP, registers};

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::{REGS, SignalFrame};

    /// The index of rbp.
    pub const FRAME: usize = 6;
    /// The index of rbx, which a switch of fibers saves, too.
    pub const OTHER: usize = 3;
    /// The index of the stack pointer.
    pub const SP: usize = 7;
    /// The index of the instruction pointer.
    pub const PC: usize = 16;

    /// Returns the registers in the order of their DWARF numbers: rax, rdx, rcx, rbx, rsi, rdi,
    /// rbp, rsp, r8 to r15, then the instruction pointer.
    pub fn registers(frame: &SignalFrame<'_>) -> [u64; REGS] {
        let order = [
            libc::REG_RAX,
            libc::REG_RDX,
            libc::REG_RCX,
            libc::REG_RBX,
            libc::REG_RSI,
            libc::REG_RDI,
            libc::REG_RBP,
            libc::REG_RSP,
            libc::REG_R8,
            libc::REG_R9,
            libc::REG_R10,
            libc::REG_R11,
            libc::REG_R12,
            libc::REG_R13,
            libc::REG_R14,
            libc::REG_R15,
            libc::REG_RIP,
        ];
        order.map(|reg| frame.register(reg) as u64)
    }
}

#[cfg(target_arch = "aarch64")]
pub use aarch64::{FRAME, OTHER, PC, SP, registers};

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use super::{REGS, SignalFrame};

    /// The index of the frame pointer.
    pub const FRAME: usize = 2;
    /// The index of x19, which a switch of fibers saves, too. Unwinding does not need it.
    pub const OTHER: usize = 4;
    /// The index of the stack pointer.
    pub const SP: usize = 0;
    /// The index of the program counter.
    pub const PC: usize = 1;

    /// Returns the stack pointer, program counter, frame pointer (x29) and link register (x30).
    pub fn registers(frame: &SignalFrame<'_>) -> [u64; REGS] {
        let mut regs = [0; REGS];
        let known = [frame.stack_pointer(), frame.pc(), frame.register(29), frame.register(30)];
        regs[..4].copy_from_slice(&known);
        regs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32};

    static STOP: AtomicBool = AtomicBool::new(false);

    fn spin_until_told(told: &AtomicU32) {
        told.store(crate::os::thread_number(), Ordering::SeqCst);
        while !STOP.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn a_running_thread_is_sampled_and_an_ended_one_is_not_b40() {
        let number = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                this_thread_is_on(StackRange::of_this_thread());
                spin_until_told(&number);
            });
            while number.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let sample = take(number.load(Ordering::SeqCst));
            STOP.store(true, Ordering::SeqCst);
            thread.join().unwrap();
            let sample = sample.expect("it can answer");
            assert!(sample.stack.len() > 100);
            assert_eq!(sample.word(sample.stack_pointer() + sample.stack.len() as u64), None);
            assert!(sample.word(sample.stack_pointer()).is_some());
            assert_ne!(sample.instruction(), 0);
        });
        assert!(take(number.load(Ordering::SeqCst)).is_none(), "it has ended");
        // If a thread has never noted the range of its stack, nothing is copied.
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(crate::os::thread_number()).unwrap();
            let _ = ended.recv();
        });
        assert!(take(told.recv().unwrap()).is_none());
        drop(end);
        thread.join().unwrap();
    }
}
