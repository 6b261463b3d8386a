//! Which thread of a simulated world runs next. The seed chooses one of two rules.
//!
//! * *Random walk*: at one of three points, the token goes to a thread that is chosen at random.
//! * *Priorities*: each thread has a random priority, and the runnable thread with the highest one
//!   has the token. At one to three points of the run, which are chosen at random, the running
//!   thread gets the lowest priority. So a bug that needs a certain order of two to four actions is
//!   found with a probability that does not fall as threads are added (Burckhardt et al., *A
//!   Randomized Scheduler with Probabilistic Guarantees of Finding Bugs*, 2010).
//!
//! A thread that polls never waits, so by priorities alone the threads with lower priorities would
//! never run. So a thread that has passed many points in succession gets the lowest priority, too.

use super::plan::Dice;

/// In the random walk, at one of this many points the token is passed.
const CHANGE_IN: u64 = 3;
/// How many points a thread may pass in succession while others can run, by priorities.
const PATIENCE: u64 = 400;
/// The initial priorities are at least this. Each further change takes the next lower number.
const INITIAL: u64 = 1 << 32;

enum Rule {
    RandomWalk,
    Priorities {
        dice: Dice,
        /// Higher goes first.
        of: Vec<u64>,
        /// The steps at which the running thread gets the lowest priority.
        changes: Vec<u64>,
        /// The lowest priority that was given so far.
        lowest: u64,
        /// The thread that passed the last point, and how many it has passed in succession.
        last: (usize, u64),
    },
}

/// The rule of one world, and its state.
pub(super) struct Order(Rule);

impl Order {
    /// Returns the rule that a seed chooses.
    pub fn of(seed: u64) -> Order {
        let mut dice = Dice::of(seed, 6);
        if dice.below(2) == 0 {
            return Order(Rule::RandomWalk);
        }
        // Runs differ in length, so the seed also chooses the part of the run for the changes.
        let within = 1 << (5 + dice.below(8));
        let changes = (0..=dice.below(3)).map(|_| dice.below(within)).collect();
        let (of, lowest, last) = (Vec::new(), INITIAL, (0, 0));
        Order(Rule::Priorities { dice, of, changes, lowest, last })
    }

    /// Returns whether the rule is the random walk.
    pub fn walks_at_random(&self) -> bool {
        matches!(self.0, Rule::RandomWalk)
    }

    /// Adds the next thread.
    pub fn add(&mut self) {
        if let Rule::Priorities { dice, of, .. } = &mut self.0 {
            of.push(INITIAL + dice.below(INITIAL));
        }
    }

    /// Returns one of these threads, which can run.
    pub fn choose(
        &self,
        which: &mut Dice,
        ready: impl Iterator<Item = usize> + Clone,
    ) -> Option<usize> {
        match &self.0 {
            Rule::RandomWalk => {
                let count = ready.clone().count() as u64;
                let mut ready = ready;
                ready.nth(which.below(count) as usize)
            }
            Rule::Priorities { of, .. } => ready.max_by_key(|thread| of[*thread]),
        }
    }

    /// Returns whether another thread may get the token when this thread passes its next point.
    pub fn is_preempted(&mut self, which: &mut Dice, thread: usize, step: u64) -> bool {
        let Rule::Priorities { of, changes, lowest, last, .. } = &mut self.0 else {
            return which.below(CHANGE_IN) == 0;
        };
        *last = if last.0 == thread { (thread, last.1 + 1) } else { (thread, 1) };
        // A change whose step was no point of a thread happens at the next one.
        let is_due = changes.iter().any(|change| *change <= step);
        if is_due || last.1 > PATIENCE {
            changes.retain(|change| *change > step);
            *lowest -= 1;
            of[thread] = *lowest;
            last.1 = 0;
        }
        true
    }
}
