//! Runs a story with many seeds until one fails, and reports the failure.

use std::fmt::Write as _;
use std::sync::Arc;

use super::{Ended, Faults, Plan, run_plan, shrink};

/// How many lines of a trace are printed.
const LINES: usize = 40;

/// The options of [`check`].
#[derive(Clone, Debug)]
pub struct Check {
    /// The seeds. The environment variable `UMS_SEED` replaces them by one seed.
    pub seeds: std::ops::Range<u64>,
    /// The faults that may occur.
    pub faults: Faults,
    /// The command that runs this check again. A report puts `UMS_SEED` and other variables before
    /// it.
    pub command: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// How many seeds were run.
    pub seeds: u64,
    /// The median of the numbers of steps that they took.
    pub median_steps: u64,
}

impl Check {
    /// Returns the plans of its seeds. If the environment variable `UMS_SEED` is set, returns only
    /// the plan of that seed, limited by the variables `UMS_WITHOUT` and `UMS_WILD`.
    pub(super) fn plans(&self) -> impl Iterator<Item = Plan> + use<> {
        let (faults, seeds) = (self.faults, self.seeds.clone());
        let one = variable("UMS_SEED").and_then(|seed| seed.parse().ok());
        let seeds = one.map_or(seeds, |seed: u64| seed..seed + 1);
        seeds.map(
            move |seed| if one.is_some() { told(seed, faults) } else { Plan::new(seed, faults) },
        )
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the plan of this seed, limited by the environment variables `UMS_WITHOUT` and
/// `UMS_WILD`.
fn told(seed: u64, faults: Faults) -> Plan {
    let mut plan = Plan::new(seed, faults);
    let without = variable("UMS_WITHOUT").unwrap_or_default();
    for (name, cases) in plan.faults.each() {
        if without.split(',').any(|other| other == name) {
            *cases = 0;
        }
    }
    let wild = variable("UMS_WILD").unwrap_or_default();
    if let Some((from, to)) = wild.split_once("..") {
        plan.wild = from.parse().unwrap_or(0)..to.parse().unwrap_or(u64::MAX);
    }
    plan
}

/// Returns the environment variables that, written before a command, produce this plan.
fn typed(plan: &Plan, faults: Faults) -> String {
    let mut text = format!("UMS_SEED={}", plan.seed);
    let (mut whole, mut less) = (faults, plan.faults);
    let without: Vec<_> = whole
        .each()
        .into_iter()
        .zip(less.each())
        .filter(|((_, before), (_, after))| before != after)
        .map(|((name, _), _)| name)
        .collect();
    if !without.is_empty() {
        let _ = write!(text, " UMS_WITHOUT={}", without.join(","));
    }
    if plan.wild != (0..u64::MAX) {
        let end = if plan.wild.end == u64::MAX { String::new() } else { plan.wild.end.to_string() };
        let _ = write!(text, " UMS_WILD={}..{end}", plan.wild.start);
    }
    text
}

/// Returns true if the environment asks for one seed.
pub fn replays() -> bool {
    variable("UMS_SEED").is_some()
}

/// Runs a story with each seed, until one fails.
///
/// # Panics
/// If a seed fails. The message contains the failure, the end of its trace, and the command that
/// replays it.
pub fn check(check: &Check, story: impl Fn() + Send + Sync + 'static) -> Checked {
    let story: super::shrink::Story = Arc::new(story);
    let mut steps = Vec::new();
    for plan in check.plans() {
        let told = Arc::clone(&story);
        let ended = run_plan(&plan, move || told());
        if let Some(why) = &ended.failed {
            // Printed immediately, because the search for a simpler failing run runs the story
            // many times.
            let why = why.lines().next().unwrap_or_default();
            eprintln!("seed {} fails after {} steps: {why}", plan.seed, ended.steps);
            panic!("{}", report(check, &plan, &ended, &story));
        }
        steps.push(ended.steps);
    }
    steps.sort_unstable();
    let median_steps = steps.get(steps.len() / 2).copied().unwrap_or(0);
    Checked { seeds: steps.len() as u64, median_steps }
}

/// Describes the failure, by the simplest run that was found.
pub(super) fn report(
    check: &Check,
    plan: &Plan,
    ended: &Ended,
    story: &super::shrink::Story,
) -> String {
    let (short, fails) = shrink(plan, ended, story);
    let lines: Vec<&str> = fails.trace.lines().collect();
    let tail = &lines[lines.len().saturating_sub(LINES)..];
    let (seed, steps, command) = (plan.seed, ended.steps, &check.command);
    let why = fails.failed.as_deref().unwrap_or_default();
    let mut text = format!("seed {seed} fails after {steps} steps: {}\n", why.trim_end());
    if short != *plan {
        let when = match &short.wild {
            wild if wild.is_empty() => "threads switch only where they wait".to_owned(),
            wild => format!("threads are preempted and things go wrong at steps {wild:?} only"),
        };
        let _ = writeln!(text, "shrunk: {} steps, {:?}, {when}", fails.steps, short.faults);
    }
    let _ = writeln!(text, "its end:\n{}", tail.join("\n"));
    let _ = writeln!(text, "replay: {} {command}", typed(plan, check.faults));
    if short != *plan {
        let _ = writeln!(text, "shrunk: {} {command}", typed(&short, check.faults));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_plan_is_what_the_environment_is_read_as() {
        let faults = Faults { short: 1, stall: 2, ..Faults::default() };
        let whole = Plan::new(7, faults);
        assert_eq!(typed(&whole, faults), "UMS_SEED=7");
        let less = Faults { stall: 0, ..faults };
        let narrow = Plan { seed: 7, faults: less, wild: 3..99 };
        assert_eq!(typed(&narrow, faults), "UMS_SEED=7 UMS_WITHOUT=stall UMS_WILD=3..99");
    }
}
