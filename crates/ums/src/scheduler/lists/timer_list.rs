//! The timer list: timed requests in order of their deadlines (U67..U72).
//!
//! A *deadline* is a `u64` of nanoseconds. An *entry* is one deadline and what it releases. A
//! *tick* is 2^14 ns, about 16 us, and decides only in which slot an entry stands: the entry keeps
//! its exact deadline and is never delivered before it.
//!
//! The entries stand in a hierarchical wheel. Cut the tick of a deadline into groups of six bits;
//! the highest group in which it differs from the wheel's own tick is its *level*, and the value of
//! that group is its *slot*:
//!
//! ```text
//!   tick of a deadline, 50 bits:   8:-- 7:------ 6:------ ... 2:------ 1:------ 0:------
//!                                                                 |
//!   first difference from the wheel's tick in group 2  -> level 2, slot = these six bits
//!
//!   level 0: slots of 16 us    level 1: of 1 ms    level 2: of 67 ms    level 3: of 4.3 s
//!   level 4: of 4.6 min        level 5: of 4.9 h   level 6: of 13 days  ... level 8: of 146 years
//! ```
//!
//! Invariants:
//!
//! * *Ahead*: above the first difference an entry agrees with the wheel, and in that group it is
//!   greater. So no slot lies behind the wheel, no level wraps, and every entry of a level is
//!   earlier than every entry of the levels above it: the earliest entry of all stands in the first
//!   occupied slot of the lowest occupied level, which two bitmaps name. A deadline that has
//!   already passed is put into the slot of the wheel's own tick, on level 0.
//! * *Arrival*: a slot is a first-in-first-out list. An entry comes down a level when the wheel
//!   enters its slot, which is before anything can be inserted directly beside it; so the order
//!   within a slot is the order of insertion.
//!
//! Costs: `insert` and `cancel` touch one slot and its neighbours; `expire` takes the slots it
//! passes from the bitmaps, so a jump of days costs what it releases; an entry comes down at most
//! once per level.
//!
//! Tried and dropped: a binary heap with lazy cancelling keeps the dead, hundreds of thousands of
//! them when every I/O has a timeout that is cancelled; a B-tree costs some 300 ns per pair; six
//! levels, which end at 13 days, need a rule for what lies beyond, while nine cover every `u64` and
//! need none.
//!
//! It does not read the clock, has no lock, and knows nothing of workers: it gives back what was
//! put in, and its caller moves the worker to the runnable list (U69).

/// Nanoseconds per tick, as a power of two.
const TICK_BITS: u32 = 14;
/// Bits of a tick that one level decides.
const GROUP_BITS: u32 = 6;
const SLOTS: usize = 1 << GROUP_BITS;
/// Enough levels for every tick: 14 + 9 * 6 bits are more than 64.
const LEVELS: usize = 9;
/// The end of a list of entries.
const NONE: u32 = u32::MAX;
/// How many entries `next_expiry` looks at in a slot above level 0 before it settles for the time
/// at which the slot begins.
const LOOK_MAX: usize = 64;

/// Names one insertion into a [`TimerList`]; once that entry has left, it names nothing.
///
/// A name is told from a later one that reuses its place by a count of 32 bits, so it should not be
/// kept over four thousand million insertions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId {
    index: u32,
    generation: u32,
}

#[derive(Clone, Debug)]
struct Entry<T> {
    deadline: u64,
    /// How often this place has been vacated; an id with another count is out of date.
    generation: u32,
    /// Neighbours within the slot; `next` also links the vacant places.
    prev: u32,
    next: u32,
    /// The slot it stands in: level * SLOTS + slot.
    place: u16,
    item: T,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    head: u32,
    tail: u32,
}

const EMPTY: Slot = Slot { head: NONE, tail: NONE };

/// Timed requests, delivered in order of deadline and never early.
///
/// ```text
/// let mut timers = TimerList::new(0);
/// let late = timers.insert(5_000_000, "late");
/// timers.insert(1_000_000, "soon");
/// assert_eq!(timers.next_expiry(), Some(1_000_000));
///
/// let mut expired = Vec::new();
/// timers.expire(2_000_000, |item| expired.push(item));
/// assert_eq!(expired, ["soon"]);
/// assert_eq!(timers.cancel(late), Some("late"));
/// assert!(timers.is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct TimerList<T> {
    /// No entry is earlier: the one compare of [`TimerList::due`]. It may be too early after a
    /// cancel; the next `expire` corrects it.
    bound: u64,
    /// Where the wheel stands; every tick before it has been delivered.
    tick: u64,
    /// Bit n: level n has an occupied slot.
    levels: u16,
    /// Bit n of word m: slot n of level m is occupied.
    occupied: [u64; LEVELS],
    slots: Box<[Slot; LEVELS * SLOTS]>,
    entries: Vec<Entry<T>>,
    /// The first vacant place in `entries`.
    vacant: u32,
    len: u32,
    /// The due entries of one slot while they are put in order: deadline, arrival, index. Grows
    /// with `entries`, so that `expire` never allocates.
    order: Vec<(u64, u32, u32)>,
    /// How many entries came down a level, so that a test can count the work.
    #[cfg(test)]
    came_down: u64,
}

impl<T: Copy> TimerList<T> {
    /// An empty list at this time, in nanoseconds.
    pub fn new(now: u64) -> TimerList<T> {
        TimerList {
            bound: u64::MAX,
            tick: now >> TICK_BITS,
            levels: 0,
            occupied: [0; LEVELS],
            slots: Box::new([EMPTY; LEVELS * SLOTS]),
            entries: Vec::new(),
            vacant: NONE,
            len: 0,
            order: Vec::new(),
            #[cfg(test)]
            came_down: 0,
        }
    }

    /// Makes room for this many entries beyond those present, so that inserting them allocates
    /// nothing.
    #[cfg_attr(not(test), allow(dead_code))] // For owners that know how many will come.
    pub fn reserve(&mut self, additional: usize) {
        let vacant = self.entries.len() - self.len();
        self.entries.reserve(additional.saturating_sub(vacant));
        self.order.reserve(self.entries.capacity());
    }

    /// How many entries wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `expire` may have something to do: one compare, for every turn.
    ///
    /// It is never false when an entry is due. After a cancel it may once be true for nothing.
    #[inline]
    pub fn due(&self, now: u64) -> bool {
        now >= self.bound
    }

    /// No entry is earlier than this. It may be too early after a cancel, until the next `expire`.
    #[inline]
    pub fn bound(&self) -> u64 {
        self.bound
    }

    /// Puts an item on the list until `deadline`; one that has passed is due at once.
    ///
    /// # Panics
    ///
    /// With 2^32 - 1 entries the list is full.
    #[inline]
    pub fn insert(&mut self, deadline: u64, item: T) -> TimerId {
        let index = if self.vacant == NONE {
            self.grow(deadline, item)
        } else {
            let index = self.vacant;
            let entry = &mut self.entries[index as usize];
            self.vacant = entry.next;
            entry.deadline = deadline;
            entry.item = item;
            index
        };
        self.len += 1;
        self.bound = self.bound.min(deadline);
        self.link(index);
        TimerId { index, generation: self.entries[index as usize].generation }
    }

    /// Takes an entry off the list; `None` when it has expired or was cancelled before.
    #[inline]
    pub fn cancel(&mut self, id: TimerId) -> Option<T> {
        let entry = self.entries.get(id.index as usize)?;
        // Vacating a place changes its generation, so equality also says that it is occupied.
        if entry.generation != id.generation {
            return None;
        }
        let item = entry.item;
        self.remove(id.index);
        if self.len == 0 {
            self.bound = u64::MAX;
        }
        Some(item)
    }

    /// Delivers every item whose deadline is at or before `now`: in order of deadline, and for one
    /// deadline in order of insertion. An item has left the list before it is delivered (U69).
    pub fn expire(&mut self, now: u64, mut deliver: impl FnMut(T)) {
        let target = now >> TICK_BITS;
        while let Some((level, slot)) = self.first_slot() {
            let start = self.slot_start(level, slot);
            if start > target {
                break;
            }
            self.tick = start;
            if level > 0 {
                self.come_down(level, slot);
                continue;
            }
            self.deliver_due(slot, now, &mut deliver);
            if start == target {
                // What is left in this slot is due later within the tick, all else after it.
                break;
            }
        }
        // A clock that went back delivers nothing early, and must not move the wheel back.
        self.tick = self.tick.max(target);
        self.bound = self.next_expiry().unwrap_or(u64::MAX);
    }

    /// When to look again: the earliest deadline, or for a crowded slot above level 0 the time at
    /// which that slot begins, which is not later.
    ///
    /// A sleeper that wakes then and calls `expire` brings the slot down, so it never wakes twice
    /// for the same answer. On level 0 the answer is exact.
    pub fn next_expiry(&self) -> Option<u64> {
        let (level, slot) = self.first_slot()?;
        let mut earliest = u64::MAX;
        let mut looked = 0;
        let mut index = self.slots[level * SLOTS + slot].head;
        while index != NONE {
            if level > 0 && looked == LOOK_MAX {
                return Some(self.slot_start(level, slot) << TICK_BITS);
            }
            let entry = &self.entries[index as usize];
            earliest = earliest.min(entry.deadline);
            index = entry.next;
            looked += 1;
        }
        Some(earliest)
    }

    /// The first occupied slot of the lowest occupied level; by *Ahead* nothing is earlier.
    #[inline]
    fn first_slot(&self) -> Option<(usize, usize)> {
        if self.levels == 0 {
            return None;
        }
        let level = self.levels.trailing_zeros() as usize;
        Some((level, self.occupied[level].trailing_zeros() as usize))
    }

    /// The tick at which a slot begins: the wheel's tick above the group, the slot in it.
    #[inline]
    fn slot_start(&self, level: usize, slot: usize) -> u64 {
        let shift = level as u32 * GROUP_BITS;
        let above = shift + GROUP_BITS;
        (self.tick >> above << above) | ((slot as u64) << shift)
    }

    /// Appends the entry to the slot in which its deadline belongs.
    #[inline]
    fn link(&mut self, index: u32) {
        let tick = (self.entries[index as usize].deadline >> TICK_BITS).max(self.tick);
        let level = ((tick ^ self.tick) | 1).ilog2() / GROUP_BITS;
        let slot = (tick >> (level * GROUP_BITS)) as usize % SLOTS;
        let level = level as usize;
        let place = level * SLOTS + slot;

        let tail = std::mem::replace(&mut self.slots[place].tail, index);
        let entry = &mut self.entries[index as usize];
        entry.prev = tail;
        entry.next = NONE;
        entry.place = place as u16;
        if tail != NONE {
            self.entries[tail as usize].next = index;
            return;
        }
        self.slots[place].head = index;
        self.occupied[level] |= 1 << slot;
        self.levels |= 1 << level;
    }

    /// Takes the entry out of its slot and vacates its place.
    #[inline]
    fn remove(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        let (prev, next, place) = (entry.prev, entry.next, entry.place as usize);
        entry.generation = entry.generation.wrapping_add(1);
        entry.next = self.vacant;
        self.vacant = index;
        self.len -= 1;

        match prev {
            NONE => self.slots[place].head = next,
            _ => self.entries[prev as usize].next = next,
        }
        match next {
            NONE => self.slots[place].tail = prev,
            _ => self.entries[next as usize].prev = prev,
        }
        if prev == NONE && next == NONE {
            self.vacate_slot(place / SLOTS, place % SLOTS);
        }
    }

    #[inline]
    fn vacate_slot(&mut self, level: usize, slot: usize) {
        self.occupied[level] &= !(1 << slot);
        if self.occupied[level] == 0 {
            self.levels &= !(1 << level);
        }
    }

    /// The wheel has entered this slot: its entries belong to lower levels now.
    fn come_down(&mut self, level: usize, slot: usize) {
        let mut index = std::mem::replace(&mut self.slots[level * SLOTS + slot], EMPTY).head;
        self.vacate_slot(level, slot);
        while index != NONE {
            let next = self.entries[index as usize].next;
            self.link(index);
            index = next;
            #[cfg(test)]
            {
                self.came_down += 1;
            }
        }
    }

    /// Delivers what is due in this slot of level 0, and leaves the rest there.
    fn deliver_due(&mut self, slot: usize, now: u64, deliver: &mut impl FnMut(T)) {
        self.order.clear();
        let mut index = self.slots[slot].head;
        while index != NONE {
            let entry = &self.entries[index as usize];
            if entry.deadline <= now {
                self.order.push((entry.deadline, self.order.len() as u32, index));
            }
            index = entry.next;
        }
        self.order.sort_unstable();
        for n in 0..self.order.len() {
            let (_, _, index) = self.order[n];
            let item = self.entries[index as usize].item;
            self.remove(index);
            deliver(item);
        }
    }

    /// Adds a place, and room to put it in order later.
    #[cold]
    fn grow(&mut self, deadline: u64, item: T) -> u32 {
        let index = self.entries.len() as u32;
        assert!(self.entries.len() < NONE as usize, "the timer list is full: 2^32 - 1 entries");
        let (prev, next) = (NONE, NONE);
        self.entries.push(Entry { deadline, generation: 0, prev, next, place: 0, item });
        self.order.clear();
        self.order.reserve(self.entries.capacity());
        index
    }
}

#[cfg(test)]
mod tests {
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
    fn an_expired_entry_is_off_the_list_and_its_name_is_dead_u69() {
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
    fn insertion_order_survives_coming_down_through_the_levels() {
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
        // A jump of a month over 10^11 empty ticks passes no tick one by one, and of the many
        // entries only those in slots that the wheel entered have been touched at all.
        assert_eq!(expired(&mut list, 30 * DAY + 1_000_000), [0, 1]);
        assert!(list.came_down <= 8 * 100_000, "{} entries came down", list.came_down);
        let before = list.came_down;
        assert_eq!(expired(&mut list, 30 * DAY + 2_000_000), [2]);
        assert!(list.came_down - before < 200, "a turn touched {}", list.came_down - before);
    }

    #[test]
    fn a_sleeper_that_follows_next_expiry_neither_oversleeps_nor_spins_u72() {
        let mut list = TimerList::new(3);
        // Crowded slots, so that the answer is often a slot's beginning.
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

    /// Spans of every size: each power of two is as likely as any other.
    fn span() -> impl Strategy<Value = u64> {
        (0_u32..64, any::<u64>())
            .prop_map(|(bits, low)| (1_u64 << bits) | (low & ((1 << bits) - 1)))
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
                    // After expiring, the answer lies ahead: a sleeper does not wake in a loop.
                    prop_assert!(list.next_expiry().is_none_or(|next| next > now));
                    prop_assert!(!list.due(now) || now == u64::MAX);
                }
                prop_assert_eq!(list.len(), model.len());
            }
        }
    }
}
