//! The lock table of one database file: the members that hold SQLite's locks, and those that wait.
//!
//! Nouns. A *member* is one connection's opening of the file. There is one lock on the *file*, with
//! the levels of SQLite's rollback mode, and eight *slots*, each shared or exclusive, which protect
//! the write-ahead log (slot 0 the writer, 1 the checkpointer, 2 recovery, the others readers).
//!
//! ```text
//!   lock: granted? ──yes──▶ held ──unlock──▶ promise it to the first waiters, wake them
//!          │ no                               │
//!          ▼                                  ▼
//!        refused (BUSY)                     SQLite tries again: granted
//!          │ busy handler                     ▲
//!          ▼                                  │
//!        wait in the queue ───────────────────┘
//! ```
//!
//! SQLite never waits inside a lock call: the call is refused, and then SQLite calls its busy
//! handler. The handler parks the worker ([`Locks::wait`]). It checks the lock again first, under
//! the table's own mutex, so that no unlock is missed. An unlock does not give the lock to the
//! waiter, because the waiter may never try again. Instead it *promises* the lock to the waiter:
//! until the promise is used or expires, no other member is granted a conflicting lock. That keeps
//! the order of arrival, because the releasing worker, which still runs, cannot take the lock again
//! before the waiter.
//!
//! A reader's slot can be *revoked*, because a snapshot that stays open keeps the log from
//! beginning again. Its member then has no lock, reads nothing more, and learns it from the next
//! read, until it ends its transaction.
//!
//! It does not lock out other processes; the database does that for as long as it is open. It does
//! not detect deadlocks: if a wait could never end (two readers that both need to write), SQLite
//! does not call the busy handler.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::host::{self, For, Holder, Sleeper, WaitError, Woken};
use ums::lock::Lock;

/// One connection's opening of a file.
pub(crate) type Member = u64;

/// How many slots there are.
pub(crate) const SLOTS: usize = 8;
/// The slots of readers. The first protects the database's pages, which a checkpoint overwrites;
/// each other the log's frames up to its mark.
const READERS: u8 = 0b1111_1000;
/// How long a promise is valid: a few turns of a busy scheduler.
const PROMISE: Duration = Duration::from_millis(100);
/// A waiter checks again at least this often, because a promise may have expired.
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

/// A lock that a member requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// The lock on the file, raised to this level.
    File(Level),
    /// These slots, all or none. The mask has one bit for each slot.
    Slots { mask: u8, exclusive: bool },
}

impl Want {
    /// Returns whether two members cannot hold these locks at the same time.
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
    /// The lock may be granted now.
    LookAgain,
    /// The member has no refused request in this table, so there is nothing to wait for.
    NotHere,
    /// The deadline passed, or the request was cancelled.
    Failed,
}

/// The lock table of a database file.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    table: Lock<Table>,
    /// The number of revoked members, so that most reads need not look.
    revoked: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    file: Vec<(Member, Level, Holder)>,
    slots: [Slot; SLOTS],
    /// For each member, its last refused request, until that is granted or waited for.
    refused: Vec<(Member, Want)>,
    waiters: VecDeque<Waiter>,
    promises: Vec<Promise>,
    /// The members whose readers' slots were revoked.
    revoked: Vec<Member>,
    /// The number of the present era; see [`Locks::begin_era`].
    era: u64,
}

#[derive(Debug, Default)]
struct Slot {
    exclusive: bool,
    /// Each with the era in which it was granted the slot.
    holders: Vec<(Member, Holder, u64)>,
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
    /// Raises the member's lock on the file to `level`. Returns false if the lock is refused.
    ///
    /// If a member with RESERVED is refused EXCLUSIVE because others read, it gets PENDING, so that
    /// no new reader is admitted.
    pub(crate) fn lock_file(&self, member: Member, level: Level) -> bool {
        let mut table = self.table.lock();
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

    /// Returns the member's lock on the file.
    pub(crate) fn level(&self, member: Member) -> Level {
        self.table.lock().level(member)
    }

    /// Returns whether any member has RESERVED or more.
    pub(crate) fn is_reserved(&self) -> bool {
        self.table.lock().file.iter().any(|f| f.1 >= Level::Reserved)
    }

    /// Locks the slots of `mask`. If one of them is refused, returns false and locks none.
    pub(crate) fn lock_slots(&self, member: Member, mask: u8, exclusive: bool) -> bool {
        let mut table = self.table.lock();
        let want = Want::Slots { mask, exclusive };
        if table.blocker(member, want).is_some() {
            table.refuse(member, want);
            return false;
        }
        let (holder, era) = (Holder::current(), table.era);
        for slot in table.slots_of(mask) {
            slot.exclusive = exclusive;
            if slot.holders.iter().all(|h| h.0 != member) {
                slot.holders.push((member, holder, era));
            }
        }
        table.granted(member, want);
        true
    }

    /// Releases the slots of `mask`.
    pub(crate) fn unlock_slots(&self, member: Member, mask: u8) {
        self.change(|table| {
            for slot in table.slots_of(mask) {
                slot.holders.retain(|h| h.0 != member);
                slot.exclusive &= !slot.holders.is_empty();
            }
            if mask & READERS != 0 {
                table.revoked.retain(|revoked| *revoked != member);
            }
            self.revoked.store(table.revoked.len(), Ordering::Release);
        });
    }

    /// Begins an era: readers that are granted a slot from now on are distinguished from those that
    /// have one.
    pub(crate) fn begin_era(&self) {
        self.table.lock().era += 1;
    }

    /// Takes the slots of readers from members that have had them since before this era.
    pub(crate) fn revoke_old_readers(&self) {
        self.change(|table| {
            let Table { slots, revoked, era, .. } = table;
            for (index, slot) in slots.iter_mut().enumerate() {
                if READERS & (1 << index) != 0 && !slot.exclusive {
                    revoked.extend(slot.holders.iter().filter(|h| h.2 < *era).map(|h| h.0));
                    slot.holders.retain(|h| h.2 >= *era);
                }
            }
            // Stored before the slots are free for others, which take them under this lock.
            self.revoked.store(table.revoked.len(), Ordering::Release);
        });
    }

    /// Returns whether the member's slot of a reader was revoked, and its transaction has not ended
    /// since.
    pub(crate) fn is_revoked(&self, member: Member) -> bool {
        self.revoked.load(Ordering::Acquire) > 0 && self.table.lock().revoked.contains(&member)
    }

    /// Removes the member with its locks, refused requests and promises.
    pub(crate) fn leave(&self, member: Member) {
        self.change(|table| {
            table.file.retain(|f| f.0 != member);
            for slot in &mut table.slots {
                slot.holders.retain(|h| h.0 != member);
                slot.exclusive &= !slot.holders.is_empty();
            }
            table.promises.retain(|p| p.member != member);
            table.refused.retain(|r| r.0 != member);
            table.revoked.retain(|revoked| *revoked != member);
            self.revoked.store(table.revoked.len(), Ordering::Release);
        });
    }

    /// Waits until the member's last refused request may be granted, at most until `until`.
    pub(crate) fn wait(&self, member: Member, until: Instant) -> Waited {
        let mut table = self.table.lock();
        let Some(at) = table.refused.iter().position(|r| r.0 == member) else {
            return Waited::NotHere;
        };
        let want = table.refused.swap_remove(at).1;
        loop {
            if table.may_go(member, want) {
                table.promise(member, want);
                return Waited::LookAgain;
            }
            let slice = host::after(Instant::now(), SLICE);
            let holder = table.blocker(member, want).flatten();
            let waited =
                host::park(want.reason(), self, holder, Some(slice.min(until)), |sleeper| {
                    table.queue(Waiter { member, want, sleeper });
                    drop(table);
                });
            match waited {
                // The waker has removed this waiter from the queue and has promised it the lock.
                Ok(()) => return Waited::LookAgain,
                Err(WaitError::TimedOut) if slice < until => table = self.table.lock(),
                Err(_) => {
                    self.change(|table| table.waiters.retain(|w| w.member != member));
                    return Waited::Failed;
                }
            }
        }
    }

    /// Changes the table, then wakes the waiters whose requests may be granted.
    fn change(&self, change: impl FnOnce(&mut Table)) {
        let mut table = self.table.lock();
        change(&mut table);
        let woken = table.promise_free();
        drop(table);
        woken.into_iter().for_each(Woken::run);
    }

    /// Returns how many members wait.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.table.lock().waiters.len()
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

    /// Returns what prevents the member from getting this lock. The outer `None` means nothing; the
    /// inner `None` means a promise to another member.
    fn blocker(&self, member: Member, want: Want) -> Option<Option<Holder>> {
        let held = match want {
            Want::File(level) => {
                let blocks = match level {
                    Level::None => return None,
                    // A reader with a promise is admitted before a writer that waits for readers to
                    // finish.
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

    /// Records that the member has this lock, which uses up the promise of it. A promise of another
    /// lock stays valid, because SQLite locks a reader's slot before it retries the writer's.
    fn granted(&mut self, member: Member, want: Want) {
        self.refused.retain(|r| r.0 != member);
        self.promises.retain(|p| p.member != member || p.want != want);
    }

    /// Adds a waiter to the queue. If its member is already queued, replaces that entry.
    fn queue(&mut self, waiter: Waiter) {
        match self.waiters.iter_mut().find(|w| w.member == waiter.member) {
            Some(known) => *known = waiter,
            None => self.waiters.push_back(waiter),
        }
    }

    /// Returns whether no conflicting lock is held, promised, or requested by an earlier waiter.
    ///
    /// If a member raises its lock on the file, it overtakes the waiters, because they wait for
    /// this member.
    fn may_go(&self, member: Member, want: Want) -> bool {
        let raises = matches!(want, Want::File(_)) && self.level(member) > Level::None;
        let mut before = self.waiters.iter().take_while(|w| w.member != member);
        self.blocker(member, want).is_none() && (raises || !before.any(|w| w.want.conflicts(want)))
    }

    fn promise(&mut self, member: Member, want: Want) {
        self.waiters.retain(|w| w.member != member);
        self.promises.retain(|p| p.member != member);
        self.promises.push(Promise { member, want, until: host::after(Instant::now(), PROMISE) });
    }

    /// Promises free locks to their waiters, in the order of arrival, and returns the waiters to
    /// wake.
    fn promise_free(&mut self) -> Vec<Woken> {
        let mut woken = Vec::new();
        let mut at = 0;
        while let Some(&Waiter { member, want, sleeper }) = self.waiters.get(at) {
            at += 1;
            // A waiter whose slice has just ended cannot be claimed. It keeps its place, and checks
            // the lock itself.
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
mod tests;
