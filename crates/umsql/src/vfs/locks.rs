//! The lock table of one database file: who holds which of SQLite's locks, and who waits.
//!
//! Nouns. A *member* is one connection's opening of the file. There is one lock on the *file*, with
//! the levels of SQLite's rollback mode, and eight *slots*, each shared or exclusive, with which
//! SQLite guards its write-ahead log (slot 0 the writer, 1 the checkpointer, 2 recovery, the others
//! readers).
//!
//! ```text
//!   lock: granted? ──yes──▶ held ──unlock──▶ promise to the first waiters that may go on, wake them
//!          │ no                                   │
//!          ▼                                      ▼ SQLite asks again: granted, the promise is kept
//!        refused (BUSY) ──busy handler──▶ wait in the line ──────────────────────────┘
//! ```
//!
//! SQLite never waits inside a lock call: it is refused, and its busy handler decides. So the
//! handler is where a worker parks ([`Locks::wait`]), after a look under the table's own lock, so
//! that no unlock is missed. An unlock does not hand the lock itself over, for the waiter may never
//! ask again: it *promises* it, and until the promise is kept or lapses nobody else is granted what
//! conflicts with it. That keeps the order of arrival: the releaser, who still runs, cannot take
//! the lock again before the one who waited.
//!
//! What it does not do: no lock against other processes (the database holds one for all of its
//! time), and no deadlock detection. SQLite skips the busy handler where waiting could never end
//! (two readers that both want to write).

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::host::{self, For, Holder, Sleeper, Unwoken, Woken};

/// One connection's opening of a file.
pub(crate) type Member = u64;

/// How many slots there are.
pub(crate) const SLOTS: usize = 8;
/// How long a promise is good: a few turns of a busy scheduler.
const PROMISE: Duration = Duration::from_millis(100);
/// A waiter looks again at least this often, for a promise may have lapsed.
const SLICE: Duration = Duration::from_millis(100);

/// The levels of the lock on the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    None,
    Shared,
    Reserved,
    Pending,
    Exclusive,
}

/// What a member asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// The lock on the file, at this level.
    File(Level),
    /// These slots, all or none; the mask has a bit for each.
    Slots { mask: u8, exclusive: bool },
}

impl Want {
    /// Whether two members cannot have these at once.
    fn conflicts(self, other: Want) -> bool {
        match (self, other) {
            (Want::File(a), Want::File(b)) => {
                let (low, high) = (a.min(b), a.max(b));
                low >= Level::Reserved || (low == Level::Shared && high >= Level::Pending)
            }
            (
                Want::Slots { mask: a, exclusive: alone },
                Want::Slots { mask: b, exclusive: also },
            ) => (alone || also) && a & b != 0,
            _ => false,
        }
    }

    fn reason(self) -> For {
        match self {
            Want::File(Level::Shared) | Want::Slots { exclusive: false, .. } => For::SharedLock,
            _ => For::ExclusiveLock,
        }
    }
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waited {
    /// It may be granted now.
    LookAgain,
    /// The member was not refused anything: what is busy is no lock of this table.
    NotHere,
    /// The deadline passed.
    TimedOut,
    /// The request was cancelled.
    Interrupted,
}

/// The lock table of a database file.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    file: Vec<(Member, Level, Holder)>,
    slots: [Slot; SLOTS],
    /// What members were refused last, until they are granted it or wait for it.
    refused: Vec<(Member, Want)>,
    waiters: VecDeque<Waiter>,
    promises: Vec<Promise>,
}

#[derive(Debug, Default)]
struct Slot {
    exclusive: bool,
    holders: Vec<(Member, Holder)>,
}

#[derive(Debug, Clone, Copy)]
struct Waiter {
    member: Member,
    want: Want,
    sleeper: Sleeper,
}

#[derive(Debug, Clone, Copy)]
struct Promise {
    member: Member,
    want: Want,
    until: Instant,
}

impl Locks {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raises the member's lock on the file to `level`. False: refused.
    ///
    /// Who has RESERVED and is refused EXCLUSIVE because others read has PENDING from then on, so
    /// that no new reader comes.
    pub(crate) fn lock_file(&self, member: Member, level: Level) -> bool {
        let mut table = self.table();
        let held = table.level(member);
        if held >= level {
            return true;
        }
        let want = Want::File(level);
        if table.blocker(member, want).is_none() {
            table.set_level(member, level);
            table.granted(member, want);
            return true;
        }
        let writes_elsewhere = table.file.iter().any(|f| f.0 != member && f.1 >= Level::Reserved);
        if level == Level::Exclusive && held == Level::Reserved && !writes_elsewhere {
            table.set_level(member, Level::Pending);
        }
        table.refuse(member, want);
        false
    }

    /// Lowers the member's lock on the file to `level`.
    pub(crate) fn unlock_file(&self, member: Member, level: Level) {
        self.change(|table| {
            if table.level(member) > level {
                table.set_level(member, level);
            }
        });
    }

    /// The member's lock on the file.
    pub(crate) fn level(&self, member: Member) -> Level {
        self.table().level(member)
    }

    /// Whether any member has RESERVED or more.
    pub(crate) fn is_reserved(&self) -> bool {
        self.table().file.iter().any(|f| f.1 >= Level::Reserved)
    }

    /// Takes the slots of `mask`. False: refused, and none was taken.
    pub(crate) fn lock_slots(&self, member: Member, mask: u8, exclusive: bool) -> bool {
        let mut table = self.table();
        let want = Want::Slots { mask, exclusive };
        if table.blocker(member, want).is_some() {
            table.refuse(member, want);
            return false;
        }
        let holder = Holder::current();
        for slot in table.slots_of(mask) {
            slot.exclusive = exclusive;
            if slot.holders.iter().all(|h| h.0 != member) {
                slot.holders.push((member, holder));
            }
        }
        table.granted(member, want);
        true
    }

    /// Gives the slots of `mask` back.
    pub(crate) fn unlock_slots(&self, member: Member, mask: u8) {
        self.change(|table| {
            for slot in table.slots_of(mask) {
                slot.holders.retain(|h| h.0 != member);
                slot.exclusive &= !slot.holders.is_empty();
            }
        });
    }

    /// Ends the membership: everything it holds, was refused or is promised.
    pub(crate) fn leave(&self, member: Member) {
        self.change(|table| {
            table.file.retain(|f| f.0 != member);
            for slot in &mut table.slots {
                slot.holders.retain(|h| h.0 != member);
                slot.exclusive &= !slot.holders.is_empty();
            }
            table.promises.retain(|p| p.member != member);
            table.refused.retain(|r| r.0 != member);
        });
    }

    /// Waits until what the member was refused last may be granted; `until` at the latest.
    pub(crate) fn wait(&self, member: Member, until: Instant) -> Waited {
        let mut table = self.table();
        let Some(at) = table.refused.iter().position(|r| r.0 == member) else {
            return Waited::NotHere;
        };
        let want = table.refused.swap_remove(at).1;
        loop {
            if table.may_go(member, want) {
                table.promise(member, want);
                return Waited::LookAgain;
            }
            let slice = Instant::now() + SLICE;
            let holder = table.blocker(member, want).flatten();
            let waited =
                host::park(want.reason(), self, holder, Some(slice.min(until)), |sleeper| {
                    table.queue(Waiter { member, want, sleeper });
                    drop(table);
                });
            match waited {
                // Who woke us took us out of the line and gave us a promise.
                Ok(()) => return Waited::LookAgain,
                Err(Unwoken::TimedOut) if slice < until => table = self.table(),
                Err(error) => {
                    self.change(|table| table.waiters.retain(|w| w.member != member));
                    return match error {
                        Unwoken::TimedOut => Waited::TimedOut,
                        Unwoken::Interrupted => Waited::Interrupted,
                    };
                }
            }
        }
    }

    /// Changes the table, then lets those go on who may.
    fn change(&self, change: impl FnOnce(&mut Table)) {
        let mut table = self.table();
        change(&mut table);
        let woken = table.let_go_on();
        drop(table);
        woken.into_iter().for_each(Woken::run);
    }

    /// How many members wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.table().waiters.len()
    }
}

impl Table {
    fn level(&self, member: Member) -> Level {
        self.file.iter().find(|f| f.0 == member).map_or(Level::None, |f| f.1)
    }

    fn set_level(&mut self, member: Member, level: Level) {
        match self.file.iter().position(|f| f.0 == member) {
            Some(at) if level == Level::None => drop(self.file.swap_remove(at)),
            Some(at) => self.file[at].1 = level,
            None if level == Level::None => (),
            None => self.file.push((member, level, Holder::current())),
        }
    }

    fn slots_of(&mut self, mask: u8) -> impl Iterator<Item = &mut Slot> {
        let slots = self.slots.iter_mut().enumerate();
        slots.filter(move |(index, _)| mask & (1 << index) != 0).map(|(_, slot)| slot)
    }

    /// Who keeps the member from having this; the inner None is one who was promised it and is on
    /// the way.
    fn blocker(&self, member: Member, want: Want) -> Option<Option<Holder>> {
        let held = match want {
            Want::File(level) => {
                let blocks = match level {
                    Level::None => return None,
                    // Who was promised to read comes in before a writer that waits for readers to
                    // go.
                    Level::Shared if self.is_promised(member, want) => Level::Exclusive,
                    Level::Shared => Level::Pending,
                    Level::Reserved => Level::Reserved,
                    Level::Pending | Level::Exclusive => Level::Shared,
                };
                self.file.iter().find(|f| f.0 != member && f.1 >= blocks).map(|f| f.2)
            }
            Want::Slots { mask, exclusive } => {
                let slots = self.slots.iter().enumerate();
                let slots = slots.filter(|(index, slot)| {
                    mask & (1 << index) != 0 && (exclusive || slot.exclusive)
                });
                let mut holders = slots.flat_map(|(_, slot)| &slot.holders);
                holders.find(|h| h.0 != member).map(|h| h.1)
            }
        };
        if held.is_some() {
            return Some(held);
        }
        let promised =
            |p: &Promise| p.member != member && p.want.conflicts(want) && p.until > Instant::now();
        self.promises.iter().any(promised).then_some(None)
    }

    fn is_promised(&self, member: Member, want: Want) -> bool {
        let is_it = |p: &Promise| p.member == member && p.want == want && p.until > Instant::now();
        self.promises.iter().any(is_it)
    }

    fn refuse(&mut self, member: Member, want: Want) {
        self.refused.retain(|r| r.0 != member);
        self.refused.push((member, want));
    }

    /// The member has this: the promise of it is kept. A promise of something else stays open, for
    /// SQLite takes a reader's slot first when it asks again for the writer's.
    fn granted(&mut self, member: Member, want: Want) {
        self.refused.retain(|r| r.0 != member);
        self.promises.retain(|p| p.member != member || p.want != want);
    }

    /// Puts a waiter into the line, or gives the one that is there its new sleeper.
    fn queue(&mut self, waiter: Waiter) {
        match self.waiters.iter_mut().find(|w| w.member == waiter.member) {
            Some(known) => *known = waiter,
            None => self.waiters.push_back(waiter),
        }
    }

    /// Whether nobody holds, is promised, or waits longer for what conflicts with this.
    ///
    /// Who has a lock on the file and wants a higher one passes those in line: they wait for it.
    fn may_go(&self, member: Member, want: Want) -> bool {
        let raises = matches!(want, Want::File(_)) && self.level(member) > Level::None;
        let mut before = self.waiters.iter().take_while(|w| w.member != member);
        self.blocker(member, want).is_none() && (raises || !before.any(|w| w.want.conflicts(want)))
    }

    fn promise(&mut self, member: Member, want: Want) {
        self.waiters.retain(|w| w.member != member);
        self.promises.retain(|p| p.member != member);
        self.promises.push(Promise { member, want, until: Instant::now() + PROMISE });
    }

    /// Promises what is free to those who wait for it, in the order of arrival, and gives those to
    /// be woken.
    fn let_go_on(&mut self) -> Vec<Woken> {
        let mut woken = Vec::new();
        let mut at = 0;
        while let Some(&Waiter { member, want, sleeper }) = self.waiters.get(at) {
            at += 1;
            // One whose slice is just over cannot be claimed; it keeps its place and looks for
            // itself.
            if self.may_go(member, want)
                && let Some(claimed) = sleeper.claim()
            {
                self.promise(member, want);
                woken.push(claimed);
                at -= 1;
            }
        }
        woken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: u8 = 1;
    const LONG: Duration = Duration::from_secs(60);

    fn until(condition: impl Fn() -> bool) {
        let limit = Instant::now() + LONG;
        while !condition() {
            assert!(Instant::now() < limit, "a condition that must come about did not");
            std::thread::yield_now();
        }
    }

    fn take(locks: &Locks, member: Member, mask: u8, exclusive: bool) {
        while !locks.lock_slots(member, mask, exclusive) {
            let waited = locks.wait(member, Instant::now() + LONG);
            assert!(matches!(waited, Waited::LookAgain), "{waited:?}");
        }
    }

    #[test]
    fn a_promise_stays_open_while_its_owner_takes_something_else_first() {
        let (read, write) = (1 << 3, 1);
        let locks = Locks::default();
        assert!(locks.lock_slots(1, write, true));
        std::thread::scope(|s| {
            assert!(!locks.lock_slots(2, write, true));
            let second = s.spawn(|| locks.wait(2, Instant::now() + LONG));
            until(|| locks.waiting() == 1);
            locks.unlock_slots(1, write);
            assert_eq!(second.join().unwrap(), Waited::LookAgain);
        });
        assert!(locks.lock_slots(2, read, false), "as SQLite does first");
        assert!(!locks.lock_slots(1, write, true), "it is promised to the other still");
        assert!(locks.lock_slots(2, write, true));
    }

    #[test]
    fn the_levels_of_the_file_exclude_each_other_as_sqlite_says() {
        use Level::{Exclusive, None, Pending, Reserved, Shared};
        let locks = Locks::default();
        assert!(locks.lock_file(1, Shared) && locks.lock_file(2, Shared));
        assert!(locks.lock_file(1, Reserved));
        assert!(!locks.lock_file(2, Reserved) && locks.is_reserved());
        assert!(locks.lock_file(3, Shared), "readers may still come");
        assert!(!locks.lock_file(1, Exclusive));
        assert_eq!(locks.level(1), Pending);
        assert!(!locks.lock_file(4, Shared), "none may come any more");
        locks.unlock_file(2, None);
        locks.leave(3);
        assert!(locks.lock_file(1, Exclusive));
        assert!(!locks.lock_file(2, Shared));
        locks.unlock_file(1, Shared);
        assert!(locks.lock_file(2, Shared));
        // To roll a hot journal back one goes from SHARED to EXCLUSIVE, and keeps SHARED when
        // refused.
        assert!(!locks.lock_file(1, Exclusive));
        assert_eq!(locks.level(1), Shared);
    }

    #[test]
    fn slots_are_shared_or_exclusive_and_several_are_taken_together() {
        let locks = Locks::default();
        assert!(locks.lock_slots(1, 0b1000, false) && locks.lock_slots(2, 0b1000, false));
        assert!(!locks.lock_slots(3, 0b1111_1000, true));
        assert!(locks.lock_slots(3, 0b0001_0000, true), "refused, it has taken none of them");
        locks.unlock_slots(1, 0b1000);
        assert!(!locks.lock_slots(4, 0b1000, true));
        locks.leave(2);
        assert!(locks.lock_slots(4, 0b1000, true));
        assert!(!locks.lock_slots(1, 0b1000, false));
    }

    #[test]
    fn waiters_get_the_lock_in_the_order_in_which_they_came() {
        let locks = Locks::default();
        let order = Mutex::new(Vec::new());
        take(&locks, 0, WRITE, true);
        std::thread::scope(|s| {
            for member in 1..=6 {
                let (locks, order) = (&locks, &order);
                s.spawn(move || {
                    take(locks, member, WRITE, true);
                    order.lock().unwrap().push(member);
                    locks.unlock_slots(member, WRITE);
                });
                until(|| locks.waiting() == member as usize);
            }
            locks.unlock_slots(0, WRITE);
            // The releaser runs on, and still cannot take it before those who waited.
            assert!(!locks.lock_slots(0, WRITE, true));
            take(&locks, 0, WRITE, true);
        });
        assert_eq!(order.into_inner().unwrap(), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn a_promise_that_nobody_keeps_lapses() {
        let locks = Locks::default();
        take(&locks, 0, WRITE, true);
        std::thread::scope(|s| {
            s.spawn(|| {
                assert!(!locks.lock_slots(1, WRITE, true));
                assert_eq!(locks.wait(1, Instant::now() + LONG), Waited::LookAgain);
                // And it never asks again.
            });
            until(|| locks.waiting() == 1);
            let second = s.spawn(|| take(&locks, 2, WRITE, true));
            until(|| locks.waiting() == 2);
            locks.unlock_slots(0, WRITE);
            second.join().unwrap();
        });
        assert_eq!(locks.waiting(), 0);
    }

    #[test]
    fn a_writer_that_waits_for_readers_passes_those_who_wait_for_it() {
        let locks = Locks::default();
        assert!(locks.lock_file(1, Level::Shared) && locks.lock_file(1, Level::Reserved));
        assert!(locks.lock_file(2, Level::Shared) && !locks.lock_file(2, Level::Reserved));
        locks.unlock_file(2, Level::None);
        assert!(locks.lock_file(3, Level::Shared));
        std::thread::scope(|s| {
            let behind = s.spawn(|| locks.wait(2, Instant::now() + LONG));
            until(|| locks.waiting() == 1);
            assert!(!locks.lock_file(1, Level::Exclusive));
            let writer = s.spawn(|| locks.wait(1, Instant::now() + LONG));
            until(|| locks.waiting() == 2);
            locks.leave(3);
            assert_eq!(writer.join().unwrap(), Waited::LookAgain);
            assert!(locks.lock_file(1, Level::Exclusive));
            locks.leave(1);
            assert_eq!(behind.join().unwrap(), Waited::LookAgain);
        });
    }

    #[test]
    fn a_promised_reader_and_a_writer_that_waits_for_readers_do_not_wait_for_each_other() {
        let locks = Locks::default();
        for level in [Level::Shared, Level::Reserved, Level::Exclusive] {
            assert!(locks.lock_file(1, level));
        }
        assert!(!locks.lock_file(2, Level::Shared));
        std::thread::scope(|s| {
            let reader = s.spawn(|| locks.wait(2, Instant::now() + LONG));
            until(|| locks.waiting() == 1);
            locks.leave(1);
            // The next writer comes before the reader has taken what it was promised.
            assert!(locks.lock_file(3, Level::Shared) && locks.lock_file(3, Level::Reserved));
            assert!(!locks.lock_file(3, Level::Exclusive));
            assert_eq!(reader.join().unwrap(), Waited::LookAgain);
        });
        assert_eq!(locks.level(3), Level::Pending);
        assert!(!locks.lock_file(4, Level::Shared));
        assert!(locks.lock_file(2, Level::Shared));
        locks.leave(2);
        assert!(locks.lock_file(3, Level::Exclusive));
    }

    #[test]
    fn a_wait_ends_at_its_deadline_and_leaves_nothing_behind() {
        let locks = Locks::default();
        take(&locks, 0, WRITE, true);
        assert!(!locks.lock_slots(1, WRITE, true));
        let waited = locks.wait(1, Instant::now() + Duration::from_millis(250));
        assert_eq!((waited, locks.waiting()), (Waited::TimedOut, 0));
        assert_eq!(locks.wait(1, Instant::now()), Waited::NotHere);
    }
}
