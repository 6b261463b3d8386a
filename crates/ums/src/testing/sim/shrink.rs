//! Finds a simpler run that fails in the same way: one with fewer kinds of faults, and with
//! preemptions and faults in a part of the run only, that takes no more steps than the first run.
//!
//! Each attempt runs the whole story again, and is kept if it fails with the same message. So the
//! result certainly fails, but a still simpler run may fail, too.

use std::sync::Arc;

use super::{Ended, Plan, run_plan};
use crate::os::sim::OUTSIDE;

/// A story that can be run again.
pub(super) type Story = Arc<dyn Fn() + Send + Sync>;

/// Returns the simplest failing run that was found, and its result.
pub fn shrink(plan: &Plan, ended: &Ended, story: &Arc<dyn Fn() + Send + Sync>) -> (Plan, Ended) {
    let mut best = (plan.clone(), ended.clone());
    if ended.failed.as_ref().is_some_and(|why| why.contains(OUTSIDE)) {
        // Each attempt would take seconds, and leave a blocked thread behind.
        return best;
    }
    let (wanted, steps) = (words(ended), ended.steps);
    let fails = |plan: Plan, best: &mut (Plan, Ended)| {
        let story = Arc::clone(story);
        let ended = run_plan(&plan, move || story());
        let fails = words(&ended) == wanted && ended.steps <= steps;
        if fails {
            *best = (plan, ended);
        }
        fails
    };
    for which in 0..best.0.faults.each().len() {
        let mut less = best.0.clone();
        let faults = less.faults.each();
        if std::mem::take(faults.into_iter().nth(which).map_or(&mut 0, |(_, cases)| cases)) > 0 {
            fails(less, &mut best);
        }
    }
    let (mut low, mut high) = (0, best.1.steps);
    while low < high {
        let end = low + (high - low) / 2;
        let wild = 0..end;
        if fails(Plan { wild, ..best.0.clone() }, &mut best) { high = end } else { low = end + 1 }
    }
    let (mut low, mut high) = (0, best.0.wild.end.min(best.1.steps));
    while low < high {
        let start = high - (high - low) / 2;
        let wild = start..best.0.wild.end;
        if fails(Plan { wild, ..best.0.clone() }, &mut best) {
            low = start
        } else {
            high = start - 1
        }
    }
    best
}

/// Returns the first two lines of the failure without their digits: a panic, and what came of it.
fn words(ended: &Ended) -> Option<String> {
    let lines: Vec<_> = ended.failed.as_ref()?.lines().take(2).collect();
    Some(lines.join("\n").chars().filter(|c| !c.is_ascii_digit()).collect())
}
