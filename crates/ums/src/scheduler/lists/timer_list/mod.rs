//! The timer list: timed requests in order of their deadlines.
//!
//! A *deadline* is a `u64` of nanoseconds. An *entry* is a deadline with an item, which is
//! delivered when the deadline has come. A *tick* is 2^14 ns, about 16 us. The tick only decides in
//! which slot an entry is: the entry keeps its exact deadline and is never delivered before it.
//!
//! The entries are in a hierarchical wheel. The tick of a deadline is cut into groups of six bits.
//! The highest group in which it differs from the wheel's own tick is the entry's *level*, and the
//! value of that group is its *slot*:
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
//! * *Ahead*: in the groups above its level an entry agrees with the wheel, and in the group of its
//!   level it is greater. So no slot is behind the wheel, no level wraps, and every entry of a
//!   level is earlier than every entry of the levels above. So the earliest entry of all is in the
//!   first occupied slot of the lowest occupied level, which two bitmaps name. A deadline that has
//!   already passed is put into the slot of the wheel's own tick, on level 0.
//! * *Arrival*: a slot is a first-in-first-out list. When the wheel enters a slot, the slot's
//!   entries move down to lower levels. At that moment nothing can have been inserted there
//!   directly, so the order within a slot is the order of insertion.
//!
//! Costs: `insert` and `cancel` touch one slot and the entry's neighbours. `expire` finds the slots
//! that the wheel passes in the bitmaps, so a jump of days costs only what is released. An entry
//! moves down at most once per level.
//!
//! Tried and dropped: a binary heap with lazy cancelling keeps cancelled entries, hundreds of
//! thousands of them if every I/O has a timeout that is cancelled. A B-tree costs some 300 ns for
//! an insertion and its cancellation. Six levels, which end at 13 days, need a rule for later
//! deadlines; nine levels cover every `u64` and need none.
//!
//! The list does not read the clock, has no lock, and does not depend on what workers are: it
//! returns the items, and its caller moves the workers to the runnable list.

/// Nanoseconds per tick, as a power of two.
const TICK_BITS: u32 = 14;
/// The number of bits of a tick that one level stands for.
const GROUP_BITS: u32 = 6;
const SLOTS: usize = 1 << GROUP_BITS;
/// Enough levels for every tick: 14 + 9 * 6 bits are more than 64.
const LEVELS: usize = 9;
/// The end of a list of entries.
const NONE: u32 = u32::MAX;
/// How many entries `next_expiry` looks at in a slot above level 0 before it returns the time at
/// which the slot begins instead.
const LOOK_MAX: usize = 64;

/// Names one insertion into a [`TimerList`]. Once the entry has left the list, the id finds
/// nothing.
///
/// An id is distinguished from later ones for the same place by a count of 32 bits, so it should
/// not be kept over four thousand million insertions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId {
    index: u32,
    generation: u32,
}

impl TimerId {
    /// Returns the id as a number, for a message.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Returns the id with this number.
    pub fn from_bits(bits: u64) -> TimerId {
        // Bounded: the other half is the generation.
        TimerId { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

#[derive(Clone, Debug)]
struct Entry<T> {
    deadline: u64,
    /// How many times this place has been vacated; an id with another count is out of date.
    generation: u32,
    /// Neighbours within the slot; `next` also links the vacant places.
    prev: u32,
    next: u32,
    /// The number of the slot it is in: level * SLOTS + slot.
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
    /// No entry is earlier than this; [`TimerList::due`] compares it with the time. It may be too
    /// early after a cancellation; the next `expire` corrects it.
    bound: u64,
    /// The tick that the wheel has reached; all ticks before it have been delivered.
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
    /// The due entries of one slot while they are sorted: deadline, arrival, index. Grows with
    /// `entries`, so that `expire` never allocates.
    order: Vec<(u64, u32, u32)>,
    /// How many times an entry moved down a level, so that a test can count the work.
    #[cfg(test)]
    came_down: u64,
    /// How many entries were written to when entries were put on the list or taken off.
    #[cfg(test)]
    touched: u64,
}

impl<T: Copy> TimerList<T> {
    /// Makes an empty list at this time, in nanoseconds.
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
            #[cfg(test)]
            touched: 0,
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

    /// Returns how many entries are on the list.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether the list is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether `expire` may have something to do. This is one compare, cheap enough for
    /// every turn.
    ///
    /// The answer is never false when an entry is due. After a cancellation it may be true once
    /// although nothing is due.
    #[inline]
    pub fn due(&self, now: u64) -> bool {
        now >= self.bound
    }

    /// Returns a time before which no entry is due. It may be too early after a cancellation, until
    /// the next `expire`.
    #[inline]
    pub fn bound(&self) -> u64 {
        self.bound
    }

    /// Puts an item on the list until `deadline`. If that has passed, the item is due immediately.
    ///
    /// # Panics
    ///
    /// Panics if the list is full, with 2^32 - 1 entries.
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

    /// Takes an entry off the list. Returns `None` if it has expired or was cancelled before.
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
    /// deadline in order of insertion. An item has left the list before it is delivered.
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

    /// Returns when to look again: the earliest deadline. If the first occupied slot is crowded and
    /// above level 0, returns the time at which that slot begins, which is not later.
    ///
    /// A thread that sleeps until then and calls `expire` moves the slot's entries down, so it
    /// never wakes twice for the same answer. On level 0 the answer is exact.
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

    /// Returns whether at least half of the slots of level 0 that are still to come have entries:
    /// there is one every 33 us or more often, until the present slot of level 1 ends. If it ends
    /// soon, the next one must have entries, too.
    pub fn is_crowded(&self) -> bool {
        let to_come = SLOTS as u32 - (self.tick % SLOTS as u64) as u32;
        let next = (self.tick >> GROUP_BITS) % SLOTS as u64 + 1;
        let goes_on =
            to_come >= 8 || self.occupied[1].checked_shr(next as u32).unwrap_or(0) & 1 == 1;
        goes_on && 2 * self.occupied[0].count_ones() >= to_come
    }

    /// Returns the first occupied slot of the lowest occupied level; by *Ahead* nothing is earlier.
    #[inline]
    fn first_slot(&self) -> Option<(usize, usize)> {
        if self.levels == 0 {
            return None;
        }
        let level = self.levels.trailing_zeros() as usize;
        Some((level, self.occupied[level].trailing_zeros() as usize))
    }

    /// Returns the tick at which a slot begins: the wheel's tick above the group, then the slot's
    /// number.
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
        #[cfg(test)]
        {
            self.touched += 1 + u64::from(tail != NONE);
        }
        if tail != NONE {
            self.entries[tail as usize].next = index;
            return;
        }
        self.slots[place].head = index;
        self.occupied[level] |= 1 << slot;
        self.levels |= 1 << level;
    }

    /// Takes the entry out of its slot, and makes its place vacant.
    #[inline]
    fn remove(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        let (prev, next, place) = (entry.prev, entry.next, entry.place as usize);
        #[cfg(test)]
        {
            self.touched += 1 + u64::from(prev != NONE) + u64::from(next != NONE);
        }
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

    /// Moves the entries of a slot that the wheel has entered to the lower levels where they
    /// belong.
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

    /// Delivers the due entries of this slot, which is on level 0, and leaves the rest there.
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

    /// Adds a place for an entry, and the room in `order` that it needs when it is delivered.
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
mod tests;
