//! The flags of many sleepers, and the marks of many places where they look, as bits.
//!
//! A *mask* has a bit for each number. The bits of 512 numbers are in one cache line, so a choice
//! among them reads one line, and for the largest node two. A search begins at a number that the
//! caller gives, so that callers with different numbers do not compete for the same bit.
//!
//! [`IdleMask`] has the flags of sleepers (the protocol of `asleep`). A bit is set while its
//! sleeper sleeps or is about to.
//!
//! [`WorkMask`] marks places, so that a sleeper's look (S3) costs as much as there are marks, not
//! as there are places. A waker marks the place before it reads the flags of the sleepers, and a
//! thread that finds a marked place empty removes the mark:
//!
//! ```text
//!   waker                                      a thread that looks
//!   W1 put something into the place            L1 the place is marked and empty:
//!   W2 fence                                      remove the mark              has()
//!   P1 if it has no mark, mark it   post()     L2 fence                        has()
//!   P2 and fence                    post()     L3 look into it again           has()
//!   W3 read the flags of the sleepers          L4 not empty: mark it again     has()
//! ```
//!
//! **A place with something in it has a mark**, unless a thread is between L1 and L4 or between W1
//! and P1. The fences W2 and L2 have an order. If W2 comes first, L3 finds what W1 has put there.
//! If L2 comes first, P1 sees that the mark was removed.
//!
//! **No sleeper sleeps beside an unmarked place** although its S3 looks only at marked ones. Let
//! S3 miss a mark. If this waker has set it, then S2 comes before P2, and W3 sees the sleeper's
//! flag, by the proof in `asleep`. If P1 has found a mark that S3 did not see, that mark was set by
//! another waker, which has to fence and to read the flags after it: that one sees the sleeper's
//! flag, and whichever sleeper it wakes looks into the same place. If the mark was missing between
//! L1 and L4, the thread that looks takes what is there, and wakes a sleeper if there is more: the
//! caller of `has` must do that (scheduler/peers). P1 may also find a mark that a thread has set
//! again (L4) although another then took what was there. W3 sees the sleeper's flag then, too, if
//! all threads see a store at the same time, as on x86-64 and ARMv8.
//!
//! What this file does not do: it wakes no thread, and does not know what is in a place.

use std::sync::atomic::Ordering;

use crate::os::atomic::{AtomicU64, fence};

/// How many bits a word has.
const BITS: usize = u64::BITS as usize;
/// How many words are in a cache line.
const WORDS: usize = 8;

/// Some words of a mask, alone in their cache line.
#[repr(align(64))]
struct Line([AtomicU64; WORDS]);

/// A bit for each number.
struct Mask {
    lines: Box<[Line]>,
    /// How many words are in use.
    words: usize,
}

impl Mask {
    fn new(count: usize) -> Mask {
        let words = count.div_ceil(BITS).max(1);
        let line = |_| Line(std::array::from_fn(|_| AtomicU64::new(0)));
        Mask { lines: (0..words.div_ceil(WORDS)).map(line).collect(), words }
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        &self.lines[at / WORDS].0[at % WORDS]
    }

    #[inline]
    fn is_set(&self, index: usize, order: Ordering) -> bool {
        self.word(index / BITS).load(order) & bit(index) != 0
    }

    fn set(&self, index: usize, order: Ordering) {
        self.word(index / BITS).fetch_or(bit(index), order);
    }

    /// Clears the bit. Returns whether it was set.
    fn clear(&self, index: usize) -> bool {
        self.word(index / BITS).fetch_and(!bit(index), Ordering::AcqRel) & bit(index) != 0
    }

    /// Returns the first number from `start` on, of those whose bit is set, that `wanted` accepts.
    /// The words are read one after the other, from that of `start` on; in each, the numbers from
    /// `start` modulo 64 on come first.
    #[inline]
    fn find(&self, start: usize, mut wanted: impl FnMut(usize) -> bool) -> Option<usize> {
        let turn = start % BITS;
        for step in 0..self.words {
            let at = start / BITS + step;
            let at = if at < self.words { at } else { at - self.words };
            let word = self.word(at).load(Ordering::Relaxed);
            let mut bits = word.rotate_right(turn as u32);
            while bits != 0 {
                let number = at * BITS + (bits.trailing_zeros() as usize + turn) % BITS;
                bits &= bits - 1;
                if wanted(number) {
                    return Some(number);
                }
            }
        }
        None
    }
}

#[inline]
fn bit(index: usize) -> u64 {
    1 << (index % BITS)
}

/// The flags of many sleepers that look at the same places.
pub struct IdleMask(Mask);

impl IdleMask {
    /// Makes the flags of this many sleepers, which are awake.
    pub fn new(count: usize) -> IdleMask {
        IdleMask(Mask::new(count))
    }

    /// Steps S1 and S2: sets the bit of this sleeper.
    pub fn announce(&self, index: usize) {
        self.0.set(index, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Step S5. Returns true if a waker has taken the bit since the announcement; everything that
    /// this waker did before is visible from here on.
    pub fn withdraw(&self, index: usize) -> bool {
        !self.0.clear(index)
    }

    /// Returns whether the bit of this sleeper is set. If the sleeper asks, false means that a
    /// waker has taken it since the announcement.
    pub fn is_set(&self, index: usize) -> bool {
        self.0.is_set(index, Ordering::Relaxed)
    }

    /// W2 and W3: takes the bit of one sleeper other than `index`, which the caller then wakes. The
    /// caller has put something there, or seen that something is there.
    pub fn take_other(&self, index: usize) -> Option<usize> {
        fence(Ordering::SeqCst);
        self.take_other_after_wake(index)
    }

    /// W3 alone: as [`IdleMask::take_other`], of a caller that has called `Asleep::wake` since it
    /// has put something there. Its fence is W2 here too.
    pub fn take_other_after_wake(&self, index: usize) -> Option<usize> {
        // If another waker takes the bit first, it wakes that sleeper; this one wants the next.
        self.0.find(index, |other| other != index && self.0.clear(other))
    }
}

/// The marks of the places that may have something.
pub struct WorkMask(Mask);

impl WorkMask {
    /// Makes the marks of this many places, which are empty.
    pub fn new(count: usize) -> WorkMask {
        WorkMask(Mask::new(count))
    }

    /// Steps P1 and P2. The caller has put something into this place, and has fenced (W2); it then
    /// reads the flags of the sleepers (W3). If the place has a mark, this is one load.
    #[inline]
    pub fn post(&self, index: usize) {
        // Acquire: if a sleeper that looks has just set the mark (L4), W3 sees its flag.
        if !self.0.is_set(index, Ordering::Acquire) {
            self.0.set(index, Ordering::AcqRel);
            fence(Ordering::SeqCst);
        }
    }

    /// Returns the first marked place from `start` on that `wanted` accepts.
    pub fn find(&self, start: usize, mut wanted: impl FnMut(usize) -> bool) -> Option<usize> {
        // Others may have removed marks since the word was read.
        self.0.find(start, |at| self.0.is_set(at, Ordering::Relaxed) && wanted(at))
    }

    /// Returns whether this marked place has something. If it does not, removes its mark (L1 to
    /// L4). After true, the caller takes what is there or wakes a sleeper for it.
    pub fn has(&self, index: usize, is_empty: impl Fn() -> bool) -> bool {
        if !is_empty() {
            return true;
        }
        self.0.clear(index);
        fence(Ordering::SeqCst);
        let has = !is_empty();
        if has {
            // A waker may have found the mark before L1. No one else marks the place for it.
            self.0.set(index, Ordering::AcqRel);
        }
        has
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_search_visits_each_number_once_whatever_it_begins_with() {
        for count in [1, 2, 63, 64, 65, 256, 1024] {
            let mask = Mask::new(count);
            (0..count).for_each(|index| mask.set(index, Ordering::Relaxed));
            for start in [0, count / 2, count - 1] {
                let mut seen = Vec::new();
                assert_eq!(mask.find(start, |at| (seen.push(at), false).1), None);
                assert_eq!(seen[0], start, "{count}");
                seen.sort_unstable();
                assert_eq!(seen, (0..count).collect::<Vec<_>>(), "from {start} of {count}");
            }
        }
    }

    #[test]
    fn every_idle_scheduler_is_found_once_and_never_the_caller() {
        let mask = IdleMask::new(1024);
        let idle = [0, 63, 64, 511, 512, 1023];
        idle.into_iter().for_each(|index| mask.announce(index));
        let mut found: Vec<_> = std::iter::from_fn(|| mask.take_other(511)).collect();
        assert_eq!(found[0], 512, "the words from that of the caller on");
        found.sort_unstable();
        assert_eq!(found, [0, 63, 64, 512, 1023]);
        assert!(!mask.withdraw(511), "it was not taken");
        assert!(mask.withdraw(64));
    }

    #[test]
    fn a_mark_stays_while_there_is_something() {
        let mask = WorkMask::new(70);
        mask.post(69);
        assert_eq!(mask.find(3, |at| mask.has(at, || false)), Some(69));
        assert_eq!(mask.find(3, |at| mask.has(at, || true)), None);
        assert_eq!(mask.find(3, |_| true), None, "the mark was removed");
    }
}
