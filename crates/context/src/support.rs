//! Checks whether this computer and this process can have contexts, and gives the reason if not.
//!
//! The process is checked once. What can differ from thread to thread (restartable sequences, the
//! size of the stack) is checked when a thread detaches. This file has unsafe code for the queries
//! to the kernel and the C library.

#![allow(unsafe_code)]

use std::error::Error;
use std::fmt;
use std::sync::OnceLock;

/// Why a thread cannot leave its kernel thread here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// The processor is neither x86-64 nor aarch64.
    Architecture,
    /// The C library is not glibc.
    CLibrary,
    /// User code may not write the FS base.
    FsBase,
    /// Each kernel thread has a shadow stack of its own, which a switch would leave behind.
    ShadowStack,
    /// The kernel would continue to write the processor's number into a thread that runs elsewhere.
    Rseq,
    /// There are as many hosts as this crate has places for.
    Hosts,
    /// The gap and a few frames would not fit on the thread's stack.
    Stack,
    /// The calling context is on another thread's kernel thread.
    Hosted,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::Architecture => "the switch is written for x86-64 and aarch64 only",
            Refused::CLibrary => {
                "glibc is required: what other C libraries keep by kernel thread is not known"
            }
            Refused::FsBase => {
                "the processor or the kernel (before 5.9) does not let programs write their FS \
                 base (FSGSBASE)"
            }
            Refused::ShadowStack => {
                "shadow stacks are on: start the program with \
                 GLIBC_TUNABLES=glibc.cpu.x86_shstk=off"
            }
            Refused::Rseq => {
                "restartable sequences cannot be unregistered: start the program with \
                 GLIBC_TUNABLES=glibc.pthread.rseq=0"
            }
            Refused::Hosts => "there are 1024 threads that are hosts already: let some of them end",
            Refused::Stack => {
                return write!(
                    f,
                    "the thread's stack has no room for what a signal needs beside it: make the \
                     thread with {} bytes at least",
                    least_stack()
                );
            }
            Refused::Hosted => {
                "a context that runs on a host cannot be a host: leave for its own kernel thread \
                 first"
            }
        })
    }
}

impl Error for Refused {}

/// Checks whether threads can leave their kernel threads in this process.
///
/// # Errors
/// The reason why not.
pub fn supported() -> Result<(), Refused> {
    static ANSWER: OnceLock<Result<(), Refused>> = OnceLock::new();
    *ANSWER.get_or_init(ask)
}

fn ask() -> Result<(), Refused> {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return Err(Refused::Architecture);
    }
    if !cfg!(target_env = "gnu") {
        return Err(Refused::CLibrary);
    }
    if !may_write_the_base() {
        return Err(Refused::FsBase);
    }
    if has_shadow_stack() { Err(Refused::ShadowStack) } else { Ok(()) }
}

/// The bit of `AT_HWCAP2` that says that user code may write the FS base.
#[cfg(target_arch = "x86_64")]
fn may_write_the_base() -> bool {
    const FSGSBASE: u64 = 2;
    // SAFETY: Plain Call: returns a number.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & FSGSBASE != 0 }
}

#[cfg(not(target_arch = "x86_64"))]
fn may_write_the_base() -> bool {
    true
}

/// Returns whether the calling thread has a shadow stack. Kernels without them return an error.
fn has_shadow_stack() -> bool {
    const ON: u64 = 1;
    let mut state = 0u64;
    let into = std::ptr::from_mut(&mut state);
    #[cfg(target_arch = "x86_64")]
    let (call, ask) = (libc::SYS_arch_prctl, 0x5005);
    #[cfg(not(target_arch = "x86_64"))]
    let (call, ask) = (libc::SYS_prctl, 74);
    // SAFETY: Plain Call: ARCH_SHSTK_STATUS or PR_GET_SHADOW_STACK_STATUS; `state` outlives the
    // call.
    let asked = unsafe { libc::syscall(call, ask, into, 0, 0, 0) };
    asked == 0 && state & ON != 0
}

/// Returns the size of the gap, which the one signal of a sleeping kernel thread uses: the size of
/// a signal's frame, as the kernel states it (with all vector registers of this processor), and
/// room for the handler.
pub(crate) fn gap() -> usize {
    const HANDLER: usize = 12 * 1024;
    /// The size of the frame if the kernel does not state it.
    const FRAME: usize = 4 * 1024;
    // SAFETY: Plain Call: returns a number.
    let frame = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
    (frame.max(FRAME) + HANDLER).next_multiple_of(4096)
}

/// The bytes of stack that a context needs beside the gap to run, and to report a panic.
const ROOM: usize = 32 * 1024;

/// Returns the least size of the stack, in bytes, of a thread that can become a context. A smaller
/// stack is refused ([`Refused::Stack`]). Add what your own code needs.
pub fn least_stack() -> usize {
    gap() + ROOM
}

/// Returns whether the gap and half of [`ROOM`] fit on the calling thread's stack, below the
/// caller's frame. This must be checked, because the gap is skipped without being touched: a gap
/// that reaches beyond the stack's guard page would not cause a fault.
pub(crate) fn has_room_for_the_gap() -> bool {
    let here = 0u8;
    let here = std::ptr::from_ref(&here).addr();
    let mut attributes = std::mem::MaybeUninit::uninit();
    let (mut low, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: Plain Call: the first call fills the attributes, the second reads them, and the third
    // frees the memory that they own.
    let known = unsafe {
        let known = libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) == 0;
        if known {
            libc::pthread_attr_getstack(attributes.as_ptr(), &mut low, &mut len);
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
        }
        known
    };
    known && here.checked_sub(gap() + ROOM / 2).is_some_and(|lowest| lowest >= low.addr())
}

/// Unregisters the calling kernel thread's restartable sequences. glibc has registered an area in
/// the thread control block, into which the kernel writes the processor that the kernel thread runs
/// on. A context that runs on a host would read the wrong processor there.
pub(crate) fn unregister_rseq() -> Result<(), Refused> {
    let Some(area) = rseq_area() else { return Ok(()) };
    // SAFETY: Plain Call: glibc's area of the calling thread, in its thread control block. The
    // kernel may write it at any time, so the read is volatile.
    let registered = || unsafe { area.cast::<i32>().add(CPU_ID).read_volatile() } >= 0;
    // glibc registers 32 bytes, and may register more for what newer kernels add.
    for len in [32u32, 64, 128, 256] {
        if registered() {
            // SAFETY: Plain Call: the kernel compares address, length and signature with those that
            // were registered, and refuses others.
            unsafe { libc::syscall(libc::SYS_rseq, area, len, UNREGISTER, SIGNATURE) };
        }
    }
    if registered() { Err(Refused::Rseq) } else { Ok(()) }
}

/// The index of the 32-bit word of `struct rseq` that is negative while the area is not registered.
const CPU_ID: usize = 1;
const UNREGISTER: i32 = 1;
/// The signature that glibc registers.
const SIGNATURE: u32 = if cfg!(target_arch = "aarch64") { 0xd428_bc00 } else { 0x5305_3053 };

/// Returns the address of the calling thread's `struct rseq`, or `None` if glibc registers none
/// (before 2.35).
#[cfg(target_env = "gnu")]
fn rseq_area() -> Option<*mut u8> {
    // SAFETY: Plain Call: looks symbols up.
    let symbol = |name: &std::ffi::CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    let (offset, size) = (symbol(c"__rseq_offset"), symbol(c"__rseq_size"));
    if offset.is_null() || size.is_null() {
        return None;
    }
    // SAFETY: Plain Call: glibc documents both variables: a `ptrdiff_t` and an `unsigned int`,
    // which do not change after the start of the program.
    let (offset, size) = unsafe { (*offset.cast::<isize>(), *size.cast::<u32>()) };
    let tcb = crate::arch::thread_pointer();
    (size != 0).then(|| std::ptr::with_exposed_provenance_mut(tcb.wrapping_add_signed(offset)))
}

#[cfg(not(target_env = "gnu"))]
fn rseq_area() -> Option<*mut u8> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_has_room_for_what_the_kernel_saves() {
        assert!(gap() >= 16 * 1024 && gap().is_multiple_of(4096), "{}", gap());
    }

    #[test]
    fn a_thread_whose_stack_the_gap_would_leave_has_no_room_for_it() {
        let on = |bytes: usize| {
            let thread = std::thread::Builder::new().stack_size(bytes);
            thread.spawn(has_room_for_the_gap).expect("a thread").join().expect("it answers")
        };
        // Where stacks are never as small as the gap, as on aarch64, each thread has room for it.
        if gap() + ROOM / 2 > libc::PTHREAD_STACK_MIN {
            assert!(!on(gap()));
        }
        assert!(on(least_stack()) && on(2 << 20));
    }

    #[test]
    fn every_refusal_says_what_is_missing() {
        let all = [
            Refused::Architecture,
            Refused::CLibrary,
            Refused::FsBase,
            Refused::ShadowStack,
            Refused::Rseq,
            Refused::Hosts,
            Refused::Hosted,
            Refused::Stack,
        ];
        assert!(all.iter().all(|why| why.to_string().len() > 20));
    }
}
