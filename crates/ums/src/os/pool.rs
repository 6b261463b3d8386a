//! A pool of values that are never freed, only reused.
//!
//! It is the source of the invariant **Type Stable**: a value that [`Pool::take`] has returned is a
//! `&'static T` for the rest of the process. A pointer to it may be stale, but never dangles. A
//! wake-up or a signal handler that comes too late touches live memory, and recognises by the value
//! itself (a wait's number, a count, a state) that it is too late.
//!
//! ```text
//!   take(make, prepare) -> prepare(value), in_use := true -> the taker's
//!   give_back(value)    -> in_use := false, free again
//! ```
//!
//! * **One taker**: a value is either free or taken. It is on the free list only between
//!   `give_back` and the next `take`. Both lock the list, so what one user wrote is visible to the
//!   next.
//! * **A walk needs no lock**: each value has a link to the value that was made before it. The link
//!   is set before a release store publishes the value, and never changes. So [`Pool::every`] may
//!   be called in a signal handler. A value that it returns may be free, or may be taken at the
//!   same moment, so the caller reads only atomic fields of it.
//! * **Giving back allocates nothing**: making a value also reserves room for it on the free list.
//!
//! The pool never shrinks: it keeps the largest number of values that were in use at the same time.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use super::atomic_ref::AtomicRef;
use super::counted::AtomicBool;
use super::lock::Lock;

/// The length of a cache line in bytes. The values lie side by side, and different threads use
/// them. (Aligned less, the inboxes and event rings of two schedulers shared lines: a message
/// between the two took 1.3 times as long, and tasks on both up to 1.2 times.)
const LINE: usize = 64;
/// The memory that is allocated at once for several values, in bytes.
const ROOM_BYTES: usize = if cfg!(loom) { 0 } else { 32 << 10 };

/// The part of each value that the pool uses.
pub struct Member<T: 'static> {
    /// The value that was made before this one.
    older: AtomicRef<T>,
    in_use: AtomicBool,
}

impl<T> Member<T> {
    fn new() -> Member<T> {
        Member { older: AtomicRef::new(), in_use: AtomicBool::new(false) }
    }

    /// The offset at which a debugger finds the pointer to the value that was made before this one,
    /// or null.
    pub const OLDER: usize = std::mem::offset_of!(Member<T>, older);
    /// The offset at which a debugger finds whether the value is in use.
    pub const IN_USE: usize = std::mem::offset_of!(Member<T>, in_use);
}

impl<T> std::fmt::Debug for Member<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the older values, which would be printed one inside the other.
        f.debug_struct("Member").field("in_use", &self.in_use).finish_non_exhaustive()
    }
}

/// A type whose values live in a pool.
pub trait Pooled: Sync + Sized + 'static {
    /// Returns the `Member` that `make` received for this value.
    fn member(&self) -> &Member<Self>;
}

/// All values of one type that were ever made.
#[derive(Debug)]
pub struct Pool<T: 'static> {
    newest: AtomicRef<T>,
    free: Lock<Free<T>>,
}

#[derive(Debug)]
struct Free<T: 'static> {
    values: Vec<&'static T>,
    /// How many values were made, in use or free.
    made: usize,
    /// Memory for the next values.
    room: &'static mut [MaybeUninit<T>],
}

impl<T> Pool<T> {
    /// Makes an empty pool.
    pub const fn new() -> Pool<T> {
        const { assert!(align_of::<T>() >= LINE, "no cache line has parts of two values") };
        let free = Free { values: Vec::new(), made: 0, room: &mut [] };
        Pool { newest: AtomicRef::new(), free: Lock::new(free) }
    }

    /// Returns the place where a debugger finds the value that was made last, or null.
    pub const fn newest(&'static self) -> &'static AtomicRef<T> {
        &self.newest
    }
}

impl<T> Default for Pool<T> {
    fn default() -> Pool<T> {
        Pool::new()
    }
}

impl<T: Pooled> Pool<T> {
    /// Takes a free value, or makes one if none is free. Calls `prepare` with the value before the
    /// value counts as in use.
    #[inline]
    pub fn take(
        &self,
        make: impl FnOnce(Member<T>) -> T,
        prepare: impl FnOnce(&'static T),
    ) -> &'static T {
        // A new value is made where it stays: the caller may be a worker, which should need no more
        // than the highest page of its stack.
        let new = || self.add(self.place().write(make(Member::new())));
        Self::hand_out(self.free().unwrap_or_else(new), prepare)
    }

    /// Takes a value as [`Pool::take`] does, and returns the error if making a new value fails.
    pub fn try_take<E>(
        &self,
        make: impl FnOnce(Member<T>) -> Result<T, E>,
        prepare: impl FnOnce(&'static T),
    ) -> Result<&'static T, E> {
        let value = match self.free() {
            Some(value) => value,
            None => {
                let value = make(Member::new())?;
                self.add(self.place().write(value))
            }
        };
        Ok(Self::hand_out(value, prepare))
    }

    fn free(&self) -> Option<&'static T> {
        // A value of one run of a model cannot be used in the next run, because loom forbids it.
        self.free.lock().values.pop().filter(|_| !cfg!(loom))
    }

    fn hand_out(value: &'static T, prepare: impl FnOnce(&'static T)) -> &'static T {
        prepare(value);
        value.member().in_use.store(true, Ordering::Release);
        value
    }

    /// Adds a new value, which counts as taken. The value was made before the lock is taken,
    /// because making it may take long, for instance in the allocator.
    #[cold]
    fn add(&self, value: &'static T) -> &'static T {
        let mut free = self.free.lock();
        free.made += 1;
        let room = free.made - free.values.len();
        free.values.reserve(room);
        value.member().older.store(self.last());
        self.newest.store(Some(value));
        value
    }

    /// Returns memory for a new value. Many values are allocated at once, because for each
    /// allocation of a large alignment the allocator wastes about that much memory.
    fn place(&self) -> &'static mut MaybeUninit<T> {
        loop {
            if let Some(place) = self.free.lock().room.split_off_first_mut() {
                return place;
            }
            let count = (ROOM_BYTES / size_of::<T>().max(1)).max(1);
            let room = Box::new_uninit_slice(count);
            let mut free = self.free.lock();
            // Another thread may have been faster.
            if free.room.is_empty() {
                free.room = Box::leak(room);
            }
        }
    }

    /// Returns a value to the pool for reuse. Its taker must not use it any more.
    pub fn give_back(&self, value: &'static T) {
        let was_used = value.member().in_use.swap(false, Ordering::Release);
        assert!(was_used, "a value of a pool is given back once");
        self.free.lock().values.push(value);
    }

    /// Returns all values that were ever made, the newest first. Async-signal-safe.
    pub fn every(&self) -> impl Iterator<Item = &'static T> + use<T> {
        std::iter::successors(self.last(), |value| value.member().older.load())
    }

    /// Returns all values that are in use, the newest first. Async-signal-safe.
    pub fn in_use(&self) -> impl Iterator<Item = &'static T> + use<T> {
        self.every().filter(|value| value.member().in_use.load(Ordering::Acquire))
    }

    fn last(&self) -> Option<&'static T> {
        self.newest.load()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[repr(align(64))]
    struct Thing {
        member: Member<Thing>,
        /// How many threads have taken it and not given it back.
        takers: AtomicU32,
    }

    impl Pooled for Thing {
        fn member(&self) -> &Member<Thing> {
            &self.member
        }
    }

    fn take(pool: &Pool<Thing>) -> &'static Thing {
        pool.take(|member| Thing { member, takers: AtomicU32::new(0) }, |_| {})
    }

    #[test]
    fn a_value_that_was_given_back_is_used_again() {
        let pool = Pool::new();
        let (a, b) = (take(&pool), take(&pool));
        let all = |pool: &Pool<Thing>| pool.every().map(std::ptr::from_ref).collect::<Vec<_>>();
        assert_eq!(all(&pool), [std::ptr::from_ref(b), a]);
        pool.give_back(a);
        assert_eq!(pool.in_use().map(std::ptr::from_ref).collect::<Vec<_>>(), [b as *const _]);
        assert!(std::ptr::eq(take(&pool), a));
        assert_eq!(all(&pool).len(), 2);
    }

    #[test]
    fn a_value_that_cannot_be_made_leaves_the_pool_as_it_was() {
        let pool: Pool<Thing> = Pool::new();
        assert_eq!(pool.try_take(|_| Err("no"), |_| {}).err(), Some("no"));
        assert_eq!(pool.every().count(), 0);
        let first = take(&pool);
        assert!(first.member.older.load().is_none());
    }

    #[test]
    fn no_two_threads_have_the_same_value_and_giving_back_allocates_nothing() {
        static POOL: Pool<Thing> = Pool::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let things = [take(&POOL), take(&POOL)];
                        for thing in things {
                            assert_eq!(thing.takers.fetch_add(1, Ordering::Relaxed), 0);
                            assert!(thing.member.in_use.load(Ordering::Relaxed));
                        }
                        for thing in things {
                            thing.takers.fetch_sub(1, Ordering::Relaxed);
                            POOL.give_back(thing);
                        }
                    }
                });
            }
        });
        let made = POOL.every().count();
        assert!(made <= 8, "as many as were in use at once: {made}");
        assert!(POOL.free.lock().values.capacity() >= made);
        assert_eq!(POOL.in_use().count(), 0);
    }
}
