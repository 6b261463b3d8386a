//! The saved registers of a suspended fiber, for code that makes a backtrace of the fiber without
//! resuming it.
//!
//! ```text
//!   Fiber ── saved_at() ──> a word: 0 while the fiber runs, and after its end;
//!                           otherwise its stack pointer ──> what the switch pushed ──> Registers
//! ```
//!
//! The word is a private field of corosensei's coroutine. So one trial finds the word's offset:
//! exactly one word of a fiber is an address on the fiber's stack while it is suspended, and 0 when
//! it has ended. Nothing is added to a switch. The memory is read through the kernel
//! (`/proc/self/mem`), so the trial needs no unsafe code.
//!
//! If a thread other than the fiber's reads the word, the word may change at any time. Such a
//! reader reads the word again after it has copied the frames. It must detect by other means
//! whether the fiber has been resumed and suspended again in between.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use crate::fiber::{Fiber, Resume, suspending_once};
use crate::pool::{StackConfig, StackPool};
use crate::stack::StackRange;

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
        Registers { instruction, stack: saved + 24, frame, other }
    }

    /// Returns the registers. `saved` is the saved stack pointer, and `words` are the words at that
    /// address and above.
    #[cfg(target_arch = "aarch64")]
    pub fn of(saved: u64, words: [u64; SAVED_WORDS]) -> Registers {
        let [other, frame, instruction, _] = words;
        Registers { instruction, stack: saved + 32, frame, other }
    }
}

impl Fiber {
    /// Returns the address of the word that holds the stack pointer while the fiber is suspended,
    /// and 0 while it runs. The word moves in memory with the `Fiber`, so put that in a box first.
    /// Returns `None` if the word could not be found.
    ///
    /// ```
    /// use fiber::{Fiber, StackConfig, StackPool};
    /// let mut pool = StackPool::new(StackConfig::default());
    /// let worker = Box::new(Fiber::new(pool.take()?, "worker 1", |_| ()));
    /// assert!(worker.saved_at().is_some());
    /// pool.give(worker.into_stack());
    /// # Ok::<(), fiber::StackError>(())
    /// ```
    pub fn saved_at(&self) -> Option<usize> {
        static OFFSET: OnceLock<Option<usize>> = OnceLock::new();
        let offset = (*OFFSET.get_or_init(find))?;
        Some(std::ptr::from_ref(self).expose_provenance() + offset)
    }
}

const WORD: usize = size_of::<usize>();
const WORDS: usize = size_of::<Fiber>() / WORD;

/// Finds the word by a trial with a fiber, and returns its offset in a `Fiber`, in bytes.
fn find() -> Option<usize> {
    let memory = File::open("/proc/self/mem").ok()?;
    let config = StackConfig { size: 16 << 10, precommit: false, keep_warm: 0 };
    let mut pool = StackPool::new(config);
    let stack = pool.take().ok()?;
    let range = stack.range();
    let mut fiber = Box::new(suspending_once(stack));
    let mut looks = Vec::new();
    let mut looked = |fiber: &Fiber| looks.push(words(&memory, fiber));
    let mut how = Resume::Suspended;
    while how == Resume::Suspended {
        how = fiber.resume();
        looked(&fiber);
    }
    pool.give(fiber.into_stack());
    let [Some(suspended), Some(ended)] = looks[..] else { return None };
    the_only_one(&suspended, &ended, range)
}

fn the_only_one(
    suspended: &[usize; WORDS],
    ended: &[usize; WORDS],
    range: StackRange,
) -> Option<usize> {
    let is_it = |at: &usize| range.contains(suspended[*at]) && ended[*at] == 0;
    let mut found = (0..WORDS).filter(is_it);
    let at = found.next()?;
    found.next().is_none().then_some(at * WORD)
}

/// Returns the words of a `Fiber`. The kernel reads them, because in Rust a read of padding would
/// be undefined behaviour.
fn words(memory: &File, fiber: &Fiber) -> Option<[usize; WORDS]> {
    let mut bytes = [0; WORDS * WORD];
    let at = std::ptr::from_ref(fiber).expose_provenance();
    memory.read_exact_at(&mut bytes, at as u64).ok()?;
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<WORD>().0) {
        *word = usize::from_ne_bytes(*bytes);
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code)] // Unsafe calls that end threads, or suspend a fiber.

    use super::*;

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
        // The next instruction is in the code of this program, so not far from `find`.
        let here = find as *const () as u64;
        assert!(registers.instruction.abs_diff(here) < 1 << 30, "{registers:?} and {here:#x}");
        assert!(range.contains(registers.stack as usize));
        assert_eq!(fiber.resume(), Resume::Finished);
        assert_eq!(word(&memory, at), 0, "when it has ended");
        pool.give(fiber.into_stack());
    }

    #[test]
    fn two_words_that_look_alike_are_no_answer() {
        let range = StackRange::new(4096, 8192).unwrap();
        let mut suspended = [0; WORDS];
        assert_eq!(the_only_one(&suspended, &[0; WORDS], range), None);
        suspended[1] = 5000;
        assert_eq!(the_only_one(&suspended, &[0; WORDS], range), Some(WORD));
        assert_eq!(the_only_one(&suspended, &[5000; WORDS], range), None, "it stays");
        suspended[2] = 5008;
        assert_eq!(the_only_one(&suspended, &[0; WORDS], range), None);
    }
}
