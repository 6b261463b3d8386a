//! The handler that prints which worker has overflowed its stack, before the process ends.
//!
//! ```text
//! fault ─> on_fault ─> the address is in ─┬─ the guard of the running fiber's stack ─> message,
//!          (on the thread's signal stack) │                                            abort
//!                                         └─ other memory ─> the handler installed before
//! ```
//!
//! From the address of the fault, the [`registry`] finds the slab and the stack; the stack's header
//! has the worker's name. The stack pointer at the fault must lie inside the same stack. Otherwise
//! a stray pointer has hit another stack's guard, which is no overflow, and the fault is passed on
//! to the handler that was installed before. The fault is also passed on if a C function skips the
//! whole guard in one step. Unless the program has installed another handler, the signal then ends
//! the process.
//!
//! The handler needs a stack other than the one that has overflowed. Threads that `std` creates
//! have a *signal stack* for that; [`prepare_host_thread`] makes one for other threads.
//!
//! This file has unsafe code, because it installs and calls signal handlers, and reads the
//! arguments that the kernel passes.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::mem;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, c_void, siginfo_t};

use crate::registry::{self, Region};
use crate::stack;
use crate::sys::{self, GuardKind, LastWords, page_size};

/// The signals of an access to a guard. Which one Linux sends depends on the architecture and the
/// kind of guard.
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// The handlers that were installed before ours, in the order of `SIGNALS`.
static BEFORE: [OnceLock<libc::sigaction>; 2] = [OnceLock::new(), OnceLock::new()];

/// Whether they have run. With `SA_RESETHAND` a handler runs once.
static HAS_RUN: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];

/// Installs the handler that names a worker whose stack overflowed, and then aborts the process.
/// Other faults go to the handler that was installed before. Later calls do nothing.
///
/// # Panics
///
/// If the kernel refuses a signal handler, which is not expected.
pub fn install_overflow_handler() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        for (signal, before) in SIGNALS.into_iter().zip(&BEFORE) {
            // SAFETY: Plain Data: a sigaction with no handler, no flags and an empty mask.
            let mut old: libc::sigaction = unsafe { mem::zeroed() };
            // SAFETY: Plain Call: only reads the present action; `old` outlives the call.
            assert_eq!(unsafe { libc::sigaction(signal, ptr::null(), &raw mut old) }, 0);
            // Stored before our handler can run.
            before.get_or_init(|| old);
            // SAFETY: Plain Data: a sigaction with no handler, no flags and an empty mask.
            let mut new: libc::sigaction = unsafe { mem::zeroed() };
            new.sa_sigaction = on_fault as *const () as usize;
            new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            // SAFETY: Signal: `on_fault` has the signature that SA_SIGINFO requires, and does only
            // what a handler may do.
            assert_eq!(unsafe { libc::sigaction(signal, &raw const new, ptr::null_mut()) }, 0);
        }
    });
}

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: Signal: the kernel passes a valid siginfo; its address field is set for faults, and
    // is read only for them.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let is_fault = code > 0;
    if is_fault
        && let Some(region) = registry::find(address)
        && address < region.low
        && stack_pointer(context).is_none_or(|sp| region.contains(sp))
    {
        die_of_overflow(region, address);
    }
    pass_on(signal, is_fault, info, context);
}

impl Region {
    fn contains(&self, address: usize) -> bool {
        (self.guard_low..self.top).contains(&address)
    }
}

fn die_of_overflow(region: Region, address: usize) -> ! {
    // SAFETY: Own Memory: the code that faulted runs on this stack, so the stack is out, and its
    // slab is mapped.
    let name = unsafe { stack::read_name(stack::base_of(&region)) };
    let name = name.get();
    let size = (region.top - region.low) / 1024;
    LastWords::say(format_args!(
        "\nfatal: worker '{name}' overflowed its stack of {size} KiB (fault at {address:#x}). \
         Give it more: raise the stack size option.\n"
    ));
    std::process::abort();
}

/// Returns the stack pointer at the time of the fault, or `None` on architectures for which this
/// is not implemented.
#[cfg(target_arch = "x86_64")]
fn stack_pointer(context: *mut c_void) -> Option<usize> {
    // SAFETY: Signal: the third argument of a handler installed with SA_SIGINFO is a ucontext.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    Some(context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize)
}

/// Returns the stack pointer at the time of the fault, or `None` on architectures for which this
/// is not implemented.
#[cfg(target_arch = "aarch64")]
fn stack_pointer(context: *mut c_void) -> Option<usize> {
    // SAFETY: Signal: the third argument of a handler installed with SA_SIGINFO is a ucontext.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    Some(context.uc_mcontext.sp as usize)
}

/// Returns `None`. Then every fault in a guard counts as an overflow.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn stack_pointer(_context: *mut c_void) -> Option<usize> {
    None
}

/// Returns the action that the signal would have without this handler, and notes that it is used:
/// a handler with `SA_RESETHAND` is replaced by the default action when it has run.
fn action_before(signal: c_int) -> Option<libc::sigaction> {
    let place = SIGNALS.iter().position(|known| *known == signal)?;
    let mut before = *BEFORE[place].get()?;
    if before.sa_flags & libc::SA_RESETHAND != 0 && HAS_RUN[place].swap(true, Ordering::Relaxed) {
        before.sa_sigaction = libc::SIG_DFL;
    }
    Some(before)
}

/// Blocks the signals that are blocked in a handler with this action. The return of our handler
/// restores the mask.
fn block_for(signal: c_int, action: &libc::sigaction) {
    // SAFETY: Plain Call: sets that the program has made, and a local.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const action.sa_mask, ptr::null_mut());
        let is_in_mask = libc::sigismember(&raw const action.sa_mask, signal) == 1;
        if action.sa_flags & libc::SA_NODEFER != 0 && !is_in_mask {
            let mut own = mem::zeroed();
            libc::sigaddset(&raw mut own, signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const own, ptr::null_mut());
        }
    }
}

/// Handles the signal as it would have been handled without this handler, but on this handler's
/// stack.
fn pass_on(signal: c_int, is_fault: bool, info: *mut siginfo_t, context: *mut c_void) {
    let Some(before) = action_before(signal) else { return };
    if before.sa_sigaction != libc::SIG_DFL && before.sa_sigaction != libc::SIG_IGN {
        block_for(signal, &before);
    }
    match before.sa_sigaction {
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: Signal: both calls are allowed in a handler. After a fault the instruction
            // runs again when this handler returns, and faults again. A signal that was sent by
            // another process or `raise` must be sent again.
            unsafe {
                libc::sigaction(signal, &raw const before, ptr::null_mut());
                if !is_fault {
                    libc::raise(signal);
                }
            }
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
            // SAFETY: Signal: the handler was installed with SA_SIGINFO, so it has this signature.
            let handler = unsafe { mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: Signal: the handler was installed without SA_SIGINFO, so it has this
            // signature.
            let handler = unsafe { mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
            handler(signal);
        }
    }
}

/// Owns the signal stack that [`prepare_host_thread`] has made, if it has made one.
#[must_use = "the signal stack goes away with this guard"]
pub struct HostGuard {
    /// Address and length of the mapping, and what the thread had before, if it had too little.
    made: Option<(usize, usize, libc::stack_t)>,
    /// A signal stack belongs to one thread.
    pinned_to_thread: PhantomData<*mut ()>,
}

impl std::fmt::Debug for HostGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let made = self.made.map(|(at, len, _)| (at, len));
        f.debug_struct("HostGuard").field("made", &made).finish_non_exhaustive()
    }
}

/// Makes sure that the calling thread, which is about to resume fibers, has a signal stack with
/// room for several handlers at once. Without one an overflow kills the process without a message.
/// Threads that `std` has created have a small one, which only two handlers fit on. Keep the result
/// as long as the thread runs fibers.
///
/// # Panics
///
/// If there is no memory for it.
pub fn prepare_host_thread() -> HostGuard {
    let (before, size) = (sys::signal_stack(), sys::signal_stack_size());
    let in_use = before.ss_flags & libc::SS_ONSTACK != 0;
    if in_use || before.ss_flags & libc::SS_DISABLE == 0 && before.ss_size >= size {
        return HostGuard { made: None, pinned_to_thread: PhantomData };
    }
    let guard = page_size();
    let len = guard + size;
    let at = sys::reserve(len).expect("address space for a signal stack");
    // SAFETY: Own Memory: this is the first page of the memory that was reserved just above.
    unsafe { sys::guard(at, guard, GuardKind::probed()) }.expect("a guard for a signal stack");
    // SAFETY: Own Memory: the memory stays reserved until the `HostGuard` is dropped, which
    // takes it out of use before it releases it.
    unsafe {
        sys::set_signal_stack(libc::stack_t {
            ss_sp: ptr::with_exposed_provenance_mut(at + guard),
            ss_flags: 0,
            ss_size: len - guard,
        })
    };
    HostGuard { made: Some((at, len, before)), pinned_to_thread: PhantomData }
}

impl Drop for HostGuard {
    fn drop(&mut self) {
        let Some((at, len, before)) = self.made else { return };
        let used = sys::signal_stack().ss_sp as usize;
        if (at..at + len).contains(&used) {
            // SAFETY: Own Memory: none, or the memory that the thread's own code had set.
            unsafe { sys::set_signal_stack(before) };
        }
        // SAFETY: Own Memory: `prepare_host_thread` has reserved the memory, and it is not this
        // thread's signal stack now.
        unsafe { sys::release(at, len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::{self, Death};
    use crate::fiber::Fiber;
    use crate::pool::{StackConfig, StackPool};

    const CONFIG: StackConfig = StackConfig { size: 60 * 1024, precommit: false, keep_warm: 1 };

    #[inline(never)]
    fn bottomless(depth: u64) -> u64 {
        let frame = std::hint::black_box([depth; 64]);
        if frame[7] == u64::MAX { 0 } else { bottomless(depth + 1) + frame[8] }
    }

    fn overflow_on(mut pool: StackPool, name: &str) {
        install_overflow_handler();
        let stack = pool.take().expect("a stack");
        let _ = Fiber::new(stack, name, |_| assert_ne!(bottomless(0), 1)).resume();
    }

    fn assert_named(death: &Death, name: &str) {
        assert_eq!(death.signal, Some(libc::SIGABRT), "{}", death.words);
        // 60 KiB, the header and the colours make 63 KiB, which is 16 pages.
        let said = format!("worker '{name}' overflowed its stack of 64 KiB (fault at 0x");
        assert!(death.words.contains(&said), "{}", death.words);
        assert!(death.words.contains("stack size option"), "{}", death.words);
    }

    #[test]
    fn an_overflow_names_the_worker_and_its_size() {
        let name = "overflow::tests::an_overflow_names_the_worker_and_its_size";
        let death = child::dies(name, || overflow_on(StackPool::new(CONFIG), "billing 7"));
        assert_named(&death, "billing 7");
    }

    #[test]
    fn an_overflow_into_an_mprotect_guard_is_named_too() {
        let name = "overflow::tests::an_overflow_into_an_mprotect_guard_is_named_too";
        let death = child::dies(name, || {
            overflow_on(StackPool::with_guard(CONFIG, GuardKind::Mprotect), "billing 8");
        });
        assert_named(&death, "billing 8");
    }

    /// Overflows the stack of a thread on a pooled stack, below an intact signal stack.
    fn overflow_in_a_thread(kind: GuardKind, name: &str) {
        install_overflow_handler();
        let mut pool = StackPool::for_threads_with_guard(CONFIG, kind);
        let stack = pool.take().expect("a stack");
        let thread = stack.spawn(name, || assert_ne!(bottomless(0), 1)).expect("a thread");
        pool.give(thread.join());
    }

    #[test]
    fn a_thread_on_a_pooled_stack_that_overflows_is_named() {
        let name = "overflow::tests::a_thread_on_a_pooled_stack_that_overflows_is_named";
        let death = child::dies(name, || overflow_in_a_thread(GuardKind::probed(), "thread 9"));
        assert_eq!(death.signal, Some(libc::SIGABRT), "{}", death.words);
        assert!(death.words.contains("worker 'thread 9' overflowed its stack"), "{}", death.words);
    }

    #[test]
    fn a_thread_that_overflows_into_an_mprotect_guard_is_named_too() {
        let name = "overflow::tests::a_thread_that_overflows_into_an_mprotect_guard_is_named_too";
        let death = child::dies(name, || overflow_in_a_thread(GuardKind::Mprotect, "thread 10"));
        assert_eq!(death.signal, Some(libc::SIGABRT), "{}", death.words);
        assert!(death.words.contains("worker 'thread 10' overflowed its stack"), "{}", death.words);
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let name = "overflow::tests::a_long_name_is_cut_between_characters";
        let long = "ü".repeat(100);
        let death = child::dies(name, || overflow_on(StackPool::new(CONFIG), &long));
        assert_named(&death, &"ü".repeat(29));
    }

    #[test]
    fn a_thread_without_signal_stack_is_prepared_for_overflows() {
        let name = "overflow::tests::a_thread_without_signal_stack_is_prepared_for_overflows";
        let death = child::dies(name, || {
            disable_signal_stack();
            let _prepared = prepare_host_thread();
            overflow_on(StackPool::new(CONFIG), "raw host");
        });
        assert_named(&death, "raw host");
    }

    #[test]
    fn a_prepared_thread_gets_a_signal_stack_and_loses_it_again() {
        let present = || sys::signal_stack().ss_flags & libc::SS_DISABLE == 0;
        let tried = std::thread::spawn(move || {
            // A thread of std has a signal stack already, but a small one.
            let theirs = sys::signal_stack();
            let prepared = prepare_host_thread();
            assert!(sys::signal_stack().ss_size >= sys::signal_stack_size());
            drop(prepared);
            let again = sys::signal_stack();
            assert_eq!((again.ss_sp, again.ss_size), (theirs.ss_sp, theirs.ss_size));
            disable_signal_stack();
            let prepared = prepare_host_thread();
            assert!(present());
            drop(prepared);
            assert!(!present());
        });
        tried.join().expect("no assertion failed");
    }

    #[test]
    fn a_stray_pointer_into_a_guard_is_not_an_overflow() {
        let name = "overflow::tests::a_stray_pointer_into_a_guard_is_not_an_overflow";
        let death = child::dies(name, || {
            install_overflow_handler();
            let mut pool = StackPool::new(CONFIG);
            let stack = pool.take().expect("a stack");
            let guard = registry::find(stack.header()).expect("its slab").guard_low;
            // SAFETY: Own Memory: nothing is stored in the guard; the test expects the fault.
            unsafe { ptr::with_exposed_provenance_mut::<u8>(guard + 8).write_volatile(1) };
            pool.give(stack);
        });
        assert_eq!(death.signal, Some(libc::SIGSEGV), "{}", death.words);
        assert!(!death.words.contains("overflowed"), "{}", death.words);
    }

    #[test]
    fn a_thread_that_overflows_is_still_reported_by_std() {
        let name = "overflow::tests::a_thread_that_overflows_is_still_reported_by_std";
        let death = child::dies(name, || {
            install_overflow_handler();
            install_overflow_handler();
            assert_ne!(bottomless(0), 1);
        });
        assert_eq!(death.signal, Some(libc::SIGABRT), "{}", death.words);
        assert!(death.words.contains("has overflowed its stack"), "{}", death.words);
        assert!(!death.words.contains("stack size option"), "{}", death.words);
    }

    #[test]
    fn a_signal_that_was_sent_still_kills() {
        let name = "overflow::tests::a_signal_that_was_sent_still_kills";
        let death = child::dies(name, || {
            install_overflow_handler();
            // SAFETY: Plain Call: ends this process, as the test expects. The signal is raised
            // twice, because std's own handler, which was installed before ours, takes the first
            // one for a fault that will happen again.
            unsafe { libc::raise(libc::SIGSEGV) };
            // SAFETY: Plain Call: as above.
            unsafe { libc::raise(libc::SIGSEGV) };
        });
        assert_eq!(death.signal, Some(libc::SIGSEGV), "{}", death.words);
    }

    fn disable_signal_stack() {
        let size = libc::MINSIGSTKSZ;
        // SAFETY: Own Memory: no memory is used any more.
        unsafe {
            sys::set_signal_stack(libc::stack_t {
                ss_sp: ptr::null_mut(),
                ss_flags: libc::SS_DISABLE,
                ss_size: size,
            })
        };
    }
}
