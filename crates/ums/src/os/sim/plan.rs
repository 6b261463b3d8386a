//! The plan that determines a simulated run: the random sequences of its seed, and the faults.

use std::ops::Range;

/// The faults of a world. Each number says in how many of ten thousand cases the fault happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// I/O operations that move only a part of the data.
    pub short: u64,
    /// Operations that fail: with `EIO` on a file, with a reset on a socket.
    pub fail: u64,
    /// Pieces of a connection's data during whose transfer the connection breaks.
    pub cut: u64,
    /// Threads that the operating system refuses.
    pub no_thread: u64,
    /// Points after which the clock jumps by up to a second.
    pub jump: u64,
    /// Points at which a thread stops for up to ten milliseconds.
    pub stall: u64,
}

impl Faults {
    /// Returns each fault with its name.
    pub fn each(&mut self) -> [(&'static str, &mut u64); 6] {
        let Faults { short, fail, cut, no_thread, jump, stall } = self;
        [
            ("short", short),
            ("fail", fail),
            ("cut", cut),
            ("no_thread", no_thread),
            ("jump", jump),
            ("stall", stall),
        ]
    }
}

/// What determines a whole run: equal plans give equal runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The seed of all random sequences.
    pub seed: u64,
    /// The faults.
    pub faults: Faults,
    /// The range of steps (counted in points) in which threads are preempted and faults happen.
    /// Outside of it a thread runs until it waits for something.
    pub wild: Range<u64>,
}

impl Plan {
    /// Returns the plan of a seed, without further restrictions.
    pub fn new(seed: u64, faults: Faults) -> Plan {
        Plan { seed, faults, wild: 0..u64::MAX }
    }
}

/// In most cases, the longest time that an operation, a cancellation or the transfer of a piece of
/// a connection's data takes.
const LATE_MAX_NS: u64 = 200_000;
/// The longest such time in one case of twenty.
const VERY_LATE_MAX_NS: u64 = 20_000_000;

/// Returns how long such a step takes this time.
pub(super) fn lateness(when: &mut Dice) -> u64 {
    let max = if when.below(20) == 0 { VERY_LATE_MAX_NS } else { LATE_MAX_NS };
    when.below(max)
}

/// A random sequence (splitmix64). The same seed gives the same sequence.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Returns the sequence of this seed.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Returns one of several independent sequences of a seed.
    pub(super) fn of(seed: u64, which: u64) -> Dice {
        let mut dice = Dice(seed ^ which.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        Dice(dice.below(u64::MAX))
    }

    /// Returns a number below `sides`.
    pub fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides.max(1)
    }

    /// Returns true in `cases` of ten thousand cases.
    pub fn in_10_000(&mut self, cases: u64) -> bool {
        cases > 0 && self.below(10_000) < cases
    }
}
