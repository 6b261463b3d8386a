//! Tests of the bound, over many random histories. The lines are plain queues here.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// A thing that is ready: since when, how many others were ready then, and how many were chosen
/// since, in parts of a choice.
struct Thing {
    since: u64,
    others: u32,
    before: u32,
}

impl Thing {
    /// The bound of `before`.
    fn bound(&self, max: u32) -> u32 {
        let r = self.others;
        WHOLE * if r < max { r + max } else { 2 * r + max }
    }
}

struct World {
    rule: Fairness,
    lines: [VecDeque<Thing>; 4],
    now: u64,
}

impl World {
    fn new(max: u32) -> World {
        World { rule: Fairness::new(max), lines: Default::default(), now: 0 }
    }

    fn len(&self) -> usize {
        self.lines.iter().map(VecDeque::len).sum()
    }

    fn arrive(&mut self, line: Line) {
        let others = self.len() as u32;
        self.lines[line as usize].push_back(Thing { since: self.now, others, before: 0 });
    }

    fn choose(&mut self) -> Option<(Line, Thing)> {
        let first = |line: Line| self.lines[line as usize].front().map(|thing| thing.since);
        let [urgent, signalled, yielded, queued] = ALL.map(first);
        let ready = Ready { urgent, signalled, yielded, queued };
        let line = self.rule.choose(&ready)?;
        let thing = self.lines[line as usize].pop_front().expect("a line that is chosen has one");
        let (passed, by_age) = (self.rule.passed, self.rule.goes_by_age());
        self.rule.chosen(self.now, line, &ready, self.len());
        // The choice that makes a period begin counts as what was left, and one after a long turn
        // as more than one.
        let begins = !by_age && self.rule.passed < passed;
        let counted = self.rule.passed.saturating_sub(passed);
        self.pass(if begins { self.rule.max * WHOLE - passed } else { counted.max(WHOLE) });
        Some((line, thing))
    }

    /// Makes a choice by rule 3, if it may be made. Returns how many parts it counted as.
    fn join(&mut self) -> Option<u32> {
        let left = self.len();
        if !self.rule.prefers() || left == 0 {
            return None;
        }
        let passed = self.rule.passed;
        self.rule.join_passes_over(self.now, || left);
        let reset = self.rule.goes_by_age();
        let parts = if reset { self.rule.max * WHOLE } else { self.rule.passed } - passed;
        self.pass(parts);
        Some(parts)
    }

    /// The turn of what was chosen last ends.
    fn turn(&mut self, ticks: u64) {
        self.rule.turn = (self.now, self.now + ticks);
        self.now += ticks;
    }

    fn pass(&mut self, parts: u32) {
        self.lines.iter_mut().flatten().for_each(|thing| thing.before += parts);
    }
}

const SOME_LINES: [Line; 4] = ALL;

proptest! {
    /// Nothing waits for more choices than the bound, whatever arrives meanwhile and when.
    #[test]
    fn nothing_waits_for_more_choices_than_the_bound_b9(
        max in 1..12_u32,
        steps in prop::collection::vec((0..9_usize, 1..9_u32, 0..2_u64), 0..300),
    ) {
        let mut world = World::new(max);
        for (step, times, pass) in steps {
            for _ in 0..times {
                world.now += 1 + pass;
                match SOME_LINES.get(step) {
                    Some(line) => world.arrive(*line),
                    None if step == 7 => {
                        world.now += u64::from(times) * 30 * TICKS * pass;
                        world.join();
                    }
                    None if step == 8 => world.turn(u64::from(times) * LONG * pass),
                    None => {
                        // A storm: each choice is followed by the arrival of a preferred thing.
                        let chosen = world.choose();
                        if step == 6 && chosen.is_some() {
                            world.arrive([Line::Signalled, Line::Urgent][times as usize % 2]);
                        }
                        if let Some((_, thing)) = chosen {
                            prop_assert!(
                                thing.before <= thing.bound(max),
                                "{} parts went before one with {} others",
                                thing.before,
                                thing.others
                            );
                        }
                    }
                }
                prop_assert!(world.rule.passed < max * WHOLE && world.rule.longest() <= max);
            }
            for thing in world.lines.iter().flatten() {
                prop_assert!(thing.before <= thing.bound(max));
            }
        }
    }

    /// With a limit of 0 things go in the order in which they became ready.
    #[test]
    fn without_preference_everything_goes_by_age_b9(
        steps in prop::collection::vec(0..6_usize, 0..300),
    ) {
        let mut world = World::new(0);
        let mut last = 0;
        for step in steps {
            world.now += 1;
            match SOME_LINES.get(step) {
                Some(line) => world.arrive(*line),
                None => {
                    if let Some((_, thing)) = world.choose() {
                        prop_assert!(thing.since >= last);
                        last = thing.since;
                    }
                }
            }
        }
    }
}

#[test]
fn the_preferred_go_first_k_times_and_then_all_that_were_there_b9() {
    let mut world = World::new(3);
    (0..2).for_each(|_| world.arrive(Line::Yielded));
    let chosen: Vec<Line> = (0..10)
        .map(|_| {
            world.now += 1;
            world.arrive(Line::Signalled);
            world.choose().expect("something is ready").0
        })
        .collect();
    use Line::{Signalled as S, Yielded as Y};
    assert_eq!(chosen, [S, S, S, Y, Y, S, S, S, S, S]);
}

#[test]
fn a_storm_in_which_the_clock_stands_still_starves_nothing_b9() {
    let mut world = World::new(5);
    world.arrive(Line::Yielded);
    for _ in 0..6 {
        world.arrive(Line::Signalled);
        if world.choose().expect("something is ready").0 == Line::Yielded {
            return;
        }
    }
    panic!("a worker that yielded starves beside signals of the same instant");
}

#[test]
fn a_quick_join_counts_as_a_part_of_a_choice_and_a_slow_one_as_a_whole_b9() {
    for (pause, joins) in [(0, 3 * WHOLE), (TICKS, 3 * WHOLE), (10 * TICKS, 20), (u64::MAX / 8, 3)]
    {
        let mut world = World::new(3);
        world.now = 1;
        world.rule.joined = 1;
        world.arrive(Line::Queued);
        let mut made = 0;
        while world.rule.prefers() {
            world.now += pause;
            world.join().expect("a thing is left behind");
            made += 1;
        }
        assert_eq!(made, joins, "one after {pause} ticks each");
        assert!(world.join().is_none(), "in a period that goes by age");
        assert_eq!(world.choose().expect("it is next").0, Line::Queued);
        assert!(world.rule.prefers());
    }
}

#[test]
fn a_choice_after_a_long_turn_of_one_that_was_counted_counts_as_several_b9() {
    for (choices, made) in [(0, 100), (1, 51), (9, 11), (99, 2), (u64::MAX / LONG / 200, 2)] {
        let mut world = World::new(100);
        world.arrive(Line::Queued);
        let mut preferred = 0;
        while world.rule.prefers() {
            world.now += 1;
            world.arrive(Line::Signalled);
            assert_eq!(world.choose().expect("it is preferred").0, Line::Signalled);
            world.turn(choices * LONG);
            preferred += 1;
        }
        assert_eq!(preferred, made, "turns as long as {choices} choices");
        assert_eq!(world.choose().expect("it is next").0, Line::Queued);
        assert!(world.rule.check().is_ok());
    }
}

/// Otherwise a worker that waits often would wait for all that compute, one after the other.
#[test]
fn long_turns_of_what_was_passed_over_count_nothing_b9() {
    let mut world = World::new(100);
    (0..10).for_each(|_| world.arrive(Line::Yielded));
    for _ in 0..99 {
        world.arrive(Line::Signalled);
        assert_eq!(world.choose().expect("it is preferred").0, Line::Signalled);
        world.turn(1);
        assert_eq!(world.choose().expect("it is the oldest").0, Line::Yielded);
        world.turn(1000 * LONG);
        world.arrive(Line::Yielded);
    }
}

#[test]
fn a_period_by_age_that_did_not_begin_in_time_is_reported() {
    let mut rule = Fairness::new(3);
    for (passed, is_fine) in [(0, true), (3 * WHOLE - 1, true), (3 * WHOLE, false)] {
        rule.passed = passed;
        assert_eq!(rule.check().is_ok(), is_fine, "{passed} parts");
    }
}

#[test]
fn a_join_is_quick_if_its_choice_would_count_as_less_than_a_whole_one() {
    let mut rule = Fairness::new(1000);
    rule.join_passes_over(1, || 1);
    let whole = u64::from(WHOLE) * TICKS;
    assert!(rule.is_quick(1) && rule.is_quick(whole));
    assert!(!rule.is_quick(1 + whole) && !rule.is_quick(100 * whole));
}

#[test]
fn a_period_ends_when_nothing_is_left_that_was_ready_when_it_began_b9() {
    let mut world = World::new(9);
    (0..2).for_each(|_| world.arrive(Line::Yielded));
    for _ in 0..9 {
        world.now += 1;
        world.arrive(Line::Signalled);
        world.choose();
    }
    assert!(world.rule.goes_by_age());
    // Many others become ready meanwhile, and one of them leaves.
    world.now += 1;
    (0..9).for_each(|_| world.arrive(Line::Signalled));
    world.rule.by_age = 9;
    let lines = [(); 3].map(|()| world.choose().expect("something is ready").0);
    assert_eq!(lines, [Line::Yielded, Line::Yielded, Line::Signalled]);
    assert!(!world.rule.goes_by_age());
}

#[test]
fn in_one_of_eight_periods_the_oldest_request_begins_b9() {
    let mut search = Search::default();
    for _ in 0..2 {
        let periods = (0..20).take_while(|_| {
            search.next_period();
            !search.takes_any()
        });
        assert_eq!(periods.count(), 7);
        search.next_period();
        assert!(search.takes_any(), "none has begun yet");
        search.begins();
        assert!(!search.takes_any());
    }
}
