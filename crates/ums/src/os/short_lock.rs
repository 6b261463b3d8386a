//! A short lock: a lock that is held for a few instructions, never during a switch to another
//! worker, and never while application code runs.
//!
//! A worker that holds a short lock counts as inside the library (`entry`), whatever code took the
//! lock, because other workers of the same scheduler need the lock next. So it neither loses its
//! baton nor is stopped meanwhile. For a thread that is no worker this costs one read of a
//! thread-local.
//!
//! A thread that finds a short lock taken first spins, each round longer than the one before. Then
//! it yields the processor a few times, because the holder may have lost its processor. Then it is
//! *stuck on a short lock*: it sleeps and looks again, in turn, and its whole scheduler stands
//! still. No release wakes it, so a release is one store. Statistics say how often callers found a
//! short lock taken, and how long they waited.
//!
//! The short lock of a resource may be *biased* (`bias`): while only one scheduler uses the
//! resource, its workers lock without a locked instruction.
//!
//! Named invariant **Held**: the state is touched only through a guard, or while a guard exists in
//! the same function. One guard exists at a time: it holds the lock, or has entered by the bias.

#![allow(unsafe_code)] // Named invariant "Held", above.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[cfg(not(loom))]
use super::bias::Bias;
use super::counted::AtomicBool;
use super::entry::{BatonNumber, Inside, NO_HOLDER};
#[cfg(not(loom))]
use super::linux::barrier;
#[cfg(not(loom))]
use super::linux::plain::prefetch_to_write;

/// Rounds of spinning. Each is twice as long as the one before.
const ROUNDS: u32 = 8;
/// How often the thread yields the processor after that.
const BACKOFFS: u32 = 16;
/// How long a thread that is stuck sleeps before it looks again: at first, and at most. Each sleep
/// takes twice as long as the one before.
const NAPS: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(10)];

/// The counts of all short locks of the process together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShortLockCounts {
    /// How often a caller found a short lock taken.
    pub collisions: u64,
    /// How many turns of the spin loop callers waited.
    pub spins: u64,
    /// How often callers yielded the processor while they waited.
    pub backoffs: u64,
    /// How often a caller had to sleep.
    pub stuck_on_short_lock: u64,
}

static COLLISIONS: AtomicU64 = AtomicU64::new(0);
static SPINS: AtomicU64 = AtomicU64::new(0);
static PAUSES: AtomicU64 = AtomicU64::new(0);
static SICK: AtomicU64 = AtomicU64::new(0);
static MARK: OnceLock<fn(bool)> = OnceLock::new();

/// Reads the counts.
pub fn counts() -> ShortLockCounts {
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    ShortLockCounts {
        collisions: of(&COLLISIONS),
        spins: of(&SPINS),
        backoffs: of(&PAUSES),
        stuck_on_short_lock: of(&SICK),
    }
}

/// Sets the function that a thread calls with true when it becomes stuck on a short lock, and with
/// false when it has got the lock. The function must not take a short lock.
pub fn call_when_stuck(mark: fn(bool)) {
    let _ = MARK.set(mark);
}

/// A lock that is held for a few instructions.
#[repr(C)]
pub struct ShortLock<S> {
    base: Base,
    /// Models check the bias without a short lock, and a short lock without a bias.
    #[cfg(not(loom))]
    bias: Bias,
    state: UnsafeCell<S>,
}

// SAFETY: Held: a reference to the lock gives access to the state to one thread at a time.
unsafe impl<S: Send> Sync for ShortLock<S> {}

// A panic of a holder leaves the state usable.
impl<S> std::panic::UnwindSafe for ShortLock<S> {}
impl<S> std::panic::RefUnwindSafe for ShortLock<S> {}

/// A short lock that is held, and the state that it guards.
pub struct ShortGuard<'a, S> {
    home: &'a ShortLock<S>,
    #[cfg_attr(loom, allow(dead_code))]
    how: How<'a>,
    /// Dropped after the lock has been released.
    #[allow(dead_code)] // Held for its drop.
    inside: Option<Inside>,
}

/// A short lock that is held by the bias, and the state that it guards.
pub struct Biased<'a, S> {
    home: &'a ShortLock<S>,
}

impl<S> Drop for Biased<'_, S> {
    #[inline(always)]
    fn drop(&mut self) {
        #[cfg(not(loom))]
        self.home.bias.leave();
    }
}

impl<S> Deref for Biased<'_, S> {
    type Target = S;
    #[inline(always)]
    fn deref(&self) -> &S {
        // SAFETY: Held: by the bias, until this is dropped; it is borrowed as long as the state is.
        unsafe { &*self.home.state.get() }
    }
}

impl<S> DerefMut for Biased<'_, S> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut S {
        // SAFETY: Held: by the bias, until this is dropped; it is borrowed exclusively as long as
        // the state is.
        unsafe { &mut *self.home.state.get() }
    }
}

/// How a short lock is held.
enum How<'a> {
    /// By the bias.
    Biased,
    /// By its base, which the guard releases.
    #[allow(dead_code)] // Held for its drop.
    Base(BaseGuard<'a>),
}

/// Whether a thread holds the lock without the bias. A panic of the holder releases it, and leaves
/// the guarded state usable for the next: each step of a holder is complete in itself.
struct Base(AtomicBool);

/// Releases the base when it is dropped.
struct BaseGuard<'a>(&'a Base);

impl Base {
    #[inline]
    fn try_lock(&self) -> Option<BaseGuard<'_>> {
        // Acquire: what the holders before have done.
        let swap = self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        swap.is_ok().then(|| BaseGuard(self))
    }
}

impl Drop for BaseGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

impl<S> ShortLock<S> {
    /// Makes a lock that is free.
    pub const fn new(state: S) -> ShortLock<S> {
        ShortLock {
            base: Base(AtomicBool::new(false)),
            #[cfg(not(loom))]
            bias: Bias::shared(),
            state: UnsafeCell::new(state),
        }
    }

    /// Makes a lock that is free, and that may become biased. The caller of `lock` must have its
    /// scheduler's baton, if it belongs to a scheduler.
    pub const fn biased(state: S) -> ShortLock<S> {
        ShortLock {
            base: Base(AtomicBool::new(false)),
            #[cfg(not(loom))]
            bias: Bias::new(),
            state: UnsafeCell::new(state),
        }
    }

    /// Locks.
    #[inline(always)]
    pub fn lock(&self) -> ShortGuard<'_, S> {
        let inside = Inside::enter();
        let me = inside.as_ref().map_or(NO_HOLDER, |inside| inside.holder().number());
        let how = if self.enter_by_bias(me) { How::Biased } else { How::Base(self.lock_base(me)) };
        ShortGuard { home: self, how, inside }
    }

    /// Calls `f` with the state while the lock is held, for a caller that has entered the library
    /// (`Inside`), and so need not enter again; without a number this enters. `f` is compiled
    /// twice, for a biased lock, where this costs a few loads and stores, and for others, because
    /// a guard that may hold the lock in either way would be kept in memory. `f` must not lock
    /// again, and must run no application code.
    #[inline(always)]
    pub fn with<R>(&self, by: Option<BatonNumber<'_>>, f: impl FnOnce(&mut S) -> R) -> R {
        match self.by_bias(by) {
            Some(mut held) => f(&mut held),
            None => self.by_base(by, f),
        }
    }

    /// The first half of [`with`](ShortLock::with): returns the lock held by the bias, or None,
    /// and then the caller calls [`by_base`](ShortLock::by_base). For a caller that inlines what
    /// it does with the state, which a compiler does not do with a closure that it needs twice.
    #[inline(always)]
    pub fn by_bias(&self, by: Option<BatonNumber<'_>>) -> Option<Biased<'_, S>> {
        let me = by.map_or(NO_HOLDER, BatonNumber::number);
        self.enter_by_bias(me).then(|| Biased { home: self })
    }

    /// The second half: calls `f` while the lock is held by its base, for this holder, or for a
    /// caller that has not entered.
    #[inline(never)]
    pub fn by_base<R>(&self, by: Option<BatonNumber<'_>>, f: impl FnOnce(&mut S) -> R) -> R {
        let mut guard = match by {
            None => self.lock(),
            Some(me) => {
                let how = How::Base(self.lock_base(me.number()));
                ShortGuard { home: self, how, inside: None }
            }
        };
        f(&mut guard)
    }

    /// Locks if the lock is free.
    pub fn try_lock(&self) -> Option<ShortGuard<'_, S>> {
        let inside = Inside::enter();
        let me = inside.as_ref().map_or(NO_HOLDER, |inside| inside.holder().number());
        let how = if self.enter_by_bias(me) { How::Biased } else { How::Base(self.try_base(me)?) };
        Some(ShortGuard { home: self, how, inside })
    }

    #[cfg(not(loom))]
    #[inline(always)]
    fn enter_by_bias(&self, me: u32) -> bool {
        // This comes before the read of the bias, because without a bias the lock writes its base,
        // which is in the same line.
        prefetch_to_write(self);
        self.bias.enter(me)
    }

    #[cfg(loom)]
    fn enter_by_bias(&self, _: u32) -> bool {
        false
    }

    #[inline(never)]
    fn lock_base(&self, me: u32) -> BaseGuard<'_> {
        self.try_base(me).unwrap_or_else(|| {
            let base = self.lock_slow();
            self.used_by(me);
            base
        })
    }

    #[inline]
    fn try_base(&self, me: u32) -> Option<BaseGuard<'_>> {
        let base = self.try_now()?;
        self.used_by(me);
        Some(base)
    }

    /// Called with the base. When this returns, no other thread has entered by the bias.
    #[cfg(not(loom))]
    #[inline]
    fn used_by(&self, me: u32) {
        self.bias.used_by(me, barrier::on_all_threads);
    }

    #[cfg(loom)]
    fn used_by(&self, _: u32) {}

    #[inline]
    fn try_now(&self) -> Option<BaseGuard<'_>> {
        self.base.try_lock()
    }

    #[cold]
    fn lock_slow(&self) -> BaseGuard<'_> {
        COLLISIONS.fetch_add(1, Ordering::Relaxed);
        if let Some(base) = self.spin() {
            return base;
        }
        for _ in 0..BACKOFFS {
            PAUSES.fetch_add(1, Ordering::Relaxed);
            std::thread::yield_now();
            if let Some(base) = self.try_now() {
                return base;
            }
        }
        SICK.fetch_add(1, Ordering::Relaxed);
        let mark =
            |stuck_on_short_lock| MARK.get().into_iter().for_each(|mark| mark(stuck_on_short_lock));
        mark(true);
        let base = self.nap_until_free();
        mark(false);
        base
    }

    fn spin(&self) -> Option<BaseGuard<'_>> {
        (0..ROUNDS).find_map(|round| {
            (0..1 << round).for_each(|_| std::hint::spin_loop());
            SPINS.fetch_add(1 << round, Ordering::Relaxed);
            self.try_now()
        })
    }

    /// The calling thread is inside the library (`entry`) if it is a worker's, so the sleep is a
    /// system call like any other there, which moves no worker.
    fn nap_until_free(&self) -> BaseGuard<'_> {
        let [mut nap, longest] = NAPS;
        loop {
            std::thread::sleep(nap);
            nap = longest.min(nap.saturating_mul(2));
            if let Some(base) = self.spin() {
                return base;
            }
        }
    }
}

impl<S> Drop for ShortGuard<'_, S> {
    #[inline(always)]
    fn drop(&mut self) {
        #[cfg(not(loom))]
        if matches!(self.how, How::Biased) {
            self.home.bias.leave();
        }
    }
}

impl<S> Deref for ShortGuard<'_, S> {
    type Target = S;
    #[inline(always)]
    fn deref(&self) -> &S {
        // SAFETY: Held: by this guard, which is borrowed as long as the state is.
        unsafe { &*self.home.state.get() }
    }
}

impl<S> DerefMut for ShortGuard<'_, S> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut S {
        // SAFETY: Held: by this guard, which is borrowed exclusively as long as the state is.
        unsafe { &mut *self.home.state.get() }
    }
}

impl<S: Default> Default for ShortLock<S> {
    fn default() -> ShortLock<S> {
        ShortLock::new(S::default())
    }
}

impl<S> std::fmt::Debug for ShortLock<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShortLock").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_for_a_short_lock_is_marked_and_counted_b48() {
        let lock = ShortLock::new(0);
        let before = counts();
        let held = lock.lock();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| *lock.lock() += 1);
            while counts().stuck_on_short_lock == before.stuck_on_short_lock {
                std::thread::yield_now();
            }
            let now = counts();
            assert!(now.collisions > before.collisions);
            assert!(now.spins >= before.spins + (1 << ROUNDS) - 1);
            assert!(now.backoffs >= before.backoffs + u64::from(BACKOFFS));
            drop(held);
            waiter.join().unwrap();
        });
        assert_eq!(*lock.lock(), 1);
    }
}
