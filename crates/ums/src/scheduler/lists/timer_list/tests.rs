//! Tests of the timer list, against a model.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const DAY: u64 = 24 * 3600 * 1_000_000_000;

fn expired<T: Copy>(list: &mut TimerList<T>, now: u64) -> Vec<T> {
    let mut out = Vec::new();
    list.expire(now, |item| out.push(item));
    out
}

#[test]
fn an_entry_is_delivered_at_its_deadline_and_not_a_nanosecond_before_u69() {
    let spans = [0, 1, 2, 16_383, 16_384, 16_385, 1 << 20, 123_456_789, DAY, 400 * DAY];
    for base in [0, 1, 77_777, DAY - 1, 1 << 62] {
        for span in spans {
            let mut list = TimerList::new(base);
            let deadline = base + span;
            list.insert(deadline, ());
            if span > 0 {
                assert!(!list.due(deadline - 1));
                assert_eq!(expired(&mut list, deadline - 1).len(), 0, "{base} + {span}");
            }
            assert!(list.due(deadline));
            assert_eq!(list.next_expiry(), Some(deadline));
            assert_eq!(expired(&mut list, deadline).len(), 1, "{base} + {span}");
            assert!(list.is_empty() && list.next_expiry().is_none());
        }
    }
}

#[test]
fn a_timed_wait_that_is_granted_leaves_the_list_and_never_expires_u67() {
    let mut list = TimerList::new(0);
    let granted = list.insert(1_000, "granted");
    list.insert(2_000, "times out");
    assert_eq!(list.cancel(granted), Some("granted"));
    assert_eq!(list.cancel(granted), None, "a wait is granted once");
    assert_eq!(list.len(), 1);
    assert_eq!(expired(&mut list, DAY), ["times out"]);
    let last = list.insert(2 * DAY, "granted");
    list.cancel(last);
    assert!(!list.due(3 * DAY), "with nothing on the list no turn has to look");
}

#[test]
fn the_name_of_an_entry_finds_the_same_entry_after_it_was_a_number() {
    let mut list = TimerList::new(0);
    let sent = |id: TimerId| TimerId::from_bits(id.to_bits());
    let old = ["first", "second"].map(|item| list.insert(1_000, item));
    assert_eq!(old.map(|id| list.cancel(sent(id))), [Some("first"), Some("second")]);
    let new = ["third", "fourth"].map(|item| list.insert(1_000, item));
    assert_eq!(old.map(|id| list.cancel(sent(id))), [None; 2], "the places have new tenants");
    assert_eq!(new.map(|id| list.cancel(sent(id))), [Some("third"), Some("fourth")]);
}

#[test]
fn an_expired_entry_is_off_the_list_and_its_name_finds_nothing_u69() {
    let mut list = TimerList::new(0);
    let old = list.insert(1_000, 1);
    assert_eq!(expired(&mut list, 1_000), [1]);
    assert_eq!(list.len(), 0);
    let new = list.insert(2_000, 2);
    assert_eq!(list.cancel(old), None, "the place has a new tenant, the old name must not hit");
    assert_eq!(list.cancel(new), Some(2));
}

#[test]
fn one_call_delivers_by_deadline_and_equal_deadlines_by_insertion() {
    let mut list = TimerList::new(0);
    let deadlines = [900, 500, 40_000, 500, DAY, 1 << 33, 899, 500, 40_001, 0];
    for (n, deadline) in deadlines.into_iter().enumerate() {
        list.insert(deadline, n);
    }
    assert_eq!(expired(&mut list, 2 * DAY), [9, 1, 3, 7, 6, 0, 2, 8, 5, 4]);
}

#[test]
fn insertion_order_survives_the_way_down_through_the_levels() {
    let mut list = TimerList::new(0);
    let deadline = (1 << 33) + 12_345;
    for n in 0..5 {
        list.insert(deadline, n);
    }
    // From here on the same deadline belongs to lower and lower levels.
    for (n, before) in [1 << 32, 1 << 27, 1 << 21, 1 << 13].into_iter().enumerate() {
        assert!(expired(&mut list, deadline - before).is_empty());
        list.insert(deadline, 5 + n);
    }
    assert_eq!(expired(&mut list, deadline), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn nothing_due_is_one_compare_and_walking_costs_what_is_released_g14() {
    let mut list = TimerList::new(0);
    for n in 0..100_000_u64 {
        list.insert(30 * DAY + n * 1_000_000, n);
    }
    list.insert(5_000, u64::MAX);
    assert!(!list.due(4_999));
    assert_eq!(expired(&mut list, 5_000), [u64::MAX]);
    // A jump of a month skips 10^11 empty ticks without visiting each. Of the many entries, only
    // those in slots that the wheel has entered are touched at all.
    assert_eq!(expired(&mut list, 30 * DAY + 1_000_000), [0, 1]);
    assert!(list.came_down <= 8 * 100_000, "{} entries came down", list.came_down);
    let before = list.came_down;
    assert_eq!(expired(&mut list, 30 * DAY + 2_000_000), [2]);
    assert!(list.came_down - before < 200, "a turn touched {}", list.came_down - before);
}

#[test]
fn a_sleeper_that_follows_next_expiry_neither_oversleeps_nor_spins_u72() {
    let mut list = TimerList::new(3);
    // The slots are crowded, so that the answer is often the beginning of a slot.
    for n in 0..1_000_u64 {
        list.insert(3 + DAY + n * 7_001, n);
    }
    let (mut now, mut wakes, mut got) = (3, 0, 0);
    while let Some(next) = list.next_expiry() {
        assert!(next > now, "woke for nothing at {now}");
        now = next;
        wakes += 1;
        list.expire(now, |n| {
            assert_eq!(now, 3 + DAY + n * 7_001, "late");
            got += 1;
        });
    }
    assert_eq!(got, 1_000);
    assert!(wakes <= 1_000 + 8 * 8, "{wakes} wakes for 1000 deadlines");
}

#[test]
fn the_last_nanosecond_of_the_clock_is_a_deadline_like_any_other() {
    let mut list = TimerList::new(u64::MAX - 1);
    list.insert(u64::MAX, 'z');
    list.insert(0, 'a');
    assert_eq!(expired(&mut list, u64::MAX - 1), ['a']);
    assert_eq!(expired(&mut list, u64::MAX), ['z']);
    list.insert(u64::MAX, 'z');
    assert_eq!(expired(&mut list, u64::MAX), ['z']);

    let mut list = TimerList::new(0);
    let never = list.insert(u64::MAX, 'n');
    assert_eq!(expired(&mut list, u64::MAX - 1), []);
    assert_eq!(list.next_expiry(), Some(u64::MAX));
    assert_eq!(list.cancel(never), Some('n'));
    assert!(!list.due(u64::MAX - 1), "an empty list is not due");
}

#[test]
fn a_clock_that_went_back_delivers_nothing_early_and_loses_nothing() {
    let mut list = TimerList::new(DAY);
    list.insert(DAY + 10, 1);
    assert_eq!(expired(&mut list, 5), []);
    list.insert(100, 2);
    assert_eq!(expired(&mut list, 5), []);
    assert_eq!(expired(&mut list, DAY + 9), [2]);
    assert_eq!(expired(&mut list, DAY + 10), [1]);
}

#[test]
fn the_wheel_moves_on_with_the_time_so_that_short_spans_stay_on_low_levels() {
    let mut list = TimerList::new(0);
    list.insert(100 * DAY, 'f');
    assert_eq!(expired(&mut list, DAY), []);
    list.insert(DAY + 1_000, 's');
    assert_eq!(list.levels & 1, 1);
    assert_eq!(expired(&mut list, DAY + 1_000), ['s']);
    assert_eq!(list.came_down, 0, "a short span is linked once");
}

#[test]
fn a_crowded_slot_answers_with_its_beginning_and_on_level_0_exactly_u72() {
    let mut list = TimerList::new(0);
    let begin = 5_u64 << (TICK_BITS + 2 * GROUP_BITS);
    for n in (1..=LOOK_MAX as u64 + 1).rev() {
        list.insert(begin + n * 10, n);
    }
    assert_eq!(list.next_expiry(), Some(begin), "it may not look at every entry");
    assert_eq!(expired(&mut list, begin), []);
    assert_eq!(list.next_expiry(), Some(begin + 10), "at the slot's beginning it came down");
}

#[test]
fn places_are_used_again_so_memory_follows_the_most_that_waited() {
    let mut list = TimerList::new(0);
    for n in 0..10_000 {
        let (a, b) = (list.insert(n, n), list.insert(n + 1, n));
        list.cancel(a).unwrap();
        list.cancel(b).unwrap();
    }
    assert_eq!(list.entries.len(), 2);
}

#[test]
fn a_million_entries_are_cancelled_and_none_is_delivered_later() {
    const COUNT: u64 = 1_000_000;
    let mut list = TimerList::new(0);
    let mut room = 0;
    for round in 0..3 {
        // From 1 ns to 11 days, so that all levels up to the seventh have entries.
        let ids: Vec<_> = (0..COUNT).map(|n| list.insert(n * n + 1, n)).collect();
        assert_eq!((list.len(), list.entries.len()), (COUNT as usize, COUNT as usize));
        let before = room;
        room = list.entries.capacity() * size_of::<Entry<u64>>();
        assert!(round == 0 || room == before, "a round after the first allocated");
        assert!(room <= 2 * 48 * COUNT as usize, "{room} bytes");
        for (n, id) in ids.iter().enumerate() {
            assert_eq!(list.cancel(*id), Some(n as u64));
        }
        assert!(list.is_empty() && ids.iter().all(|id| list.cancel(*id).is_none()));
    }
    // At most two entries for each that is put on the list, and three for each that is taken off.
    assert!(list.touched <= 3 * COUNT * 5, "{} entries were touched", list.touched);
    assert_eq!(list.came_down, 0);
    assert_eq!(expired(&mut list, u64::MAX), []);
}

#[test]
fn expiring_allocates_nothing_and_reserved_places_are_there_at_once() {
    let room = |list: &TimerList<u64>| (list.entries.capacity(), list.order.capacity());
    for reserved in [0, 1_000] {
        let mut list = TimerList::new(0);
        list.reserve(reserved);
        let at_first = room(&list);
        for n in 0..1_000 {
            list.insert(1_000 - n, n);
        }
        let before = room(&list);
        assert!(reserved == 0 || at_first == before, "an insertion allocated");
        assert_eq!(expired(&mut list, 1_000).len(), 1_000);
        assert_eq!(room(&list), before, "expire allocated");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u64),
    InsertPast(u64),
    Cancel(prop::sample::Index),
    Pass(u64),
    SleepUntilNext,
}

/// Returns spans of every size: each power of two is as likely as any other.
fn span() -> impl Strategy<Value = u64> {
    (0_u32..64, any::<u64>()).prop_map(|(bits, low)| (1_u64 << bits) | (low & ((1 << bits) - 1)))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => span().prop_map(Step::Insert),
        2 => (0_u64..40_000).prop_map(Step::Insert),
        1 => span().prop_map(Step::InsertPast),
        3 => any::<prop::sample::Index>().prop_map(Step::Cancel),
        2 => (0_u64..40_000).prop_map(Step::Pass),
        2 => (0_u32..58).prop_map(|bits| Step::Pass(1 << bits)),
        2 => Just(Step::SleepUntilNext),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// The model is a map from (deadline, number of insertion) to the entry's id.
    #[test]
    fn every_history_agrees_with_an_ordered_map(
        start in prop_oneof![Just(0), span(), Just(u64::MAX)],
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut now = start;
        let mut list = TimerList::new(now);
        let mut model = BTreeMap::<(u64, u32), TimerId>::new();
        let mut number = 0;
        for step in steps {
            let mut insert = |deadline: u64| {
                model.insert((deadline, number), list.insert(deadline, (deadline, number)));
                number += 1;
            };
            match step {
                Step::Insert(span) => insert(now.saturating_add(span)),
                Step::InsertPast(span) => insert(now.saturating_sub(span)),
                Step::Cancel(which) if !model.is_empty() => {
                    let (&key, &id) = model.iter().nth(which.index(model.len())).unwrap();
                    prop_assert_eq!(list.cancel(id), Some(key));
                    prop_assert_eq!(list.cancel(id), None);
                    model.remove(&key);
                }
                Step::Cancel(_) => {}
                Step::Pass(span) => now = now.saturating_add(span),
                Step::SleepUntilNext => now = now.max(list.next_expiry().unwrap_or(now)),
            }
            let first = model.first_key_value().map(|(&(deadline, _), _)| deadline);
            prop_assert!(first.is_none_or(|first| list.due(now) || now < first));
            prop_assert!(list.next_expiry() <= first);
            prop_assert_eq!(list.next_expiry().is_some(), first.is_some());
            if matches!(step, Step::Pass(_) | Step::SleepUntilNext) {
                let later = model.split_off(&(now, u32::MAX));
                let due: Vec<_> = std::mem::replace(&mut model, later).into_keys().collect();
                prop_assert_eq!(expired(&mut list, now), due);
                // After `expire` the answer is later than now: a sleeper does not wake in a loop.
                prop_assert!(list.next_expiry().is_none_or(|next| next > now));
                prop_assert!(!list.due(now) || now == u64::MAX);
            }
            prop_assert_eq!(list.len(), model.len());
        }
    }
}
