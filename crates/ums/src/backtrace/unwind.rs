//! Finds which functions a thread was in: from a sample to the functions' names.
//!
//! This runs on the monitor's thread and works on a copy of the sampled thread's stack. The sampled
//! thread keeps running meanwhile, so unwinding may take the loader's lock and allocate memory for
//! debug information: the sampled thread can release a lock that it holds.
//!
//! `loaded.rs` has what is known of the loaded objects, and `symbols.rs` finds the names.

use std::collections::HashMap;

use framehop::{CacheNative, MayAllocateDuringUnwind, UnwindRegsNative, Unwinder, UnwinderNative};

use super::loaded;
use super::symbols::Symbols;
use crate::os::linux::own_memory::OwnMemory;
use crate::os::linux::sample::{self, Sample};
use crate::record::frame::{Frame, end_at_root};
use crate::watch::Waits;

/// Number of frames that are kept.
const FRAMES_MAX: usize = 64;

/// Finds the frames in samples. Reads the unwind information once for many samples.
pub(crate) struct Walker {
    unwinder: UnwinderNative<Vec<u8>, MayAllocateDuringUnwind>,
    cache: CacheNative<MayAllocateDuringUnwind>,
    symbols: Symbols,
    /// Names by address.
    names: HashMap<usize, Vec<Frame>>,
}

impl Walker {
    pub(crate) fn new() -> Walker {
        let mut unwinder = UnwinderNative::new();
        loaded::modules().into_iter().for_each(|module| unwinder.add_module(module));
        let (cache, symbols) = (CacheNative::new(), Symbols::new());
        Walker { unwinder, cache, symbols, names: HashMap::new() }
    }

    /// Returns the frames of a sample, the innermost first.
    pub(crate) fn frames(&mut self, sample: &Sample) -> Vec<Frame> {
        let addresses = self.walk(sample);
        let name = |address: usize| {
            let names = self.names.entry(address);
            names.or_insert_with(|| self.symbols.named(address)).clone()
        };
        let mut frames: Vec<_> = addresses.into_iter().flat_map(name).collect();
        end_at_root(&mut frames);
        frames
    }

    /// Returns the addresses of the frames, the innermost first.
    fn walk(&mut self, sample: &Sample) -> Vec<usize> {
        let mut read = |address| sample.word(address).ok_or(());
        let (instruction, registers) = (sample.instruction(), registers(sample));
        let mut frames =
            self.unwinder.iter_frames(instruction, registers, &mut self.cache, &mut read);
        let mut addresses = Vec::new();
        while addresses.len() < FRAMES_MAX {
            match frames.next() {
                Ok(Some(frame)) => addresses.push(frame.address_for_lookup() as usize),
                _ => break,
            }
        }
        addresses
    }
}

/// Returns the frames of a sample, the innermost first.
pub(crate) fn frames(sample: &Sample) -> Vec<Frame> {
    Walker::new().frames(sample)
}

/// Returns the frames of a thread that was seen to wait in the kernel. It does not send the thread
/// a signal, which could end a system call. If a function keeps a frame pointer, as those of the
/// standard library do, the list ends with that function, because the position of its frame is not
/// known. The caller checks afterwards that the thread still waits there.
pub(crate) fn frames_of_waiting(waits: &Waits) -> Vec<Frame> {
    let Some(memory) = OwnMemory::open() else { return Vec::new() };
    let stack = memory.copy_up_to(waits.sp as usize, sample::COPY_MAX);
    frames(&Sample::of_sleeping(waits.pc, waits.sp, stack))
}

/// Returns the frames with these return addresses, which a worker has recorded itself.
pub(crate) fn frames_of(addresses: &[usize]) -> Vec<Frame> {
    let symbols = Symbols::new();
    addresses.iter().flat_map(|address| symbols.named(address.saturating_sub(1))).collect()
}

#[cfg(target_arch = "x86_64")]
fn registers(sample: &Sample) -> UnwindRegsNative {
    use framehop::x86_64::Reg;
    let all = [
        Reg::RAX,
        Reg::RDX,
        Reg::RCX,
        Reg::RBX,
        Reg::RSI,
        Reg::RDI,
        Reg::RBP,
        Reg::RSP,
        Reg::R8,
        Reg::R9,
        Reg::R10,
        Reg::R11,
        Reg::R12,
        Reg::R13,
        Reg::R14,
        Reg::R15,
    ];
    let mut registers = UnwindRegsNative::new(sample.instruction(), sample.stack_pointer(), 0);
    for (register, value) in all.into_iter().zip(sample.regs) {
        registers.set(register, value);
    }
    registers
}

#[cfg(target_arch = "aarch64")]
fn registers(sample: &Sample) -> UnwindRegsNative {
    UnwindRegsNative::new(sample.regs[3], sample.stack_pointer(), sample.regs[2])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::linux::sample;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    static STOP: AtomicBool = AtomicBool::new(false);

    #[inline(never)]
    fn guilty_function(told: &AtomicU32) -> u64 {
        told.store(crate::os::thread_number(), Ordering::SeqCst);
        let mut turns = 0;
        while !STOP.load(Ordering::Relaxed) {
            turns += 1;
        }
        turns
    }

    #[inline(never)]
    fn its_caller(told: &AtomicU32) -> u64 {
        std::hint::black_box(guilty_function(told)) + 1
    }

    #[test]
    fn the_functions_of_a_thread_that_computes_are_named_b40() {
        let number = AtomicU32::new(0);
        let frames = std::thread::scope(|scope| {
            scope.spawn(|| {
                sample::this_thread_is_on(fiber::StackRange::of_this_thread());
                its_caller(&number);
            });
            while number.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let sample = sample::take(number.load(Ordering::SeqCst));
            STOP.store(true, Ordering::SeqCst);
            frames(&sample.expect("it can answer"))
        });
        let at = |name: &str| frames.iter().position(|frame| frame.name.contains(name));
        let guilty = at("guilty_function").unwrap_or_else(|| panic!("{frames:#?}"));
        let caller = at("its_caller").unwrap_or_else(|| panic!("{frames:#?}"));
        assert!(guilty < caller, "{frames:#?}");
    }

    #[inline(never)]
    fn guilty_sleeper(told: &AtomicU32) {
        told.store(crate::os::thread_number(), Ordering::SeqCst);
        while !STOP_SLEEPING.load(Ordering::Relaxed) {
            let half_a_second = rustix::event::Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
            let _ = std::hint::black_box(rustix::event::poll(&mut [], Some(&half_a_second)));
        }
    }

    static STOP_SLEEPING: AtomicBool = AtomicBool::new(false);

    #[test]
    fn the_functions_of_a_thread_that_sleeps_in_the_kernel_are_named_without_waking_it_b40() {
        use crate::watch::state;
        let number = AtomicU32::new(0);
        let frames = std::thread::scope(|scope| {
            scope.spawn(|| guilty_sleeper(&number));
            let sleeps = |waits: &Waits| waits.call.is_some_and(|call| call != libc::SYS_futex);
            let waits = loop {
                let number = number.load(Ordering::SeqCst) as i32;
                if let Some(waits) = state::look_at(number).filter(sleeps) {
                    break waits;
                }
                std::thread::yield_now();
            };
            let frames = frames_of_waiting(&waits);
            STOP_SLEEPING.store(true, Ordering::Relaxed);
            frames
        });
        let is_there = |name: &str| frames.iter().any(|frame| frame.name.contains(name));
        assert!(is_there("guilty_sleeper"), "{frames:#?}");
    }

    #[test]
    fn what_a_worker_recorded_of_itself_is_named_b40() {
        let mut addresses = Vec::new();
        crate::os::linux::plain::each_caller(|address, _| {
            addresses.push(address);
            true
        });
        let frames = frames_of(&addresses);
        let name = "what_a_worker_recorded_of_itself_is_named_b40";
        assert!(frames.iter().any(|frame| frame.name.contains(name)), "{frames:#?}");
    }
}
