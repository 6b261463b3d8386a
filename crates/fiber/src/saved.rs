//! The saved registers of a suspended fiber, for code that makes a backtrace of the fiber without
//! resuming it.
//!
//! ```text
//!   Fiber ── saved_at() ──> a word: 0 while the fiber runs, and after its end;
//!                           otherwise its stack pointer ──> what the switch pushed ──> Registers
//! ```
//!
//! Nothing is added to a switch for this.
//!
//! If a thread other than the fiber's reads the word, the word may change at any time. Such a
//! reader reads the word again after it has copied the frames. It must detect by other means
//! whether the fiber has been resumed and suspended again in between.

/// The number of words that a switch pushes, which [`Registers::of`] takes.
#[cfg(target_arch = "x86_64")]
pub const SAVED_WORDS: usize = 3;
/// The number of words that a switch pushes, which [`Registers::of`] takes.
#[cfg(target_arch = "aarch64")]
pub const SAVED_WORDS: usize = 4;

/// The registers that a switch saves of a suspended fiber. The values of the others are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// The next instruction.
    pub instruction: u64,
    /// The stack pointer as it was before the switch pushed its words.
    pub stack: u64,
    /// The frame pointer: rbp, x29.
    pub frame: u64,
    /// The other register that a switch saves: rbx, x19.
    pub other: u64,
}

impl Registers {
    /// Returns the registers. `saved` is the saved stack pointer, and `words` are the words at that
    /// address and above.
    #[cfg(target_arch = "x86_64")]
    pub fn of(saved: u64, words: [u64; SAVED_WORDS]) -> Registers {
        let [instruction, other, frame] = words;
        // Bounded: these words are on the stack, which does not end at the last address.
        Registers { instruction, stack: saved + 24, frame, other }
    }

    /// Returns the registers. `saved` is the saved stack pointer, and `words` are the words at that
    /// address and above.
    #[cfg(target_arch = "aarch64")]
    pub fn of(saved: u64, words: [u64; SAVED_WORDS]) -> Registers {
        let [other, frame, instruction, _] = words;
        // Bounded: these words are on the stack, which does not end at the last address.
        Registers { instruction, stack: saved + 32, frame, other }
    }
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code)] // Unsafe calls that end threads, or suspend a fiber.

    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::fiber::Fiber;
    use crate::pool::{StackConfig, StackPool};
    use crate::switch::Resume;

    fn word(memory: &File, at: u64) -> u64 {
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, at).expect("it is mapped");
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn the_registers_of_a_suspended_fiber_are_found_and_none_of_a_running_or_ended_one() {
        let memory = File::open("/proc/self/mem").unwrap();
        let mut pool =
            StackPool::new(StackConfig { size: 64 << 10, precommit: false, keep_warm: 1 });
        let stack = pool.take().unwrap();
        let range = stack.range();
        let place = std::rc::Rc::new(std::cell::Cell::new(0));
        let (inside, seen) = (place.clone(), std::rc::Rc::new(std::cell::Cell::new(1)));
        let told = seen.clone();
        let mut fiber = Box::new(Fiber::new(stack, "looked at", move |me| {
            let memory = File::open("/proc/self/mem").unwrap();
            told.set(word(&memory, inside.get()));
            // SAFETY: Contract: this is the fiber that `me` was made for.
            unsafe { me.suspend() };
        }));
        let at = fiber.saved_at().expect("found by trying") as u64;
        place.set(at);
        assert_eq!(fiber.resume(), Resume::Suspended);
        assert_eq!(seen.get(), 0, "while it runs");
        let saved = word(&memory, at);
        assert!(range.contains(saved as usize));
        let words = std::array::from_fn(|n| word(&memory, saved + 8 * n as u64));
        let registers = Registers::of(saved, words);
        // The next instruction is in the code of this program, so not far from `word`.
        let here = word as *const () as u64;
        assert!(registers.instruction.abs_diff(here) < 1 << 30, "{registers:?} and {here:#x}");
        assert!(range.contains(registers.stack as usize));
        assert_eq!(fiber.resume(), Resume::Finished);
        assert_eq!(word(&memory, at), 0, "when it has ended");
        pool.give(fiber.into_stack());
    }
}
