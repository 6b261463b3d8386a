//! The profile of stalls: their backtraces, merged, with the time that was spent in each.
//!
//! Many reports of one function are one problem. What matters is the total time for which
//! schedulers stood still in it, so the times of equal backtraces are added up. The text form is
//! the one that tools for flame graphs read: one line for each stack, outermost function first:
//!
//! ```text
//! app::main;app::import;app::parse 1834
//! ```
//!
//! A stall counts up to the monitor's last look at it. If its backtrace was not taken, because
//! there were too many reports, it counts under `(no backtrace)`.

use std::collections::HashMap;
use std::time::Duration;

use crate::os::lock::Lock;
use crate::record::frame::Frame;

/// Number of different stacks that are kept; all further stacks are counted together.
const STACKS_MAX: usize = 256;
/// The name under which stalls without a backtrace are counted.
const NOT_TAKEN: &str = "(no backtrace)";
const TOO_MANY: &str = "(other stacks)";

/// Stalls with the same backtrace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StallStack {
    /// The functions of the stack, the outermost first, with `;` between them.
    pub stack: String,
    /// The total time that schedulers stood still in it.
    pub total: Duration,
    /// The number of these stalls.
    pub stalls: u64,
}

/// Time and number of stalls by stack.
#[derive(Debug, Default)]
pub(super) struct Profile(Lock<HashMap<String, (u64, u64)>>);

impl Profile {
    /// Adds time and stalls to a stack.
    pub fn add(&self, stack: &str, ns: u64, stalls: u64) {
        let mut all = self.0.lock();
        let known = all.contains_key(stack) || all.len() < STACKS_MAX;
        let sum = all.entry(if known { stack } else { TOO_MANY }.to_owned()).or_default();
        *sum = (sum.0.saturating_add(ns), sum.1.saturating_add(stalls));
    }

    /// Returns the stacks, those with the most time first.
    pub fn read(&self) -> Vec<StallStack> {
        let stack = |(stack, (ns, stalls)): (&String, &(u64, u64))| StallStack {
            stack: stack.clone(),
            total: Duration::from_nanos(*ns),
            stalls: *stalls,
        };
        let mut all: Vec<_> = self.0.lock().iter().map(stack).collect();
        all.sort_by(|a, b| b.total.cmp(&a.total).then(a.stack.cmp(&b.stack)));
        all
    }
}

/// Returns a backtrace as one text, the outermost function first.
pub(super) fn folded(backtrace: &[Frame]) -> String {
    if backtrace.is_empty() {
        return NOT_TAKEN.to_owned();
    }
    let names = backtrace.iter().rev().map(|frame| frame.name.replace([';', '\n'], ":"));
    names.collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_are_one_with_the_sum_of_their_times_b42() {
        let profile = Profile::default();
        let frames = |names: &[&str]| -> Vec<Frame> {
            names.iter().map(|name| Frame::new((*name).into(), None)).collect()
        };
        let (parse, sort) = (frames(&["parse", "main"]), frames(&["sort;ed", "main"]));
        assert_eq!(folded(&parse), "main;parse");
        assert_eq!(folded(&[]), NOT_TAKEN);
        profile.add(&folded(&sort), 300_000_000, 1);
        profile.add(&folded(&parse), 200_000_000, 1);
        profile.add(&folded(&parse), 250_000_000, 0);
        let all = profile.read();
        let ms = Duration::from_millis;
        assert_eq!((&*all[0].stack, all[0].total, all[0].stalls), ("main;parse", ms(450), 1));
        assert_eq!((&*all[1].stack, all[1].total, all[1].stalls), ("main;sort:ed", ms(300), 1));
        for n in 0..2 * STACKS_MAX {
            profile.add(&format!("main;f{n}"), 1, 1);
        }
        let all = profile.read();
        assert_eq!(all.len(), STACKS_MAX + 1);
        assert_eq!(all.iter().map(|s| s.stalls).sum::<u64>(), 2 + 2 * STACKS_MAX as u64);
    }
}
